"""One thread against two: passes, V steps and whole fits; and whole fits against the number of rows.

    python benchmarks/thread_speed.py [--rounds 3]

Made-up rows, in bunches; the least seconds of the rounds, in one process, one and two threads in turn.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits

import scq_gpu as scq
from scq_gpu._core.threads import blas_in_one_thread
from scq_gpu.rows.basis import compute_basis
from scq_gpu.rows.passes import Rows
from scq_gpu.training.joint import fit_joint_orthogonal
from scq_gpu.training.starts import draw_starts


def bunches(n: int, d: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    centers = 2 * rng.standard_normal((50, d), dtype=np.float32)
    X = rng.standard_normal((n, d), dtype=np.float32) + centers[rng.integers(50, size=n)]
    return X * np.logspace(0, -1, d, dtype=np.float32)


def least(run: Callable[[], object], rounds: int) -> dict[int, float]:
    """The least seconds by number of threads."""
    found = {1: np.inf, 2: np.inf}
    for _ in range(rounds + 1):  # the first warms up
        for threads in found:
            with threadpool_limits(threads, user_api="blas"):
                started = time.perf_counter()
                run()
                found[threads] = min(found[threads], time.perf_counter() - started)
    return found


def of_a_fit(n: int, d: int, bits: int) -> dict[str, Callable[[], object]]:
    """A pass and a V step of a fit for classes."""
    rows = Rows(bunches(n, d))
    basis = compute_basis(rows.moments(), n_bits=bits, n_components=d, eps=1.2e-7, xp=rows.xp)
    projected = rows.project(basis)
    V = draw_starts("random", basis, projected, n_bits=bits, n_init=1, random_state=0, xp=rows.xp)
    M = projected.statistics(V).M

    def within(run: Callable[[], object]) -> Callable[[], object]:
        def held() -> object:
            with blas_in_one_thread(np):
                return run()

        return held

    return {
        f"a pass, {n:,} x {d}, {bits} bits": within(lambda: projected.statistics(V)),
        f"a V step, {d} axes, {bits} bits": within(
            lambda: fit_joint_orthogonal(basis.lam, M, V, ridge=0.02, xp=rows.xp)
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("| what | one thread | two threads | times as fast |")
    print("|---|---|---|---|")
    runs = of_a_fit(100_000, 512, 32) | of_a_fit(30_000, 1280, 128)
    for n, d in ((1_500, 64), (100_000, 256)):
        X = bunches(n, d)
        for aim in ("neighbors", "classes"):
            runs[f"OgE for {aim}, {n:,} x {d}, 32 bits"] = lambda X=X, aim=aim: scq.OgE(
                preserve=aim, random_state=0
            ).fit(X)
    for name, run in runs.items():
        seconds = least(run, options.rounds)
        print(f"| {name} | {seconds[1]:.3f} s | {seconds[2]:.3f} s | {seconds[1] / seconds[2]:.2f} |", flush=True)
    print("\n| rows x 128, 32 bits | neighbors | classes |")
    print("|---|---|---|")
    for n in (125_000, 250_000, 500_000, 1_000_000):
        X = bunches(n, 128)
        cells = [
            least(lambda X=X, aim=aim: scq.OgE(preserve=aim, random_state=0).fit(X), 1)[2]
            for aim in ("neighbors", "classes")
        ]
        print(f"| {n:,} | {cells[0]:.2f} s | {cells[1]:.2f} s |", flush=True)


if __name__ == "__main__":
    main()
