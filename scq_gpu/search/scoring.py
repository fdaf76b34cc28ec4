r"""Scores of float queries: distances to codes as sums over bits.

With unit columns :math:`u_k = w_k / |w_k|` a row has the coordinates :math:`o_k = u_k \cdot (x - \text{mean})`. A code
keeps only their signs, and stands for the levels :math:`c_{k, b_k}`, the mean of :math:`o_k` over the training rows
with that bit. Hence

.. math:: |q - x|^2 \approx \sum_k (o_k(q) - c_{k, b_k})^2, \qquad
          q \cdot x \approx q \cdot \text{mean} + \sum_k (u_k \cdot q) \, c_{k, b_k}.

With factors, let o be the coordinates along the orthonormal columns F nearest to the :math:`u_k`, :math:`b_k = \pm 1`
the L bits, :math:`S = \sum_k o_k b_k`, :math:`|e|^2 = |o|^2 - S^2 / L` the part in the span of F that is no multiple of
b, :math:`x_\perp` the part outside the span, :math:`t = \sum_k o_k(q) \, b_k`, and m the mean of :math:`|o|^2` over the
training rows. Then, as docs/theory.md derives,

.. math:: |q - x|^2 \approx |q - \text{mean}|^2 + r - 2 f t, \qquad
          q \cdot x \approx q \cdot \text{mean} + f \sum_k (F'q)_k \, b_k,

.. math:: f = \frac{S}{L} + \tau \frac{|e|^2}{S}, \qquad
          r = \frac{S^2}{L} + \tau |e|^2 + \frac{m \, |x_\perp|^2}{m + |x_\perp|^2}, \qquad
          \tau = \frac{S^2}{S^2 + 100 \, |o|^2}.

Each score is a constant of the query, a constant of the row and a sum over bits, which `scq_gpu.kernels.asymmetric`
scans.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from scq_gpu._core.arrays import Array, is_array, to_host
from scq_gpu._core.validate import METRICS, check_choice, check_projections

# Columns of the last two maps and the frames nearest to them, kept because a search may take less time
_frames: list[tuple[np.ndarray, np.ndarray]] = []


class QueryScores(NamedTuple):
    """Terms of distances ``base + unit * sum``, with factors ``base + unit * (offset + scale * (constant + sum))``.

    The sum is that of the gains of the set bits.
    """

    gain: np.ndarray  # (q, n_bits) float32
    base: np.ndarray  # (q,) float32
    unit: float
    constants: np.ndarray  # (q,) float32
    offsets: bool  # False for inner products, which leave the rows' offsets out


class UnitMap(NamedTuple):
    """Map of an encoder in unit columns."""

    lengths: np.ndarray  # (n_bits,): |w_k|
    threshold: np.ndarray  # (n_bits,)
    levels: np.ndarray  # (n_bits, 2): mean o_k of rows whose bit is 0, and 1
    mean: np.ndarray | None  # (d,)
    components: np.ndarray | None  # (n_bits, d)

    @property
    def frame(self) -> np.ndarray:
        """Return the orthonormal columns F (d, n_bits) nearest to the unit columns of the map."""
        if self.components is None or self.mean is None:
            raise ValueError("factors need an encoder that knows its components and the mean of its training rows")
        columns = (self.components / self.lengths[:, None]).T
        for known, frame in tuple(_frames):
            if np.array_equal(known, columns):
                return frame
        U, _, V = np.linalg.svd(columns, full_matrices=False)
        nearest: np.ndarray = U @ V
        _frames[:] = [(columns, nearest), *_frames[:1]]
        return nearest

    @property
    def scale(self) -> float:
        """Return the factor that brings rows to length 1 on average, the scale of stored float16."""
        # The square of a level may overflow, so a power of two is taken out first
        power = 2.0 ** np.frexp(np.abs(self.levels).max())[1]
        return float(1 / (power * np.sqrt(np.mean((self.levels / power) ** 2) * len(self.levels))))


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


def score_queries(encoder: Any, X_query: Array, *, metric: str, factors: bool) -> QueryScores:
    """Return the terms of the distances between float queries and codes."""
    check_choice(metric, name="metric", choices=METRICS)
    projections = check_projections(to_host(encoder.project(X_query)), n_bits=encoder.n_bits)
    known = unit_map(encoder)
    if (factors or metric == "ip") and known.mean is None:
        raise ValueError(
            f"{type(encoder).__name__} does not know the mean of its training rows, which "
            f"{'factors' if factors else 'metric=' + repr(metric)} need; pass metric='l2', and codes without factors"
        )
    score = _score_products if metric == "ip" else _score_distances
    # Overflow is found by a check of the result
    with np.errstate(all="ignore"):
        found = score(projections, _host(X_query), known, factors=factors)
    return found if metric != "cosine" else found._replace(base=found.base / 2, unit=found.unit / 2)


def _score_distances(P: np.ndarray, X: np.ndarray, known: UnitMap, *, factors: bool) -> QueryScores:
    o, (zero, one) = P / known.lengths, known.levels.T
    if not factors:
        at_zero = (o - zero) ** 2
        return _scores((o - one) ** 2 - at_zero, at_zero.sum(axis=1), 1.0)
    centered = X - known.mean
    o, square = centered @ known.frame * known.scale, (centered**2).sum(axis=1)
    return _scores(-4 * o, square, float(np.square(1 / known.scale)), constants=2 * o.sum(axis=1), offsets=True)


def _score_products(P: np.ndarray, X: np.ndarray, known: UnitMap, *, factors: bool) -> QueryScores:
    along, (zero, one) = (P + known.threshold) / known.lengths, known.levels.T
    base = -(X @ known.mean)
    if not factors:
        return _scores(along * (zero - one), base - along @ zero, 1.0)
    along = X @ known.frame
    return _scores(-2 * along, base, 1 / known.scale, constants=along.sum(axis=1))


def _scores(
    gain: np.ndarray, base: np.ndarray, unit: float, *, constants: np.ndarray | None = None, offsets: bool = False
) -> QueryScores:
    reach = unit * np.abs(gain).sum(axis=1) + np.abs(base)
    # In this range float32 holds distances, their differences and their sums
    low, high = 1e-30, 1e37
    if not (reach <= high).all() or 0 < reach.max(initial=0) < low:
        row = int(np.argmax(~(reach <= high)))
        raise ValueError(
            f"X_query: distances to row {row} reach {reach[row]:.1g}, and float32 holds {low:g} to {high:g}; scale the "
            "rows that the encoder is fitted on, and the queries alike"
        )
    none = np.zeros(len(gain)) if constants is None else constants
    return QueryScores(gain.astype(np.float32), base.astype(np.float32), unit, none.astype(np.float32), offsets)


def row_factors(sums: np.ndarray, n_bits: int) -> np.ndarray:
    """Return factors (n, 2) float16 from sums (n, 3) in the scale of the map.

    The sums are |o|^2, the sum S of o_k b_k, and |x - mean|^2.
    """
    inside, along, square = sums.astype(np.float64).T
    # With columns far from orthogonal, b may fit worse than zero
    along = np.maximum(along, 0.0)
    kept = (along / np.sqrt(n_bits)) ** 2
    lost, outside = np.maximum(inside - kept, 0.0), np.maximum(square - inside, 0.0)
    # tau / S, where 100 is the noise of t / S in units of |o|^2 / S^2, over the variance of the shares of e
    slope = along / np.where(inside > 0, n_bits * kept + 100.0 * inside, 1.0)
    correction = along / n_bits + slope * lost
    # In this scale the squares of levels add up to 1, so the mean of |o|^2 over training rows is m = pi / 2
    m = np.pi / 2
    offset = kept + slope * along * lost + m * outside / (m + outside)
    # A row too far out for float16 is shrunk along its direction; with its offset alone clipped, it would seem near
    largest = float(np.finfo(np.float16).max)
    shrink = np.sqrt(largest / np.maximum(offset, largest))
    factors: np.ndarray = np.stack([offset * shrink**2, correction * shrink], axis=1)
    return factors.astype(np.float16)


def _host(x: Any) -> np.ndarray:
    return np.array(to_host(x) if is_array(x) else x, dtype=np.float64)
