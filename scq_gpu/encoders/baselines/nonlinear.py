"""Nonlinear baselines: signs of waves along the principal axes (SH), and of depths inside spheres (SpH)."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from scq_gpu._core.arrays import Array, from_host, generator, is_dask, namespace, to_host
from scq_gpu._core.messages import warn_caller
from scq_gpu.encoders.base import POSITIVE_INTEGER, BitEncoder, real
from scq_gpu.encoders.baselines.base import mean_levels, mean_row, on_device, principal_axes
from scq_gpu.rows.basis import equal_rows_error
from scq_gpu.rows.blocks import Rows


class _NonlinearBaseline(BitEncoder):
    """Bits are the signs of scores that are not a linear map of the rows; a subclass computes them (`_map`)."""

    def project(self, X: Any) -> Array:
        """Return scores (n, n_bits) whose signs are the bits: waves (`SH`), or the radius less the distance (`SpH`)."""
        return self._map(X, lambda scores: scores)

    def _map_bits(self, X: Any, function: Callable[[Array], Array]) -> Array:
        return self._map(X, lambda scores: function(scores >= 0))

    def _map(self, X: Any, function: Callable[[Array], Array]) -> Array:
        """Map ``function(scores)`` over blocks of rows."""
        raise NotImplementedError


class SH(_NonlinearBaseline):
    r"""Spectral hashing: the signs of the smoothest waves along the principal axes [1]_.

    If the rows filled a box along their principal axes, the eigenfunctions of its Laplacian along an axis of range
    [a, b] would be the waves :math:`\sin(\pi/2 + k \pi (x - a) / (b - a))`, k = 1, 2, ... The ``n_bits`` of lowest
    frequency over all axes are taken. A long axis gets several bits, a short one none.

    Parameters
    ----------
    n_bits, device
        As in `LSH`.

    Attributes
    ----------
    frequencies_ : array (n_bits, n_features)
        The axis of each wave times its frequency: bit k is ``cos(x . frequencies_[k] - phases_[k]) >= 0``.
    phases_ : array (n_bits,)
    modes_ : array (n_bits, 2) of integers
        Axis and k of each wave.
    n_features_in_, n_samples_ : int

    References
    ----------
    .. [1] Y. Weiss, A. Torralba, R. Fergus, "Spectral hashing", NIPS 2008.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import scq_gpu as scq
    >>> X, _ = load_digits(return_X_y=True)
    >>> encoder = scq.SH(n_bits=16).fit(X)
    >>> encoder.modes_[-3:].tolist()  # of the last bits, two are second waves along longer axes
    [[3, 2], [13, 1], [0, 2]]
    """

    _fitted_arrays = ("frequencies_", "phases_", "modes_")
    _fitted_facts = ("n_features_in_", "n_samples_")

    def _learn(self, rows: Rows) -> None:
        xp = rows.xp
        basis = principal_axes(rows, n_bits=1, n_components=self.n_bits, scale=1.0)
        offset = basis.mean @ basis.P

        def extremes(scores: Array, t: Array) -> Array:
            scores = scores - t
            return xp.stack([xp.min(scores, axis=0), xp.max(scores, axis=0)])[None, ...]

        found = to_host(rows.map_scores(basis.P, offset, extremes)).astype(np.float64)  # (blocks, 2, axes)
        low, high = found[:, 0, :].min(axis=0), found[:, 1, :].max(axis=0)
        # the waves of lowest frequency over all axes, each by its axis and its number from 1
        frequencies = np.arange(1, self.n_bits + 1) / (high - low)[:, None]
        axis, k = np.divmod(np.argsort(frequencies, axis=None, kind="stable")[: self.n_bits], self.n_bits)
        k = k + 1
        frequency = on_device(k * np.pi / (high - low)[axis], rows)
        axes = from_host(axis, xp=xp, device=rows.device)
        start = xp.take(offset + on_device(low, rows), axes, axis=0)
        self.frequencies_ = xp.astype((xp.take(basis.P, axes, axis=1) * frequency).T, rows.dtype)
        self.phases_ = xp.astype(start * frequency, rows.dtype)
        self.modes_ = from_host(np.stack([axis, k], axis=1), xp=xp, device=rows.device)

    def _map(self, X: Any, function: Callable[[Array], Array]) -> Array:
        with self._opened(X, "frequencies_", "phases_") as (rows, W_t, t):

            def waves(scores: Array, t: Array) -> Array:
                xp = namespace(scores)
                return function(xp.astype(xp.cos(scores - t), rows.dtype, copy=False))

            result = rows.map_scores(W_t.T, t, waves, wide=True)
        return self._returned(result, rows)


class SpH(_NonlinearBaseline):
    r"""Spherical hashing: a bit says whether a row is inside a sphere [1]_.

    Each sphere holds half of the training rows, and any two of them share a quarter, so that bits are balanced and
    pairwise independent. Pivots that share more than a quarter push each other away, others pull; after each move the
    radii are set to the median distances. The authors rank by the spherical Hamming distance
    ``|b1 xor b2| / |b1 and b2|``: see ``distance="spherical"`` of `HammingIndex` and of the metrics.

    Parameters
    ----------
    n_bits, device, random_state
        As in `LSH`.
    max_iter : int, default=200
        Most moves of the pivots.
    tol : float, default=0.1
        The fit ends when overlaps of pairs differ from a quarter of the rows by no more than this share of it on
        average, with a standard deviation of no more than 1.5 times that: the authors' 10 % and 15 %. They warn that
        much less overfits.

    Attributes
    ----------
    pivots_ : array (n_bits, n_features)
        Centers of the spheres, less ``mean_``.
    radii_ : array (n_bits,)
    mean_ : array (n_features,)
    levels_ : array (n_bits, 2)
        Mean of `project` over the training rows whose bit is 0, and 1.
    loss_curve_ : list of float
        Mean difference of the overlaps from a quarter, as a share of it, before each move.
    n_iter_ : int
    converged_ : bool
    n_features_in_, n_samples_ : int

    Notes
    -----
    A pivot moves along the differences between pivots, so each stays a weighted mean of the first ones, and the rows'
    products with those are all that training needs: one array of ``n * n_bits`` floats, whatever the features.

    References
    ----------
    .. [1] J.-P. Heo, Y. Lee, J. He, S.-F. Chang, S.-E. Yoon, "Spherical hashing", CVPR 2012.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import scq_gpu as scq
    >>> X, y = load_digits(return_X_y=True)
    >>> encoder = scq.SpH(n_bits=16, random_state=0).fit(X)
    >>> index = scq.HammingIndex(encoder.encode(X), n_bits=16, distance="spherical")
    >>> distances, ids = index.search(encoder.encode(X[:1]), k=3)
    """

    _fitted_arrays = ("pivots_", "radii_", "mean_", "levels_")
    _fitted_facts = ("n_features_in_", "n_samples_", "loss_curve_", "n_iter_", "converged_")
    _parameter_constraints: ClassVar = {"max_iter": POSITIVE_INTEGER, "tol": real(0, strict=True)}

    def __init__(
        self,
        n_bits: int = 32,
        *,
        max_iter: int = 200,
        tol: float = 0.1,
        device: str | None = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(n_bits, device=device)
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def _learn(self, rows: Rows) -> None:
        xp = rows.xp
        mean = mean_row(rows)
        first = _first_pivots(rows, mean, n_bits=self.n_bits, rng=generator(self.random_state))
        score = _closeness(xp.astype(first, rows.dtype), xp.astype(mean, rows.dtype), xp=xp)
        table = rows.map_blocks(score, lambda scores: scores, where="X @ pivots")
        # If all rows are the mean, only rounding is left of the products.
        rounding = 8 * float(xp.finfo(rows.dtype).eps) * float(xp.max(xp.abs(mean)))
        if float(xp.max(xp.abs(table))) <= rows.shape[1] * rounding**2:
            raise equal_rows_error(rows.shape[0], to_host(mean))
        mix, t = self._balance(xp.matrix_transpose(table), rows)
        pivots = mix @ first
        radii = xp.sqrt(xp.maximum(xp.sum(pivots * pivots, axis=1) - 2 * t, xp.zeros_like(t)))
        self.pivots_, self.radii_, self.mean_ = (xp.astype(x, rows.dtype) for x in (pivots, radii, mean))
        levels = mean_levels(lambda f: _map_depths(rows, self.pivots_, self.radii_, self.mean_, f), rows)
        self.levels_ = xp.astype(levels, rows.dtype)

    def _balance(self, table: Array, rows: Rows) -> tuple[Array, Array]:
        """Return weights (n_bits, n_bits) of the first pivots in the last, and the closeness (n_bits,) at their radii.

        ``table`` (n_bits, n) is the closeness of the rows to the first pivots. Weights of a pivot add up to one, so
        they give its closeness too.
        """
        xp, L, n = rows.xp, self.n_bits, rows.shape[0]
        mix = xp.eye(L, dtype=rows.sum_dtype, device=rows.device)
        apart = 1 - mix
        # The authors allow a spread of 15 % with a mean of 10 %.
        allowed = 1.5 * self.tol
        curve: list[float] = []
        while True:
            scores = xp.astype(mix, rows.dtype) @ table
            # a radius is midway between the two rows in the middle, so that half of the rows are inside
            ordered = xp.sort(scores, axis=1)
            t = (ordered[:, n - n // 2 - 1] + ordered[:, n - n // 2]) / 2
            B = xp.astype(scores >= t[:, None], rows.dtype)
            excess = apart * (xp.astype(B @ xp.matrix_transpose(B), rows.sum_dtype) / (n / 4) - 1)
            mean, spread = _mean_and_spread(excess, xp=xp)
            curve.append(mean)
            converged = mean <= self.tol and spread <= allowed
            if converged or len(curve) == self.max_iter:
                break
            # Every pivot pushes every other along the line between them.
            force = excess / (2 * L)
            mix = mix + xp.sum(force, axis=1)[:, None] * mix - force @ mix
        self.loss_curve_, self.n_iter_, self.converged_ = curve, len(curve), converged
        if not converged:
            warn_caller(
                f"SpH stopped at max_iter={self.max_iter} with overlaps {mean:.2g} of a quarter away from it (spread "
                f"{spread:.2g}); tol={self.tol:g} allows {self.tol:.2g} and {allowed:.2g}. Raise max_iter "
                "or tol, or fit on more rows",
                ConvergenceWarning,
            )
        return mix, xp.astype(t, rows.sum_dtype)

    def _map(self, X: Any, function: Callable[[Array], Array]) -> Array:
        if is_dask(X):
            raise TypeError("SpH does not encode a Dask array; encode parts that fit in memory, or use another encoder")
        with self._opened(X, "pivots_", "radii_", "mean_") as (rows, *arrays):
            pivots, radii, mean = (rows.xp.astype(x, rows.dtype, copy=False) for x in arrays)
            result = _map_depths(rows, pivots, radii, mean, function)
        return self._returned(result, rows)


def _map_depths(rows: Rows, pivots: Array, radii: Array, mean: Array, function: Callable[[Array], Array]) -> Array:
    """Map ``function(radius - distance)`` over blocks of rows."""
    xp = rows.xp
    lengths = xp.sum(pivots * pivots, axis=1)

    def depths(scores: Array) -> Array:
        squared = lengths - 2 * scores
        return function(radii - xp.sqrt(xp.where(squared > 0, squared, xp.zeros_like(squared))))

    return rows.map_blocks(_closeness(pivots, mean, xp=xp), depths, where="X @ pivots")


def _closeness(pivots: Array, mean: Array, *, xp: ModuleType) -> Callable[[Array], Array]:
    """Make a function of rows: ``x . p - |x|^2 / 2``, which is ``|p|^2 / 2`` less half the squared distance.

    Rows x are centered by it, pivots p are already.
    """

    def score(X: Array) -> Array:
        X = X - mean
        return X @ xp.matrix_transpose(pivots) - (xp.sum(X * X, axis=1) / 2)[:, None]

    return score


def _first_pivots(rows: Rows, mean: Array, *, n_bits: int, rng: np.random.Generator) -> Array:
    """Return means (n_bits, d) of ten random rows each, about the mean of all."""
    n, d = rows.shape
    size = min(10, n)
    picks = np.stack([rng.choice(n, size, replace=False) for _ in range(n_bits)])
    pivots = rows.xp.zeros((n_bits, d), dtype=rows.sum_dtype, device=rows.device)
    start = 0
    for X in rows.blocks():
        pivot, pick = np.nonzero((picks >= start) & (picks < start + X.shape[0]))
        weights = np.zeros((n_bits, X.shape[0]))
        weights[pivot, picks[pivot, pick] - start] = 1 / size
        pivots = pivots + on_device(weights, rows) @ rows.xp.astype(X, rows.sum_dtype)
        start += X.shape[0]
    return pivots - mean


def _mean_and_spread(excess: Array, *, xp: ModuleType) -> tuple[float, float]:
    """Return the mean size and standard deviation of the off-diagonal entries, in one transfer; the diagonal is 0."""
    pairs = max(1, excess.shape[0] * (excess.shape[0] - 1))
    sums = xp.stack([xp.sum(xp.abs(excess)), xp.sum(excess), xp.sum(excess * excess)])
    size, mean, square = to_host(sums) / pairs
    return float(size), float(np.sqrt(max(0.0, square - mean**2)))
