"""Search over codes beside Faiss and usearch: Hamming, float queries, radius; evaluation beside the obvious NumPy.

    python benchmarks/bench_search.py                           # the tables of docs/benchmarks.md, one process
    SCQ_CPU=avx2 FAISS_OPT_LEVEL=avx2 python benchmarks/bench_search.py --bits 128    # both held to an instruction set
    pytest benchmarks/bench_search.py -o addopts=--import-mode=importlib --benchmark-only     # radius and evaluation

Random codes, k = 10. The methods take turns, and the least of their times counts. *Hamming* is `HammingIndex.search`
beside Faiss's `IndexBinaryFlat` and usearch's exact search; *float* is `HammingIndex.search_asymmetric`, projection of
the queries included, beside Faiss's 4-bit product quantizer with fast scan, of as many bits. The share is that of the
speed at which one query's codes pass, in bytes, in that of reading an array of the same size with NumPy. Evaluation is
the paper's of CIFAR-10, 10,000 queries x 50,000 codes of 32 bits; ``peak_mb`` is the largest resident size of a fresh
process that imports the package, makes the codes and evaluates them.
"""

import argparse
import os
import subprocess
import sys
import time

import numpy as np
import pytest

import scq_gpu as scq
from scq_gpu import HammingIndex, metrics
from scq_gpu.kernels import native

THREADS = int(os.environ.get("SCQ_NUM_THREADS", "2"))
K = 10


def near_copies(codes, n_queries, rng):
    """Queries that are codes of the database with a few bits changed."""
    flips = rng.random((n_queries, 8 * codes.shape[1])) < 0.1
    return codes[rng.integers(0, len(codes), n_queries)] ^ np.packbits(flips, axis=1, bitorder="little")


def least_times(searches, rounds):
    """Return the milliseconds of each search: the least of some rounds in which they take turns, after a first one."""
    least = dict.fromkeys(searches, np.inf)
    for turn in range(rounds + 1):
        for name, search in searches.items():
            start = time.perf_counter()
            search()
            if turn:
                least[name] = min(least[name], 1e3 * (time.perf_counter() - start))
    return least


def measure(n, n_bits, counts, rounds):
    """Print the rows of one code length."""
    import faiss
    from usearch.index import MetricKind
    from usearch.index import search as usearch

    faiss.omp_set_num_threads(THREADS)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((min(n, 200_000), n_bits), dtype=np.float32)
    encoder = scq.LSH(n_bits, random_state=0).fit(X[:2000])
    codes = rng.integers(0, 256, (n, n_bits // 8), dtype=np.uint8)
    index, flat = HammingIndex(codes, n_bits), faiss.IndexBinaryFlat(n_bits)
    flat.add(codes)
    fast = faiss.IndexPQFastScan(n_bits, n_bits // 4, 4)
    fast.train(X[:20_000])
    for start in range(0, n, len(X)):
        fast.add(X[: min(len(X), n - start)])
    words = codes.view(np.uint64)
    exact = {"exact": True, "threads": THREADS}
    reading = least_times({"read": lambda: words.max()}, rounds)["read"]
    for q in counts:
        queries, Q = near_copies(codes, q, rng), rng.standard_normal((q, n_bits), dtype=np.float32)
        searches = {
            "ours": lambda queries=queries: index.search(queries, K),
            "Faiss": lambda queries=queries: flat.search(queries, K),
            "usearch": lambda queries=queries: usearch(codes, queries, K, MetricKind.Hamming, **exact),
            "ours, float": lambda Q=Q: index.search_asymmetric(encoder, Q, K),
            "Faiss PQ fast scan": lambda Q=Q: fast.search(Q, K),
        }
        if q == 1000:
            del searches["usearch"]  # it takes a minute
        np.testing.assert_array_equal(index.search(queries, K)[0], flat.search(queries, K)[0])
        least = least_times(searches, rounds if q < 1000 else 2)
        ours, floats = least["ours"], least["ours, float"]
        share = f"{reading / ours:.0%}" if q == 1 else ""
        cells = [f"{n:,}", n_bits, q, *(f"{least.get(name, np.nan):.2f}" for name in ("ours", "Faiss", "usearch"))]
        cells += [f"{least['Faiss'] / ours:.2f}", share, f"{floats:.2f}", f"{least['Faiss PQ fast scan']:.2f}"]
        print("|", " | ".join(map(str, [*cells, f"{least['Faiss PQ fast scan'] / floats:.2f}"])), "|", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--bits", type=int, nargs="+", default=[64, 128, 256, 512, 1024])
    parser.add_argument("--queries", type=int, nargs="+", default=[1, 4, 32, 1000])
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    os.environ["SCQ_NUM_THREADS"] = str(THREADS)
    print(f"instruction set {native.core.in_use() if native.core else 'none'}, {THREADS} threads, k = {K}, ms\n")
    columns = (
        "codes | bits | queries | ours | Faiss | usearch | Faiss / ours | of reading | float | Faiss | Faiss / ours"
    )
    print("|", columns, "|")
    print("|" + " --- |" * 11)
    for n in args.n:
        for n_bits in args.bits:
            measure(n, n_bits, args.queries, args.rounds)


@pytest.fixture(scope="module")
def radius_case():
    """10,000,000 codes of 64 bits, a tenth of them clustered around 10,000 centers."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (10_000_000, 8), dtype=np.uint8)
    bunched = np.packbits(rng.random((1_000_000, 64)) < 0.03, axis=1, bitorder="little")
    codes[::10] = codes[rng.integers(1, 10, 1_000_000) + 10 * rng.integers(0, 1000, 1_000_000)] ^ bunched
    flips = np.packbits(rng.random((200, 64)) < 0.015, axis=1, bitorder="little")
    return codes, codes[rng.integers(0, len(codes), 200)] ^ flips


@pytest.mark.benchmark(group="radius 2, 10,000,000 x 64 bits, 200 queries")
def test_radius_scan(benchmark, radius_case):
    codes, queries = radius_case
    benchmark.pedantic(HammingIndex(codes, 64).range_search, args=(queries, 2), rounds=3)


@pytest.mark.benchmark(group="radius 2, 10,000,000 x 64 bits, 200 queries")
def test_radius_faiss_scan(benchmark, radius_case):
    import faiss

    codes, queries = radius_case
    faiss.omp_set_num_threads(THREADS)
    flat = faiss.IndexBinaryFlat(64)
    flat.add(codes)
    benchmark.pedantic(flat.range_search, args=(queries, 3), rounds=1)  # Faiss's radius is exclusive


EVALUATED = int(os.environ.get("SCQ_BENCH_QUERIES", "10000"))
DATABASE = 50_000
PEAK = """
import resource, sys
sys.path.insert(0, {folder!r})
import bench_search
bench_search.evaluate(*bench_search.labeled_codes())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def labeled_codes(seed=0):
    """Draw codes of ten classes around ten centers, a quarter of the bits flipped."""
    rng = np.random.default_rng(seed)
    centers = rng.integers(0, 256, (10, 4), dtype=np.uint8)
    labels = rng.integers(0, 10, EVALUATED + DATABASE)
    flips = np.packbits(rng.random((EVALUATED + DATABASE, 32)) < 0.25, axis=1, bitorder="little")
    codes = centers[labels] ^ flips
    return codes[:EVALUATED], codes[EVALUATED:], labels[:EVALUATED], labels[EVALUATED:]


def evaluate(*pair):
    """Return mAP, prec@r2 and prec@1k, as `scq_gpu.evaluate` takes them."""
    return (
        metrics.mean_average_precision(*pair),
        metrics.precision_at_radius(*pair, radius=2),
        metrics.precision_at_k(*pair, k=1000),
    )


def obvious(queries, database, query_labels, database_labels, block=100):
    """Return the same by broadcast XOR, argsort and cumsum."""
    ap, radius, top = [], [], []
    rank = np.arange(1, len(database) + 1)
    for i in range(0, len(queries), block):
        d = np.bitwise_count(queries[i : i + block, None, :] ^ database[None]).sum(axis=2)
        relevant = query_labels[i : i + block, None] == database_labels[None]
        ranked = np.take_along_axis(relevant, np.argsort(d, axis=1, kind="stable"), axis=1)
        precision = np.cumsum(ranked, axis=1) / rank
        ap.append((precision * ranked).sum(axis=1) / ranked.sum(axis=1))
        inside = d <= 2
        radius.append((inside & relevant).sum(axis=1) / np.maximum(inside.sum(axis=1), 1))
        top.append(precision[:, 999])
    return tuple(np.concatenate(x).mean() for x in (ap, radius, top))


@pytest.fixture(scope="module")
def data():
    return labeled_codes()


@pytest.mark.benchmark(group="evaluation")
def test_evaluation_native(benchmark, data):
    small = [x[:100] if len(x) == EVALUATED else x for x in data]
    found = benchmark.pedantic(evaluate, args=data, rounds=3)
    np.testing.assert_allclose(evaluate(*small), obvious(*small), atol=1e-12)
    folder = os.path.dirname(__file__)
    out = subprocess.run([sys.executable, "-c", PEAK.format(folder=folder)], capture_output=True, text=True, check=True)
    benchmark.extra_info["peak_mb"] = round(float(out.stdout))
    print(f"\n{found}, peak {float(out.stdout):.0f} MB")


@pytest.mark.benchmark(group="evaluation")
def test_evaluation_average_ties(benchmark, data):
    benchmark.pedantic(metrics.mean_average_precision, args=data, kwargs={"ties": "average"}, rounds=3)


@pytest.mark.benchmark(group="evaluation")
def test_evaluation_plain(benchmark, data, monkeypatch):
    monkeypatch.setattr(native, "core", None)
    benchmark.pedantic(evaluate, args=data, rounds=1)


@pytest.mark.benchmark(group="evaluation")
def test_evaluation_obvious(benchmark, data):
    benchmark.pedantic(obvious, args=data, rounds=1)


if __name__ == "__main__":
    main()
