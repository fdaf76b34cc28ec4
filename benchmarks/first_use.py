"""What the first encode and the first search of a new process cost beyond later ones, where nothing is compiled yet.

    python benchmarks/first_use.py [--processes 3]

Each process has an empty cache for compiled loops (``NUMBA_CACHE_DIR``). Seconds of the first call less those of the
tenth, the least of the processes; for few rows, and for many, which compiled loops pay for.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile

SIZES = {"few": (1_000, 10), "many": (200_000, 200)}  # codes and queries
CHILD = """
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


def measure(size: tuple[int, int]) -> dict[str, tuple[float, float]]:
    """First and later seconds of each call, in a process of its own."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-c", CHILD, *map(str, size)]
        done = subprocess.run(
            command, env=os.environ | {"NUMBA_CACHE_DIR": cache}, check=True, capture_output=True, text=True
        )
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, default=3)
    options = parser.parse_args()
    print("| rows | queries | call | first, s | later, s | more, s |")
    print("|---|---|---|---|---|---|")
    for size in SIZES.values():
        runs = [measure(size) for _ in range(options.processes)]
        for name in runs[0]:
            first, later = min((run[name] for run in runs), key=lambda pair: pair[0] - pair[1])
            print(f"| {size[0]:,} | {size[1]} | {name} | {first:.3f} | {later:.4f} | {first - later:.2f} |", flush=True)


if __name__ == "__main__":
    main()
