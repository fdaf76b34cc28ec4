"""Rows that do not fit on a GPU: through it block by block, the next one copied while this one is worked on.

The GPU is a `scq_gpu._core.devices.CudaDevice`: a stream of work, a stream of copies, and events that order one after
the other. The tests put one in its place that runs both streams in random order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, Final

import numpy as np

from scq_gpu._core.arrays import Array

SHARE_OF_FREE: Final = 0.6
"""Part of the free memory that kept rows may take; the rest is for the products of a pass."""


def fits(n_bytes: int, gpu: Any) -> bool:
    """Whether rows of that size may stay on the device."""
    return bool(n_bytes <= SHARE_OF_FREE * gpu.free_bytes())


def keep_rows(blocks: Iterable[Array], n_bytes: int, gpu: Any) -> tuple[list[Array], Any]:
    """Blocks kept on their device, or, where they would not fit on a GPU, in page-locked host memory.

    The second answer is the GPU that blocks on the host go through, else None.
    """
    if gpu is None or fits(n_bytes, gpu):
        return list(blocks), None
    return [gpu.download(X) for X in blocks], gpu


def join_rows(pieces: Iterable[Array], block_bytes: Callable[[Array], int], *, xp: ModuleType) -> Iterator[Array]:
    """Pieces of rows on a GPU, put together up to the size of a block: each costs every pass over them its calls."""
    held: list[Array] = []
    most, n_bytes = 0, 0
    for X in pieces:
        most = most or block_bytes(X)
        if held and n_bytes + X.nbytes > most:
            yield _joined(held, xp=xp)
            held, n_bytes = [], 0
        held.append(X)
        n_bytes += X.nbytes
    yield _joined(held, xp=xp)


def _joined(pieces: list[Array], *, xp: ModuleType) -> Array:
    return pieces[0] if len(pieces) == 1 else xp.concat(pieces, axis=0)


def stream_rows(blocks: Iterable[np.ndarray], gpu: Any, *, pinned: bool = False, stay: bool = False) -> Iterator[Array]:
    """Blocks of rows on the device, one after another, through two buffers.

    Parameters
    ----------
    blocks : iterable of array (m, d)
        On the host; of an iterator, none taller than the first.
    gpu : CudaDevice
    pinned : bool
        Whether the blocks are page-locked and the host never writes to them; if not, they go through two page-locked
        buffers.
    stay : bool
        Whether each block gets memory of its own on the device, to be kept.

    Yields
    ------
    array (m, d)
        Overwritten by the block after next, unless it may stay: give all work on it to the device before asking for
        the next.
    """
    slots: list[_Slot] = []
    try:
        for block, turn in zip(blocks, itertools.cycle((0, 1)), strict=False):
            if not slots:  # both before any work is given, so that the second does not wait for it
                height = max(len(X) for X in blocks) if isinstance(blocks, list) else block.shape[0]
                shape = (height, *block.shape[1:])
                slots = [_Slot(shape, block.dtype, gpu, pinned=pinned, stay=stay) for _ in range(2)]
            yield slots[turn].fill(block)
            slots[turn].used = gpu.mark()
    finally:
        gpu.finish_copies()  # page-locked memory must outlive the copies from it, also when a pass is given up


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
        """The block on the device, as far as the stream of work can tell."""
        n = block.shape[0]
        if self._staging is not None:
            if self._filled is not None:
                self._filled.synchronize()  # the last copy out of the staging buffer
            self._staging[:n] = block
            block = self._staging[:n]
        out = self._buffer[:n]
        if self._stay:  # the next gets a buffer of its own, which earlier work may still be reading
            self._buffer = self._gpu.empty(self._buffer.shape, self._buffer.dtype)
        self._filled = self._gpu.upload(block, out, after=self.used)
        self._gpu.wait(self._filled)
        return out
