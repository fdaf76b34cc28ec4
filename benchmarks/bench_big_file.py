"""A fit from a file that is larger than the memory it may take, in a process of its own.

python benchmarks/bench_big_file.py            # 4,000,000 x 512 float32: 8 GB of disk, removed afterwards
python benchmarks/bench_big_file.py --rows 200000
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import scq_gpu as scq

D, N_BITS, ITERATIONS = 512, 32, 3
WANTED_GB = 1.2


def make(path: Path, n: int) -> None:
    """Rows with falling variances along mixed axes, written block by block."""
    rng = np.random.default_rng(0)
    mix = np.linalg.qr(rng.standard_normal((D, D)))[0] * np.logspace(0, -1.5, D)
    mix = mix.astype(np.float32)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (n, D)})
        for start in range(0, n, 50_000):
            file.write((rng.standard_normal((min(50_000, n - start), D), dtype=np.float32) @ mix + 1).tobytes())


def peak_bytes() -> int:
    """Most resident memory this process ever had; ru_maxrss would begin with that of the process that started it."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024


def fit(path: str) -> None:
    """Fit, and print the speed of each pass: the moments, the signs in each iteration, the levels; then an encode."""
    source = scq.io.open_rows(path)
    size = source.shape[0] * source.shape[1] * source.dtype.itemsize
    passes = itertools.count(1)
    blocks = source.blocks

    def timed(height: int, *, first: int = 0) -> Iterator[np.ndarray]:
        started, worked = time.perf_counter(), time.process_time()
        yield from blocks(height, first=first)
        seconds, work = time.perf_counter() - started, time.process_time() - worked
        speeds = f"{size / seconds / 1e9:.2f} GB/s, {size / work / 1e9:.2f} GB a processor second"
        print(f"pass {next(passes)}: {seconds:.1f} s, {speeds}", flush=True)

    source.blocks = timed  # type: ignore[method-assign]
    before = peak_bytes()
    estimate = scq.estimate_memory(*source.shape, N_BITS, kind="file")
    started = time.perf_counter()
    encoder = scq.OgE(N_BITS, max_iter=ITERATIONS, tol=0, random_state=0).fit(source)
    seconds = time.perf_counter() - started
    peak = peak_bytes()
    print(f"fit: {seconds:.1f} s; loss {encoder.loss_curve_[0]:.3f} to {encoder.loss_curve_[-1]:.3f}")
    print(f"resident memory: {before / 1e9:.3f} GB before, {peak / 1e9:.3f} GB at most (wanted: {WANTED_GB})")
    print(f"estimated for the fit: {estimate.fit / 1e6:.0f} MB; taken: {(peak - before) / 1e6:.0f} MB")
    codes = encoder.encode(source)
    print(f"with an encode of all rows: {peak_bytes() / 1e9:.3f} GB at most; codes {codes.nbytes / 1e6:.0f} MB")
    if peak > WANTED_GB * 1e9:
        raise SystemExit(f"{peak / 1e9:.2f} GB are more than {WANTED_GB}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where the file is made")
    parser.add_argument("--fit", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fit:
        return fit(arguments.fit)
    size = arguments.rows * D * 4
    free = shutil.disk_usage(arguments.folder).free
    if free < 1.1 * size:
        raise SystemExit(f"{size / 1e9:.1f} GB are needed in {arguments.folder}, {free / 1e9:.1f} GB are free")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / "x.npy"
        started = time.perf_counter()
        make(path, arguments.rows)
        seconds = time.perf_counter() - started
        print(f"{arguments.rows:,} x {D} float32, {size / 1e9:.2f} GB, made in {seconds:.0f} s", flush=True)
        subprocess.run([sys.executable, __file__, "--fit", str(path)], check=True)


if __name__ == "__main__":
    main()
