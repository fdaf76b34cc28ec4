"""Blocks of packed codes in array operations: distances between all pairs, and the nearest rows among blocks.

The spherical Hamming distance ``|b1 xor b2| / |b1 and b2|`` is that of J.-P. Heo et al., "Spherical hashing", Computer
Vision and Pattern Recognition, 2012: codes are near if they differ in few bits, compared with the ones they share. It
is infinite between codes that differ and share none, and 0 between equal codes, codes of zeros included.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array, affordable, device_of, from_host, row_slices, signs
from scq_gpu._core.bits import unpack_bits

_BLOCK_FLOATS = 1 << 24  # unpacked bits of the database in one matrix product


def as_words(codes: np.ndarray) -> np.ndarray:
    """Return codes (n, bytes) as words of 32 bits, or 64 beyond 4 bytes; a view if no padding is needed."""
    width = codes.shape[1]
    word = 4 if width <= 4 else 8
    padding = -width % word
    if padding:
        padded = np.zeros((codes.shape[0], width + padding), dtype=np.uint8)
        padded[:, :width] = codes
        codes = padded
    return np.ascontiguousarray(codes).view(f"u{word}")


def distances(queries: Array, database: Array, *, xp: ModuleType) -> Array:
    """Compute Hamming distances (q, n), in the narrowest common integer type that holds every distance."""
    L = 8 * queries.shape[1]
    dtype = xp.uint8 if L <= 255 else xp.int16 if L <= 32767 else xp.int32
    if isinstance(queries, np.ndarray):
        Q, D = as_words(queries), as_words(database)
        out = np.bitwise_count(Q[:, :1] ^ D[:, 0]).astype(dtype, copy=False)
        for k in range(1, Q.shape[1]):
            out += np.bitwise_count(Q[:, k : k + 1] ^ D[:, k])
        return out
    # (L - b . b') / 2 with signs b: a matrix product, exact in float32 and fast wherever products are
    step = max(1, affordable(database, _BLOCK_FLOATS, bytes_each=16) // L)
    b = _signs(queries, xp=xp)
    blocks = []
    for part in row_slices(database.shape[0], step):
        overlap = b @ xp.matrix_transpose(_signs(database[part, :], xp=xp))
        blocks.append(xp.astype((L - overlap) * 0.5, dtype))
    return blocks[0] if len(blocks) == 1 else xp.concat(blocks, axis=1)


def _signs(codes: Array, *, xp: ModuleType) -> Array:
    return signs(unpack_bits(codes, xp=xp), dtype=xp.float32, xp=xp)


def spherical_distances(queries: Array, database: Array, *, xp: ModuleType) -> Array:
    """Compute spherical Hamming distances (q, n) of float32.

    Ratios of counts up to 1024 that differ also differ in float32, so ties are those of the ratios.
    """
    different, shared = _counts(queries, database, xp=xp)
    d = xp.astype(different, xp.float32)
    none = xp.where(different > 0, xp.full_like(d, xp.inf), d)
    return xp.where(shared > 0, d / xp.astype(xp.where(shared > 0, shared, xp.ones_like(shared)), xp.float32), none)


def spherical_ranks(queries: Array, database: Array, *, xp: ModuleType) -> Array:
    """Return integers (q, n) below `spherical_levels` that order pairs as their spherical Hamming distances do."""
    different, shared = _counts(queries, database, xp=xp)
    n_bits = 8 * queries.shape[1]
    ranks = from_host(_spherical_table(n_bits)[0], xp=xp, device=device_of(queries))
    places = xp.astype(different, xp.int32) * (n_bits + 1) + xp.astype(shared, xp.int32)
    return xp.reshape(xp.take(ranks, xp.reshape(places, (-1,)), axis=0), places.shape)


def spherical_levels(n_bytes: int) -> int:
    """Count the spherical Hamming distances that codes of ``n_bytes`` bytes can have."""
    return _spherical_table(8 * n_bytes)[1]


@functools.lru_cache(maxsize=8)
def _spherical_table(n_bits: int) -> tuple[np.ndarray, int]:
    """Return the rank of the distance at ``different * (n_bits + 1) + shared``, and the number of ranks."""
    different, shared = np.divmod(np.arange((n_bits + 1) ** 2), n_bits + 1)
    ratio = np.where(shared > 0, different / np.maximum(shared, 1), np.where(different > 0, np.inf, 0.0))
    possible = different + shared <= n_bits
    levels, places = np.unique(ratio[possible], return_inverse=True)
    ranks = np.zeros(len(ratio), dtype=np.int16 if len(levels) < 1 << 15 else np.int32)
    ranks[possible] = places
    return ranks, len(levels)


def _counts(queries: Array, database: Array, *, xp: ModuleType) -> tuple[Array, Array]:
    """Count the bits (q, n) in which each pair differs, and those that are ones in both."""
    zero = xp.zeros((1, queries.shape[1]), dtype=xp.uint8, device=device_of(queries))
    ones = (distances(codes, zero, xp=xp)[:, 0] for codes in (queries, database))
    of_queries, of_database = (xp.astype(x, xp.int32) for x in ones)
    different = xp.astype(distances(queries, database, xp=xp), xp.int32)
    return different, (of_queries[:, None] + of_database - different) // 2


# ---- the least values of each query, kept while blocks of candidates go by ----


class Nearest:
    """Running top-k: the least values so far of each query, and their rows.

    Blocks come in ascending order of rows. The best so far stand before the rows of a block in a stable sort, so that
    inside a tie the lowest row comes first.
    """

    def __init__(self, k: int, *, xp: ModuleType) -> None:
        self._k, self._xp = k, xp
        self._values: Array = None
        self._rows: Array = None

    def offer(self, values: Array, first: int) -> None:
        """Take the values (q, m) of the rows first, first + 1, ..., first + m - 1."""
        xp = self._xp
        rows = xp.arange(first, first + values.shape[1], dtype=xp.int64, device=device_of(values))
        rows = xp.broadcast_to(rows, values.shape)
        if self._values is not None:
            values, rows = xp.concat([self._values, values], axis=1), xp.concat([self._rows, rows], axis=1)
        order = xp.argsort(values, axis=1, stable=True)[:, : min(self._k, values.shape[1])]
        order = xp.astype(order, xp.int64, copy=False)
        self._values, self._rows = (xp.take_along_axis(x, order, axis=1) for x in (values, rows))

    def best(self, *, dtype: Any, padding: float) -> tuple[Array, Array]:
        """Return values (q, k) and rows (q, k), ascending, padded with -1 rows if there were fewer than k."""
        xp, values, rows = self._xp, self._xp.astype(self._values, dtype), self._rows
        missing = (values.shape[0], self._k - values.shape[1])
        if missing[1]:
            fill = xp.full(missing, padding, dtype=values.dtype, device=device_of(values))
            values = xp.concat([values, fill], axis=1)
            rows = xp.concat([rows, xp.full(missing, -1, dtype=rows.dtype, device=device_of(rows))], axis=1)
        return values, rows


def queries_at_once(codes: Array, candidates: int) -> int:
    """Return how many queries are searched at a time if each has that many candidates in memory."""
    # 2^22 pairs; each holds 48 bytes while it is offered: value, row and order, old and new
    return max(1, affordable(codes, 1 << 22, bytes_each=48) // candidates)


def code_blocks(parts: list[Array], size: int) -> Iterator[tuple[Array, int]]:
    """Yield blocks of at most ``size`` codes, and the row each begins with."""
    first = 0
    for part in parts:
        for block in row_slices(part.shape[0], size):
            yield part[block, :], first + block.start
        first += part.shape[0]
