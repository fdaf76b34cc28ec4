r"""``G^(-1/2)`` of small symmetric matrices, which is what a polar factor ``A (A'A)^(-1/2)`` takes beside two products.

Where LAPACK runs, an eigendecomposition of order L costs as much as 10 to 40 products. On a GPU it is many launches and
a wait; there the root is built from products alone. With ``Y = G / ||G||``, whose eigenvalues lie in (0, 1],

    R = a (3 I - a^2 Y) / 2,    Y <- R Y R,    Z <- Z R

takes the square root x of an eigenvalue of Y to ``a x (3 - a^2 x^2) / 2`` (Newton and Schulz, scaled by a), which goes
to 1; then Y goes to I and Z to ``Y^(-1/2)``. From a lower bound l of all x follow the best a of every step and how many
it takes (Chen and Chow, 2014), so nothing is looked at on the way.

Rounding leaves eigenvalues of about eps where G has none, of either sign. A negative one would grow without bound, so
``4 L eps ||G||`` is added to all of them first, which gives l, and a last step with G itself takes it out again. An
eigenvalue below that counts as if it were there: directions of A shorter than ``2 sqrt(L eps) ||A||``, in float64 a ten
millionth of the longest, come out short of length 1. The eigendecomposition does the same from ``sqrt(eps) ||A||`` on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from importlib.resources import files
from types import ModuleType
from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array, device_of
from scq_gpu._core.devices import cuda_device_of, on_gpu
from scq_gpu.kernels.fused import elementwise

_STEEPEST = 1.6  # most a: from sqrt(3) on the largest eigenvalues would be taken to 0, and lose their digits
_ONE_LAUNCH = 64  # largest order that one multiprocessor works on alone
_THREADS = 256
_SHARED = 48 << 10  # bytes of shared memory that every device gives unasked


def inverse_root(G: Array, *, xp: ModuleType) -> Array:
    """``G^(-1/2)`` of symmetric, positive semidefinite G (..., L, L); in directions that G lacks, finite."""
    return engine(G)(G, xp=xp)


def engine(G: Array) -> Callable[..., Array]:
    """The function that takes the root of G: LAPACK where it runs; on a GPU one kernel, or for large G many products.

    In one thread, and up to order 256, LAPACK takes the time of 10 to 40 products of that order, and products alone
    need 30 to 70 of them (benchmarks/bench_roots.py).
    """
    if not on_gpu(G):
        return by_eigendecomposition
    return by_kernel if cuda_device_of(G) is not None and G.shape[-1] <= _ONE_LAUNCH else by_products


def by_eigendecomposition(G: Array, *, xp: ModuleType) -> Array:
    """The root by LAPACK; eigenvalues below eps times the largest are raised to that."""
    w, E = xp.linalg.eigh(G)
    smallest = float(xp.finfo(G.dtype).eps) * xp.max(w, axis=-1, keepdims=True)
    w = xp.maximum(w, xp.where(smallest > 0, smallest, 1.0))
    return (E / xp.sqrt(w)[..., None, :]) @ xp.matrix_transpose(E)


def by_products(G: Array, *, xp: ModuleType) -> Array:
    """The root by matrix products, a fixed number of them: no decomposition, no look at the data."""
    L = G.shape[-1]
    floor = 4 * L * float(xp.finfo(G.dtype).eps)
    I = xp.eye(L, dtype=G.dtype, device=device_of(G))
    norm = xp.max(xp.sum(xp.abs(G), axis=-1, keepdims=True), axis=-2, keepdims=True)  # at least the largest eigenvalue
    norm = xp.where(norm > 0, norm, 1.0)
    scales = steps(floor)
    G = G / norm
    Y, Z = scales[0] ** 2 / (1 + floor) * (G + floor * I), scales[0] * I  # Y stands for a^2 Y: a goes into the R before
    for a in (*scales[1:], 1.0):
        R = _three_minus(Y, I, a / 2, xp=xp)
        Y, Z = R @ Y @ R, Z @ R
    Z = Z / (1 + floor) ** 0.5
    return Z @ _three_minus(Z @ G @ Z, I, 0.5 / xp.sqrt(norm), xp=xp)


@elementwise
def _three_minus(Y: Array, I: Array, factor: Array | float, *, xp: ModuleType) -> Array:
    return factor * (3 * I - Y)


@functools.cache
def steps(floor: float) -> tuple[float, ...]:
    """The a of every step for eigenvalues of Y from ``floor`` to 1: best for the range that they are then in."""
    scales, low = [], math.sqrt(floor)
    while 1 - low > 1e-8:  # the next step, and the last one with G, each square what is missing
        a = min(math.sqrt(3 / (1 + low + low * low)), _STEEPEST)
        scales.append(a)
        low = min(a * x * (3 - (a * x) ** 2) / 2 for x in (low, 1.0))
    return tuple(scales)


def by_kernel(G: Array, *, xp: ModuleType) -> Array:
    """`by_products` in one launch, for CuPy arrays."""
    gpu, L = cuda_device_of(G), G.shape[-1]
    G = xp.ascontiguousarray(G)
    n_bytes = 4 * L * L * G.itemsize
    shared = n_bytes if n_bytes <= _SHARED else 0
    problems = math.prod(G.shape[:-2])
    scratch = np.uintp(0) if shared else xp.empty((problems, 4, L, L), dtype=G.dtype)
    Z = xp.empty_like(G)
    if problems:
        _kernel(gpu, G.dtype.name)((problems,), (_THREADS,), (G, Z, scratch, np.int32(L)), shared_mem=shared)
    return Z


@functools.cache
def _kernel(gpu: Any, element: str) -> Any:
    return gpu.build(*kernel_source(element)).get_function("inverse_roots")


def kernel_source(element: str) -> tuple[str, tuple[str, ...]]:
    """The CUDA source for matrices of float32 or float64, and the options to compile it with."""
    real = {"float64": "double", "float32": "float"}[element]
    defines = {"REAL": real, "EPS": float(np.finfo(element).eps), "STEEPEST": _STEEPEST}
    source = (files("scq_gpu.kernels.cuda") / "roots.cu").read_text(encoding="utf-8")
    return source, ("--std=c++17", *(f"-D{name}={value}" for name, value in defines.items()))
