r"""Exact asymmetric search over NumPy codes, compiled; imported only when numba is used.

The sum of a query's gains over the set bits of a row is looked up 4 bits at a time: table t has an entry for each of
the 16 values v of its bits, :math:`e_t(v) \ge 0` above the table's least. With m the sum of the least entries,

.. math:: s(x) = m + \sum_t e_t(v_t(x)) \ge m + u \sum_t r_t(v_t(x)), \quad r_t = \min(255, \lfloor e_t / u \rfloor)

for any unit u. A table of bytes r_t fits a vector register, in which 16 or 32 rows are looked up by one instruction
(`scq_gpu.kernels.fast_scan_numba`). Rows whose bound exceeds the k-th best score so far are skipped. The others,
one in thousands, are scored exactly: from tables of 256 float32 sums per byte, added in the order of the bytes, so that
equal codes are equally far. `_coarse_tables` subtracts from m what rounding may have added to an exact score.

With factors the score is a + f (c + s), where f >= 0, and its bound a + f (c + bound of s), in the same float32
operations: rounding is monotone, so what bounds c + s bounds the score.

Codes stay as they are, one row after the other. A thread takes a slice of the queries, turns a block of codes into
columns of 4 bits in its cache, and lets every query go over them before the next block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from scq_gpu._core.arrays import row_slices
from scq_gpu._core.factors import RowFactors
from scq_gpu._core.machine import allowed_threads, check_stopped, over_tasks, piece_rows
from scq_gpu.kernels.compile_numba import compiled, inner, popcount
from scq_gpu.kernels.fast_scan_numba import GROUP, pass_scores, pass_sums, to_columns

_BLOCK_BYTES = 8 << 10  # columns of a block: with the tables of a tile, they stay in a core's L1
_PIECE_ROWS = 1 << 16  # whose factors are converted at a time
_SAMPLE = 1024  # rows a first bound is guessed from
_TILE = 64  # queries that share a block

_ROUNDING = 2.0**-23  # twice that of a float32 operation
_HUGE = 1e37  # gains that add up to more may overflow

Parts = list[np.ndarray]


class _Rows(NamedTuple):
    """Consecutive rows, or a sample of rows: codes (n, bytes) and, if any, offsets and scales (n,) as float32."""

    codes: np.ndarray
    factors: tuple[np.ndarray, ...] | None


def knn(gain: np.ndarray, parts: Parts, k: int, *, factors: RowFactors | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Find the rows of least score, by default the summed gain over their set bits, lowest row first inside a score.

    Returns scores (q, k) float32 and rows (q, k) int64, padded with inf and -1. A score that is NaN counts as inf.
    """
    q, n = len(gain), sum(len(part) for part in parts)
    kept = min(k, n)
    best, rows = np.full((q, k), np.inf, dtype=np.float32), np.full((q, k), -1, dtype=np.int64)
    sample = _sample(parts, factors, n)
    best[:, :kept], rows[:, :kept] = _search(gain, parts, kept, factors, sample)
    short = np.flatnonzero(rows[:, kept - 1] == n)
    # the sample misled: search for these queries once more, without a first bound
    if short.size:
        again = None if factors is None else factors._replace(constants=factors.constants[short])
        best[short, :kept], rows[short, :kept] = _search(gain[short], parts, kept, again, None)
    return best, rows


def byte_tables(gain: np.ndarray) -> np.ndarray:
    """Sum the gain of every value of every byte: (q, bytes, 256). A row adds them in the order of its bytes."""
    return np.ascontiguousarray(gain.reshape(len(gain), -1, 8) @ _bits_of_values(8).T)


def _bits_of_values(n_bits: int) -> np.ndarray:
    """Return the bits of 0, 1, 2, ...: (2**n_bits, n_bits) float32."""
    values = np.arange(1 << n_bits, dtype=np.uint8)[:, None]
    return np.unpackbits(values, axis=1, bitorder="little")[:, :n_bits].astype(np.float32)


def _search(
    gain: np.ndarray, parts: Parts, k: int, factors: RowFactors | None, sample: _Rows | None
) -> tuple[np.ndarray, np.ndarray]:
    """Find each query's best k among the rows within its first bound, padded with the bound and n."""
    q, n = len(gain), sum(len(part) for part in parts)
    ranges = 1 if q >= 2 * allowed_threads() else min(allowed_threads(), -(-n // 4096))
    edges = [n * i // ranges for i in range(ranges + 1)]
    padded = np.zeros((q, 8 * parts[0].shape[1]), dtype=np.float32)
    padded[:, : gain.shape[1]] = gain
    constants = np.zeros(q, dtype=np.float32) if factors is None else factors.constants.astype(np.float32)
    best = np.empty((ranges, q, k), dtype=np.float32)
    rows = np.full((ranges, q, k), n, dtype=np.int64)

    def task(r: int, tile: slice) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            exact = byte_tables(padded[tile])
            bounds, reach = _first_bounds(exact, constants[tile], sample, k / n)
            coarse = _coarse_tables(padded[tile], constants[tile], reach)
        scratch = _scratch(padded.shape[1] // 8, n)
        best[r, tile] = bounds[:, None]
        step = piece_rows(len(bounds) * parts[0].shape[1] // 8)
        for first, piece in _pieces(parts, factors, edges[r], edges[r + 1], step):
            check_stopped()
            scaling = None if piece.factors is None else (*piece.factors, constants[tile])
            _scan(piece.codes, first, exact, coarse, scaling, scratch, best[r, tile], rows[r, tile])

    step = min(_TILE, -(-q // max(1, allowed_threads() // ranges)))
    over_tasks([(task, r, tile) for r in range(ranges) for tile in row_slices(q, step)])
    flat, flat_rows = (x.transpose(1, 0, 2).reshape(q, ranges * k) for x in (best, rows))
    order = np.lexsort((flat_rows, flat), axis=1)[:, :k]
    return np.take_along_axis(flat, order, axis=1), np.take_along_axis(flat_rows, order, axis=1)


def _pieces(parts: Parts, factors: RowFactors | None, lo: int, hi: int, step: int) -> Iterator[tuple[int, _Rows]]:
    """Yield rows lo..hi in pieces of ``step`` at most, after the first row of each; factors are converted."""
    first = 0
    for number, part in enumerate(parts):
        start, end = max(lo - first, 0), min(hi - first, len(part))
        step = step if factors is None else min(step, _PIECE_ROWS)
        for at in range(start, end, step):
            yield first + at, _rows(parts, factors, number, slice(at, min(at + step, end)))
        first += len(part)


def _rows(parts: Parts, factors: RowFactors | None, number: int, rows: slice) -> _Rows:
    """Return some rows of a part."""
    codes = _read_only(parts[number][rows], np.uint8)
    if factors is None:
        return _Rows(codes, None)
    return _Rows(codes, tuple(_read_only(x[number][rows], np.float32) for x in (factors.offsets, factors.scales)))


def _read_only(x: np.ndarray, dtype: type) -> np.ndarray:
    """Return an array, or memory map, in the one form that loops are compiled for."""
    view: np.ndarray = np.ascontiguousarray(x, dtype=dtype).view()
    view.flags.writeable = False
    return view


def _sample(parts: Parts, factors: RowFactors | None, n: int) -> _Rows | None:
    """Return rows at regular intervals, if there are enough of them for a bound to be worth guessing."""
    stride = n // _SAMPLE
    if stride < 8:
        return None
    each = [_rows(parts, factors, number, slice(None, None, stride)) for number in range(len(parts))]
    codes = np.concatenate([some.codes for some in each])
    if factors is None:
        return _Rows(codes, None)
    offsets, scales = (np.concatenate(x) for x in zip(*(some.factors for some in each if some.factors), strict=True))
    return _Rows(codes, (offsets, scales))


def _first_bounds(
    exact: np.ndarray, constants: np.ndarray, sample: _Rows | None, share: float
) -> tuple[np.ndarray, np.ndarray]:
    """Estimate from a sample a score (q,) below which a share of the rows lie, and the largest sum (q,) of those.

    A first bound saves a large k most of its candidates. A bound that turns out too tight costs a second search.
    """
    expected = 0.0 if sample is None else share * len(sample.codes)
    wanted = int(expected + 3 * expected**0.5 + 3)
    if sample is None or wanted > len(sample.codes):
        unknown = np.full(len(exact), np.inf, dtype=np.float32)
        return unknown, unknown
    scores = sums = _exact_sums(exact, sample.codes)
    if sample.factors is not None:
        scores = sample.factors[0] + sample.factors[1] * (constants[:, None] + sums)
    nearest = np.argpartition(scores, wanted - 1, axis=1)[:, :wanted]
    bounds, reach = (np.take_along_axis(x, nearest, axis=1).max(axis=1) for x in (scores, sums))
    return np.where(np.isnan(bounds), np.float32(np.inf), bounds), reach


def _coarse_tables(
    gain: np.ndarray, constants: np.ndarray, reach: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute tables of bytes r (q, words, 16, 16), c + m and u (q,), as the module's docstring defines them.

    Eight tables are summed in a byte, with saturation. The unit is the least that has them hold all their entries, or
    all sums up to ``reach`` if that is less, but not much finer than rounding. The exact score and the bound come from
    additions of float32, as many as there are bytes and a few more, whose terms together are no larger than all gains:
    so much rounding is taken off m. Gains that may overflow get a bound that nothing exceeds.
    """
    q, n_bits = gain.shape
    words = -(-n_bits // 64)
    g = np.zeros((q, 16 * words, 4))
    g.reshape(q, -1)[:, :n_bits] = gain
    entries = g @ _bits_of_values(4).T.astype(np.float64)
    entries -= entries.min(axis=2, keepdims=True)
    least = np.minimum(g, 0).sum(axis=(1, 2))
    whole = entries.max(axis=2).reshape(q, -1, 8).sum(axis=2).max(axis=1) / 255
    total = np.abs(g).sum(axis=(1, 2)) + np.abs(constants)
    rounding = (n_bits // 8 + 16) * _ROUNDING * total
    unit = np.clip((reach - least) / 255, np.minimum(rounding / 16, whole), whole)
    unit = np.where(unit > 1e-30, unit, 1.0).astype(np.float32)
    tables = np.minimum(entries * ((1 - 1e-9) / unit.astype(np.float64)[:, None, None]), 255).astype(np.uint8)
    start = np.where(total < _HUGE, constants + least - rounding, -np.inf).astype(np.float32)
    return tables.reshape(q, words, 16, 16), start, unit


def _exact_sums(exact: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Sum the gain of every query and row: (q, n)."""
    sums = np.zeros((len(exact), len(codes)), dtype=np.float32)
    for b in range(codes.shape[1]):
        sums += exact[:, b].take(codes[:, b], axis=1)
    return sums


def _scratch(width: int, n: int) -> tuple[np.ndarray, ...]:
    """Allocate a block of columns, a last group of codes, the factors of a block and its masks.

    Blocks of few rows are small, since bounds improve from block to block.
    """
    words = -(-width // 8)
    groups = max(1, min(_BLOCK_BYTES // (words * 16 * GROUP), n // (8 * GROUP)))
    columns = np.empty((groups, words, 16, GROUP), dtype=np.uint8)
    last = np.zeros(GROUP * width + 8, dtype=np.uint8)
    return columns, last, np.zeros((2, groups * GROUP), dtype=np.float32), np.empty(groups, dtype=np.uint64)


@compiled()
def _scan(codes, first, exact, coarse, scaling, scratch, best, rows):  # type: ignore[no-untyped-def]
    """Go through the codes, a block at a time, with every query; ``first`` is the row of the first code."""
    tables, start, unit = coarse
    columns, last, factors, masks = scratch
    groups, words = columns.shape[:2]
    n, width = codes.shape
    every = codes.reshape(-1)
    for begin in range(0, n, groups * GROUP):
        count = min(groups * GROUP, n - begin)
        used = -(-count // GROUP)
        for g in range(used):
            at = (begin + g * GROUP) * width
            if at + (GROUP - 1) * width + 8 * words <= n * width:
                to_columns(every, at, width, columns, g)
            else:
                # a word would reach beyond the last row
                for b in range(n * width - at):
                    last[b] = every[at + b]
                to_columns(last, 0, width, columns, g)
        if scaling is not None:
            for i in range(count):
                factors[0, i] = scaling[0][begin + i]
                factors[1, i] = scaling[1][begin + i]
        for j in range(best.shape[0]):
            if scaling is None:
                limit = _limit(best[j, 0], start[j], unit[j])
                for g in range(used):
                    masks[g] = pass_sums(columns, g, tables, j, limit)
            else:
                for g in range(used):
                    masks[g] = pass_scores(columns, g, tables, j, best[j, 0], start[j], unit[j], factors)
            if count % GROUP:
                masks[used - 1] &= (np.uint64(1) << np.uint64(count % GROUP)) - np.uint64(1)
            for g in range(used):
                if masks[g]:
                    _take(masks[g], begin + g * GROUP, codes, first, exact, scaling, j, best, rows)


@inner
def _limit(worst, start, unit):  # type: ignore[no-untyped-def]
    """Return the largest coarse sum of a row that may be no worse than the worst."""
    steps = (np.float64(worst) - np.float64(start)) / np.float64(unit)
    return np.uint16(steps if steps > 0 else 0.0) if steps < 65535 else np.uint16(65535)


@inner
def _take(mask, begin, codes, first, exact, scaling, j, best, rows):  # type: ignore[no-untyped-def]
    """Score the rows of a mask exactly, from row ``begin`` on; those that are better go into the query's heap."""
    table = exact[j]
    while mask:
        row = begin + np.int64(popcount(~mask & (mask - np.uint64(1))))
        mask &= mask - np.uint64(1)
        score = np.float32(0)
        for b in range(codes.shape[1]):
            score += table[b, codes[row, b]]
        if scaling is not None:
            score = scaling[0][row] + scaling[1][row] * (scaling[2][j] + score)
        if np.isnan(score):
            score = np.float32(np.inf)
        if score < best[j, 0] or (score == best[j, 0] and first + row < rows[j, 0]):
            _replace_worst(best[j], rows[j], score, first + row)


@inner
def _replace_worst(best, rows, score, row):  # type: ignore[no-untyped-def]
    """Put a row in place of the worst of a heap, whose root is the largest (score, row)."""
    k = best.shape[0]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= k:
            break
        right = child + 1
        if right < k and (best[right] > best[child] or (best[right] == best[child] and rows[right] > rows[child])):
            child = right
        if best[child] < score or (best[child] == score and rows[child] < row):
            break
        best[at] = best[child]
        rows[at] = rows[child]
        at = child
    best[at] = score
    rows[at] = row
