"""Linear baselines: signs of random (LSH), principal (PCAH) or rotated axes (PCARR, ITQ). Passes that all share."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from scq_gpu._core.arrays import Array, from_host, generator, row_slices
from scq_gpu.encoders.base import POSITIVE_INTEGER, LinearEncoder
from scq_gpu.kernels.linalg import polar
from scq_gpu.rows.basis import Basis, compute_basis
from scq_gpu.rows.blocks import Rows
from scq_gpu.training.joint import rotation_step
from scq_gpu.training.loop import Passes, Run, train


def principal_axes(rows: Rows, *, n_bits: int, n_components: int, scale: float | None = None) -> Basis:
    """Compute the leading axes of the rows, in one moments pass."""
    xp = rows.xp
    eps = float(xp.finfo(rows.dtype).eps)
    return compute_basis(rows.moments(), n_bits=n_bits, n_components=n_components, scale=scale, eps=eps, xp=xp)


def projections(rows: Rows, W: Array, t: Array) -> Array:
    """Return ``X @ W - t`` of all rows (n, k), in memory, for training in many passes."""
    W, t = (rows.xp.astype(x, rows.dtype) for x in (W, t))
    return rows.map_blocks(lambda X: X @ W, lambda scores: scores - t, where="X @ W")


def blocks_of(n: int, floats: int) -> Any:
    """Cut n rows into slices that take about a million floats, if a row takes ``floats``."""
    return row_slices(n, max(1, (1 << 20) // floats))


def random_rotation(n_bits: int, random_state: Any, rows: Rows) -> Array:
    """Draw a rotation (n_bits, n_bits) uniformly: the one nearest to a matrix of normals."""
    return polar(on_device(generator(random_state).standard_normal((n_bits, n_bits)), rows), xp=rows.xp)


def train_rotation(rows: Passes, lam: Array, R: Array, *, iterations: int, xp: ModuleType) -> Run:
    """Run ITQ from a rotation R: signs, and the rotation nearest to them, in turn."""
    step = rotation_step(xp=xp, ahead=False)
    (run,) = train(rows, lam, R[None, ...], step=step, tol=0.0, iterations=range(iterations), xp=xp)
    return run


def mean_row(rows: Rows) -> Array:
    """Return the mean of the rows (d,)."""
    sums = rows.map_blocks(
        lambda X: X, lambda X: rows.xp.sum(X, axis=0, dtype=rows.sum_dtype)[None, :], where="the mean of X"
    )
    return rows.xp.sum(sums, axis=0) / rows.shape[0]


def mean_levels(map_scores: Callable[[Callable[[Array], Array]], Array], rows: Rows) -> Array:
    """Return the mean score (n_bits, 2) of the rows whose bit is 0, and 1.

    ``map_scores(f)`` joins f of every block of scores.
    """
    xp = rows.xp

    # Sums of the scores where the bit is 0 and 1, and the numbers of those rows: (1, 4, n_bits).
    def sums(scores: Array) -> Array:
        scores = xp.astype(scores, rows.sum_dtype)
        bits = xp.astype(scores >= 0, rows.sum_dtype)
        one, ones = xp.sum(scores * bits, axis=0), xp.sum(bits, axis=0)
        return xp.stack([xp.sum(scores, axis=0) - one, one, scores.shape[0] - ones, ones])[None, ...]

    total = xp.sum(map_scores(sums), axis=0)
    counts = total[2:, :]
    return xp.matrix_transpose(total[:2, :] / xp.where(counts > 0, counts, xp.ones_like(counts)))


def on_device(x: np.ndarray, rows: Rows) -> Array:
    """Move a host array to where the rows are, in the type of sums."""
    return rows.xp.astype(from_host(x, xp=rows.xp, device=rows.device), rows.sum_dtype)


class _LinearBaseline(LinearEncoder):
    """A linear map from a method of others."""

    _fitted_arrays: tuple[str, ...] = ("components_", "threshold_", "mean_", "levels_")
    _fitted_facts: tuple[str, ...] = ("n_features_in_", "n_samples_")

    def _keep_map(self, rows: Rows, W_t: Array, t: Array, mean: Array) -> None:
        """Set the fitted arrays: W' (n_bits, d), t (n_bits,), the mean (d,), and the levels, which take a pass."""
        levels = mean_levels(lambda f: rows.map_scores(W_t.T, t, lambda scores, t: f(scores - t)), rows)
        arrays = (rows.xp.astype(x, rows.dtype) for x in (W_t, t, mean, levels))
        self.components_, self.threshold_, self.mean_, self.levels_ = arrays


class LSH(_LinearBaseline):
    """Locality-sensitive hashing: the signs of random projections of the centered rows.

    Two rows share a bit with probability ``1 - angle / pi``, where the angle is seen from the mean of the training rows
    [1]_. Only that mean is learned. Without it, features of one sign, such as those behind a ReLU, would have nearly
    all bits equal.

    Parameters
    ----------
    n_bits : int, default=32
        Any number, also more than there are features.
    device, random_state
        As in `PCARR`.

    Attributes
    ----------
    components_ : array (n_bits, n_features)
        Independent standard normals: bit k is ``x . components_[k] >= threshold_[k]``.
    threshold_, mean_, levels_, n_features_in_, n_samples_
        As in `OgE`.

    References
    ----------
    .. [1] M. S. Charikar, "Similarity estimation techniques from rounding algorithms", STOC 2002.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import scq_gpu as scq
    >>> X, _ = load_digits(return_X_y=True)
    >>> scq.LSH(n_bits=32, random_state=0).fit(X).encode(X).shape
    (1797, 4)
    """

    def __init__(self, n_bits: int = 32, *, device: str | None = None, random_state: Any = None) -> None:
        super().__init__(n_bits, device=device)
        self.random_state = random_state

    def _learn(self, rows: Rows) -> None:
        W = on_device(generator(self.random_state).standard_normal((rows.shape[1], self.n_bits)), rows)
        mean = mean_row(rows)
        self._keep_map(rows, W.T, mean @ W, mean)


class PCAH(_LinearBaseline):
    """PCA hashing: the signs of the leading principal components [1]_.

    The first bits carry most of the variance and the last ones little, but all count alike in a Hamming distance:
    codes get worse with length. A rotation (`PCARR`, `ITQ`) fixes that.

    Parameters
    ----------
    n_bits : int, default=32
        At most the rank of the centered rows.
    device : {None, "cpu", "cuda", "cuda:1", ...}, default=None
        Where to work; None follows X.

    Attributes
    ----------
    components_ : array (n_bits, n_features)
        The principal axes, rotated (or not), times ``scale_``: bit k is ``x . components_[k] >= threshold_[k]``.
    threshold_, mean_, levels_, n_features_in_, n_samples_
        As in `OgE`.
    eigenvalues_ : array (n_bits,)
        Variances along the axes.
    scale_ : float
        As for `OnE`; it changes no bit, and makes quantization losses comparable.

    References
    ----------
    .. [1] B. Wang, Z. Li, M. Li, W.-Y. Ma, "Large-scale duplicate detection for web image search", ICME 2006.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import scq_gpu as scq
    >>> X, _ = load_digits(return_X_y=True)
    >>> scq.PCAH(n_bits=16).fit(X).encode(X).shape
    (1797, 2)
    """

    _fitted_arrays = (*_LinearBaseline._fitted_arrays, "eigenvalues_")
    _fitted_facts = (*_LinearBaseline._fitted_facts, "scale_")

    def _learn(self, rows: Rows) -> None:
        basis = principal_axes(rows, n_bits=self.n_bits, n_components=self.n_bits)
        W_t, t = basis.fold(self._rotation(rows, basis))
        self._keep_map(rows, W_t, t, basis.mean)
        self.eigenvalues_ = rows.xp.astype(basis.eigenvalues, rows.dtype)
        self.scale_ = basis.scale

    def _rotation(self, rows: Rows, basis: Basis) -> Array:
        """Return the rotation (n_bits, n_bits) of the axes."""
        return rows.xp.eye(self.n_bits, dtype=rows.sum_dtype, device=rows.device)


class PCARR(PCAH):
    """PCA and a random rotation: the signs of the leading principal components, rotated so that all weigh alike [1]_.

    The start of `ITQ`, and much of its gain over `PCAH`.

    Parameters
    ----------
    n_bits, device
        As in `PCAH`.
    random_state : int, Generator or None, default=None
        Seed of all random numbers, the same on every backend.

    Attributes
    ----------
    components_, threshold_, mean_, eigenvalues_, scale_, levels_, n_features_in_, n_samples_
        As in `PCAH`.

    References
    ----------
    .. [1] H. Jegou, M. Douze, C. Schmid, P. Perez, "Aggregating local descriptors into a compact image
           representation", CVPR 2010.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import scq_gpu as scq
    >>> X, _ = load_digits(return_X_y=True)
    >>> scq.PCARR(n_bits=16, random_state=0).fit(X).encode(X).shape
    (1797, 2)
    """

    def __init__(self, n_bits: int = 32, *, device: str | None = None, random_state: Any = None) -> None:
        super().__init__(n_bits, device=device)
        self.random_state = random_state

    def _rotation(self, rows: Rows, basis: Basis) -> Array:
        return random_rotation(self.n_bits, self.random_state, rows)


class ITQ(PCARR):
    """Iterative quantization: principal components, rotated so that their signs lose least [1]_.

    Minimizes ``||B - XR||^2`` over signs B and rotations R in turn, from a random rotation. X holds the leading
    ``n_bits`` principal components of all rows, none of them normalized.

    Parameters
    ----------
    n_bits, device, random_state
        As in `PCARR`.
    max_iter : int, default=50
        Number of iterations; the default is the authors'.

    Attributes
    ----------
    components_, threshold_, mean_, eigenvalues_, scale_, levels_, n_features_in_, n_samples_
        As in `PCAH`.
    loss_curve_ : list of float
        ``||B - XR||^2 / n`` of the scaled rows after each iteration.
    n_iter_ : int

    See Also
    --------
    OnE : The same loss with axes that are learned too.

    References
    ----------
    .. [1] Y. Gong, S. Lazebnik, "Iterative quantization: A Procrustean approach to learning binary codes", CVPR 2011.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import scq_gpu as scq
    >>> X, _ = load_digits(return_X_y=True)
    >>> encoder = scq.ITQ(n_bits=16, random_state=0).fit(X)
    >>> encoder.loss_curve_[0] > encoder.loss_curve_[-1]
    True
    """

    _fitted_facts = (*PCARR._fitted_facts, "loss_curve_", "n_iter_")
    _parameter_constraints: ClassVar = {"max_iter": POSITIVE_INTEGER}

    def __init__(
        self, n_bits: int = 32, *, max_iter: int = 50, device: str | None = None, random_state: Any = None
    ) -> None:
        super().__init__(n_bits, device=device, random_state=random_state)
        self.max_iter = max_iter

    def _rotation(self, rows: Rows, basis: Basis) -> Array:
        R = super()._rotation(rows, basis)
        run = train_rotation(rows.project(basis), basis.lam, R, iterations=self.max_iter, xp=rows.xp)
        self.loss_curve_, self.n_iter_ = run.losses, len(run.losses)
        return run.V
