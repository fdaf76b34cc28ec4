"""From the moments of the rows to the coordinates in which everything else is computed."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from scq_gpu._xp import Array, to_host

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
    """Principal axes and the scale: a row x becomes ``scale * (x - mean) @ P``, with covariance diag(lam)."""

    mean: Array  # (d,)
    P: Array  # (d, D), orthonormal columns, by falling variance
    lam: Array  # (D,), of the scaled rows
    scale: float

    @property
    def eigenvalues(self) -> Array:
        """Variances along the axes before scaling."""
        return self.lam / self.scale**2

    def fold(self, V: Array) -> tuple[Array, Array]:
        """The encoder that ships: ``W = s P V`` (d, L) and ``t = mean' W`` (L,)."""
        W = (self.P * self.scale) @ V
        return W, self.mean @ W


def compute_basis(
    moments: Moments, *, n_bits: int, n_components: int | None, scale: float | str, eps: float, xp: ModuleType
) -> Basis:
    """Centre, keep the leading principal axes, choose the scale.

    Parameters
    ----------
    moments : Moments
    n_bits : int
        L: at least as many axes must be left.
    n_components : int or None
        How many axes to keep at most; None keeps all that carry variance.
    scale : float or "auto"
        "auto" is Eq. (scale), ``sqrt(L / sum of the L largest eigenvalues)``.
    eps : float
        Machine epsilon of the products in the moments, which decides what counts as no variance at all.
    """
    n, d = moments.n, moments.mean.shape[0]
    covariance = moments.scatter / n
    lam, P = xp.linalg.eigh((covariance + xp.matrix_transpose(covariance)) / 2)
    lam, P = xp.flip(lam, axis=0), xp.flip(P, axis=1)
    P = xp.where(xp.max(P, axis=0) >= -xp.min(P, axis=0), P, -P)  # signs fixed: the largest entry is positive

    variances, means, spectrum = (to_host(x) for x in (xp.linalg.diagonal(covariance), moments.mean, lam))
    varying = int(np.count_nonzero(variances > (eps * means) ** 2))
    if not varying:
        raise ValueError(f"X has {n} equal rows: nothing to learn from; check that the right columns were passed")
    rank = min(int(np.count_nonzero(spectrum > _NOISE * eps * spectrum[0])), n - 1)
    wanted = d if n_components is None else n_components
    D = min(wanted, rank)
    if D < min(wanted, varying):
        warnings.warn(
            f"X ({n} rows, {d} features) has rank {rank}: keeping {D} components of {min(wanted, varying)}",
            stacklevel=7,
        )
    if n_bits > D:
        more = f" or raise n_components (now {n_components})" if wanted < n_bits else ""
        raise ValueError(
            f"n_bits={n_bits} exceeds the {D} dimensions left after PCA of {n} rows x {d} features (rank {rank}); "
            f"lower n_bits{more}"
        )
    s = float(np.sqrt(n_bits / spectrum[:n_bits].sum())) if scale == "auto" else float(scale)
    return Basis(moments.mean, P[:, :D], lam[:D] * s**2, s)
