"""Fully connected networks on any array namespace: forward, backward, and their parameters as one vector.

A network of ``sizes = [d, ..., n_bits]`` has, for each layer, a matrix W (out, in) and a vector c (out,). Hidden layers
squash what they get; what the last one does is the caller's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from scq_gpu._core.arrays import Array, device_of, from_host, row_slices, to_host
from scq_gpu._core.threads import ordered_map
from scq_gpu._core.validate import check_integers
from scq_gpu.encoders.base import Encoder
from scq_gpu.rows.inputs import InputRows

_BLOCK_FLOATS = 1 << 20


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


class NetworkEncoder(Encoder):
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

    def _keep_network(self, layers: list[Layer], P: Array, mean: Array, rows: InputRows) -> None:
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
        def run(rows: InputRows, parameters: Array) -> Array:
            xp = rows.xp
            first, *rest = split(xp.astype(parameters, rows.dtype, copy=False), self.layers_, xp=xp)

            def finish(scores: Array, t: Array) -> Array:
                z = scores - t
                return function(forward(self._squash.value(z, xp), rest, self._squash, xp=xp)[-1] if rest else z)

            return rows.map_scores(xp.matrix_transpose(first.W), -first.c, finish)

        return self._run_with(X, ("parameters_",), run)

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
