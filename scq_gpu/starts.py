"""Where a fit starts: V before the first sign pass, the same on every backend."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from itertools import islice
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

STARTS = ("auto", "longer", "shorter", "random", "pca", "itq")
START_ROWS = 50_000  # most rows that other codes are learned from
_ITQ_ITERATIONS = 50
_WHITENING = 0.25  # power of variance by which random starts prefer axes of little of it
_LONGER, _LONG = 4, 128  # a longer code has four times the bits, but no more than 128
_SHORT = 64  # most bits of the codes that a long one grows from
_PASSES, _PASSES_JOINED = 14, 10  # codes to start from need not settle: they are only to point the way
_PASSES_LAST = 5  # soft ones, in the fit that follows
_ROTATIONS = 30
_ROOM = 1.02  # d / lambda_max(H'H) where codes are joined,
_NOISE = 1e-3  # and what is added to the entries of their columns

Progress = Callable[[range], Iterable[int]]


def draw_starts(
    init: str | np.ndarray,
    basis: Basis,
    rows: ProjectedRows,
    *,
    n_bits: int,
    n_init: int,
    random_state: Any,
    progress: Progress = iter,
    xp: ModuleType,
) -> Array:
    """Starts ``V`` (n_init, D, n_bits) in the coordinates of the basis.

    "random" draws normals on the host, weights axis i by ``lam_i ** (-1/4)``, and takes the nearest orthonormal matrix:
    without the weights the few axes of largest variance would decide the signs of all bits alike, and the bits would
    begin as copies of each other. An array, and "pca", give the first start; further ones are drawn at random. "itq"
    rotates the leading axes, and "longer" those of a longer code (`_Draws.from_longer`), from a random start of its own
    for each. "shorter" grows codes from shorter ones (`_Draws.from_shorter`). These two learn from a sample of the
    rows, so they cost a large fit little; ``progress`` is shown their passes.
    """
    draws = _Draws(basis, rows, random_state, xp=xp)
    kind = init if isinstance(init, str) else None
    if kind == "itq":
        return orthonormalise(draws.rotated(rows, basis.lam.shape[0], n_bits, n_init, _ITQ_ITERATIONS), xp=xp)
    if kind == "longer" and longer_bits(n_bits, basis.lam.shape[0]) > n_bits:
        return draws.from_longer(n_bits, n_init, progress)
    if kind == "shorter" and n_bits > _SHORT:
        return draws.from_shorter(n_bits, n_init, progress)
    V = draws.random(n_init, n_bits)
    if isinstance(init, str) and init != "pca":
        return V
    first = draws.on_device(np.eye(V.shape[1], n_bits)) if isinstance(init, str) else basis.P.T @ draws.on_device(init)
    return xp.concat([first[None, ...], V[1:, ...]], axis=0)


def resolve(init: str | np.ndarray, *, solver: str, n_bits: int) -> str | np.ndarray:
    """What init="auto" stands for: the paper's random start for its solver, other codes for ours."""
    if not isinstance(init, str) or init != "auto":
        return init
    if solver != "joint":
        return "random"
    return "longer" if n_bits <= _SHORT else "shorter"


def soft_passes(start: str | np.ndarray, n_bits: int) -> int:
    """How many of a fit from this start do good: codes that were joined have had theirs."""
    joined = isinstance(start, str) and start == "shorter" and n_bits > _SHORT
    return _PASSES_LAST if joined else sys.maxsize


def start_columns(n_bits: int, D: int, n_init: int) -> int:
    """Of all codes that are learned at once for the default start of the joint solver."""
    if n_bits <= _SHORT:
        return longer_bits(n_bits, D)
    count, K = shorter_codes(n_bits)
    return n_init * count * K


def longer_bits(n_bits: int, D: int) -> int:
    """Of the code that one of n_bits starts from."""
    return min(_LONGER * n_bits, _LONG, D)


def shorter_codes(n_bits: int) -> tuple[int, int]:
    """How many a long one grows from, a power of two, and how many bits each has; together n_bits, or a few more."""
    count = 1 << ((n_bits - 1) // _SHORT).bit_length()
    return count, -(-n_bits // count)


class _Draws:
    """Starts that are drawn, rotated or learned; the generator goes on from one to the next."""

    def __init__(self, basis: Basis, rows: ProjectedRows, random_state: Any, *, xp: ModuleType) -> None:
        self.basis, self.rows, self.xp = basis, rows, xp
        self.rng = generator(random_state)

    def on_device(self, V: np.ndarray) -> Array:
        lam = self.basis.lam
        return self.xp.astype(from_host(V, xp=self.xp, device=device_of(lam)), lam.dtype)

    def normals(self, count: int, n_columns: int) -> Array:
        D = self.basis.lam.shape[0]
        return self.on_device(np.stack([self.rng.standard_normal((D, n_columns)) for _ in range(count)]))

    def random(self, count: int, n_columns: int) -> Array:
        V = self.normals(count, n_columns) * (self.basis.lam**-_WHITENING)[:, None]
        return orthonormalise(polar(V, xp=self.xp), xp=self.xp)

    def rotated(self, rows: ProjectedRows, axes: int, n_bits: int, n_init: int, iterations: int) -> Array:
        """The leading axes (n_init, axes, n_bits) of rows, rotated by ITQ."""
        draws = [np.eye(axes, n_bits) @ self.rng.standard_normal((n_bits, n_bits)) for _ in range(n_init)]
        V = fit_rotation(self.on_device(np.stack(draws)), xp=self.xp)
        for _ in range(iterations):
            V = fit_rotation(rows.sign_pass(V), xp=self.xp)
        return V

    def from_longer(self, n_bits: int, n_init: int, progress: Progress) -> Array:
        """Leading axes of the projections of a longer code, rotated.

        Among many bits that each find some bunches of rows, the bunches that most of them find carry the variance; few
        bits from a random start find some of those and miss others, as chance will have it.
        """
        xp, lam = self.xp, self.basis.lam
        sample = self.sample()
        V = self.random(1, longer_bits(n_bits, lam.shape[0]))
        V = self.learn(sample, V, progress(range(_PASSES)))[0, ...]
        _, E = xp.linalg.eigh(xp.matrix_transpose(V) @ (lam[:, None] * V))
        axes = (V @ xp.flip(E, axis=1))[:, :n_bits]
        turned = axes @ self.rotated(sample.onto(axes), n_bits, n_bits, n_init, _ROTATIONS)
        return orthonormalise(polar(turned, xp=xp), xp=xp)

    def from_shorter(self, n_bits: int, n_init: int, progress: Progress) -> Array:
        """Codes that begin apart, and are joined two by two until one is left of each start, learning in between."""
        sample = self.sample()
        count, K = shorter_codes(n_bits)
        joins = count.bit_length() - 1
        passes = iter(progress(range(_PASSES + (joins - 1) * _PASSES_JOINED)))
        codes = self.learn(sample, self.random(n_init * count, K), islice(passes, _PASSES))
        for _ in range(joins - 1):
            codes = self.learn(sample, self.join(codes), islice(passes, _PASSES_JOINED))
        next(passes, None)  # a bar counts the last pass when it is asked for another
        return self.join(codes, n_bits)

    def join(self, codes: Array, n_bits: int | None = None) -> Array:
        """Orthonormal V (G / 2, D, 2 K), or the first n_bits of its columns, from codes (G, D, K), learned apart.

        Each has found the bunches of rows by itself, and two place a row better than one; but columns of one are not
        orthogonal to those of the other. The axes of least variance, as many as columns, make them so, and hardly
        change what a bit sees: with H along all other axes, ``H'H + T'T = d I`` for ``T = U (d I - H'H)^(1/2)`` and any
        orthonormal U. The polar factor makes T the nearest to what was there; a little noise tells columns apart that
        both codes have.
        """
        xp, (G, D, K) = self.xp, codes.shape
        V = xp.permute_dims(xp.reshape(codes, (G // 2, 2, D, K)), (0, 2, 1, 3))
        V = xp.reshape(V, (G // 2, D, 2 * K))[..., :n_bits]
        L = V.shape[-1]
        V = V / xp.linalg.vector_norm(V, axis=-2, keepdims=True) + _NOISE * self.normals(G // 2, L)
        H, T = V[:, : D - L, :], V[:, D - L :, :]
        w, E = xp.linalg.eigh(xp.matrix_transpose(H) @ H)
        w = xp.clip(w, 0.0, None)
        d = _ROOM * xp.clip(xp.max(w, axis=-1, keepdims=True), 1.0, None)
        root = (E * xp.sqrt(d - w)[:, None, :]) @ xp.matrix_transpose(E)
        T = polar(polar(T @ root, xp=xp), xp=xp) @ root  # T may be near to singular: once more mends what rounding left
        return orthonormalise(xp.concat([H, T], axis=-2) / xp.sqrt(d)[..., None], xp=xp)

    def sample(self) -> ProjectedRows:
        """All rows, or a fair sample of many."""
        n = self.rows.n
        places = np.arange(n) if n <= START_ROWS else np.sort(self.rng.choice(n, START_ROWS, replace=False))
        return self.rows.sample(places)

    def learn(self, rows: ProjectedRows, V: Array, passes: Iterable[int]) -> Array:
        """Codes (G, D, K) that OgE learns from V in soft passes, each by itself."""
        xp, lam, K = self.xp, self.basis.lam, V.shape[-1]
        square = K / float(to_host(xp.sum(lam[:K])))  # of the factor from the rows' scale to that for K bits
        ridge = auto_ridge(K) / square

        def joint(lam: Array, M: Array, V: Array, memory: None) -> tuple[Array, None, Array]:
            return fit_joint_orthogonal(lam, M, V, ridge=ridge, xp=xp), None, all_solved(M, xp=xp)

        runs = train(
            rows,
            lam,
            V * square**0.5,
            step=VStep(joint, descends=True, softness=SOFTNESS),
            ridge=ridge,
            tol=0,
            iterations=passes,
            soft_passes=sys.maxsize,
            watch=None,
            xp=xp,
        )
        return xp.stack([run.V for run in runs])


def generator(random_state: Any) -> np.random.Generator:
    """A NumPy generator from None, a seed, a Generator or a RandomState."""
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**31, size=4))
    return np.random.default_rng(random_state)
