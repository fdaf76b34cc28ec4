"""Times of the methods of neighbors.py: training, encoding, and searches of a million rows.

    python benchmarks/neighbor_times.py --data DIR --sets WordNet --methods OPQ "Faiss OPQ, 4 bits" --bits 64
    SCQ_CPU=avx2 FAISS_OPT_LEVEL=AVX2 python benchmarks/neighbor_times.py --data DIR --methods OPQ --label avx2

Writes docs/results/neighbor_times.csv, a row per set, method, length and label. Run it on an idle machine. The million
rows are those of the set again and again, from the second time on with noise of a tenth of their standard deviation.
``--rows 0`` times training and encoding alone.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from neighbors import SETS, load
from results import put_row
from rivals import METHODS, Faiss
from threadpoolctl import threadpool_limits

from scq_gpu.kernels import native

KEY = ("set", "method", "bits", "label")
FIELDS = (*KEY, "bytes", "train seconds", "encode rows/s", "rows", "one query, ms", "32 queries, ms", "scan alone, ms",
          "scan of 32 alone, ms")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the feature files")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=["WordNet"])
    parser.add_argument("--bits", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--label", default="avx512", help="the instructions that ours and Faiss are told to use")
    parser.add_argument("--indexes", type=Path, help="folder to keep trained Faiss indexes in")
    parser.add_argument("--trained", action="store_true", help="read Faiss indexes from the folder, without a time")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(options.threads)
    Faiss.folder = options.indexes
    with threadpool_limits(options.threads):
        import faiss

        faiss.omp_set_num_threads(options.threads)
        for name in options.sets:
            features = load(options.data, name, neighbors=False)
            queries = next(iter(features.queries.values())).X
            for method, bits in itertools.product(options.methods, options.bits):
                row = dict(zip(KEY, (name, method, bits, options.label), strict=True))
                row |= measure(method, bits, features.X, queries, options, cosine=SETS[name].cosine)
                text = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()}
                print(text, flush=True)
                put_row(options.output / "neighbor_times.csv", {k: text.get(k, "") for k in FIELDS}, KEY)


def measure(
    method: str, bits: int, X: np.ndarray, Q: np.ndarray, options: argparse.Namespace, *, cosine: bool
) -> dict[str, Any]:
    """Train, encode and search; the scan alone is the call of the native core with tables at hand."""
    way = METHODS[method](bits, cosine, 0)
    found: dict[str, Any] = {}
    started = time.perf_counter()
    if options.trained and isinstance(way, Faiss):
        way.read(X)
    else:
        way.train(X)
        found["train seconds"] = time.perf_counter() - started
    found["bytes"] = way.bytes
    started = time.perf_counter()
    way.add(X)
    found["encode rows/s"] = round(len(X) / (time.perf_counter() - started))
    if not options.rows:
        return found
    for rows in more(X, options.rows):
        way.add(rows)
    found["rows"] = options.rows
    found["one query, ms"] = median(lambda i: way.search(Q[i : i + 1], 10), 100)
    found["32 queries, ms"] = median(lambda i: way.search(Q[32 * i : 32 * i + 32], 10), 20)
    if method == "OPQ":
        tables = np.ascontiguousarray(way.encoder.query_tables(Q[: 32 * 20], "cosine" if cosine else "l2")[0])
        codes, keep = native.CodeSearch(list(way.index.snapshot()._state.parts)), options.rows // 20
        found["scan alone, ms"] = median(lambda i: codes.cells(tables[i : i + 1], 10, keep=keep), 100)
        found["scan of 32 alone, ms"] = median(lambda i: codes.cells(tables[32 * i : 32 * i + 32], 10, keep=keep), 20)
    return found


def more(X: np.ndarray, n: int) -> Iterator[np.ndarray]:
    """Yield what n rows need beyond X, in blocks as high as X."""
    rng, spread = np.random.default_rng(0), X.std(axis=0) / 10
    for first in range(len(X), n, len(X)):
        yield X[: n - first] + spread * rng.standard_normal(X[: n - first].shape, dtype=np.float32)


def median(run: Callable[[int], object], times: int) -> float:
    """Return the median of the milliseconds that runs take, after one that is not counted."""
    run(0)
    found = []
    for i in range(times):
        started = time.perf_counter()
        run(i)
        found.append(time.perf_counter() - started)
    return 1e3 * float(np.median(found))


if __name__ == "__main__":
    main()
