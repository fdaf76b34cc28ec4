"""Where a fit starts: V before the first sign pass, the same on every backend."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from scq_gpu._xp import Array, device_of, from_host
from scq_gpu.basis import Basis
from scq_gpu.rows import ProjectedRows

STARTS = ("random", "pca", "itq")
_ITQ_ITERATIONS = 50


def draw_starts(
    init: str | np.ndarray,
    basis: Basis,
    rows: ProjectedRows,
    *,
    n_bits: int,
    n_init: int,
    random_state: Any,
    xp: ModuleType,
) -> Array:
    """Starts ``V`` (n_init, D, n_bits) in the coordinates of the basis.

    An array, and "pca", give the first start; further ones are drawn at random. "itq" rotates a random start of its
    own for each.
    """
    D = basis.lam.shape[0]
    rng = generator(random_state)
    like = {"xp": xp, "device": device_of(basis.lam)}

    def on_device(V: np.ndarray) -> Array:
        return xp.astype(from_host(V, **like), basis.lam.dtype)

    if isinstance(init, str) and init == "itq":
        rotations = np.stack([random_orthonormal(rng, n_bits, n_bits) for _ in range(n_init)])
        return _rotate_principal_axes(on_device(rotations), rows, D=D, xp=xp)
    V = on_device(np.stack([random_orthonormal(rng, D, n_bits) for _ in range(n_init)]))
    if isinstance(init, str) and init == "random":
        return V
    first = on_device(np.eye(D, n_bits)) if isinstance(init, str) else basis.P.T @ on_device(init)
    return xp.concat([first[None, ...], V[1:, ...]], axis=0)


def generator(random_state: Any) -> np.random.Generator:
    """A NumPy generator from None, a seed, a Generator or a RandomState."""
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**31, size=4))
    return np.random.default_rng(random_state)


def random_orthonormal(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """A matrix with orthonormal columns, uniformly distributed."""
    Q, R = np.linalg.qr(rng.standard_normal((rows, columns)))
    return Q * np.where(np.diag(R) >= 0, 1.0, -1.0)


def _rotate_principal_axes(rotation: Array, rows: ProjectedRows, *, D: int, xp: ModuleType) -> Array:
    """ITQ (Gong and Lazebnik, 2011): the leading n_bits axes, rotated so that their signs lose least."""
    below = xp.zeros((*rotation.shape[:-2], D - rotation.shape[-2], rotation.shape[-1]), dtype=rotation.dtype, device=device_of(rotation))
    for _ in range(_ITQ_ITERATIONS):
        M = rows.sign_pass(xp.concat([rotation, below], axis=-2))
        U, _, Vh = xp.linalg.svd(M[..., : rotation.shape[-2], :], full_matrices=False)
        rotation = U @ Vh
    return xp.concat([rotation, below], axis=-2)
