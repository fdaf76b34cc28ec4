"""Orthonormal matrices near a given one, batched, on any array namespace; and the generator of random numbers."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array, device_of
from scq_gpu._core.threads import product
from scq_gpu.kernels.fused import elementwise, total
from scq_gpu.kernels.roots import inverse_root


def polar(A: Array, *, xp: ModuleType) -> Array:
    """The matrix with orthonormal columns nearest to A (..., D, L): ``A (A'A)^(-1/2)``."""
    return _product(A, inverse_root(gram(A, xp=xp), xp=xp))


def orthonormalize(V: Array, *, xp: ModuleType) -> Array:
    """V with V'V = I to rounding, from one that is nearly so: two Newton-Schulz steps, each squaring the error."""
    for _ in range(2):
        V = _newton_schulz(V, _product(V, gram(V, xp=xp)), xp=xp)
    return V


def skew(V: Array, *, xp: ModuleType) -> Array:
    """How far V (..., D, L) is from orthonormal: the sum of the squares of ``V'V - I``, (..., 1, 1)."""
    I = xp.eye(V.shape[-1], dtype=V.dtype, device=device_of(V))
    return _DISTANCE(gram(V, xp=xp), I, axis=(-2, -1), xp=xp)


_DISTANCE = total(lambda g, i: (g - i) * (g - i), "(a - b) * (a - b)")


@elementwise
def _newton_schulz(V: Array, VG: Array, *, xp: ModuleType) -> Array:
    return 1.5 * V - 0.5 * VG


def gram(A: Array, *, xp: ModuleType) -> Array:
    """``A'A`` (..., L, L)."""
    return _product(xp.matrix_transpose(A), A)


def project_out(x: Array, Q: Array, QZ: Array, *, xp: ModuleType) -> Array:
    """``x - x Z Q'Q`` for row vectors x (R, 1, D): what is left of x outside the rows of Q (R, k, D). Twice is enough.

    The rows of Q are orthonormal in the inner product of Z, and ``QZ = Q Z``.
    """
    return x - _product(_product(x, xp.matrix_transpose(QZ)), Q)


def columns_as_rows(M: Array, *, xp: ModuleType) -> tuple[Array, Array]:
    """The columns of M (R, D, L) as contiguous rows (R, L, D), and an array for as many more."""
    R, D, L = M.shape
    targets, columns = (xp.empty((R, L, D), dtype=M.dtype, device=device_of(M)) for _ in range(2))
    targets[...] = xp.matrix_transpose(M)
    return targets, columns


def _product(A: Array, B: Array) -> Array:
    """``A @ B`` of batches; a batch of one as a plain product, for which CuPy need not copy what is transposed."""
    if A.ndim == 3 and A.shape[0] == 1 and B.shape[0] == 1:
        return product(A[0, ...], B[0, ...])[None, ...]
    return A @ B


def generator(random_state: Any) -> np.random.Generator:
    """A NumPy generator from None, a seed, a Generator or a RandomState: random numbers are drawn on the host."""
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**31, size=4))
    return np.random.default_rng(random_state)
