r"""Scores of float queries: distances to codes as sums over bits.

With unit columns :math:`u_k = w_k / |w_k|` a row has the coordinates :math:`o_k = u_k \cdot (x - \text{mean})`. A code
keeps only their signs, and stands for the levels :math:`c_{k, b_k}`, the mean of :math:`o_k` over the training rows
with that bit. Hence

.. math:: |q - x|^2 \approx \sum_k (o_k(q) - c_{k, b_k})^2, \qquad
          q \cdot x \approx q \cdot \text{mean} + \sum_k (u_k \cdot q) \, c_{k, b_k}.

Each score is a constant of the query and a sum over bits, which `scq_gpu.kernels.asymmetric` scans.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from scq_gpu._core.arrays import Array, is_array, to_host
from scq_gpu._core.validate import METRICS, check_choice, check_projections


class QueryScores(NamedTuple):
    """Terms of distances ``base + sum``, where the sum is that of the gains of the set bits."""

    gain: np.ndarray  # (q, n_bits) float32
    base: np.ndarray  # (q,) float32


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
    projections = check_projections(to_host(encoder.project(X_query)), n_bits=encoder.n_bits)
    known = unit_map(encoder)
    if metric == "ip" and known.mean is None:
        raise ValueError(
            f"{type(encoder).__name__} does not know the mean of its training rows, which metric='ip' needs; pass "
            "metric='l2'"
        )
    score = _score_products if metric == "ip" else _score_distances
    # Overflow is found by a check of the result
    with np.errstate(all="ignore"):
        found = score(projections, _host(X_query), known)
    return found if metric != "cosine" else QueryScores(found.gain / 2, found.base / 2)


def _score_distances(P: np.ndarray, X: np.ndarray, known: UnitMap) -> QueryScores:
    o, (zero, one) = P / known.lengths, known.levels.T
    at_zero = (o - zero) ** 2
    return _scores((o - one) ** 2 - at_zero, at_zero.sum(axis=1))


def _score_products(P: np.ndarray, X: np.ndarray, known: UnitMap) -> QueryScores:
    along, (zero, one) = (P + known.threshold) / known.lengths, known.levels.T
    return _scores(along * (zero - one), -(X @ known.mean) - along @ zero)


def _scores(gain: np.ndarray, base: np.ndarray) -> QueryScores:
    reach = np.abs(gain).sum(axis=1) + np.abs(base)
    # In this range float32 holds distances, their differences and their sums
    low, high = 1e-30, 1e37
    if not (reach <= high).all() or 0 < reach.max(initial=0) < low:
        row = int(np.argmax(~(reach <= high)))
        raise ValueError(
            f"X_query: distances to row {row} reach {reach[row]:.1g}, and float32 holds {low:g} to {high:g}; scale the "
            "rows that the encoder is fitted on, and the queries alike"
        )
    return QueryScores(gain.astype(np.float32), base.astype(np.float32))


def _host(x: Any) -> np.ndarray:
    return np.array(to_host(x) if is_array(x) else x, dtype=np.float64)
