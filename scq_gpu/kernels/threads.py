"""Running compiled loops, which leave the GIL, over slices of rows or queries on threads."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from scq_gpu._core.threads import available_cores

PIECE = 1 << 27  # steps of a compiled loop, a word or a few products each: some hundredths of a second
_LEAST_ROWS = 4096
_PATIENCE = 0.25  # seconds that an interrupt waits for tasks to stop


@functools.cache
def allowed_threads() -> int:
    """How many threads compiled loops may use: the environment's NUMBA_NUM_THREADS, or the cores of this process."""
    wanted = os.environ.get("NUMBA_NUM_THREADS", "")
    return max(1, int(wanted)) if wanted.strip().isdecimal() else available_cores()


class _Stopped(Exception):
    """Another task failed, or the caller was interrupted: nobody waits for this one."""


_running = threading.local()


def check_stopped() -> None:
    """End a task that nobody waits for any more; tasks call it between pieces of `PIECE` steps."""
    stopped = getattr(_running, "stopped", None)
    if stopped is not None and stopped.is_set():
        raise _Stopped


def piece_rows(steps_per_row: int) -> int:
    """How many rows a compiled loop may take before somebody looks whether it is still wanted."""
    return max(_LEAST_ROWS, PIECE // max(1, steps_per_row))


def over_tasks(tasks: Sequence[tuple[Any, ...]]) -> None:
    """Call every ``(function, *arguments)``, on as many threads as are allowed.

    An interrupt or an error ends it within the time of one piece: tasks that wait are dropped, and those that run stop
    at their next `check_stopped`.
    """
    threads = min(allowed_threads(), len(tasks))
    if threads <= 1:
        try:
            for function, *arguments in tasks:
                function(*arguments)
        except SystemError as error:  # what Python makes of an interrupt while numba hands over its results
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, KeyboardInterrupt):
                cause = cause.__cause__
            raise (error if cause is None else KeyboardInterrupt) from error.__cause__
        return
    stopped = threading.Event()

    def run(function: Callable[..., None], *arguments: Any) -> None:
        _running.stopped = stopped
        try:
            check_stopped()
            function(*arguments)
        finally:
            _running.stopped = None

    pool = ThreadPoolExecutor(threads)
    futures = [pool.submit(run, *task) for task in tasks]
    try:
        for done in futures:
            done.result()
    except BaseException:
        stopped.set()
        pool.shutdown(wait=False, cancel_futures=True)
        wait(
            [future for future in futures if not future.cancelled()], timeout=_PATIENCE
        )  # one that is being compiled may take longer; it ends by itself
        raise
    pool.shutdown()
