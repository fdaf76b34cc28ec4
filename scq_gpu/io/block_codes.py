"""Codes of a source, block after block, made by this process or by several.

Processes share nothing but the order of blocks: each opens the source by itself and sends back codes, which are small.
Blocks are cut alike and codes do not depend on the number of threads, so the codes are the same.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from scq_gpu._core.arrays import to_host
from scq_gpu._core.invalid import fill_invalid, settle_codes
from scq_gpu._core.threads import available_cores
from scq_gpu.rows.sources.base import ArrayRows, RowSource, read_ahead

_RUN = 4  # blocks that a process works on at a time: reading can start anywhere, but not everywhere cheaply
_SAMPLE_ROWS = 64  # rows of a block that its checksum is of
_WAITING = 3  # runs under way or done, per process: more would only be held


class BlockCodes(NamedTuple):
    """Codes of a block, and what is kept about its rows."""

    codes: np.ndarray
    checksum: int  # of some of its rows
    rows: int
    invalid: np.ndarray  # row numbers within the block


class Work(NamedTuple):
    """What is to be encoded, and how."""

    encoder: Any
    rows: RowSource
    block_rows: int
    on_invalid: str


def block_checksum(X: Any) -> int:
    """A checksum of some rows of a block, evenly spread."""
    return zlib.crc32(np.ascontiguousarray(to_host(X)[:: -(-X.shape[0] // _SAMPLE_ROWS)]).tobytes())


def encoded_blocks(work: Work, *, first: int, workers: int = 1) -> Iterator[BlockCodes]:
    """Codes of the blocks from row ``first`` on, in order."""
    if workers == 1:
        return _encode(work, first, None)
    return _encode_with(work, first, workers)


def _encode(work: Work, first: int, count: int | None) -> Iterator[BlockCodes]:
    """Codes of ``count`` blocks, or of all."""
    blocks = islice(work.rows.blocks(work.block_rows, first=first), count)
    start = first
    with contextlib.closing(read_ahead(blocks)) as ahead:
        for X in ahead:
            bad, filled = np.zeros(0, dtype=np.int64), X
            if work.on_invalid != "raise":
                filled, bad = fill_invalid(X)
            begin = start
            block = ArrayRows(filled, label=work.rows.label, locate=lambda row, n=begin: work.rows.locate(n + row))  # type: ignore[misc]
            codes = to_host(settle_codes(work.encoder.encode(block), bad, work.on_invalid))
            yield BlockCodes(codes, block_checksum(X), X.shape[0], bad)
            start += X.shape[0]


def _encode_with(work: Work, first: int, workers: int) -> Iterator[BlockCodes]:
    """The same by several processes, each of which takes the next run of blocks."""
    context = multiprocessing.get_context("spawn")
    alive, ours = context.Pipe(duplex=False)  # when our end closes, however we end, processes end
    starts = iter(range(first, work.rows.shape[0], _RUN * work.block_rows))
    executor = ProcessPoolExecutor(workers, context, _prepare, (work, alive, _share(workers)))
    try:
        runs: deque[Future[list[BlockCodes]]] = deque()
        while True:
            runs.extend(executor.submit(_encode_run, start) for start in islice(starts, workers * _WAITING - len(runs)))
            if not runs:
                break
            yield from runs.popleft().result()
        executor.shutdown()
    except BrokenProcessPool as error:
        raise RuntimeError(
            f"one of {workers} worker processes died, as the system kills those that take too much memory; what is "
            "done is kept. Call again, with fewer workers or smaller blocks"
        ) from error
    finally:
        ours.close()
        executor.shutdown(cancel_futures=True)
        alive.close()


def _share(workers: int) -> int:
    """Threads of each process."""
    return max(1, available_cores() // workers)


_work: Work  # of a worker process


def _prepare(work: Work, alive: Connection, threads: int) -> None:
    """Begin a worker process: it ends with its parent, and leaves interrupts to it."""
    global _work
    _work = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("NUMBA_NUM_THREADS", str(threads))
    threadpool_limits(threads)

    def end_with_parent() -> None:
        with contextlib.suppress(EOFError, OSError):
            alive.recv()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _encode_run(start: int) -> list[BlockCodes]:
    return list(_encode(_work, start, _RUN))
