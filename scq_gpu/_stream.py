"""Rows that do not fit on a GPU: through it block by block, the next one copied while this one is worked on.

What runs here knows a GPU only as a `Gpu`: a stream of work, a stream of copies, and events that order one after the
other. `scq_gpu._xp.CupyGpu` is the real one; the tests put one in its place that runs both streams in random order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol

import numpy as np

from scq_gpu._xp import Array

SHARE_OF_FREE: Final = 0.7
"""Part of the free memory that kept rows may take; the rest is for the products of a pass."""


class Event(Protocol):
    """A point in a stream."""

    def synchronize(self) -> object:
        """Hold the host until the stream has come here."""


class Gpu(Protocol):
    """What streaming asks of a device. Only `Event.synchronize` and `finish_copies` hold the host."""

    def free_bytes(self) -> int:
        """Device memory that can still be had."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Device memory; earlier work may still be reading what was there before."""

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Page-locked host memory, which copies can run from while the host goes on."""

    def mark(self) -> Event:
        """The point that the stream of work has come to."""

    def wait(self, event: Event) -> None:
        """Hold further work until ``event``."""

    def upload(self, host: np.ndarray, out: Array, *, after: Event) -> Event:
        """Copy to the device on the stream of copies, after ``after``; returns the point where it is done."""

    def download(self, x: Array) -> np.ndarray:
        """A page-locked copy of x, complete when the work given so far is."""

    def finish_copies(self) -> None:
        """Hold the host until no upload is under way."""


def fits(n_bytes: int, gpu: Gpu) -> bool:
    """Whether rows of that size may stay on the device."""
    return n_bytes <= SHARE_OF_FREE * gpu.free_bytes()


def stream_rows(blocks: Iterable[np.ndarray], gpu: Gpu, *, pinned: bool = False) -> Iterator[Array]:
    """Blocks of rows on the device, one after another, through two buffers.

    Parameters
    ----------
    blocks : iterable of array (m, d)
        On the host; none taller than the first.
    gpu : Gpu
    pinned : bool
        Whether the blocks are page-locked and the host never writes to them; if not, they go through two page-locked
        buffers.

    Yields
    ------
    array (m, d)
        Overwritten by the block after next: give all work on it to the device before asking for the next.
    """
    slots: list[_Slot] = []
    try:
        for block, turn in zip(blocks, itertools.cycle((0, 1)), strict=False):
            if not slots:  # both before any work is given, so that the second does not wait for it
                slots = [_Slot(block.shape, block.dtype, gpu, pinned=pinned) for _ in range(2)]
            yield slots[turn].fill(block)
            slots[turn].used = gpu.mark()
    finally:
        gpu.finish_copies()  # page-locked memory must outlive the copies from it, also when a pass is given up


class _Slot:
    """A buffer on the device, a page-locked one to fill it from, and how far copies and work on them are."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, gpu: Gpu, *, pinned: bool) -> None:
        self._gpu = gpu
        dtype = dtype.newbyteorder("=")
        self._buffer = gpu.empty(shape, dtype)
        self._staging = None if pinned else gpu.pinned(shape, dtype)
        self._filled: Event | None = None
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
        self._filled = self._gpu.upload(block, out, after=self.used)
        self._gpu.wait(self._filled)
        return out
