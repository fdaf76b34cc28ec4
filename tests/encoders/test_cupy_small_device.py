"""A device of 64 MiB: what fits must work, and what does not must go through in blocks or say that it cannot.

CuPy runs on the stand-in: ``make test-cupy``.
"""

from __future__ import annotations

import gc
import importlib.util
import os

import numpy as np
import pytest

import scq_gpu as scq
from scq_gpu import metrics

MEMORY = 64 << 20
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.standin,
    pytest.mark.skipif(
        importlib.util.find_spec("standin") is None, reason="CuPy does not run on the stand-in here (make test-cupy)"
    ),
    pytest.mark.skipif(os.environ.get("STANDIN_MEMORY") != str(MEMORY), reason=f"needs STANDIN_MEMORY={MEMORY}"),
]
FEW = {"n_bits": 16, "max_iter": 3, "tol": 0, "init": "random", "random_state": 0}


@pytest.fixture(autouse=True)
def cp():
    """CuPy, with all of the device free before and after."""
    import cupy

    yield cupy
    gc.collect()
    cupy.get_default_memory_pool().free_all_blocks()


def features(n_bytes: int, d: int = 128) -> np.ndarray:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((n_bytes // (4 * d), d), dtype=np.float32)
    return X * np.logspace(0, -1, d, dtype=np.float32)


SMALL, HALF, LARGE = 4 << 20, 32 << 20, 96 << 20
SIZES = {"small": SMALL, "half of the device": HALF, "larger than the device": LARGE}


@pytest.mark.parametrize("Encoder", [scq.OgE, scq.OnE])
@pytest.mark.parametrize("solver", ["joint", "columnwise"])
def test_fit_of_small_rows(Encoder, solver):
    X = features(SMALL)
    found = Encoder(**FEW, solver=solver, device="cuda").fit(X)
    expected = Encoder(**FEW, solver=solver).fit(X)
    assert found.loss_curve_[-1] == pytest.approx(expected.loss_curve_[-1], rel=1e-3)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_fit_of_rows_in_host_memory(size):
    X = features(size)
    found = scq.OgE(**FEW, device="cuda").fit(X)
    assert found.loss_curve_[-1] == pytest.approx(scq.OgE(**FEW).fit(X).loss_curve_[-1], rel=1e-3)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("method", ["encode", "transform", "project"])
def test_map_of_rows_in_host_memory(size, method):
    X = features(size)
    encoder = scq.OgE(**FEW).fit(X[:5000])
    expected = getattr(encoder, method)(X[-500:])
    found = getattr(encoder.to("cuda"), method)(X)
    assert len(found) == len(X)
    same = np.isclose(found[-500:], expected, rtol=1e-3, atol=1e-3)
    assert same.mean() > 0.999  # bits of projections next to 0 may differ


@pytest.mark.parametrize("size", [SMALL, HALF], ids=["small", "half of the device"])
def test_encode_of_rows_on_the_device(cp, size):
    X = features(size)
    encoder = scq.OgE(**FEW).fit(X[:5000])
    codes = encoder.encode(cp.asarray(X))
    assert np.mean(codes.get() == encoder.encode(X)) > 0.999


def test_fit_of_rows_on_the_device(cp):
    X = features(16 << 20)
    found = scq.OgE(**FEW).fit(cp.asarray(X))
    assert found.loss_curve_[-1] == pytest.approx(scq.OgE(**FEW).fit(X).loss_curve_[-1], rel=1e-3)


@pytest.fixture(params=["takes all of the device", "is limited"])
def own_pool(cp, request):
    """An allocator of the user, which the driver and CuPy's own pool know nothing of."""
    pool = cp.cuda.MemoryPool()
    if request.param == "is limited":
        pool.set_limit(size=MEMORY // 2)
    else:
        everything = pool.malloc(MEMORY - (2 << 20))
        del everything
    before = cp.cuda.get_allocator()
    cp.cuda.set_allocator(pool.malloc)
    yield pool
    cp.cuda.set_allocator(before)
    gc.collect()
    pool.free_all_blocks()


def counted(fit):
    from cupy_on_cpu.counts import count

    fit()
    return count(fit)


def test_rows_stay_on_the_device_whoever_allocates(cp, own_pool):
    X = cp.asarray(features(4 << 20))
    encoder = scq.OgE(**FEW)
    own = counted(lambda: encoder.fit(X))
    components = encoder.components_
    cp.cuda.set_allocator(cp.get_default_memory_pool().malloc)
    own_pool.free_all_blocks()
    default = counted(lambda: encoder.fit(X)) if cp.cuda.runtime.memGetInfo()[0] > 32 << 20 else None
    print("own pool:", own, "default:", default)
    assert own.bytes_to_host < 10_000
    if default is not None:
        assert own.launches == default.launches
        assert cp.array_equal(components, encoder.components_)


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "larger than the device"])
def test_work_in_the_pool_of_the_user(cp, own_pool, size):
    X = features(size)
    encoder = scq.OgE(**FEW, device="cuda").fit(X)
    assert encoder.loss_curve_[-1] == pytest.approx(scq.OgE(**FEW).fit(X).loss_curve_[-1], rel=1e-3)
    codes = encoder.encode(X)[:5000]
    index, queries = scq.HammingIndex(cp.asarray(codes), 16), cp.asarray(codes[:50])
    expected = scq.HammingIndex(codes, 16).search(codes[:50], 10)
    for found, wanted in zip(index.search(queries, 10), expected, strict=True):
        assert np.array_equal(found.get(), wanted)
    scores, _ = index.search_asymmetric(encoder, X[:50], 10)
    expected, _ = scq.HammingIndex(codes, 16).search_asymmetric(encoder, X[:50], 10)
    np.testing.assert_allclose(scores.get(), expected, rtol=1e-3, atol=1e-4)


def test_rows_of_ten_times_the_device():
    X = np.tile(features(10 << 20, d=256), (64, 1))
    encoder = scq.OgE(16, device="cuda", random_state=0, max_iter=4, tol=0).fit(X)
    assert encoder.loss_curve_[-1] < encoder.loss_curve_[0]
    codes, projections = encoder.encode(X), encoder.project(X[::7])
    assert isinstance(codes, np.ndarray)
    assert codes.shape == (len(X), 2)
    period = len(X) // 64
    assert all(np.array_equal(codes[:period], codes[start : start + period]) for start in range(0, len(X), period))
    assert np.mean(scq.unpack(codes[::7], 16) == np.where(projections >= 0, 1, -1)) > 0.999


def test_an_encoder_is_left_as_it_was_when_memory_ends(cp):
    X = features(HALF)
    encoder = scq.OgE(**FEW).fit(features(SMALL))
    before = encoder.components_
    on_device = cp.asarray(X)
    rest = cp.empty(MEMORY - HALF - (100 << 10), dtype=cp.uint8)
    message = r"cuda:0 is out of memory: [\d,.]+ MiB more were requested, and [\d,.]+ MiB of 64\.0 MiB are free"
    with pytest.raises(MemoryError, match=message):
        encoder.fit(on_device)
    assert encoder.components_ is before
    del rest, on_device
    assert isinstance(scq.OgE(**FEW, device="cuda").fit(features(SMALL)).components_, cp.ndarray)


def test_an_index_answers_again_once_there_is_memory(cp):
    database, queries = codes(200_000), codes(3)
    index, on_device = scq.HammingIndex(cp.asarray(database), n_bits=64), cp.asarray(queries)
    rest = cp.empty(cp.cuda.Device().mem_info[0] - 4096, dtype=cp.uint8)
    with pytest.raises(MemoryError, match=r"cuda:0 is out of memory: .* of 64\.0 MiB are free.*fewer rows or queries"):
        index.search(on_device, 5)
    del rest
    found, expected = index.search(on_device, 5), scq.HammingIndex(database, n_bits=64).search(queries, 5)
    assert all(np.array_equal(x.get(), y) for x, y in zip(found, expected, strict=True))


def codes(n: int, n_bytes: int = 8) -> np.ndarray:
    return np.random.default_rng(4).integers(0, 256, (n, n_bytes), dtype=np.uint8)


def test_search(cp):
    database, queries = codes(60_000), codes(8)
    index = scq.HammingIndex(cp.asarray(database), n_bits=64)
    expected = scq.HammingIndex(database, n_bits=64)
    for x, y in zip(index.search(cp.asarray(queries), 20), expected.search(queries, 20), strict=True):
        assert np.array_equal(x.get(), y)
    for x, y in zip(index.range_search(cp.asarray(queries), 12), expected.range_search(queries, 12), strict=True):
        assert np.array_equal(x.get(), y)


def test_search_by_array_operations(cp):
    database, queries = codes(20_000, 150), codes(100, 150)
    index = scq.HammingIndex(cp.asarray(database), n_bits=1200)
    expected, _ = scq.HammingIndex(database, n_bits=1200).search(queries[:20], 10)
    assert np.array_equal(index.search(cp.asarray(queries), 10)[0][:20].get(), expected)


def test_search_with_many_queries(cp):
    """Their histograms, 260 bytes for each chunk of codes, would take 4.7 MB, and 4 MB are left."""
    database, queries = codes(12_288), codes(6000)
    index = scq.HammingIndex(cp.asarray(database), n_bits=64)
    rest = cp.empty(MEMORY - (4 << 20), dtype=cp.uint8)
    distances, _ = index.search(cp.asarray(queries), 10)
    expected, _ = scq.HammingIndex(database, n_bits=64).search(queries[:100], 10)
    assert np.array_equal(distances[:100].get(), expected)
    del rest


def test_asymmetric_search(cp):
    X = features(SMALL)
    encoder = scq.OgE(**FEW).fit(X)
    database = np.tile(encoder.encode(X), (8, 1))
    found = scq.HammingIndex(cp.asarray(database), n_bits=16).search_asymmetric(encoder, X[:300], 10)
    expected = scq.HammingIndex(database, n_bits=16).search_asymmetric(encoder, X[:300], 10)
    np.testing.assert_allclose(found[0].get(), expected[0], rtol=1e-3, atol=1e-4)


def test_mean_average_precision(cp):
    database, queries = codes(8000), codes(100)
    labels = np.random.default_rng(6).integers(0, 10, 8000)
    arguments = (queries, database, labels[:100], labels)
    found = metrics.mean_average_precision(*map(cp.asarray, arguments))
    assert found == pytest.approx(metrics.mean_average_precision(*arguments))
