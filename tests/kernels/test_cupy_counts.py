"""Demands of a fit and an encode on the device: launches, library calls, waits, allocations, bytes to the host.

The ceilings are what CuPy asked for when they were written; whoever lowers a count lowers its ceiling.
``python tests/cupy_on_cpu/counts.py`` prints the table. CuPy runs on the stand-in: ``make test-cupy``.
"""

from __future__ import annotations

import importlib.util
import os

import pytest

import scq_gpu as scq

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.standin,
    pytest.mark.skipif(
        importlib.util.find_spec("standin") is None, reason="CuPy does not run on the stand-in here (make test-cupy)"
    ),
    pytest.mark.skipif(
        bool(os.environ.get("STANDIN_MEMORY") or os.environ.get("STANDIN_ASYNC")),
        reason="counts are those of a device with room, whatever the order of its work",
    ),
]

CEILINGS = {  # launches, cuBLAS, cuSOLVER, syncs, allocations, bytes to the host
    "OgE joint": (80, 20, 0, 1, 120, 24),
    "OnE joint": (50, 20, 0, 1, 80, 24),
    "OgE columnwise": (400, 246, 0, 1, 560, 24),
    "OnE columnwise": (520, 130, 0, 1, 620, 24),
    "start for neighbors, per pass": (17, 6, 0, 1, 22, 24),
    "start for classes, per pass": (42, 12, 1, 1.1, 65, 24),
    "encode 20,000 rows": (2, 0, 0, 1, 4, 1),
    "encode 200,000 rows": (2, 0, 0, 1, 4, 1),
    "encode, per block from the host": (2, 0, 0, 1, 3, 2100),
    "search, 1 query": (3, 0, 0, 0, 4, 0),
    "search, 100 queries": (3, 0, 0, 0, 4, 0),
    "range_search, 1 query": (17, 0, 0, 1, 21, 8),
    "search_asymmetric, 1 query": (18, 1, 0, 1, 25, 8),
    "search_asymmetric, 100 queries": (18, 1, 0, 1, 25, 800),
    "search_asymmetric, 1 query, inner product": (22, 1, 0, 1, 29, 8),
    "search_asymmetric, product codes, 1 query": (36, 4, 0, 1, 46, 1),
    "kernels: codes": (3, 0, 0, 0, 4, 0),
    "kernels: gains": (4, 0, 0, 0, 7, 0),
    "kernels: tables of cells": (4, 0, 0, 0, 7, 0),
}
BUDGETS = {  # most launches, products included where a number of them is not given apart
    "OgE joint": 100,
    "OnE joint": 100,
    "OnE columnwise": 2000,
}
SLACK = 1.05  # searches end an iteration sooner or later where rounding differs


def check(name: str, counts: object) -> None:
    print(name, counts)
    names = ("launches", "cublas", "cusolver", "syncs", "allocations", "bytes_to_host")
    for what, most in zip(names, CEILINGS[name], strict=True):
        assert getattr(counts, what) <= SLACK * most, f"{what} of {name}"
    assert counts.launches + counts.cublas <= BUDGETS.get(name, float("inf"))


@pytest.mark.parametrize("solver", ["joint", "columnwise"])
@pytest.mark.parametrize("Encoder", [scq.OgE, scq.OnE])
def test_iteration(Encoder, solver):
    from cupy_on_cpu.counts import count_iteration

    for name, counts in count_iteration(Encoder, solver).items():
        check(name, counts)


@pytest.mark.parametrize("preserve", ["neighbors", "classes"])
def test_start(preserve):
    from cupy_on_cpu.counts import count_start

    for name, counts in count_start(preserve).items():
        check(name, counts)


@pytest.mark.parametrize("n", [20_000, 200_000])
def test_encode(n):
    from cupy_on_cpu.counts import count_encode

    check(f"encode {n:,} rows", count_encode(n))


@pytest.mark.parametrize("precision", ["exact", "accurate", "fast"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_encode_of_rows_in_host_memory(dtype, precision, monkeypatch):
    """W among them: no block lays it out again."""
    from cupy_on_cpu.counts import count_streamed_block

    from scq_gpu.rows import blocks, stream

    height = 512
    for module in (blocks, stream):
        monkeypatch.setattr(module, "block_bytes", lambda x: height * 4 * x.shape[1])
    check("encode, per block from the host", count_streamed_block(height, dtype, precision))


def test_rows_in_host_memory_are_uploaded_once():
    from cupy_on_cpu.counts import count_fit_from_host

    counts, n_bytes = count_fit_from_host()
    assert n_bytes <= counts.bytes_to_device <= 1.01 * n_bytes
    assert counts.bytes_to_host < 10_000


@pytest.mark.parametrize(("n_bits", "n_blocks"), [(64, 1), (64, 3), (256, 2)])
def test_a_default_fit(n_bits, n_blocks, monkeypatch):
    """Launches and products of a whole fit grow little with the blocks of rows; its waits do not."""
    from cupy_on_cpu.counts import count_default_fit

    counts = count_default_fit(n_bits, n_blocks, monkeypatch)
    assert counts.launches + counts.cublas <= 1.02 * ({64: 4340, 256: 15009}[n_bits] + 132 * n_blocks)
    assert counts.syncs <= 76


def test_results_that_are_where_they_should_be_make_no_round_trip():
    from cupy_on_cpu.counts import count_placed

    for name, counts in count_placed().items():
        assert counts.bytes_to_device <= 16, name
        assert counts.bytes_to_host <= 16, name  # a flag, or how many there are


@pytest.fixture(scope="module")
def searches():
    """Calls by name: of an index and an encoder on the device, and of the kernels alone."""
    import cupy
    from cupy_on_cpu.counts import N_BITS, rows

    from scq_gpu.kernels.cuda import asymmetric, hamming

    X = cupy.asarray(rows())
    encoder = scq.OgE(N_BITS, init="random", max_iter=2, tol=0, random_state=0, device="cuda").fit(X)
    codes = encoder.encode(X)
    index, queries = scq.HammingIndex(codes, N_BITS), encoder.encode(X[:100])
    opq = scq.OPQ(64, max_iter=1, random_state=0, device="cuda").fit(X)
    cells = scq.HammingIndex(opq.encode(X), 64)
    engine, gain = hamming.CodeSearch([codes]), cupy.ones((3, N_BITS), dtype=cupy.float32)
    tables, allowed = cupy.ones((3, 8, 256), dtype=cupy.float32), cupy.full(-(-len(X) // 64), 7, dtype=cupy.uint64)
    return {
        "search, 1 query": lambda: index.search(queries[:1], 10),
        "search, 100 queries": lambda: index.search(queries, 10),
        "range_search, 1 query": lambda: index.range_search(queries[:1], 3),
        "search_asymmetric, 1 query": lambda: index.search_asymmetric(encoder, X[:1], 10),
        "search_asymmetric, 100 queries": lambda: index.search_asymmetric(encoder, X[:100], 10),
        "search_asymmetric, 1 query, inner product": lambda: index.search_asymmetric(encoder, X[:1], 10, metric="ip"),
        "search_asymmetric, product codes, 1 query": lambda: cells.search_asymmetric(opq, X[:1], 10),
        "kernels: codes": lambda: engine.knn(queries[:3], [codes], 10, n_bits=N_BITS, allowed=allowed),
        "kernels: gains": lambda: asymmetric.knn(gain, [codes], 10, allowed),
        "kernels: tables of cells": lambda: asymmetric.cells(tables, [codes[:, :4]], 10, allowed),
    }


@pytest.mark.parametrize("name", [name for name in CEILINGS if "search" in name or "kernels" in name])
def test_search(searches, name):
    from cupy_on_cpu.counts import count

    searches[name]()
    counts = count(searches[name])
    check(name, counts)
    assert counts.bytes_to_device == 0


def test_searches_can_be_captured():
    """Searches of the kernels, after a warm-up, as a CUDA graph that answers whatever is written into its queries."""
    import cupy
    import numpy as np
    import standin

    from scq_gpu.kernels.cuda import asymmetric, hamming

    rng = np.random.default_rng(0)
    codes = cupy.asarray(rng.integers(0, 256, (5000, 8), dtype=np.uint8))
    engine, allowed = hamming.CodeSearch([codes]), cupy.asarray(rng.integers(0, 2**62, 79).astype(np.uint64))
    shapes = (2, 8), (2, 64), (2, 8, 256)
    others = [rng.standard_normal(shape) * 40 + 128 for shape in shapes]
    queries, gain, tables = (cupy.zeros(shape, dtype=t) for shape, t in zip(shapes, "Bff", strict=True))

    def search():
        return (
            *engine.knn(queries, [codes], 9, n_bits=64, allowed=allowed),
            *asymmetric.knn(gain, [codes], 9, allowed),
            *asymmetric.cells(tables, [codes], 9, allowed),
        )

    stream = cupy.cuda.Stream(non_blocking=True)
    search()
    cupy.cuda.Device().synchronize()
    with stream:
        search()
        stream.begin_capture()
        found = search()
        graph = stream.end_capture()
        for into, x in zip((queries, gain, tables), others, strict=True):
            into[...] = cupy.asarray(x.clip(0, 255).astype(into.dtype))
        with standin.counting() as n:
            graph.launch()
        stream.synchronize()
    assert (n["graph launches"], n["kernel launches"]) == (1, 0)
    for x, y in zip(found, search(), strict=True):
        assert cupy.array_equal(x, y)
    assert int(found[0].max()) > 0
