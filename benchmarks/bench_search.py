"""Hamming search beside Faiss IndexBinaryFlat, with as many threads each, and radius search beside the scan.

    NUMBA_NUM_THREADS=2 pytest benchmarks/bench_search.py -o addopts=--import-mode=importlib --benchmark-only

One process; compare within a group. ``first_call_s`` is the first search of that shape in the process: compiling, or
loading what an earlier process compiled and cached.
"""

import os
import time

import faiss
import numpy as np
import pytest

from scq_gpu.kernels import hamming_numba
from scq_gpu.search.index import HammingIndex

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
    codes, n_bits, queries, k = case
    benchmark.group = f"knn {request.node.callspec.id}"
    faiss.omp_set_num_threads(THREADS)
    flat = faiss.IndexBinaryFlat(n_bits)
    flat.add(codes)
    flat.search(queries, k)
    benchmark.pedantic(flat.search, args=(queries, k), rounds=7)


@pytest.fixture(scope="module")
def radius_case():
    """10,000,000 codes of 64 bits, a tenth of them bunched around 10,000 centres."""
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
    codes, queries = radius_case
    faiss.omp_set_num_threads(THREADS)
    flat = faiss.IndexBinaryFlat(64)
    flat.add(codes)
    benchmark.pedantic(flat.range_search, args=(queries, 3), rounds=1)  # Faiss's radius is exclusive
