"""The bit contract: the only place that turns signs into bytes.

- Bit k is 1 where ``x . w_k >= t_k``; zero counts as one, in training and in encoding alike.
- Bit k lives in byte ``k // 8`` at position ``k % 8``, least significant bit first.
- A code has ``ceil(n_bits / 8)`` bytes; padding bits are 0.
"""

from __future__ import annotations

from types import ModuleType
from typing import Final

import numpy as np

from scq_gpu._core.arrays import Array, device_of

BIT_CONTRACT: Final = "bit k = [x.w_k >= t_k]; byte k//8, position k%8, LSB first; padding 0; v1"


def code_bytes(n_bits: int) -> int:
    """Return the number of bytes of a code of ``n_bits`` bits."""
    return -(-n_bits // 8)


def pack_bits(bits: Array, *, xp: ModuleType) -> Array:
    """Pack booleans (..., n_bits) into bytes, padding with zeros."""
    if isinstance(bits, np.ndarray):
        return np.packbits(bits, axis=-1, bitorder="little")
    padding = -bits.shape[-1] % 8
    if padding:
        zeros = xp.zeros((*bits.shape[:-1], padding), dtype=xp.bool, device=device_of(bits))
        bits = xp.concat([bits, zeros], axis=-1)
    weights = xp.asarray([1 << k for k in range(8)], dtype=xp.uint8, device=device_of(bits))
    octets = xp.reshape(xp.astype(bits, xp.uint8), (*bits.shape[:-1], bits.shape[-1] // 8, 8))
    return xp.sum(octets * weights, axis=-1, dtype=xp.uint8)


def unpack_bits(codes: Array, *, xp: ModuleType) -> Array:
    """Return the bits (..., 8 * bytes) of packed codes as 0 and 1 of uint8."""
    shifts = xp.arange(8, dtype=xp.uint8, device=device_of(codes))
    octets = xp.bitwise_and(xp.bitwise_right_shift(codes[..., None], shifts), 1)
    return xp.reshape(octets, (*codes.shape[:-1], 8 * codes.shape[-1]))
