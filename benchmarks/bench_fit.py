"""Time of fits: beside Faiss's ITQ, beside the products they cannot avoid, and many starts beside one.

    python benchmarks/bench_fit.py --data DIR [--rounds 3] [--threads 2]
    python -m pytest benchmarks/bench_fit.py --benchmark-only -s

The first prints whole fits with nothing but n_bits, preserve and a seed, and their ratio to Faiss's ``ITQTransform``
(50 iterations, all rows): both go from raw rows to an encoder, in one process, in turns; the least of the rounds
counts. The second needs no data: 60,000 x 512 float32, 32 bits. It also holds the choice of LAPACK for polar factors on
the CPU.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

import scq_gpu as scq

N, D, L, ITERATIONS = 60_000, 512, 32, 50
LIMITS = {("OgE", "columnwise"): 1.3, ("OnE", "columnwise"): 2.0, ("OgE", "joint"): None, ("OnE", "joint"): None}


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, D), dtype=np.float32) * np.logspace(0, -1.5, D, dtype=np.float32)
    return X @ np.linalg.qr(rng.standard_normal((D, D)))[0].astype(np.float32)


@pytest.mark.parametrize(("name", "solver"), LIMITS)
def test_iterations(benchmark, side_by_side, X, name, solver):
    """Time 50 iterations, as the difference of two fits, over X @ V and X.T @ B 50 times."""
    V = np.linalg.qr(np.random.default_rng(0).standard_normal((D, L)))[0].astype(np.float32)
    B = np.where(X @ V >= 0, np.float32(1), np.float32(-1))
    ridge = {"ridge": 0.02} if name == "OgE" else {}

    def products():
        for _ in range(ITERATIONS):
            X @ V
            X.T @ B

    def fit(iterations):
        getattr(scq, name)(
            L, solver=solver, n_components=D, init="random", max_iter=iterations, tol=0, random_state=0, **ridge
        ).fit(X)

    many, one, bare = side_by_side(lambda: fit(ITERATIONS + 1), lambda: fit(1), products, rounds=3)
    benchmark.pedantic(lambda: fit(ITERATIONS + 1), rounds=1)
    limit, ratio = LIMITS[name, solver], (many - one) / bare
    benchmark.extra_info |= {"ratio": ratio, "limit": limit}
    print(f"\n{name} {solver}: {many - one:.2f} s, bare products {bare:.2f} s, ratio {ratio:.2f} (limit: {limit})")


@pytest.mark.parametrize("name", ["OgE", "OnE"])
def test_eight_starts(benchmark, side_by_side, X, name):
    """Time whole fits of 30 iterations with n_init=8, over those with one start."""

    def fit(n_init):
        getattr(scq, name)(
            n_bits=L, n_components=D, init="random", max_iter=30, tol=0, n_init=n_init, random_state=0
        ).fit(X)

    one, eight = side_by_side(lambda: fit(1), lambda: fit(8), rounds=3)
    benchmark.pedantic(lambda: fit(8), rounds=1)
    benchmark.extra_info |= {"ratio": eight / one, "limit": 5.5}
    print(f"\n{name}: one start {one:.2f} s, eight {eight:.2f} s, ratio {eight / one:.2f} (limit: 5.5)")


@pytest.mark.parametrize("bits", [32, 128, 256])
def test_polar_factor(benchmark, side_by_side, bits):
    """Time a polar factor by LAPACK, the choice on the CPU, and by products alone, the choice on a GPU."""
    from scq_gpu._core.arrays import namespace
    from scq_gpu.kernels import linalg as roots

    A = np.random.default_rng(0).standard_normal((1, D, bits))
    xp, G = namespace(A), np.swapaxes(A, -1, -2) @ A
    lapack, products = side_by_side(
        lambda: roots.by_eigendecomposition(G, xp=xp), lambda: roots.by_products(G, xp=xp), rounds=10
    )
    benchmark.pedantic(roots.by_eigendecomposition, (G,), {"xp": xp}, rounds=1)
    print(f"\n{bits} bits: LAPACK {1e6 * lapack:,.0f} us, products {products / lapack:.2f} x as long")


def main() -> None:
    import faiss
    from features import SETS

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the feature files")
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--bits", type=int, nargs="*", default=(32, 64, 128, 256))
    parser.add_argument("--preserve", nargs="*", default=("neighbors", "classes"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    faiss.omp_set_num_threads(options.threads)
    fits = {f"{name} {aim}": (name, aim) for name in ("OgE", "OnE") for aim in options.preserve}
    print("| rows | bits | Faiss ITQ |", " | ".join(fits), "|")
    print("|---|---|---|" + "---|" * len(fits))
    with threadpool_limits(options.threads):
        for name in options.sets:
            X = np.ascontiguousarray(SETS[name](options.data).X)
            for bits in options.bits:
                runs: dict[str, Callable[[], object]] = {"Faiss": lambda bits=bits, X=X: faiss_itq(X, bits)}
                for title, (encoder, aim) in fits.items():
                    runs[title] = lambda e=encoder, a=aim, b=bits, X=X: default_fit(X, e, a, b)
                least = least_seconds(runs, options.rounds)
                cells = (f"{least[t]:.1f} s, {least[t] / least['Faiss']:.2f} x" for t in fits)
                print(f"| {name} {X.shape[0]:,} x {X.shape[1]:,} | {bits} | {least['Faiss']:.1f} s |", end=" ")
                print(" | ".join(cells), "|", flush=True)


def default_fit(X: np.ndarray, encoder: str, preserve: str, bits: int) -> None:
    getattr(scq, encoder)(bits, preserve=preserve, random_state=0).fit(X)


def faiss_itq(X: np.ndarray, bits: int) -> None:
    import faiss

    transform = faiss.ITQTransform(X.shape[1], bits, True)
    transform.max_train_per_dim = len(X)  # all rows
    transform.itq.max_iter = 50
    transform.train(X)


def least_seconds(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    least = dict.fromkeys(runs, np.inf)
    for _ in range(rounds):
        for title, run in runs.items():
            started = time.perf_counter()
            run()
            least[title] = min(least[title], time.perf_counter() - started)
    return least


if __name__ == "__main__":
    main()
