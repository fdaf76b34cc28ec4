"""Exact search over packed codes: which engine runs, and the one in array operations for any namespace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array, namespace, row_slices, runs_kernels, to_host
from scq_gpu.kernels import native
from scq_gpu.kernels.cuda import hamming as cuda
from scq_gpu.kernels.hamming import Nearest, code_blocks, distances, queries_at_once, spherical_distances

_BLOCK_ROWS = 1 << 16


def searcher(codes: Array, *, k: int = 1, distance: str = "hamming") -> Any:
    """Return the engine that searches these codes: an object with ``knn`` and ``within``, or its class.

    A class makes the engine from the codes, and the caller keeps it for later searches. Where the class is
    `native.CodeSearch`, the caller keeps the codes in its layout.
    """
    if distance == "spherical":
        return SPHERICAL
    if runs_kernels(codes) and 1 <= codes.shape[1] <= cuda.MAX_BITS // 8 and k <= cuda.MAX_K:
        return cuda.CodeSearch
    if native.runs_native(codes):
        return native.CodeSearch
    return HAMMING


class ArraySearch:
    """Search by the distances of all pairs of a block of codes.

    ``measure(queries, codes, xp=xp)`` gives distances (q, n), which are returned in ``dtype``. Where there are fewer
    than k codes, ``padding`` is the distance, by default the number of bits plus one.
    """

    def __init__(self, measure: Callable[..., Array], dtype: str, padding: float | None = None) -> None:
        self._measure, self._dtype, self._padding = measure, dtype, padding

    def knn(self, queries: Array, parts: list[Array], k: int, *, n_bits: int) -> tuple[Array, Array]:
        """Find the k nearest rows of each query: distances (q, k) and rows (q, k) int64, padded with -1."""
        xp = namespace(queries)
        padding = n_bits + 1 if self._padding is None else self._padding
        kept = min(k, sum(part.shape[0] for part in parts))
        answers = []
        for block in row_slices(queries.shape[0], queries_at_once(queries, kept + _BLOCK_ROWS)):
            nearest = Nearest(k, xp=xp)
            for codes, first in code_blocks(parts, _BLOCK_ROWS):
                nearest.offer(self._measure(queries[block, :], codes, xp=xp), first)
            answers.append(nearest.best(dtype=getattr(xp, self._dtype), padding=padding))
        return xp.concat([d for d, _ in answers], axis=0), xp.concat([row for _, row in answers], axis=0)

    def within(self, queries: Array, parts: list[Array], radius: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Find all pairs within a radius: (query, distance, row) on the host, in no particular order."""
        xp = namespace(queries)
        found = []
        for block in row_slices(queries.shape[0], queries_at_once(queries, _BLOCK_ROWS)):
            for codes, first in code_blocks(parts, _BLOCK_ROWS):
                d = self._measure(queries[block, :], codes, xp=xp)
                query, row = (to_host(x).astype(np.int64) for x in xp.nonzero(d <= radius))
                found.append((query + block.start, to_host(d)[query, row].astype(self._dtype), row + first))
        query, d, row = (np.concatenate(x) for x in zip(*found, strict=True))
        return query, d, row


HAMMING = ArraySearch(distances, "int32")
SPHERICAL = ArraySearch(spherical_distances, "float32", padding=float("inf"))
