"""The moments of the rows, and the coordinates in which everything else is computed."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import numpy as np

from scq_gpu._core.arrays import Array, device_of, from_host, namespace, to_host
from scq_gpu._core.machine import interruptible
from scq_gpu._core.messages import warn_caller


@dataclass(frozen=True)
class Moments:
    """Number of rows, mean (d,) and scatter ``sum (x - mean)(x - mean)'`` (d, d), the result of one pass.

    Two of them add up to the moments of all their rows (Chan, Golub and LeVeque, 1979).
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
        """Compute the moments of a block: products in its own float type, about its own mean, kept in ``dtype``."""
        n = X.shape[0]
        about = xp.mean(X, axis=0)
        X = X - about
        # rounding leaves a little of the mean
        left = xp.astype(xp.sum(X, axis=0), dtype)
        scatter = xp.astype(xp.matrix_transpose(X) @ X, dtype) - left[:, None] * (left / n)
        return Moments(n, xp.astype(about, dtype) + left / n, scatter)


@dataclass(frozen=True)
class Basis:
    """Coordinates and their scale: a row x becomes ``scale * (x - mean) @ P``, with covariance diag(lam)."""

    mean: Array  # (d,)
    P: Array  # (d, D): the principal axes, of the length of their weight
    lam: Array  # (D,), falling
    scale: float
    eigenvalues: Array  # (D,): variances of the rows along the principal axes, neither scaled nor weighted

    def fold(self, V: Array) -> tuple[Array, Array]:
        """Fold V into the encoder that ships: ``W' = (s P V)'`` (L, d), row-major, and ``t = W' mean`` (L,)."""
        W_t = V.T @ (self.P * self.scale).T
        return W_t, W_t @ self.mean

    def coordinates(self, W: Array) -> Array:
        """Find the V (D, L) whose map is nearest to W (d, L), in the coordinates of the centered rows."""
        return namespace(W).linalg.solve(self.P.T @ self.P, self.P.T @ W)


def flattening(variances: np.ndarray, n_bits: int) -> np.ndarray:
    """Return weights (D,) that flatten axes of much more variance than the average of the first n_bits.

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
    """Center, keep the leading principal axes, weighted by `flattening` if ``flatten``, and choose the scale.

    At most ``n_components`` axes are kept, or all that carry variance; at least L = ``n_bits`` must be left. If
    ``n_components`` was ``asked`` for explicitly, keeping fewer warns. ``eps`` is the machine epsilon of the products
    in the moments, which decides what counts as no variance at all. A ``scale`` of None is Eq. (scale), ``sqrt(L / sum
    of the L largest variances)``, times ``scale_factor``.
    """
    n, d = moments.n, moments.mean.shape[0]
    covariance = moments.scatter / n
    symmetric = (covariance + xp.matrix_transpose(covariance)) / 2
    # from 256 features on, finding the axes takes longer than an interrupt should have to wait
    large = isinstance(symmetric, np.ndarray) and d >= 256
    lam, P = interruptible(xp.linalg.eigh, symmetric) if large else xp.linalg.eigh(symmetric)
    # from the largest eigenvalue on, the largest entry of each vector positive
    lam, P = xp.flip(lam, axis=0), xp.flip(P, axis=1)
    P = xp.where(xp.max(P, axis=0) >= -xp.min(P, axis=0), P, -P)

    variances, means, spectrum = (to_host(x) for x in (xp.linalg.diagonal(covariance), moments.mean, lam))
    varying = int(np.count_nonzero(variances > (eps * means) ** 2))
    if not varying:
        raise equal_rows_error(n, means)
    # squares of smaller numbers lose digits
    if spectrum[0] < np.finfo(spectrum.dtype).tiny / np.finfo(spectrum.dtype).eps:
        raise ValueError(
            f"X is too small: its largest variance is {spectrum[0]:.1g}, of which {spectrum.dtype} keeps few digits. "
            "Scale X up"
        )
    # rounding leaves eigenvalues of up to 2 eps lam_max where there is no variance
    rank = min(int(np.count_nonzero(spectrum > 16 * eps * spectrum[0])), n - 1)
    most = d if n_components is None else n_components
    D = min(most, rank)
    if asked and D < min(most, varying):
        warn_caller(f"X ({n} rows, {d} features) has rank {rank}: keeping {D} components of {min(most, varying)}")
    if n_bits > D:
        more = f" or raise n_components (now {n_components})" if most < n_bits else ""
        raise ValueError(
            f"n_bits={n_bits} exceeds the {D} dimensions left after PCA of {n} rows x {d} features (rank {rank}); "
            f"lower n_bits{more}"
        )
    weights = flattening(spectrum[:D], n_bits) if flatten else np.ones(D)
    variances = spectrum[:D] * weights**2
    s = scale_factor * float(np.sqrt(n_bits / variances[:n_bits].sum())) if scale is None else float(scale)
    w = xp.astype(from_host(weights, xp=xp, device=device_of(lam)), lam.dtype)
    return Basis(moments.mean, P[:, :D] * w, lam[:D] * (w * s) ** 2, s, lam[:D])


def equal_rows_error(n: int, mean: np.ndarray) -> ValueError:
    """Make the error for rows without variance, which may also be too small to be squared."""
    tiny = float(np.abs(mean).max()) ** 2 < np.finfo(mean.dtype).tiny
    maybe = f", or values too small to be squared in {mean.dtype}" if tiny and mean.any() else ""
    return ValueError(f"X has {n} equal rows{maybe}: nothing to learn from; check that the right columns were passed")
