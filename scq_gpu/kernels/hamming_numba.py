"""Exact Hamming search over NumPy codes, compiled; imported only when numba is used.

A thread takes a slice of the queries and goes through the codes in blocks that stay in its cache, every query over a
block before the next block. Rows below a query's bound go to its buffer of 2k candidates; when that is full, all but
the best k are dropped. Distances are small integers, so the bound (the k-th distance so far) is kept by counting, and
the answer is ordered by counting: no heap, no sort. Blocks come in ascending row order, so a later row never displaces
an earlier one at the same distance.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from scq_gpu._core.arrays import row_slices
from scq_gpu._core.machine import allowed_threads, check_stopped, over_tasks, piece_rows
from scq_gpu.kernels.compile_numba import compiled, inner, popcount
from scq_gpu.kernels.hamming import as_words

_BLOCK_BYTES = 16 << 10  # a block of codes: half of a core's L1
_PIECE_BYTES = 16 << 20  # codes that have to be padded to whole words, held in memory at a time by each thread
_BUFFER_BYTES = 64 << 20  # candidates held in memory at a time by each thread
_SAMPLE = 4096  # codes a bound is guessed from
_TILE = 64  # queries that share a block

Parts = list[np.ndarray]


def knn(queries: np.ndarray, parts: Parts, k: int, *, n_bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the k nearest rows: distances (q, k) int32 and rows (q, k) int64, padded with n_bits + 1 and -1.

    Distances count every bit of the bytes. Padding bits that are set, as in a memory map or an array that its owner
    changed, count too, so no distance is beyond the buffers.
    """
    Q = as_words(queries)
    farthest = 8 * queries.shape[1]
    q, n = len(Q), sum(len(part) for part in parts)
    kept = min(k, n)
    edges = _row_edges(q, n)
    ranges = len(edges) - 1
    d = np.empty((ranges, q, kept), dtype=np.int32)
    rows = np.empty((ranges, q, kept), dtype=np.int64)
    sample = _sample(parts, k, n) if ranges == 1 else None

    def task(r: int, tile: slice) -> None:
        answer = d[r, tile], rows[r, tile]
        everything = np.full(len(answer[0]), farthest + 1)
        bounds = everything if sample is None else _likely_bounds(Q[tile], sample, k, n=n, n_bits=farthest)
        _search(Q[tile], parts, edges[r], edges[r + 1], bounds, answer)
        short = np.flatnonzero((answer[1][:, -1] < 0) & (bounds < everything))
        # the sample misled: search for these queries once more, without a first bound
        if short.size:
            again = np.empty_like(answer[0][short]), np.empty_like(answer[1][short])
            _search(Q[tile][short], parts, edges[r], edges[r + 1], everything[short], again)
            answer[0][short], answer[1][short] = again

    step = min(_tile(q, ranges), max(1, _BUFFER_BYTES // (24 * kept + 4 * farthest)))
    over_tasks([(task, r, tile) for r in range(ranges) for tile in row_slices(q, step)])
    return _merge(d, rows, k, n_bits=n_bits)


def _row_edges(q: int, n: int) -> list[int]:
    """Cut rows into ranges that are searched apart: one, unless the queries are too few to keep every thread busy."""
    ranges = 1 if q >= 2 * allowed_threads() else min(allowed_threads(), -(-n // 4096))
    return [n * i // ranges for i in range(ranges + 1)]


def _tile(q: int, ranges: int) -> int:
    """Return the number of queries that a thread takes at a time."""
    return min(_TILE, -(-q // max(1, allowed_threads() // ranges)))


def _search(
    Q: np.ndarray, parts: Parts, lo: int, hi: int, bounds: np.ndarray, answer: tuple[np.ndarray, np.ndarray]
) -> None:
    """Write each query's best rows of lo..hi among those nearer than its bound, padded with the bound and -1."""
    q, k = answer[0].shape
    buffers = np.empty((q, 2 * k), dtype=np.int32), np.empty((q, 2 * k), dtype=np.int64)
    counts = np.zeros((q, int(bounds.max()) + 1), dtype=np.int32)
    state = np.zeros((q, 3), dtype=np.int64)
    state[:, 0] = bounds
    for words, first in _words(parts, lo, hi, queries=q):
        _scan(Q, words.ravel(), first, k, *buffers, counts, state, *_block(words), _width(Q))
    _finish(*buffers, counts, np.empty(counts.shape[1], dtype=np.int64), state, k, *answer)


def _sample(parts: Parts, k: int, n: int) -> np.ndarray | None:
    """Return words of codes at regular intervals, if k is large enough for a bound to be worth guessing."""
    stride = n // _SAMPLE
    if k < 64 or stride < 4:
        return None
    return as_words(np.concatenate([part[::stride] for part in parts]))


def _likely_bounds(Q: np.ndarray, sample: np.ndarray, k: int, *, n: int, n_bits: int) -> np.ndarray:
    """Estimate from a sample of the codes a distance per query (q,) below which more than k rows lie.

    A first bound saves a large k most of its candidates. A bound that turns out too tight costs a second search.
    """
    expected = k * len(sample) / n
    bounds = np.empty(len(Q), dtype=np.int64)
    _guess(Q, sample.ravel(), int(expected + 3 * expected**0.5 + 3), n_bits, bounds, _width(Q))
    return bounds


def _merge(d: np.ndarray, rows: np.ndarray, k: int, *, n_bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Merge the sorted answers of ascending ranges of rows (ranges, q, kept) into one (q, k)."""
    ranges, q, kept = d.shape
    d, rows = (x.transpose(1, 0, 2).reshape(q, ranges * kept) for x in (d, rows))
    if ranges > 1:
        order = np.argsort(d, axis=1, kind="stable")[:, :k]
        d, rows = np.take_along_axis(d, order, axis=1), np.take_along_axis(rows, order, axis=1)
    d[rows < 0] = n_bits + 1
    if d.shape[1] == k:
        return d, rows
    pad = ((0, 0), (0, k - d.shape[1]))
    return np.pad(d, pad, constant_values=n_bits + 1), np.pad(rows, pad, constant_values=-1)


def within(queries: np.ndarray, parts: Parts, radius: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find all pairs within a radius: (query, distance, row), in no particular order."""
    Q = as_words(queries)
    edges = _row_edges(len(Q), sum(len(part) for part in parts))
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def task(lo: int, hi: int, tile: slice) -> None:
        for words, first in _words(parts, lo, hi, queries=len(Q[tile])):
            query, d, row = _find(Q[tile], words.ravel(), radius, _block_rows(words), _width(Q))
            found.append((query + tile.start, d, row + first))

    tiles = row_slices(len(Q), _tile(len(Q), len(edges) - 1))
    over_tasks([(task, lo, hi, tile) for lo, hi in pairwise(edges) for tile in tiles])
    query, d, row = (np.concatenate(x) for x in zip(*found, strict=True))
    return query, d, row


def _words(parts: Parts, lo: int, hi: int, *, queries: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yield rows lo..hi as (words, first row): views of the codes if they are whole words, else padded copies.

    Pieces are so small that ``queries`` queries take a moment for each, and a search can be interrupted between them.
    """
    first = 0
    for part in parts:
        mine = part[max(lo - first, 0) : max(hi - first, 0)]
        whole = part.shape[1] == 4 or part.shape[1] % 8 == 0
        step = piece_rows(queries * -(-part.shape[1] // 8))
        step = step if whole else min(step, _PIECE_BYTES // (part.shape[1] + 8))
        for piece in row_slices(len(mine), max(1, step)):
            check_stopped()
            yield as_words(mine[piece]), max(lo, first) + piece.start
        first += len(part)


def _block_rows(words: np.ndarray) -> int:
    row_bytes: int = words.shape[1] * words.itemsize
    return max(64, _BLOCK_BYTES // row_bytes)


def _block(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Allocate the rows and distances that a block of codes may give, and one more that is then overwritten."""
    size = _block_rows(words) + 1
    return np.empty(size, dtype=np.int32), np.empty(size, dtype=np.int32)


def _width(Q: np.ndarray) -> tuple[int, ...]:
    """Return the number of words as a type, a tuple of that length, so that compiled loops over words are unrolled."""
    return (0,) * (Q.shape[1] if Q.shape[1] <= 16 else 0)


@compiled(inline="always")
def _distance(q, D, at, width):  # type: ignore[no-untyped-def]
    d = np.uint32(0)
    for w in range(len(width) if len(width) > 0 else q.shape[0]):
        d += np.uint32(popcount(q[w] ^ D[at + w]))
    return np.uint32(d)


@inner
def _below(q, D, bound, rows, ds, width):  # type: ignore[no-untyped-def]
    """Find the rows of a block nearer than ``bound`` and count them. Eight are tried at a time, as hits are rare.

    Everything is unsigned: a signed index would be checked for counting from the end.
    """
    W = len(width) if len(width) > 0 else q.shape[0]
    n = D.shape[0] // W
    bound = np.uint32(bound)
    m = np.uint64(0)
    for b in range(n // 8):
        codes = D[8 * b * W : 8 * (b + 1) * W]
        near = np.uint32(0)
        for j in range(8):
            near |= np.uint32(_distance(q, codes, j * W, width) < bound)
        if near:
            for j in range(8):
                d = _distance(q, codes, j * W, width)
                rows[m] = 8 * b + j
                ds[m] = d
                m += np.uint64(d < bound)
    for i in range(n - n % 8, n):
        d = _distance(q, D, i * W, width)
        rows[m] = i
        ds[m] = d
        m += np.uint64(d < bound)
    return np.int64(m)


@compiled()
def _scan(Q, D, first, k, candidate_d, candidate_row, counts, state, rows, ds, width):  # type: ignore[no-untyped-def]
    """Go through the codes D, a block at a time, with every query; ``first`` is the row of the first code."""
    W = Q.shape[1]
    block = rows.shape[0] - 1
    for start in range(0, D.shape[0], block * W):
        codes = D[start : start + block * W]
        for j in range(Q.shape[0]):
            m = _below(Q[j], codes, state[j, 0], rows, ds, width)
            if m > 0:
                _take(rows, ds, m, first + start // W, k, candidate_d[j], candidate_row[j], counts[j], state[j])


@compiled()
def _find(Q, D, radius, block, width):  # type: ignore[no-untyped-def]
    """Find all pairs within a radius: query, distance, row."""
    W = Q.shape[1]
    rows = np.empty(block + 1, dtype=np.int32)
    ds = np.empty(block + 1, dtype=np.int32)
    query, d, row = np.empty(64, np.int64), np.empty(64, np.int32), np.empty(64, np.int64)
    n = 0
    for start in range(0, D.shape[0], block * W):
        codes = D[start : start + block * W]
        for j in range(Q.shape[0]):
            m = _below(Q[j], codes, radius + 1, rows, ds, width)
            while n + m > query.shape[0]:
                query = np.concatenate((query, np.empty_like(query)))
                d = np.concatenate((d, np.empty_like(d)))
                row = np.concatenate((row, np.empty_like(row)))
            for c in range(m):
                query[n] = j
                d[n] = ds[c]
                row[n] = start // W + rows[c]
                n += 1
    return query[:n], d[:n], row[:n]


@compiled()
def _guess(Q, D, wanted, n_bits, bounds, width):  # type: ignore[no-untyped-def]
    """Find the first distance below which ``wanted`` codes of D lie, for each query."""
    W = Q.shape[1]
    counts = np.empty(n_bits + 1, dtype=np.int64)
    for j in range(Q.shape[0]):
        counts[:] = 0
        for i in range(D.shape[0] // W):
            counts[_distance(Q[j], D, i * W, width)] += 1
        nearer = 0
        bound = 0
        while nearer < wanted and bound <= n_bits:
            nearer += counts[bound]
            bound += 1
        bounds[j] = bound


@inner
def _take(rows, ds, m, first, k, candidate_d, candidate_row, counts, state):  # type: ignore[no-untyped-def]
    """Put a block's candidates into the buffer. State: bound, how many in the buffer are below it, buffer length."""
    bound, less, fill = state[0], state[1], state[2]
    for c in range(m):
        d = ds[c]
        if d >= bound:
            continue
        if fill == candidate_d.shape[0]:
            fill = _compact(candidate_d, candidate_row, fill, bound, k - less)
        candidate_d[fill] = d
        candidate_row[fill] = first + rows[c]
        fill += 1
        counts[d] += 1
        less += 1
        # the bound is the largest distance with fewer than k below it
        while less >= k:
            bound -= 1
            less -= counts[bound]
    state[0], state[1], state[2] = bound, less, fill


@inner
def _compact(candidate_d, candidate_row, fill, bound, at_bound):  # type: ignore[no-untyped-def]
    """Keep the candidates below the bound and the first few at it, in order."""
    kept = 0
    for c in range(fill):
        d = candidate_d[c]
        if d < bound or (d == bound and at_bound > 0):
            at_bound -= d == bound
            candidate_d[kept] = d
            candidate_row[kept] = candidate_row[c]
            kept += 1
    return kept


@compiled()
def _finish(candidate_d, candidate_row, counts, place, state, k, out_d, out_row):  # type: ignore[no-untyped-def]
    """Order each query's best k by distance, rows ascending inside a distance: a counting sort."""
    for j in range(candidate_d.shape[0]):
        bound = state[j, 0]
        place[0] = 0
        for d in range(bound):
            place[d + 1] = place[d] + counts[j, d]
        for c in range(state[j, 2]):
            d = candidate_d[j, c]
            if d <= bound and place[d] < k:
                out_d[j, place[d]] = d
                out_row[j, place[d]] = candidate_row[j, c]
                place[d] += 1
        for c in range(state[j, 2], k):
            out_d[j, c] = bound
            out_row[j, c] = -1
