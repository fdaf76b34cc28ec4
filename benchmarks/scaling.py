"""What a process, a thread, a row and a large file cost: first calls, threads, growth with the rows, and memory.

    python benchmarks/scaling.py first    # what the first calls of a process cost beyond later ones
    python benchmarks/scaling.py threads  # whole fits and an encode on one thread and on two
    python benchmarks/scaling.py rows     # fits and encodes against the number of rows, and how far from a line
    python benchmarks/scaling.py rows --features 384 --only OPQ
    python benchmarks/scaling.py file     # a fit from 4,000,000 x 512 float32: 8 GB of disk, removed afterwards
    python benchmarks/scaling.py file --rows 200000

Rows are made up. Each number is the least of ``--rounds`` rounds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

import scq_gpu as scq

AIMS = ("neighbors", "classes")


def clusters(n: int, d: int) -> np.ndarray:
    """Draw rows around 50 centers, with variances that fall along the features."""
    rng = np.random.default_rng(0)
    centers = 2 * rng.standard_normal((50, d), dtype=np.float32)
    X = rng.standard_normal((n, d), dtype=np.float32) + centers[rng.integers(50, size=n)]
    return X * np.logspace(0, -1, d, dtype=np.float32)


def default_fit(X: np.ndarray, aim: str) -> scq.OgE:
    return scq.OgE(32, preserve=aim, random_state=0).fit(X)


# ---- first calls ----


FIRST_CALLS = """
import json, sys, time
import numpy as np
import scq_gpu as scq

n, n_queries = map(int, sys.argv[1:])
rng = np.random.default_rng(0)
X, Q = (rng.standard_normal((rows, 128), dtype=np.float32) for rows in (n, n_queries))
encoder = scq.OgE(64, random_state=0).fit(X[:1000])
codes, query_codes = (scq.pack(rng.random((rows, 64)) < 0.5) for rows in (n, n_queries))
index = scq.HammingIndex(codes, 64)
calls = {
    "encode": lambda: encoder.encode(X),
    "Hamming search": lambda: index.search(query_codes, 10),
    "asymmetric search": lambda: index.search_asymmetric(encoder, Q, 10),
}
found = {}
for name, call in calls.items():
    seconds = []
    for _ in range(10):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    found[name] = (seconds[0], min(seconds[1:]))
print(json.dumps(found))
"""


def first_calls(n: int, n_queries: int) -> dict[str, tuple[float, float]]:
    """Time first and later calls in a process of its own."""
    command = [sys.executable, "-c", FIRST_CALLS, str(n), str(n_queries)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_first(options: argparse.Namespace) -> None:
    print("| rows | queries | call | first, s | later, s | more, s |")
    print("|---|---|---|---|---|---|")
    for n, n_queries in ((1_000, 10), (200_000, 200)):
        runs = [first_calls(n, n_queries) for _ in range(options.rounds)]
        for name in runs[0]:
            first, later = min((run[name] for run in runs), key=lambda pair: pair[0] - pair[1])
            print(f"| {n:,} | {n_queries} | {name} | {first:.3f} | {later:.4f} | {first - later:.2f} |", flush=True)


# ---- threads ----


def print_threads(options: argparse.Namespace) -> None:
    runs: dict[str, Callable[[], object]] = {}
    for n, d in ((1_500, 64), (100_000, 256)):
        X = clusters(n, d)
        for aim in AIMS:
            runs[f"OgE for {aim}, {n:,} x {d}, 32 bits"] = lambda X=X, aim=aim: default_fit(X, aim)
    encoder = default_fit(X[:10_000], "neighbors")
    runs[f"encode, {n:,} x {d}, 32 bits"] = lambda X=X: encoder.encode(X)
    print("| what | one thread | two threads | times as fast |")
    print("|---|---|---|---|")
    for name, run in runs.items():
        least = {1: np.inf, 2: np.inf}
        run()
        for _, threads in itertools.product(range(options.rounds), least):
            with threadpool_limits(threads, user_api="blas"):
                started = time.perf_counter()
                run()
                least[threads] = min(least[threads], time.perf_counter() - started)
        print(f"| {name} | {least[1]:.3f} s | {least[2]:.3f} s | {least[1] / least[2]:.2f} |", flush=True)


# ---- rows ----


def print_rows(options: argparse.Namespace) -> None:
    """Print processor seconds on one thread: what others do on the machine counts little."""
    sizes = np.array([125_000, 250_000, 500_000, 1_000_000])
    X = clusters(sizes[-1], options.features)
    encoder, cells = default_fit(X[: sizes[0]], "neighbors"), scq.OPQ(64, max_iter=1, random_state=0).fit(X[: sizes[0]])
    runs = {f"fit for {aim}, 32 bits": lambda rows, aim=aim: default_fit(rows, aim) for aim in AIMS}
    # one encode alone is too short to time
    runs["ten encodes, 32 bits"] = lambda rows: [encoder.encode(rows) for _ in range(10)]
    runs["fit of OPQ, 64 bits"] = lambda rows: scq.OPQ(64, random_state=0).fit(rows)
    runs["encode of OPQ, 64 bits"] = lambda rows: cells.encode(rows)
    runs = {name: run for name, run in runs.items() if options.only in name}
    print(f"| rows x {options.features} |", " | ".join(f"{n:,}" for n in sizes), "| off a line |")
    print("|---|" + "---|" * (len(sizes) + 1))
    for name, run in runs.items():
        run(X[:1000])
        seconds = np.full(len(sizes), np.inf)
        with threadpool_limits(1):
            for _, (place, n) in itertools.product(range(options.rounds), enumerate(sizes)):
                started = time.process_time()
                run(X[:n])
                seconds[place] = min(seconds[place], time.process_time() - started)
        slope, start = np.polyfit(sizes, seconds, 1)
        deviation = np.abs(seconds / (start + slope * sizes) - 1).max()
        print(f"| {name} |", " | ".join(f"{s:.2f} s" for s in seconds), f"| {deviation:.1%} |", flush=True)


# ---- a file larger than memory ----


FILE_FEATURES, FILE_BITS, FILE_ITERATIONS = 512, 32, 3
MOST_BYTES = 1.2e9


def make_file(path: Path, n: int) -> None:
    """Write rows with falling variances along mixed axes, block by block."""
    rng, d = np.random.default_rng(0), FILE_FEATURES
    mix = (np.linalg.qr(rng.standard_normal((d, d)))[0] * np.logspace(0, -1.5, d)).astype(np.float32)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (n, d)})
        for start in range(0, n, 50_000):
            file.write((rng.standard_normal((min(50_000, n - start), d), dtype=np.float32) @ mix + 1).tobytes())


def peak_bytes() -> int:
    """Return the most resident memory this process ever had; ru_maxrss begins with that of its parent."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024


def fit_file(path: str) -> None:
    """Fit, and print the speed of each pass: the moments, the signs in each iteration, the levels; then encode."""
    source = scq.io.open_rows(path)
    size = source.shape[0] * source.shape[1] * source.dtype.itemsize
    passes = itertools.count(1)
    blocks = source.blocks

    def timed(height: int, *, first: int = 0) -> Iterator[np.ndarray]:
        started, worked = time.perf_counter(), time.process_time()
        yield from blocks(height, first=first)
        seconds, work = time.perf_counter() - started, time.process_time() - worked
        speeds = f"{size / seconds / 1e9:.2f} GB/s, {size / work / 1e9:.2f} GB per processor second"
        print(f"pass {next(passes)}: {seconds:.1f} s, {speeds}", flush=True)

    source.blocks = timed  # type: ignore[method-assign]
    before = peak_bytes()
    started = time.perf_counter()
    encoder = scq.OgE(FILE_BITS, max_iter=FILE_ITERATIONS, tol=0, random_state=0).fit(source)
    seconds = time.perf_counter() - started
    peak = peak_bytes()
    print(f"fit: {seconds:.1f} s; loss {encoder.loss_curve_[0]:.3f} to {encoder.loss_curve_[-1]:.3f}")
    print(f"resident memory: {before / 1e9:.3f} GB before, {peak / 1e9:.3f} GB at most")
    codes = encoder.encode(source)
    print(f"with an encode of all rows: {peak_bytes() / 1e9:.3f} GB at most; codes {codes.nbytes / 1e6:.0f} MB")
    if peak > MOST_BYTES:
        raise SystemExit(f"{peak / 1e9:.2f} GB are more than {MOST_BYTES / 1e9}")


def print_file(options: argparse.Namespace) -> None:
    size = options.rows * FILE_FEATURES * 4
    free = shutil.disk_usage(options.folder).free
    if free < 1.1 * size:
        raise SystemExit(f"{size / 1e9:.1f} GB are needed in {options.folder}, {free / 1e9:.1f} GB are free")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "x.npy"
        make_file(path, options.rows)
        print(f"{options.rows:,} x {FILE_FEATURES} float32, {size / 1e9:.2f} GB", flush=True)
        # a process of its own, for the memory is its own too
        subprocess.run([sys.executable, __file__, "file", "--fit", str(path)], check=True)


PARTS = {"first": print_first, "threads": print_threads, "rows": print_rows, "file": print_file}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=4_000_000, help="of the file")
    parser.add_argument("--features", type=int, default=128, help="of the rows of growth")
    parser.add_argument("--only", default="", help="part of the name of what grows")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where the file is made")
    parser.add_argument("--fit", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fit:
        fit_file(options.fit)
    else:
        PARTS[options.part](options)


if __name__ == "__main__":
    main()
