"""Scoring float queries against bits, and rescoring what a search found with the original floats."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from scq_gpu._hamming import use_numba
from scq_gpu._validate import check_array, check_integer, check_projections, check_rescored
from scq_gpu._xp import Array, device_of, from_host, namespace, row_slices, to_host
from scq_gpu.codes import unpack
from scq_gpu.search import HammingIndex

__all__ = ["asymmetric_search", "rescore"]

_BLOCK_ROWS = 1 << 14
_BLOCK_PAIRS = 1 << 22
_BLOCK_FLOATS = 1 << 22


def asymmetric_search(encoder: Any, X_query: Array, index: HammingIndex, k: int) -> tuple[Array, Array]:
    r"""The k nearest codes to float queries: the query is not rounded to bits, only the database is.

    The distance of a query with projections p to a code with bits b is that to what the code stands for, squared:

    .. math:: \sum_k (p_k - c_{k, b_k})^2

    The level :math:`c_{k, 0}` (or :math:`c_{k, 1}`) is the mean training projection whose bit k is 0 (or 1). No
    floats of the database are needed. It finds more of the true neighbours than the Hamming distance and has few ties.

    Parameters
    ----------
    encoder : fitted encoder
        With ``project(X)``, ``n_bits`` and, learned in ``fit``, ``levels_`` (n_bits, 2); without the latter the levels
        are -1 and +1.
    X_query : array (q, d)
    index : HammingIndex
        Of codes from the same encoder.
    k : int

    Returns
    -------
    distances : array (q, k) of float32
        Ascending; inf where the index holds fewer than k codes.
    ids : array (q, k) of int64
        Lowest id first inside a distance; -1 where the index holds fewer than k codes.

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu.asymmetric import asymmetric_search
    >>> from scq_gpu.search import HammingIndex
    >>> class Identity:
    ...     n_bits = 2
    ...
    ...     def project(self, X):
    ...         return X
    >>> index = HammingIndex(np.array([[0b00], [0b01], [0b11]], dtype=np.uint8), n_bits=2)
    >>> asymmetric_search(Identity(), np.array([[0.75, -0.25]]), index, k=2)
    (array([[0.625, 1.625]], dtype=float32), array([[1, 2]]))
    """
    k = check_integer(k, name="k", minimum=1)
    if encoder.n_bits != index.n_bits:
        raise ValueError(
            f"the encoder makes codes of n_bits={encoder.n_bits} and the index holds n_bits={index.n_bits}; "
            "search with the encoder that made the codes"
        )
    if not len(index):
        raise ValueError("the index is empty; add codes before searching")
    parts = index._joined()
    xp, device = namespace(parts[0]), device_of(parts[0])
    P = check_projections(to_host(encoder.project(X_query)), n_bits=index.n_bits)
    base, gain = _weights(P, getattr(encoder, "levels_", None))
    if use_numba(parts[0], len(P) * len(index)):
        from scq_gpu import _asymmetric_numba

        d, rows = _asymmetric_numba.knn(gain, parts, k)
    else:
        d, rows = _knn(from_host(gain, xp=xp, device=device), parts, k, n_bits=index.n_bits, xp=xp)
    base = from_host(base, xp=xp, device=device)
    zero = xp.zeros_like(d)
    return xp.where(d + base[:, None] > 0, d + base[:, None], zero), index._to_ids(rows)


def _weights(P: np.ndarray, levels: Array | None) -> tuple[np.ndarray, np.ndarray]:
    """What a code of zeros costs each query (q,), and what each bit set adds (q, n_bits)."""
    zero, one = (-1.0, 1.0) if levels is None else to_host(levels).astype(np.float64).T
    at_zero = (P - zero) ** 2
    return at_zero.sum(axis=1).astype(np.float32), ((P - one) ** 2 - at_zero).astype(np.float32)


def _knn(gain: Array, parts: list[Array], k: int, *, n_bits: int, xp: ModuleType) -> tuple[Array, Array]:
    """Rows of least summed gain, in array operations.

    What the values of a byte add is looked up in a table. Bytes are added in one order for all rows, so equal codes are
    equally far; a product with the bits would add those of different rows in different orders.
    """
    device = device_of(gain)
    values = xp.reshape(xp.arange(256, dtype=xp.uint8, device=device), (256, 1))
    bits = xp.matrix_transpose(xp.astype(unpack(values, 8) > 0, xp.float32))  # (8, 256)
    kept = min(k, sum(part.shape[0] for part in parts))
    answers = []
    for block in row_slices(gain.shape[0], max(1, _BLOCK_PAIRS // (kept + _BLOCK_ROWS))):
        g = gain[block, :]
        best = xp.zeros((g.shape[0], 0), dtype=xp.float32, device=device)
        best_row = xp.zeros((g.shape[0], 0), dtype=xp.int64, device=device)
        first = 0
        for part in parts:
            for piece in row_slices(part.shape[0], _BLOCK_ROWS):
                codes = xp.astype(part[piece, :], xp.int64)
                scores = xp.zeros((g.shape[0], codes.shape[0]), dtype=xp.float32, device=device)
                for byte in range(codes.shape[1]):
                    some = g[:, 8 * byte : min(8 * byte + 8, n_bits)]
                    scores = scores + xp.take(some @ bits[: some.shape[1], :], codes[:, byte], axis=1)
                row = xp.arange(first, first + codes.shape[0], dtype=xp.int64, device=device)
                first += codes.shape[0]
                best = xp.concat([best, scores], axis=1)
                best_row = xp.concat([best_row, xp.broadcast_to(row, scores.shape)], axis=1)
                order = xp.argsort(best, axis=1, stable=True)[:, : min(kept, best.shape[1])]
                order = xp.astype(order, xp.int64, copy=False)
                best, best_row = (xp.take_along_axis(x, order, axis=1) for x in (best, best_row))
        shape = (g.shape[0], k - kept)
        best = xp.concat([best, xp.full(shape, xp.inf, dtype=xp.float32, device=device)], axis=1)
        answers.append((best, xp.concat([best_row, xp.full(shape, -1, dtype=xp.int64, device=device)], axis=1)))
    return xp.concat([d for d, _ in answers], axis=0), xp.concat([row for _, row in answers], axis=0)


def rescore(X_query: Array, X_database: Any, ids: Array, *, k: int | None = None) -> tuple[Array, Array]:
    """Order what a search found by the distance of the original floats.

    Search for more than is wanted (4 to 16 times as many), rescore, keep the best k.

    Parameters
    ----------
    X_query : array (q, d)
    X_database : array (n, d), memory map, or anything that gives rows for a sorted array of row numbers
        Only the rows named by ids are read.
    ids : array (q, m) of integers
        Rows of ``X_database``, as `HammingIndex.search` returns them; -1 is padding.
    k : int, optional
        How many to keep; all m by default.

    Returns
    -------
    distances : array (q, k)
        Squared Euclidean distances, ascending; inf for padding.
    ids : array (q, k) of int64
        Lowest id first inside a distance.

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu.asymmetric import rescore
    >>> rescore(np.array([[0.0]]), np.array([[3.0], [1.0], [2.0]]), np.array([[0, 1, 2]]), k=2)
    (array([[1., 4.]]), array([[1, 2]]))
    """
    X_query = check_array(X_query, name="X_query", min_ndim=2)
    found = to_host(check_array(ids, name="ids", min_ndim=2))
    n, d = (int(s) for s in X_database.shape)
    check_rescored(X_query, found, n=n, d=d)
    kept = found.shape[1] if k is None else check_integer(k, name="k", minimum=1)
    if kept > found.shape[1]:
        raise ValueError(f"k={kept} but ids holds {found.shape[1]} results a query; search for at least k")
    Q = to_host(X_query)
    dtype = np.result_type(Q.dtype, np.float32)
    distances = np.full(found.shape, np.inf, dtype=dtype)
    for block in row_slices(len(Q), max(1, _BLOCK_FLOATS // (found.shape[1] * d))):
        rows, place = np.unique(np.maximum(found[block], 0), return_inverse=True)
        needed = to_host(_take_rows(X_database, rows)).astype(dtype, copy=False)
        difference = needed[place.reshape(found[block].shape)]
        difference -= Q[block][:, None, :]
        distances[block] = np.einsum("qmd,qmd->qm", difference, difference)
    distances[found < 0] = np.inf
    order = np.lexsort((found, distances), axis=1)[:, :kept]
    xp, device = namespace(X_query), device_of(X_query)
    best = (np.take_along_axis(x, order, axis=1) for x in (distances, found.astype(np.int64)))
    d_best, id_best = (from_host(x, xp=xp, device=device) for x in best)
    return d_best, id_best


def _take_rows(X: Any, rows: np.ndarray) -> Array:
    """Rows of a source by sorted, unique number."""
    try:
        xp = namespace(X)
    except TypeError:
        return X[rows]
    return X[rows] if isinstance(X, np.ndarray) else xp.take(X, from_host(rows, xp=xp, device=device_of(X)), axis=0)
