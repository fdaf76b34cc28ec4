"""Asymmetric search on a GPU (asymmetric.cu): float queries against packed codes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from scq_gpu._core.arrays import Array, row_slices
from scq_gpu.kernels.cuda.launch import (
    GRID,
    NULL,
    SHARED_BYTES,
    THREADS,
    allowed_words,
    as_cupy,
    ceil_div,
    in_library_of,
    launch,
    on_one_device,
    scratch,
)

MAX_SCORED_BYTES: Final = SHARED_BYTES // 128
"""Longest code of bits that the kernels take: the tables of one query fill shared memory."""
_PIECE = 4096
SELECT_SHARED: Final = 4 * 2048 + 2 * 4 + 8 * 2 * 8
"""Shared memory of asymmetric_select; asymmetric_order takes less."""


@dataclasses.dataclass(frozen=True)
class AsymmetricVariant:
    """One compiled form of asymmetric.cu."""

    queries: int  # of a block that scores: 8, 4, 2 or 1
    source = "asymmetric.cu"
    min_capability = 75
    score_bytes = 1 << 30  # most memory of scores at a time
    kernels = ("asymmetric_scores", "cell_scores", "asymmetric_select", "asymmetric_order")

    @property
    def defines(self) -> tuple[str, ...]:
        """Return the preprocessor definitions."""
        return (f"QUERIES={self.queries}",)

    def shared(self, n_bytes: int, table_bytes: int) -> int:
        """Return the shared memory of tables of so many bytes for each query and byte of a code."""
        return n_bytes * self.queries * table_bytes

    def chunk_items(self, n: int, n_queries: int) -> int:
        """Return the rows of a block, for a full grid; with more than 4096 the tables cost nothing beside them."""
        chunks = ceil_div(GRID, ceil_div(n_queries, self.queries))
        return min(4096, ceil_div(ceil_div(n, chunks), THREADS) * THREADS)

    def blocks(self, n: int, n_queries: int) -> int:
        """Return the number of blocks in the grid of a kernel that scores."""
        return ceil_div(n, self.chunk_items(n, n_queries)) * ceil_div(n_queries, self.queries)


BITS_TABLE: Final = 2 * 16 * 4
"""Bytes of the tables for a query and a byte of bits."""
CELLS_TABLE: Final = 256 * 4


def asymmetric_variant(n_bytes: int, n_queries: int, table_bytes: int = BITS_TABLE) -> AsymmetricVariant:
    """Return the variant for codes of ``n_bytes`` bytes: as many queries as there are and as have room for tables."""
    if table_bytes == BITS_TABLE and not 1 <= n_bytes <= MAX_SCORED_BYTES:
        raise ValueError(f"codes are {n_bytes} bytes wide; the asymmetric kernels take 1 to {MAX_SCORED_BYTES} bytes")
    fits = [
        v for v in asymmetric_variants() if v.shared(n_bytes, table_bytes) <= SHARED_BYTES and v.queries < 2 * n_queries
    ]
    return fits[0] if fits else AsymmetricVariant(1)


def asymmetric_variants() -> list[AsymmetricVariant]:
    """List every variant that `asymmetric_variant` can choose."""
    return [AsymmetricVariant(queries) for queries in (8, 4, 2, 1)]


def knn(gain: Array, parts: list[Array], k: int, allowed: Array | None = None) -> tuple[Array, Array]:
    """Find the rows of least score, as `scq_gpu.kernels.asymmetric.knn` does. A score that is NaN counts as inf."""
    return _on_device(least_scores, gain, parts, k, allowed)


def cells(tables: Array, parts: list[Array], k: int, allowed: Array | None = None) -> tuple[Array, Array]:
    """Find the rows of least score among product codes, as `scq_gpu.kernels.asymmetric.cells` does, all rows scored."""
    return _on_device(least_of_cells, tables, parts, k, allowed)


def _on_device(
    search: Callable[..., tuple[Array, Array]], terms: Array, parts: list[Array], k: int, allowed: Array | None
) -> tuple[Array, Array]:
    device, codes = on_one_device(**{f"part {i} of the codes": x for i, x in enumerate(parts)})
    with device.current():
        scores, rows = search(device, _floats(device, terms), codes, k, allowed)
        return in_library_of(parts[0], scores), in_library_of(parts[0], rows)


def _floats(device: Any, x: Array) -> Array:
    """Return x on the device, float32 and row-major; uploaded if it is NumPy's."""
    xp = device.xp
    return xp.ascontiguousarray(xp.asarray(x if isinstance(x, np.ndarray) else as_cupy(x), dtype=xp.float32))


def add_base(scores: Array, rows: Array, base: Array, *, least: float) -> tuple[Array, Array]:
    """Add ``base`` (q,) to ascending scores (q, k), raise them to ``least``, and order ties by row."""
    device, (given, ids) = on_one_device(scores=scores, rows=rows)
    with device.current():
        found = _ordered(device, NULL, given, _floats(device, base), ids, least=least)
        return in_library_of(scores, found[0]), in_library_of(scores, found[1])


def least_scores(
    device: Any, gains: Array, parts: list[Array], k: int, allowed: Array | None = None
) -> tuple[Array, Array]:
    """Find the rows of least score: scores (q, k) float32 and rows (q, k) int64, ties by lowest row, padded.

    ``gains`` (q, n_bits) is a float32 array on the device, and the parts are row-major codes.
    """
    n_bytes, (_, n_bits) = parts[0].shape[1], gains.shape

    def score(gains: Array, codes: Array, keys: Array, first_row: int, plane: int) -> None:
        q, n = len(gains), len(codes)
        variant = asymmetric_variant(n_bytes, q)
        sizes = map(np.int64, (n, codes.strides[0], plane, variant.chunk_items(n, q), first_row))
        args = codes, gains, allowed_words(device, allowed), keys, *sizes, *map(np.int32, (n_bytes, n_bits, q))
        shared = variant.shared(n_bytes, BITS_TABLE)
        launch(device, variant, "asymmetric_scores", blocks=variant.blocks(n, q), shared=shared, args=args)

    return _least(device, score, gains, parts, k)


def least_of_cells(
    device: Any, tables: Array, parts: list[Array], k: int, allowed: Array | None = None
) -> tuple[Array, Array]:
    """Find the rows of least score from tables (q, bytes, 256), as `least_scores` does."""
    n_bytes = parts[0].shape[1]

    def score(tables: Array, codes: Array, keys: Array, first_row: int, plane: int) -> None:
        q, n = len(tables), len(codes)
        variant = asymmetric_variant(n_bytes, q, CELLS_TABLE)
        sizes = tuple(map(np.int64, (n, codes.strides[0], plane, variant.chunk_items(n, q), first_row)))
        at_once = SHARED_BYTES // variant.shared(1, CELLS_TABLE)
        for first in range(0, n_bytes, at_once):
            last = min(n_bytes, first + at_once)
            numbers = map(np.int32, (n_bytes, first, last, q))
            args = codes, tables, allowed_words(device, allowed), keys, *sizes, *numbers
            shared = variant.shared(last - first, CELLS_TABLE)
            launch(device, variant, "cell_scores", blocks=variant.blocks(n, q), shared=shared, args=args)

    return _least(device, score, tables, parts, k)


def _least(device: Any, score: Callable[..., None], terms: Array, parts: list[Array], k: int) -> tuple[Array, Array]:
    """Find the k least of the scores that ``score`` leaves as keys, held for as many pairs as memory allows."""
    xp = device.xp
    q, n = len(terms), sum(len(part) for part in parts)
    scores, rows = xp.empty((q, k), dtype=xp.float32), xp.empty((q, k), dtype=xp.int64)
    if not q:
        return scores, rows
    words = min(q * n, AsymmetricVariant.score_bytes // 4)
    keys = scratch(xp, max(1, words), min(n, _PIECE) or 1)
    rows_at_once = min(n, len(keys))
    for queries in row_slices(q, max(1, len(keys) // max(1, rows_at_once))):
        some = terms[queries]
        best: Any = None
        for blocks, first, height in _blocks(parts, rows_at_once):
            start = 0
            for codes in blocks:
                score(some, codes, keys[start:], first + start, height)
                start += len(codes)
            found = _select(device, keys, None, (len(some), height), k, first)
            if best is not None:
                # rows of equal score stay in order: those found before come first
                best, ids = (xp.concatenate(x, axis=1) for x in zip(best, found, strict=True))
                found = _select(device, best, ids, best.shape, k)
            best = found
        _ordered(device, best[0], NULL, NULL, best[1], out=(scores[queries], rows[queries]))
    return scores, rows


def _blocks(parts: list[Array], size: int) -> Iterator[tuple[list[Array], int, int]]:
    """Yield at most ``size`` rows at a time, as pieces of parts, the row they begin with, and their number."""
    held: list[Array] = []
    first = height = 0
    for codes in parts:
        start = 0
        while start < len(codes):
            taken = codes[start : start + size - height]
            held.append(taken)
            start, height = start + len(taken), height + len(taken)
            if height == size:
                yield held, first, height
                held, first, height = [], first + height, 0
    if held:
        yield held, first, height


def _select(
    device: Any, keys: Array, rows: Array | None, shape: tuple[int, int], k: int, first_row: int = 0
) -> tuple[Array, Array]:
    """Find the k least of the keys (q, n), in pieces for a full grid, as keys (q, k) and rows. Ties are in order."""
    xp, (q, n), variant = device.xp, shape, AsymmetricVariant(1)
    while True:
        # a piece must be much larger than what it leaves
        piece = max(_PIECE, 8 * k, ceil_div(q * n, 2 * GRID))
        pieces = ceil_div(n, piece)
        least, ids = xp.empty((q, pieces * k), dtype=xp.uint32), xp.empty((q, pieces * k), dtype=xp.int64)
        numbers = np.int64(first_row), *map(np.int32, (n, piece, pieces, k))
        args = keys, NULL if rows is None else rows, least, ids, *numbers
        launch(device, variant, "asymmetric_select", blocks=q * pieces, shared=SELECT_SHARED, args=args)
        if pieces == 1:
            return least, ids
        keys, rows, n = least, ids, pieces * k


def _ordered(
    device: Any, keys: Any, scores: Any, base: Any, rows: Array, *, least: float = -np.inf, out: Any = None
) -> tuple[Array, Array]:
    """Return distances (q, k) in ascending order, from keys or scores, and their rows."""
    xp, (q, k) = device.xp, rows.shape
    found = out or (xp.empty((q, k), dtype=xp.float32), xp.empty((q, k), dtype=xp.int64))
    args = keys, scores, base, rows, *found, np.int32(k), np.float32(least)
    blocks = q * ceil_div(k, THREADS)
    launch(device, AsymmetricVariant(1), "asymmetric_order", blocks=blocks, shared=16 * THREADS, args=args)
    return found
