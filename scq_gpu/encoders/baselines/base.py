"""What the baselines share: base classes, and passes that leave a mean, projections or levels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scq_gpu._core.arrays import Array, from_host
from scq_gpu.encoders.base import LinearEncoder
from scq_gpu.rows.basis import Basis, compute_basis
from scq_gpu.rows.inputs import InputRows


class _LinearBaseline(LinearEncoder):
    """A linear map from a method of others."""

    _fitted_arrays: tuple[str, ...] = ("components_", "threshold_", "mean_", "levels_")
    _fitted_facts: tuple[str, ...] = ("n_features_in_", "n_samples_")

    def _keep_map(self, rows: InputRows, W_t: Array, t: Array, mean: Array) -> None:
        """Set the fitted arrays: W' (n_bits, d), t (n_bits,), the mean (d,), and the levels, which take a pass."""
        levels = mean_levels(lambda f: rows.map_scores(W_t.T, t, lambda scores, t: f(scores - t)), rows)
        arrays = (rows.xp.astype(x, rows.dtype) for x in (W_t, t, mean, levels))
        self.components_, self.threshold_, self.mean_, self.levels_ = arrays


def principal_axes(rows: InputRows, *, n_bits: int, n_components: int, scale: float | None = None) -> Basis:
    """The leading axes of the rows: one moments pass and `scq_gpu.rows.basis.compute_basis`."""
    xp = rows.xp
    eps = float(xp.finfo(rows.dtype).eps)
    return compute_basis(rows.moments(), n_bits=n_bits, n_components=n_components, scale=scale, eps=eps, xp=xp)


def projections(rows: InputRows, W: Array, t: Array) -> Array:
    """``X @ W - t`` of all rows (n, k), in memory: what training goes through again and again."""
    W, t = (rows.xp.astype(x, rows.dtype) for x in (W, t))
    return rows.map_blocks(lambda X: X @ W, lambda scores: scores - t, where="X @ W")


def mean_row(rows: InputRows) -> Array:
    """The mean of the rows (d,)."""
    sums = rows.map_blocks(
        lambda X: X, lambda X: rows.xp.sum(X, axis=0, dtype=rows.sum_dtype)[None, :], where="the mean of X"
    )
    return rows.xp.sum(sums, axis=0) / rows.shape[0]


def mean_levels(map_scores: Callable[[Callable[[Array], Array]], Array], rows: InputRows) -> Array:
    """Mean score (n_bits, 2) of the rows whose bit is 0, and 1; ``map_scores(f)`` joins f of every block of scores."""
    xp = rows.xp

    def sums(scores: Array) -> Array:  # of the scores where the bit is 0 and 1, and how many these are: (1, 4, n_bits)
        scores = xp.astype(scores, rows.sum_dtype)
        bits = xp.astype(scores >= 0, rows.sum_dtype)
        one, ones = xp.sum(scores * bits, axis=0), xp.sum(bits, axis=0)
        return xp.stack([xp.sum(scores, axis=0) - one, one, scores.shape[0] - ones, ones])[None, ...]

    total = xp.sum(map_scores(sums), axis=0)
    counts = total[2:, :]
    return xp.matrix_transpose(total[:2, :] / xp.where(counts > 0, counts, xp.ones_like(counts)))


def on_device(x: np.ndarray, rows: InputRows) -> Array:
    """A host array where the rows are, in the type of sums."""
    return rows.xp.astype(from_host(x, xp=rows.xp, device=rows.device), rows.sum_dtype)
