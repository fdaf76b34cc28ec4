"""Compiled `metrics.ranking.scan`: two passes over a query's distances, no sort; imported only when numba is used."""

from __future__ import annotations

import numpy as np

from scq_gpu._core.arrays import Array, row_slices, to_host
from scq_gpu._core.machine import PIECE, allowed_threads, check_stopped, over_tasks
from scq_gpu.kernels.compile_numba import compiled, popcount
from scq_gpu.kernels.hamming import as_words

_CHUNK = 1 << 16  # codes whose distances stay in a core's cache between the two passes
_MODES = {None: 0, "standard": 1, "trapezoid": 2}


def scan(
    queries: np.ndarray,
    database: np.ndarray,
    query_labels: Array,
    database_labels: Array,
    *,
    ap: str | None,
    at: int,
    k: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the fields of `metrics.ranking.Scan`."""
    Q, D = as_words(queries), as_words(database)
    multi = query_labels.ndim == 2
    lq, ld = (_label_words if multi else _label_numbers)(to_host(query_labels), to_host(database_labels))
    n_bits = 8 * queries.shape[1]
    table = np.zeros((len(Q), n_bits + 1, 2), dtype=np.int64)
    ap_sum = np.zeros(len(Q))
    top = np.zeros(len(Q), dtype=np.int64)

    step = max(1, PIECE // (8 * max(1, len(D) * D.shape[1])))  # queries that are through in a moment

    def task(some: slice) -> None:
        first, last, _ = some.indices(len(Q))
        for start in range(first, last, step):
            check_stopped()
            part = slice(start, min(start + step, last))
            _scan(Q[part], D, lq[part], ld, multi, table[part], ap_sum[part], top[part], _MODES[ap], at, k, _CHUNK)

    several = -(-len(Q) // (8 * allowed_threads()))  # more slices than threads: none waits long for the last one
    over_tasks([(task, part) for part in row_slices(len(Q), several)])
    return table.sum(axis=2), table[:, :, 1].copy(), ap_sum, top


def _label_numbers(query_labels: np.ndarray, database_labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Renumber labels as (n, 1) int32, with -1 for a query label the database does not have."""
    classes, numbers = np.unique(database_labels, return_inverse=True)
    place = np.minimum(np.searchsorted(classes, query_labels), len(classes) - 1)
    found = np.where(classes[place] == query_labels, place, -1)
    return found.astype(np.int32)[:, None], numbers.astype(np.int32)[:, None]


def _label_words(query_labels: np.ndarray, database_labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pack sets of labels into words (n, words), one bit per class."""
    packed = (np.packbits(labels, axis=1, bitorder="little") for labels in (query_labels, database_labels))
    lq, ld = (as_words(p) for p in packed)
    return lq, ld


@compiled(boundscheck=False)
def _keys(q, D, lq, ld, multi, start, stop, keys):  # type: ignore[no-untyped-def]
    """Compute keys[i] = 2 distance + relevant, for the codes start..stop."""
    if D.shape[1] == 1:
        q0 = q[0]
        for i in range(start, stop):
            keys[i - start] = np.uint16(popcount(q0 ^ D[i, 0])) << np.uint16(1)
    else:
        for i in range(start, stop):
            d = 0
            for w in range(D.shape[1]):
                d += popcount(q[w] ^ D[i, w])
            keys[i - start] = d << 1
    if multi:
        for i in range(start, stop):
            shared = lq[0] & ld[i, 0]
            for w in range(1, ld.shape[1]):
                shared |= lq[w] & ld[i, w]
            keys[i - start] |= np.uint16(shared != 0)
    else:
        label = lq[0]
        for i in range(start, stop):
            keys[i - start] |= np.uint16(ld[i, 0] == label)


@compiled(boundscheck=False)
def _scan(Q, D, lq, ld, multi, table, ap_sum, top, mode, at, k, chunk):  # type: ignore[no-untyped-def]
    n = D.shape[0]
    bins = 2 * table.shape[1]
    keys = np.empty(min(chunk, n), dtype=np.uint16)
    lanes = np.empty((4, bins), dtype=np.int32)  # four histograms: neighbors seldom wait for each other's store
    rank = np.empty(bins // 2, dtype=np.int64)
    found = np.empty(bins // 2, dtype=np.int64)
    for j in range(Q.shape[0]):
        flat = table[j].reshape(bins)
        for start in range(0, n, chunk):
            stop = min(start + chunk, n)
            _keys(Q[j], D, lq[j], ld, multi, start, stop, keys)
            lanes[:] = 0
            m = stop - start
            for i in range(0, m - 3, 4):
                lanes[0, keys[i]] += 1
                lanes[1, keys[i + 1]] += 1
                lanes[2, keys[i + 2]] += 1
                lanes[3, keys[i + 3]] += 1
            for i in range(m - m % 4, m):
                lanes[0, keys[i]] += 1
            for b in range(bins):
                flat[b] += lanes[0, b] + lanes[1, b] + lanes[2, b] + lanes[3, b]
        if mode == 0 and k == 0:
            continue
        # where each tie begins: its first rank, and the relevant codes before it
        s = 0
        h = 0
        last_ap = -1
        last_k = -1
        for d in range(bins // 2):
            rank[d] = s
            found[d] = h
            last_ap = d if s < at else last_ap
            last_k = d if s < k else last_k
            s += flat[2 * d] + flat[2 * d + 1]
            h += flat[2 * d + 1]
        total = 0.0
        hits = found[last_k] if k > 0 else 0
        quota = k - rank[last_k] if k > 0 else 0
        for start in range(0, n, chunk):
            stop = min(start + chunk, n)
            if n > chunk:
                _keys(Q[j], D, lq[j], ld, multi, start, stop, keys)
            if quota > 0:
                for i in range(stop - start):
                    if keys[i] >> 1 == last_k:
                        hits += keys[i] & 1
                        quota -= 1
                        if quota == 0:
                            break
            if mode != 0:
                total += _ap_chunk(keys, stop - start, rank, found, at, mode)
        ap_sum[j] = total
        top[j] = hits


@compiled(boundscheck=False)
def _ap_chunk(keys, m, rank, found, at, mode):  # type: ignore[no-untyped-def]
    """Place the codes of a chunk at their ranks; sum the precision at the relevant ones up to rank ``at``."""
    total = 0.0
    for i in range(m):
        key = keys[i]
        d = key >> 1
        r = rank[d] + 1
        rank[d] = r
        if key & 1:
            f = found[d] + 1
            found[d] = f
            if r <= at:
                if mode == 1:
                    total += f / r
                elif r == 1:
                    total += 1.0
                else:
                    total += 0.5 * (f / r + (f - 1) / (r - 1))
    return total
