"""Exact Hamming search on a GPU (hamming.cu)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from scq_gpu._core.arrays import Array, device_of, namespace, on_gpu, row_slices
from scq_gpu.kernels.cuda.launch import THREADS, ceil_div, element_of, in_library_of, launch, on_one_device, pad_columns

MAX_BITS: Final = 1024
"""Longest code that the kernels take."""
MAX_K: Final = 65536


@dataclasses.dataclass(frozen=True)
class HammingVariant:
    """One compiled form of hamming.cu."""

    n_words: int  # 32-bit words of a code: a power of two up to 32
    source = "hamming.cu"
    min_capability = 75
    max_chunks = 256
    workspace_bytes = 64 << 20  # of histograms

    @property
    def queries_per_warp(self) -> int:
        """Return the queries of a warp: as many as their histograms leave room for, besides the tiles, in 48 KiB."""
        return {1: 4, 2: 4, 4: 4, 8: 2}.get(self.n_words, 1)

    @property
    def queries(self) -> int:
        """Return the queries of a block."""
        return THREADS // 32 * self.queries_per_warp

    @property
    def tile_items(self) -> int:
        """Return the number of database items in a tile."""
        return min(256, 1024 // self.n_words)

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
        scan = 4 * self.n_words * (2 * self.tile_items + self.queries)
        histograms = 4 * self.queries * self.bins
        return {
            "hamming_count": scan + histograms,
            "hamming_plan": 4 * self.bins,
            "hamming_collect": scan + histograms,
            "hamming_range_count": scan,
            "hamming_range_collect": scan,
        }

    def chunk_items(self, n: int) -> int:
        """Return the items of a chunk: whole tiles, at least 4096 items, at most `max_chunks` chunks."""
        return max(4096, ceil_div(ceil_div(n, self.max_chunks), self.tile_items) * self.tile_items)

    def chunks(self, n: int) -> int:
        """Return the number of chunks of a database of n items."""
        return ceil_div(n, self.chunk_items(n))

    def blocks(self, n: int, n_queries: int) -> int:
        """Return the number of blocks in the grid of every kernel but hamming_plan, which has one per query."""
        return self.chunks(n) * ceil_div(n_queries, self.queries)

    def query_batch(self, n: int, free: int) -> int:
        """Return how many queries have histograms that fit into `workspace_bytes` and a quarter of the free memory."""
        per_query = 4 * self.chunks(n) * self.bins
        return max(1, min(self.workspace_bytes, free // 4) // (per_query * self.queries)) * self.queries


def hamming_variant(n_bytes: int) -> HammingVariant:
    """Return the variant for codes of ``n_bytes`` bytes."""
    if not 1 <= n_bytes <= MAX_BITS // 8:
        raise ValueError(
            f"codes are {n_bytes} bytes wide; the Hamming kernels take 1 to {MAX_BITS // 8} bytes ({MAX_BITS} bits)"
        )
    return HammingVariant(1 << (ceil_div(n_bytes, 4) - 1).bit_length())


def hamming_variants() -> list[HammingVariant]:
    """List every variant that `hamming_variant` can choose."""
    return [HammingVariant(1 << i) for i in range(6)]


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

    def knn(self, queries: Array, parts: list[Array], k: int, *, n_bits: int) -> tuple[Array, Array]:
        """Find the k nearest rows: distances (q, k) int32, rows (q, k) int64, padded with n_bits + 1 and -1.

        ``parts`` are those the engine was made of.
        """
        xp = self._device.xp

        def search(words: Array) -> tuple[Array, Array]:
            d, rows = self._database.top_k(words, min(k, self._database.n))
            return pad_columns(d, k, n_bits + 1, xp=xp), pad_columns(rows, k, -1, xp=xp)

        d, rows = self._run(queries, search)
        return d, rows

    def within(self, queries: Array, parts: list[Array], radius: int) -> tuple[Array, Array, Array]:
        """Find all pairs within a radius: (query, distance, row) where the queries are, by query and row."""
        xp, found = namespace(queries), []
        for block in row_slices(queries.shape[0], self._database.range_batch()):
            limits, d, rows = self._run(queries[block, :], lambda words: self._database.within(words, radius))
            with self._device.current():
                numbers = xp.arange(rows.shape[0], dtype=xp.int64, device=device_of(rows))
                query = xp.searchsorted(limits[1:], numbers, side="right") + block.start
            found.append((query, d, rows))
        with self._device.current():
            query, d, rows = found[0] if len(found) == 1 else (xp.concat(x, axis=0) for x in zip(*found, strict=True))
        return query, d, rows

    def _run(self, queries: Array, search: Callable[[Array], tuple[Array, ...]]) -> tuple[Array, ...]:
        device, (words,) = on_one_device(queries=_check_codes(queries, "queries"))
        if device is not self._device:
            raise ValueError(
                f"queries are on {device.name} and the codes on {self._device.name}; move them to one device"
            )
        with device.current():
            return tuple(in_library_of(queries, result) for result in search(words))


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
        self.variant: HammingVariant = hamming_variant(self.n_bytes)
        self.words = xp.zeros((self.variant.n_words, ceil_div(self.n, 4) * 4), dtype=xp.uint32)
        self.words[:, : self.n] = self._to_words(codes).T

    def top_k(self, queries: Array, k: int) -> tuple[Array, Array]:
        """Find the k nearest items: distances (n_queries, k) int32 and ids int64, ties by lowest id."""
        if not 1 <= k <= min(self.n, MAX_K):
            raise ValueError(
                f"k={k} must be an integer from 1 to {min(self.n, MAX_K)} (the database holds {self.n} codes)"
            )
        xp, variant = self._device.xp, self.variant
        words = self._query_words(queries)
        chunks, batch = variant.chunks(self.n), variant.query_batch(self.n, self._device.free_bytes())
        distances = xp.empty((len(words), k), dtype=xp.int32)
        ids = xp.empty((len(words), k), dtype=xp.int64)
        for first in range(0, len(words), batch):
            part = words[first : first + batch]
            counts = xp.empty((len(part), chunks, variant.bins), dtype=xp.uint32)
            radius = xp.empty(len(part), dtype=xp.int32)
            self._scan("hamming_count", part, (counts,), chunks)
            self._launch("hamming_plan", len(part), (counts, radius, np.int32(chunks), np.int32(k)))
            out = distances[first : first + batch], ids[first : first + batch]
            self._scan("hamming_collect", part, (counts, radius, *out), chunks, k)
        return distances, ids

    def within(self, queries: Array, radius: int) -> tuple[Array, Array, Array]:
        """Find the items within ``radius``, by id: limits (n_queries + 1,), distances and ids.

        Those of query q are at ``limits[q] : limits[q + 1]``.
        """
        xp = self._device.xp
        words = self._query_words(queries)
        chunks = self.variant.chunks(self.n)
        counts = xp.empty((len(words), chunks), dtype=xp.int64)
        self._scan("hamming_range_count", words, (counts,), chunks, radius)
        ends = xp.cumsum(counts.ravel()).reshape(counts.shape)
        limits = xp.zeros(len(words) + 1, dtype=xp.int64)
        limits[1:] = xp.cumsum(counts.sum(axis=1))
        total = int(limits[-1])
        distances, ids = xp.empty(total, dtype=xp.int32), xp.empty(total, dtype=xp.int64)
        self._scan("hamming_range_collect", words, (ends - counts, distances, ids), chunks, radius)
        return limits, distances, ids

    def range_batch(self) -> int:
        """Return how many queries have counts, one for each chunk, that are held in memory at a time."""
        per_query = 4 * 8 * self.variant.chunks(self.n)
        return max(1, min(self.range_queries, int(self._device.free_bytes()) // (4 * per_query)))

    def _query_words(self, queries: Array) -> Array:
        if queries.shape[1] != self.n_bytes:
            raise ValueError(
                f"queries are {queries.shape[1]} bytes wide and the database {self.n_bytes}; use one encoder for both"
            )
        return self._to_words(queries)

    def _to_words(self, codes: Array) -> Array:
        """Return codes (n, n_bytes) as (n, n_words) uint32, padded with zeros."""
        xp = self._device.xp
        padded = xp.zeros((codes.shape[0], 4 * self.variant.n_words), dtype=xp.uint8)
        padded[:, : codes.shape[1]] = codes
        return padded.view(xp.uint32)

    def _scan(self, name: str, words: Array, arrays: tuple[Array, ...], *numbers: int) -> None:
        """Launch a kernel that walks the database for the queries ``words``."""
        variant = self.variant
        sizes = (*map(np.int64, (self.n, self.words.shape[1], variant.chunk_items(self.n))), np.int32(len(words)))
        args = (self.words, words, *arrays, *sizes, *map(np.int32, numbers))
        self._launch(name, variant.blocks(self.n, len(words)), args)

    def _launch(self, name: str, blocks: int, args: tuple[Any, ...]) -> None:
        launch(self._device, self.variant, name, blocks=blocks, shared=self.variant.kernels[name], args=args)
