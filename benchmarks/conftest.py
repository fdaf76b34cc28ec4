"""Fixtures of the benchmarks. Ratios are taken within one process: a noisy machine slows both sides alike."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from threadpoolctl import threadpool_limits

THREADS = 2


@pytest.fixture(autouse=True)
def threads():
    with threadpool_limits(THREADS):
        yield THREADS


@pytest.fixture
def side_by_side() -> Callable[..., list[float]]:
    """Return a function that takes the least seconds of each callable, in turns, so that a slow moment hits all."""

    def measure(*calls: Callable[[], object], rounds: int = 5) -> list[float]:
        best = [float("inf")] * len(calls)
        for _ in range(rounds):
            for place, call in enumerate(calls):
                started = time.perf_counter()
                call()
                best[place] = min(best[place], time.perf_counter() - started)
        return best

    return measure
