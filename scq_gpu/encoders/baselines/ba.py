"""Binary autoencoder (Carreira-Perpinan and Raziperchikolaei, 2015)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from scq_gpu._core.arrays import Array, device_of, from_host, signs
from scq_gpu._core.messages import warn_caller
from scq_gpu.encoders.base import POSITIVE_INTEGER, real
from scq_gpu.encoders.baselines.base import (
    _LinearBaseline,
    blocks_of,
    on_device,
    principal_axes,
    projections,
    random_rotation,
    train_rotation,
)
from scq_gpu.rows.blocks import Rows
from scq_gpu.rows.projected import ProjectedRows

EXACT_BITS = 12
_HASH_RIDGE = 1e-4
"""Keeps axes of hardly any variance in check; the leading n_bits have a variance of 1 on average."""


class BA(_LinearBaseline):
    r"""Binary autoencoder: a linear hash whose codes a linear decoder turns back into the rows [1]_.

    The method of auxiliary coordinates gives every row a code z of its own and minimizes

    .. math:: \sum_x |x - f(z_x)|^2 + \mu |z_x - h(x)|^2

    over the decoder f, the hash h and the codes in turn, while mu grows until the hash gives the codes themselves. f is
    least squares. h is a linear support vector machine with squared hinge loss for each bit, solved by repeated least
    squares. Up to 12 bits, codes are found exactly, by trying all. Longer ones are improved by alternating over the
    bits. The projected rows are kept in memory during the fit.

    Parameters
    ----------
    n_bits, device, random_state
        As in `ITQ`, whose codes are the start.
    n_components : int, default=512
        Most principal components to keep and to reconstruct.
    mu : float, default=0.05
        The first penalty; rows are scaled so that the leading ``n_bits`` components have unit variance on average.
    growth : float, default=1.5
        Factor of mu after each iteration.
    max_iter : int, default=30
        Most iterations.

    Attributes
    ----------
    components_, threshold_, mean_, levels_, scale_, n_features_in_, n_samples_
        As in `PCAH`.
    loss_curve_ : list of float
        Mean squared error of rows rebuilt from their codes by the best decoder for them: at the start, then of the best
        hash so far after each iteration. An SVM minimizes another loss, so a step can raise the error; the hash of
        least error is kept.
    n_iter_ : int
    converged_ : bool
        True if the hash gave the codes themselves in the end.

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

    _fitted_facts = (*_LinearBaseline._fitted_facts, "scale_", "loss_curve_", "n_iter_", "converged_")
    _parameter_constraints: ClassVar = {
        **dict.fromkeys(("n_components", "max_iter"), POSITIVE_INTEGER),
        "mu": real(0, strict=True),
        "growth": real(1, strict=True),
    }

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
        super().__init__(n_bits, device=device)
        self.n_components = n_components
        self.mu = mu
        self.growth = growth
        self.max_iter = max_iter
        self.random_state = random_state

    def _learn(self, rows: Rows) -> None:
        xp, n_bits = rows.xp, self.n_bits
        basis = principal_axes(rows, n_bits=n_bits, n_components=self.n_components)
        P = basis.P * basis.scale
        Y = projections(rows, P, basis.mean @ P)
        blocks = [Y[part, :] for part in blocks_of(*Y.shape)]
        # The start is ITQ: the leading axes, rotated.
        leading = ProjectedRows([Y[:, :n_bits] for Y in blocks], sum_dtype=rows.sum_dtype, xp=xp)
        R = random_rotation(n_bits, self.random_state, rows)
        run = train_rotation(leading, basis.lam[:n_bits], R, iterations=50, xp=xp)
        V = on_device(np.eye(basis.lam.shape[0], n_bits), rows) @ run.V
        start = _Hash(V, xp.zeros((n_bits,), dtype=rows.sum_dtype, device=rows.device))
        hash_ = self._alternate(_Codes(blocks, basis.lam, start, xp=xp), start)
        W_t, t = basis.fold(hash_.V)
        self._keep_map(rows, W_t, t - hash_.c, basis.mean)
        self.scale_ = basis.scale

    def _alternate(self, codes: _Codes, hash_: _Hash) -> _Hash:
        """Return the hash of least error while mu grows."""
        curve, best = [codes.fit_decoder(codes.Z).error], hash_
        mu, converged = self.mu, False
        while len(curve) <= self.max_iter and not converged:
            decoder = codes.fit_decoder(codes.Z)
            hash_ = codes.fit_hash(hash_)
            converged = codes.improve(decoder, hash_, mu)
            error = codes.fit_decoder(codes.hashed(hash_)).error
            if error < curve[-1]:
                best = hash_
            curve.append(min(error, curve[-1]))
            mu *= self.growth
        self.loss_curve_, self.n_iter_, self.converged_ = curve, len(curve) - 1, converged
        if not converged:
            warn_caller(
                f"BA stopped at max_iter={self.max_iter} before its hash gave the codes themselves (mu was "
                f"{mu / self.growth:.3g}); raise max_iter or growth",
                ConvergenceWarning,
            )
        return best


class _Hash(NamedTuple):
    """``h(y) = sign(y V + c)`` of projected rows y."""

    V: Array  # (D, L)
    c: Array  # (L,)


class _Decoder(NamedTuple):
    """``f(z) = z A + a``, and its mean squared error."""

    A: Array  # (L, D)
    a: Array  # (D,)
    error: float


class _Codes:
    """Blocks of projected rows (m, D) with covariance diag(lam), their present codes Z (m, L), and the steps of BA.

    The hash ``start`` gives the first codes; sums have the type of lam.
    """

    def __init__(self, blocks: list[Array], lam: Array, start: _Hash, *, xp: ModuleType) -> None:
        self.blocks, self.lam, self.xp = blocks, lam, xp
        self.n, self.dtype = sum(Y.shape[0] for Y in blocks), blocks[0].dtype
        self.D, self.L = start.V.shape
        self.Z = list(self.hashed(start))

    def hashed(self, hash_: _Hash) -> Iterator[Array]:
        """Yield the codes that a hash gives the rows."""
        return (signs(scores >= 0, dtype=self.dtype, xp=self.xp) for scores in self._scores(hash_))

    def _scores(self, hash_: _Hash) -> Iterator[Array]:
        V, c = (self.xp.astype(x, self.dtype) for x in hash_)
        return (Y @ V + c for Y in self.blocks)

    def _zeros(self, *shape: int) -> Array:
        return self.xp.zeros(shape, dtype=self.lam.dtype, device=device_of(self.lam))

    def _mean(self, block: Array) -> Array:
        """Return what a block adds to a mean over all rows, in the type of sums."""
        return self.xp.astype(block, self.lam.dtype) / self.n

    def fit_decoder(self, codes: Iterable[Array]) -> _Decoder:
        """Do the f step by least squares, for the rows' own codes or those of a hash."""
        xp = self.xp
        z, ZZ, ZY = self._zeros(self.L), self._zeros(self.L, self.L), self._zeros(self.L, self.D)
        for Y, Z in zip(self.blocks, codes, strict=True):
            z = z + self._mean(xp.sum(Z, axis=0))
            ZZ = ZZ + self._mean(xp.matrix_transpose(Z) @ Z)
            # Y is centered, so there is no term of means.
            ZY = ZY + self._mean(xp.matrix_transpose(Z) @ Y)
        # The ridge allows for bits that are copies of each other.
        ridge = 1e-6 * xp.eye(self.L, dtype=z.dtype, device=device_of(z))
        A = xp.linalg.solve(ZZ - z[:, None] * z + ridge, ZY)
        return _Decoder(A, -(z @ A), float(xp.sum(self.lam) - xp.sum(A * ZY)))

    def fit_hash(self, hash_: _Hash) -> _Hash:
        r"""Do the h step: improve the SVM of each bit.

        The squared hinge :math:`\max(0, 1 - z s)^2` lies below :math:`(t - s)^2`, with t = z for scores short of the
        margin and t = s, the present score, for those beyond. They touch at s, so least squares to t lowers the hinge.
        """
        xp = self.xp
        # Ten least-squares problems come close to the SVM.
        for _ in range(10):
            YT, total = self._zeros(self.D, self.L), self._zeros(self.L)
            for Y, Z, scores in zip(self.blocks, self.Z, self._scores(hash_), strict=True):
                T = xp.where(Z * scores < 1, Z, scores)
                YT = YT + self._mean(xp.matrix_transpose(Y) @ T)
                total = total + self._mean(xp.sum(T, axis=0))
            hash_ = _Hash(YT / (self.lam + _HASH_RIDGE)[:, None], total)
        return hash_

    def improve(self, decoder: _Decoder, hash_: _Hash, mu: float) -> bool:
        """Do the Z step; return True if the hash gives all the codes."""
        xp = self.xp
        A, a = (xp.astype(x, self.dtype) for x in (decoder.A, decoder.a))
        G = A @ xp.matrix_transpose(A)
        agree = []
        for i, (Y, H) in enumerate(zip(self.blocks, self.hashed(hash_), strict=True)):
            pull = (Y - a) @ xp.matrix_transpose(A) + mu * H
            self.Z[i] = nearest_codes(pull, G, self.Z[i], xp=xp)
            agree.append(xp.all(self.Z[i] == H))
        return bool(xp.all(xp.stack(agree)))


def nearest_codes(pull: Array, G: Array, Z: Array, *, xp: ModuleType) -> Array:
    """Find codes z of -1 and +1 of least ``z G z' - 2 z pull'``, for each row of ``pull`` (m, L), no worse than Z.

    Codes of at most `EXACT_BITS` bits are found by trying all of them. Longer ones are improved bit by bit.
    """
    L = pull.shape[1]
    if L <= EXACT_BITS:
        codes = from_host(np.where(np.arange(2**L)[:, None] >> np.arange(L) & 1, 1.0, -1.0), xp=xp, device=device_of(Z))
        codes = xp.astype(codes, Z.dtype)
        cost = xp.sum((codes @ G) * codes, axis=1)
        parts = blocks_of(pull.shape[0], 2**L)
        best = [xp.argmin(cost - 2 * (pull[part, :] @ xp.matrix_transpose(codes)), axis=1) for part in parts]
        return xp.take(codes, xp.concat(best, axis=0), axis=0)
    apart = G * (1 - xp.eye(L, dtype=G.dtype, device=device_of(G)))
    pull = xp.asarray(xp.matrix_transpose(pull), copy=True)
    # one bit per row, each of which is set for all codes at once
    codes = xp.asarray(xp.matrix_transpose(Z), copy=True)
    for _ in range(10):
        before = xp.asarray(codes, copy=True)
        for k in range(L):
            codes[k, :] = signs(pull[k, :] >= apart[k, :] @ codes, dtype=Z.dtype, xp=xp)
        if bool(xp.all(codes == before)):
            break
    return xp.matrix_transpose(codes)
