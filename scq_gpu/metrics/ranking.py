"""Histograms of distances, from which every metric is computed.

Hamming distances are small integers, so a ranking is a histogram. The numbers of all codes and of relevant codes per
query and distance give, in closed form, the precision at any radius and every metric that does not depend on the order
inside a tie. Only ``ties="database"`` looks at single codes, by rank within the tie.
"""

from dataclasses import dataclass
from types import ModuleType

import numpy as np

from scq_gpu._core.arrays import Array, affordable, device_of, like, namespace, row_slices, to_host
from scq_gpu.kernels import native
from scq_gpu.kernels.hamming import distances, spherical_levels, spherical_ranks

_BLOCK_PAIRS = 1 << 21  # query-code pairs in memory at a time


@dataclass
class Scan:
    """Numbers of all codes and of relevant codes at each distance (q, bits + 1), and sums in database order."""

    counts: np.ndarray
    hits: np.ndarray
    ap_sum: np.ndarray  # (q,): sum over relevant ranks of precision, in database order inside ties
    top_hits: np.ndarray  # (q,): relevant codes among the first k, in database order inside ties

    @property
    def n(self) -> int:
        """Return the number of codes in the database."""
        return int(self.counts[0].sum())

    @property
    def relevant(self) -> np.ndarray:
        """Return the number of database codes (q,) that are relevant to each query."""
        return np.asarray(self.hits.sum(axis=1))


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
    """Count the codes at each distance in one pass over all pairs.

    ``ap`` asks for the average-precision sums of the first ``at`` ranks, ``k`` for the hits among the first k. For the
    spherical distance, counts are per possible distance, in ascending order.
    """
    xp = namespace(queries, database)
    n, width = database.shape
    at, k = min(at or n, n), min(k, n)
    spherical = distance == "spherical"
    if not spherical and native.runs_native(queries) and 8 * width < 1 << 15:
        sets = to_host(query_labels), to_host(database_labels)
        return Scan(*native.rank(queries, database, *sets, ap=ap, at=at, k=k))
    labels = [like(x, queries) for x in (query_labels, database_labels)]
    levels = spherical_levels(width) if spherical else 8 * width + 1
    # A pair takes 64 bytes: its distance, relevance, key and order.
    pairs = affordable(queries, _BLOCK_PAIRS, bytes_each=64)
    blocks = []
    # Both pairs and histograms must fit.
    for part in row_slices(queries.shape[0], max(1, pairs // max(n, 2 * levels))):
        relevant = _relevance(labels[0][part, ...], labels[1], xp=xp)
        d = (spherical_ranks if spherical else distances)(queries[part, :], database, xp=xp)
        ap_sum, top_hits = np.zeros(d.shape[0]), np.zeros(d.shape[0], dtype=np.int64)
        if ap or k:
            order = xp.argsort(d, axis=1, stable=True)[:, : max(at if ap else 0, k)]
            ranked = xp.take_along_axis(relevant, xp.astype(order, xp.int64, copy=False), axis=1)
            ap_sum = ap_sums(ranked[:, :at], ap, xp=xp) if ap else ap_sum
            top_hits = to_host(xp.sum(xp.astype(ranked[:, :k], xp.int64), axis=1)) if k else top_hits
        blocks.append((*_histograms(d, relevant, levels=levels, xp=xp), ap_sum, top_hits))
    return Scan(*(np.concatenate(parts) for parts in zip(*blocks, strict=True)))


def _relevance(query_labels: Array, database_labels: Array, *, xp: ModuleType) -> Array:
    """Return booleans (q, n): same label or, for 2-D labels, a label in common."""
    if query_labels.ndim == 1:
        return query_labels[:, None] == database_labels[None, :]
    shared = xp.astype(query_labels, xp.float32) @ xp.matrix_transpose(xp.astype(database_labels, xp.float32))
    return shared > 0.5


def ap_sums(ranked: Array, ap: str, *, xp: ModuleType) -> np.ndarray:
    """Sum over the relevant ranks of rankings (q, ranks) the precision ("standard") or its mean with the rank before.

    Only the positions of relevant ranks leave the device. The sums are float64 on the host.
    """
    # before: number of preceding ranks
    query, before = (to_host(x) for x in xp.nonzero(ranked))
    q = ranked.shape[0]
    relevant = np.bincount(query, minlength=q)
    found = np.arange(1, len(query) + 1) - np.repeat(np.cumsum(relevant) - relevant, relevant)
    precision = found / (before + 1)
    if ap == "trapezoid":
        precision = 0.5 * (precision + np.where(before > 0, (found - 1) / np.maximum(before, 1), 1.0))
    return np.bincount(query, weights=precision, minlength=q)


def _histograms(d: Array, relevant: Array, *, levels: int, xp: ModuleType) -> tuple[np.ndarray, np.ndarray]:
    """Count all codes and relevant codes at each distance: (q, levels) twice."""
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
    r"""Compute the expected average-precision sum over random orders inside each tie.

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
        # The rank before has precision (h + (j - 1) slope) / (s + j - 1), and 1 before the first rank.
        before = H[np.maximum(s + taken - 1, 0)] - H[np.maximum(s - 1, 0)]
        later = np.where(s > 0, h * before + slope * (taken - s * before), 1 + slope * (taken - 1))
        here = (here + np.where(taken > 0, later, 0.0)) * 0.5
    return np.asarray((share * here).sum(axis=1))


def expected_top_hits(counts: np.ndarray, hits: np.ndarray, *, k: int) -> np.ndarray:
    """Compute the expected relevant codes among the first k over random orders inside each tie."""
    taken = np.clip(k - (np.cumsum(counts, axis=1) - counts), 0, counts)
    return np.asarray((taken * hits / np.maximum(counts, 1)).sum(axis=1))
