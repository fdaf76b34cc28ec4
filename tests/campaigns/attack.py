"""What the campaigns share: figures, a small encoder, and processes that are always waited for."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import scq_gpu as scq

ROOT = Path(__file__).parents[2]
N, D, BITS = 400, 12, 10
ENV = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass
class Figures:
    tried: int = 0
    failures: list[str] = field(default_factory=list)
    notes: str = ""

    def __str__(self) -> str:
        return f"tried {self.tried:,}, failed {len(self.failures)}{'; ' if self.notes else ''}{self.notes}"


def rows() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)


def encoder() -> Any:
    return scq.OgE(n_bits=BITS, max_iter=2, tol=0, random_state=0).fit(rows())


@contextlib.contextmanager
def process(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that Ctrl-C reaches, also from a shell's background, and that has ended when the block ends."""
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        job = subprocess.Popen(command, env=ENV, text=True, **options)
    finally:
        signal.signal(signal.SIGINT, heard)
    with job:  # closes its pipes and waits
        try:
            yield job
        finally:
            job.kill()


_FORKS = """
import json, os, sys
%s
for line in sys.stdin:
    job = os.fork()
    if not job:
        os.close(0)
        try:
            work(*json.loads(line))
        except BaseException as error:
            print("failed", repr(error)[:300], file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    print(job, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(job, 0)[1]), flush=True)
"""


class Forks:
    """Processes that begin where the imports are done: ``code`` defines ``work(*arguments)``, which each runs once."""

    def __init__(self, code: str) -> None:
        self._code = code

    def __enter__(self) -> Forks:
        self._process = process(
            [sys.executable, "-W", "ignore", "-c", _FORKS % self._code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._job = self._process.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        assert self._job.stdin is not None
        self._job.stdin.close()
        self._process.__exit__(*error)

    def start(self, *arguments: Any) -> int:
        """The id of a new process."""
        assert self._job.stdin is not None
        self._job.stdin.write(json.dumps(arguments) + "\n")
        self._job.stdin.flush()
        return int(self._line())

    def result(self) -> int:
        """How the process that was started last ended, once it has; 0, or minus the signal."""
        return int(self._line())

    def _line(self) -> str:
        assert self._job.stdout is not None
        return self._job.stdout.readline()
