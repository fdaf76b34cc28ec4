"""Bytes the kernels load and store, counted in the simulator against the formulas of benchmarks/kernel_counts.py."""

from __future__ import annotations

import kernel_counts as formulas
import numpy as np
import pytest
from cuda_on_cpu import COMPILER, Kernel, SimulatedDevice, oracle
from cuda_on_cpu.cases import SEED, features, linear_map

from scq_gpu.kernels.cuda.asymmetric import CELLS_TABLE, asymmetric_variant, least_of_cells, least_scores
from scq_gpu.kernels.cuda.encode import encode, encode_variant
from scq_gpu.kernels.cuda.hamming import Database, hamming_variant
from scq_gpu.kernels.cuda.quantize import WIDTHS, QuantizeVariant, nearest

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the simulator needs g++")


@pytest.fixture
def counting(monkeypatch) -> tuple[SimulatedDevice, dict[str, list[tuple[int, int]]]]:
    """A device that counts, and the (loaded, stored) bytes of each array of the last launch, by kernel."""
    traffic = {}
    plain_call = Kernel.__call__

    def call(self, *args, **kwargs):
        plain_call(self, *args, **kwargs)
        traffic[self.name] = self.traffic

    monkeypatch.setattr(Kernel, "__call__", call)
    return SimulatedDevice(mode="count"), traffic


@pytest.mark.parametrize("element", ["float32", "float16"])
@pytest.mark.parametrize("precision", ["exact", "accurate", "fast"])
@pytest.mark.parametrize(("n", "d", "n_bits"), [(300, 40, 32), (129, 33, 64), (129, 16, 100), (10, 20, 300)])
def test_encode_reads_x_once_and_writes_only_codes(counting, element, precision, n, d, n_bits):
    device, traffic = counting
    rng = np.random.default_rng(SEED)
    X, _ = features(rng, n, d, element)
    W, t = linear_map(rng, d, n_bits)
    codes, _ = encode(device, X, W, t, element=element, precision=precision)
    oracle.check_codes(codes, X, W, t, element=element, precision=precision)
    variant = encode_variant(element, n_bits, precision, 80)
    expected = formulas.encode_traffic(variant, n, d, n_bits)
    assert traffic[variant.kernel][:4] == [(expected.x, 0), (expected.w, 0), (expected.t, 0), (0, expected.codes)]
    assert traffic[variant.kernel][4:] == [(0, 0)], "the flag is touched only where it is raised"
    if n_bits <= 128:
        assert expected.x == X.nbytes
    assert expected.codes == codes.nbytes
    assert expected.flops == 2 * n * d * n_bits <= expected.computed


@pytest.mark.parametrize(
    ("n", "n_bytes", "n_queries"), [(5000, 4, 32), (5001, 8, 40), (300, 128, 9), (5001, 8, 1), (5001, 8, 5)]
)
def test_search_reads_the_database_once_a_tile_of_queries(counting, n, n_bytes, n_queries):
    device, traffic = counting
    rng = np.random.default_rng(SEED)
    codes = rng.integers(0, 256, (n, n_bytes), dtype=np.uint8)
    queries = rng.integers(0, 256, (n_queries, n_bytes), dtype=np.uint8)
    database = Database(device, codes)
    k = 10
    oracle.check_search(database, queries, codes, k=k, radius=3 * n_bytes)
    variant = hamming_variant(n_bytes, n_queries)
    from_database, from_queries = formulas.scan_bytes(variant, n, n_queries)
    for kernel, arrays in traffic.items():
        if kernel != "hamming_plan":
            assert arrays[:2] == [(from_database, 0), (from_queries, 0)]
    histograms = 4 * n_queries * variant.chunks(n, n_queries) * variant.bins
    assert traffic["hamming_count"][2] == (0, histograms)
    loaded, stored = traffic["hamming_plan"][0]
    assert loaded == histograms + stored, "every count is read once, and again where a place takes it over"
    assert stored < histograms, "places beyond the radius are not needed"
    assert traffic["hamming_collect"][2] == (histograms, 0)
    assert traffic["hamming_collect"][4:] == [(0, 4 * n_queries * k), (0, 8 * n_queries * k)]


def test_search_skips_what_a_filter_leaves_out(counting):
    device, traffic = counting
    rng = np.random.default_rng(SEED)
    codes, allowed = rng.integers(0, 256, (5000, 8), dtype=np.uint8), np.zeros(5000, dtype=bool)
    allowed[64:96] = True
    oracle.check_search(Database(device, codes), codes[:1], codes, k=50, radius=20, allowed=allowed)
    assert traffic["hamming_count"][0] == (32 * 8, 0)


@pytest.mark.parametrize(("n", "n_bits", "n_queries"), [(4000, 64, 8), (4096, 13, 17), (300, 1024, 5), (4001, 64, 1)])
def test_scores_read_codes_once_a_tile_of_queries(counting, n, n_bits, n_queries):
    device, traffic = counting
    rng = np.random.default_rng(SEED)
    codes = oracle.pack(rng.random((n, n_bits)) < 0.5)
    gains, k = rng.standard_normal((n_queries, n_bits), dtype=np.float32), 10
    found = least_scores(device, gains, [codes], k)
    oracle.check_least_scores(found, gains, codes, k)
    variant = asymmetric_variant(codes.shape[1], n_queries)
    expected = formulas.asymmetric_traffic(variant, n, codes.shape[1], n_bits, n_queries)
    arrays = traffic["asymmetric_scores"]
    assert arrays == [(expected.codes, 0), (expected.gains, 0), (0, expected.keys)]
    assert traffic["asymmetric_select"] == [(5 * expected.keys, 0), (0, 4 * n_queries * k), (0, 8 * n_queries * k)]


@pytest.mark.parametrize(("n", "n_bytes", "K", "w"), [(1030, 3, 256, 12), (700, 2, 16, 32), (5, 4, 256, 3)])
def test_nearest_cells_read_rows_once(counting, n, n_bytes, K, w):
    device, traffic = counting
    rng = np.random.default_rng(SEED)
    Y, cells = rng.standard_normal((n, n_bytes * w), dtype=np.float32), rng.standard_normal((n_bytes, K, w))
    cells = cells.astype(np.float32)
    halves = (cells * cells).sum(axis=2) / 2
    codes, _ = nearest(device, Y, cells, halves)
    oracle.check_cells(codes, Y, cells, halves)
    variant = QuantizeVariant(next(width for width in WIDTHS if width >= w))
    expected = formulas.quantize_traffic(variant, n, n_bytes, K, w)
    loaded = [(expected.rows, 0), (expected.cells, 0), (expected.halves, 0)]
    assert traffic[variant.kernel] == [*loaded, (0, expected.codes), (0, 0)]
    assert expected.rows == Y.nbytes
    assert expected.codes == codes.nbytes


@pytest.mark.parametrize(("n", "n_bytes", "n_queries"), [(4000, 8, 9), (300, 60, 2)])
def test_cells_read_codes_once_a_tile_of_queries(counting, n, n_bytes, n_queries):
    device, traffic = counting
    rng = np.random.default_rng(SEED)
    codes = rng.integers(0, 256, (n, n_bytes), dtype=np.uint8)
    tables = rng.standard_normal((n_queries, n_bytes, 256), dtype=np.float32)
    found = least_of_cells(device, tables, [codes], 10)
    oracle.check_least_scores(found, tables, codes, 10)
    variant = asymmetric_variant(n_bytes, n_queries, CELLS_TABLE)
    tiles, chunks = -(-n_queries // variant.queries), -(-n // variant.chunk_items(n, n_queries))
    last = n_bytes % 48 if n_bytes > 48 else n_bytes  # bytes of the last launch
    again = 4 * n * n_queries if n_bytes > 48 else 0
    assert traffic["cell_scores"] == [
        (n * last * tiles, 0),
        (4 * 256 * last * n_queries * chunks, 0),
        (again, 4 * n * n_queries),
    ]


def test_memory_bound_bits():
    assert formulas.memory_bound_bits(bandwidth=1e12, flops=1e13, element_bytes=4) == 20
