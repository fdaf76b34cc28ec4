"""Codes of a source, block by block, made by this process or by several.

Processes share only the order of blocks. Each opens the source by itself and sends back codes, which are small. Block
boundaries and codes do not depend on the number of processes or threads.
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
from scq_gpu._core.machine import available_cores
from scq_gpu._core.validate import fill_invalid, settle_codes
from scq_gpu.rows.sources.base import ArrayRows, RowSource, read_ahead

# Blocks that a process encodes per task: starting to read in the middle of a source is expensive in some formats.
_RUN = 4
_SAMPLE_ROWS = 64  # rows of a block that go into its checksum


class BlockCodes(NamedTuple):
    """Codes of a block, and facts about its rows."""

    codes: np.ndarray
    checksum: int  # of a sample of its rows
    rows: int
    invalid: np.ndarray  # row numbers within the block


class Work(NamedTuple):
    """Rows to encode, and how to encode them."""

    encoder: Any
    rows: RowSource
    block_rows: int
    on_invalid: str


def block_checksum(X: Any) -> int:
    """Compute a checksum of evenly spaced rows of a block."""
    return zlib.crc32(np.ascontiguousarray(to_host(X)[:: -(-X.shape[0] // _SAMPLE_ROWS)]).tobytes())


def encoded_blocks(work: Work, *, first: int, workers: int = 1) -> Iterator[BlockCodes]:
    """Return an iterator over the codes of the blocks from row ``first`` on."""
    if workers == 1:
        return _encode(work, first, None)
    return _encode_with(work, first, workers)


def _encode(work: Work, first: int, count: int | None) -> Iterator[BlockCodes]:
    """Encode ``count`` blocks, or all."""
    blocks = islice(work.rows.blocks(work.block_rows, first=first), count)
    start = first
    with contextlib.closing(read_ahead(blocks)) as ahead:
        for X in ahead:
            filled, bad = (X, np.zeros(0, dtype=np.int64)) if work.on_invalid == "raise" else fill_invalid(X)
            block = ArrayRows(filled, label=work.rows.label, locate=lambda row, n=start: work.rows.locate(n + row))  # type: ignore[misc]
            codes = to_host(settle_codes(work.encoder.encode(block), bad, work.on_invalid))
            yield BlockCodes(codes, block_checksum(X), X.shape[0], bad)
            start += X.shape[0]


def _encode_with(work: Work, first: int, workers: int) -> Iterator[BlockCodes]:
    """Encode with several processes, each of which takes the next run of blocks."""
    context = multiprocessing.get_context("spawn")
    # Workers exit when our end of the pipe closes, even if this process is killed.
    alive, ours = context.Pipe(duplex=False)
    starts = iter(range(first, work.rows.shape[0], _RUN * work.block_rows))
    threads = max(1, available_cores() // workers)
    executor = ProcessPoolExecutor(workers, context, _prepare, (work, alive, threads))
    try:
        runs: deque[Future[list[BlockCodes]]] = deque()
        while True:
            # Three runs per process keep all of them busy; more would only take memory.
            runs.extend(executor.submit(_encode_run, start) for start in islice(starts, 3 * workers - len(runs)))
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


# The work of a worker process.
_work: Work


def _prepare(work: Work, alive: Connection, threads: int) -> None:
    """Set up a worker process, which ignores interrupts and exits with its parent."""
    global _work
    _work = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("SCQ_NUM_THREADS", str(threads))
    threadpool_limits(threads)

    def end_with_parent() -> None:
        with contextlib.suppress(EOFError, OSError):
            alive.recv()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _encode_run(start: int) -> list[BlockCodes]:
    return list(_encode(_work, start, _RUN))
