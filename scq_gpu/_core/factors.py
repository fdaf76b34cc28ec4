"""Per-row factors: two float16 behind each code, which correct a float query's distance to it.

``encode(X, factors=True)`` gives codes that are four bytes wider: after the bits of a row, what its norm about the
training mean adds to distances and by how much its bits count, both in the scale of the projections, as little-endian
float16 (`scq_gpu.search.scoring`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from scq_gpu._core.arrays import Array, device_of, from_host, namespace, to_host
from scq_gpu._core.bits import code_bytes

FACTOR_BYTES: Final = 4


class RowFactors(NamedTuple):
    """What turns the sum of a row into its score: ``offset + scale * (constant + sum)`` in float32."""

    offsets: list[Array]  # (n,) for each part of the codes, float16 or float32
    scales: list[Array]  # likewise, none below 0
    constants: np.ndarray  # (q,) float32


def join_factors(codes: Array, factors: Array) -> Array:
    """Codes (n, bytes) followed by the bytes of their factors (n, 2) float16: (n, bytes + 4) uint8."""
    xp = namespace(codes)
    tail = np.ascontiguousarray(to_host(factors).astype("<f2")).view(np.uint8)
    return xp.concat([codes, from_host(tail, xp=xp, device=device_of(codes))], axis=1)


def split_factors(codes: Array, n_bits: int) -> tuple[Array, Array | None]:
    """Codes (n, bytes) and factors (n, 2) float16, from codes that are four bytes wider; None where they are not."""
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
    return plain, _as_floats(tail, xp, device_of(codes))


def _as_floats(factors: np.ndarray, xp: object, device: object) -> Array:
    """In float16, or float32 where a namespace has no float16."""
    kept = factors if hasattr(xp, "float16") else factors.astype(np.float32)
    return from_host(kept, xp=xp, device=device)  # type: ignore[arg-type]
