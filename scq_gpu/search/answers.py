"""Answers of searches: float queries against codes of any kind, and pairs and ties in order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array, device_of, like, namespace, on_device_of
from scq_gpu.kernels.asymmetric import add_base
from scq_gpu.search.columns import Codes
from scq_gpu.search.scoring import score_queries


def search_floats(
    codes: Codes, encoder: Any, X_query: Array, k: int, *, metric: str, allowed: np.ndarray | None, n: int
) -> tuple[Array, Array]:
    """Find the k nearest of n allowed codes to float queries: distances (q, k) and places (q, k), inf and -1 for none.

    ``allowed`` is a bitset of places; None allows all.
    """
    product_codes = hasattr(encoder, "query_tables")
    if product_codes:
        terms, base = encoder.query_tables(X_query, metric)
        # Those on a device are known to be finite
        if isinstance(terms, np.ndarray) and not np.isfinite(terms).all():
            raise ValueError("distances from X_query leave the range of float32; scale queries and rows down")
    else:
        terms, base = score_queries(encoder, X_query, metric=metric)
    with on_device_of(codes.sample):
        if not n or not terms.shape[0]:
            return no_answers((terms.shape[0], k), np.float32(np.inf), beside=codes.sample)
        if product_codes:
            # Where cells are scored in two levels: a twentieth of the rows loses hardly a neighbor
            d, places = codes.cells(terms, k, allowed, keep=max(n // 20, 20 * k))
        else:
            d, places = codes.least(terms, k, allowed)
        # Rounding may leave a distance below 0, but an inner product may be negative
        return add_base(d, places, base, least=-math.inf if metric == "ip" or product_codes else 0.0)


def no_answers(shape: tuple[int, int], padding: np.generic, *, beside: Array) -> tuple[Array, Array]:
    """Return distances and places (q, k) of a search that finds nothing, in the namespace of another array."""
    return like(np.full(shape, padding), beside), like(np.full(shape, np.int64(-1)), beside)


def by_distance(query: Array, d: Array, places: Array, *, n_queries: int, n_bits: int) -> tuple[Array, Array, Array]:
    """Sort pairs, ordered by query and place, by query, distance and place without leaving their device.

    Return offsets (n_queries + 1,), places and distances.
    """
    xp, device = namespace(query), device_of(query)
    order = xp.argsort(query * (n_bits + 1) + d, stable=True)
    offsets = xp.searchsorted(query, xp.arange(n_queries + 1, dtype=query.dtype, device=device))
    return offsets, xp.take(places, order, axis=0), xp.take(d, order, axis=0)
