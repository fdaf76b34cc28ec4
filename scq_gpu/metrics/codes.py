"""Metrics of rankings: from packed codes and labels, exact, on any array backend, or from ranked ids of any search."""

from collections.abc import Callable

import numpy as np

from scq_gpu._core.arrays import Array, on_device_of_arguments, row_slices, to_host
from scq_gpu._core.validate import (
    AP_RULES,
    DISTANCES,
    TIE_RULES,
    check_array,
    check_choice,
    check_code_pair,
    check_integer,
    check_labels,
)
from scq_gpu.metrics import ranking
from scq_gpu.metrics.ranking import Scan

# Queries scanned at a time: there are many spherical distances, and a count for each.
_SPHERICAL_QUERIES = 256
_Four = tuple[Array, Array, Array, Array]  # codes of queries and database, then their labels


@on_device_of_arguments
def mean_average_precision(
    query_codes: Array,
    database_codes: Array,
    query_labels: Array,
    database_labels: Array,
    *,
    ap: str = "standard",
    ties: str = "database",
    at: int | None = None,
    distance: str = "hamming",
) -> float:
    """Compute the mean over queries of the average precision (AP) of their Hamming ranking.

    Parameters
    ----------
    query_codes : array (q, bytes) of uint8
        Packed codes, as ``encoder.encode`` and `scq_gpu.pack` return them.
    database_codes : array (n, bytes) of uint8
        In the same namespace.
    query_labels, database_labels : arrays
        Both 1-D integers (relevant: same label), or both 2-D of 0/1, a column per class (relevant: a label in common).
    ap : {"standard", "trapezoid"}, default "standard"
        ``"standard"`` averages the precision at the ranks of the relevant codes. ``"trapezoid"``, the rule of the
        paper's authors, replaces each by its mean with the precision one rank before (1 before the first rank).
    ties : {"database", "average"}, default "database"
        Order inside a tie: the order of the database, as in the paper authors' evaluation code, or the expectation over
        all orders, which does not depend on the order of the database.
    at : int, optional
        Count the first ``at`` ranks only, and divide by ``min(at, relevant codes)``, so that a perfect ranking still
        scores 1. (Some codebases divide by the relevant codes *found*, which gives higher values.)
    distance : {"hamming", "spherical"}, default "hamming"
        ``"spherical"`` is ``|b1 xor b2| / |b1 and b2|``, the distance of `SpH`.

    Examples
    --------
    >>> import numpy as np, scq_gpu as scq
    >>> query, database = np.array([[0]], dtype=np.uint8), np.array([[0b0], [0b1], [0b11]], dtype=np.uint8)
    >>> scq.metrics.mean_average_precision(query, database, np.array([7]), np.array([7, 5, 7]))
    0.8333333333333333
    """
    four = query_codes, database_codes, query_labels, database_labels
    return float(average_precision(*four, ap=ap, ties=ties, at=at, distance=distance).mean())


@on_device_of_arguments
def average_precision(
    query_codes: Array,
    database_codes: Array,
    query_labels: Array,
    database_labels: Array,
    *,
    ap: str = "standard",
    ties: str = "database",
    at: int | None = None,
    distance: str = "hamming",
) -> np.ndarray:
    """Compute the average precision of each query; arguments of `mean_average_precision`, "standard" AP by default.

    Returns
    -------
    numpy.ndarray (q,) of float64

    Examples
    --------
    >>> import numpy as np, scq_gpu as scq
    >>> query, database = np.zeros((1, 1), dtype=np.uint8), np.zeros((2, 1), dtype=np.uint8)
    >>> scq.metrics.average_precision(query, database, np.array([1]), np.array([0, 1]), ties="average")
    array([0.75])
    """
    check_choice(ap, name="ap", choices=AP_RULES)
    check_choice(ties, name="ties", choices=TIE_RULES)
    limit = None if at is None else check_integer(at, name="at", minimum=1)
    ordered = ties == "database"

    def precisions(found: Scan) -> np.ndarray:
        ranks = min(limit or found.n, found.n)
        sums = found.ap_sum if ordered else ranking.expected_ap_sums(found.counts, found.hits, ap=ap, at=ranks)
        return np.asarray(sums / np.clip(found.relevant, 1, ranks))

    four = query_codes, database_codes, query_labels, database_labels
    return _per_query(precisions, four, ap=ap if ordered else None, at=limit, distance=distance)


@on_device_of_arguments
def precision_at_radius(
    query_codes: Array, database_codes: Array, query_labels: Array, database_labels: Array, *, radius: int = 2
) -> float:
    """Compute the mean share of relevant codes within a Hamming radius; 0 for a query with nothing inside.

    Parameters
    ----------
    query_codes, database_codes, query_labels, database_labels : arrays
        As for `mean_average_precision`.
    radius : int, default 2
        The paper's prec@r2.

    Examples
    --------
    >>> import numpy as np, scq_gpu as scq
    >>> database = np.array([[0b0], [0b1], [0b111]], dtype=np.uint8)
    >>> scq.metrics.precision_at_radius(np.array([[0]], dtype=np.uint8), database, np.array([7]), np.array([7, 5, 7]))
    0.5
    """
    radius = check_integer(radius, name="radius", minimum=0)
    precision, _ = precision_recall_curve(query_codes, database_codes, query_labels, database_labels)
    return float(precision[min(radius, len(precision) - 1)])


@on_device_of_arguments
def recall_at_radius(
    query_codes: Array, database_codes: Array, query_labels: Array, database_labels: Array, *, radius: int = 2
) -> float:
    """Compute the mean share of a query's relevant codes within a radius; arguments of `precision_at_radius`.

    Examples
    --------
    >>> import numpy as np, scq_gpu as scq
    >>> database = np.array([[0b0], [0b1], [0b111]], dtype=np.uint8)
    >>> scq.metrics.recall_at_radius(np.array([[0]], dtype=np.uint8), database, np.array([7]), np.array([7, 5, 7]))
    0.5
    """
    radius = check_integer(radius, name="radius", minimum=0)
    _, recall = precision_recall_curve(query_codes, database_codes, query_labels, database_labels)
    return float(recall[min(radius, len(recall) - 1)])


@on_device_of_arguments
def precision_recall_curve(
    query_codes: Array, database_codes: Array, query_labels: Array, database_labels: Array
) -> tuple[np.ndarray, np.ndarray]:
    """Compute mean precision and mean recall within every Hamming radius 0, 1, ..., 8 * bytes.

    Parameters
    ----------
    query_codes, database_codes, query_labels, database_labels : arrays
        As for `mean_average_precision`.

    Returns
    -------
    precision, recall : numpy.ndarray (8 * bytes + 1,) of float64
        Entry r of each is `precision_at_radius` and `recall_at_radius` at radius r.

    Examples
    --------
    >>> import numpy as np, scq_gpu as scq
    >>> database = np.array([[0b0], [0b1], [0b11]], dtype=np.uint8)
    >>> query = np.array([[0]], dtype=np.uint8)
    >>> precision, recall = scq.metrics.precision_recall_curve(query, database, np.array([7]), np.array([7, 5, 7]))
    >>> precision[:3].round(3), recall[:3]
    (array([1.   , 0.5  , 0.667]), array([0.5, 0.5, 1. ]))
    """

    def curves(found: Scan) -> np.ndarray:
        inside, hits = np.cumsum(found.counts, axis=1), np.cumsum(found.hits, axis=1)
        return np.stack([hits / np.maximum(inside, 1), hits / np.maximum(found.relevant, 1)[:, None]], axis=1)

    precision, recall = _per_query(curves, (query_codes, database_codes, query_labels, database_labels)).mean(axis=0)
    return precision, recall


@on_device_of_arguments
def precision_at_k(
    query_codes: Array,
    database_codes: Array,
    query_labels: Array,
    database_labels: Array,
    *,
    k: int = 1000,
    ties: str = "database",
    distance: str = "hamming",
) -> float:
    """Compute the mean share of relevant codes among the first k of the Hamming ranking.

    Parameters
    ----------
    query_codes, database_codes, query_labels, database_labels, ties, distance
        As for `mean_average_precision`.
    k : int, default 1000
        The paper's prec@1k. A database with fewer codes is taken whole.

    Examples
    --------
    >>> import numpy as np, scq_gpu as scq
    >>> database = np.array([[0b0], [0b1], [0b11]], dtype=np.uint8)
    >>> scq.metrics.precision_at_k(np.array([[0]], dtype=np.uint8), database, np.array([7]), np.array([7, 5, 7]), k=2)
    0.5
    """
    four = query_codes, database_codes, query_labels, database_labels
    return _hits_at_k(four, lambda found: min(k, found.n), k=k, ties=ties, distance=distance)


@on_device_of_arguments
def label_recall_at_k(
    query_codes: Array,
    database_codes: Array,
    query_labels: Array,
    database_labels: Array,
    *,
    k: int = 1000,
    ties: str = "database",
    distance: str = "hamming",
) -> float:
    """Compute the mean share of a query's relevant codes among the first k; arguments of `precision_at_k`.

    Examples
    --------
    >>> import numpy as np, scq_gpu as scq
    >>> query, database = np.array([[0]], dtype=np.uint8), np.array([[0b0], [0b1], [0b11]], dtype=np.uint8)
    >>> scq.metrics.label_recall_at_k(query, database, np.array([7]), np.array([7, 5, 7]), k=2)
    0.5
    """
    four = query_codes, database_codes, query_labels, database_labels
    return _hits_at_k(four, lambda found: np.maximum(found.relevant, 1), k=k, ties=ties, distance=distance)


def _hits_at_k(four: _Four, out_of: Callable[[Scan], int | np.ndarray], *, k: int, ties: str, distance: str) -> float:
    """Average over queries the relevant codes among the first k, divided by ``out_of(scan)``."""
    k = check_integer(k, name="k", minimum=1)
    ordered = check_choice(ties, name="ties", choices=TIE_RULES) == "database"

    def shares(found: Scan) -> np.ndarray:
        hits = found.top_hits if ordered else ranking.expected_top_hits(found.counts, found.hits, k=k)
        return hits / out_of(found)

    return float(_per_query(shares, four, k=k if ordered else 0, distance=distance).mean())


def _per_query(
    metric: Callable[[Scan], np.ndarray],
    four: _Four,
    *,
    ap: str | None = None,
    at: int | None = None,
    k: int = 0,
    distance: str = "hamming",
) -> np.ndarray:
    """Compute a metric (q, ...) of each query's ranking; ``ap``, ``at`` and ``k`` are those of `ranking.scan`."""
    check_choice(distance, name="distance", choices=DISTANCES)
    queries, database = check_code_pair(*four[:2])
    q, n = queries.shape[0], database.shape[0]
    of_queries, of_database = check_labels(*four[2:], n_queries=q, n=n)
    values = []
    for part in row_slices(q, _SPHERICAL_QUERIES if distance == "spherical" else q):
        some = queries[part, :], database, of_queries[part, ...], of_database
        values.append(metric(ranking.scan(*some, ap=ap, at=at, k=k, distance=distance)))
    return np.concatenate(values)


@on_device_of_arguments
def recall_at_k(ids: Array, true_ids: Array, *, k: int | None = None) -> float:
    """Compute the mean share of the true neighbors among the first k results of a search.

    Parameters
    ----------
    ids : array (q, m) of integers or strings
        Results, best first, as `HammingIndex.search` returns them; -1, or the empty string, is padding.
    true_ids : array (q, t) of the same
        The t true neighbors, for example by float distance. "Recall 10@100" is t = 10, k = 100.
    k : int, optional
        Number of results that count; all m by default.

    Examples
    --------
    >>> import numpy as np, scq_gpu as scq
    >>> scq.metrics.recall_at_k(np.array([[4, 9, 2]]), np.array([[9, 7]]))
    0.5
    """
    found, true = (_check_ids(x, name=name, words=True) for x, name in ((ids, "ids"), (true_ids, "true_ids")))
    if (found.dtype.kind == "U") != (true.dtype.kind == "U"):
        raise ValueError(f"ids are {found.dtype} and true_ids {true.dtype}; pass both as strings or both as integers")
    if found.shape[0] != true.shape[0]:
        raise ValueError(f"ids has {found.shape[0]} rows and true_ids {true.shape[0]}; both have one row per query")
    pairs = zip(_first(found, k), true, strict=True)
    return float(np.mean([np.isin(t, f[f != "" if f.dtype.kind == "U" else f >= 0]).mean() for f, t in pairs]))


@on_device_of_arguments
def ranked_average_precision(
    ids: Array, query_labels: Array, database_labels: Array, *, ap: str = "standard"
) -> np.ndarray:
    """Compute the average precision of each query from ranked ids.

    Parameters
    ----------
    ids : array (q, m) of integers
        Rows of the database, best first; -1 is padding. The ranking ends after m, like ``at=m`` in
        `mean_average_precision`: the sum is divided by ``min(m, relevant codes)``.
    query_labels, database_labels : arrays
        As for `mean_average_precision`.
    ap : {"standard", "trapezoid"}, default "standard"

    Returns
    -------
    numpy.ndarray (q,) of float64

    Examples
    --------
    >>> import numpy as np, scq_gpu as scq
    >>> scq.metrics.ranked_average_precision(np.array([[1, 0, 2]]), np.array([7]), np.array([7, 5, 7]))
    array([0.58333333])
    """
    check_choice(ap, name="ap", choices=AP_RULES)
    ranked, relevant = _ranked_relevance(ids, query_labels, database_labels)
    return np.asarray(ranking.ap_sums(ranked, ap, xp=np) / np.clip(relevant, 1, ranked.shape[1]))


@on_device_of_arguments
def ranked_precision_at_k(ids: Array, query_labels: Array, database_labels: Array, *, k: int | None = None) -> float:
    """Compute the mean share of relevant rows among the first k of ranked ids.

    Parameters
    ----------
    ids, query_labels, database_labels : arrays
        As for `ranked_average_precision`; padding counts as irrelevant.
    k : int, optional
        All m by default.

    Examples
    --------
    >>> import numpy as np, scq_gpu as scq
    >>> scq.metrics.ranked_precision_at_k(np.array([[1, 0, 2]]), np.array([7]), np.array([7, 5, 7]), k=2)
    0.5
    """
    ranked, _ = _ranked_relevance(ids, query_labels, database_labels)
    return float(_first(ranked, k).mean())


def _first(results: np.ndarray, k: int | None) -> np.ndarray:
    """Return the first k results of each query (q, k); all of them for None."""
    if k is not None and check_integer(k, name="k", minimum=1) > results.shape[1]:
        raise ValueError(f"k={k} but ids holds {results.shape[1]} results per query; search for at least k")
    return results[:, :k]


def _check_ids(ids: Array, *, name: str, words: bool = False) -> np.ndarray:
    """Check ids (q, m) and copy them to the host; strings only if ``words``."""
    if words and isinstance(ids, np.ndarray) and ids.dtype.kind == "U" and ids.ndim == 2 and ids.shape[1]:
        return ids
    rows = to_host(check_array(ids, name=name, min_ndim=2))
    if rows.ndim != 2 or rows.shape[1] < 1 or rows.dtype.kind not in "iu":
        raise ValueError(
            f"{name} has shape {rows.shape} and dtype {rows.dtype}; ids are (queries, results) of integers"
        )
    return rows


def _ranked_relevance(ids: Array, query_labels: Array, database_labels: Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the relevance of each ranked row (q, m) and the number of relevant rows in the database (q,)."""
    rows = _check_ids(ids, name="ids")
    database_labels = check_array(database_labels, name="database_labels", min_ndim=1)
    n = database_labels.shape[0]
    checked = check_labels(query_labels, database_labels, n_queries=rows.shape[0], n=n)
    of_query, of_database = (to_host(labels) for labels in checked)
    if rows.max() >= n or rows.min() < -1:
        raise ValueError(
            f"ids run from {rows.min()} to {rows.max()}; they must be rows of the {n} database_labels, or -1"
        )
    ranked, relevant = np.empty(rows.shape, dtype=bool), np.empty(rows.shape[0], dtype=np.int64)
    for i, (row, label) in enumerate(zip(rows, of_query, strict=True)):
        same = of_database == label if of_query.ndim == 1 else (of_database & label).any(axis=1)
        ranked[i] = same[row] & (row >= 0)
        relevant[i] = same.sum()
    return ranked, relevant
