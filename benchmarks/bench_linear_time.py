"""Time of a fit and of an encode against the number of rows: how far from a straight line.

python -m pytest benchmarks/bench_linear_time.py --benchmark-only -s
"""

from __future__ import annotations

import time

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import scq_gpu as scq

SIZES = np.array([100_000, 200_000, 400_000])
D, N_BITS, ITERATIONS, ROUNDS = 256, 32, 5, 4
WANTED = 0.10


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return rng.standard_normal((SIZES[-1], D), dtype=np.float32) * np.logspace(0, -1.5, D, dtype=np.float32)


@pytest.mark.parametrize("what", ["fit", "encode"])
def test_time_is_linear_in_rows(benchmark, X, what):
    """Processor seconds on one thread, the least of a few rounds: what others do on the machine does not count."""
    encoder = scq.OgE(N_BITS, max_iter=ITERATIONS, tol=0, random_state=0).fit(X[: SIZES[0]])
    repeats = 1 if what == "fit" else 10  # an encode alone is too short to time
    seconds = np.full(len(SIZES), np.inf)
    with threadpool_limits(1):
        for _ in range(ROUNDS):
            for place, n in enumerate(SIZES):
                started = time.process_time()
                for _ in range(repeats):
                    getattr(encoder, what)(X[:n])
                seconds[place] = min(seconds[place], (time.process_time() - started) / repeats)
        benchmark.pedantic(getattr(encoder, what), (X[: SIZES[0]],), rounds=1)
    slope, start = np.polyfit(SIZES, seconds, 1)
    deviation = np.abs(seconds / (start + slope * SIZES) - 1).max()
    benchmark.extra_info |= {"seconds": seconds.tolist(), "deviation": deviation, "wanted": WANTED}
    listed = ", ".join(f"{n:,} rows {s:.3f} s" for n, s in zip(SIZES, seconds, strict=True))
    print(f"\n{what}: {listed}; {deviation:.1%} off the line at most (wanted: {WANTED:.0%})")
