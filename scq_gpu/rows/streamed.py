"""Rows that come once: of an iterator of blocks, the moments of all rows and a sample for further passes are left."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from scq_gpu._core.arrays import device_of, from_host, namespace, to_host
from scq_gpu._core.devices import on_device_of
from scq_gpu._core.validate import check_array
from scq_gpu.rows.basis import Moments
from scq_gpu.rows.passes import Rows
from scq_gpu.rows.sources.base import ArrayRows

KEPT_BYTES = 512 << 20
"""Of the sample: what rows of files are kept in, too."""


class SampledRows(ArrayRows):
    """A uniform sample of rows that are gone, with the moments of all of them."""

    def __init__(self, X: Any, *, n: int, moments: Moments) -> None:
        super().__init__(X, label="the rows kept of X")
        self.n_all = n
        self.known_moments = moments


def sample_blocks(blocks: Iterator[Any], *, device: str | None, rng: np.random.Generator) -> SampledRows:
    """Go through blocks once: the moments of all rows, and as many rows, drawn uniformly, as `KEPT_BYTES` hold.

    Each row is kept with the same chance (Vitter's Algorithm R), however the rows are cut into blocks.
    """
    kept: Any = None
    moments: Moments | None = None
    like: Any = None
    n = 0
    for number, block in enumerate(blocks):
        X = _check_block(block, number, like)
        if not X.shape[0]:
            continue
        with on_device_of(X):
            source = ArrayRows(X, label="X", locate=functools.partial(_locate, n, number))
            mine = Rows(source, device=device).moments()
        moments = mine if moments is None else moments + mine
        host = to_host(X)
        if kept is None:
            like = X[:1, :]
            kept = np.empty((max(2, KEPT_BYTES // (host.shape[1] * host.dtype.itemsize)), host.shape[1]), host.dtype)
        _keep(kept, host, n, rng)
        n += X.shape[0]
    if moments is None or n < 2:
        raise ValueError(
            f"X is an iterator that gave {n} rows; at least 2 are needed, and an iterator is gone through once"
        )
    sample = from_host(kept[: min(n, len(kept))], xp=namespace(like), device=device_of(like))
    return SampledRows(sample, n=n, moments=moments)


def _locate(before: int, block: int, row: int) -> str:
    return f"row {row} of block {block} (row {before + row} of all)"


def _check_block(block: Any, number: int, like: Any) -> Any:
    name = f"block {number} of X"
    X = check_array(block, name=name, min_ndim=1)
    if X.ndim != 2:
        raise ValueError(
            f"{name} has shape {tuple(X.shape)}; an iterator gives blocks (rows, features), not single rows"
        )
    if like is not None and (X.shape[1] != like.shape[1] or X.dtype != like.dtype):
        was = f"{like.shape[1]} columns of {like.dtype}"
        raise ValueError(f"{name} has {X.shape[1]} columns of {X.dtype}, the first had {was}; all must be alike")
    return X


def _keep(kept: np.ndarray, X: np.ndarray, n: int, rng: np.random.Generator) -> None:
    """Take the rows X, of which n came before, into a uniform sample."""
    free = max(0, min(len(kept) - n, len(X)))
    kept[n : n + free] = X[:free]
    rest = np.arange(n + free, n + len(X))
    places = rng.integers(0, rest + 1) if rest.size else rest
    chosen = places < len(kept)
    kept[places[chosen]] = X[free:][chosen]  # of two that are given one place, the later stays
