"""What every metric is made of: how many codes, and how many relevant ones, lie at each distance of a query.

Hamming distances are small integers, so a ranking is a histogram: two counts per query and distance give the precision
at any radius, and every figure that does not ask for an order inside a tie, in closed form. Only ``ties="database"``
looks at single codes, and then by rank within the tie, never by a comparison sort of the whole database.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import numpy as np

from scq_gpu._core.arrays import Array, device_of, like, namespace, row_slices, to_host
from scq_gpu._core.devices import affordable
from scq_gpu.kernels.engines import compiled
from scq_gpu.kernels.hamming import distances, spherical_levels, spherical_ranks

_BLOCK_PAIRS = 1 << 21  # query-code pairs a block holds in memory
_PAIR_BYTES = 64  # distance, relevance, their key and order


@dataclass
class Scan:
    """Counts per query: all codes and relevant codes at each distance (q, bits + 1); the rest only where asked for."""

    counts: np.ndarray
    hits: np.ndarray
    ap_sum: np.ndarray  # (q,): sum over relevant ranks of precision, in database order inside ties
    top_hits: np.ndarray  # (q,): relevant codes among the first k, in database order inside ties

    @property
    def n(self) -> int:
        """Number of codes in the database."""
        return int(self.counts[0].sum())

    @property
    def relevant(self) -> np.ndarray:
        """Number of database codes (q,) that are relevant to each query."""
        per_query: np.ndarray = self.hits.sum(axis=1)
        return per_query


def scan(
    queries: Array,
    database: Array,
    query_labels: Array,
    database_labels: Array,
    *,
    ap: str | None = None,
    at: int | None = None,
    k: int = 0,
    distance: str = "hamming",
) -> Scan:
    """Go once through all pairs of codes.

    ``ap`` asks for the average-precision sums of the first ``at`` ranks, ``k`` for the hits among the first k. By the
    spherical distance, counts are per distance that there can be, from the least.
    """
    xp = namespace(queries, database)
    n, width = database.shape
    at, k = min(at or n, n), min(k, n)
    spherical = distance == "spherical"
    if not spherical and compiled(queries, queries.shape[0] * n) and 8 * width < 1 << 15:
        from scq_gpu.kernels import ranking_numba

        return Scan(*ranking_numba.scan(queries, database, query_labels, database_labels, ap=ap, at=at, k=k))
    labels = [like(x, queries) for x in (query_labels, database_labels)]
    levels = spherical_levels(width) if spherical else 8 * width + 1
    pairs = affordable(queries, _BLOCK_PAIRS, bytes_each=_PAIR_BYTES)
    step = max(1, pairs // max(n, 2 * levels))  # neither pairs nor histograms outgrow the block
    blocks = []
    for part in row_slices(queries.shape[0], step):
        relevant = _relevance(labels[0][part, ...], labels[1], xp=xp)
        d = (spherical_ranks if spherical else distances)(queries[part, :], database, xp=xp)
        blocks.append(_scan_block(d, relevant, levels=levels, ap=ap, at=at, k=k, xp=xp))
    return Scan(*(np.concatenate(parts) for parts in zip(*blocks, strict=True)))


def _relevance(query_labels: Array, database_labels: Array, *, xp: ModuleType) -> Array:
    """Booleans (q, n): same label, or, for 2-D labels, a label in common."""
    if query_labels.ndim == 1:
        return query_labels[:, None] == database_labels[None, :]
    shared = xp.astype(query_labels, xp.float32) @ xp.matrix_transpose(xp.astype(database_labels, xp.float32))
    return shared > 0.5


def _scan_block(
    d: Array, relevant: Array, *, levels: int, ap: str | None, at: int, k: int, xp: ModuleType
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    counts, hits = _histograms(d, relevant, levels=levels, xp=xp)
    ap_sum, top_hits = np.zeros(d.shape[0]), np.zeros(d.shape[0], dtype=np.int64)
    if ap or k:
        order = xp.argsort(d, axis=1, stable=True)[:, : max(at if ap else 0, k)]
        ranked = xp.take_along_axis(relevant, xp.astype(order, xp.int64, copy=False), axis=1)
        ap_sum = ap_sums(ranked[:, :at], ap, xp=xp) if ap else ap_sum
        top_hits = to_host(xp.sum(xp.astype(ranked[:, :k], xp.int64), axis=1)) if k else top_hits
    return counts, hits, ap_sum, top_hits


def ap_sums(ranked: Array, ap: str, *, xp: ModuleType) -> np.ndarray:
    """Sums over the relevant ranks of rankings (q, ranks): precision there, or its mean with the rank before.

    Only the positions of relevant ranks leave the device; the sums are float64 on the host, whatever the device has.
    """
    query, before = (to_host(x) for x in xp.nonzero(ranked))  # before: how many ranks precede
    q = ranked.shape[0]
    relevant = np.bincount(query, minlength=q)
    found = np.arange(1, len(query) + 1) - np.repeat(np.cumsum(relevant) - relevant, relevant)
    precision = found / (before + 1)
    if ap == "trapezoid":
        precision = 0.5 * (precision + np.where(before > 0, (found - 1) / np.maximum(before, 1), 1.0))
    return np.bincount(query, weights=precision, minlength=q)


def _histograms(d: Array, relevant: Array, *, levels: int, xp: ModuleType) -> tuple[np.ndarray, np.ndarray]:
    """How many codes, and how many relevant ones, lie at each distance: (q, levels) twice."""
    q, bins = d.shape[0], 2 * levels
    row = xp.arange(0, q * bins, bins, dtype=xp.int32, device=device_of(d))[:, None]
    keys = xp.reshape(xp.astype(d, xp.int32) * 2 + xp.astype(relevant, xp.int32) + row, (-1,))
    if hasattr(xp, "bincount"):
        flat = xp.bincount(keys, minlength=q * bins)
    else:
        edges = xp.arange(0, q * bins + 1, dtype=xp.int32, device=device_of(d))
        flat = xp.diff(xp.searchsorted(xp.sort(keys), edges))
    table = to_host(flat).reshape(q, levels, 2).astype(np.int64)
    return table.sum(axis=2), table[:, :, 1]


def expected_ap_sums(counts: np.ndarray, hits: np.ndarray, *, ap: str, at: int) -> np.ndarray:
    r"""Expectation of the average-precision sum over random orders inside each tie.

    A tie of c codes, r of them relevant, begins after s ranks with h relevant ones. Its j-th rank is relevant with
    probability r/c and then has (j - 1)(r - 1)/(c - 1) relevant ones of the tie before it on average, so

    .. math:: \sum_{j=1}^{c} \frac{r}{c} \cdot \frac{h + 1 + (j - 1)\frac{r - 1}{c - 1}}{s + j}

    and, with H the harmonic numbers, :math:`\sum_j 1/(s+j) = H_{s+c} - H_s` and
    :math:`\sum_j (j-1)/(s+j) = c - (s+1)(H_{s+c} - H_s)`. Cut at rank ``at``, j stops at ``at - s``.
    """
    n = int(counts[0].sum()) if counts.size else 0
    H = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, n + 1))])
    s = np.cumsum(counts, axis=1) - counts
    h = np.cumsum(hits, axis=1) - hits
    taken = np.clip(at - s, 0, counts)
    share = hits / np.maximum(counts, 1)
    slope = np.maximum(hits - 1, 0) / np.maximum(counts - 1, 1)
    inverse = H[s + taken] - H[s]
    here = (h + 1) * inverse + slope * (taken - (s + 1) * inverse)
    if ap == "trapezoid":
        # the rank before: (h + (j - 1) slope) / (s + j - 1), and 1 before the first rank of all
        before = H[np.maximum(s + taken - 1, 0)] - H[np.maximum(s - 1, 0)]
        later = np.where(s > 0, h * before + slope * (taken - s * before), 1 + slope * (taken - 1))
        here = (here + np.where(taken > 0, later, 0.0)) * 0.5
    sums: np.ndarray = (share * here).sum(axis=1)
    return sums


def expected_top_hits(counts: np.ndarray, hits: np.ndarray, *, k: int) -> np.ndarray:
    """Expected relevant codes among the first k over random orders inside each tie."""
    taken = np.clip(k - (np.cumsum(counts, axis=1) - counts), 0, counts)
    expected: np.ndarray = (taken * hits / np.maximum(counts, 1)).sum(axis=1)
    return expected
