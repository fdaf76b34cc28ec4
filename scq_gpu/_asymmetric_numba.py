"""Compiled asymmetric search: a table of sums a byte, a heap of the best k; imported only when numba is used."""

from __future__ import annotations

import numpy as np
from numba import njit

from scq_gpu._numba_threads import allowed_threads, over_tasks
from scq_gpu._xp import row_slices

_BLOCK_BYTES = 16 << 10
_TILE = 16  # queries that share a block; their tables of 1 KB a byte share the cache


def knn(gain: np.ndarray, parts: list[np.ndarray], k: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of least summed gain over their set bits: sums (q, k) float32 and rows (q, k), padded with inf and -1."""
    q, n_bits = gain.shape
    width, n = parts[0].shape[1], sum(len(part) for part in parts)
    kept = min(k, n)
    ranges = 1 if q >= 2 * allowed_threads() else min(allowed_threads(), -(-n // 4096))
    edges = [n * i // ranges for i in range(ranges + 1)]
    padded = np.zeros((q, 8 * width), dtype=np.float32)
    padded[:, :n_bits] = gain
    sums = np.full((ranges, q, kept), np.inf, dtype=np.float32)
    rows = np.full((ranges, q, kept), n, dtype=np.int64)

    def task(r: int, tile: slice) -> None:
        tables = byte_tables(padded[tile])
        first = 0
        for part in parts:
            lo, hi = max(edges[r] - first, 0), min(edges[r + 1] - first, len(part))
            if lo < hi:
                codes = np.ascontiguousarray(part[lo:hi])
                _scan(tables, codes, first + lo, sums[r, tile], rows[r, tile], max(64, _BLOCK_BYTES // width))
            first += len(part)

    step = min(_TILE, -(-q // max(1, allowed_threads() // ranges)))
    over_tasks([(task, r, tile) for r in range(ranges) for tile in row_slices(q, step)])
    flat_sums, flat_rows = (x.transpose(1, 0, 2).reshape(q, ranges * kept) for x in (sums, rows))
    order = np.lexsort((flat_rows, flat_sums), axis=1)[:, :kept]
    best, best_rows = np.full((q, k), np.inf, dtype=np.float32), np.full((q, k), -1, dtype=np.int64)
    best[:, :kept] = np.take_along_axis(flat_sums, order, axis=1)
    best_rows[:, :kept] = np.take_along_axis(flat_rows, order, axis=1)
    return best, best_rows


def byte_tables(gain: np.ndarray) -> np.ndarray:
    """The summed gain of every value of every byte: (q, bytes, 256)."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").astype(np.float32)
    return np.ascontiguousarray(gain.reshape(len(gain), -1, 8) @ bits.T)


@njit(nogil=True, cache=True)
def _scan(tables, codes, first, sums, rows, block):  # type: ignore[no-untyped-def]
    n, width = codes.shape
    for start in range(0, n, block):
        part = codes[start : min(start + block, n)]
        for j in range(tables.shape[0]):
            table = tables[j]
            bound = sums[j, 0]
            for i in range(part.shape[0]):
                total = np.float32(0)
                for b in range(width):
                    total += table[b, part[i, b]]
                if total < bound:  # a later row at the same sum stays out
                    _replace_worst(sums[j], rows[j], total, first + start + i)
                    bound = sums[j, 0]


@njit(nogil=True, cache=True)
def _replace_worst(sums, rows, total, row):  # type: ignore[no-untyped-def]
    """Put a row in place of the worst of a heap, whose root is the largest (sum, row)."""
    k = sums.shape[0]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= k:
            break
        right = child + 1
        if right < k and (sums[right] > sums[child] or (sums[right] == sums[child] and rows[right] > rows[child])):
            child = right
        if sums[child] < total or (sums[child] == total and rows[child] < row):
            break
        sums[at] = sums[child]
        rows[at] = rows[child]
        at = child
    sums[at] = total
    rows[at] = row
