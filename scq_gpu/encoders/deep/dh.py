"""Deep hashing (Liong, Lu, Wang, Moulin, Zhou, 2015), without labels."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from scq_gpu._core.arrays import Array, device_of, to_host
from scq_gpu._core.bits import signs
from scq_gpu._core.validate import check_integer, check_real
from scq_gpu._core.warn import warn_caller
from scq_gpu.encoders.baselines.base import principal_axes, projections
from scq_gpu.encoders.deep.network import (
    TANH,
    Layer,
    NetworkEncoder,
    backward,
    cut,
    forward,
    join,
    leading_layers,
    over_blocks,
    split,
)
from scq_gpu.encoders.deep.progress import progress
from scq_gpu.rows.inputs import InputRows
from scq_gpu.training.linalg import generator

_FASTER, _SLOWER = 1.1, 0.5  # what the step is multiplied by after a fall of the loss, and after a rise


class DH(NetworkEncoder):
    r"""Deep hashing: signs of a network of tanh layers [1]_.

    With H the last layer's values for all n rows, B their signs and :math:`W_l, c_l` the layers, minimizes

    .. math:: \frac1{2n} |B - H|^2 - \frac{\lambda_1}{2n} |H - 1 \bar h'|^2 +
              \frac{\lambda_2}2 \sum_l |W_l W_l' - I|^2 + \frac{\lambda_3}2 \sum_l (|W_l|^2 + |c_l|^2)

    by gradient descent over all rows: little is lost to signs, bits vary and are balanced, they are independent, and
    the network is small.

    Parameters
    ----------
    n_bits : int, default=32
        Any number, also more than there are features.
    hidden : "auto" or tuple of int, default="auto"
        Widths of the hidden layers. "auto" is the paper's: (60, 30) for up to 16 bits, (80, 50) up to 32, (100, 80) up
        to 64, and twice and one and a half times ``n_bits`` beyond.
    balance, independence, decay : float
        The weights :math:`\lambda_1`, :math:`\lambda_2` and :math:`\lambda_3`.
    n_components : int, default=512
        Principal components to keep, at most.
    learning_rate : float, default=0.1
        The first step. It grows while the loss falls, and is halved, and the step taken back, where it would rise.
    max_iter : int, default=100
        Most steps, each a pass over the rows.
    tol : float, default=1e-5
        The fit ends when a step lowers the loss by less than this, relatively. 0 runs all steps.
    device : {None, "cpu", "cuda", "cuda:1", ...}, default=None
        Where to work; None follows X.
    random_state : int, Generator or None, default=None
        Seed of the directions that fill up a layer wider than there are principal axes; nothing else is random.
    verbose : bool, default=False
        Show a progress bar, if standard error is a terminal.

    Attributes
    ----------
    parameters_ : array (n_parameters,)
        For each layer its matrix (out, in) by rows, then its shift (out,); the first layer takes rows as they are.
    layers_ : list of int
        Widths, from ``n_features`` to ``n_bits``.
    loss_curve_ : list of float
        The loss of the start, then after each step.
    n_iter_ : int
    converged_ : bool
    n_features_in_, n_samples_ : int

    Notes
    -----
    Rows are centered, and scaled so that the leading ``n_bits`` components have unit variance on average. The first
    layers are principal axes, as the authors' are. They are kept in memory during the fit, projected. What else differs
    from the paper is in docs/baselines.md.

    References
    ----------
    .. [1] V. E. Liong, J. Lu, G. Wang, P. Moulin, J. Zhou, "Deep hashing for compact binary codes learning", CVPR 2015.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import scq_gpu as scq
    >>> X, _ = load_digits(return_X_y=True)
    >>> encoder = scq.DH(n_bits=16, max_iter=20, tol=0, random_state=0).fit(X)
    >>> encoder.layers_, encoder.encode(X).shape
    ([64, 60, 30, 16], (1797, 2))
    """

    _squash = TANH
    _widths: ClassVar = {16: (60, 30), 32: (80, 50), 64: (100, 80)}

    def __init__(
        self,
        n_bits: int = 32,
        *,
        hidden: Any = "auto",
        balance: float = 100.0,
        independence: float = 0.001,
        decay: float = 0.001,
        n_components: int = 512,
        learning_rate: float = 0.1,
        max_iter: int = 100,
        tol: float = 1e-5,
        device: str | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.n_bits = n_bits
        self.hidden = hidden
        self.balance = balance
        self.independence = independence
        self.decay = decay
        self.n_components = n_components
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.tol = tol
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _check_parameters(self) -> None:
        super()._check_parameters()
        for name in ("balance", "independence", "decay", "tol"):
            check_real(getattr(self, name), name=name, minimum=0)
        check_real(self.learning_rate, name="learning_rate", minimum=0, strict=True)
        for name in ("n_components", "max_iter"):
            check_integer(getattr(self, name), name=name, minimum=1)

    def _learn(self, rows: InputRows) -> None:
        xp = rows.xp
        basis = principal_axes(rows, n_bits=1, n_components=self.n_components, scale=1.0)
        leading = to_host(basis.lam)[: self.n_bits]
        P = basis.P * float(np.sqrt(len(leading) / leading.sum()))
        blocks = cut(projections(rows, P, basis.mean @ P))
        sizes = [P.shape[1], *self._hidden_sizes(), self.n_bits]
        start = leading_layers(blocks, sizes, TANH, rng=generator(self.random_state), xp=xp)
        weights = Weights(self.balance, self.independence, self.decay)
        self._keep_network(self._descend(blocks, start, sizes, weights, xp=xp), P, basis.mean, rows)

    def _descend(
        self, blocks: list[Array], layers: list[Layer], sizes: Sequence[int], weights: Weights, *, xp: ModuleType
    ) -> list[Layer]:
        """Gradient descent: the layers of least loss."""
        loss, gradient = loss_and_gradient(blocks, layers, weights, xp=xp)
        best, curve, rate, converged = join(layers, xp=xp), [loss], self.learning_rate, False
        for _ in progress(range(self.max_iter), self):
            tried = best - rate * gradient
            loss, slope = loss_and_gradient(blocks, split(tried, sizes, xp=xp), weights, xp=xp)
            fall = curve[-1] - loss
            if fall < 0 or not np.isfinite(loss):
                rate *= _SLOWER
                curve.append(curve[-1])
                continue
            best, gradient, rate = tried, slope, _FASTER * rate
            curve.append(loss)
            converged = fall < self.tol * abs(loss)
            if converged:
                break
        self.loss_curve_, self.n_iter_, self.converged_ = curve, len(curve) - 1, bool(converged)
        if self.tol > 0 and not converged:
            warn_caller(
                f"DH stopped at max_iter={self.max_iter} before its loss settled within tol={self.tol:g}; "
                "raise max_iter or tol",
                ConvergenceWarning,
            )
        return split(best, sizes, xp=xp)


class Weights(NamedTuple):
    """What the terms of the loss are multiplied by; the loss to signs by 1."""

    balance: float
    independence: float
    decay: float


def loss_and_gradient(
    blocks: Sequence[Array], layers: Sequence[Layer], weights: Weights, *, xp: ModuleType
) -> tuple[float, Array]:
    """The loss in the docstring of `DH` and its gradient by all parameters; blocks are all rows."""
    n = sum(Y.shape[0] for Y in blocks)

    def ahead(Y: Array) -> list[Array]:
        *hidden, last = forward(Y, layers, TANH, xp=xp)
        return [*hidden, xp.tanh(last)]

    values = list(over_blocks(ahead, blocks))
    sums = [xp.sum(H[-1], axis=0) for H in values]
    mean = sum(sums[1:], start=sums[0]) / n

    def of_block(Y: Array, below: list[Array]) -> tuple[Array, Array]:
        H = below[-1]
        rest, spread = H - signs(H >= 0, dtype=H.dtype, xp=xp), H - mean
        loss = xp.sum(rest * rest) - weights.balance * xp.sum(spread * spread)
        slope = (rest - weights.balance * spread) * TANH.slope(H) / n
        return loss / (2 * n), backward(Y, below, layers, slope, TANH, xp=xp)

    losses, gradients = zip(*over_blocks(of_block, blocks, values), strict=True)
    small, by_layers = _small_terms(layers, weights, xp=xp)
    total = sum(losses[1:], start=losses[0]) + small
    return float(total), sum(gradients[1:], start=gradients[0]) + by_layers


def _small_terms(layers: Sequence[Layer], weights: Weights, *, xp: ModuleType) -> tuple[Array, Array]:
    """The terms that do not depend on rows, independence and decay, and their gradient."""
    loss, gradients = 0.0, []
    for W, c in layers:
        apart = W @ xp.matrix_transpose(W) - xp.eye(W.shape[0], dtype=W.dtype, device=device_of(W))
        loss = loss + weights.independence / 2 * xp.sum(apart * apart)
        loss = loss + weights.decay / 2 * (xp.sum(W * W) + xp.sum(c * c))
        gradients.append(Layer(2 * weights.independence * (apart @ W) + weights.decay * W, weights.decay * c))
    return loss, join(gradients, xp=xp)
