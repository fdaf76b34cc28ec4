"""Per-row factors: two float16 behind each code, which correct a float query's distance to it.

``encode(X, factors=True)`` returns codes that are four bytes wider. Behind the bits of a row stand two little-endian
float16 in the scale of the projections: the offset that its norm about the training mean adds to distances, and the
scale of its bits (`scq_gpu.search.scoring`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from scq_gpu._core.arrays import Array, device_of, from_host, namespace, to_host
from scq_gpu._core.bits import code_bytes

FACTOR_BYTES: Final = 4


class RowFactors(NamedTuple):
    """Terms of a row's score, ``offset + scale * (constant + sum)``, in float32."""

    offsets: list[Array]  # (n,) for each part of the codes, float16 or float32
    scales: list[Array]  # likewise, none below 0
    constants: np.ndarray  # (q,) float32


def join_factors(codes: Array, factors: Array) -> Array:
    """Append the bytes of factors (n, 2) float16 to codes (n, bytes): (n, bytes + 4) uint8."""
    xp = namespace(codes)
    tail = np.ascontiguousarray(to_host(factors).astype("<f2")).view(np.uint8)
    return xp.concat([codes, from_host(tail, xp=xp, device=device_of(codes))], axis=1)


def split_factors(codes: Array, n_bits: int) -> tuple[Array, Array | None]:
    """Split wide codes into codes (n, bytes) and factors (n, 2) float16; plain codes come back with None."""
    width = code_bytes(n_bits)
    if getattr(codes, "ndim", 0) != 2 or codes.shape[1] != width + FACTOR_BYTES:
        return codes, None
    xp = namespace(codes)
    tail = np.ascontiguousarray(to_host(codes[:, width:])).view("<f2").astype(np.float16)
    if not (tail >= 0).all() or np.isinf(tail).any():
        raise ValueError(
            f"codes are {width + FACTOR_BYTES} bytes wide; n_bits={n_bits} takes {width}, or four more with factors, "
            "which these are not. Check n_bits"
        )
    plain = codes[:, :width]
    plain = np.ascontiguousarray(plain) if isinstance(plain, np.ndarray) else plain
    # float32 where the namespace has no float16
    tail = tail if hasattr(xp, "float16") else tail.astype(np.float32)
    return plain, from_host(tail, xp=xp, device=device_of(codes))
