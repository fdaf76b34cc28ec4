"""Nearest cells of rotated rows on a GPU (quantize.cu): one launch for all bytes, no scores in memory."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np

from scq_gpu._core.arrays import Array, is_row_major, runs_kernels
from scq_gpu.kernels.cuda.encode import OLDEST
from scq_gpu.kernels.cuda.launch import (
    THREADS,
    capability_of,
    ceil_div,
    element_of,
    in_library_of,
    launch,
    on_one_device,
)

WIDTHS: Final = (8, 16, 24, 32)


@dataclasses.dataclass(frozen=True)
class QuantizeVariant:
    """One compiled form of quantize.cu."""

    width: int  # of a cell, filled up with zeros
    source = "quantize.cu"
    kernel = "nearest_cells"
    min_capability = OLDEST

    @property
    def rows_per_thread(self) -> int:
        """Return the rows that a thread owns: 64 registers of them at most."""
        return 4 if self.width <= 16 else 2

    @property
    def shared(self) -> int:
        """Return the bytes of shared memory."""
        return 256 * 4 * (self.width + 1)

    @property
    def defines(self) -> tuple[str, ...]:
        """Return the preprocessor definitions."""
        return f"WIDTH={self.width}", f"ROWS_PER_THREAD={self.rows_per_thread}"

    def blocks(self, n: int, n_bytes: int) -> int:
        """Return the number of blocks in the grid."""
        return ceil_div(n, THREADS * self.rows_per_thread) * n_bytes


def has_quantize_kernel(Y: Array, cells: Array) -> bool:
    """Return whether the kernel takes rotated rows Y and cells (bytes, K, w) as they are."""
    if not (runs_kernels(Y) and element_of(Y) == element_of(cells) == "float32" and is_row_major(Y)):
        return False
    return cells.shape[1] <= 256 and cells.shape[2] <= WIDTHS[-1] and capability_of(Y) >= OLDEST


def nearest_on_gpu(Y: Array, cells: Array, halves: Array) -> tuple[Array, Array]:
    """Quantize rows for which `has_quantize_kernel` holds.

    Returns codes (n, bytes) and a boolean array (1,), true if all of Y is finite, both in the library of Y.
    """
    device, arrays = on_one_device(Y=Y, cells=cells, halves=halves)
    with device.current():
        codes, flag = nearest(device, *arrays)
        return in_library_of(Y, codes), in_library_of(Y, flag) == 0


def nearest(device: Any, Y: Array, cells: Array, halves: Array) -> tuple[Array, Array]:
    """Find for each byte g of row-major Y (n, bytes * w) the cell of largest ``y . cells[g] - halves[g]``.

    Cells are (bytes, K, w), halves (bytes, K), all float32. Returns codes (n, bytes), of equal scores the lowest cell,
    and a flag (1,) int32, which is 0 if all of Y is finite and else 1.
    """
    xp, n, (n_bytes, K, w) = device.xp, Y.shape[0], cells.shape
    variant = QuantizeVariant(next(width for width in WIDTHS if width >= w))
    cells, halves = xp.ascontiguousarray(cells), xp.ascontiguousarray(halves)
    codes = xp.empty((n, n_bytes), dtype=xp.uint8)
    flag = xp.zeros(1, dtype=xp.int32)
    sizes = (np.int64(n), np.int64(Y.strides[0] // Y.itemsize), *map(np.int32, (n_bytes, K, w)))
    args = (Y, cells, halves, codes, flag, *sizes)
    launch(device, variant, variant.kernel, blocks=variant.blocks(n, n_bytes), shared=variant.shared, args=args)
    return codes, flag
