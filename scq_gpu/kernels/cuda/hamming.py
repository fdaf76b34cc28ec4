"""Exact Hamming search on a GPU (hamming.cu)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from scq_gpu._core.arrays import Array, device_of, namespace, on_gpu, row_slices
from scq_gpu.kernels.cuda.launch import (
    GRID,
    THREADS,
    allowed_words,
    ceil_div,
    element_of,
    in_library_of,
    launch,
    on_one_device,
    scratch,
)

MAX_BITS: Final = 1024
"""Longest code that the kernels take."""
MAX_K: Final = 65536


@dataclasses.dataclass(frozen=True)
class HammingVariant:
    """One compiled form of hamming.cu."""

    n_words: int  # 32-bit words of a code: a power of two up to 32
    few: bool = False  # a block takes one query, whose items its warps share
    source = "hamming.cu"
    min_capability = 75
    workspace_bytes = 64 << 20  # of histograms

    @property
    def queries_per_warp(self) -> int:
        """Return the queries of a warp: as many as their histograms leave room for, besides the tiles, in 48 KiB."""
        return 0 if self.few else {1: 4, 2: 4, 4: 4, 8: 2}.get(self.n_words, 1)

    @property
    def queries(self) -> int:
        """Return the queries of a block."""
        return max(1, THREADS // 32 * self.queries_per_warp)

    @property
    def tile_items(self) -> int:
        """Return the number of database items in a tile, or in a step for a few queries."""
        return 4 * THREADS if self.few else min(256, 1024 // self.n_words)

    @property
    def bins(self) -> int:
        """Return the number of possible distances."""
        return 32 * self.n_words + 1

    @property
    def defines(self) -> tuple[str, ...]:
        """Return the preprocessor definitions."""
        return f"N_WORDS={self.n_words}", f"QUERIES_PER_WARP={self.queries_per_warp}", f"TILE_ITEMS={self.tile_items}"

    @property
    def kernels(self) -> dict[str, int]:
        """Return the kernel names and the bytes of shared memory they take."""
        warps = THREADS // 32
        tiles = 2 * warps if self.few else 2 * self.n_words * self.tile_items
        scan = 4 * (tiles + self.n_words * self.queries)
        histograms = 4 * self.queries * self.bins
        return {
            "hamming_count": scan + histograms,
            "hamming_plan": 4 * ((warps + 1) * self.bins + 1),
            "hamming_collect": scan + histograms,
            "hamming_range_count": scan,
            "hamming_range_collect": scan,
        }

    def chunk_items(self, n: int, n_queries: int) -> int:
        """Return the items of a chunk: whole tiles, for a full grid, and more than their histogram has bins."""
        chunks = ceil_div(GRID, ceil_div(max(1, n_queries), self.queries))
        least = max(1024, 4 * self.bins, ceil_div(n, chunks))
        return ceil_div(least, self.tile_items) * self.tile_items

    def chunks(self, n: int, n_queries: int) -> int:
        """Return the number of chunks of a database of n items."""
        return ceil_div(n, self.chunk_items(n, n_queries))


def hamming_variant(n_bytes: int, n_queries: int) -> HammingVariant:
    """Return the variant for codes of ``n_bytes`` bytes and that many queries."""
    if not 1 <= n_bytes <= MAX_BITS // 8:
        raise ValueError(
            f"codes are {n_bytes} bytes wide; the Hamming kernels take 1 to {MAX_BITS // 8} bytes ({MAX_BITS} bits)"
        )
    shared = HammingVariant(1 << (ceil_div(n_bytes, 4) - 1).bit_length())
    # A block that shares tiles takes as long for a query as for all it has room for
    return HammingVariant(shared.n_words, few=4 * n_queries <= shared.queries)


def hamming_variants() -> list[HammingVariant]:
    """List every variant that `hamming_variant` can choose."""
    return [HammingVariant(1 << i, few) for i in range(6) for few in (False, True)]


class CodeSearch:
    """Exact Hamming search over codes on a GPU: the engine of `scq_gpu.HammingIndex` there.

    ``parts`` is one array (n, n_bytes) of uint8, CuPy's or torch's, of codes up to 1024 bits, padding bits 0. A copy in
    the kernels' layout is kept.
    """

    def __init__(self, parts: list[Array]) -> None:
        self._parts = parts
        (codes,) = parts
        self._device, (words,) = on_one_device(codes=_check_codes(codes, "codes"))
        with self._device.current():
            self._database = Database(self._device, words)

    def __reduce__(self) -> tuple[Any, ...]:
        # compiled kernels cannot be pickled
        return type(self), (self._parts,)

    def knn(
        self, queries: Array, parts: list[Array], k: int, *, n_bits: int, allowed: Array | None = None
    ) -> tuple[Array, Array]:
        """Find the k nearest rows: distances (q, k) int32, rows (q, k) int64, padded with n_bits + 1 and -1.

        ``parts`` are those the engine was made of. ``allowed`` is a bitset of the rows that may be found.
        """
        d, rows = self._run(queries, lambda codes: self._database.top_k(codes, k, n_bits + 1, allowed))
        return d, rows

    def within(
        self, queries: Array, parts: list[Array], radius: int, allowed: Array | None = None
    ) -> tuple[Array, Array, Array]:
        """Find all pairs within a radius: (query, distance, row) where the queries are, by query and row."""
        xp, found = namespace(queries), []
        for block in row_slices(queries.shape[0], Database.range_queries):
            limits, d, rows = self._run(queries[block, :], lambda codes: self._database.within(codes, radius, allowed))
            with self._device.current():
                numbers = xp.arange(rows.shape[0], dtype=xp.int64, device=device_of(rows))
                query = xp.searchsorted(limits[1:], numbers, side="right") + block.start
            found.append((query, d, rows))
        with self._device.current():
            query, d, rows = found[0] if len(found) == 1 else (xp.concat(x, axis=0) for x in zip(*found, strict=True))
        return query, d, rows

    def _run(self, queries: Array, search: Callable[[Array], tuple[Array, ...]]) -> tuple[Array, ...]:
        device, (codes,) = on_one_device(queries=_check_codes(queries, "queries"))
        if device is not self._device:
            raise ValueError(
                f"queries are on {device.name} and the codes on {self._device.name}; move them to one device"
            )
        with device.current():
            return tuple(in_library_of(queries, result) for result in search(codes))


def _check_codes(codes: Array, name: str) -> Array:
    if on_gpu(codes) and (element_of(codes) != "uint8" or codes.ndim != 2):
        raise TypeError(
            f"{name} of dtype {element_of(codes)} and shape {tuple(codes.shape)} are not packed codes; "
            "those are (n, n_bytes) of uint8 (see scq_gpu.pack)"
        )
    return codes


class Database:
    """Codes laid out for the Hamming kernels: word by word, so that neighboring threads read neighboring items.

    The codes (n, n_bytes) are uint8 in the namespace of the device, padding bits 0.
    """

    range_queries = 1 << 14  # most queries of a range search at a time

    def __init__(self, device: Any, codes: Array) -> None:
        xp = device.xp
        self._device = device
        self.n, self.n_bytes = (int(size) for size in codes.shape)
        n_words = hamming_variant(self.n_bytes, 1).n_words
        padded = xp.zeros((self.n, 4 * n_words), dtype=xp.uint8)
        padded[:, : self.n_bytes] = codes
        self.words = xp.zeros((n_words, ceil_div(self.n, 4) * 4), dtype=xp.uint32)
        self.words[:, : self.n] = padded.view(xp.uint32).T

    def top_k(self, queries: Array, k: int, no_distance: int, allowed: Array | None = None) -> tuple[Array, Array]:
        """Find the k nearest items: distances (n_queries, k) int32 and ids int64, ties by lowest id.

        With fewer items than k the rest is ``no_distance`` and -1. ``allowed`` is a bitset of the items to be found.
        """
        if k < 1 or min(k, self.n) > MAX_K:
            raise ValueError(f"k={k} must be an integer from 1 to {MAX_K}")
        xp, variant = self._device.xp, hamming_variant(self.n_bytes, len(queries))
        chunks = variant.chunks(self.n, len(queries))
        counts_of_query = max(1, chunks * variant.bins)
        most = max(counts_of_query, min(len(queries) * counts_of_query, variant.workspace_bytes // 4))
        counts = scratch(xp, most, counts_of_query)
        distances = xp.empty((len(queries), k), dtype=xp.int32)
        ids = xp.empty((len(queries), k), dtype=xp.int64)
        radius = xp.empty(len(queries), dtype=xp.int32)
        for rows in row_slices(len(queries), len(counts) // counts_of_query):
            part, near, out = queries[rows], radius[rows], (distances[rows], ids[rows])
            scan = variant, part, allowed, len(queries)
            self._scan("hamming_count", *scan, counts)
            plan = (counts, near, *out, *map(np.int32, (chunks, k, no_distance)))
            self._launch("hamming_plan", variant, len(part), plan)
            self._scan("hamming_collect", *scan, counts, near, *out, np.int32(k))
        return distances, ids

    def within(self, queries: Array, radius: int, allowed: Array | None = None) -> tuple[Array, Array, Array]:
        """Find the items within ``radius``, by id: limits (n_queries + 1,), distances and ids.

        Those of query q are at ``limits[q] : limits[q + 1]``.
        """
        xp, variant = self._device.xp, hamming_variant(self.n_bytes, len(queries))
        scan = variant, queries, allowed, len(queries)
        counts = xp.empty((len(queries), variant.chunks(self.n, len(queries))), dtype=xp.int64)
        self._scan("hamming_range_count", *scan, counts, np.int32(radius))
        ends = xp.cumsum(counts.ravel()).reshape(counts.shape)
        limits = xp.zeros(len(queries) + 1, dtype=xp.int64)
        limits[1:] = xp.cumsum(counts.sum(axis=1))
        total = int(limits[-1])
        distances, ids = xp.empty(total, dtype=xp.int32), xp.empty(total, dtype=xp.int64)
        self._scan("hamming_range_collect", *scan, ends - counts, distances, ids, np.int32(radius))
        return limits, distances, ids

    def _scan(
        self, name: str, variant: HammingVariant, queries: Array, allowed: Array | None, n_queries: int, *rest: Any
    ) -> None:
        """Launch a kernel that walks the database for some of ``n_queries`` queries."""
        if queries.shape[1] != self.n_bytes:
            raise ValueError(
                f"queries are {queries.shape[1]} bytes wide and the database {self.n_bytes}; use one encoder for both"
            )
        chunks = variant.chunks(self.n, n_queries)
        arrays = self.words, self._device.xp.ascontiguousarray(queries), allowed_words(self._device, allowed)
        sizes = map(np.int64, (self.n, self.words.shape[1], variant.chunk_items(self.n, n_queries)))
        numbers = map(np.int32, (len(queries), self.n_bytes, chunks))
        blocks = chunks * ceil_div(len(queries), variant.queries)
        self._launch(name, variant, blocks, (*arrays, *sizes, *numbers, *rest))

    def _launch(self, name: str, variant: HammingVariant, blocks: int, args: tuple[Any, ...]) -> None:
        launch(self._device, variant, name, blocks=blocks, shared=variant.kernels[name], args=args)
