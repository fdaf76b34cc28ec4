"""Rows that do not fit on a GPU: they go through it block by block, the next copied while this one is worked on.

The GPU is a `scq_gpu._core.arrays.CudaDevice`: a stream of work, a stream of copies, and events that order one after
the other. The tests put one in its place that runs both streams in random order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np

from scq_gpu._core.arrays import Array, block_bytes, join_pieces

SHARE_OF_FREE: Final = 0.6
"""Part of the memory to be had that kept rows may take; the rest is for the products of a pass."""


def fits(n_bytes: int, gpu: Any) -> bool:
    """Tell if rows of that size may stay on the device."""
    return bool(gpu.grants(int(n_bytes / SHARE_OF_FREE)))


def keep_rows(blocks: Iterable[Array], n_bytes: int, gpu: Any) -> tuple[list[Array], Any]:
    """Keep blocks on their device or, where they would not fit on a GPU, in page-locked host memory.

    The second result is the GPU that blocks on the host go through, else None.
    """
    if fits(n_bytes, gpu):
        return list(blocks), None
    return [gpu.download(X) for X in blocks], gpu


def join_rows(pieces: Iterable[Array]) -> Iterator[Array]:
    """Join pieces of rows on a GPU up to the size of a block, since each costs every pass over them its calls."""
    held: list[Array] = []
    most, n_bytes = 0, 0
    for X in pieces:
        most = most or block_bytes(X)
        if held and n_bytes + X.nbytes > most:
            yield join_pieces(held)
            held, n_bytes = [], 0
        held.append(X)
        n_bytes += X.nbytes
    yield join_pieces(held)


def stream_rows(blocks: Iterable[np.ndarray], gpu: Any, *, pinned: bool = False, stay: bool = False) -> Iterator[Array]:
    """Yield blocks of rows (m, d) from the host on the device, one after another, through two buffers.

    A block is overwritten by the one after next: give all work on it to the device before asking for the next. With
    ``stay``, each gets memory of its own on the device, to be kept. ``pinned`` blocks are page-locked, and the host
    never writes to them; others go through two page-locked buffers. Of an iterator, no block is taller than the first.
    """
    slots: list[_Slot] = []
    try:
        for block, turn in zip(blocks, itertools.cycle((0, 1)), strict=False):
            # both are made before any work is given, so that the second does not wait for it
            if not slots:
                height = max(len(X) for X in blocks) if isinstance(blocks, list) else block.shape[0]
                shape = (height, *block.shape[1:])
                slots = [_Slot(shape, block.dtype, gpu, pinned=pinned, stay=stay) for _ in range(2)]
            yield slots[turn].fill(block)
            slots[turn].used = gpu.mark()
    finally:
        # page-locked memory must outlive the copies from it, also when a pass is given up
        gpu.finish_copies()


class _Slot:
    """A buffer on the device, a page-locked one to fill it from, and how far copies and work on them are."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, gpu: Any, *, pinned: bool, stay: bool) -> None:
        self._gpu = gpu
        self._stay = stay
        dtype = dtype.newbyteorder("=")
        self._buffer = gpu.empty(shape, dtype)
        self._staging = None if pinned else gpu.pinned(shape, dtype)
        self._filled: Any = None
        self.used = gpu.mark()

    def fill(self, block: np.ndarray) -> Array:
        """Copy a block to the device and return it; the stream of work waits for the copy."""
        n = block.shape[0]
        if self._staging is not None:
            if self._filled is not None:
                # the last copy out of the staging buffer must have ended
                self._filled.synchronize()
            self._staging[:n] = block
            block = self._staging[:n]
        out = self._buffer[:n]
        # the next block gets a buffer of its own: earlier work may still be reading this one
        if self._stay:
            self._buffer = self._gpu.empty(self._buffer.shape, self._buffer.dtype)
        self._filled = self._gpu.upload(block, out, after=self.used)
        self._gpu.wait(self._filled)
        return out
