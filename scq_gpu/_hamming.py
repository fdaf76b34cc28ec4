"""Hamming distances between packed codes, all pairs of a block, on any array namespace."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from scq_gpu._xp import Array, device_of, has_numba, row_slices

NUMBA_PAIRS = 1 << 22  # below this many pairs, loading compiled code costs more than it saves
_BLOCK_FLOATS = 1 << 24  # how many unpacked bits of the database one matrix product sees


def use_numba(x: Array, pairs: int) -> bool:
    """Whether compiled loops are there and worth loading: NumPy arrays, numba installed, enough pairs."""
    return pairs >= NUMBA_PAIRS and has_numba(x)


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
    step = max(1, _BLOCK_FLOATS // (8 * database.shape[1]))
    blocks = [_product(queries, database[part, :], xp=xp) for part in row_slices(database.shape[0], step)]
    return blocks[0] if len(blocks) == 1 else xp.concat(blocks, axis=1)


def word_distances(queries: np.ndarray, database: np.ndarray, dtype: Any = np.int32) -> np.ndarray:
    """Hamming distances (q, n) between the words of NumPy codes."""
    out = np.bitwise_count(queries[:, :1] ^ database[:, 0]).astype(dtype, copy=False)
    for k in range(1, queries.shape[1]):
        out += np.bitwise_count(queries[:, k : k + 1] ^ database[:, k])
    return out


def _product(queries: Array, database: Array, *, xp: ModuleType) -> Array:
    """``(L - b . b') / 2`` with signs b: a matrix product, exact in float32 and fast wherever products are."""
    L = 8 * queries.shape[1]
    overlap = _signs(queries, xp=xp) @ xp.matrix_transpose(_signs(database, xp=xp))
    return xp.astype((L - overlap) * 0.5, distance_dtype(queries.shape[1], xp=xp))


def _signs(codes: Array, *, xp: ModuleType) -> Array:
    shifts = xp.arange(8, dtype=xp.uint8, device=device_of(codes))
    octets = xp.bitwise_and(xp.bitwise_right_shift(codes[..., None], shifts), 1)
    return xp.astype(xp.reshape(octets, (codes.shape[0], -1)), xp.float32) * 2 - 1
