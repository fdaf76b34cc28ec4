"""What the baselines share: bases of estimators, and passes that leave a mean, projections or levels."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from scq_gpu._xp import Array, from_host
from scq_gpu.basis import Basis, compute_basis
from scq_gpu.linear import LinearEncoder
from scq_gpu.rows import Rows


class _LinearBaseline(LinearEncoder):
    """A linear map from a method of others."""

    components_: Array
    threshold_: Array
    mean_: Array
    levels_: Array
    _fitted_arrays: tuple[str, ...] = ("components_", "threshold_", "mean_", "levels_")
    _fitted_facts: tuple[str, ...] = ("n_features_in_", "n_samples_")

    def _keep_map(self, rows: Rows, W: Array, t: Array, mean: Array) -> None:
        """Set the fitted arrays: W (d, n_bits), t (n_bits,), the mean (d,), and the levels, which take a pass."""
        xp = rows.xp
        sums = rows.map_scores(W, t, lambda scores, t: level_sums(scores - t, dtype=rows.small, xp=xp)[None, ...])
        arrays = W.T, t, mean, mean_levels(xp.sum(sums, axis=0), xp=xp)
        self.components_, self.threshold_, self.mean_, self.levels_ = (xp.astype(x, rows.dtype) for x in arrays)


class _PCABaseline(_LinearBaseline):
    """The leading principal axes, rotated (or not) in the way of the subclass.

    The rows are scaled as for OnE: bits are the same at any scale, and the quantization losses can be compared.
    """

    eigenvalues_: Array
    scale_: float
    _fitted_arrays = (*_LinearBaseline._fitted_arrays, "eigenvalues_")
    _fitted_facts: tuple[str, ...] = (*_LinearBaseline._fitted_facts, "scale_")

    def _learn(self, rows: Rows) -> None:
        basis = principal_axes(rows, n_bits=self.n_bits, n_components=self.n_bits, scale="auto")
        W, t = basis.fold(self._rotation(rows, basis))
        self._keep_map(rows, W, t, basis.mean)
        self.eigenvalues_ = rows.xp.astype(basis.eigenvalues, rows.dtype)
        self.scale_ = basis.scale

    def _rotation(self, rows: Rows, basis: Basis) -> Array:
        """The rotation (n_bits, n_bits) of the axes."""
        raise NotImplementedError


def principal_axes(rows: Rows, *, n_bits: int, n_components: int, scale: float | str) -> Basis:
    """The leading axes of the rows: one moments pass and `scq_gpu.basis.compute_basis`."""
    xp = rows.xp
    eps = float(xp.finfo(rows.dtype).eps)
    return compute_basis(rows.moments(), n_bits=n_bits, n_components=n_components, scale=scale, eps=eps, xp=xp)


def projections(rows: Rows, W: Array, t: Array) -> Array:
    """``X @ W - t`` of all rows (n, k), in memory: what training goes through again and again."""
    W, t = (rows.xp.astype(x, rows.dtype) for x in (W, t))
    return rows.map_blocks(lambda X: X @ W, lambda scores: scores - t, where="X @ W")


def mean_row(rows: Rows) -> Array:
    """The mean of the rows (d,)."""
    xp = rows.xp
    sums = rows.map_blocks(lambda X: X, lambda X: xp.sum(X, axis=0, dtype=rows.small)[None, :], where="the mean of X")
    return xp.sum(sums, axis=0) / rows.shape[0]


def on_device(x: np.ndarray, rows: Rows) -> Array:
    """A host array where the rows are, in the float type of the small algebra."""
    return rows.xp.astype(from_host(x, xp=rows.xp, device=rows.device), rows.small)


def level_sums(scores: Array, *, dtype: Any, xp: ModuleType) -> Array:
    """Sums (4, n_bits) over rows whose bit is 0 and 1: of their scores, and how many they are."""
    scores = xp.astype(scores, dtype)
    bits = xp.astype(scores >= 0, dtype)
    one, ones = xp.sum(scores * bits, axis=0), xp.sum(bits, axis=0)
    return xp.stack([xp.sum(scores, axis=0) - one, one, scores.shape[0] - ones, ones])


def mean_levels(sums: Array, *, xp: ModuleType) -> Array:
    """Mean score of the rows whose bit is 0, and 1: (n_bits, 2), from `level_sums`."""
    counts = sums[2:, :]
    return xp.matrix_transpose(sums[:2, :] / xp.where(counts > 0, counts, xp.ones_like(counts)))
