"""Search for a column of OnE in one launch; `scq_gpu.training.orthonormal` does the same in array operations."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from scq_gpu._core.arrays import Array, cuda_device_of
from scq_gpu.kernels.cuda.launch import SHARED_BYTES, THREADS, RealVariant, launch


def in_one_launch(V: Array) -> bool:
    """Return whether `find_column` takes the earlier columns V (R, k, D), which must be few and CuPy's."""
    # one multiprocessor solves for up to 64 columns alone
    return cuda_device_of(V) is not None and V.shape[-2] <= 64 and _shared_bytes(V) <= SHARED_BYTES


def find_column(
    gap: Array, m: Array, V: Array, lo: Array, hi: Array, start: Array, *, steps: int, xp: ModuleType
) -> tuple[Array, Array]:
    """Find the roots tau (R, 1, 1) in [lo, hi], from ``start`` in a number of steps, and v(tau) (R, 1, D)."""
    R, k, D = V.shape
    gap, m, V = (_with_contiguous_rows(x, xp=xp) for x in (gap, m, V))
    bracket = xp.concat([xp.broadcast_to(x, (R, 1, 1)) for x in (lo, hi, start)], axis=-1)
    tau, v = xp.empty((R, 1, 1), dtype=m.dtype), xp.empty((R, 1, D), dtype=m.dtype)
    shared_gap = gap.ndim < 3 or gap.shape[0] == 1
    strides = (0 if shared_gap else gap.strides[0], m.strides[0], V.strides[0])
    args = (gap, m, V, bracket, tau, v, *(np.int64(x // m.itemsize) for x in strides), *map(np.int32, (D, k, steps)))
    variant = RealVariant("column.cu", m.dtype.name)
    launch(cuda_device_of(m), variant, "find_column", blocks=R, shared=_shared_bytes(V), args=args)
    return tau, v


def _with_contiguous_rows(x: Array, *, xp: ModuleType) -> Array:
    rows_touch = x.shape[-2] < 2 or x.strides[-2] == x.shape[-1] * x.itemsize
    return x if x.strides[-1] == x.itemsize and rows_touch else xp.ascontiguousarray(x)


def _shared_bytes(V: Array) -> int:
    k, D = V.shape[-2:]
    return int((3 * D + k * k + k + THREADS // 32) * V.itemsize)
