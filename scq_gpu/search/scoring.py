r"""Scores of float queries: distances to codes as sums over bits.

With unit columns :math:`u_k = w_k / |w_k|` a row has the coordinates :math:`o_k = u_k \cdot (x - \text{mean})`. A code
keeps only their signs, and stands for the levels :math:`c_{k, b_k}`, the mean of :math:`o_k` over the training rows
with that bit. Hence

.. math:: |q - x|^2 \approx \sum_k (o_k(q) - c_{k, b_k})^2, \qquad
          q \cdot x \approx q \cdot \text{mean} + \sum_k (u_k \cdot q) \, c_{k, b_k}.

Each score is a constant of the query and a sum over bits, which `scq_gpu.kernels.asymmetric` scans.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from scq_gpu._core.arrays import Array, elementwise, is_array, join_pieces, on_gpu, to_host, total
from scq_gpu._core.validate import METRICS, check_choice, check_projections


class QueryScores(NamedTuple):
    """Terms of distances ``base + sum``, where the sum is that of the gains of the set bits."""

    gain: Array  # (q, n_bits) float32, on the GPU where the queries or the encoder are
    base: Array  # (q,) float32, beside it


class UnitMap(NamedTuple):
    """Map of an encoder in unit columns."""

    lengths: np.ndarray  # (n_bits,): |w_k|
    threshold: np.ndarray  # (n_bits,)
    levels: np.ndarray  # (n_bits, 2): mean o_k of rows whose bit is 0, and 1
    mean: np.ndarray | None  # (d,)
    components: np.ndarray | None  # (n_bits, d)


def unit_map(encoder: Any) -> UnitMap:
    """Return the map of an encoder on the host, with unit columns if it has a projection but no components."""
    n_bits = encoder.n_bits
    components, levels = getattr(encoder, "components_", None), getattr(encoder, "levels_", None)
    lengths = np.ones(n_bits) if components is None else np.linalg.norm(_host(components), axis=1)
    lengths = np.where(lengths > 0, lengths, 1.0)
    known = np.tile([-1.0, 1.0], (n_bits, 1)) if levels is None else _host(levels)
    threshold, mean = getattr(encoder, "threshold_", np.zeros(n_bits)), getattr(encoder, "mean_", None)
    host = (None if x is None else _host(x) for x in (mean, components))
    return UnitMap(lengths, _host(threshold), known / lengths[:, None], *host)


def score_queries(encoder: Any, X_query: Array, *, metric: str) -> QueryScores:
    """Return the terms of the distances between float queries and codes."""
    check_choice(metric, name="metric", choices=METRICS)
    if metric == "ip" and hasattr(encoder, "_opened") and not hasattr(encoder, "mean_"):
        raise ValueError(
            f"{type(encoder).__name__} does not know the mean of its training rows, which metric='ip' needs; pass "
            "metric='l2'"
        )
    if hasattr(encoder, "_opened") and (on_gpu(X_query) or "cuda" in str(encoder.device)):
        found = _score_on_gpu(encoder, X_query, metric)
    else:
        projections = check_projections(to_host(encoder.project(X_query)), n_bits=encoder.n_bits)
        score = _score_products if metric == "ip" else _score_distances
        # Overflow is found by a check of the result
        with np.errstate(all="ignore"):
            found = score(projections, _host(X_query), unit_map(encoder))
    return found if metric != "cosine" else QueryScores(found.gain / 2, found.base / 2)


def _score_distances(P: np.ndarray, X: np.ndarray, known: UnitMap) -> QueryScores:
    o, (zero, one) = P / known.lengths, known.levels.T
    at_zero = (o - zero) ** 2
    gain, base = (o - one) ** 2 - at_zero, at_zero.sum(axis=1)
    _check_reach(np.abs(gain).sum(axis=1) + np.abs(base))
    return QueryScores(gain.astype(np.float32), base.astype(np.float32))


def _score_products(P: np.ndarray, X: np.ndarray, known: UnitMap) -> QueryScores:
    along, (zero, one) = (P + known.threshold) / known.lengths, known.levels.T
    gain, base = along * (zero - one), -(X @ known.mean) - along @ zero
    _check_reach(np.abs(gain).sum(axis=1) + np.abs(base))
    return QueryScores(gain.astype(np.float32), base.astype(np.float32))


def _check_reach(reach: np.ndarray) -> None:
    # In this range float32 holds distances, their differences and their sums
    low, high = 1e-30, 1e37
    if not (reach <= high).all() or 0 < reach.max(initial=0) < low:
        row = int(np.argmax(~(reach <= high)))
        raise ValueError(
            f"X_query: distances to row {row} reach {reach[row]:.1g}, and float32 holds {low:g} to {high:g}; scale the "
            "rows that the encoder is fitted on, and the queries alike"
        )


# ---- on a GPU: the same in few launches, where the map stays; the host waits once, for the reach ----

_products = total(lambda a, b: a * b, "a * b")
_sizes = total(abs, "a < 0 ? -a : a")


def _score_on_gpu(encoder: Any, X_query: Array, metric: str) -> QueryScores:
    names = [name for name in ("components_", "threshold_", "levels_", "mean_") if hasattr(encoder, name)]
    with encoder._opened(X_query, *names) as (rows, *arrays):
        xp, known = rows.xp, dict(zip(names, arrays, strict=True))
        wide = {name: xp.astype(x, rows.sum_dtype, copy=False) for name, x in known.items()}
        W, t = (xp.astype(known[name], rows.dtype, copy=False) for name in names[:2])
        squares = _products(wide["components_"], wide["components_"], axis=1, xp=xp)[:, 0]
        zero, one = (wide["levels_"][:, level] if "levels_" in wide else 2.0 * level - 1 for level in (0, 1))
        found = []
        for X in rows.blocks():
            P = X @ xp.matrix_transpose(W) - t
            if metric == "ip":
                gain, share = _gain_of_products(P, squares, wide["threshold_"], zero, one, xp=xp)
                mean = wide["mean_"][None, :]
                base = -_products(xp.astype(X, rows.sum_dtype), mean, axis=1, xp=xp) - xp.sum(
                    share, axis=1, keepdims=True
                )
            else:
                gain, share = _gain_of_distances(P, squares, zero, one, xp=xp)
                base = xp.sum(share, axis=1, keepdims=True)
            found.append((gain, base, _sizes(gain, axis=1, xp=xp) + abs(base)))
        gain, base, reach = (join_pieces(list(pieces)) for pieces in zip(*found, strict=True))
        host = to_host(reach)[:, 0]
        if not np.isfinite(host).all():
            # The error of `project` names the row with NaN or inf, if there is one
            check_projections(to_host(encoder.project(X_query)), n_bits=encoder.n_bits)
        _check_reach(host)
        return QueryScores(xp.astype(gain, xp.float32), xp.astype(base[:, 0], xp.float32))


@elementwise
def _gain_of_distances(P: Array, squares: Array, zero: Array, one: Array, *, xp: ModuleType) -> tuple[Array, Array]:
    length = xp.sqrt(xp.where(squares > 0, squares, squares + 1))
    at_zero = ((P - zero) / length) ** 2
    return ((P - one) / length) ** 2 - at_zero, at_zero


@elementwise
def _gain_of_products(
    P: Array, squares: Array, threshold: Array, zero: Array, one: Array, *, xp: ModuleType
) -> tuple[Array, Array]:
    square = xp.where(squares > 0, squares, squares + 1)
    along = (P + threshold) / square
    return along * (zero - one), along * zero


def _host(x: Any) -> np.ndarray:
    return np.array(to_host(x) if is_array(x) else x, dtype=np.float64)
