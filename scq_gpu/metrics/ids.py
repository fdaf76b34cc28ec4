"""Retrieval figures from ranked ids, whatever ranked them."""

from __future__ import annotations

import numpy as np

from scq_gpu._core.arrays import Array, namespace, to_host
from scq_gpu._core.devices import on_device_of_arguments
from scq_gpu._core.validate import AP_RULES, check_array, check_choice, check_integer, check_labels
from scq_gpu.metrics.ranking import ap_sums


@on_device_of_arguments
def recall_at_k(ids: Array, true_ids: Array, *, k: int | None = None) -> float:
    """Mean share of the true neighbors found among the first k results of a search.

    Parameters
    ----------
    ids : array (q, m) of integers
        Results, best first, as `HammingIndex.search` returns them; -1 is padding.
    true_ids : array (q, t) of integers
        The t neighbors wanted, for example nearest by float distance. "Recall 10@100" is t = 10, k = 100.
    k : int, optional
        How many results count; all m by default.

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu import metrics
    >>> metrics.recall_at_k(np.array([[4, 9, 2]]), np.array([[9, 7]]))
    0.5
    """
    found, wanted = _check_ids(ids, name="ids"), _check_ids(true_ids, name="true_ids")
    if found.shape[0] != wanted.shape[0]:
        raise ValueError(f"ids has {found.shape[0]} rows and true_ids {wanted.shape[0]}; both have one row per query")
    pairs = zip(_first(found, k), wanted, strict=True)
    return float(np.mean([np.isin(w, f[f >= 0]).mean() for f, w in pairs]))


@on_device_of_arguments
def ranked_average_precision(
    ids: Array, query_labels: Array, database_labels: Array, *, ap: str = "standard"
) -> np.ndarray:
    """Average precision of each query from ranked ids, whatever ranked them.

    Parameters
    ----------
    ids : array (q, m) of integers
        Rows of the database, best first; -1 is padding. The ranking stops after m; as with ``at=m`` in
        `mean_average_precision`, the sum is divided by ``min(m, relevant codes)``.
    query_labels, database_labels : arrays
        As for `mean_average_precision`.
    ap : {"standard", "trapezoid"}

    Returns
    -------
    numpy.ndarray (q,) of float64

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu import metrics
    >>> metrics.ranked_average_precision(np.array([[1, 0, 2]]), np.array([7]), np.array([7, 5, 7]))
    array([0.58333333])
    """
    check_choice(ap, name="ap", choices=AP_RULES)
    ranked, relevant = _ranked_relevance(ids, query_labels, database_labels)
    sums = ap_sums(ranked, ap, xp=namespace(ranked))
    precisions: np.ndarray = sums / np.clip(relevant, 1, ranked.shape[1])
    return precisions


@on_device_of_arguments
def ranked_precision_at_k(ids: Array, query_labels: Array, database_labels: Array, *, k: int | None = None) -> float:
    """Mean share of relevant rows among the first k of ranked ids.

    Parameters
    ----------
    ids : array (q, m) of integers
        Rows of the database, best first; -1 is padding and counts as irrelevant.
    query_labels, database_labels : arrays
        As for `mean_average_precision`.
    k : int, optional
        All m by default.

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu import metrics
    >>> metrics.ranked_precision_at_k(np.array([[1, 0, 2]]), np.array([7]), np.array([7, 5, 7]), k=2)
    0.5
    """
    ranked, _ = _ranked_relevance(ids, query_labels, database_labels)
    return float(_first(ranked, k).mean())


def _first(results: np.ndarray, k: int | None) -> np.ndarray:
    """The first k results (q, k) of those per query; all of them for None."""
    if k is not None and check_integer(k, name="k", minimum=1) > results.shape[1]:
        raise ValueError(f"k={k} but ids holds {results.shape[1]} results per query; search for at least k")
    return results[:, :k]


def _check_ids(ids: Array, *, name: str) -> np.ndarray:
    """Ids (q, m) on the host."""
    rows = to_host(check_array(ids, name=name, min_ndim=2))
    if rows.ndim != 2 or rows.shape[1] < 1 or rows.dtype.kind not in "iu":
        raise ValueError(
            f"{name} has shape {rows.shape} and dtype {rows.dtype}; ids are (queries, results) of integers"
        )
    return rows


def _ranked_relevance(ids: Array, query_labels: Array, database_labels: Array) -> tuple[np.ndarray, np.ndarray]:
    """Whether each ranked row is relevant (q, m), and how many rows of the database are (q,)."""
    rows = _check_ids(ids, name="ids")
    database_labels = check_array(database_labels, name="database_labels", min_ndim=1)
    n = database_labels.shape[0]
    checked = check_labels(query_labels, database_labels, n_queries=rows.shape[0], n=n)
    of_query, of_database = (to_host(labels) for labels in checked)
    if rows.max() >= n or rows.min() < -1:
        raise ValueError(
            f"ids run from {rows.min()} to {rows.max()}; they must be rows of the {n} database_labels, or -1"
        )
    ranked = np.empty(rows.shape, dtype=bool)
    relevant = np.empty(rows.shape[0], dtype=np.int64)
    for i, (row, label) in enumerate(zip(rows, of_query, strict=True)):
        same = of_database == label if of_query.ndim == 1 else (of_database & label).any(axis=1)
        ranked[i] = same[row] & (row >= 0)
        relevant[i] = same.sum()
    return ranked, relevant
