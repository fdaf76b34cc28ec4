"""Float queries against packed codes: rows of least score, a sum over their bits of what each adds for a query.

The score of a row is the summed gain of its set bits or, with per-row factors, ``offset + scale * (constant + sum)``.
Sums are added in the order of the bytes, whatever the engine: equal codes are equally far. The CUDA kernel adds sums of
four bits, the other engines of eight.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import numpy as np

from scq_gpu._core.arrays import Array, device_of, from_host, namespace, row_slices
from scq_gpu._core.bits import unpack_bits
from scq_gpu._core.devices import affordable
from scq_gpu._core.factors import RowFactors
from scq_gpu.kernels.cuda import calls
from scq_gpu.kernels.engines import asymmetric_engine
from scq_gpu.kernels.top_k import PAIR_BYTES, Nearest, code_blocks

_BLOCK_ROWS = 1 << 14
_BLOCK_PAIRS = 1 << 22


def knn(gain: np.ndarray, parts: list[Array], k: int, *, factors: RowFactors | None = None) -> tuple[Array, Array]:
    """Rows of least score for gains (q, n_bits): scores (q, k) float32 and rows (q, k) int64.

    Ascending, lowest row first inside a tie, padded with inf and -1; in the namespace and on the device of the codes.
    """
    codes = parts[0]
    engine = asymmetric_engine(codes, len(gain) * sum(part.shape[0] for part in parts))
    if engine == "cuda":
        return calls.asymmetric_knn(gain, parts, k, factors=factors)
    if engine == "numba":
        from scq_gpu.kernels import asymmetric_numba

        return asymmetric_numba.knn(gain, parts, k, factors=factors)
    xp = namespace(codes)
    kept = min(k, sum(part.shape[0] for part in parts))
    pairs = affordable(codes, _BLOCK_PAIRS, bytes_each=PAIR_BYTES)
    answers = []
    for block in row_slices(gain.shape[0], max(1, pairs // (kept + _BLOCK_ROWS))):
        tables = _byte_tables(from_host(gain[block], xp=xp, device=device_of(codes)), codes.shape[1], xp=xp)
        nearest = Nearest(k, xp=xp)
        factor_blocks = _factor_blocks(factors, block, xp=xp)
        for some, first in code_blocks(parts, _BLOCK_ROWS):
            numbers = xp.astype(some, xp.int64)
            scores = xp.take(tables[:, 0, :], numbers[:, 0], axis=1)
            for byte in range(1, some.shape[1]):
                scores = scores + xp.take(tables[:, byte, :], numbers[:, byte], axis=1)
            if factors is not None:
                offset, scale, constant = next(factor_blocks)
                scores = offset + scale * (constant + scores)
            nearest.offer(scores, first)
        answers.append(nearest.best(dtype=xp.float32, padding=xp.inf))
    return xp.concat([d for d, _ in answers], axis=0), xp.concat([row for _, row in answers], axis=0)


def _byte_tables(gain: Array, width: int, *, xp: ModuleType) -> Array:
    """The summed gain of every value of every byte: (q, bytes, 256) float32."""
    device = device_of(gain)
    missing = 8 * width - gain.shape[1]
    gain = xp.concat([gain, xp.zeros((gain.shape[0], missing), dtype=gain.dtype, device=device)], axis=1)
    values = xp.reshape(xp.arange(256, dtype=xp.uint8, device=device), (256, 1))
    bits = xp.matrix_transpose(xp.astype(unpack_bits(values, xp=xp), xp.float32))  # (8, 256)
    return xp.reshape(gain, (gain.shape[0], width, 8)) @ bits


def _factor_blocks(factors: RowFactors | None, queries: slice, *, xp: ModuleType) -> Iterator[tuple[Array, ...]]:
    """Offsets (m,), scales (m,) and constants (q, 1) beside each block of codes, as float32."""
    if factors is None:
        return
    offsets, scales = (code_blocks([x[:, None] for x in each], _BLOCK_ROWS) for each in factors[:2])
    for (offset, _), (scale, _) in zip(offsets, scales, strict=True):
        constant = from_host(factors.constants[queries, None], xp=xp, device=device_of(offset))
        yield xp.astype(offset[:, 0], xp.float32), xp.astype(scale[:, 0], xp.float32), constant
