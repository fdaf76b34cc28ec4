"""Exact Hamming search over codes on a GPU, by the CUDA kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from scq_gpu._xp import Array, device_of, namespace, row_slices, to_host
from scq_gpu.kernels import HammingDatabase

_BLOCK_QUERIES = 1 << 14  # queries whose counts, one for each chunk of codes, are held in memory at a time


class CudaEngine:
    """Codes in the kernels' layout, and the searches of `scq_gpu._search_arrays` over them.

    Parameters
    ----------
    parts : list of array (n, bytes)
        One array of codes.
    """

    def __init__(self, parts: list[Array]) -> None:
        self._parts = parts
        (codes,) = parts
        self._database = HammingDatabase(codes)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._parts,)  # compiled kernels do not travel

    def knn(self, queries: Array, parts: list[Array], k: int, *, n_bits: int) -> tuple[Array, Array]:
        """The k nearest rows of each query: distances (q, k) int32, rows (q, k) int64, padded with n_bits + 1 and -1.

        ``parts`` are those the engine was made of.
        """
        xp, device = namespace(queries), device_of(queries)
        kept = min(k, len(self._database))
        d, rows = self._database.search(queries, kept)
        if kept == k:
            return d, rows
        pad = (queries.shape[0], k - kept)
        d_pad = xp.full(pad, n_bits + 1, dtype=d.dtype, device=device)
        row_pad = xp.full(pad, -1, dtype=rows.dtype, device=device)
        return xp.concat([d, d_pad], axis=1), xp.concat([rows, row_pad], axis=1)

    def within(self, queries: Array, parts: list[Array], radius: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All pairs within a radius as (query, distance, row) on the host, by query and row."""
        found = []
        for block in row_slices(queries.shape[0], _BLOCK_QUERIES):
            limits, d, rows = map(to_host, self._database.range_search(queries[block, :], radius))
            query = np.repeat(np.arange(len(limits) - 1), np.diff(limits))
            found.append((query + block.start, d, rows))
        query, d, rows = (np.concatenate(x) for x in zip(*found, strict=True))
        return query, d, rows
