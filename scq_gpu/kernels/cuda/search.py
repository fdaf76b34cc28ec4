"""Hamming search over a database of codes on one device."""

from __future__ import annotations

from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array
from scq_gpu.kernels.cuda.geometry import MAX_K, HammingVariant, ceil_div, hamming_variant
from scq_gpu.kernels.cuda.launch import launch

_RANGE_QUERIES = 1 << 14


def to_words(codes: Array, n_words: int, *, xp: Any) -> Array:
    """Codes (n, n_bytes) as (n, n_words) uint32, padded with zeros."""
    padded = xp.zeros((codes.shape[0], 4 * n_words), dtype=xp.uint8)
    padded[:, : codes.shape[1]] = codes
    return padded.view(xp.uint32)


class Database:
    """Codes laid out for the Hamming kernels: word by word, so that neighboring threads read neighboring items.

    Parameters
    ----------
    device : CudaDevice
    codes : array (n, n_bytes) of uint8
        In the namespace of the device, padding bits 0.
    """

    def __init__(self, device: Any, codes: Array) -> None:
        xp = device.xp
        self._device = device
        self.n, self.n_bytes = (int(size) for size in codes.shape)
        self.variant: HammingVariant = hamming_variant(self.n_bytes)
        self.words = xp.zeros((self.variant.n_words, ceil_div(self.n, 4) * 4), dtype=xp.uint32)
        self.words[:, : self.n] = to_words(codes, self.variant.n_words, xp=xp).T

    def top_k(self, queries: Array, k: int) -> tuple[Array, Array]:
        """The k nearest items of each query: distances (n_queries, k) int32 and ids int64, ties by lowest id."""
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
            plan = (counts, radius, np.int32(chunks), np.int32(k))
            self._launch("hamming_plan", len(part), plan)
            out = distances[first : first + batch], ids[first : first + batch]
            self._scan("hamming_collect", part, (counts, radius, *out), chunks, k)
        return distances, ids

    def within(self, queries: Array, radius: int) -> tuple[Array, Array, Array]:
        """Items within ``radius``, by id: limits (n_queries + 1,), distances and ids.

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
        """Queries whose counts, one for each chunk, are held in memory at a time."""
        per_query = 4 * 8 * self.variant.chunks(self.n)
        return max(1, min(_RANGE_QUERIES, int(self._device.free_bytes()) // (4 * per_query)))

    def _query_words(self, queries: Array) -> Array:
        if queries.shape[1] != self.n_bytes:
            raise ValueError(
                f"queries are {queries.shape[1]} bytes wide and the database {self.n_bytes}; use one encoder for both"
            )
        return to_words(queries, self.variant.n_words, xp=self._device.xp)

    def _scan(self, name: str, words: Array, arrays: tuple[Array, ...], *numbers: int) -> None:
        """Launch a kernel that walks the database for the queries ``words``."""
        variant = self.variant
        sizes = (
            np.int64(self.n),
            np.int64(self.words.shape[1]),
            np.int64(variant.chunk_items(self.n)),
            np.int32(len(words)),
        )
        args = (self.words, words, *arrays, *sizes, *map(np.int32, numbers))
        self._launch(name, variant.blocks(self.n, len(words)), args)

    def _launch(self, name: str, blocks: int, args: tuple[Any, ...]) -> None:
        launch(self._device, self.variant, name, blocks=blocks, shared=self.variant.kernels[name], args=args)
