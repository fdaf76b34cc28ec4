"""Float queries against packed codes: which engine finds the rows of least score, and the one in array operations.

The score of a row is the summed gain of its set bits. Every engine adds the sums in the order of the bytes, so equal
codes have equal scores. The CUDA kernel adds sums of four bits, the other engines of eight, each the sum of two tables
of 16 entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array, is_row_major, like, namespace, row_slices, runs_kernels, to_host
from scq_gpu.kernels import native
from scq_gpu.kernels.cuda import asymmetric as cuda
from scq_gpu.kernels.hamming import Nearest, code_blocks, queries_at_once

_BLOCK_ROWS = 1 << 14


def engine(codes: Array) -> str:
    """Name the engine that scores these codes for float queries: "cuda", "native" or "arrays"."""
    if runs_kernels(codes) and 1 <= codes.shape[1] <= cuda.MAX_SCORED_BYTES and is_row_major(codes):
        return "cuda"
    return "native" if native.runs_native(codes) else "arrays"


def knn(
    gain: Array, parts: list[Array], k: int, *, allowed: Array | None = None, searcher: Any = None
) -> tuple[Array, Array]:
    """Find the rows of least score for gains (q, n_bits): scores (q, k) float32 and rows (q, k) int64.

    Ascending, lowest row first inside a tie, padded with inf and -1; in the namespace and on the device of the codes.
    Gains are anywhere; those that are beside the codes do not leave their device. ``allowed`` is a bitset of the rows
    that may be found. ``searcher`` is that of `kernels.search` for these codes, if the caller keeps one.
    """
    codes = parts[0]
    chosen = engine(codes)
    if chosen == "cuda":
        return cuda.knn(gain, parts, k, allowed)
    entries = nibble_tables(to_host(gain), codes.shape[1])
    if chosen == "native":
        return (searcher or native.CodeSearch.of(parts)).least(entries, k)
    return _add_up(lambda block: byte_tables(entries[block]), len(gain), parts, k)


def cells(
    tables: Array,
    parts: list[Array],
    k: int,
    *,
    keep: int = 1 << 62,
    allowed: Array | None = None,
    searcher: Any = None,
) -> tuple[Array, Array]:
    """Find the rows of least score among product codes, from tables (q, bytes, 256): scores and rows as from `knn`.

    On processors without an instruction that looks up 64 cells at once (AVX-512 VBMI), the native core scores about
    ``keep`` of the rows: those whose groups of cells, the high nibbles, are nearest. All rows are scored everywhere
    else.
    """
    chosen = engine(parts[0])
    if chosen == "cuda":
        return cuda.cells(tables, parts, k, allowed)
    if chosen == "native":
        return (searcher or native.CodeSearch.of(parts)).cells(to_host(tables), k, keep=keep)
    return _add_up(lambda block: tables[block, :, :], tables.shape[0], parts, k)


def add_base(scores: Array, rows: Array, base: Array, *, least: float = -math.inf) -> tuple[Array, Array]:
    """Make distances of ascending scores (q, k), by adding those of the queries (q,), and at least ``least``.

    Rounding may make distances equal whose scores are not: the lowest row then comes first.
    """
    if runs_kernels(scores):
        return cuda.add_base(scores, rows, base, least=least)
    near, found = to_host(scores) + to_host(base)[:, None], to_host(rows)
    near = np.maximum(near, np.float32(least))
    swapped = (near[:, 1:] == near[:, :-1]) & (found[:, 1:] < found[:, :-1]) & (found[:, 1:] >= 0)
    wrong = np.flatnonzero(swapped.any(axis=1))
    if wrong.size:
        found = np.array(found)
        last = np.where(found[wrong] < 0, np.iinfo(np.int64).max, found[wrong])
        found[wrong] = np.take_along_axis(found[wrong], np.lexsort((last, near[wrong]), axis=1), axis=1)
    return like(near, scores), like(found, scores)


def _add_up(tables_of: Callable[[slice], Array], q: int, parts: list[Array], k: int) -> tuple[Array, Array]:
    """Score all rows in array operations, from tables (queries, bytes, 256) of some of the q queries at a time."""
    codes, n = parts[0], sum(part.shape[0] for part in parts)
    xp = namespace(codes)
    answers = []
    for block in row_slices(q, queries_at_once(codes, min(k, n) + _BLOCK_ROWS)):
        tables = like(tables_of(block), codes)
        nearest = Nearest(k, xp=xp)
        for some, first in code_blocks(parts, _BLOCK_ROWS):
            numbers = xp.astype(some, xp.int64)
            scores = xp.take(tables[:, 0, :], numbers[:, 0], axis=1)
            for byte in range(1, some.shape[1]):
                scores = scores + xp.take(tables[:, byte, :], numbers[:, byte], axis=1)
            nearest.offer(scores, first)
        answers.append(nearest.best(dtype=xp.float32, padding=xp.inf))
    return xp.concat([d for d, _ in answers], axis=0), xp.concat([row for _, row in answers], axis=0)


def nibble_tables(gain: np.ndarray, width: int) -> np.ndarray:
    """Sum the gain of every value of every 4 bits of a code: (q, width, 2, 16) float32, the low nibble first."""
    padded = np.zeros((len(gain), 8 * width), dtype=np.float32)
    padded[:, : gain.shape[1]] = gain
    of_bits = padded.reshape(len(gain), width, 2, 4)
    tables = np.zeros((len(gain), width, 2, 16), dtype=np.float32)
    values = np.arange(16)
    # Bit by bit, so that the sums are rounded in one order everywhere
    for bit in range(4):
        tables += of_bits[..., bit, None] * (values >> bit & 1).astype(np.float32)
    return tables


def byte_tables(entries: np.ndarray) -> np.ndarray:
    """Add up the tables of the two nibbles of each byte: (q, bytes, 256)."""
    sums: np.ndarray = entries[:, :, 0, None, :] + entries[:, :, 1, :, None]
    return sums.reshape(*entries.shape[:2], 256)
