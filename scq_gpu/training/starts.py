"""Starts of a fit: V before the first sign pass, the same on every backend.

Random numbers are drawn on the host. Starts that are learned use a sample or batches of the rows, so they cost a large
fit little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array, device_of, from_host, generator, to_host
from scq_gpu.kernels.linalg import orthonormalize, polar
from scq_gpu.rows.basis import Basis
from scq_gpu.rows.projected import ProjectedRows, TrainingRows
from scq_gpu.training.joint import STEPS, orthogonal_step, rotation_step
from scq_gpu.training.loop import BatchPasses, split_rows, train, train_on_batches

STARTS = ("auto", "longer_code", "shorter_codes", "random", "pca", "itq")
SHORT = 64
"""Most bits of a code that starts from a longer one; longer codes grow from shorter ones of at most this length."""
START_ROWS = 50_000
"""Most rows that axes are rotated on."""

Progress = Callable[[range], Iterable[int]]


def longer_bits(n_bits: int, D: int) -> int:
    """Return the length of the longer code that a code of ``n_bits`` bits starts from.

    It has four times the bits, but no more than 64, or half as many again.
    """
    return min(4 * n_bits, max(64, 3 * n_bits // 2), D)


def start_passes(columns: int) -> int:
    """Return the number of passes in which a code to start from is learned, which need not converge.

    Up to `SHORT` columns it is 16, and beyond as many as have the same number of columns in all.
    """
    return 16 * SHORT // max(columns, SHORT)


def shorter_codes(n_bits: int) -> tuple[int, int]:
    """Return the number of shorter codes that a long one grows from, a power of two, and their length.

    Together they have n_bits bits, or a few more.
    """
    count = 1 << ((n_bits - 1) // SHORT).bit_length()
    return count, -(-n_bits // count)


class Draws:
    """Starts that are drawn, rotated or learned from the rows of one fit.

    ``ridge(n_bits)`` is that of OgE to learn longer or shorter codes with; ``progress`` is called with the range of
    passes of a start that is learned.
    """

    def __init__(
        self,
        basis: Basis,
        rows: TrainingRows,
        random_state: Any,
        *,
        ridge: Callable[[int], float],
        progress: Progress,
        xp: ModuleType,
    ) -> None:
        self.basis, self.rows, self.ridge, self.progress, self.xp = basis, rows, ridge, progress, xp
        self.rng = generator(random_state)

    def starts(self, start: str | np.ndarray, n_bits: int, n_init: int) -> Array:
        """Return starts ``V`` (n_init, D, n_bits) in the coordinates of the basis.

        An array (d, n_bits), and "pca", the leading axes, give the first start; further ones are random. "itq" rotates
        the leading axes.
        """
        D = self.basis.lam.shape[0]
        if not isinstance(start, str):
            first = self.basis.coordinates(self.on_device(start))
        elif start == "itq":
            return self.rotated(self.on_device(np.eye(D, n_bits)), self.sample(START_ROWS), n_init, self.progress)
        elif start == "longer_code" and longer_bits(n_bits, D) > n_bits:
            return self.from_longer(n_bits, n_init)
        elif start == "shorter_codes" and n_bits > SHORT:
            return self.from_shorter(n_bits, n_init)
        elif start == "pca":
            first = self.on_device(np.eye(D, n_bits))
        else:
            return self.random(n_init, n_bits)
        return self.xp.concat([first[None, ...], self.random(n_init, n_bits)[1:, ...]], axis=0)

    def on_device(self, V: np.ndarray) -> Array:
        """Move V to where the work is, in the type of small algebra."""
        lam = self.basis.lam
        return self.xp.astype(from_host(V, xp=self.xp, device=device_of(lam)), lam.dtype)

    def normals(self, count: int, n_columns: int) -> Array:
        """Draw normal deviates (count, D, n_columns)."""
        D = self.basis.lam.shape[0]
        return self.on_device(np.stack([self.rng.standard_normal((D, n_columns)) for _ in range(count)]))

    def random(self, count: int, n_columns: int) -> Array:
        """Draw random orthonormal V (count, D, n_columns).

        Axis i is weighted by ``lam_i ** (-1/4)``. Without the weights the few axes of largest variance would decide the
        signs of all bits alike, and the bits would begin as copies of each other.
        """
        V = self.normals(count, n_columns) * (self.basis.lam**-0.25)[:, None]
        return orthonormalize(polar(V, xp=self.xp), xp=self.xp)

    def rotated(self, axes: Array, rows: Any, n_init: int, progress: Progress = iter) -> Array:
        """Rotate orthonormal axes (D, L) so that the signs of the rows lose least: V (n_init, D, L).

        The rotations are those of ITQ (Gong and Lazebnik, 2011), 25 passes from random ones of their own.
        """
        xp, L = self.xp, axes.shape[1]
        draws = self.on_device(np.stack([self.rng.standard_normal((L, L)) for _ in range(n_init)]))
        lam = xp.sum(self.basis.lam[:, None] * axes * axes, axis=0)
        projected: ProjectedRows = rows.project(axes)
        R = polar(draws, xp=xp)
        runs = train(projected, lam, R, step=rotation_step(xp=xp), tol=0, iterations=progress(range(25)), xp=xp)
        return orthonormalize(axes @ xp.stack([run.V for run in runs]), xp=xp)

    def from_longer(self, n_bits: int, n_init: int) -> Array:
        """Rotate the leading axes of the projections of a longer code.

        Among many bits that each separate some clusters of rows, the clusters that most of them separate carry the
        variance. Few bits from a random start find some of those and miss others, depending on the seed.
        """
        xp, lam = self.xp, self.basis.lam
        batches = self.batches()
        K = longer_bits(n_bits, lam.shape[0])
        V = self.learn(batches, self.random(1, K), self.progress(range(start_passes(K))))[0, ...]
        _, E = xp.linalg.eigh(xp.matrix_transpose(V) @ (lam[:, None] * V))
        axes = (V @ xp.flip(E, axis=1))[:, :n_bits]
        return self.rotated(polar(axes, xp=xp), batches[0].rows, n_init)

    def from_shorter(self, n_bits: int, n_init: int) -> Array:
        """Learn short codes apart, and join them in pairs until each start has one left, learning in between."""
        batches = self.batches()
        count, K = shorter_codes(n_bits)
        joins = count.bit_length() - 1
        rounds = [start_passes(K << number) for number in range(joins)]
        passes = iter(self.progress(range(sum(rounds))))
        codes = self.learn(batches, self.random(n_init * count, K), islice(passes, rounds[0]))
        for most in rounds[1:]:
            codes = self.learn(batches, self.join(codes), islice(passes, most))
        # a progress bar counts the last pass when it is asked for another
        next(passes, None)
        return self.join(codes, n_bits)

    def join(self, codes: Array, n_bits: int | None = None) -> Array:
        """Join codes (G, D, K), learned apart, to orthonormal V (G / 2, D, 2 K), or the first n_bits of its columns.

        Each code has found the clusters of rows by itself, and two place a row better than one; but columns of one are
        not orthogonal to those of the other. The axes of least variance, as many as columns, make them so, and hardly
        change what a bit sees: with H along all other axes, ``H'H + T'T = d I`` for ``T = U (d I - H'H)^(1/2)`` and any
        orthonormal U. The polar factor makes T the nearest to what was there.
        """
        xp, (G, D, K) = self.xp, codes.shape
        V = xp.permute_dims(xp.reshape(codes, (G // 2, 2, D, K)), (0, 2, 1, 3))
        V = xp.reshape(V, (G // 2, D, 2 * K))[..., :n_bits]
        L = V.shape[-1]
        # a little noise separates columns that both codes have
        V = V / xp.linalg.vector_norm(V, axis=-2, keepdims=True) + 1e-3 * self.normals(G // 2, L)
        H, T = V[:, : D - L, :], V[:, D - L :, :]
        w, E = xp.linalg.eigh(xp.matrix_transpose(H) @ H)
        w = xp.maximum(w, xp.zeros_like(w))
        # d is a little above the largest eigenvalue, so that the root is not singular
        d = xp.max(w, axis=-1, keepdims=True)
        d = 1.02 * xp.maximum(d, xp.ones_like(d))
        root = (E * xp.sqrt(d - w)[:, None, :]) @ xp.matrix_transpose(E)
        # T may be nearly singular: the second polar factor removes the rounding of the first
        T = polar(polar(T @ root, xp=xp), xp=xp) @ root
        return orthonormalize(xp.concat([H, T], axis=-2) / xp.sqrt(d)[..., None], xp=xp)

    def sample(self, most: int) -> Any:
        """Keep all rows, or a uniform sample of many."""
        n = self.rows.n
        return self.rows.sample(np.arange(n) if n <= most else np.sort(self.rng.choice(n, most, replace=False)))

    def batches(self) -> list[BatchPasses]:
        """Split the rows into batches to learn from in turn; or take all rows, or one sample of them."""
        lam, xp = self.basis.lam, self.xp
        found = split_rows(self.rows, lam, halved=True, xp=xp)
        return found or [BatchPasses(self.sample(START_ROWS // 2), lam, xp=xp)]

    def learn(self, batches: list[BatchPasses], V: Array, passes: Iterable[int]) -> Array:
        """Learn codes (G, D, K) as OgE does for classes, each by itself."""
        xp, lam, K = self.xp, self.basis.lam, V.shape[-1]
        # from the scale of the rows to that for K bits: the square of the factor
        square = K / float(to_host(xp.sum(lam[:K])))
        V = V * square**0.5
        ridge = self.ridge(K) / square
        if len(batches) > 1:
            # A V step goes along an axis the faster the nearer its variance is to the largest. Where the first K
            # variances are much alike, a few steps overfit the noise of a half-batch.
            steps = min(STEPS, round(1.5 * float(to_host(lam[0] / lam[K - 1])) ** 0.5))
            step = orthogonal_step(ridge, steps=steps, xp=xp)
            return train_on_batches(batches, lam, V, step=step, passes=passes, xp=xp)
        (batch,) = batches
        seen = batch.rows if batch.n == self.rows.n else batch
        runs = train(seen, lam, V, step=orthogonal_step(ridge, xp=xp), tol=0, iterations=passes, xp=xp)
        return xp.stack([run.V for run in runs])
