"""`VectorIndex` as a service uses it: one query, rows added, replaced and removed, filters, threads, load, bytes.

`python benchmarks/bench_serve.py` prints the table of docs/serving.md, beside Faiss (IDMap2 over a 4-bit product
quantizer with fast scan, refined by the floats), usearch (exact) and, where it is installed, turbovec. Rows are 384
floats around random centers, codes have 128 bits, searches return 10 of 200 re-ranked candidates. `--rows 10000000`
reads the vectors from a memory map. Times are milliseconds: the median and the 99th percentile of single calls.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

import scq_gpu as scq

D, BITS, K, CANDIDATES, THREADS = 384, 128, 10, 200, 2


def make_rows(path: Path, n: int) -> np.ndarray:
    """Write n rows around 20,000 centers to a file, and map it."""
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((20_000, D)).astype(np.float32)
    X = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n, D))
    for start in range(0, n, 50_000):
        some = X[start : start + 50_000]
        some[:] = centers[rng.integers(len(centers), size=len(some))]
        some += np.float32(0.5) * rng.standard_normal(some.shape, dtype=np.float32)
    X.flush()
    return np.load(path, mmap_mode="r")


def times(function, rounds: int) -> np.ndarray:
    """Call a function with the number of the round, from 1 on, and return milliseconds."""
    function(0)
    found = np.empty(rounds)
    for i in range(rounds):
        start = time.perf_counter()
        function(i + 1)
        found[i] = time.perf_counter() - start
    return 1000 * found


def show(what: str, found: np.ndarray) -> None:
    print(f"| {what} | {np.median(found):.3f} | {np.percentile(found, 99):.3f} |", flush=True)


def while_adding(index, Q: np.ndarray, rounds: int) -> np.ndarray:
    """Search while another thread adds 1,000 rows a second, ten at a time."""
    stop = threading.Event()

    def add() -> None:
        number, next_time = 10**9, time.perf_counter()
        while not stop.is_set():
            index.add(Q[:10], ids=number + np.arange(10))
            number, next_time = number + 10, next_time + 0.01
            time.sleep(max(0.0, next_time - time.perf_counter()))

    thread = threading.Thread(target=add)
    thread.start()
    try:
        return times(lambda i: index.search(Q[i], K), rounds)
    finally:
        stop.set()
        thread.join()


def of_threads(search, queries: int, threads: int = 8) -> float:
    """Return the queries per second of threads that ask one at a time."""
    workers = [
        threading.Thread(target=lambda k=k: [search(k * queries + i) for i in range(queries)]) for k in range(threads)
    ]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return threads * queries / (time.perf_counter() - start)


def print_head(what: str, found: np.ndarray, truth: np.ndarray) -> None:
    recall = np.mean([len(set(a) & set(b)) / K for a, b in zip(found.tolist(), truth.tolist(), strict=True)])
    print(f"\n| {what}, recall of the 10 nearest {recall:.3f} | p50, ms | p99, ms |\n| --- | --- | --- |")


def measure_ours(X: np.ndarray, Q: np.ndarray, truth: np.ndarray, folder: Path, rounds: int) -> None:
    encoder = scq.OPQ(BITS, random_state=0).fit(np.asarray(X[:100_000]))
    start = time.perf_counter()
    index = scq.VectorIndex(X, encoder=encoder, ids=np.arange(len(X)) + 5)
    built = time.perf_counter() - start
    print_head("VectorIndex", np.stack([index.search(q, K)[1] for q in Q[: len(truth)]]) - 5, truth)
    codes = scq.HammingIndex(encoder.encode(X), BITS)
    show("codes alone, 200 nearest", times(lambda i: codes.search_asymmetric(encoder, Q[i][None], CANDIDATES), rounds))
    show("one query", times(lambda i: index.search(Q[i], K), rounds))
    show("one query while 1,000 rows a second are added", while_adding(index, Q, rounds))
    show("32 queries", times(lambda i: index.search(Q[:32], K), max(5, rounds // 20)))
    inside = scq.VectorIndex(np.array(X), encoder=encoder)
    show("one query, vectors in memory", times(lambda i: inside.search(Q[i], K), rounds))
    show("32 queries, vectors in memory", times(lambda i: inside.search(Q[:32], K), max(5, rounds // 20)))
    tenth = np.random.default_rng(1).choice(len(X), len(X) // 10, replace=False) + 5
    selection, mask = index.select(tenth), np.isin(index.ids, tenth)
    show("one query, a tenth of the rows selected", times(lambda i: index.search(Q[i], K, allowed=selection), rounds))
    show("one query, the tenth as a mask", times(lambda i: index.search(Q[i], K, allowed=mask), rounds // 4))
    show("add one row", times(lambda i: index.add(Q[i][None], ids=[2 * 10**9 + i]), rounds))
    show("update one row", times(lambda i: index.update([5 + 7 * i], Q[:1]), rounds))
    show("remove one row", times(lambda i: index.remove([2 * 10**9 + i]), rounds))
    many, more = np.arange(10_000) + 3 * 10**9, np.asarray(X[:10_000])
    show("add 10,000 rows", times(lambda i: index.add(more, ids=many + 10_000 * i), 3))
    show("update 10,000 rows", times(lambda i: index.update(many, more), 3))
    show("remove 10,000 rows", times(lambda i: index.remove(many + 10_000 * i), 3))
    os.environ["SCQ_NUM_THREADS"] = "1"
    with threadpool_limits(1):
        rate = of_threads(lambda i: index.search(Q[i % len(Q)], K), rounds // 4)
    del os.environ["SCQ_NUM_THREADS"]
    index = scq.VectorIndex(X, encoder=encoder)
    index.save(folder / "index")
    load = np.median(times(lambda i: scq.VectorIndex.load(folder / "index"), 5))
    size = os.path.getsize(folder / "index") / len(X)
    print(f"\n8 threads, one query at a time: {rate:,.0f} queries/s. Built in {built:.1f} s, encoder apart. Loaded in")
    print(f"{load:.0f} ms. {index.bytes_per_row} bytes per row in memory, {size:.1f} in the file, beside the vectors.")


def measure_faiss(X: np.ndarray, Q: np.ndarray, truth: np.ndarray, rounds: int) -> None:
    import faiss

    faiss.omp_set_num_threads(THREADS)
    quick, flat = faiss.index_factory(D, f"OPQ{BITS // 4}_{BITS * 2},PQ{BITS // 4}x4fs"), faiss.IndexFlatL2(D)
    quick.train(np.asarray(X[:65_536]))
    for start in range(0, len(X), 100_000):
        for part in (quick, flat):
            part.add(np.asarray(X[start : start + 100_000]))
    refined = faiss.IndexRefine(quick, flat)
    refined.k_factor = CANDIDATES / K
    print_head(f"Faiss {faiss.__version__}, PQ fast scan refined", refined.search(Q[: len(truth)], K)[1], truth)
    show("one query", times(lambda i: refined.search(Q[i][None], K), rounds))
    show("32 queries", times(lambda i: refined.search(Q[:32], K), max(5, rounds // 20)))
    show("add one row", times(lambda i: refined.add(Q[:1]), rounds))


def measure_usearch(X: np.ndarray, Q: np.ndarray) -> None:
    from usearch.index import search

    found = times(lambda i: search(X, Q[:1], K, exact=True, threads=THREADS), 3)
    print("\n| usearch, exact over the floats | p50, ms | p99, ms |\n| --- | --- | --- |")
    show("one query", found)


def measure_turbovec(X: np.ndarray, Q: np.ndarray, rounds: int) -> None:
    try:
        from turbovec import IdMapIndex
    except ImportError:
        print("\nturbovec is not installed")
        return
    index = IdMapIndex(D, 2)
    index.add_with_ids(np.asarray(X), np.arange(len(X), dtype=np.uint64))
    print("\n| turbovec, 2 bits per dimension | p50, ms | p99, ms |\n| --- | --- | --- |")
    show("one query", times(lambda i: index.search(Q[i][None], K), rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--folder", help="for the rows; by default a temporary one")
    parser.add_argument("--only", nargs="*", default=["ours", "faiss", "usearch", "turbovec"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name, threadpool_limits(THREADS):
        os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))
        folder = Path(name)
        X = make_rows(folder / "rows.npy", args.rows)
        rng = np.random.default_rng(2)
        Q = np.asarray(X[np.sort(rng.choice(len(X), 2000, replace=False))])
        Q = Q + np.float32(0.3) * rng.standard_normal(Q.shape, dtype=np.float32)
        truth = nearest(X, Q[:50])
        if "ours" in args.only:
            measure_ours(X, Q, truth, folder, args.rounds)
        if "faiss" in args.only:
            measure_faiss(X, Q, truth, args.rounds)
        if "usearch" in args.only:
            measure_usearch(X, Q)
        if "turbovec" in args.only:
            measure_turbovec(X, Q, args.rounds)


def nearest(X: np.ndarray, Q: np.ndarray) -> np.ndarray:
    """Return the true nearest rows, by blocks."""
    best_d, best = np.full((len(Q), K), np.inf, dtype=np.float32), np.zeros((len(Q), K), dtype=np.int64)
    for start in range(0, len(X), 100_000):
        some = np.asarray(X[start : start + 100_000])
        d = (some**2).sum(1)[None] - 2 * Q @ some.T
        numbers = np.broadcast_to(np.arange(len(some)) + start, d.shape)
        d, rows = np.concatenate([best_d, d], axis=1), np.concatenate([best, numbers], axis=1)
        order = np.argpartition(d, K, axis=1)[:, :K]
        best_d, best = np.take_along_axis(d, order, axis=1), np.take_along_axis(rows, order, axis=1)
    return best


if __name__ == "__main__":
    main()
