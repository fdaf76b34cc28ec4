"""From the moments of the rows to the coordinates in which everything else is computed."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import numpy as np

from scq_gpu._core.arrays import Array, device_of, from_host, namespace, to_host
from scq_gpu._core.interrupt import interruptible
from scq_gpu._core.warn import warn_caller

_LONG = 256  # features from which finding the axes takes longer than somebody at a keyboard would wait
_NOISE = 16  # rounding leaves eigenvalues of up to 2 eps lam_max where there is no variance


@dataclass(frozen=True)
class Moments:
    """What one pass over the rows leaves: their number, mean (d,) and scatter ``sum (x - mean)(x - mean)'`` (d, d).

    Two of them add up to the moments of all their rows (Chan, Golub and LeVeque, 1979), whoever ran the passes.
    """

    n: int
    mean: Array
    scatter: Array

    def __add__(self, other: Moments) -> Moments:
        n = self.n + other.n
        shift = other.mean - self.mean
        between = shift[:, None] * (shift * (self.n * other.n / n))
        return Moments(n, self.mean + shift * (other.n / n), self.scatter + other.scatter + between)

    @staticmethod
    def of_block(X: Array, *, dtype: object, xp: ModuleType) -> Moments:
        """Moments of a block: products in its own float type, about its own mean, kept in ``dtype``."""
        n = X.shape[0]
        about = xp.mean(X, axis=0)
        X = X - about
        left = xp.astype(xp.sum(X, axis=0), dtype)  # what rounding left of the mean
        scatter = xp.astype(xp.matrix_transpose(X) @ X, dtype) - left[:, None] * (left / n)
        return Moments(n, xp.astype(about, dtype) + left / n, scatter)


@dataclass(frozen=True)
class Basis:
    """Coordinates and their scale: a row x becomes ``scale * (x - mean) @ P``, with covariance diag(lam)."""

    mean: Array  # (d,)
    P: Array  # (d, D): the principal axes, of the length of their weight; stretched, other columns of the same span
    lam: Array  # (D,), falling
    scale: float
    eigenvalues: Array  # (D,): variances of the rows along the principal axes, neither scaled nor weighted

    def fold(self, V: Array) -> tuple[Array, Array]:
        """The encoder that ships: ``W' = (s P V)'`` (L, d), row-major, and ``t = W' mean`` (L,)."""
        W_t = V.T @ (self.P * self.scale).T
        return W_t, W_t @ self.mean

    def coordinates(self, W: Array) -> Array:
        """V (D, L) whose map is as near to W (d, L), in the coordinates of the centered rows, as the axes allow."""
        return namespace(W).linalg.solve(self.P.T @ self.P, self.P.T @ W)


def flattening(variances: np.ndarray, n_bits: int) -> np.ndarray:
    """Weights (D,) of the axes that flatten those of much more variance than the average of the first n_bits.

    ``(1 + lam / 4) ** (-1/8)`` with lam relative to that average: signs lose most along axes that stand out, and the
    tail is left alone (docs/theory.md).
    """
    relative = variances / variances[:n_bits].mean()
    weights: np.ndarray = (1 + relative / 4) ** -0.125
    return weights


def compute_basis(
    moments: Moments,
    *,
    n_bits: int,
    n_components: int | None,
    eps: float,
    xp: ModuleType,
    scale: float | None = None,
    scale_factor: float = 1.0,
    flatten: bool = False,
    asked: bool = False,
) -> Basis:
    """Center, keep the leading principal axes, choose the scale.

    Parameters
    ----------
    moments : Moments
    n_bits : int
        L: at least as many axes must be left.
    n_components : int or None
        How many axes to keep at most; None keeps all that carry variance.
    eps : float
        Machine epsilon of the products in the moments, which decides what counts as no variance at all.
    scale : float, optional
        None is Eq. (scale), ``sqrt(L / sum of the L largest variances)``, times ``scale_factor``.
    flatten : bool
        Whether to weight the axes by `flattening`.
    asked : bool
        Whether ``n_components`` was somebody's wish, so that fewer deserve a warning.
    """
    n, d = moments.n, moments.mean.shape[0]
    covariance = moments.scatter / n
    symmetric = (covariance + xp.matrix_transpose(covariance)) / 2
    large = isinstance(symmetric, np.ndarray) and d >= _LONG
    lam, P = interruptible(xp.linalg.eigh, symmetric) if large else xp.linalg.eigh(symmetric)
    lam, P = _falling(lam, P, xp=xp)

    variances, means, spectrum = (to_host(x) for x in (xp.linalg.diagonal(covariance), moments.mean, lam))
    varying = int(np.count_nonzero(variances > (eps * means) ** 2))
    if not varying:
        raise equal_rows_error(n, means)
    if spectrum[0] < np.finfo(spectrum.dtype).tiny / np.finfo(spectrum.dtype).eps:  # digits are lost in its squares
        raise ValueError(
            f"X is too small: its largest variance is {spectrum[0]:.1g}, of which {spectrum.dtype} keeps few digits. "
            "Scale X up"
        )
    rank = min(int(np.count_nonzero(spectrum > _NOISE * eps * spectrum[0])), n - 1)
    wanted = d if n_components is None else n_components
    D = min(wanted, rank)
    if asked and D < min(wanted, varying):
        warn_caller(f"X ({n} rows, {d} features) has rank {rank}: keeping {D} components of {min(wanted, varying)}")
    if n_bits > D:
        more = f" or raise n_components (now {n_components})" if wanted < n_bits else ""
        raise ValueError(
            f"n_bits={n_bits} exceeds the {D} dimensions left after PCA of {n} rows x {d} features (rank {rank}); "
            f"lower n_bits{more}"
        )
    weights = flattening(spectrum[:D], n_bits) if flatten else np.ones(D)
    variances = spectrum[:D] * weights**2
    s = scale_factor * float(np.sqrt(n_bits / variances[:n_bits].sum())) if scale is None else float(scale)
    w = xp.astype(from_host(weights, xp=xp, device=device_of(lam)), lam.dtype)
    return Basis(moments.mean, P[:, :D] * w, lam[:D] * (w * s) ** 2, s, lam[:D])


def stretch(basis: Basis, Q: Array, by: float, *, n_bits: int, rescale: bool, xp: ModuleType) -> tuple[Basis, Array]:
    """The basis after rows are drawn apart along orthonormal directions Q (D, K), and the matrix R (D, D) that does it.

    Coordinates y become ``y (I + by QQ')``, then turn to where their covariance is diagonal and, with ``rescale``, get
    back the mean variance that their first n_bits had: all in all ``y R``.
    """
    lam = basis.lam
    A = xp.eye(lam.shape[0], dtype=lam.dtype, device=device_of(lam)) + by * (Q @ Q.T)
    stretched, E = _falling(*xp.linalg.eigh(A @ (lam[:, None] * A)), xp=xp)
    ratio = float(xp.sum(lam[:n_bits])) / float(xp.sum(stretched[:n_bits])) if rescale else 1.0
    factor = ratio**0.5
    R = A @ E
    return Basis(basis.mean, basis.P @ R, stretched * ratio, basis.scale * factor, basis.eigenvalues), R * factor


def _falling(lam: Array, P: Array, *, xp: ModuleType) -> tuple[Array, Array]:
    """Eigenvalues from the largest on, and their vectors with the largest entry positive."""
    lam, P = xp.flip(lam, axis=0), xp.flip(P, axis=1)
    return lam, xp.where(xp.max(P, axis=0) >= -xp.min(P, axis=0), P, -P)


def equal_rows_error(n: int, mean: np.ndarray) -> ValueError:
    """Rows without variance; where their mean is tiny too, it may be that squares of them are 0."""
    tiny = float(np.abs(mean).max()) ** 2 < np.finfo(mean.dtype).tiny
    maybe = f", or values too small to be squared in {mean.dtype}" if tiny and mean.any() else ""
    return ValueError(f"X has {n} equal rows{maybe}: nothing to learn from; check that the right columns were passed")
