"""Asymmetric search on one device: float queries against packed codes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from scq_gpu._core.arrays import Array, row_slices
from scq_gpu.kernels.cuda.geometry import asymmetric_variant
from scq_gpu.kernels.cuda.launch import launch


class ScoredCodes(NamedTuple):
    """Codes and what turns the sum of a row into its score: ``offset + scale * (constant + sum)``, or the sum alone."""

    codes: Array  # (n, n_bytes) uint8, row-major
    factors: tuple[Array, Array] | None  # offsets (n,) and scales (n,) float32


def least_scores(
    device: Any, gains: Array, parts: list[ScoredCodes], k: int, *, constants: Array | None = None
) -> tuple[Array, Array]:
    """The rows of least score: scores (q, m) float32 and rows (q, m) int64, m = min(k, n), ties by lowest row.

    ``gains`` (q, n_bits) and ``constants`` (q,) are float32 arrays on the device. Scores of all pairs are held for as
    many queries at a time as memory allows, and for as many rows, where those of all rows are too many.
    """
    xp = device.xp
    n, (q, _) = max(len(part.codes) for part in parts), gains.shape
    queries_at_once, rows_at_once = asymmetric_variant(parts[0].codes.shape[1]).batches(n, q, device.free_bytes())
    answers = []
    for queries in row_slices(q, queries_at_once):
        best = None
        for block, first in _blocks(parts, rows_at_once):
            constant = None if constants is None else constants[queries]
            found = _least_of_block(device, gains[queries], block, first, min(k, len(block.codes)), constant)
            best = _merged(best, found, k, xp=xp)
        answers.append(best)
    scores, rows = (xp.concatenate(x) for x in zip(*answers, strict=True))
    return scores, rows


def _blocks(parts: list[ScoredCodes], size: int) -> Iterator[tuple[ScoredCodes, int]]:
    """Blocks of at most ``size`` rows, and the row each begins with."""
    first = 0
    for codes, factors in parts:
        for rows in row_slices(len(codes), size):
            cut = None if factors is None else (factors[0][rows], factors[1][rows])
            yield ScoredCodes(codes[rows], cut), first + rows.start
        first += len(codes)


def _least_of_block(
    device: Any, gains: Array, block: ScoredCodes, first: int, k: int, constants: Array | None
) -> tuple[Array, Array]:
    """The k rows of least score of a block, in no order but, where scores are equal, that of rows."""
    xp, codes = device.xp, block.codes
    (q, n_bits), (n, n_bytes) = gains.shape, codes.shape
    variant = asymmetric_variant(n_bytes)
    keys = xp.empty((q, n), dtype=xp.uint32)
    scores, rows = xp.empty((q, k), dtype=xp.float32), xp.empty((q, k), dtype=xp.int64)
    unused = gains  # an address the kernel does not look at
    offsets, scales = (unused, unused) if block.factors is None else block.factors
    numbers = (n_bytes, n_bits, q, block.factors is not None)
    score = (
        codes,
        gains,
        offsets,
        scales,
        unused if constants is None else constants,
        keys,
        np.int64(n),
        np.int64(codes.strides[0]),
        *map(np.int32, numbers),
    )
    shared = variant.shared(n_bytes)
    launch(device, variant, "asymmetric_scores", blocks=variant.blocks(n, q), shared=shared[0], args=score)
    select = (keys, scores, rows, np.int64(n), np.int64(first), np.int32(k))
    launch(device, variant, "asymmetric_select", blocks=q, shared=shared[1], args=select)
    return scores, rows


def _merged(best: tuple[Array, Array] | None, found: tuple[Array, Array], k: int, *, xp: Any) -> tuple[Array, Array]:
    """The k least of what was found before and in the rows after that, in order."""
    if best is not None:
        found = tuple(xp.concatenate(x, axis=1) for x in zip(best, found, strict=True))
    order = xp.argsort(found[0], axis=1, kind="stable")[:, :k]
    return xp.take_along_axis(found[0], order, axis=1), xp.take_along_axis(found[1], order, axis=1)
