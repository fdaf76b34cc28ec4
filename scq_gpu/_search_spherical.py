"""Exact search by the spherical Hamming distance, in array operations on any namespace."""

from __future__ import annotations

import numpy as np

from scq_gpu import _search_arrays
from scq_gpu._hamming import spherical_distances
from scq_gpu._xp import Array, namespace


def knn(queries: Array, parts: list[Array], k: int, *, n_bits: int) -> tuple[Array, Array]:
    """The k nearest rows of each query: distances (q, k) float32 and rows (q, k) int64, padded with inf and -1."""
    dtype = namespace(queries).float32
    return _search_arrays.nearest(queries, parts, k, measure=spherical_distances, dtype=dtype, padding=float("inf"))


def within(queries: Array, parts: list[Array], radius: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All pairs within a radius as (query, distance, row) on the host, in no particular order."""
    return _search_arrays.pairs_within(queries, parts, radius, measure=spherical_distances, dtype=np.float32)
