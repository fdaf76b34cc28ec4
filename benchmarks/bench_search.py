"""Hamming search beside Faiss IndexBinaryFlat, radius search beside the scan, evaluation beside the obvious NumPy.

    NUMBA_NUM_THREADS=2 pytest benchmarks/bench_search.py -o addopts=--import-mode=importlib --benchmark-only
    ... -k "ours or faiss or radius"   # search alone
    ... -k evaluation                  # evaluation alone

One process, as many threads each; compare within a group. ``first_call_s`` is the first search of that shape in the
process: compiling, or loading what an earlier process compiled and cached. Evaluation is the paper's of CIFAR-10,
10,000 queries x 50,000 codes of 32 bits; ``peak_mb`` is the largest resident size of a fresh process that imports the
package, makes the codes and evaluates them.
"""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from scq_gpu import HammingIndex, metrics
from scq_gpu.kernels import hamming_numba

CASES = [  # codes, bits, queries, k
    (1_000_000, 64, 100, 10),
    (1_000_000, 256, 100, 10),
    (1_000_000, 1024, 100, 100),
    (60_000, 32, 1000, 1000),
]
THREADS = int(os.environ.get("NUMBA_NUM_THREADS", "2"))


def near_copies(codes, n_queries, rng):
    """Queries that are codes of the database with a few bits changed."""
    flips = rng.random((n_queries, 8 * codes.shape[1])) < 0.1
    return codes[rng.integers(0, len(codes), n_queries)] ^ np.packbits(flips, axis=1, bitorder="little")


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "x".join(map(str, case)))
def case(request):
    n, n_bits, n_queries, k = request.param
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (n, n_bits // 8), dtype=np.uint8)
    return codes, n_bits, near_copies(codes, n_queries, rng), k


@pytest.mark.benchmark(group="knn")
def test_ours(benchmark, case, request):
    import faiss

    codes, n_bits, queries, k = case
    benchmark.group = f"knn {request.node.callspec.id}"
    index = HammingIndex(codes, n_bits)
    start = time.perf_counter()
    index.search(queries, k)
    benchmark.extra_info["first_call_s"] = round(time.perf_counter() - start, 3)
    d, _ = benchmark.pedantic(index.search, args=(queries, k), rounds=7)
    flat = faiss.IndexBinaryFlat(n_bits)
    flat.add(codes)
    np.testing.assert_array_equal(d, flat.search(queries, k)[0])


@pytest.mark.benchmark(group="knn")
def test_faiss(benchmark, case, request):
    import faiss

    codes, n_bits, queries, k = case
    benchmark.group = f"knn {request.node.callspec.id}"
    faiss.omp_set_num_threads(THREADS)
    flat = faiss.IndexBinaryFlat(n_bits)
    flat.add(codes)
    flat.search(queries, k)
    benchmark.pedantic(flat.search, args=(queries, k), rounds=7)


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
def test_radius_tables(benchmark, radius_case):
    codes, queries = radius_case
    index = HammingIndex(codes, 64)
    start = time.perf_counter()
    assert index.prepare(2)
    benchmark.extra_info["build_s"] = round(time.perf_counter() - start, 2)
    offsets, ids, d = benchmark.pedantic(index.range_search, args=(queries, 2), rounds=5)
    query, scan_d, rows = hamming_numba.within(queries, [codes], 2)
    order = np.lexsort((rows, scan_d, query))
    np.testing.assert_array_equal(ids, rows[order])
    np.testing.assert_array_equal(d, scan_d[order])
    np.testing.assert_array_equal(np.diff(offsets), np.bincount(query, minlength=200))
    print(f"\n{len(ids)} pairs within radius 2; tables built in {benchmark.extra_info['build_s']} s")


@pytest.mark.benchmark(group="radius 2, 10,000,000 x 64 bits, 200 queries")
def test_radius_scan(benchmark, radius_case):
    codes, queries = radius_case
    hamming_numba.within(queries[:1], [codes[:1000]], 2)
    benchmark.pedantic(hamming_numba.within, args=(queries, [codes], 2), rounds=3)


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
def test_evaluation_compiled(benchmark, data):
    pytest.importorskip("numba")
    small = [x[:100] if len(x) == EVALUATED else x for x in data]
    evaluate(*small)  # compiled, or loaded from the cache, before the clock starts
    found = benchmark.pedantic(evaluate, args=data, rounds=3)
    np.testing.assert_allclose(evaluate(*small), obvious(*small), atol=1e-12)
    folder = os.path.dirname(__file__)
    out = subprocess.run([sys.executable, "-c", PEAK.format(folder=folder)], capture_output=True, text=True, check=True)
    benchmark.extra_info["peak_mb"] = round(float(out.stdout))
    print(f"\n{found}, peak {float(out.stdout):.0f} MB")


@pytest.mark.benchmark(group="evaluation")
def test_evaluation_average_ties(benchmark, data):
    pytest.importorskip("numba")
    benchmark.pedantic(metrics.mean_average_precision, args=data, kwargs={"ties": "average"}, rounds=3)


@pytest.mark.benchmark(group="evaluation")
def test_evaluation_plain(benchmark, data, monkeypatch):
    monkeypatch.setattr("scq_gpu.kernels.hamming.PAIRS", 1 << 62)
    benchmark.pedantic(evaluate, args=data, rounds=1)


@pytest.mark.benchmark(group="evaluation")
def test_evaluation_obvious(benchmark, data):
    benchmark.pedantic(obvious, args=data, rounds=1)
