"""The asymmetric kernels, run on the CPU from the source that runs on a GPU, against float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from cuda_on_cpu import COMPILER, SimulatedDevice, fake_cupy, oracle
from cuda_on_cpu.cases import CASES, SEED, cells_case, scored_case

import scq_gpu as scq
from scq_gpu._core import arrays as devices
from scq_gpu.kernels import asymmetric
from scq_gpu.kernels.cuda import asymmetric as cuda
from scq_gpu.kernels.cuda import launch
from scq_gpu.kernels.cuda.asymmetric import least_of_cells, least_scores
from scq_gpu.search import columns

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the simulator needs g++")

DEVICE = SimulatedDevice() if COMPILER else None


@pytest.fixture
def cupy():
    """A CuPy that runs on the simulator."""
    devices.cuda_device.cache_clear()
    with fake_cupy.installed() as fake:
        yield fake
    devices.cuda_device.cache_clear()


@pytest.mark.parametrize("n", [1, 31, 33, 255, 257, 4097])
@pytest.mark.parametrize("n_bits", [1, 7, 9, 31, 33, 64, 129])
def test_edge_shapes(n, n_bits):
    scored_case(DEVICE, n, n_bits, 3, min(n, 10))
    scored_case(DEVICE, n, n_bits, 1, n, exact=False)


@pytest.mark.parametrize("n", [1, 33, 257, 4097])
@pytest.mark.parametrize("n_bytes", [1, 7, 8, 48, 49, 100])
def test_edge_shapes_of_cells(n, n_bytes):
    cells_case(DEVICE, n, n_bytes, 3, min(n, 10))
    cells_case(DEVICE, n, n_bytes, 1, 10, exact=False)


def test_cells_are_added_up_in_the_order_of_the_bytes():
    """The sums of array operations, bit for bit."""
    rng = np.random.default_rng(SEED)
    codes, tables = rng.integers(0, 256, (70, 60), dtype=np.uint8), rng.standard_normal((2, 60, 256), dtype=np.float32)
    expected = asymmetric.cells(tables, [np.asfortranarray(codes)[:, :]], 70)
    sums = tables[:, 0, codes[:, 0]]
    for byte in range(1, 60):
        sums = sums + tables[:, byte, codes[:, byte]]
    scores, rows = least_of_cells(DEVICE, tables, [codes], 70)
    np.testing.assert_array_equal(scores, np.sort(sums, axis=1))
    assert expected[0].shape == scores.shape
    assert np.array_equal(rows, np.argsort(sums, axis=1, kind="stable"))


@pytest.mark.parametrize("q", [1, 7, 8, 9, 17])
@pytest.mark.parametrize("variant", cuda.asymmetric_variants(), ids=lambda v: f"{v.queries} queries")
def test_numbers_of_queries(variant, q):
    n_bytes = cuda.MAX_SCORED_BYTES // variant.queries
    assert cuda.asymmetric_variant(n_bytes, variant.queries) == variant
    scored_case(DEVICE, 40, 8 * n_bytes, q, 5)


def test_a_block_has_no_more_queries_than_there_are():
    assert [cuda.asymmetric_variant(8, q).queries for q in (1, 2, 3, 5, 9)] == [1, 2, 4, 8, 8]
    assert [cuda.asymmetric_variant(n, 9, cuda.CELLS_TABLE).queries for n in (6, 8, 16, 32, 200)] == [8, 4, 2, 1, 1]


def test_thread_order_does_not_matter():
    scored_case(SimulatedDevice(seeds=(0, 1, 2, 3)), 900, 40, 10, 50, exact=False)


@pytest.mark.parametrize("case", ["scored-ties", "far-codes"])
def test_special_cases(case):
    CASES[case](DEVICE)


@pytest.mark.parametrize("k", [1, 99, 100])
def test_equal_scores_come_by_row(k):
    codes, gains = np.full((100, 3), 7, dtype=np.uint8), np.ones((2, 24), dtype=np.float32)
    scores, rows = least_scores(DEVICE, gains, [codes], k)
    assert (scores == 9).all()
    assert (rows == np.arange(k)).all()


def test_order_of_special_scores():
    """Infinities, both zeros, which are equal, subnormal numbers, and NaN, which counts as inf."""
    values = np.array([np.inf, 0.0, -0.0, np.nan, -np.inf, 1e-45, -1e-45, 3e38, -3e38, -0.0, 1.0], dtype=np.float32)
    codes = oracle.pack(np.eye(len(values), dtype=bool))  # each row has one bit, whose gain is its score
    scores, rows = least_scores(DEVICE, values[None], [codes], len(values))
    assert rows.tolist() == [[4, 8, 6, 1, 2, 9, 5, 10, 7, 0, 3]]
    assert scores[0, :-1].tolist() == values[rows[0, :-1]].tolist()
    assert scores[0, -1] == np.inf


@pytest.mark.parametrize("words", [64, 300, 700])
def test_rows_and_queries_in_blocks(monkeypatch, words):
    """Merge blocks of queries and of rows if they do not fit in memory together."""
    monkeypatch.setattr(cuda, "scratch", lambda xp, most, least: xp.empty(min(words, most), dtype=xp.uint32))
    for k in (1, 70, 300):
        scored_case(DEVICE, 300, 20, 20, k)


def test_scratch_is_made_smaller_while_the_allocator_refuses():
    class Small:
        uint32 = np.uint32

        def empty(self, shape, dtype):
            if shape > 100:
                raise MemoryError
            return np.empty(shape, dtype)

    assert len(launch.scratch(Small(), 1000, 10)) == 62
    assert len(launch.scratch(Small(), 1000, 90)) == 90
    with pytest.raises(MemoryError):
        launch.scratch(Small(), 1000, 101)


@pytest.mark.parametrize("k", [1, 300, 5000])
def test_pieces_and_their_merges(monkeypatch, k):
    monkeypatch.setattr(cuda, "_PIECE", 64)
    scored_case(DEVICE, 5000, 12, 2, k)


def test_blocks_for_a_large_gpu():
    for n, q in itertools.product((10**6, 10**7), (1, 8, 100)):
        assert cuda.asymmetric_variant(8, q).blocks(n, q) >= 900


def test_bases_keep_equal_distances_in_order(cupy):
    """Rounding makes distances of different scores equal: the lowest row then comes first, padding last."""
    rng = np.random.default_rng(SEED)
    scores = np.sort(rng.random((3, 600), dtype=np.float32) * 1e-3, axis=1)
    rows = np.array([rng.permutation(600) for _ in range(3)])
    scores[:, 590:], rows[:, 590:] = np.inf, -1
    base = np.array([0, 5, -1e-4], dtype=np.float32)
    found, ids = asymmetric.add_base(fake_cupy.array(scores), fake_cupy.array(rows), base, least=0.0)
    expected, order = asymmetric.add_base(scores, rows, base, least=0.0)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_array_equal(expected, np.maximum(scores + base[:, None], 0))
    assert (np.diff(order[1, :590])[np.diff(expected[1, :590]) == 0] > 0).all()
    assert (np.diff(expected[1, :590]) == 0).mean() > 0.1
    assert (order[:, 590:] == -1).all()


@pytest.mark.parametrize("cuts", [(), (0, 5, 5, 60)])
def test_calls_with_arrays_give_what_array_operations_give(cupy, cuts):
    rng = np.random.default_rng(SEED)
    codes, gain = rng.integers(0, 4, (90, 3), dtype=np.uint8), (rng.integers(-40, 40, (4, 21)) / 8).astype(np.float32)
    parts = [x for x in np.split(codes, cuts) if len(x)]
    expected = asymmetric.knn(gain, parts, 100)
    on_device = [fake_cupy.array(x) for x in parts]
    assert asymmetric.engine(on_device[0]) == "cuda"
    found = asymmetric.knn(gain, on_device, 100)
    for result, wanted in zip(found, expected, strict=True):
        assert result.dtype == wanted.dtype
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("cuts", [(), (0, 5, 5, 60)])
def test_cells_of_arrays_give_what_array_operations_give(cupy, cuts):
    rng = np.random.default_rng(SEED)
    codes, tables = rng.integers(0, 4, (90, 3), dtype=np.uint8), (rng.integers(-40, 40, (4, 3, 256)) / 8).astype("f")
    allowed = rng.random(90) < 0.5
    parts = [fake_cupy.array(x) for x in np.split(codes, cuts) if len(x)]
    for mask in (None, allowed):
        words = None if mask is None else fake_cupy.array(oracle.bitset(mask))
        for given in (tables, fake_cupy.array(tables)):
            found = asymmetric.cells(given, parts, 100, allowed=words)
            oracle.check_least_scores(tuple(map(np.asarray, found)), tables, codes, 100, mask)


def test_codes_that_are_columns_of_wider_rows(cupy):
    rng = np.random.default_rng(SEED)
    wide, gain = rng.integers(0, 256, (50, 9), dtype=np.uint8), (rng.integers(-40, 40, (2, 32)) / 8).astype(np.float32)
    found = cuda.knn(gain, [fake_cupy.array(wide)[:, 2:6]], 20)
    oracle.check_least_scores(tuple(map(np.asarray, found)), gain, wide[:, 2:6], 20)


def test_gains_on_the_device_are_taken_as_they_are(cupy):
    rng = np.random.default_rng(SEED)
    codes, gain = rng.integers(0, 256, (50, 4), dtype=np.uint8), (rng.integers(-40, 40, (2, 32)) / 8).astype(np.float32)
    found = asymmetric.knn(fake_cupy.array(gain), [fake_cupy.array(codes)], 20)
    oracle.check_least_scores(tuple(map(np.asarray, found)), gain, codes, 20)


def test_one_place_decides(cupy):
    zeros = np.zeros((4, cuda.MAX_SCORED_BYTES + 1), dtype=np.uint8)
    assert asymmetric.engine(fake_cupy.array(zeros[:, 1:])) == "cuda"
    assert asymmetric.engine(fake_cupy.array(zeros)) != "cuda"
    assert asymmetric.engine(fake_cupy.array(np.asfortranarray(zeros[:, :3]))) != "cuda"
    assert asymmetric.engine(zeros[:, 1:]) != "cuda"
    with pytest.raises(ValueError, match="codes are 385 bytes wide; the asymmetric kernels take 1 to 384"):
        cuda.asymmetric_variant(385, 1)


@pytest.mark.parametrize("metric", ["l2", "cosine", "ip"])
def test_index_searches_with_the_kernel(cupy, monkeypatch, metric):
    X = np.random.default_rng(SEED).standard_normal((300, 12)).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    encoder = scq.OgE(n_bits=11, max_iter=3, tol=0, random_state=0).fit(X)
    codes = encoder.encode(X)
    expected = scq.HammingIndex(codes, n_bits=11).search_asymmetric(encoder, X[:5], 9, metric=metric)
    called = []
    knn = cuda.knn
    monkeypatch.setattr(cuda, "knn", lambda *a, **kw: called.append(1) or knn(*a, **kw))
    monkeypatch.setattr(columns, "_copied", fake_cupy.array)
    index = scq.HammingIndex(fake_cupy.array(codes), n_bits=11)
    found = index.search_asymmetric(encoder, X[:5], 9, metric=metric)
    assert called
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-5)
    assert (np.asarray(found[1]) == expected[1]).mean() > 0.9  # rows whose scores differ by rounding may change places
