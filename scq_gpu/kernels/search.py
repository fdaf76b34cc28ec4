"""Exact search over packed codes: the engine for some codes, and the one in array operations, for any namespace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array, namespace, row_slices, to_host
from scq_gpu._core.devices import affordable
from scq_gpu.kernels.engines import search_engine
from scq_gpu.kernels.hamming import distances, spherical_distances
from scq_gpu.kernels.top_k import PAIR_BYTES, Nearest, code_blocks

_BLOCK_PAIRS = 1 << 22  # query-code pairs that a block holds in memory
_BLOCK_ROWS = 1 << 16


class ArraySearch:
    """Search by a measure of all pairs of a block of codes.

    Parameters
    ----------
    measure : callable
        ``measure(queries, codes, xp=xp)`` gives distances (q, n).
    dtype : str
        Of the distances returned.
    padding : float, optional
        Distance where there are fewer than k codes; by default the number of bits plus one.
    """

    def __init__(self, measure: Callable[..., Array], dtype: str, padding: float | None = None) -> None:
        self._measure, self._dtype, self._padding = measure, dtype, padding

    def knn(self, queries: Array, parts: list[Array], k: int, *, n_bits: int) -> tuple[Array, Array]:
        """The k nearest rows of each query: distances (q, k) and rows (q, k) int64, padded with -1."""
        xp = namespace(queries)
        padding = n_bits + 1 if self._padding is None else self._padding
        kept = min(k, sum(part.shape[0] for part in parts))
        pairs = affordable(queries, _BLOCK_PAIRS, bytes_each=PAIR_BYTES)
        answers = []
        for block in row_slices(queries.shape[0], max(1, pairs // (kept + _BLOCK_ROWS))):
            nearest = Nearest(k, xp=xp)
            for codes, first in code_blocks(parts, _BLOCK_ROWS):
                nearest.offer(self._measure(queries[block, :], codes, xp=xp), first)
            answers.append(nearest.best(dtype=getattr(xp, self._dtype), padding=padding))
        return xp.concat([d for d, _ in answers], axis=0), xp.concat([row for _, row in answers], axis=0)

    def within(self, queries: Array, parts: list[Array], radius: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All pairs within a radius as (query, distance, row) on the host, in no particular order."""
        xp = namespace(queries)
        pairs = affordable(queries, _BLOCK_PAIRS, bytes_each=PAIR_BYTES)
        found = []
        for block in row_slices(queries.shape[0], max(1, pairs // _BLOCK_ROWS)):
            for codes, first in code_blocks(parts, _BLOCK_ROWS):
                d = self._measure(queries[block, :], codes, xp=xp)
                query, row = (to_host(x).astype(np.int64) for x in xp.nonzero(d <= radius))
                found.append((query + block.start, to_host(d)[query, row].astype(self._dtype), row + first))
        query, d, row = (np.concatenate(x) for x in zip(*found, strict=True))
        return query, d, row


HAMMING = ArraySearch(distances, "int32")
SPHERICAL = ArraySearch(spherical_distances, "float32", padding=float("inf"))


def searcher(codes: Array, pairs: int, *, k: int = 1, distance: str = "hamming") -> Any:
    """What searches these codes: ``knn`` and ``within`` of a module or object, or of what a class makes of them."""
    engine = search_engine(codes, pairs, k=k, distance=distance)
    if engine == "cuda":
        from scq_gpu.kernels.cuda.calls import CodeSearch

        return CodeSearch
    if engine == "numba":
        from scq_gpu.kernels import hamming_numba

        return hamming_numba
    return SPHERICAL if engine == "spherical" else HAMMING
