"""10,000 secular equations of 512 terms in one call, against a loop of scipy.optimize.brentq.

python -m pytest benchmarks/bench_secular.py --benchmark-only -s
"""

from __future__ import annotations

import sys
from pathlib import Path

from scq_gpu._xp import namespace
from scq_gpu.solvers.secular import solve_arrays, solve_secular

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from test_secular import by_brentq, equations  # the very equations of the accuracy test


def test_batched_against_brentq(benchmark, side_by_side):
    gap, m = equations()
    xp = namespace(m)
    loop = side_by_side(lambda: [by_brentq(gap, row) for row in m], rounds=2)[0]
    arrays, batched = side_by_side(lambda: solve_arrays(gap, m, xp=xp), lambda: solve_secular(gap, m, xp=xp), rounds=10)
    benchmark.pedantic(lambda: solve_secular(gap, m, xp=xp), rounds=3)
    benchmark.extra_info |= {"ratio": loop / batched, "ratio of array operations": loop / arrays}
    print(f"\nbrentq loop {loop:.2f} s, batched {1e3 * batched:.0f} ms, ratio {loop / batched:.0f} (wanted: 50)")
    print(f"without numba, by array operations: {1e3 * arrays:.0f} ms, ratio {loop / arrays:.0f}")
