"""Rescoring: re-rank what a search found by the original floats."""

from __future__ import annotations

from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array, is_array, like, namespace, on_device_of_arguments, row_slices, to_host
from scq_gpu._core.messages import warn_caller
from scq_gpu._core.validate import METRICS, check_array, check_choice, check_integer, check_rescored, unit_rows

_BLOCK_FLOATS = 1 << 22


@on_device_of_arguments
def rescore(
    X_query: Array, X_database: Any, ids: Array, *, k: int | None = None, metric: str | None = None
) -> tuple[Array, Array]:
    """Re-rank what a search found by the distance of the original floats.

    Search for 4 to 16 times as many as are needed, rescore, and keep the best k.

    Parameters
    ----------
    X_query : array (q, d)
    X_database : array (n, d), memory map, or anything that gives rows for a sorted array of row numbers
        Only the rows named by ids are read.
    ids : array (q, m) of integers
        Rows of ``X_database``, as `HammingIndex.search` returns them; -1 is padding.
    k : int, optional
        Number of results to keep; all m by default.
    metric : {"l2", "cosine", "ip"}, optional
        "l2" by default, with a warning if the norms of the rows vary by more than 5 %: the three then rank differently.

    Returns
    -------
    distances : array (q, k)
        Ascending: squared Euclidean distances, one minus the cosine, or negative inner products; inf for padding.
    ids : array (q, k) of int64
        Lowest id first inside a distance.

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu.search import rescore
    >>> rescore(np.array([[0.0]]), np.array([[3.0], [1.0], [2.0]]), np.array([[0, 1, 2]]), k=2, metric="l2")
    (array([[1., 4.]]), array([[1, 2]]))
    """
    X_query = check_array(X_query, name="X_query", min_ndim=2)
    found = to_host(check_array(ids, name="ids", min_ndim=2))
    n, d = (int(s) for s in X_database.shape)
    check_rescored(X_query, found, n=n, d=d)
    kept = found.shape[1] if k is None else check_integer(k, name="k", minimum=1)
    if kept > found.shape[1]:
        raise ValueError(f"k={kept} but ids holds {found.shape[1]} results per query; search for at least k")
    named = "l2" if metric is None else check_choice(metric, name="metric", choices=METRICS)
    Q = to_host(X_query)
    Q = Q.astype(np.result_type(Q.dtype, np.float32), copy=False)
    distances = np.full(found.shape, np.inf, dtype=Q.dtype)
    warned = False
    for block in row_slices(len(Q), max(1, _BLOCK_FLOATS // (found.shape[1] * d))):
        # Padding takes the place of a row that is read anyway; its distance is set to inf below
        named_rows = np.where(found[block] >= 0, found[block], found[block].max())
        if named_rows.max() < 0:
            continue
        rows, index = np.unique(named_rows, return_inverse=True)
        needed = to_host(take_rows(X_database, rows)).astype(Q.dtype, copy=False)
        if metric is None and not warned:
            # Their spread is the same at any scale, and squares of large or small floats are not floats
            norms = np.linalg.norm(needed / max(np.abs(needed).max(), np.finfo(Q.dtype).tiny), axis=1)
            # With a smaller spread the three metrics rank nearly alike
            warned = bool(norms.std() > 0.05 * norms.mean())
            if warned:
                warn_caller(
                    f"the norms of X_database vary by {norms.std() / norms.mean():.0%}: rankings by distance, cosine "
                    "and inner product differ. Say which is meant: metric='l2' (taken now), 'cosine' or 'ip'"
                )
        if named == "cosine":
            needed = unit_rows(needed, lambda i: f"row {rows[i]} of X_database")  # noqa: B023 - called at once
        candidates = needed[index.reshape(found[block].shape)]
        distances[block] = _distances(Q[block], candidates, named, first=block.start)
    distances[found < 0] = np.inf
    order = np.lexsort((found, distances), axis=1)[:, :kept]
    best = (np.take_along_axis(x, order, axis=1) for x in (distances, found.astype(np.int64)))
    d_best, id_best = (like(x, X_query) for x in best)
    return d_best, id_best


def _distances(Q: np.ndarray, candidates: np.ndarray, metric: str, *, first: int) -> np.ndarray:
    """Return distances from queries (q, d) to their own candidates (q, m, d), normalized for the cosine."""
    if metric == "l2":
        candidates = candidates - Q[:, None, :]
        squares: np.ndarray = np.einsum("qmd,qmd->qm", candidates, candidates)
        return squares
    if metric == "cosine":
        Q = unit_rows(Q, lambda row: f"row {first + row} of X_query")
    products: np.ndarray = np.einsum("qmd,qd->qm", candidates, Q)
    return 1 - products if metric == "cosine" else -products


def take_rows(X: Any, rows: np.ndarray) -> Array:
    """Return rows of a source by sorted, unique number."""
    foreign = is_array(X) and not isinstance(X, np.ndarray)
    return namespace(X).take(X, like(rows, X), axis=0) if foreign else X[rows]
