"""CPU time of a polar factor (512 x L, one thread) by LAPACK and by products alone.

OPENBLAS_NUM_THREADS=1 python benchmarks/bench_roots.py
"""

from __future__ import annotations

import time

import numpy as np

from scq_gpu._core.arrays import namespace
from scq_gpu.kernels import roots

D, LENGTHS, ROUNDS = 512, (16, 32, 64, 128, 256), 20


def cpu_time(work):
    """Least CPU seconds of some runs."""
    work()
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def main():
    print("| type | bits | LAPACK | products | one L x L product |\n|---|---:|---:|---:|---:|")
    for dtype in (np.float32, np.float64):
        for L in LENGTHS:
            A = np.random.default_rng(0).standard_normal((1, D, L)).astype(dtype)
            xp, G = namespace(A), np.swapaxes(A, -1, -2) @ A
            engines = (roots.by_eigendecomposition, roots.by_products)
            works = [lambda f=f, A=A, xp=xp: A @ f(np.swapaxes(A, -1, -2) @ A, xp=xp) for f in engines]
            times = [cpu_time(work) for work in (*works, lambda G=G: G @ G)]
            print(f"| {np.dtype(dtype)} | {L} | {' | '.join(f'{1e6 * t:,.0f} us' for t in times)} |", flush=True)


if __name__ == "__main__":
    main()
