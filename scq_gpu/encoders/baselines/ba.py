"""Binary autoencoder (Carreira-Perpinan and Raziperchikolaei, 2015)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from scq_gpu._core.arrays import Array, device_of, row_slices
from scq_gpu._core.bits import signs
from scq_gpu._core.validate import check_integer, check_real
from scq_gpu._core.warn import warn_caller
from scq_gpu.encoders.baselines.base import _LinearBaseline, on_device, principal_axes, projections
from scq_gpu.rows.basis import Basis
from scq_gpu.rows.inputs import InputRows
from scq_gpu.rows.passes import ProjectedRows
from scq_gpu.training.linalg import generator, polar
from scq_gpu.training.loop import train
from scq_gpu.training.nearest_codes import nearest_codes
from scq_gpu.training.rotation import rotation_step

_HASH_STEPS = 10  # least-squares problems that stand for one SVM
_HASH_RIDGE = 1e-4  # against axes of hardly any variance; the leading n_bits have 1 on average
_ITQ_ITERATIONS = 50  # those of `ITQ`, which the codes start from
_DECODER_RIDGE = 1e-6  # against bits that are copies of each other
_BLOCK_FLOATS = 1 << 20


class BA(_LinearBaseline):
    r"""Binary autoencoder: a linear hash whose codes a linear decoder turns back into the rows [1]_.

    The method of auxiliary coordinates gives every row a code z of its own and minimizes

    .. math:: \sum_x |x - f(z_x)|^2 + \mu |z_x - h(x)|^2

    over the decoder f, the hash h and the codes in turn, while mu grows until the hash gives the codes themselves. f is
    least squares. h, for each bit, is a linear support vector machine with squared hinge loss, solved by repeated least
    squares. Codes are found exactly, by trying all, up to 12 bits, and by alternating over the bits from the codes
    before for more.

    Parameters
    ----------
    n_bits : int, default=32
        At most the rank of the centered rows.
    n_components : int, default=512
        Principal components to keep, at most: what is to be reconstructed.
    mu : float, default=0.05
        The first penalty; rows are scaled so that the leading ``n_bits`` components have unit variance on average.
    growth : float, default=1.5
        What mu is multiplied by after each iteration.
    max_iter : int, default=30
        Most iterations.
    device, random_state
        As in `ITQ`, whose codes are the start.

    Attributes
    ----------
    components_, threshold_, mean_, levels_, scale_, n_features_in_, n_samples_
        As in `PCAH`.
    loss_curve_ : list of float
        Mean squared error of rows rebuilt from their codes, by the best decoder for them: that of the start, then that
        of the best hash so far after each iteration. An SVM minimizes something else, so a step can raise the error;
        the hash of least error is kept.
    n_iter_ : int
    converged_ : bool
        Whether the hash gave the codes themselves in the end.

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

    def _learn(self, rows: InputRows) -> None:
        xp, n_bits = rows.xp, self.n_bits
        basis = principal_axes(rows, n_bits=n_bits, n_components=self.n_components)
        P = basis.P * basis.scale
        Y = projections(rows, P, basis.mean @ P)
        blocks = [Y[part, :] for part in row_slices(Y.shape[0], max(1, _BLOCK_FLOATS // Y.shape[1]))]
        V = self._itq(ProjectedRows([Y[:, :n_bits] for Y in blocks], sum_dtype=rows.sum_dtype, xp=xp), rows, basis)
        start = _Hash(V, xp.zeros((n_bits,), dtype=rows.sum_dtype, device=rows.device))
        hash_ = self._alternate(_Codes(blocks, basis.lam, start, xp=xp), start)
        W_t, t = basis.fold(hash_.V)
        self._keep_map(rows, W_t, t - hash_.c, basis.mean)
        self.scale_ = basis.scale

    def _itq(self, leading: ProjectedRows, rows: InputRows, basis: Basis) -> Array:
        """The map (D, n_bits) of ITQ: the leading axes, rotated."""
        n_bits, D = self.n_bits, basis.lam.shape[0]
        draw = generator(self.random_state).standard_normal((n_bits, n_bits))
        (run,) = train(
            leading,
            basis.lam[:n_bits],
            polar(on_device(draw, rows), xp=rows.xp)[None, ...],
            step=rotation_step(xp=rows.xp, ahead=False),
            ridge=0.0,
            tol=0.0,
            iterations=range(_ITQ_ITERATIONS),
            xp=rows.xp,
        )
        return on_device(np.eye(D, n_bits), rows) @ run.V

    def _alternate(self, codes: _Codes, hash_: _Hash) -> _Hash:
        """The hash of least error on the way of growing mu."""
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
    """Blocks of projected rows (m, D) with covariance diag(lam), the codes Z (m, L) they have now, and the steps of BA.

    The first codes are those of ``start``; sums have the type of lam.
    """

    def __init__(self, blocks: list[Array], lam: Array, start: _Hash, *, xp: ModuleType) -> None:
        self.blocks, self.lam, self.xp = blocks, lam, xp
        self.n, self.dtype = sum(Y.shape[0] for Y in blocks), blocks[0].dtype
        self.D, self.L = start.V.shape
        self.Z = list(self.hashed(start))

    def hashed(self, hash_: _Hash) -> Iterator[Array]:
        """The codes that a hash gives the rows."""
        return (signs(scores >= 0, dtype=self.dtype, xp=self.xp) for scores in self._scores(hash_))

    def _scores(self, hash_: _Hash) -> Iterator[Array]:
        V, c = (self.xp.astype(x, self.dtype) for x in hash_)
        return (Y @ V + c for Y in self.blocks)

    def _zeros(self, *shape: int) -> Array:
        return self.xp.zeros(shape, dtype=self.lam.dtype, device=device_of(self.lam))

    def _mean(self, block: Array) -> Array:
        """What a block adds to a mean over all rows, in the type of sums."""
        return self.xp.astype(block, self.lam.dtype) / self.n

    def fit_decoder(self, codes: Iterable[Array]) -> _Decoder:
        """The f step, for the rows' own codes or those of a hash: least squares."""
        xp = self.xp
        z, ZZ, ZY = self._zeros(self.L), self._zeros(self.L, self.L), self._zeros(self.L, self.D)
        for Y, Z in zip(self.blocks, codes, strict=True):
            z = z + self._mean(xp.sum(Z, axis=0))
            ZZ = ZZ + self._mean(xp.matrix_transpose(Z) @ Z)
            ZY = ZY + self._mean(xp.matrix_transpose(Z) @ Y)  # Y is centered: no term of means
        ridge = _DECODER_RIDGE * xp.eye(self.L, dtype=z.dtype, device=device_of(z))
        A = xp.linalg.solve(ZZ - z[:, None] * z + ridge, ZY)
        return _Decoder(A, -(z @ A), float(xp.sum(self.lam) - xp.sum(A * ZY)))

    def fit_hash(self, hash_: _Hash) -> _Hash:
        r"""The h step: an SVM for each bit, from the last ones.

        The squared hinge :math:`\max(0, 1 - z s)^2` lies below :math:`(t - s)^2` with t = z for scores short of the
        margin and t = s, the score now, for those beyond, and touches it at s: least squares to t lowers it.
        """
        xp = self.xp
        for _ in range(_HASH_STEPS):
            YT, total = self._zeros(self.D, self.L), self._zeros(self.L)
            for Y, Z, scores in zip(self.blocks, self.Z, self._scores(hash_), strict=True):
                T = xp.where(Z * scores < 1, Z, scores)
                YT = YT + self._mean(xp.matrix_transpose(Y) @ T)
                total = total + self._mean(xp.sum(T, axis=0))
            hash_ = _Hash(YT / (self.lam + _HASH_RIDGE)[:, None], total)
        return hash_

    def improve(self, decoder: _Decoder, hash_: _Hash, mu: float) -> bool:
        """The Z step; True if the hash gives all the codes."""
        xp = self.xp
        A, a = (xp.astype(x, self.dtype) for x in (decoder.A, decoder.a))
        G = A @ xp.matrix_transpose(A)
        agree = []
        for i, (Y, H) in enumerate(zip(self.blocks, self.hashed(hash_), strict=True)):
            pull = (Y - a) @ xp.matrix_transpose(A) + mu * H
            self.Z[i] = nearest_codes(pull, G, self.Z[i], xp=xp)
            agree.append(xp.all(self.Z[i] == H))
        return bool(xp.all(xp.stack(agree)))
