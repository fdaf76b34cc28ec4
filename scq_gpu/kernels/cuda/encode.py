"""Encoding on a GPU (encode.cu, encode_mma.cu): X is read once and only bits are written, never the float products."""

from __future__ import annotations

import dataclasses
from typing import Any, Final, Literal, get_args

import numpy as np

from scq_gpu._core.arrays import Array
from scq_gpu.kernels.cuda.launch import THREADS, ceil_div, element_of, in_library_of, launch, on_one_device

Precision = Literal["exact", "accurate", "fast"]

OLDEST: Final = 75
"""Oldest architecture that the kernels are compiled for and tested on, as 10 major + minor."""
ELEMENT_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
TILE_WIDTHS: Final = (32, 64, 128)


@dataclasses.dataclass(frozen=True)
class EncodeVariant:
    """One compiled form of encode.cu (exact) or encode_mma.cu (the others)."""

    element: str  # type of the features
    tile_bits: int  # bits that a block computes: 32, 64 or 128
    precision: Precision  # float32 multiply-adds; three TF32 passes; one pass of the tensor cores

    @property
    def source(self) -> str:
        """Return the name of the kernel file."""
        return "encode.cu" if self.precision == "exact" else "encode_mma.cu"

    @property
    def kernel(self) -> str:
        """Return the kernel's name in that file."""
        return "encode_exact" if self.precision == "exact" else "encode_mma"

    @property
    def min_capability(self) -> int:
        """Return the oldest architecture, as 10 major + minor."""
        return OLDEST if self.precision == "exact" or self.element == "float16" else 80

    @property
    def tile_k(self) -> int:
        """Return the columns of X in a tile: 64 bytes of them, or 16 where W is float32 and X narrower."""
        return 16 if self.precision == "exact" else 64 // ELEMENT_BYTES[self.element]

    @property
    def rows_per_thread(self) -> int:
        """Return the rows that a thread of the exact kernel owns: as many as its 128 registers hold."""
        if self.tile_bits < 128:
            return 4
        return 8 if self.element == "float32" else 6

    @property
    def tile_rows(self) -> int:
        """Return the rows that a block computes."""
        return THREADS * 8 // self.tile_bits * self.rows_per_thread if self.precision == "exact" else 128

    @property
    def stages(self) -> int:
        """Return the tiles in the ring of copies; those of the exact kernel fit into `SHARED_BYTES`."""
        return 2 if self.precision == "exact" and self.tile_bits != 64 else 3

    @property
    def shared(self) -> int:
        """Return the bytes of shared memory."""
        x_bytes = ELEMENT_BYTES[self.element]
        w_bytes = 4 if self.precision == "exact" else x_bytes
        x_row, w_row = self.tile_k * x_bytes + 16, self.tile_k * w_bytes + 16
        return self.stages * (self.tile_rows * x_row + self.tile_bits * w_row)

    @property
    def defines(self) -> tuple[str, ...]:
        """Return the preprocessor definitions."""
        exact, passes = self.precision == "exact", 3 if self.precision == "accurate" else 1
        return (
            f"X_{self.element.upper()}",
            f"TILE_BITS={self.tile_bits}",
            f"TILE_K={self.tile_k}",
            f"STAGES={self.stages}",
            f"ROWS_PER_THREAD={self.rows_per_thread}" if exact else f"PASSES={passes}",
        )

    def blocks(self, n: int, n_bits: int) -> int:
        """Return the number of blocks in the grid."""
        return ceil_div(n, self.tile_rows) * ceil_div(n_bits, self.tile_bits)


@dataclasses.dataclass(frozen=True)
class MapVariant:
    """One compiled form of round_map.cu."""

    element: str  # type of the features: float16 or bfloat16
    source = "round_map.cu"
    min_capability = OLDEST
    shared = 4 * (THREADS // 32)

    @property
    def defines(self) -> tuple[str, ...]:
        """Return the preprocessor definitions."""
        return (f"X_{self.element.upper()}",)


def encode_variant(element: str, n_bits: int, precision: Precision, capability: int) -> EncodeVariant:
    """Choose the variant that encodes ``n_bits`` bits from features of type ``element``.

    Up to 128 bits one tile takes all of them, so that X is read once. Beyond that it is the one of the two wider tiles
    that pads less. Narrow features have no three-pass form: "accurate" runs the exact kernel for them.
    """
    if precision == "accurate" and element != "float32":
        precision = "exact"
    single = [width for width in TILE_WIDTHS if width >= n_bits]
    width = single[0] if single else min(TILE_WIDTHS[1:], key=lambda width: (ceil_div(n_bits, width) * width, -width))
    variant = EncodeVariant(element, width, precision)
    if capability < variant.min_capability:
        raise RuntimeError(
            f"precision={precision!r} with {element} features needs compute capability "
            f"{variant.min_capability / 10} or newer; this device has {capability / 10}. Pass precision='exact'"
        )
    return variant


def encode_variants() -> list[EncodeVariant]:
    """List every variant that `encode_variant` can choose."""
    kinds = [(e, p) for e in ELEMENT_BYTES for p in get_args(Precision) if e == "float32" or p != "accurate"]
    return [EncodeVariant(element, width, precision) for element, precision in kinds for width in TILE_WIDTHS]


def encode_on_gpu(X: Array, W: Array, t: Array, *, precision: Precision) -> tuple[Array, Array]:
    """Encode rows for which `scq_gpu.kernels.encode.has_encode_kernel` holds.

    Returns the codes and a boolean array (1,), true if all products are finite, both in the library of X. No copy is
    made where W.T is contiguous float32.
    """
    device, (x, w, threshold) = on_one_device(X=X, W=W, t=t)
    with device.current():
        codes, flag = encode(device, x, w, threshold, element=element_of(X), precision=precision)
        return in_library_of(X, codes), in_library_of(X, flag) == 0


def encode(device: Any, X: Array, W: Array, t: Array, *, element: str, precision: Precision) -> tuple[Array, Array]:
    """Compute ``pack(X W >= t)`` for row-major X (n, d), W (d, n_bits) and t (n_bits,), and a flag (1,) int32.

    The flag is 0 if all products are finite and else 1. A row with NaN or inf sets it, and so does a sum that
    overflows. ``element`` is the type of the features; bfloat16, which NumPy and CuPy lack, comes as its bits.
    """
    xp = device.xp
    (n, d), n_bits = X.shape, W.shape[1]
    variant = encode_variant(element, n_bits, precision, device.capability)
    Wt, t = _operands(device, variant, W, t)
    codes = xp.empty((n, ceil_div(n_bits, 8)), dtype=xp.uint8)
    flag = xp.zeros(1, dtype=xp.int32)
    x_stride, w_stride = (A.strides[0] // A.itemsize for A in (X, Wt))
    sizes = (*map(np.int64, (n, x_stride, w_stride)), np.int32(d), np.int32(n_bits))
    # whether every row starts on a 16-byte boundary
    vectors = (np.int32(device.address(A) % 16 == 0 and A.strides[0] % 16 == 0) for A in (X, Wt))
    args = (X, Wt, t, codes, flag, *sizes, *vectors)
    launch(device, variant, variant.kernel, blocks=variant.blocks(n, n_bits), shared=variant.shared, args=args)
    return codes, flag


def _operands(device: Any, variant: EncodeVariant, W: Array, t: Array) -> tuple[Array, Array]:
    """Return W' and t in the types that a variant multiplies, without a copy where they have them."""
    xp = device.xp
    if variant.precision == "exact" or ELEMENT_BYTES[variant.element] == 4:
        return xp.ascontiguousarray(W.T, dtype=xp.float32), xp.ascontiguousarray(t, dtype=xp.float32)
    # `scq_gpu.kernels.encode.lay_out` has rounded W already
    if variant.element == str(W.dtype) == "float16":
        return xp.ascontiguousarray(W.T), t
    return round_map(device, W, t, element=variant.element)


def round_map(device: Any, W: Array, t: Array, *, element: str) -> tuple[Array, Array]:
    """Return W' (n_bits, d) in float16, or as the bits of bfloat16, and t (n_bits,) to compare its products with."""
    xp, (d, n_bits) = device.xp, W.shape
    W, t = xp.asarray(W, dtype=xp.float32), xp.ascontiguousarray(t, dtype=xp.float32)
    Wt, scaled = xp.empty((n_bits, d), dtype=xp.uint16), xp.empty_like(t)
    strides = (np.int64(stride // W.itemsize) for stride in W.strides)
    args = (W, t, Wt, scaled, *strides, np.int32(d))
    launch(device, MapVariant(element), "round_map", blocks=n_bits, shared=MapVariant.shared, args=args)
    return (Wt.view(xp.float16) if element == "float16" else Wt), scaled
