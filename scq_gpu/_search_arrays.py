"""Exact Hamming search in array operations alone: NumPy without numba, torch, CuPy, any array-API namespace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from scq_gpu._hamming import distances
from scq_gpu._xp import Array, device_of, namespace, row_slices, to_host

_BLOCK_PAIRS = 1 << 22  # query-code pairs a block holds in memory
_BLOCK_ROWS = 1 << 16


def knn(queries: Array, parts: list[Array], k: int, *, n_bits: int) -> tuple[Array, Array]:
    """The k nearest rows of each query: distances (q, k) int32 and rows (q, k) int64, padded with n_bits + 1 and -1."""
    return nearest(queries, parts, k, measure=distances, dtype=namespace(queries).int32, padding=n_bits + 1)


def nearest(
    queries: Array, parts: list[Array], k: int, *, measure: Callable[..., Array], dtype: Any, padding: float
) -> tuple[Array, Array]:
    """The k nearest rows of each query by any measure of all pairs.

    The best so far stand before the rows of a block, which are later rows: a stable sort keeps the lowest rows first.
    """
    xp, device = namespace(queries), device_of(queries)
    kept = min(k, sum(part.shape[0] for part in parts))
    answers = []
    for block in row_slices(queries.shape[0], max(1, _BLOCK_PAIRS // (kept + _BLOCK_ROWS))):
        Q = queries[block, :]
        best_d = best_row = None
        for codes, first in _blocks(parts):
            d = measure(Q, codes, xp=xp)
            row = xp.arange(first, first + codes.shape[0], dtype=xp.int64, device=device)
            row = xp.broadcast_to(row, d.shape)
            best_d = d if best_d is None else xp.concat([best_d, d], axis=1)
            best_row = row if best_row is None else xp.concat([best_row, row], axis=1)
            order = xp.argsort(best_d, axis=1, stable=True)[:, : min(kept, best_d.shape[1])]
            order = xp.astype(order, xp.int64, copy=False)
            best_d, best_row = (xp.take_along_axis(x, order, axis=1) for x in (best_d, best_row))
        pad = (Q.shape[0], k - kept)
        d_pad = xp.full(pad, padding, dtype=dtype, device=device)
        row_pad = xp.full(pad, -1, dtype=xp.int64, device=device)
        answers.append((xp.concat([xp.astype(best_d, dtype), d_pad], axis=1), xp.concat([best_row, row_pad], axis=1)))
    return xp.concat([d for d, _ in answers], axis=0), xp.concat([row for _, row in answers], axis=0)


def within(queries: Array, parts: list[Array], radius: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All pairs within a radius as (query, distance, row) on the host, in no particular order."""
    return pairs_within(queries, parts, radius, measure=distances, dtype=np.int32)


def pairs_within(
    queries: Array, parts: list[Array], radius: float, *, measure: Callable[..., Array], dtype: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All pairs within a radius by any measure of all pairs."""
    xp = namespace(queries)
    found = []
    for block in row_slices(queries.shape[0], max(1, _BLOCK_PAIRS // _BLOCK_ROWS)):
        for codes, first in _blocks(parts):
            d = measure(queries[block, :], codes, xp=xp)
            query, row = (to_host(x).astype(np.int64) for x in xp.nonzero(d <= radius))
            found.append((query + block.start, to_host(d)[query, row].astype(dtype), row + first))
    query, d, row = (np.concatenate(x) for x in zip(*found, strict=True))
    return query, d, row


def _blocks(parts: list[Array]) -> Iterator[tuple[Array, int]]:
    """Blocks of codes, and the row each begins with."""
    first = 0
    for part in parts:
        for block in row_slices(part.shape[0], _BLOCK_ROWS):
            yield part[block, :], first + block.start
        first += part.shape[0]
