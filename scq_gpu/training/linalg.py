"""Orthonormal matrices near a given one, batched, on any array namespace; and the generator of random numbers."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array
from scq_gpu.kernels.fused import elementwise
from scq_gpu.kernels.roots import inverse_root


def polar(A: Array, *, xp: ModuleType) -> Array:
    """The matrix with orthonormal columns nearest to A (..., D, L): ``A (A'A)^(-1/2)``."""
    return A @ inverse_root(gram(A, xp=xp), xp=xp)


def orthonormalize(V: Array, *, xp: ModuleType) -> Array:
    """V with V'V = I to rounding, from one that is nearly so: two Newton-Schulz steps, each squaring the error."""
    for _ in range(2):
        V = _newton_schulz(V, V @ gram(V, xp=xp), xp=xp)
    return V


@elementwise
def _newton_schulz(V: Array, VG: Array, *, xp: ModuleType) -> Array:
    return 1.5 * V - 0.5 * VG


def gram(A: Array, *, xp: ModuleType) -> Array:
    """``A'A`` (..., L, L)."""
    if A.ndim == 3 and A.shape[0] == 1:  # batched products of CuPy copy what is transposed
        return (A[0, ...].T @ A[0, ...])[None, ...]
    return xp.matrix_transpose(A) @ A


def generator(random_state: Any) -> np.random.Generator:
    """A NumPy generator from None, a seed, a Generator or a RandomState: random numbers are drawn on the host."""
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**31, size=4))
    return np.random.default_rng(random_state)
