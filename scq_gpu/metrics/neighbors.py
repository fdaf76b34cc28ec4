"""The true neighbors of queries, by the float vectors themselves: what codes are measured against."""

from __future__ import annotations

from typing import Any

import numpy as np

from scq_gpu._core.arrays import device_of, from_host, is_array, to_host
from scq_gpu._core.devices import on_device_of
from scq_gpu._core.validate import METRICS, check_choice, check_integer, check_rows
from scq_gpu.kernels.top_k import Nearest
from scq_gpu.rows.inputs import InputRows, as_rows
from scq_gpu.rows.normalized import NormalizedRows
from scq_gpu.rows.sources.base import RowSource


def exact_neighbors(
    X_query: Any, X_database: Any, *, k: int = 10, metric: str = "l2", device: str | None = None
) -> np.ndarray:
    """The rows nearest to each query by the floats themselves, exactly, in one pass over the database.

    Parameters
    ----------
    X_query : array (q, d)
    X_database : array (n, d), or what `scq_gpu.io.open_rows` gives
    k : int, default 10
    metric : {"l2", "cosine", "ip"}, default "l2"
        Least Euclidean distance, largest cosine, or largest inner product.
    device : str, optional
        Where to work; None follows X_database.

    Returns
    -------
    numpy.ndarray (q, k) of int64
        Row numbers, nearest first; the lowest first inside a tie.

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu import metrics
    >>> metrics.exact_neighbors(np.array([[0.0]]), np.array([[3.0], [1.0], [2.0]]), k=2)
    array([[1, 2]])
    """
    check_choice(metric, name="metric", choices=METRICS)
    rows = as_rows(prepared(X_database, metric), device=device)
    k = check_integer(k, name="k", minimum=1)
    if k > rows.shape[0]:
        raise ValueError(f"k={k} exceeds the {rows.shape[0]} rows there are; lower k")
    return nearest_rows(X_query, rows, k=k, metric=metric)


def prepared(X: Any, metric: str) -> Any:
    """Rows as a metric compares them: of unit length for the cosine."""
    if metric != "cosine":
        return X
    return NormalizedRows(X if isinstance(X, RowSource) else check_rows(X))


def nearest_rows(
    X_query: Any, rows: InputRows, *, k: int, metric: str = "l2", leave_out: np.ndarray | None = None
) -> np.ndarray:
    """Numbers (q, k) of the rows nearest to each query, those in ``leave_out`` aside.

    For the cosine the rows are `prepared`, and the least Euclidean distance is the largest cosine.
    """
    xp = rows.xp
    queries = (to_host(X_query) if is_array(X_query) else np.asarray(X_query)).astype(np.float64)
    if queries.ndim != 2 or queries.shape[1] != rows.shape[1]:
        raise ValueError(f"X_query has shape {queries.shape}; (queries, {rows.shape[1]}) is wanted, as X has")
    if not len(queries):
        return np.empty((0, k), dtype=np.int64)
    if metric == "cosine":
        queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    # distances stay when all is shifted, and large offsets no longer cost digits
    center = np.zeros(queries.shape[1]) if metric == "ip" else queries.mean(axis=0)
    with on_device_of(rows.sample):
        Q, mean = (xp.astype(from_host(x, xp=xp, device=rows.device), rows.dtype) for x in (queries - center, center))
        hidden = np.zeros(rows.shape[0], dtype=bool)
        hidden[[] if leave_out is None else leave_out] = True
        nearest, first = Nearest(k, xp=xp), 0
        for block in rows.blocks():
            last = first + block.shape[0]
            centered = block - mean
            d = -2 * (Q @ xp.matrix_transpose(centered))
            if metric != "ip":
                d = d + xp.sum(centered * centered, axis=1)
            out = from_host(hidden[first:last], xp=xp, device=device_of(d))
            nearest.offer(xp.where(out[None, :], xp.asarray(xp.inf, dtype=d.dtype, device=device_of(d)), d), first)
            first = last
        return to_host(nearest.best(dtype=rows.dtype, padding=np.inf)[1])


def take_rows(rows: InputRows, numbers: np.ndarray) -> np.ndarray:
    """Rows of ascending numbers, from one pass, on the host."""
    taken, first = [], 0
    with on_device_of(rows.sample):
        for block in rows.blocks():
            here = numbers[(numbers >= first) & (numbers < first + block.shape[0])] - first
            taken.append(to_host(block)[here])
            first += block.shape[0]
    return np.concatenate(taken)
