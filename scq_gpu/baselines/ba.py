"""Binary autoencoder.

M. A. Carreira-Perpinan, R. Raziperchikolaei, "Hashing with binary autoencoders", Computer Vision and Pattern
Recognition, 2015.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from scq_gpu._validate import check_integer, check_real
from scq_gpu._xp import Array, device_of, from_host, row_slices
from scq_gpu.baselines.base import _LinearBaseline, principal_axes, projections
from scq_gpu.basis import Basis
from scq_gpu.codes import signs
from scq_gpu.rows import ProjectedRows, Rows
from scq_gpu.starts import draw_starts

EXACT_BITS = 12  # codes no longer than this are found by trying all of them
_SWEEPS = 10  # most rounds over the bits of longer codes
_HASH_STEPS = 10  # least-squares problems that stand for one SVM
_HASH_RIDGE = 1e-4  # against axes of hardly any variance; the leading n_bits have 1 on average
_DECODER_RIDGE = 1e-6  # against bits that are copies of each other
_BLOCK_FLOATS = 1 << 20


class BA(_LinearBaseline):
    r"""Binary autoencoder: a linear hash whose codes a linear decoder turns back into the rows [1]_.

    The method of auxiliary coordinates gives every row a code z of its own and minimises

    .. math:: \sum_x |x - f(z_x)|^2 + \mu |z_x - h(x)|^2

    over the decoder f, the hash h and the codes in turn, while mu grows until the hash gives the codes themselves. f is
    least squares. h, for each bit, is a linear support vector machine with squared hinge loss, solved by repeated least
    squares. Codes are found exactly, by trying all, up to 12 bits, and by alternating over the bits from the codes
    before for more.

    Parameters
    ----------
    n_bits : int, default=32
        At most the rank of the centred rows.
    n_components : int, default=512
        Principal components to keep, at most: what is to be reconstructed.
    mu : float, default=0.05
        The first penalty; rows are scaled so that the leading ``n_bits`` components have unit variance on average.
    growth : float, default=1.5
        What mu is multiplied by after each iteration.
    max_iter : int, default=30
        Most iterations.
    device : {None, "cpu", "cuda", "cuda:1", ...}, default=None
        Where to work; None follows X.
    random_state : int, Generator or None, default=None
        Seed of the start, which is ITQ's codes, the same on every backend.

    Attributes
    ----------
    components_ : array (n_bits, n_features)
        Bit k is ``x . components_[k] >= threshold_[k]``.
    threshold_ : array (n_bits,)
    mean_ : array (n_features,)
    levels_ : array (n_bits, 2)
        Mean projection of the training rows whose bit is 0, and 1.
    scale_ : float
    loss_curve_ : list of float
        Mean squared error of rows rebuilt from their codes, by the best decoder for them: that of the start, then that
        of the best hash so far after each iteration. An SVM minimises something else, so a step can raise the error;
        the hash of least error is kept.
    n_iter_ : int
    converged_ : bool
        Whether the hash gave the codes themselves in the end.
    n_features_in_, n_samples_ : int

    Notes
    -----
    The projected rows are kept in memory during the fit.

    References
    ----------
    .. [1] M. A. Carreira-Perpinan, R. Raziperchikolaei, "Hashing with binary autoencoders", CVPR 2015.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import scq_gpu as scq
    >>> X, _ = load_digits(return_X_y=True)
    >>> encoder = scq.BA(n_bits=8, n_components=32, random_state=0).fit(X)
    >>> encoder.loss_curve_[0] > encoder.loss_curve_[-1]
    True
    """

    scale_: float
    loss_curve_: list[float]
    n_iter_: int
    converged_: bool
    _fitted_facts = (*_LinearBaseline._fitted_facts, "scale_", "loss_curve_", "n_iter_", "converged_")

    def __init__(
        self,
        n_bits: int = 32,
        *,
        n_components: int = 512,
        mu: float = 0.05,
        growth: float = 1.5,
        max_iter: int = 30,
        device: str | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_bits = n_bits
        self.n_components = n_components
        self.mu = mu
        self.growth = growth
        self.max_iter = max_iter
        self.device = device
        self.random_state = random_state

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_integer(self.n_components, name="n_components", minimum=1)
        check_real(self.mu, name="mu", minimum=0, strict=True)
        check_real(self.growth, name="growth", minimum=1, strict=True)
        check_integer(self.max_iter, name="max_iter", minimum=1)

    def _learn(self, rows: Rows) -> None:
        xp = rows.xp
        basis = principal_axes(rows, n_bits=self.n_bits, n_components=self.n_components, scale="auto")
        P = basis.P * basis.scale
        Y = projections(rows, P, basis.mean @ P)
        V = self._start(Y, basis, rows)
        hash_ = _Hash(V, xp.zeros((self.n_bits,), dtype=rows.small, device=rows.device))
        hash_ = self._alternate(_Codes(Y, basis.lam, n_bits=self.n_bits, small=rows.small, xp=xp), hash_)
        W, t = basis.fold(hash_.V)
        self._keep_map(rows, W, t - hash_.c, basis.mean)
        self.scale_ = basis.scale

    def _start(self, Y: Array, basis: Basis, rows: Rows) -> Array:
        """ITQ's map (D, n_bits)."""
        blocks = [Y[part, :] for part in row_slices(Y.shape[0], max(1, _BLOCK_FLOATS // Y.shape[1]))]
        projected = ProjectedRows(blocks, small=rows.small, xp=rows.xp)
        seed = self.random_state
        V = draw_starts("itq", basis, projected, n_bits=self.n_bits, n_init=1, random_state=seed, xp=rows.xp)
        return V[0, ...]

    def _alternate(self, codes: _Codes, hash_: _Hash) -> _Hash:
        """The hash of least error on the way of growing mu."""
        codes.hash_rows(hash_)
        curve, best = [codes.hash_error(hash_)], hash_
        mu, converged = self.mu, False
        while len(curve) <= self.max_iter and not converged:
            decoder = codes.fit_decoder()
            hash_ = codes.fit_hash(hash_)
            converged = codes.improve(decoder, hash_, mu)
            error = codes.hash_error(hash_)
            if error < curve[-1]:
                best = hash_
            curve.append(min(error, curve[-1]))
            mu *= self.growth
        self.loss_curve_, self.n_iter_, self.converged_ = curve, len(curve) - 1, converged
        if not converged:
            warnings.warn(
                f"BA stopped at max_iter={self.max_iter} before its hash gave the codes themselves (mu was "
                f"{mu / self.growth:.3g}); raise max_iter or growth",
                ConvergenceWarning,
                stacklevel=5,
            )
        return best


@dataclass(frozen=True)
class _Hash:
    """``h(y) = sign(y V + c)`` of projected rows y."""

    V: Array  # (D, L)
    c: Array  # (L,)


@dataclass(frozen=True)
class _Decoder:
    """``f(z) = z A + a``, and its mean squared error."""

    A: Array  # (L, D)
    a: Array  # (D,)
    error: float


class _Codes:
    """Projected rows Y (n, D) with covariance diag(lam), the codes Z (n, L) they have now, and the steps of BA."""

    def __init__(self, Y: Array, lam: Array, *, n_bits: int, small: Any, xp: ModuleType) -> None:
        self.Y, self.lam, self.L, self.small, self.xp = Y, lam, n_bits, small, xp
        self.Z: list[Array] = []

    def _zeros(self, shape: tuple[int, ...]) -> Array:
        return self.xp.zeros(shape, dtype=self.small, device=device_of(self.Y))

    def _blocks(self) -> Iterator[Array]:
        parts = row_slices(self.Y.shape[0], max(1, _BLOCK_FLOATS // self.Y.shape[1]))
        return (self.Y[part, :] for part in parts)

    def hash_rows(self, hash_: _Hash) -> None:
        """Give every row the code that the hash gives it."""
        self.Z = list(self._hashed(hash_))

    def _scores(self, hash_: _Hash) -> Iterator[Array]:
        V, c = (self.xp.astype(x, self.Y.dtype) for x in (hash_.V, hash_.c))
        return (Y @ V + c for Y in self._blocks())

    def _hashed(self, hash_: _Hash) -> Iterator[Array]:
        return (signs(scores >= 0, dtype=self.Y.dtype, xp=self.xp) for scores in self._scores(hash_))

    def fit_decoder(self) -> _Decoder:
        """The f step: least squares."""
        return self._decoder_for(iter(self.Z))

    def hash_error(self, hash_: _Hash) -> float:
        """Mean squared error of the best decoder for the codes of a hash."""
        return self._decoder_for(self._hashed(hash_)).error

    def _decoder_for(self, codes: Iterator[Array]) -> _Decoder:
        xp, n = self.xp, self.Y.shape[0]
        z, ZZ, ZY = (self._zeros(shape) for shape in ((self.L,), (self.L, self.L), (self.L, self.Y.shape[1])))
        for Y, Z in zip(self._blocks(), codes, strict=True):
            z = z + xp.astype(xp.sum(Z, axis=0), self.small) / n
            ZZ = ZZ + xp.astype(xp.matrix_transpose(Z) @ Z, self.small) / n
            ZY = ZY + xp.astype(xp.matrix_transpose(Z) @ Y, self.small) / n  # Y is centred: no term of means
        ridge = _DECODER_RIDGE * xp.eye(self.L, dtype=self.small, device=device_of(self.Y))
        A = xp.linalg.solve(ZZ - z[:, None] * z + ridge, ZY)
        return _Decoder(A, -(z @ A), float(xp.sum(self.lam) - xp.sum(A * ZY)))

    def fit_hash(self, hash_: _Hash) -> _Hash:
        r"""The h step: an SVM for each bit, from the last ones.

        The squared hinge :math:`\max(0, 1 - z s)^2` lies below :math:`(t - s)^2` with t = z for scores short of the
        margin and t = s, the score now, for those beyond, and touches it at s: least squares to t lowers it.
        """
        xp, n = self.xp, self.Y.shape[0]
        for _ in range(_HASH_STEPS):
            YT, total = self._zeros((self.Y.shape[1], self.L)), self._zeros((self.L,))
            for Y, Z, scores in zip(self._blocks(), self.Z, self._scores(hash_), strict=True):
                T = xp.where(Z * scores < 1, Z, scores)
                YT = YT + xp.astype(xp.matrix_transpose(Y) @ T, self.small) / n
                total = total + xp.astype(xp.sum(T, axis=0), self.small) / n
            hash_ = _Hash(YT / (self.lam + _HASH_RIDGE)[:, None], total)
        return hash_

    def improve(self, decoder: _Decoder, hash_: _Hash, mu: float) -> bool:
        """The Z step; True if the hash gives all the codes."""
        xp = self.xp
        A, a = (xp.astype(x, self.Y.dtype) for x in (decoder.A, decoder.a))
        G = A @ xp.matrix_transpose(A)
        agree = []
        for place, (Y, H) in enumerate(zip(self._blocks(), self._hashed(hash_), strict=True)):
            pull = (Y - a) @ xp.matrix_transpose(A) + mu * H
            self.Z[place] = nearest_codes(pull, G, self.Z[place], xp=xp)
            agree.append(xp.all(self.Z[place] == H))
        return bool(xp.all(xp.stack(agree)))


def nearest_codes(pull: Array, G: Array, Z: Array, *, xp: ModuleType) -> Array:
    """Codes z of -1 and +1 of least ``z G z' - 2 z pull'``, for each row of ``pull`` (m, L); never worse than Z."""
    L = pull.shape[1]
    if L <= EXACT_BITS:
        codes = from_host(np.where(np.arange(2**L)[:, None] >> np.arange(L) & 1, 1.0, -1.0), xp=xp, device=device_of(Z))
        codes = xp.astype(codes, Z.dtype)
        cost = xp.sum((codes @ G) * codes, axis=1)
        parts = row_slices(pull.shape[0], max(1, _BLOCK_FLOATS // 2**L))
        best = [xp.argmin(cost - 2 * (pull[part, :] @ xp.matrix_transpose(codes)), axis=1) for part in parts]
        return xp.take(codes, xp.concat(best, axis=0), axis=0)
    apart = G * (1 - xp.eye(L, dtype=G.dtype, device=device_of(G)))
    pull = xp.asarray(xp.matrix_transpose(pull), copy=True)
    codes = xp.asarray(xp.matrix_transpose(Z), copy=True)  # a bit a row: each is set for all rows at once
    for _ in range(_SWEEPS):
        before = xp.asarray(codes, copy=True)
        for k in range(L):
            codes[k, :] = signs(pull[k, :] >= apart[k, :] @ codes, dtype=Z.dtype, xp=xp)
        if bool(xp.all(codes == before)):
            break
    return xp.matrix_transpose(codes)
