"""Float queries against packed codes: which engine finds the rows of least score, and the one in array operations.

The score of a row is the summed gain of its set bits. Every engine adds the sums in the order of the bytes, so equal
codes have equal scores. The CUDA kernel adds sums of four bits, the other engines of eight, each the sum of two tables
of 16 entries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array, device_of, from_host, is_row_major, namespace, row_slices, runs_kernels
from scq_gpu.kernels import native
from scq_gpu.kernels.cuda import asymmetric as cuda
from scq_gpu.kernels.hamming import Nearest, code_blocks, queries_at_once

_BLOCK_ROWS = 1 << 14


def engine(codes: Array) -> str:
    """Name the engine that scores these codes for float queries: "cuda", "native" or "arrays"."""
    if runs_kernels(codes) and 1 <= codes.shape[1] <= cuda.MAX_SCORED_BYTES and is_row_major(codes):
        return "cuda"
    return "native" if native.runs_native(codes) else "arrays"


def knn(gain: np.ndarray, parts: list[Array], k: int, *, searcher: Any = None) -> tuple[Array, Array]:
    """Find the rows of least score for gains (q, n_bits): scores (q, k) float32 and rows (q, k) int64.

    Ascending, lowest row first inside a tie, padded with inf and -1; in the namespace and on the device of the codes.
    ``searcher`` is that of `kernels.search` for these codes, if the caller keeps one.
    """
    codes = parts[0]
    chosen = engine(codes)
    if chosen == "cuda":
        return cuda.knn(gain, parts, k)
    entries = nibble_tables(gain, codes.shape[1])
    if chosen == "native":
        return (searcher or native.CodeSearch.of(parts)).least(entries, k)
    return _add_up(lambda block: byte_tables(entries[block]), len(gain), parts, k)


def cells(tables: np.ndarray, parts: list[Array], k: int, *, keep: int, searcher: Any = None) -> tuple[Array, Array]:
    """Find the rows of least score among product codes, from tables (q, bytes, 256): scores and rows as from `knn`.

    On processors without an instruction that looks up 64 cells at once (AVX-512 VBMI), the native core scores about
    ``keep`` of the rows: those whose groups of cells, the high nibbles, are nearest. All rows are scored everywhere
    else.
    """
    if engine(parts[0]) == "native":
        return (searcher or native.CodeSearch.of(parts)).cells(tables, k, keep=keep)
    return _add_up(lambda block: tables[block], len(tables), parts, k)


def _add_up(tables_of: Callable[[slice], np.ndarray], q: int, parts: list[Array], k: int) -> tuple[Array, Array]:
    """Score all rows in array operations, from tables (queries, bytes, 256) of some of the q queries at a time."""
    codes, n = parts[0], sum(part.shape[0] for part in parts)
    xp = namespace(codes)
    answers = []
    for block in row_slices(q, queries_at_once(codes, min(k, n) + _BLOCK_ROWS)):
        tables = from_host(tables_of(block), xp=xp, device=device_of(codes))
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
