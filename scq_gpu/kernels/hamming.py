"""Hamming distances between packed codes, all pairs of a block, on any array namespace.

The spherical Hamming distance ``|b1 xor b2| / |b1 and b2|`` is that of J.-P. Heo et al., "Spherical hashing", Computer
Vision and Pattern Recognition, 2012: codes are near if they differ in few bits, compared with the ones they share. It
is infinite between codes that differ and share none, and 0 between equal codes, codes of zeros included.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array, device_of, from_host, row_slices
from scq_gpu._core.bits import signs, unpack_bits
from scq_gpu._core.devices import affordable

_BLOCK_FLOATS = 1 << 24  # how many unpacked bits of the database one matrix product sees


def as_words(codes: np.ndarray) -> np.ndarray:
    """Codes (n, bytes) as words (n, words) of 32 bits, or 64 beyond 4 bytes; a view where no padding is needed."""
    width = codes.shape[1]
    word = 4 if width <= 4 else 8
    padding = -width % word
    if padding:
        padded = np.zeros((codes.shape[0], width + padding), dtype=np.uint8)
        padded[:, :width] = codes
        codes = padded
    return np.ascontiguousarray(codes).view(f"u{word}")


def distance_dtype(n_bytes: int, *, xp: ModuleType) -> Any:
    """The narrowest common integer type that holds every distance between codes of ``n_bytes`` bytes."""
    if 8 * n_bytes <= 255:
        return xp.uint8
    return xp.int16 if 8 * n_bytes <= 32767 else xp.int32


def distances(queries: Array, database: Array, *, xp: ModuleType) -> Array:
    """Hamming distances (q, n) of `distance_dtype`, all pairs at once: the caller blocks over queries."""
    if isinstance(queries, np.ndarray):
        return word_distances(as_words(queries), as_words(database), distance_dtype(queries.shape[1], xp=xp))
    floats = affordable(database, _BLOCK_FLOATS, bytes_each=16)
    step = max(1, floats // (8 * database.shape[1]))
    blocks = [_product(queries, database[part, :], xp=xp) for part in row_slices(database.shape[0], step)]
    return blocks[0] if len(blocks) == 1 else xp.concat(blocks, axis=1)


def word_distances(queries: np.ndarray, database: np.ndarray, dtype: Any = np.int32) -> np.ndarray:
    """Hamming distances (q, n) between the words of NumPy codes."""
    out: np.ndarray = np.bitwise_count(queries[:, :1] ^ database[:, 0]).astype(dtype, copy=False)
    for k in range(1, queries.shape[1]):
        out += np.bitwise_count(queries[:, k : k + 1] ^ database[:, k])
    return out


def _product(queries: Array, database: Array, *, xp: ModuleType) -> Array:
    """``(L - b . b') / 2`` with signs b: a matrix product, exact in float32 and fast wherever products are."""
    L = 8 * queries.shape[1]
    overlap = _float_signs(queries, xp=xp) @ xp.matrix_transpose(_float_signs(database, xp=xp))
    return xp.astype((L - overlap) * 0.5, distance_dtype(queries.shape[1], xp=xp))


def spherical_distances(queries: Array, database: Array, *, xp: ModuleType) -> Array:
    """Spherical Hamming distances (q, n) of float32, all pairs at once: the caller blocks over queries.

    A ratio of counts up to 1024 is told from any other by float32, so ties are those of the ratios.
    """
    different, shared = _counts(queries, database, xp=xp)
    d = xp.astype(different, xp.float32)
    none = xp.where(different > 0, xp.full_like(d, xp.inf), d)
    return xp.where(shared > 0, d / xp.astype(xp.where(shared > 0, shared, xp.ones_like(shared)), xp.float32), none)


def spherical_ranks(queries: Array, database: Array, *, xp: ModuleType) -> Array:
    """Integers (q, n) that order pairs as their spherical Hamming distances do, below `spherical_levels`."""
    different, shared = _counts(queries, database, xp=xp)
    n_bits = 8 * queries.shape[1]
    ranks = from_host(_spherical_table(n_bits)[0], xp=xp, device=device_of(queries))
    places = xp.astype(different, xp.int32) * (n_bits + 1) + xp.astype(shared, xp.int32)
    return xp.reshape(xp.take(ranks, xp.reshape(places, (-1,)), axis=0), places.shape)


def spherical_levels(n_bytes: int) -> int:
    """How many spherical Hamming distances there are between codes of ``n_bytes`` bytes."""
    return _spherical_table(8 * n_bytes)[1]


@functools.lru_cache(maxsize=8)
def _spherical_table(n_bits: int) -> tuple[np.ndarray, int]:
    """The rank of the distance at ``different * (n_bits + 1) + shared``, and the number of ranks."""
    different, shared = np.divmod(np.arange((n_bits + 1) ** 2), n_bits + 1)
    ratio = np.where(shared > 0, different / np.maximum(shared, 1), np.where(different > 0, np.inf, 0.0))
    possible = different + shared <= n_bits
    levels, places = np.unique(ratio[possible], return_inverse=True)
    ranks = np.zeros(len(ratio), dtype=np.int16 if len(levels) < 1 << 15 else np.int32)
    ranks[possible] = places
    return ranks, len(levels)


def _counts(queries: Array, database: Array, *, xp: ModuleType) -> tuple[Array, Array]:
    """How many bits (q, n) of each pair differ, and how many are ones in both."""
    different = xp.astype(distances(queries, database, xp=xp), xp.int32)
    of_queries, of_database = (xp.astype(_ones(codes, xp=xp), xp.int32) for codes in (queries, database))
    return different, (of_queries[:, None] + of_database - different) // 2


def _ones(codes: Array, *, xp: ModuleType) -> Array:
    """How many bits (n,) of each code are ones."""
    zero = xp.zeros((1, codes.shape[1]), dtype=xp.uint8, device=device_of(codes))
    return distances(codes, zero, xp=xp)[:, 0]


def _float_signs(codes: Array, *, xp: ModuleType) -> Array:
    return signs(unpack_bits(codes, xp=xp), dtype=xp.float32, xp=xp)
