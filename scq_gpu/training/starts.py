"""Where a fit starts: V before the first sign pass, the same on every backend."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array, device_of, from_host, to_host
from scq_gpu.rows.basis import Basis
from scq_gpu.rows.passes import KeptRows, TrainingRows
from scq_gpu.training import partial
from scq_gpu.training.defaults import SHORT, auto_ridge
from scq_gpu.training.joint import STEPS, orthogonal_step
from scq_gpu.training.linalg import generator, orthonormalize, polar
from scq_gpu.training.loop import train
from scq_gpu.training.rotation import rotation_step

START_ROWS = 50_000  # most rows that axes are rotated on
LEARN_ROWS = 25_000  # and that other codes are learned from, where rows cannot be had in parts
_ROTATIONS = 25  # passes of ITQ, each with signs taken ahead of the rotation
_WHITENING = 0.25  # power of the variance by which random starts prefer axes of little variance
_LONGER, _LONG = 4, 64  # a longer code has four times the bits, but no more than 64, or half as many again
_PASSES, _PASSES_JOINED = 16, 10  # codes to start from need not converge: they only point the way
_PASSES_LONGER, _COLUMNS_LONGER = 16, 1152  # at most: passes, and columns of all passes together
_ROUGHLY = 1.5  # steps within a V step, over the root of the ratio of variances that they are to bridge
_GROUP_BITS, _GROUP_PASSES = 32, 24  # of the code along whose columns groups are looked for
_MARGIN = 1.02  # d / lambda_max(H'H) where codes are joined,
_NOISE = 1e-3  # and what is added to the entries of their columns

Progress = Callable[[range], Iterable[int]]


def draw_starts(
    start: str | np.ndarray,
    basis: Basis,
    rows: TrainingRows,
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
    rotates the leading axes, and "longer_code" those of a longer code (`Draws.from_longer`). "shorter_codes" grows
    codes from shorter ones (`Draws.from_shorter`). These three learn from a sample of the rows, so they cost a large
    fit little; ``progress`` is shown their passes.
    """
    draws = Draws(basis, rows, random_state, xp=xp)
    kind = start if isinstance(start, str) else None
    D = basis.lam.shape[0]
    if kind == "itq":
        return draws.rotated(draws.on_device(np.eye(D, n_bits)), draws.sample(START_ROWS), n_init, progress)
    if kind == "longer_code" and longer_bits(n_bits, D) > n_bits:
        return draws.from_longer(n_bits, n_init, progress)
    if kind == "shorter_codes" and n_bits > SHORT:
        return draws.from_shorter(n_bits, n_init, progress)
    V = draws.random(n_init, n_bits)
    if isinstance(start, str) and start != "pca":
        return V
    first = draws.on_device(np.eye(D, n_bits)) if isinstance(start, str) else basis.coordinates(draws.on_device(start))
    return xp.concat([first[None, ...], V[1:, ...]], axis=0)


def start_columns(n_bits: int, D: int, n_init: int) -> int:
    """Number of columns that the start of the joint solver learns at once for classes, for memory estimates."""
    if n_bits <= SHORT:
        return longer_bits(n_bits, D)
    count, K = shorter_codes(n_bits)
    return n_init * count * K


def longer_bits(n_bits: int, D: int) -> int:
    """Length of the longer code that a code of ``n_bits`` bits starts from."""
    return min(_LONGER * n_bits, max(_LONG, 3 * n_bits // 2), D)


def shorter_codes(n_bits: int) -> tuple[int, int]:
    """Number of shorter codes that a long one grows from, a power of two, and their length.

    Together they have n_bits bits, or a few more.
    """
    count = 1 << ((n_bits - 1) // SHORT).bit_length()
    return count, -(-n_bits // count)


class Draws:
    """Starts that are drawn, rotated or learned; the generator goes on from one to the next."""

    def __init__(self, basis: Basis, rows: TrainingRows, random_state: Any, *, xp: ModuleType) -> None:
        self.basis, self.rows, self.xp = basis, rows, xp
        self.rng = generator(random_state)

    def on_device(self, V: np.ndarray) -> Array:
        """V where the work is, in the type of small algebra."""
        lam = self.basis.lam
        return self.xp.astype(from_host(V, xp=self.xp, device=device_of(lam)), lam.dtype)

    def normals(self, count: int, n_columns: int) -> Array:
        """Normal deviates (count, D, n_columns)."""
        D = self.basis.lam.shape[0]
        return self.on_device(np.stack([self.rng.standard_normal((D, n_columns)) for _ in range(count)]))

    def random(self, count: int, n_columns: int) -> Array:
        """Random orthonormal V (count, D, n_columns), axes of little variance preferred."""
        V = self.normals(count, n_columns) * (self.basis.lam**-_WHITENING)[:, None]
        return orthonormalize(polar(V, xp=self.xp), xp=self.xp)

    def rotated(self, axes: Array, rows: KeptRows, n_init: int, progress: Progress = iter) -> Array:
        """Orthonormal axes (D, L) rotated so that the signs of the rows lose least: V (n_init, D, L).

        The rotations are those of ITQ (Gong and Lazebnik, 2011), from random ones of their own.
        """
        xp, L = self.xp, axes.shape[1]
        draws = self.on_device(np.stack([self.rng.standard_normal((L, L)) for _ in range(n_init)]))
        lam = xp.sum(self.basis.lam[:, None] * axes * axes, axis=0)
        runs = train(
            rows.project(axes),
            lam,
            polar(draws, xp=xp),
            step=rotation_step(xp=xp),
            ridge=0.0,
            tol=0,
            iterations=progress(range(_ROTATIONS)),
            xp=xp,
        )
        return orthonormalize(axes @ xp.stack([run.V for run in runs]), xp=xp)

    def from_longer(self, n_bits: int, n_init: int, progress: Progress) -> Array:
        """Leading axes of the projections of a longer code, rotated.

        Among many bits that each separate some clusters of rows, the clusters that most of them separate carry the
        variance; few bits from a random start find some of those and miss others, depending on chance.
        """
        xp, lam = self.xp, self.basis.lam
        parts = self.parts()
        K = longer_bits(n_bits, lam.shape[0])
        passes = min(_PASSES_LONGER, _COLUMNS_LONGER // K)
        V = self.learn_roughly(parts, self.random(1, K), progress(range(passes)))[0, ...]
        _, E = xp.linalg.eigh(xp.matrix_transpose(V) @ (lam[:, None] * V))
        axes = (V @ xp.flip(E, axis=1))[:, :n_bits]
        return self.rotated(polar(axes, xp=xp), parts[0].rows, n_init)

    def from_shorter(self, n_bits: int, n_init: int, progress: Progress) -> Array:
        """Codes that begin apart and are joined in pairs until each start has one left, learning in between."""
        parts = self.parts()
        count, K = shorter_codes(n_bits)
        joins = count.bit_length() - 1
        passes = iter(progress(range(_PASSES + (joins - 1) * _PASSES_JOINED)))
        codes = self.learn_roughly(parts, self.random(n_init * count, K), islice(passes, _PASSES))
        for _ in range(joins - 1):
            codes = self.learn_roughly(parts, self.join(codes), islice(passes, _PASSES_JOINED))
        next(passes, None)  # a progress bar counts the last pass when it is asked for another
        return self.join(codes, n_bits)

    def groups(self, progress: Progress = iter) -> tuple[Array, float]:
        """Directions along which rows fall into groups, orthonormal Q (D, 32) or fewer, and how distinct those are.

        Q are the columns of a short code for classes. How distinct its groups are, from 0 to 1, is the share of the
        variance of projections z that their signs explain, ``(E|z|)^2 / E z^2``, on a scale from the 2 / pi of a normal
        distribution to the 1 of two points. Few rows fall into groups by chance along directions that were made for
        them, so other rows tell; parts of many rows, learned from in turn, need no others.
        """
        xp, lam = self.xp, self.basis.lam
        parts = partial.cut(self.rows, lam, xp=xp)
        if parts:
            others = parts[0]
        else:
            half, others = (partial.Part(rows, lam, xp=xp) for rows in self.halves())
            parts = [half]
        V = self.learn(parts, self.random(1, min(_GROUP_BITS, lam.shape[0])), progress(range(_GROUP_PASSES)))[0, ...]
        M = others.statistics(V[None, ...]).M[0, ...]
        share = xp.sum(M * V, axis=0) ** 2 / xp.sum(lam[:, None] * V * V, axis=0)
        explained = float(to_host(xp.mean(share)))
        normal = 2 / math.pi
        return V / xp.linalg.vector_norm(V, axis=0), max(0.0, (explained - normal) / (1 - normal))

    def join(self, codes: Array, n_bits: int | None = None) -> Array:
        """Orthonormal V (G / 2, D, 2 K), or the first n_bits of its columns, from codes (G, D, K), learned apart.

        Each code has found the clusters of rows by itself, and two place a row better than one; but columns of one are
        not orthogonal to those of the other. The axes of least variance, as many as columns, make them so, and hardly
        change what a bit sees: with H along all other axes, ``H'H + T'T = d I`` for ``T = U (d I - H'H)^(1/2)`` and any
        orthonormal U. The polar factor makes T the nearest to what was there; a little noise separates columns that
        both codes have.
        """
        xp, (G, D, K) = self.xp, codes.shape
        V = xp.permute_dims(xp.reshape(codes, (G // 2, 2, D, K)), (0, 2, 1, 3))
        V = xp.reshape(V, (G // 2, D, 2 * K))[..., :n_bits]
        L = V.shape[-1]
        V = V / xp.linalg.vector_norm(V, axis=-2, keepdims=True) + _NOISE * self.normals(G // 2, L)
        H, T = V[:, : D - L, :], V[:, D - L :, :]
        w, E = xp.linalg.eigh(xp.matrix_transpose(H) @ H)
        w = xp.maximum(w, xp.zeros_like(w))
        d = xp.max(w, axis=-1, keepdims=True)
        d = _MARGIN * xp.maximum(d, xp.ones_like(d))
        root = (E * xp.sqrt(d - w)[:, None, :]) @ xp.matrix_transpose(E)
        T = polar(polar(T @ root, xp=xp), xp=xp) @ root  # T may be nearly singular: the second pass mends rounding
        return orthonormalize(xp.concat([H, T], axis=-2) / xp.sqrt(d)[..., None], xp=xp)

    def sample(self, most: int) -> KeptRows:
        """All rows, or a uniform sample of many."""
        return self.rows.sample(self.numbers(most))

    def numbers(self, most: int) -> np.ndarray:
        """Row numbers, ascending: all, or those of a uniform sample of many."""
        n = self.rows.n
        return np.arange(n) if n <= most else np.sort(self.rng.choice(n, most, replace=False))

    def halves(self) -> list[KeptRows]:
        """Every other row, and those between, of all rows or of a uniform sample of many."""
        numbers = self.numbers(START_ROWS)
        return [self.rows.sample(numbers[first::2]) for first in (0, 1)]

    def parts(self) -> list[partial.Part]:
        """Parts of the rows to learn from in turn; or all rows, or one sample of them."""
        lam, xp = self.basis.lam, self.xp
        return partial.cut(self.rows, lam, halved=True, xp=xp) or [partial.Part(self.sample(LEARN_ROWS), lam, xp=xp)]

    def learn_roughly(self, parts: list[partial.Part], V: Array, passes: Iterable[int]) -> Array:
        """Codes (G, D, K) to start from: V steps between parts end early where variances are alike.

        A V step goes along an axis the faster the nearer its variance is to the largest. Where those of the first K
        axes are much alike, a few steps follow the chance of halves of parts, and the code goes astray.
        """
        if len(parts) == 1:
            return self.learn(parts, V, passes)
        lam = self.basis.lam
        ratio = float(to_host(lam[0] / lam[V.shape[-1] - 1]))
        return self.learn(parts, V, passes, steps=min(STEPS, round(_ROUGHLY * ratio**0.5)))

    def learn(self, parts: list[partial.Part], V: Array, passes: Iterable[int], *, steps: int = STEPS) -> Array:
        """Codes (G, D, K) that OgE learns from V, each by itself."""
        lam, K = self.basis.lam, V.shape[-1]
        square = K / float(to_host(self.xp.sum(lam[:K])))  # of the factor from the rows' scale to that for K bits
        ridge = auto_ridge(K, "classes") / square
        step = orthogonal_step(ridge, steps=steps, xp=self.xp)
        V = V * square**0.5
        if len(parts) > 1:
            return partial.learn(parts, lam, V, step=step, ridge=ridge, passes=passes, xp=self.xp)
        (part,) = parts
        seen = part.rows if part.n == self.rows.n else part
        runs = train(seen, lam, V, step=step, ridge=ridge, tol=0, iterations=passes, xp=self.xp)
        return self.xp.stack([run.V for run in runs])
