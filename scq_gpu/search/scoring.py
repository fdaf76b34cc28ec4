r"""What float queries add up over the bits of codes: distances to what a code stands for.

With unit columns :math:`u_k = w_k / |w_k|` a row has the coordinates :math:`o_k = u_k \cdot (x - \text{mean})`. All
that is left of it is the sign of each, so a code stands for the levels :math:`c_{k, b_k}`, the mean of :math:`o_k` over
the training rows with that bit, and

.. math:: |q - x|^2 \approx \sum_k (o_k(q) - c_{k, b_k})^2, \qquad
          q \cdot x \approx q \cdot \text{mean} + \sum_k (u_k \cdot q) \, c_{k, b_k}.

Two numbers per row say more. Let :math:`o = F'(x - \text{mean})` be coordinates along the orthonormal columns F nearest
to the :math:`u_k`, :math:`b_k = \pm 1` the L bits, and :math:`S = \sum_k o_k b_k`. Then :math:`x - \text{mean}` has
three parts: :math:`(S / L) \, b`, the multiple of its code nearest to it; a rest e in the span of F,
:math:`|e|^2 = |o|^2 - S^2 / L`; and :math:`x_\perp` outside the span. Of a query, :math:`t = \sum_k o_k(q) \, b_k` is
known, and so is its product with the first part. Its share of e, :math:`q \cdot e / |e|^2`, is estimated by its share
of the first part, t / S, drawn in to 1/2 because few bits make t noisy:
:math:`q \cdot e \approx |e|^2 (\tau \, t / S + (1 - \tau) / 2)`. Hence

.. math:: |q - x|^2 \approx |q - \text{mean}|^2 + r - 2 f t, \qquad
          q \cdot x \approx q \cdot \text{mean} + f \sum_k (F'q)_k \, b_k,

.. math:: f = \frac{S}{L} + \tau \frac{|e|^2}{S}, \qquad
          r = \frac{S^2}{L} + \tau |e|^2 + \frac{m \, |x_\perp|^2}{m + |x_\perp|^2}, \qquad
          \tau = \frac{S^2}{S^2 + 100 \, |o|^2}.

:math:`S^2` grows like :math:`L |o|^2`, so :math:`\tau` is about 0.2 at 32 bits and 0.6 at 256. With :math:`\tau = 1`,
f is that of RaBitQ (Gao and Long, SIGMOD 2024): unbiased, but so large for rows which their code fits badly that they
crowd the top. A query near x inside the span is likely to be near it outside, the more so the less the map holds; hence
:math:`x_\perp` adds less than its norm, and at most m, the mean of :math:`|o|^2` over the training rows, which is
:math:`\pi / 2` times the mean square of their levels if the :math:`o_k` are bell-shaped. Estimates are made for rows
near the query; distances of far ones come out too small. The form and the 100 were chosen on queries held out of the
training rows (docs/results/factors_study.md).

All of them are a constant of the query, and of the row, and a sum over bits: what `scq_gpu.kernels.asymmetric` scans.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from scq_gpu._core.arrays import Array, is_array, to_host
from scq_gpu._core.validate import METRICS, check_choice, check_projections

_HALF_MAX = float(np.finfo(np.float16).max)
_REACH = 1e-30, 1e37  # of distances, so that float32 holds them, their differences and their sums
_NOISE = 100.0  # how much t / S varies by chance, in units of |o|^2 / S^2, over how much the shares of e vary
_INSIDE = np.pi / 2  # mean |o|^2 of training rows in the scale of the map, where the squares of levels add up to 1

_frames: list[tuple[np.ndarray, np.ndarray]] = []  # columns of maps and the frames nearest to them


class QueryScores(NamedTuple):
    """Distances are ``base + unit * (sum over set bits of gain)``, or of ``offset + scale * (constant + sum)``."""

    gain: np.ndarray  # (q, n_bits) float32
    base: np.ndarray  # (q,) float32
    unit: float
    constants: np.ndarray  # (q,) float32, with factors
    offsets: bool  # whether the rows' offsets count


class UnitMap(NamedTuple):
    """The map of an encoder in unit columns."""

    lengths: np.ndarray  # (n_bits,): |w_k|
    threshold: np.ndarray  # (n_bits,)
    levels: np.ndarray  # (n_bits, 2): mean o_k of rows whose bit is 0, and 1
    mean: np.ndarray | None  # (d,)
    components: np.ndarray | None  # (n_bits, d)

    @property
    def frame(self) -> np.ndarray:
        """The orthonormal columns F (d, n_bits) nearest to the unit columns of the map."""
        if self.components is None or self.mean is None:
            raise ValueError("factors need an encoder that knows its components and the mean of its training rows")
        return _nearest_frame((self.components / self.lengths[:, None]).T)

    @property
    def scale(self) -> float:
        """Factor that brings rows to length 1 on average: what is stored as float16 is in this scale."""
        power = 2.0 ** np.frexp(np.abs(self.levels).max())[1]  # whose square may be beyond floats
        return float(1 / (power * np.sqrt(np.mean((self.levels / power) ** 2) * len(self.levels))))


def unit_map(encoder: Any) -> UnitMap:
    """The map of an encoder, on the host; of one with a projection alone, its columns are taken to be unit."""
    n_bits = encoder.n_bits
    components, levels = getattr(encoder, "components_", None), getattr(encoder, "levels_", None)
    lengths = np.ones(n_bits) if components is None else np.linalg.norm(_host(components), axis=1)
    lengths = np.where(lengths > 0, lengths, 1.0)
    known = np.tile([-1.0, 1.0], (n_bits, 1)) if levels is None else _host(levels)
    threshold, mean = getattr(encoder, "threshold_", np.zeros(n_bits)), getattr(encoder, "mean_", None)
    host = (None if x is None else _host(x) for x in (mean, components))
    return UnitMap(lengths, _host(threshold), known / lengths[:, None], *host)


def _nearest_frame(columns: np.ndarray) -> np.ndarray:
    """The orthonormal columns nearest to some; those of the last two maps are kept, as a search may take less long."""
    for known, frame in tuple(_frames):
        if np.array_equal(known, columns):
            return frame
    U, _, V = np.linalg.svd(columns, full_matrices=False)
    nearest: np.ndarray = U @ V
    _frames[:] = [(columns, nearest), *_frames[:1]]
    return nearest


def score_queries(encoder: Any, X_query: Array, *, metric: str, factors: bool) -> QueryScores:
    """What the bits of codes add to the distances of float queries."""
    check_choice(metric, name="metric", choices=METRICS)
    projections = check_projections(to_host(encoder.project(X_query)), n_bits=encoder.n_bits)
    known = unit_map(encoder)
    if (factors or metric == "ip") and known.mean is None:
        raise ValueError(
            f"{type(encoder).__name__} does not know the mean of its training rows, which "
            f"{'factors' if factors else 'metric=' + repr(metric)} need; pass metric='l2', and codes without factors"
        )
    score = _inner_products if metric == "ip" else _distances
    with np.errstate(all="ignore"):  # the result is checked instead
        found = score(projections, _host(X_query), known, factors=factors)
    return found if metric != "cosine" else found._replace(base=found.base / 2, unit=found.unit / 2)


def _distances(P: np.ndarray, X: np.ndarray, known: UnitMap, *, factors: bool) -> QueryScores:
    o, (zero, one) = P / known.lengths, known.levels.T
    if not factors:
        at_zero = (o - zero) ** 2
        return _scores((o - one) ** 2 - at_zero, at_zero.sum(axis=1), 1.0)
    centered = X - known.mean
    o, square = centered @ known.frame * known.scale, (centered**2).sum(axis=1)
    return _scores(-4 * o, square, float(np.square(1 / known.scale)), constants=2 * o.sum(axis=1), offsets=True)


def _inner_products(P: np.ndarray, X: np.ndarray, known: UnitMap, *, factors: bool) -> QueryScores:
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
    low, high = _REACH
    if not (reach <= high).all() or 0 < reach.max(initial=0) < low:
        row = int(np.argmax(~(reach <= high)))
        raise ValueError(
            f"X_query: distances to row {row} reach {reach[row]:.1g}, and float32 holds {low:g} to {high:g}; scale the "
            "rows that the encoder is fitted on, and the queries alike"
        )
    none = np.zeros(len(gain)) if constants is None else constants
    return QueryScores(gain.astype(np.float32), base.astype(np.float32), unit, none.astype(np.float32), offsets)


def row_factors(sums: np.ndarray, n_bits: int) -> np.ndarray:
    """Factors (n, 2) float16 from sums (n, 3) in the scale of the map: |o|^2, the sum S of o_k b_k, and |x - mean|^2.

    A row too far out for float16 is drawn in along its direction: were its offset alone cut, it would seem near.
    """
    inside, along, square = sums.astype(np.float64).T
    along = np.maximum(along, 0.0)  # of columns far from orthogonal, b may fit worse than nothing
    told = (along / np.sqrt(n_bits)) ** 2
    lost, outside = np.maximum(inside - told, 0.0), np.maximum(square - inside, 0.0)
    slope = along / np.where(inside > 0, n_bits * told + _NOISE * inside, 1.0)  # tau / S
    correction = along / n_bits + slope * lost
    offset = told + slope * along * lost + _INSIDE * outside / (_INSIDE + outside)
    drawn = np.sqrt(_HALF_MAX / np.maximum(offset, _HALF_MAX))
    factors: np.ndarray = np.stack([offset * drawn**2, correction * drawn], axis=1)
    return factors.astype(np.float16)


def _host(x: Any) -> np.ndarray:
    return np.array(to_host(x) if is_array(x) else x, dtype=np.float64)
