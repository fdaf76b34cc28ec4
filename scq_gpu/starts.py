"""Where a fit starts: V before the first sign pass, the same on every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import numpy as np

from scq_gpu._xp import Array, device_of, from_host, to_host
from scq_gpu.basis import Basis
from scq_gpu.rows import ProjectedRows
from scq_gpu.solvers.joint import SOFTNESS, fit_joint_orthogonal, orthonormalise, polar
from scq_gpu.solvers.orthogonal import auto_ridge
from scq_gpu.solvers.rotation import fit_rotation
from scq_gpu.training import VStep, all_solved, train

STARTS = ("auto", "longer", "random", "pca", "itq")
_ITQ_ITERATIONS = 50
_WHITENING, _WHITENING_LONG = 0.25, 0.65  # powers of variance by which random starts prefer axes of little of it
_LONGER, _LONG = 4, 128  # a longer code has four times the bits, but no more than 128
_LONGER_PASSES = 14  # it need not settle: it is only to point the way
_LONGER_ROTATIONS = 30
LONGER_ROWS = 50_000


def draw_starts(
    init: str | np.ndarray,
    basis: Basis,
    rows: ProjectedRows,
    *,
    n_bits: int,
    n_init: int,
    random_state: Any,
    progress: Callable[[range], Iterable[int]] = iter,
    xp: ModuleType,
) -> Array:
    """Starts ``V`` (n_init, D, n_bits) in the coordinates of the basis.

    "random" draws normals on the host, weights axis i by ``lam_i ** (-1/4)``, or -0.65 beyond 128 bits, which need more
    axes, and takes the nearest orthonormal matrix: without the weights the few axes of largest variance would decide
    the signs of all bits alike, and the bits would begin as copies of each other. An array, and "pca", give the first
    start; further ones are drawn at random. "itq" rotates the leading axes, and "longer" those of a longer code
    (`_longer`), from a random start of its own for each. That takes a sample of the rows, so it costs a large fit
    little. ``progress`` is shown its passes.
    """
    D = basis.lam.shape[0]
    rng = generator(random_state)

    def on_device(V: np.ndarray) -> Array:
        return xp.astype(from_host(V, xp=xp, device=device_of(basis.lam)), basis.lam.dtype)

    def random(count: int, n_columns: int) -> Array:
        V = on_device(np.stack([rng.standard_normal((D, n_columns)) for _ in range(count)]))
        weights = basis.lam ** -(_WHITENING if n_columns <= _LONG else _WHITENING_LONG)
        return orthonormalise(polar(V * weights[:, None], xp=xp), xp=xp)

    def rotated(rows: ProjectedRows, axes: int, iterations: int) -> Array:
        draws = [np.eye(axes, n_bits) @ rng.standard_normal((n_bits, n_bits)) for _ in range(n_init)]
        V = fit_rotation(on_device(np.stack(draws)), xp=xp)
        for _ in range(iterations):
            V = fit_rotation(rows.sign_pass(V), xp=xp)
        return V

    if isinstance(init, str) and init == "itq":
        return orthonormalise(rotated(rows, D, _ITQ_ITERATIONS), xp=xp)
    longer = longer_bits(n_bits, D)
    if isinstance(init, str) and init == "longer" and longer > n_bits:
        sample = rows.sample(_places(rows.n, rng))
        axes = _longer(basis, sample, random(1, longer), progress=progress, xp=xp)[:, :n_bits]
        turned = axes @ rotated(sample.onto(axes), n_bits, _LONGER_ROTATIONS)
        return orthonormalise(polar(turned, xp=xp), xp=xp)
    V = random(n_init, n_bits)
    if isinstance(init, str) and init in ("random", "longer"):
        return V
    first = on_device(np.eye(D, n_bits)) if isinstance(init, str) else basis.P.T @ on_device(init)
    return xp.concat([first[None, ...], V[1:, ...]], axis=0)


def longer_bits(n_bits: int, D: int) -> int:
    """Of the code that one of n_bits starts from."""
    return min(_LONGER * n_bits, _LONG, D)


def _places(n: int, rng: np.random.Generator) -> np.ndarray:
    """Of rows to learn a longer code from: all, or a fair sample of many."""
    return np.arange(n) if n <= LONGER_ROWS else np.sort(rng.choice(n, LONGER_ROWS, replace=False))


def resolve(init: str | np.ndarray, *, solver: str, n_bits: int) -> str | np.ndarray:
    """What init="auto" stands for: the paper's random start for its solver; a longer code where there is a good one."""
    if not isinstance(init, str) or init != "auto":
        return init
    return "longer" if solver == "joint" and 2 * n_bits <= _LONG else "random"


def _longer(
    basis: Basis, rows: ProjectedRows, V: Array, *, progress: Callable[[range], Iterable[int]], xp: ModuleType
) -> Array:
    """Axes (D, K), by falling variance, of the projections that a code of K bits learns in a few soft passes from V.

    Among many bits that each find some bunches of rows, the bunches that most of them find carry the variance; few bits
    from a random start find some of those and miss others, as chance will have it.
    """
    K = V.shape[-1]
    square = K / float(to_host(xp.sum(basis.lam[:K])))  # of the factor from the rows' scale to that for K bits
    ridge = auto_ridge(K) / square

    def joint(lam: Array, M: Array, V: Array, memory: None) -> tuple[Array, None, Array]:
        return fit_joint_orthogonal(lam, M, V, ridge=ridge, xp=xp), None, all_solved(M, xp=xp)

    (run,) = train(
        rows,
        basis.lam,
        V * square**0.5,
        step=VStep(joint, descends=True, softness=SOFTNESS),
        ridge=ridge,
        tol=0,
        iterations=progress(range(1, _LONGER_PASSES + 1)),
        soft_passes=_LONGER_PASSES,
        watch=None,
        xp=xp,
    )
    _, E = xp.linalg.eigh(run.V.T @ (basis.lam[:, None] * run.V))
    return run.V @ xp.flip(E, axis=1)


def generator(random_state: Any) -> np.random.Generator:
    """A NumPy generator from None, a seed, a Generator or a RandomState."""
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**31, size=4))
    return np.random.default_rng(random_state)
