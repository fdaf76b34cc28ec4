"""Each product in one thread, blocks of rows over threads: results that do not depend on the number of threads.

A BLAS library that spreads one product over threads cuts it up by their number, and rounds accordingly; a fit then ends
in other codes on another number of threads. Here BLAS is held to one thread while blocks of a fixed size go to several,
and their results are added up in the order of the blocks.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from scq_gpu._core.arrays import Array, row_slices

S = TypeVar("S")
T = TypeVar("T")

_AHEAD = 2  # blocks under way per thread
_LARGE_PRODUCT = 1 << 24  # multiplications from which handing bands of a product to threads pays
_BAND = 320  # rows


def available_cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Held:
    """Who holds BLAS to one thread, and what it had before; several fits may run side by side."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.holders = 0
        self.threads = 1
        self.limit: Any = None
        self._pool: ThreadPoolExecutor | None = None
        self.modules = 0
        self.libraries: Any = None

    def pool(self) -> ThreadPoolExecutor:
        """The threads that blocks go to, until BLAS has its own back: to start them for each pass would take time."""
        with self.lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="scq-block")
            return self._pool

    def find(self) -> Any:
        """The BLAS libraries of this process. To look for them takes longer than to encode a row, and they come with
        imports: they are looked for again when there are other modules than the last time.
        """
        modules = len(sys.modules)  # before looking: one that is being imported counts when its library is loaded
        if modules != self.modules:
            self.libraries, self.modules = ThreadpoolController().select(user_api="blas"), modules
        return self.libraries

    def enter(self) -> None:
        with self.lock:
            if not self.holders:
                found = self.find()
                self.threads = max((library.num_threads for library in found.lib_controllers), default=1)
                self.limit = found.limit(limits=1)
            self.holders += 1

    def leave(self) -> None:
        with self.lock:
            self.holders -= 1
            if not self.holders:
                self.limit.restore_original_limits()
                if self._pool is not None:
                    self._pool.shutdown()
                    self._pool = None


_held = _Held()


@contextlib.contextmanager
def blas_in_one_thread(xp: ModuleType) -> Iterator[None]:
    """Hold BLAS to one thread per product while NumPy works; `ordered_map` then uses as many threads as BLAS had."""
    if "numpy" not in xp.__name__:
        yield
        return
    _held.enter()
    try:
        yield
    finally:
        _held.leave()


def ordered_map(function: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
    """``function(item)`` of every item, in order; on several threads inside `blas_in_one_thread`."""
    threads = _held.threads if _held.holders else 1
    if threads == 1:
        yield from map(function, items)
        return
    items = iter(items)
    few = deque(islice(items, 2))
    if len(few) < 2:  # one block is not worth a thread
        yield from map(function, few)
        return
    waiting: deque[Future[T]] = deque()
    pool = _held.pool()
    try:
        for item in chain(_taken_out(few), items):
            here = contextvars.copy_context()  # NumPy's handling of floating-point errors, for one
            waiting.append(pool.submit(here.run, function, item))
            if len(waiting) >= _AHEAD * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def _taken_out(items: deque[S]) -> Iterator[S]:
    """The items, which are not held any longer than they are needed."""
    while items:
        yield items.popleft()


def product(A: Array, B: Array) -> Array:
    """``A @ B`` for matrices, a large one of NumPy's in bands of rows over threads, the same on any number of them."""
    if not isinstance(A, np.ndarray) or A.shape[0] * A.shape[1] * B.shape[1] < _LARGE_PRODUCT:
        return A @ B
    C = np.empty((A.shape[0], B.shape[1]), dtype=np.result_type(A, B))
    for _ in ordered_map(lambda band: np.matmul(A[band, :], B, out=C[band, :]), row_slices(A.shape[0], _BAND)):
        pass
    return C
