"""Figures of rankings from packed codes and labels: exact, blockwise over queries, on any array backend."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scq_gpu._core.arrays import Array, row_slices
from scq_gpu._core.devices import on_device_of_arguments
from scq_gpu._core.validate import (
    AP_RULES,
    DISTANCES,
    TIE_RULES,
    check_choice,
    check_code_pair,
    check_integer,
    check_labels,
)
from scq_gpu.metrics import ranking
from scq_gpu.metrics.ranking import Scan

_SPHERICAL_QUERIES = 256  # scanned at a time: there are many spherical distances, and counts for each


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
    """Mean over queries of the average precision of their Hamming ranking.

    Parameters
    ----------
    query_codes : array (q, bytes) of uint8
        Packed codes, as ``encoder.encode`` and `scq_gpu.pack` give them.
    database_codes : array (n, bytes) of uint8
        In the same namespace.
    query_labels, database_labels : arrays
        Both 1-D integers (relevant: same label), or both 2-D of 0/1, a column per class (relevant: a label in common).
    ap : {"standard", "trapezoid"}
        ``"standard"`` averages the precision at the ranks of the relevant codes. ``"trapezoid"``, which the authors of
        the paper use, takes there the mean of the precision at that rank and at the rank before (1 before the first).
    ties : {"database", "average"}
        Order inside a tie: that of the database, or the expectation over all orders.
    at : int, optional
        Look at the first ``at`` ranks only, and divide by ``min(at, relevant codes)``, so that a perfect ranking still
        scores 1. (Some codebases divide by the relevant codes *found*; their figures are higher.)
    distance : {"hamming", "spherical"}
        What codes are ranked by.

    Returns
    -------
    float

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu import metrics
    >>> database = np.array([[0b0], [0b1], [0b11]], dtype=np.uint8)
    >>> metrics.mean_average_precision(np.array([[0]], dtype=np.uint8), database, np.array([7]), np.array([7, 5, 7]))
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
    """Average precision of each query; see `mean_average_precision`.

    Returns
    -------
    numpy.ndarray (q,) of float64

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu import metrics
    >>> query, database = np.zeros((1, 1), dtype=np.uint8), np.zeros((2, 1), dtype=np.uint8)
    >>> metrics.average_precision(query, database, np.array([1]), np.array([0, 1]), ties="average")
    array([0.75])
    """
    check_choice(ap, name="ap", choices=AP_RULES)
    check_choice(ties, name="ties", choices=TIE_RULES)
    limit = None if at is None else check_integer(at, name="at", minimum=1)
    ordered = ties == "database"

    def figure(found: Scan) -> np.ndarray:
        ranks = min(limit or found.n, found.n)
        sums = found.ap_sum if ordered else ranking.expected_ap_sums(found.counts, found.hits, ap=ap, at=ranks)
        precisions: np.ndarray = sums / np.clip(found.relevant, 1, ranks)
        return precisions

    four = query_codes, database_codes, query_labels, database_labels
    return _per_query(figure, *four, ap=ap if ordered else None, at=limit, distance=distance)


@on_device_of_arguments
def precision_at_radius(
    query_codes: Array, database_codes: Array, query_labels: Array, database_labels: Array, *, radius: int = 2
) -> float:
    """Mean share of relevant codes among those within a Hamming radius; 0 for a query with nothing inside.

    Parameters
    ----------
    query_codes, database_codes, query_labels, database_labels : arrays
        As for `mean_average_precision`.
    radius : int, default 2
        The paper's prec@r2.

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu import metrics
    >>> database = np.array([[0b0], [0b1], [0b111]], dtype=np.uint8)
    >>> metrics.precision_at_radius(np.array([[0]], dtype=np.uint8), database, np.array([7]), np.array([7, 5, 7]))
    0.5
    """
    radius = check_integer(radius, name="radius", minimum=0)
    precision, _ = precision_recall_curve(query_codes, database_codes, query_labels, database_labels)
    return float(precision[min(radius, len(precision) - 1)])


@on_device_of_arguments
def recall_at_radius(
    query_codes: Array, database_codes: Array, query_labels: Array, database_labels: Array, *, radius: int = 2
) -> float:
    """Mean share of a query's relevant codes that lie within a Hamming radius; arguments of `precision_at_radius`.

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu import metrics
    >>> database = np.array([[0b0], [0b1], [0b111]], dtype=np.uint8)
    >>> metrics.recall_at_radius(np.array([[0]], dtype=np.uint8), database, np.array([7]), np.array([7, 5, 7]))
    0.5
    """
    radius = check_integer(radius, name="radius", minimum=0)
    _, recall = precision_recall_curve(query_codes, database_codes, query_labels, database_labels)
    return float(recall[min(radius, len(recall) - 1)])


@on_device_of_arguments
def precision_recall_curve(
    query_codes: Array, database_codes: Array, query_labels: Array, database_labels: Array
) -> tuple[np.ndarray, np.ndarray]:
    """Mean precision and mean recall within every Hamming radius 0, 1, ..., 8 * bytes.

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
    >>> import numpy as np
    >>> from scq_gpu import metrics
    >>> database = np.array([[0b0], [0b1], [0b11]], dtype=np.uint8)
    >>> query = np.array([[0]], dtype=np.uint8)
    >>> precision, recall = metrics.precision_recall_curve(query, database, np.array([7]), np.array([7, 5, 7]))
    >>> precision[:3].round(3), recall[:3]
    (array([1.   , 0.5  , 0.667]), array([0.5, 0.5, 1. ]))
    """

    def figure(found: Scan) -> np.ndarray:
        inside, hits = np.cumsum(found.counts, axis=1), np.cumsum(found.hits, axis=1)
        return np.stack([hits / np.maximum(inside, 1), hits / np.maximum(found.relevant, 1)[:, None]], axis=1)

    precision, recall = _per_query(figure, query_codes, database_codes, query_labels, database_labels).mean(axis=0)
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
    """Mean share of relevant codes among the first k of the Hamming ranking.

    Parameters
    ----------
    query_codes, database_codes, query_labels, database_labels, ties, distance
        As for `mean_average_precision`.
    k : int, default 1000
        The paper's prec@1k. A database with fewer codes is taken whole.

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu import metrics
    >>> database = np.array([[0b0], [0b1], [0b11]], dtype=np.uint8)
    >>> metrics.precision_at_k(np.array([[0]], dtype=np.uint8), database, np.array([7]), np.array([7, 5, 7]), k=2)
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
    """Mean share of a query's relevant codes among the first k of the ranking; arguments of `precision_at_k`.

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu import metrics
    >>> database = np.array([[0b0], [0b1], [0b11]], dtype=np.uint8)
    >>> metrics.label_recall_at_k(np.array([[0]], dtype=np.uint8), database, np.array([7]), np.array([7, 5, 7]), k=2)
    0.5
    """
    four = query_codes, database_codes, query_labels, database_labels
    return _hits_at_k(four, lambda found: np.maximum(found.relevant, 1), k=k, ties=ties, distance=distance)


def _hits_at_k(
    four: tuple[Array, Array, Array, Array],
    out_of: Callable[[Scan], int | np.ndarray],
    *,
    k: int,
    ties: str,
    distance: str,
) -> float:
    """Mean over queries of the relevant codes among the first k, divided by ``out_of(scan)``."""
    k = check_integer(k, name="k", minimum=1)
    ordered = check_choice(ties, name="ties", choices=TIE_RULES) == "database"

    def figure(found: Scan) -> np.ndarray:
        hits = found.top_hits if ordered else ranking.expected_top_hits(found.counts, found.hits, k=k)
        return hits / out_of(found)

    return float(_per_query(figure, *four, k=k if ordered else 0, distance=distance).mean())


def _per_query(
    figure: Callable[[Scan], np.ndarray],
    query_codes: Array,
    database_codes: Array,
    query_labels: Array,
    database_labels: Array,
    *,
    ap: str | None = None,
    at: int | None = None,
    k: int = 0,
    distance: str = "hamming",
) -> np.ndarray:
    """A figure (q, ...) of each query's ranking; ``ap``, ``at`` and ``k`` are those of `ranking.scan`."""
    check_choice(distance, name="distance", choices=DISTANCES)
    queries, database = check_code_pair(query_codes, database_codes)
    q, n = queries.shape[0], database.shape[0]
    of_queries, of_database = check_labels(query_labels, database_labels, n_queries=q, n=n)
    figures = []
    for part in row_slices(q, _SPHERICAL_QUERIES if distance == "spherical" else q):
        four = queries[part, :], database, of_queries[part, ...], of_database
        figures.append(figure(ranking.scan(*four, ap=ap, at=at, k=k, distance=distance)))
    return np.concatenate(figures)
