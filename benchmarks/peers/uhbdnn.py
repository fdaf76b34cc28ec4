"""Unsupervised hashing with a binary deep network (Do, Doan, Cheung, 2016)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from peers.dh import (
    SIGMOID,
    Layer,
    NetworkEncoder,
    backward,
    cut,
    forward,
    join,
    leading_layers,
    over_blocks,
    progress,
    split,
)
from scq_gpu import ITQ
from scq_gpu._core.arrays import Array, device_of, from_host, generator, signs, to_host
from scq_gpu._core.validate import check_integer, check_real
from scq_gpu.encoders.baselines.ba import nearest_codes
from scq_gpu.encoders.baselines.base import principal_axes, projections

_MEMORY = 20  # steps that L-BFGS remembers: they are small beside the rows
_LEAST_FALL, _LEAST_SLOPE = 1e-9, 1e-8  # where L-BFGS stops; slopes are means over many rows, and so are small


class UHBDNN(NetworkEncoder):
    r"""Binary deep neural network: codes of one layer's own, from which the next rebuilds the rows [1]_.

    With H the values of the layer of ``n_bits`` for all n rows X, codes B of -1 and +1 take its place on the way on,
    and, over the network and the codes in turn,

    .. math:: \frac1{2n} |X - B W' - 1 c'|^2 + \frac{\lambda_1}2 \sum_l |W_l|^2 + \frac{\lambda_2}{2n} |H - B|^2 +
              \frac{\lambda_3}2 \left|\frac1n H'H - I\right|^2 + \frac{\lambda_4}{2n} |H'1|^2

    is minimized: codes rebuild the rows, the network is small and gives the codes, bits are independent and balanced.
    Hidden layers are sigmoids, that of the codes is linear.

    Parameters
    ----------
    n_bits : int, default=32
        At most the rank of the centered rows.
    hidden : "auto" or tuple of int, default="auto"
        Widths of the hidden layers before that of the codes. "auto" is the paper's: (90, 20) for up to 8 bits, (90, 30)
        up to 16, (100, 40) up to 24, (120, 50) up to 32, and twice and one and a half times ``n_bits`` beyond.
    decay, binary, independence, balance : float
        The weights :math:`\lambda_1` to :math:`\lambda_4`.
    n_components : int, default=512
        Principal components to keep, at most: what is to be rebuilt.
    lbfgs_iter : int, default=400
        Most iterations of L-BFGS for the network in each step; each is a pass over the rows, or a few.
    max_iter : int, default=10
        Most rounds of a step for the codes and one for the network.
    tol : float, default=1e-4
        The fit ends when a round lowers the loss by less than this, relatively. 0 runs all rounds.
    device : {None, "cpu", "cuda", "cuda:1", ...}, default=None
        Where to work; None follows X.
    random_state : int, Generator or None, default=None
        Seed of the start, which is codes of ITQ.
    verbose : bool, default=False
        Show a progress bar, if standard error is a terminal.

    Attributes
    ----------
    parameters_, layers_, n_features_in_, n_samples_
        As in `DH`; the decoder W, c is not kept.
    loss_curve_ : list of float
        The loss of the start, a network trained for the codes of ITQ, then after each round; it never rises.
    n_iter_ : int
    converged_ : bool

    Notes
    -----
    The step for the network falls apart into a decoder, which is least squares, and the layers up to the codes, which
    take L-BFGS, as in the original; they start from principal axes. A last layer that starts from least squares is near
    the codes of ITQ at once, but ends at a higher loss. The step for the codes is cyclic over the bits,
    each given the others, and up to 12 bits tries all codes. Rows are divided by the largest range of a feature, as in
    the authors' program. They are kept in memory during the fit, with the values of all layers.

    References
    ----------
    .. [1] T.-T. Do, A.-D. Doan, N.-M. Cheung, "Learning to hash with binary deep neural network", ECCV 2016.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from peers import UHBDNN
    >>> X, _ = load_digits(return_X_y=True)
    >>> encoder = UHBDNN(n_bits=8, max_iter=2, lbfgs_iter=10, tol=0, random_state=0).fit(X)
    >>> encoder.layers_, encoder.loss_curve_[0] > encoder.loss_curve_[-1]
    ([64, 90, 20, 8], True)
    """

    _squash = SIGMOID
    _widths: ClassVar = {8: (90, 20), 16: (90, 30), 24: (100, 40), 32: (120, 50)}

    def __init__(
        self,
        n_bits: int = 32,
        *,
        hidden: Any = "auto",
        decay: float = 1e-5,
        binary: float = 5e-2,
        independence: float = 1e-2,
        balance: float = 1e-6,
        n_components: int = 512,
        lbfgs_iter: int = 400,
        max_iter: int = 10,
        tol: float = 1e-4,
        device: str | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.n_bits = n_bits
        self.hidden = hidden
        self.decay = decay
        self.binary = binary
        self.independence = independence
        self.balance = balance
        self.n_components = n_components
        self.lbfgs_iter = lbfgs_iter
        self.max_iter = max_iter
        self.tol = tol
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _check_parameters(self) -> None:
        super()._check_parameters()
        for name in ("decay", "binary", "independence", "balance", "tol"):
            check_real(getattr(self, name), name=name, minimum=0)
        for name in ("n_components", "lbfgs_iter", "max_iter"):
            check_integer(getattr(self, name), name=name, minimum=1)

    def _learn(self, rows: Any) -> None:
        xp, rng = rows.xp, generator(self.random_state)
        basis = principal_axes(rows, n_bits=self.n_bits, n_components=self.n_components)
        largest = _largest_range(rows)
        P = basis.P / largest
        blocks = cut(projections(rows, P, basis.mean @ P))
        itq = ITQ(self.n_bits, random_state=rng)
        itq._learn(rows)
        scores = projections(rows, xp.matrix_transpose(itq.components_), itq.threshold_)
        heights = np.cumsum([0, *(Y.shape[0] for Y in blocks)]).tolist()
        codes = [signs(scores[i:j, :] >= 0, dtype=scores.dtype, xp=xp) for i, j in pairwise(heights)]
        sizes = [P.shape[1], *self._hidden_sizes(), self.n_bits]
        layers = leading_layers(blocks, sizes, SIGMOID, rng=rng, xp=xp)
        self._keep_network(self._alternate(blocks, codes, layers, sizes, xp=xp), P, basis.mean, rows)

    def _alternate(
        self, blocks: list[Array], codes: list[Array], layers: list[Layer], sizes: Sequence[int], *, xp: ModuleType
    ) -> list[Layer]:
        """Codes and network in turn."""
        weights = Weights(self.decay, self.binary, self.independence, self.balance)

        def fit_network() -> tuple[Layer, list[Layer], float]:
            decoder, rebuilt = least_squares(codes, blocks, weights.decay, xp=xp)
            found, coded = fit_layers(blocks, codes, layers, sizes, weights, max_iter=self.lbfgs_iter, xp=xp)
            return decoder, found, rebuilt + coded

        decoder, layers, loss = fit_network()
        curve, converged = [loss], False
        for _ in progress(range(self.max_iter), self):
            codes = fit_codes(blocks, codes, layers, decoder, weights, xp=xp)
            decoder, layers, loss = fit_network()
            curve.append(loss)
            converged = self.tol > 0 and curve[-2] - loss < self.tol * abs(loss)
            if converged:
                break
        self.loss_curve_, self.n_iter_, self.converged_ = curve, len(curve) - 1, bool(converged)
        if self.tol > 0 and not converged:
            warnings.warn(
                f"UHBDNN stopped at max_iter={self.max_iter} before its loss settled within tol={self.tol:g}; "
                "raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=2,
            )
        return layers


class Weights(NamedTuple):
    """What the terms of the loss are multiplied by; that of rebuilt rows by 1."""

    decay: float
    binary: float
    independence: float
    balance: float


def least_squares(
    inputs: Sequence[Array], targets: Sequence[Array], decay: float, *, xp: ModuleType
) -> tuple[Layer, float]:
    """The layer of least ``|targets - layer(inputs)|^2 / (2n) + decay |W|^2 / 2``, and that, in float64.

    From codes to rows this is the decoder, which depends on nothing else: the first term of the loss, and its part of
    the second.
    """
    n = sum(A.shape[0] for A in inputs)

    def sums(A: Array, B: Array) -> list[np.ndarray]:
        found = (xp.sum(A, axis=0), xp.sum(B, axis=0), xp.matrix_transpose(A) @ A, xp.matrix_transpose(A) @ B)
        return [to_host(x).astype(np.float64) for x in (*found, xp.sum(B * B))]

    a, b, AA, AB, BB = (sum(parts) / n for parts in zip(*over_blocks(sums, inputs, targets), strict=True))
    AA, AB = AA - np.outer(a, a), AB - np.outer(a, b)
    smallest = 1e-9 * max(float(np.trace(AA)), 1e-300) / len(a)  # against inputs that are copies of each other
    W = np.linalg.solve(AA + (decay + smallest) * np.eye(len(a)), AB).T
    error = BB - b @ b - 2 * np.sum(W.T * AB) + np.sum((W @ AA) * W)
    here = (xp.astype(from_host(x, xp=xp, device=device_of(inputs[0])), inputs[0].dtype) for x in (W, b - W @ a))
    return Layer(*here), float(error / 2 + decay / 2 * np.sum(W * W))


def fit_codes(
    blocks: Sequence[Array],
    codes: Sequence[Array],
    layers: Sequence[Layer],
    decoder: Layer,
    weights: Weights,
    *,
    xp: ModuleType,
) -> list[Array]:
    """The step for the codes: never worse than those given."""
    G = xp.matrix_transpose(decoder.W) @ decoder.W

    def of_block(Y: Array, B: Array) -> Array:
        pull = (Y - decoder.c) @ decoder.W + weights.binary * forward(Y, layers, SIGMOID, xp=xp)[-1]
        return nearest_codes(pull, G, B, xp=xp)

    return list(over_blocks(of_block, blocks, codes))


def fit_layers(
    blocks: Sequence[Array],
    codes: Sequence[Array],
    layers: Sequence[Layer],
    sizes: Sequence[int],
    weights: Weights,
    *,
    max_iter: int,
    xp: ModuleType,
) -> tuple[list[Layer], float]:
    """The step for the layers up to the codes: L-BFGS over their parameters, which are few, on the host."""
    from scipy.optimize import minimize  # an import of its own: it takes longer than that of this package

    start = join(layers, xp=xp)

    def place(parameters: np.ndarray) -> list[Layer]:
        here = xp.astype(from_host(parameters, xp=xp, device=device_of(start)), start.dtype)
        return split(here, sizes, xp=xp)

    losses: list[float] = []

    def evaluate(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient = loss_and_gradient(blocks, codes, place(parameters), weights, xp=xp)
        losses.append(loss)
        return loss, to_host(gradient).astype(np.float64)

    first = to_host(start).astype(np.float64)
    options = {"maxiter": max_iter, "maxcor": _MEMORY, "ftol": _LEAST_FALL, "gtol": _LEAST_SLOPE}
    found = minimize(evaluate, first, jac=True, method="L-BFGS-B", options=options)
    if found.fun > losses[0]:  # a line search that float32 left without a fall
        return list(layers), losses[0]
    return place(found.x), float(found.fun)


def loss_and_gradient(
    blocks: Sequence[Array], codes: Sequence[Array], layers: Sequence[Layer], weights: Weights, *, xp: ModuleType
) -> tuple[float, Array]:
    """The loss in the docstring of `UHBDNN` without its decoder, and its gradient by all parameters."""
    n = sum(Y.shape[0] for Y in blocks)
    L, device = layers[-1].W.shape[0], device_of(layers[-1].W)
    values = list(over_blocks(lambda Y: forward(Y, layers, SIGMOID, xp=xp), blocks))
    dtype = values[0][-1].dtype
    squares, sums = zip(*((xp.matrix_transpose(H) @ H, xp.sum(H, axis=0)) for *_, H in values), strict=True)
    apart = sum(squares[1:], start=squares[0]) / n - xp.eye(L, dtype=dtype, device=device)
    total = sum(sums[1:], start=sums[0])

    def of_block(Y: Array, below: list[Array], B: Array) -> tuple[Array, Array]:
        rest = below[-1] - B
        slope = (weights.binary * rest + 2 * weights.independence * (below[-1] @ apart) + weights.balance * total) / n
        return xp.sum(rest * rest), backward(Y, below, layers, slope, SIGMOID, xp=xp)

    rests, gradients = zip(*over_blocks(of_block, blocks, values, codes), strict=True)
    loss = weights.binary / (2 * n) * sum(rests[1:], start=rests[0])
    loss = loss + weights.independence / 2 * xp.sum(apart * apart) + weights.balance / (2 * n) * xp.sum(total * total)
    loss = loss + sum(weights.decay / 2 * xp.sum(layer.W * layer.W) for layer in layers)
    decay = join([Layer(weights.decay * layer.W, layer.c * 0) for layer in layers], xp=xp)
    return float(loss), sum(gradients[1:], start=gradients[0]) + decay


def _largest_range(rows: Any) -> float:
    """The largest difference between two values of a feature."""
    xp = rows.xp
    ends = rows.map_blocks(
        lambda X: X, lambda X: xp.stack([xp.min(X, axis=0), xp.max(X, axis=0)])[None, ...], where="the range of X"
    )
    found = to_host(ends).astype(np.float64)  # (blocks, 2, features)
    return float((found[:, 1, :].max(axis=0) - found[:, 0, :].min(axis=0)).max())
