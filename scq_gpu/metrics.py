"""Retrieval figures from packed codes, exact, blockwise over queries, on any array backend.

A database code is relevant to a query if it has the same label or, with 2-D labels, a label in common. Codes are
ranked by Hamming distance, and Hamming distances tie: ``ties`` says what stands inside a tie. ``"database"`` takes the
order of the database (the paper authors' evaluation code does); ``"average"`` takes the expectation over all orders, so
that the figure does not depend on how the database happens to be shuffled. A query with no relevant code, or with
nothing within the radius, counts as 0.

Figures of a ranking take ``distance="spherical"`` too: the spherical Hamming distance ``|b1 xor b2| / |b1 and b2|``
that was made for `SpH`. Figures within a radius are by the Hamming distance.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scq_gpu import _ranking
from scq_gpu._id_metrics import ranked_average_precision, ranked_precision_at_k, recall_at_k
from scq_gpu._ranking import Scan
from scq_gpu._training_metrics import quantization_loss, retained_variance
from scq_gpu._validate import (
    AP_RULES,
    DISTANCES,
    TIE_RULES,
    check_choice,
    check_code_pair,
    check_integer,
    check_labels,
)
from scq_gpu._xp import Array, row_slices

__all__ = [
    "average_precision",
    "label_recall_at_k",
    "mean_average_precision",
    "precision_at_k",
    "precision_at_radius",
    "precision_recall_curve",
    "quantization_loss",
    "ranked_average_precision",
    "ranked_precision_at_k",
    "recall_at_k",
    "recall_at_radius",
    "retained_variance",
]

_SPHERICAL_QUERIES = 256  # scanned at a time: there are many spherical distances, and counts for each


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
        Both 1-D integers (relevant: same label), or both 2-D of 0/1, one column a class (relevant: a label in common).
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
    codes_and_labels = query_codes, database_codes, query_labels, database_labels
    return float(average_precision(*codes_and_labels, ap=ap, ties=ties, at=at, distance=distance).mean())


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
    return _scan_queries(
        (query_codes, database_codes, query_labels, database_labels),
        lambda found: average_precision_of(found, ap=ap, ties=ties, at=limit),
        ap=ap if ties == "database" else None,
        at=limit,
        distance=distance,
    )


def average_precision_of(found: Scan, *, ap: str, ties: str, at: int | None) -> np.ndarray:
    """Average precision (q,) from a scan; ``ties="database"`` needs one that asked for the same ap and at."""
    n = int(found.counts[0].sum())
    limit = min(at or n, n)
    expected = ties == "average"
    sums = _ranking.expected_ap_sums(found.counts, found.hits, ap=ap, at=limit) if expected else found.ap_sum
    precisions: np.ndarray = sums / np.clip(found.relevant, 1, limit)
    return precisions


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
    return precision_within(_scan(query_codes, database_codes, query_labels, database_labels), radius)


def precision_within(found: Scan, radius: int) -> float:
    """Mean precision within a radius, from a scan."""
    inside = found.counts[:, : radius + 1].sum(axis=1)
    return float((found.hits[:, : radius + 1].sum(axis=1) / np.maximum(inside, 1)).mean())


def recall_at_radius(
    query_codes: Array, database_codes: Array, query_labels: Array, database_labels: Array, *, radius: int = 2
) -> float:
    """Mean share of a query's relevant codes that lie within a Hamming radius.

    Parameters
    ----------
    query_codes, database_codes, query_labels, database_labels : arrays
        As for `mean_average_precision`.
    radius : int, default 2

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu import metrics
    >>> database = np.array([[0b0], [0b1], [0b111]], dtype=np.uint8)
    >>> metrics.recall_at_radius(np.array([[0]], dtype=np.uint8), database, np.array([7]), np.array([7, 5, 7]))
    0.5
    """
    radius = check_integer(radius, name="radius", minimum=0)
    found = _scan(query_codes, database_codes, query_labels, database_labels)
    return float((found.hits[:, : radius + 1].sum(axis=1) / np.maximum(found.relevant, 1)).mean())


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
    found = _scan(query_codes, database_codes, query_labels, database_labels)
    inside, hits = np.cumsum(found.counts, axis=1), np.cumsum(found.hits, axis=1)
    recall = hits / np.maximum(found.relevant, 1)[:, None]
    return (hits / np.maximum(inside, 1)).mean(axis=0), recall.mean(axis=0)


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
    query_codes, database_codes, query_labels, database_labels : arrays
        As for `mean_average_precision`.
    k : int, default 1000
        The paper's prec@1k. A database with fewer codes is taken whole.
    ties : {"database", "average"}
    distance : {"hamming", "spherical"}
        What codes are ranked by.

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu import metrics
    >>> database = np.array([[0b0], [0b1], [0b11]], dtype=np.uint8)
    >>> metrics.precision_at_k(np.array([[0]], dtype=np.uint8), database, np.array([7]), np.array([7, 5, 7]), k=2)
    0.5
    """
    codes_and_labels = query_codes, database_codes, query_labels, database_labels
    return float(_scan_top(codes_and_labels, _top_precisions, k=k, ties=ties, distance=distance).mean())


def top_precision_of(found: Scan, *, k: int, ties: str) -> float:
    """Mean precision among the first k, from a scan; ``ties="database"`` needs one that asked for the same k."""
    return float(_top_precisions(found, k=k, ties=ties).mean())


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
    """Mean share of a query's relevant codes that stand among the first k of the Hamming ranking.

    Parameters
    ----------
    query_codes, database_codes, query_labels, database_labels : arrays
        As for `mean_average_precision`.
    k : int, default 1000
    ties : {"database", "average"}
    distance : {"hamming", "spherical"}
        What codes are ranked by.

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu import metrics
    >>> database = np.array([[0b0], [0b1], [0b11]], dtype=np.uint8)
    >>> metrics.label_recall_at_k(np.array([[0]], dtype=np.uint8), database, np.array([7]), np.array([7, 5, 7]), k=2)
    0.5
    """
    codes_and_labels = query_codes, database_codes, query_labels, database_labels
    return float(_scan_top(codes_and_labels, _top_recalls, k=k, ties=ties, distance=distance).mean())


def _scan(query_codes: Array, database_codes: Array, query_labels: Array, database_labels: Array) -> Scan:
    """Check codes and labels, and count by distance."""
    return _ranking.scan(*_checked(query_codes, database_codes, query_labels, database_labels))


def _checked(
    query_codes: Array, database_codes: Array, query_labels: Array, database_labels: Array
) -> tuple[Array, Array, Array, Array]:
    queries, database = check_code_pair(query_codes, database_codes)
    labels = check_labels(query_labels, database_labels, n_queries=queries.shape[0], n=database.shape[0])
    return queries, database, *labels


def _scan_queries(
    codes_and_labels: tuple[Array, Array, Array, Array],
    figure: Callable[[Scan], np.ndarray],
    *,
    ap: str | None = None,
    at: int | None = None,
    k: int = 0,
    distance: str,
) -> np.ndarray:
    """A figure (q,) of each query's ranking."""
    check_choice(distance, name="distance", choices=DISTANCES)
    queries, database, query_labels, database_labels = _checked(*codes_and_labels)
    q = queries.shape[0]
    figures = []
    for part in row_slices(q, _SPHERICAL_QUERIES if distance == "spherical" else q):
        labels = query_labels[part, ...], database_labels
        found = _ranking.scan(queries[part, :], database, *labels, ap=ap, at=at, k=k, distance=distance)
        figures.append(figure(found))
    return np.concatenate(figures)


def _scan_top(
    codes_and_labels: tuple[Array, Array, Array, Array],
    figure: Callable[..., np.ndarray],
    *,
    k: int,
    ties: str,
    distance: str,
) -> np.ndarray:
    """A figure (q,) at k of each query's ranking."""
    k = check_integer(k, name="k", minimum=1)
    check_choice(ties, name="ties", choices=TIE_RULES)
    wanted = k if ties == "database" else 0
    return _scan_queries(codes_and_labels, lambda found: figure(found, k=k, ties=ties), k=wanted, distance=distance)


def _top_hits(found: Scan, *, k: int, ties: str) -> np.ndarray:
    """Relevant codes (q,) among the first k."""
    return found.top_hits if ties == "database" else _ranking.expected_top_hits(found.counts, found.hits, k=k)


def _top_precisions(found: Scan, *, k: int, ties: str) -> np.ndarray:
    return _top_hits(found, k=k, ties=ties) / min(k, int(found.counts[0].sum()))


def _top_recalls(found: Scan, *, k: int, ties: str) -> np.ndarray:
    recalls: np.ndarray = _top_hits(found, k=k, ties=ties) / np.maximum(found.relevant, 1)
    return recalls
