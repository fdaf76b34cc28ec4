"""The asymmetric kernels, run on the CPU from the source that runs on a GPU, against float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from cuda_on_cpu import COMPILER, SimulatedDevice, fake_cupy, oracle
from cuda_on_cpu.cases import CASES, SEED, scored_case

import scq_gpu as scq
from scq_gpu._core import arrays as devices
from scq_gpu.kernels import asymmetric
from scq_gpu.kernels.cuda import asymmetric as cuda
from scq_gpu.kernels.cuda.asymmetric import least_scores
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


@pytest.mark.parametrize("q", [1, 7, 8, 9, 17])
@pytest.mark.parametrize("variant", cuda.asymmetric_variants(), ids=lambda v: f"{v.queries} queries")
def test_numbers_of_queries(variant, q):
    n_bytes = cuda.MAX_SCORED_BYTES // variant.queries
    assert cuda.asymmetric_variant(n_bytes) == variant
    scored_case(DEVICE, 40, 8 * n_bytes, q, 5)


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


def test_rows_and_queries_in_blocks(monkeypatch):
    """Merge blocks of queries and of rows if they do not fit in memory together."""
    monkeypatch.setattr(SimulatedDevice, "free_bytes", lambda self: 1)
    monkeypatch.setattr(cuda.AsymmetricVariant, "chunk_items", 64)
    assert cuda.asymmetric_variant(3).batches(1000, 20, 1) == (8, 64)
    for k in (1, 70, 300):
        scored_case(DEVICE, 300, 20, 20, k)


def test_batches_stay_within_the_memory_there_is():
    for variant, n, q, free in itertools.product(
        cuda.asymmetric_variants(), (1, 10**4, 10**6, 10**9), (1, 8, 1000), (1 << 24, 1 << 30, 1 << 36)
    ):
        queries, rows = variant.batches(n, q, free)
        assert queries % variant.queries == 0
        assert rows == min(n, rows)
        assert 4 * min(q, queries) * rows <= min(variant.score_bytes, free // 4)


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


def test_codes_that_are_columns_of_wider_rows(cupy):
    rng = np.random.default_rng(SEED)
    wide, gain = rng.integers(0, 256, (50, 9), dtype=np.uint8), (rng.integers(-40, 40, (2, 32)) / 8).astype(np.float32)
    found = cuda.knn(gain, [fake_cupy.array(wide)[:, 2:6]], 20)
    oracle.check_least_scores(tuple(map(np.asarray, found)), gain, wide[:, 2:6], 20)


def test_one_place_decides(cupy):
    zeros = np.zeros((4, cuda.MAX_SCORED_BYTES + 1), dtype=np.uint8)
    assert asymmetric.engine(fake_cupy.array(zeros[:, 1:])) == "cuda"
    assert asymmetric.engine(fake_cupy.array(zeros)) != "cuda"
    assert asymmetric.engine(fake_cupy.array(np.asfortranarray(zeros[:, :3]))) != "cuda"
    assert asymmetric.engine(zeros[:, 1:]) != "cuda"
    with pytest.raises(ValueError, match="codes are 385 bytes wide; the asymmetric kernels take 1 to 384"):
        cuda.asymmetric_variant(385)


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
