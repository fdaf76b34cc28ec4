"""Threads and memory of this process: results do not depend on the number of threads.

A BLAS library that spreads one product over threads splits it by their number and rounds accordingly, so a fit would
end in different codes on a different number of threads. Here BLAS is held to one thread, blocks of a fixed size go to
several threads, and their results are added up in the order of the blocks.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib.util
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

S = TypeVar("S")
T = TypeVar("T")


def available_cores() -> int:
    """Return the number of cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Held:
    """The hold on BLAS, counted because several fits may run side by side, and what BLAS had before."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.holders: list[int] = []  # threads, by their numbers
        self.threads = 1
        self.before: list[tuple[Any, int]] = []  # BLAS libraries, and the threads that each had
        self._pool: ThreadPoolExecutor | None = None
        self.modules = 0
        self.libraries: Any = None

    def pool(self) -> ThreadPoolExecutor:
        """Return the threads that blocks go to; they live as long as the hold, as starting them takes time."""
        with self.lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="scq-block")
            return self._pool

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold BLAS to one thread until the last of those who hold it leaves."""
        with self.lock:
            if not self.holders:
                # The search for BLAS libraries takes longer than encoding a row. They come with imports, so it is
                # repeated only after further imports; a module that is being imported counts once its library is there.
                modules = len(sys.modules)
                if modules != self.modules:
                    self.libraries, self.modules = ThreadpoolController().select(user_api="blas"), modules
                # Set one by one: threadpoolctl's own limiter takes longer than a search for one query
                self.before = [(library, library.num_threads) for library in self.libraries.lib_controllers]
                self.threads = max((threads for _, threads in self.before), default=1)
                for library, _ in self.before:
                    library.set_num_threads(1)
            me = threading.get_ident()
            self.holders.append(me)
        try:
            yield
        finally:
            with self.lock:
                self.holders.remove(me)
                if not self.holders:
                    self._restore()
                    if self._pool is not None:
                        self._pool.shutdown()
                        self._pool = None

    def after_fork(self) -> None:
        """Leave only the forking thread in the child: the others' holds, and the threads of the pool, are gone."""
        self._pool = None
        others = [me for me in self.holders if me != threading.get_ident()]
        self.holders = [me for me in self.holders if me not in others]
        if others and not self.holders:
            self._restore()
        self.lock.release()

    def _restore(self) -> None:
        """Give the BLAS libraries the threads that they had before."""
        for library, threads in self.before:
            library.set_num_threads(threads)


_held = _Held()
# The fork waits for the lock, so that no child inherits one that a thread holds which it does not have
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_held.lock.acquire, after_in_parent=_held.lock.release, after_in_child=_held.after_fork)


def blas_in_one_thread(xp: ModuleType) -> contextlib.AbstractContextManager[None]:
    """Hold BLAS to one thread per product; `ordered_map` then uses as many threads as BLAS had."""
    return _held.hold() if "numpy" in xp.__name__ else contextlib.nullcontext()


def ordered_map(function: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
    """Yield ``function(item)`` of every item in order, on several threads inside `blas_in_one_thread`."""
    threads = _held.threads if _held.holders else 1
    if threads == 1:
        yield from map(function, items)
        return
    items = iter(items)
    few = deque(islice(items, 2))
    # One block is not worth a thread
    if len(few) < 2:
        yield from map(function, few)
        return
    waiting: deque[Future[T]] = deque()
    pool = _held.pool()
    try:
        # Items are released once they are taken
        for item in chain((few.popleft() for _ in range(2)), items):
            # The context holds NumPy's handling of floating-point errors, for example
            here = contextvars.copy_context()
            waiting.append(pool.submit(here.run, function, item))
            # Two blocks under way per thread keep every thread busy
            if len(waiting) >= 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def product(A: Any, B: Any) -> Any:
    """Return ``A @ B``, computed by NumPy in bands of 320 rows over threads if the product is large."""
    # Below 2^24 multiplications, handing bands to threads costs more than it saves
    if not isinstance(A, np.ndarray) or A.shape[0] * A.shape[1] * B.shape[1] < 1 << 24:
        return A @ B
    C = np.empty((A.shape[0], B.shape[1]), dtype=np.result_type(A, B))
    bands = (slice(start, start + 320) for start in range(0, A.shape[0], 320))
    for _ in ordered_map(lambda band: np.matmul(A[band, :], B, out=C[band, :]), bands):
        pass
    return C


def interruptible(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call ``function(*arguments)`` such that Ctrl-C returns at once, also inside a call of LAPACK.

    A thread computes, and is left to itself on an interrupt. The function must have no side effects.
    """
    # Only the main thread gets signals
    if threading.current_thread() is not threading.main_thread():
        return function(*arguments)
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(function(*arguments))
        except BaseException as error:
            answer.set_exception(error)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), daemon=True, name="scq-interruptible").start()
    return answer.result()


def allowed_threads() -> int:
    """Return the number of threads for native loops: SCQ_NUM_THREADS or OMP_NUM_THREADS, else the cores to run on."""
    for name in ("SCQ_NUM_THREADS", "OMP_NUM_THREADS"):
        wanted = os.environ.get(name, "")
        if wanted.strip().isdecimal():
            return max(1, int(wanted))
    return available_cores()


# ---- memory ----

_CGROUPS = Path("/sys/fs/cgroup")

KEPT_BYTES: Final = 512 << 20
"""Rows read from files stay in memory, projected, up to this size and a quarter of the available memory."""


def worth_keeping(n_bytes: int) -> bool:
    """Return True for rows of files that may stay in memory, projected."""
    available = available_bytes()
    return n_bytes <= KEPT_BYTES and (available is None or n_bytes <= available / 4)


def available_bytes() -> int | None:
    """Return the bytes that can be allocated without swapping, on this machine and in its container."""
    return min((count for count in (_machine_bytes(), _container_bytes()) if count is not None), default=None)


def check_room(n_bytes: int, what: str, *, fix: str = "") -> None:
    """Raise a MemoryError for an allocation beyond the available memory, before the system kills the process."""
    available = available_bytes()
    if available is not None and n_bytes > available:
        raise MemoryError(
            f"{what} would take {n_bytes / 2**30:,.1f} GiB of memory, and {available / 2**30:,.1f} GiB are available"
            f"{'; ' if fix else ''}{fix}"
        )


def _machine_bytes() -> int | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    if importlib.util.find_spec("psutil") is not None:
        import psutil

        return int(psutil.virtual_memory().available)
    return None


def _container_bytes() -> int | None:
    """Return the bytes left under the limits of the control groups (version 2); cached files do not count."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own = _CGROUPS / next(line for line in lines if line.startswith("0::"))[3:].lstrip("/")
        groups = [group for group in (own, *own.parents) if group.is_relative_to(_CGROUPS)]
        return min((left for left in map(_bytes_left, groups) if left is not None), default=None)
    return None


def _bytes_left(group: Path) -> int | None:
    limit = group / "memory.max"
    if not limit.exists() or limit.read_text().strip() == "max":
        return None
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    cached = int(stat["active_file"]) + int(stat["inactive_file"])
    return max(0, int(limit.read_text()) - int((group / "memory.current").read_text()) + cached)
