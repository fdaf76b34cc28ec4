"""Fully connected networks on any array namespace, and deep hashing (Liong, Lu, Wang, Moulin, Zhou, 2015) by one.

A network of ``sizes = [d, ..., n_bits]`` has a matrix W (out, in) and a vector c (out,) for each layer. Hidden layers
squash their sums; the caller decides what the last layer does. UH-BDNN uses the same networks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from scq_gpu._core.arrays import Array, device_of, from_host, generator, row_slices, signs, to_host
from scq_gpu._core.machine import ordered_map
from scq_gpu._core.validate import check_integer, check_integers, check_real
from scq_gpu.encoders.base import BitEncoder
from scq_gpu.encoders.baselines.base import principal_axes, projections

_BLOCK_FLOATS = 1 << 20
_FASTER, _SLOWER = 1.1, 0.5  # what the step is multiplied by after a fall of the loss, and after a rise


class Layer(NamedTuple):
    """``x -> W x + c``."""

    W: Array  # (out, in)
    c: Array  # (out,)


class Squash(NamedTuple):
    """An activation, and its derivative as a function of its value."""

    value: Callable[[Array, ModuleType], Array]
    slope: Callable[[Array], Array]


TANH = Squash(lambda z, xp: xp.tanh(z), lambda a: 1 - a * a)
SIGMOID = Squash(lambda z, xp: (1 + xp.tanh(z / 2)) / 2, lambda a: a * (1 - a))


def parameter_count(sizes: Sequence[int]) -> int:
    """How many numbers a network of these sizes has."""
    return sum(out * (width + 1) for width, out in pairwise(sizes))


def join(layers: Sequence[Layer], *, xp: ModuleType) -> Array:
    """All parameters in one vector: each layer's W by rows, then its c."""
    return xp.concat([xp.reshape(part, (-1,)) for layer in layers for part in layer], axis=0)


def split(parameters: Array, sizes: Sequence[int], *, xp: ModuleType) -> list[Layer]:
    """The layers of such a vector."""
    layers, start = [], 0
    for width, out in pairwise(sizes):
        middle, end = start + out * width, start + out * (width + 1)
        layers.append(Layer(xp.reshape(parameters[start:middle], (out, width)), parameters[middle:end]))
        start = end
    return layers


def forward(Y: Array, layers: Sequence[Layer], squash: Squash, *, xp: ModuleType) -> list[Array]:
    """What each layer gives rows Y: values of the hidden layers, and of the last one before any activation."""
    values: list[Array] = []
    for number, layer in enumerate(layers):
        z = (values[-1] if values else Y) @ xp.matrix_transpose(layer.W) + layer.c
        values.append(z if number == len(layers) - 1 else squash.value(z, xp))
    return values


def hidden_values(Y: Array, layers: Sequence[Layer], squash: Squash, *, xp: ModuleType) -> Array:
    """What comes out of layers that are all hidden ones."""
    for layer in layers:
        Y = squash.value(Y @ xp.matrix_transpose(layer.W) + layer.c, xp)
    return Y


def backward(
    Y: Array, values: Sequence[Array], layers: Sequence[Layer], slope: Array, squash: Squash, *, xp: ModuleType
) -> Array:
    """The gradient of a loss by all parameters, from its ``slope`` (m, n_bits) by the last layer's values."""
    grads = []
    for number in range(len(layers) - 1, -1, -1):
        below = values[number - 1] if number else Y
        grads.append(Layer(xp.matrix_transpose(slope) @ below, xp.sum(slope, axis=0)))
        if number:
            slope = (slope @ layers[number].W) * squash.slope(below)
    return join(grads[::-1], xp=xp)


def leading_layers(
    blocks: Sequence[Array],
    sizes: Sequence[int],
    squash: Squash,
    *,
    rng: np.random.Generator,
    xp: ModuleType,
) -> list[Layer]:
    """First layers, both papers': principal axes of what comes from below, less their mean.

    Where a layer is wider than there are axes of any variance, directions drawn at random take the places of the
    missing ones.
    """
    layers: list[Layer] = []
    for out in sizes[1:]:
        below = [hidden_values(Y, layers, squash, xp=xp) for Y in blocks]
        mean, covariance = _moments(below, xp=xp)
        lam, axes = np.linalg.eigh(covariance)
        axes = np.ascontiguousarray(axes[:, ::-1].T)  # one per row, that of most variance first
        axes *= np.where(axes.max(axis=1) >= -axes.min(axis=1), 1.0, -1.0)[:, None]  # the largest entry is positive
        rank = int(np.count_nonzero(lam > 1e-7 * max(lam[-1], 0.0)))
        W = axes[: min(out, rank)]
        if len(W) < out:
            drawn = rng.standard_normal((out - len(W), len(mean)))
            W = np.concatenate([W, drawn / np.linalg.norm(drawn, axis=1, keepdims=True)])
        parts = (from_host(x, xp=xp, device=device_of(blocks[0])) for x in (W, -W @ mean))
        layers.append(Layer(*(xp.astype(x, blocks[0].dtype) for x in parts)))
    return layers


def _moments(blocks: Sequence[Array], *, xp: ModuleType) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of rows on the host, in float64."""
    n = sum(A.shape[0] for A in blocks)
    mean = sum(to_host(xp.sum(A, axis=0)).astype(np.float64) for A in blocks) / n
    center = xp.astype(from_host(mean, xp=xp, device=device_of(blocks[0])), blocks[0].dtype)
    centered = (A - center for A in blocks)
    scatter = sum(to_host(xp.matrix_transpose(A) @ A).astype(np.float64) for A in centered)
    return mean, scatter / n


def cut(Y: Array) -> list[Array]:
    """Rows in blocks that stay in cache."""
    return [Y[part, :] for part in row_slices(Y.shape[0], max(1, _BLOCK_FLOATS // Y.shape[1]))]


def over_blocks(function: Callable[..., Any], *blocks: Iterable[Array]) -> Iterator[Any]:
    """``function`` of the blocks that belong together, in order; over threads where NumPy works."""
    together = list(zip(*blocks, strict=True))
    over = ordered_map if isinstance(together[0][0], np.ndarray) else map
    return over(lambda parts: function(*parts), together)


class NetworkEncoder(BitEncoder):
    """Base of encoders whose bits are the signs of a fully connected network's last layer.

    A subclass sets ``parameters_`` and ``layers_`` in ``_learn``, and says what its hidden layers do (``_squash``) and
    how wide they are by default (``_widths``: for codes of up to so many bits).
    """

    hidden: Any
    parameters_: Array
    layers_: list[int]
    _squash: Squash
    _widths: ClassVar[dict[int, tuple[int, ...]]]
    _fitted_arrays = ("parameters_",)
    _fitted_facts = ("n_features_in_", "n_samples_", "layers_", "loss_curve_", "n_iter_", "converged_")

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if not (isinstance(self.hidden, str) and self.hidden == "auto"):
            check_integers(self.hidden, name="hidden", minimum=1)

    def _hidden_sizes(self) -> list[int]:
        """Widths of the hidden layers: given, the paper's, or a rule beyond the lengths that the paper has."""
        if not isinstance(self.hidden, str):
            return [int(width) for width in self.hidden]
        listed = [bits for bits in self._widths if self.n_bits <= bits]
        return list(self._widths[min(listed)]) if listed else [2 * self.n_bits, 3 * self.n_bits // 2]

    def _keep_network(self, layers: list[Layer], P: Array, mean: Array, rows: Any) -> None:
        """Set the fitted network: ``layers`` of ``(x - mean) P``, folded into one of x."""
        xp, first = rows.xp, layers[0]
        W = xp.astype(first.W, rows.sum_dtype) @ xp.matrix_transpose(P)
        folded = Layer(W, xp.astype(first.c, rows.sum_dtype) - W @ mean)
        rest = [Layer(*(xp.astype(part, rows.sum_dtype) for part in layer)) for layer in layers[1:]]
        self.parameters_ = xp.astype(join([folded, *rest], xp=xp), rows.dtype)
        self.layers_ = [rows.shape[1], *(layer.W.shape[0] for layer in layers)]

    def project(self, X: Any) -> Array:
        """Scores (n, n_bits) whose signs are the bits: the last layer, before its activation if it has one."""
        return self._map(X, lambda scores: scores)

    def _map_bits(self, X: Any, function: Callable[[Array], Array]) -> Array:
        return self._map(X, lambda scores: function(scores >= 0))

    def _map(self, X: Any, function: Callable[[Array], Array]) -> Array:
        with self._opened(X, "parameters_") as (rows, parameters):
            xp = rows.xp
            first, *rest = split(xp.astype(parameters, rows.dtype, copy=False), self.layers_, xp=xp)

            def finish(scores: Array, t: Array) -> Array:
                z = scores - t
                return function(forward(self._squash.value(z, xp), rest, self._squash, xp=xp)[-1] if rest else z)

            result = rows.map_scores(xp.matrix_transpose(first.W), -first.c, finish)
        return self._returned(result, rows)

    @property
    def _n_features_out(self) -> int:
        return self.layers_[-1]

    @classmethod
    def _array_shapes(cls, params: dict[str, Any], fitted: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        sizes: Any = fitted.get("layers_")
        good = isinstance(sizes, list) and len(sizes) > 1 and all(type(s) is int and 0 < s < 1 << 31 for s in sizes)
        if not good or sizes[0] != fitted.get("n_features_in_") or sizes[-1] != params.get("n_bits"):
            raise ValueError(f"layers_={str(sizes)[:100]} do not go from its features to its bits")
        return {"parameters_": (parameter_count(sizes),)}


def progress(steps: range, encoder: Any, what: str = "") -> Iterable[int]:
    """The steps, behind a bar if ``encoder.verbose`` and a person is watching."""
    if not encoder.verbose:
        return steps
    from tqdm import tqdm

    bar: Iterable[int] = tqdm(steps, desc=f"{type(encoder).__name__} {encoder.n_bits} bits{what}", disable=None)
    return bar


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
    >>> from peers import DH
    >>> X, _ = load_digits(return_X_y=True)
    >>> encoder = DH(n_bits=16, max_iter=20, tol=0, random_state=0).fit(X)
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

    def _learn(self, rows: Any) -> None:
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
            warnings.warn(
                f"DH stopped at max_iter={self.max_iter} before its loss settled within tol={self.tol:g}; "
                "raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=2,
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
