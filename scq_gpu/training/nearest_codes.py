"""Codes that are nearest to where a decoder and a hash pull them: the discrete step of BA and of UH-BDNN."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from scq_gpu._core.arrays import Array, device_of, from_host, row_slices
from scq_gpu._core.bits import signs

EXACT_BITS = 12  # codes no longer than this are found by trying all of them
_SWEEPS = 10  # most rounds over the bits of longer codes
_BLOCK_FLOATS = 1 << 20


def nearest_codes(pull: Array, G: Array, Z: Array, *, xp: ModuleType) -> Array:
    """Codes z of -1 and +1 of least ``z G z' - 2 z pull'``, for each row of ``pull`` (m, L); never worse than Z."""
    L = pull.shape[1]
    if L <= EXACT_BITS:
        codes = from_host(np.where(np.arange(2**L)[:, None] >> np.arange(L) & 1, 1.0, -1.0), xp=xp, device=device_of(Z))
        codes = xp.astype(codes, Z.dtype)
        cost = xp.sum((codes @ G) * codes, axis=1)
        parts = row_slices(pull.shape[0], max(1, _BLOCK_FLOATS // 2**L))
        best = [xp.argmin(cost - 2 * (pull[part, :] @ xp.matrix_transpose(codes)), axis=1) for part in parts]
        return xp.take(codes, xp.concat(best, axis=0), axis=0)
    apart = G * (1 - xp.eye(L, dtype=G.dtype, device=device_of(G)))
    pull = xp.asarray(xp.matrix_transpose(pull), copy=True)
    codes = xp.asarray(xp.matrix_transpose(Z), copy=True)  # one bit per row: each is set for all codes at once
    for _ in range(_SWEEPS):
        before = xp.asarray(codes, copy=True)
        for k in range(L):
            codes[k, :] = signs(pull[k, :] >= apart[k, :] @ codes, dtype=Z.dtype, xp=xp)
        if bool(xp.all(codes == before)):
            break
    return xp.matrix_transpose(codes)
