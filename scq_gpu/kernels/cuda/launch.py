"""From arrays to kernel launches.

The functions here take a `scq_gpu._core.devices.CudaDevice`. The tests put NumPy and a simulator in its place, and
everything between, argument types and grids included, is the same code.
"""

from __future__ import annotations

import functools
import re
from importlib.resources import files
from typing import Any, Final

import numpy as np

from scq_gpu._core.arrays import Array
from scq_gpu.kernels.cuda.geometry import (
    ELEMENT_BYTES,
    THREADS,
    AsymmetricVariant,
    EncodeVariant,
    HammingVariant,
    Precision,
    ceil_div,
    encode_variant,
)

Variant = EncodeVariant | HammingVariant | AsymmetricVariant
OPTIONS: Final = ("--std=c++17",)
DEFAULT_SHARED: Final = 48 << 10  # a launch that needs more has to say so beforehand
MAX_BLOCKS: Final = 2**31 - 1


def read_source(name: str) -> str:
    """A kernel file with its ``#include "..."`` lines filled in: one text, whatever the package is installed in."""
    text = (files(__package__) / name).read_text(encoding="utf-8")
    return re.sub(r'^#include "(.+)"$', lambda match: read_source(match[1]), text, flags=re.MULTILINE)


def build_options(variant: Variant) -> tuple[str, ...]:
    """Compiler options of a variant, the architecture aside."""
    return OPTIONS + tuple(f"-D{define}" for define in variant.defines)


@functools.cache
def _module(device: Any, variant: Variant) -> Any:
    return device.build(read_source(variant.source), build_options(variant))


@functools.cache
def _kernel(device: Any, variant: Variant, name: str, shared: int) -> Any:
    kernel = _module(device, variant).get_function(name)
    if shared > DEFAULT_SHARED:
        kernel.max_dynamic_shared_size_bytes = shared
    return kernel


def launch(
    device: Any,
    variant: Variant,
    name: str,
    *,
    blocks: int,
    shared: int,
    args: tuple[Any, ...],
) -> None:
    """Launch one kernel on the current stream; arrays go by address, numbers as the NumPy scalars they are."""
    if blocks > MAX_BLOCKS:
        raise ValueError(
            f"{name} would take {blocks} blocks and a grid has at most {MAX_BLOCKS}; pass fewer rows at a time"
        )
    if blocks:
        _kernel(device, variant, name, shared)((blocks,), (THREADS,), args, shared_mem=shared)


def encode(device: Any, X: Array, W: Array, t: Array, *, element: str, precision: Precision) -> tuple[Array, Array]:
    """``pack(X W >= t)`` for row-major X (n, d), W (d, n_bits) and t (n_bits,), and a flag (1,) int32.

    The flag is 0 where all products are finite, which they are not for a row with NaN or inf, and else 1. ``element``
    is the type of the features; bfloat16, which NumPy and CuPy lack, comes as its bits.
    """
    xp = device.xp
    (n, d), n_bits = X.shape, W.shape[1]
    variant = encode_variant(element, n_bits, precision, device.capability)
    Wt, t = _operands(variant, W, t, xp=xp)
    codes = xp.empty((n, ceil_div(n_bits, 8)), dtype=xp.uint8)
    flag = xp.zeros(1, dtype=xp.int32)
    x_stride, w_stride = (A.strides[0] // A.itemsize for A in (X, Wt))
    args = (
        X,
        Wt,
        t,
        codes,
        flag,
        np.int64(n),
        np.int64(x_stride),
        np.int64(w_stride),
        np.int32(d),
        np.int32(n_bits),
        np.int32(_vector(device, X)),
        np.int32(_vector(device, Wt)),
    )
    launch(device, variant, variant.kernel, blocks=variant.blocks(n, n_bits), shared=variant.shared, args=args)
    return codes, flag


def _vector(device: Any, A: Array) -> bool:
    """Whether every row of A starts on a 16-byte boundary."""
    return bool(device.address(A) % 16 == 0 and A.strides[0] % 16 == 0)


def _operands(variant: EncodeVariant, W: Array, t: Array, *, xp: Any) -> tuple[Array, Array]:
    """W' and t in the types a variant multiplies; no copy where they already are."""
    t = xp.ascontiguousarray(t, dtype=xp.float32)
    if variant.precision == "fast" and variant.element == str(W.dtype) == "float16":
        return xp.ascontiguousarray(W.T), t
    Wt = xp.ascontiguousarray(W.T, dtype=xp.float32)
    if variant.precision == "exact" or ELEMENT_BYTES[variant.element] == 4:
        return Wt, t
    if variant.element == "bfloat16":
        bits = Wt.view(xp.uint32)
        nearest_even = (bits >> np.uint32(16)) & np.uint32(1)
        return ((bits + nearest_even + np.uint32(0x7FFF)) >> np.uint32(16)).astype(xp.uint16), t
    return round_to_half(Wt, t, xp=xp)


def round_to_half(Wt: Array, t: Array, *, xp: Any) -> tuple[Array, Array]:
    """W' (n_bits, d) in float16, and t (n_bits,) to compare its products with.

    A column and its threshold times a power of two give the same bits, without overflow or underflow.
    """
    _, exponent = xp.frexp(xp.max(xp.abs(Wt), axis=1))
    return xp.ldexp(Wt, -exponent[:, None]).astype(xp.float16), xp.ldexp(t, -exponent)
