"""Asymmetric search on a GPU (asymmetric.cu): float queries against packed codes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from scq_gpu._core.arrays import Array, row_slices
from scq_gpu.kernels.cuda.launch import (
    SHARED_BYTES,
    ceil_div,
    in_library_of,
    launch,
    on_one_device,
    pad_columns,
)

MAX_SCORED_BYTES: Final = SHARED_BYTES // 128
"""Longest code that the kernels take: the tables of one query fill shared memory."""


@dataclasses.dataclass(frozen=True)
class AsymmetricVariant:
    """One compiled form of asymmetric.cu."""

    queries: int  # of a block of asymmetric_scores: 8, 4, 2 or 1
    source = "asymmetric.cu"
    min_capability = 75
    chunk_items = 4096
    score_bytes = 1 << 30  # most memory of scores at a time
    kernels = ("asymmetric_scores", "asymmetric_select")

    @property
    def defines(self) -> tuple[str, ...]:
        """Return the preprocessor definitions."""
        return f"QUERIES={self.queries}", f"CHUNK_ITEMS={self.chunk_items}"

    def shared(self, n_bytes: int) -> tuple[int, int]:
        """Return the shared memory of both kernels: tables of 16 floats; a histogram, and counts of 8 warps."""
        return 2 * n_bytes * self.queries * 16 * 4, 4 * 2048 + 2 * 4 + 8 * 2 * 8

    def blocks(self, n: int, n_queries: int) -> int:
        """Return the number of blocks in the grid of asymmetric_scores; asymmetric_select has one per query."""
        return ceil_div(n, self.chunk_items) * ceil_div(n_queries, self.queries)

    def batches(self, n: int, n_queries: int, free: int) -> tuple[int, int]:
        """Return how many queries and rows have scores that fit into `score_bytes` and a quarter of the free memory.

        These are whole blocks of queries, and all rows unless the scores of one block of queries then take too much.
        """
        scores = max(1, min(self.score_bytes, free // 4) // 4)
        rows = min(n, max(self.chunk_items, scores // min(self.queries, n_queries)))
        return max(1, scores // (rows * self.queries)) * self.queries, rows


def asymmetric_variant(n_bytes: int) -> AsymmetricVariant:
    """Return the variant for codes of ``n_bytes`` bytes: as many queries as have room for their tables, up to 8."""
    if not 1 <= n_bytes <= MAX_SCORED_BYTES:
        raise ValueError(f"codes are {n_bytes} bytes wide; the asymmetric kernels take 1 to {MAX_SCORED_BYTES} bytes")
    return next(v for v in asymmetric_variants() if v.shared(n_bytes)[0] <= SHARED_BYTES)


def asymmetric_variants() -> list[AsymmetricVariant]:
    """List every variant that `asymmetric_variant` can choose."""
    return [AsymmetricVariant(queries) for queries in (8, 4, 2, 1)]


def knn(gain: np.ndarray, parts: list[Array], k: int) -> tuple[Array, Array]:
    """Find the rows of least score, as `scq_gpu.kernels.asymmetric.knn` does. A score that is NaN counts as inf."""
    device, codes = on_one_device(**{f"part {i} of the codes": x for i, x in enumerate(parts)})
    xp = device.xp
    with device.current():
        gains = xp.asarray(gain, dtype=xp.float32)
        scores, rows = least_scores(device, xp.ascontiguousarray(gains), codes, k)
        scores, rows = pad_columns(scores, k, np.inf, xp=xp), pad_columns(rows, k, -1, xp=xp)
        return in_library_of(parts[0], scores), in_library_of(parts[0], rows)


def least_scores(device: Any, gains: Array, parts: list[Array], k: int) -> tuple[Array, Array]:
    """Find the rows of least score: scores (q, m) float32 and rows (q, m) int64, m = min(k, n), ties by lowest row.

    ``gains`` (q, n_bits) is a float32 array on the device, and the parts are row-major codes. Scores of all pairs are
    held for as many queries at a time as memory allows, and for as many rows where those of all rows are too many.
    """
    xp = device.xp
    n, (q, _) = max(len(part) for part in parts), gains.shape
    queries_at_once, rows_at_once = asymmetric_variant(parts[0].shape[1]).batches(n, q, device.free_bytes())
    answers = []
    for queries in row_slices(q, queries_at_once):
        best = None
        for block, first in _blocks(parts, rows_at_once):
            found = _least_of_block(device, gains[queries], block, first, min(k, len(block)))
            # rows of equal score stay in order: those found before come first in a stable sort
            if best is not None:
                found = tuple(xp.concatenate(x, axis=1) for x in zip(best, found, strict=True))
            order = xp.argsort(found[0], axis=1, kind="stable")[:, :k]
            best = tuple(xp.take_along_axis(x, order, axis=1) for x in found)
        answers.append(best)
    scores, rows = (xp.concatenate(x) for x in zip(*answers, strict=True))
    return scores, rows


def _blocks(parts: list[Array], size: int) -> Iterator[tuple[Array, int]]:
    """Yield blocks of at most ``size`` rows, and the row each begins with."""
    first = 0
    for codes in parts:
        for rows in row_slices(len(codes), size):
            yield codes[rows], first + rows.start
        first += len(codes)


def _least_of_block(device: Any, gains: Array, codes: Array, first: int, k: int) -> tuple[Array, Array]:
    """Find the k rows of least score of a block. Only rows of equal score are in order."""
    xp = device.xp
    (q, n_bits), (n, n_bytes) = gains.shape, codes.shape
    variant = asymmetric_variant(n_bytes)
    keys = xp.empty((q, n), dtype=xp.uint32)
    scores, rows = xp.empty((q, k), dtype=xp.float32), xp.empty((q, k), dtype=xp.int64)
    sizes = (np.int64(n), np.int64(codes.strides[0]))
    score = (codes, gains, keys, *sizes, *map(np.int32, (n_bytes, n_bits, q)))
    shared = variant.shared(n_bytes)
    launch(device, variant, "asymmetric_scores", blocks=variant.blocks(n, q), shared=shared[0], args=score)
    select = (keys, scores, rows, np.int64(n), np.int64(first), np.int32(k))
    launch(device, variant, "asymmetric_select", blocks=q, shared=shared[1], args=select)
    return scores, rows
