"""Where a fit starts: V before the first sign pass, the same on every backend."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from scq_gpu._xp import Array, device_of, from_host
from scq_gpu.basis import Basis
from scq_gpu.rows import ProjectedRows
from scq_gpu.solvers.joint import orthonormalise, polar
from scq_gpu.solvers.rotation import fit_rotation

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

    "random" draws normals on the host, weights axis i by ``lam_i ** (-1/4)`` and takes the nearest orthonormal matrix:
    without the weights the few axes of largest variance would decide the signs of all bits alike, and the bits would
    begin as copies of each other. An array, and "pca", give the first start; further ones are drawn at random. "itq"
    rotates a random start of its own for each.
    """
    D = basis.lam.shape[0]
    rng = generator(random_state)
    like = {"xp": xp, "device": device_of(basis.lam)}

    def on_device(V: np.ndarray) -> Array:
        return xp.astype(from_host(V, **like), basis.lam.dtype)

    if isinstance(init, str) and init == "itq":
        draws = [np.eye(D, n_bits) @ rng.standard_normal((n_bits, n_bits)) for _ in range(n_init)]
        V = fit_rotation(on_device(np.stack(draws)), xp=xp)
        for _ in range(_ITQ_ITERATIONS):
            V = fit_rotation(rows.sign_pass(V), xp=xp)
        return orthonormalise(V, xp=xp)
    V = on_device(np.stack([rng.standard_normal((D, n_bits)) for _ in range(n_init)]))
    V = orthonormalise(polar(V * (basis.lam**-0.25)[:, None], xp=xp), xp=xp)
    if isinstance(init, str) and init == "random":
        return V
    first = on_device(np.eye(D, n_bits)) if isinstance(init, str) else basis.P.T @ on_device(init)
    return xp.concat([first[None, ...], V[1:, ...]], axis=0)


def generator(random_state: Any) -> np.random.Generator:
    """A NumPy generator from None, a seed, a Generator or a RandomState."""
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**31, size=4))
    return np.random.default_rng(random_state)
