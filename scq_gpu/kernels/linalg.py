r"""Orthonormal matrices near a given one, batched, on any array namespace.

The polar factor ``A (A'A)^(-1/2)`` takes two products and ``G^(-1/2)`` of a small symmetric matrix.
Where LAPACK runs, an eigendecomposition of order L costs as much as 10 to 40 products. On a GPU it takes many launches
and a wait, so the root is built from products alone there. The eigenvalues of ``Y = G / ||G||`` lie in (0, 1]. The step

    R = a (3 I - a^2 Y) / 2,    Y <- R Y R,    Z <- Z R

takes the square root x of an eigenvalue of Y to ``a x (3 - a^2 x^2) / 2`` (Newton and Schulz, scaled by a). That
converges to 1, so Y converges to I and Z to ``Y^(-1/2)``. A lower bound l of all x determines the best a of every step
and the number of steps (Chen and Chow, 2014), so no step has to look at the data.

Rounding leaves eigenvalues of about eps, of either sign, where G has zeros. A negative one would grow without bound.
Therefore ``4 L eps ||G||`` is added to all of them first, which gives l, and a last step with G itself takes it out
again. Smaller eigenvalues come out as if they were of that size: directions of A shorter than ``2 sqrt(L eps) ||A||``,
in float64 a ten millionth of the longest, get a length below 1. The eigendecomposition does the same from
``sqrt(eps) ||A||`` on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from types import ModuleType

import numpy as np

from scq_gpu._core.arrays import Array, cuda_device_of, device_of, elementwise, on_gpu, total
from scq_gpu._core.machine import product
from scq_gpu.kernels.cuda.launch import SHARED_BYTES, RealVariant, launch


def polar(A: Array, *, xp: ModuleType) -> Array:
    """Return the matrix with orthonormal columns nearest to A (..., D, L), ``A (A'A)^(-1/2)``."""
    G = gram(A, xp=xp)
    return _product(A, engine(G)(G, xp=xp))


def orthonormalize(V: Array, *, xp: ModuleType) -> Array:
    """Make V'V = I to rounding, where it nearly is, by two Newton-Schulz steps, each of which squares the error."""
    for _ in range(2):
        V = _newton_schulz(V, _product(V, gram(V, xp=xp)), xp=xp)
    return V


def skew(V: Array, *, xp: ModuleType) -> Array:
    """Return the sum of the squares of ``V'V - I`` (..., 1, 1), which is 0 for orthonormal V (..., D, L)."""
    I = xp.eye(V.shape[-1], dtype=V.dtype, device=device_of(V))
    return _DISTANCE(gram(V, xp=xp), I, axis=(-2, -1), xp=xp)


_DISTANCE = total(lambda g, i: (g - i) * (g - i), "(a - b) * (a - b)")


@elementwise
def _newton_schulz(V: Array, VG: Array, *, xp: ModuleType) -> Array:
    return 1.5 * V - 0.5 * VG


def gram(A: Array, *, xp: ModuleType) -> Array:
    """Return ``A'A`` (..., L, L)."""
    return _product(xp.matrix_transpose(A), A)


def project_out(x: Array, Q: Array, QZ: Array, *, xp: ModuleType) -> Array:
    """Return ``x - x Z Q'Q``, the part of row vectors x (R, 1, D) outside the rows of Q (R, k, D). Twice is enough.

    The rows of Q are orthonormal in the inner product of Z, and ``QZ = Q Z``.
    """
    return x - _product(_product(x, xp.matrix_transpose(QZ)), Q)


def columns_as_rows(M: Array, *, xp: ModuleType) -> tuple[Array, Array]:
    """Return the columns of M (R, D, L) as contiguous rows (R, L, D), and an array for as many more."""
    R, D, L = M.shape
    targets, columns = (xp.empty((R, L, D), dtype=M.dtype, device=device_of(M)) for _ in range(2))
    targets[...] = xp.matrix_transpose(M)
    return targets, columns


def _product(A: Array, B: Array) -> Array:
    """Multiply batches; a batch of one is a plain product, for which CuPy need not copy a transposed matrix."""
    if A.ndim == 3 and A.shape[0] == 1 and B.shape[0] == 1:
        return product(A[0, ...], B[0, ...])[None, ...]
    return A @ B


# ---- inverse roots ----

_STEEPEST = 1.6  # largest a; from sqrt(3) on, the largest eigenvalues would go to 0 and lose their digits


def engine(G: Array) -> Callable[..., Array]:
    """Return the function that takes the root of G: by LAPACK, or on a GPU by one kernel or, for large G, by products.

    It computes ``G^(-1/2)`` of symmetric, positive semidefinite G (..., L, L), finite in the null space of G. In one
    thread, and up to order 256, LAPACK takes the time of 10 to 40 products of that order, and products alone
    need 30 to 70 of them (benchmarks/bench_fit.py).
    """
    if not on_gpu(G):
        return by_eigendecomposition
    # one multiprocessor works on matrices up to this order alone
    return by_kernel if cuda_device_of(G) is not None and G.shape[-1] <= 64 else by_products


def by_eigendecomposition(G: Array, *, xp: ModuleType) -> Array:
    """Take the root by LAPACK; eigenvalues below eps times the largest are raised to that."""
    w, E = xp.linalg.eigh(G)
    smallest = float(xp.finfo(G.dtype).eps) * xp.max(w, axis=-1, keepdims=True)
    w = xp.maximum(w, xp.where(smallest > 0, smallest, 1.0))
    return (E / xp.sqrt(w)[..., None, :]) @ xp.matrix_transpose(E)


def by_products(G: Array, *, xp: ModuleType) -> Array:
    """Take the root by a fixed number of matrix products, without a decomposition or a look at the data."""
    L = G.shape[-1]
    floor = 4 * L * float(xp.finfo(G.dtype).eps)
    I = xp.eye(L, dtype=G.dtype, device=device_of(G))
    # at least the largest eigenvalue
    norm = xp.max(xp.sum(xp.abs(G), axis=-1, keepdims=True), axis=-2, keepdims=True)
    norm = xp.where(norm > 0, norm, 1.0)
    scales = steps(floor)
    G = G / norm
    # here Y is a^2 Y: the a of a step goes into the R before it
    Y, Z = scales[0] ** 2 / (1 + floor) * (G + floor * I), scales[0] * I
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
    """Return the a of every step for eigenvalues of Y from ``floor`` to 1, each best for the range left by then."""
    scales, low = [], math.sqrt(floor)
    # the next step and the last one, with G, each square the remaining error
    while 1 - low > 1e-8:
        a = min(math.sqrt(3 / (1 + low + low * low)), _STEEPEST)
        scales.append(a)
        low = min(a * x * (3 - (a * x) ** 2) / 2 for x in (low, 1.0))
    return tuple(scales)


def by_kernel(G: Array, *, xp: ModuleType) -> Array:
    """Run `by_products` in one launch, for CuPy arrays."""
    gpu, L = cuda_device_of(G), G.shape[-1]
    G = xp.ascontiguousarray(G)
    n_bytes = 4 * L * L * G.itemsize
    shared = n_bytes if n_bytes <= SHARED_BYTES else 0
    problems = math.prod(G.shape[:-2])
    scratch = np.uintp(0) if shared else xp.empty((problems, 4, L, L), dtype=G.dtype)
    Z = xp.empty_like(G)
    args = (G, Z, scratch, np.int32(L))
    launch(gpu, variant(G.dtype.name), "inverse_roots", blocks=problems, shared=shared, args=args)
    return Z


def variant(element: str) -> RealVariant:
    """Return the kernel of `by_kernel` for matrices of float32 or float64."""
    return RealVariant("roots.cu", element, (f"STEEPEST={_STEEPEST}",))
