"""The kernels on a GPU, and the package around them, against the oracle the simulator is held to."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from cuda_on_cpu import oracle
from cuda_on_cpu.cases import SEED, features, linear_map

import scq_gpu as scq
from scq_gpu._core.arrays import cuda_device, linalg_errors, namespace
from scq_gpu.kernels import encode_linear
from scq_gpu.kernels.cuda import asymmetric
from scq_gpu.kernels.cuda.encode import encode_variants
from scq_gpu.kernels.cuda.hamming import CodeSearch
from scq_gpu.kernels.cuda.quantize import nearest_on_gpu
from scq_gpu.kernels.encode import PRECISIONS, has_encode_kernel
from scq_gpu.rows import blocks, stream
from scq_gpu.search.index import HammingIndex

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cp():
    import cupy

    return cupy


def capability(cp) -> int:
    return int(cp.cuda.Device().compute_capability)


@pytest.mark.parametrize("variant", encode_variants(), ids=lambda v: f"{v.element}-{v.precision}-{v.tile_bits}")
@pytest.mark.parametrize(("n", "d"), [(1, 1), (129, 33), (1000, 512), (4099, 768)])
def test_encode(cp, variant, n, d):
    if capability(cp) < variant.min_capability:
        pytest.skip(f"needs compute capability {variant.min_capability / 10}")
    if variant.element == "bfloat16":
        pytest.skip("CuPy has no bfloat16; see test_torch_tensors")
    rng = np.random.default_rng(SEED)
    X, _ = features(rng, n, d, variant.element)
    W, t = linear_map(rng, d, variant.tile_bits - 1)
    codes = encode_linear(cp.asarray(X), cp.asarray(W), cp.asarray(t), precision=variant.precision)
    oracle.check_codes(codes.get(), X, W, t, element=variant.element, precision=variant.precision)


def test_strided_and_unaligned_rows(cp):
    rng = np.random.default_rng(SEED)
    X, _ = features(rng, 700, 101, "float32")
    W, t = linear_map(rng, 99, 130)
    view = cp.asarray(X)[::3, 1:100]
    codes = encode_linear(view, cp.asarray(W), cp.asarray(t))
    oracle.check_codes(codes.get(), X[::3, 1:100], W, t, element="float32", precision="exact")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_torch_tensors(cp, dtype):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    rng = np.random.default_rng(SEED)
    X, _ = features(rng, 300, 64, "float32")
    W, t = linear_map(rng, 64, 40)
    x = torch.from_numpy(X).to("cuda", getattr(torch, dtype))
    w, threshold = torch.from_numpy(W).cuda(), torch.from_numpy(t).cuda()
    for precision in PRECISIONS:
        if precision != "exact" and capability(cp) < 80:
            continue
        codes = encode_linear(x, w, threshold, precision=precision)
        assert codes.is_cuda
        oracle.check_codes(codes.cpu().numpy(), x.float().cpu().numpy(), W, t, element=dtype, precision=precision)


def test_current_stream_is_used(cp):
    rng = np.random.default_rng(SEED)
    X, _ = features(rng, 5000, 256, "float32")
    W, t = linear_map(rng, 256, 64)
    other = cp.cuda.Stream(non_blocking=True)
    with other:
        x = cp.asarray(X)  # made on this stream: a kernel on another would read it too early
        codes = encode_linear(x, cp.asarray(W), cp.asarray(t))
        result = codes.get(stream=other)
    other.synchronize()
    oracle.check_codes(result, X, W, t, element="float32", precision="exact")


@pytest.mark.parametrize("n_bytes", [1, 4, 8, 12, 32, 64, 128])
@pytest.mark.parametrize("n", [1, 1000, 70001])
def test_search(cp, n, n_bytes):
    rng = np.random.default_rng(SEED)
    codes = rng.integers(0, 256, (n, n_bytes), dtype=np.uint8)
    queries = rng.integers(0, 256, (41, n_bytes), dtype=np.uint8)
    parts = [cp.asarray(codes)]
    engine = CodeSearch(parts)
    on_device, true = cp.asarray(queries), oracle.distances(queries, codes)
    k = min(n, 2048)
    distances, ids = engine.knn(on_device, parts, k, n_bits=8 * n_bytes)
    nearest = np.argsort(true, axis=1, kind="stable")[:, :k]
    assert np.array_equal(ids.get(), nearest)
    assert np.array_equal(distances.get(), np.take_along_axis(true, nearest, 1))
    radius = int(np.quantile(true, 0.01))
    query, distances, ids = (x.get() for x in engine.within(on_device, parts, radius))
    rows, columns = np.nonzero(true <= radius)
    assert np.array_equal(query, rows)
    assert np.array_equal(ids, columns)
    assert np.array_equal(distances, true[rows, columns])


@pytest.mark.parametrize("n_bits", [7, 64, 200, 1024, 3072])
def test_asymmetric_scores(cp, n_bits):
    rng = np.random.default_rng(SEED)
    codes = oracle.pack(rng.random((5003, n_bits)) < 0.5)
    codes[::7] = codes[0]
    gain = rng.standard_normal((11, n_bits)).astype(np.float32)
    scores, rows = asymmetric.knn(gain, [cp.asarray(codes)], 300)
    oracle.check_least_scores((scores.get(), rows.get()), gain, codes, 300)


@pytest.mark.parametrize("n_bytes", [1, 8, 60])
def test_cell_scores(cp, n_bytes):
    rng = np.random.default_rng(SEED)
    codes, allowed = rng.integers(0, 256, (5003, n_bytes), dtype=np.uint8), rng.random(5003) < 0.3
    codes[::7] = codes[0]
    tables = rng.standard_normal((11, n_bytes, 256)).astype(np.float32)
    for mask in (None, allowed):
        words = None if mask is None else cp.asarray(oracle.bitset(mask))
        scores, rows = asymmetric.cells(cp.asarray(tables), [cp.asarray(codes)], 2000, words)
        oracle.check_least_scores((scores.get(), rows.get()), tables, codes, 2000, mask)


@pytest.mark.parametrize("q", [1, 40])
def test_search_of_allowed_rows(cp, q):
    rng = np.random.default_rng(SEED)
    codes, allowed = rng.integers(0, 256, (70_001, 8), dtype=np.uint8), rng.random(70_001) < 0.1
    parts = [cp.asarray(codes)]
    true = oracle.distances(codes[:q], codes)
    true[:, ~allowed] = 65
    words, engine = cp.asarray(oracle.bitset(allowed)), CodeSearch(parts)
    distances, ids = engine.knn(parts[0][:q], parts, 50, n_bits=64, allowed=words)
    nearest = np.argsort(true, axis=1, kind="stable")[:, :50]
    assert np.array_equal(ids.get(), nearest)
    assert np.array_equal(distances.get(), np.take_along_axis(true, nearest, 1))
    query, _, ids = (x.get() for x in engine.within(parts[0][:q], parts, 20, words))
    assert np.array_equal((query, ids), np.nonzero(true <= 20))
    gain = rng.standard_normal((q, 64)).astype(np.float32)
    found = asymmetric.knn(gain, parts, 50, words)
    oracle.check_least_scores(tuple(x.get() for x in found), gain, codes, 50, allowed)


@pytest.fixture(scope="module")
def scored():
    """Rows of length 1, an encoder of them, and its codes."""
    X = np.random.default_rng(SEED).standard_normal((3000, 40), dtype=np.float32) * np.linspace(2, 0.5, 40, dtype="f")
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    encoder = scq.OgE(n_bits=30, max_iter=3, tol=0, random_state=0).fit(X)
    return X, encoder, encoder.encode(X)


@pytest.mark.parametrize("queries", ["host", "device"])
@pytest.mark.parametrize("place", ["host", "device"])
@pytest.mark.parametrize("metric", ["l2", "cosine", "ip"])
def test_asymmetric_search(cp, scored, metric, place, queries):
    """Wherever encoder and queries are; scores on the device are those of the host but for rounding."""
    X, encoder, codes = scored
    expected = HammingIndex(codes, n_bits=30).search_asymmetric(encoder, X[:20], 50, metric=metric)
    if place == "device":
        encoder = copy.deepcopy(encoder).to("cuda")
    Q = cp.asarray(X[:20]) if queries == "device" else X[:20]
    found = HammingIndex(cp.asarray(codes), n_bits=30).search_asymmetric(encoder, Q, 50, metric=metric)
    assert isinstance(found[0], cp.ndarray)
    assert found[0].dtype == cp.float32
    np.testing.assert_allclose(found[0].get(), expected[0], rtol=1e-4, atol=1e-5)
    assert (found[1].get() == expected[1]).mean() > 0.95  # scores that rounding makes unequal may change places
    on_host = HammingIndex(codes, n_bits=30).search_asymmetric(encoder, Q, 50, metric=metric)
    np.testing.assert_allclose(on_host[0], expected[0], rtol=1e-4, atol=1e-5)


def test_asymmetric_search_without_levels(cp, scored):
    X, encoder, codes = scored
    bare = copy.deepcopy(encoder)
    del bare.levels_
    expected = HammingIndex(codes, n_bits=30).search_asymmetric(bare, X[:5], 9)
    found = HammingIndex(cp.asarray(codes), n_bits=30).search_asymmetric(bare, cp.asarray(X[:5]), 9)
    np.testing.assert_allclose(found[0].get(), expected[0], rtol=1e-4, atol=1e-5)


def test_asymmetric_search_rejects_queries_as_the_host_does(cp, scored):
    X, encoder, codes = scored
    index = HammingIndex(cp.asarray(codes), n_bits=30)
    bad = cp.asarray(X[:5])
    bad[3, 7] = cp.nan
    with pytest.raises(ValueError, match="first NaN at row 3, column 7"):
        index.search_asymmetric(encoder, bad, 9)
    with pytest.raises(ValueError, match=r"X_query: distances to row 1 reach .*e\+37, and float32 holds"):
        index.search_asymmetric(encoder, cp.asarray(X[:2]) * cp.asarray([[1], [1e19]], dtype=cp.float32), 9)


@pytest.mark.parametrize("metric", ["l2", "ip"])
def test_search_of_product_codes(cp, scored, metric):
    X, _, _ = scored
    encoder = scq.OPQ(64, max_iter=1, random_state=0).fit(X)
    codes = encoder.encode(X)
    tables, base = encoder.query_tables(X[:7], metric)
    true = base[:, None] + sum(tables[:, byte, codes[:, byte]] for byte in range(8))
    for where in (encoder, copy.deepcopy(encoder).to("cuda")):
        found, ids = HammingIndex(cp.asarray(codes), 64).search_asymmetric(where, cp.asarray(X[:7]), 30, metric=metric)
        np.testing.assert_allclose(found.get(), np.sort(true, axis=1)[:, :30], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(np.take_along_axis(true, ids.get(), axis=1), found.get(), rtol=1e-4, atol=1e-5)


def test_second_device(cp):
    if cp.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("one CUDA device only")
    rng = np.random.default_rng(SEED)
    X, _ = features(rng, 100, 20, "float32")
    W, t = linear_map(rng, 20, 9)
    with cp.cuda.Device(1):
        arrays = cp.asarray(X), cp.asarray(W), cp.asarray(t)
    codes = encode_linear(*arrays)
    assert codes.device.id == 1
    oracle.check_codes(codes.get(), X, W, t, element="float32", precision="exact")
    with pytest.raises(ValueError, match="different devices"):
        encode_linear(arrays[0], cp.asarray(W), arrays[2])


# ---- what the package makes of the kernels ----


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(SEED)
    return (rng.standard_normal((20_000, 96)) * np.logspace(0, -1, 96) + 1).astype(np.float32)


PARAMETERS = {"n_bits": 40, "max_iter": 5, "tol": 0, "random_state": 0}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_encoder(cp, rows, dtype, precision):
    if precision != "exact" and capability(cp) < 80:
        pytest.skip("needs compute capability 8.0")
    encoder = scq.OgE(**PARAMETERS).fit(rows)
    X = rows.astype(dtype)
    assert has_encode_kernel(cp.asarray(X)) == (capability(cp) >= 75)
    codes = encoder.encode(cp.asarray(X), precision=precision)
    W, t = encoder.components_.T, encoder.threshold_
    oracle.check_codes(codes.get(), X, W, t, element=dtype, precision=precision)


def test_a_device_older_than_the_kernels_says_so(cp, rows):
    if capability(cp) >= 75:
        pytest.skip("this device runs the kernels")
    encoder = scq.OgE(**PARAMETERS).fit(rows)
    with pytest.raises(RuntimeError, match=r"needs compute capability 7.5 or newer; .* has 7.*Pass precision='exact'"):
        encoder.encode(cp.asarray(rows), precision="fast")


@pytest.mark.parametrize(("n", "w"), [(1, 1), (2049, 12), (5000, 32)])
def test_nearest_cells(cp, n, w):
    if capability(cp) < 75:
        pytest.skip("needs compute capability 7.5")
    rng = np.random.default_rng(SEED)
    Y, cells = rng.standard_normal((n, 5 * w), dtype=np.float32), rng.standard_normal((5, 256, w), dtype=np.float32)
    halves = (cells * cells).sum(axis=2) / 2
    codes, finite = nearest_on_gpu(*map(cp.asarray, (Y, cells, halves)))
    oracle.check_cells(codes.get(), Y, cells, halves)
    assert bool(finite)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_product_codes(cp, rows, dtype):
    parameters = {"n_bits": 40, "max_iter": 3, "random_state": 0}
    encoder, X = scq.OPQ(**parameters).fit(rows), rows.astype(dtype)
    expected = encoder.encode(X)
    codes = encoder.encode(cp.asarray(X))
    assert isinstance(codes, cp.ndarray)
    assert (codes.get() == expected).mean() > 0.999  # rounding may prefer another cell
    alone = encoder.encode(cp.asarray(X[700:701]))
    assert np.array_equal(alone[0].get(), codes[700].get())
    fitted = scq.OPQ(**parameters).fit(cp.asarray(rows))
    assert fitted.loss_curve_[-1] < 1.02 * encoder.loss_curve_[-1]
    X = cp.asarray(X)
    X[17_001, 5] = cp.nan
    with pytest.raises(ValueError, match="first NaN at row 17001, column 5"):
        encoder.encode(X)


def test_encoder_rejects_nonfinite_rows(cp, rows):
    encoder = scq.OgE(**PARAMETERS).fit(rows)
    X = cp.asarray(rows)
    X[17_001, 5] = cp.nan
    with pytest.raises(ValueError, match="first NaN at row 17001, column 5"):
        encoder.encode(X)


def test_index(cp):
    rng = np.random.default_rng(SEED)
    codes, queries = (rng.integers(0, 256, (n, 8), dtype=np.uint8) for n in (5000, 20))
    index, expected = HammingIndex(cp.asarray(codes), n_bits=64), HammingIndex(codes, n_bits=64)
    for found, wanted in (
        (index.search(cp.asarray(queries), 6000), expected.search(queries, 6000)),
        (index.range_search(cp.asarray(queries), 24), expected.range_search(queries, 24)),
    ):
        for x, y in zip(found, wanted, strict=True):
            assert isinstance(x, cp.ndarray)
            assert np.array_equal(x.get(), y)


@pytest.mark.parametrize("room", [True, False], ids=["projected on the device", "projected on the host"])
def test_streamed_fit(cp, rows, monkeypatch, room):
    """Rows in host memory, through two buffers; the same sums in the same order as from device memory."""
    if not room:
        monkeypatch.setattr(stream, "fits", lambda n_bytes, gpu: False)
        monkeypatch.setattr(blocks, "fits", lambda n_bytes, gpu: False)
    streamed = scq.OgE(**PARAMETERS, device="cuda").fit(rows)
    monkeypatch.undo()
    resident = scq.OgE(**PARAMETERS).fit(cp.asarray(rows))
    assert cp.allclose(streamed.components_, resident.components_, atol=1e-5)
    assert np.array_equal(streamed.encode(rows), streamed.encode(cp.asarray(rows)).get())


def test_copies_keep_their_order(cp):
    """Long work on every block, so that copies that did not wait would overwrite it."""
    gpu = cuda_device(0)
    X = np.random.default_rng(SEED).random((40, 512, 512), dtype=np.float32)
    sums = []
    for block in stream.stream_rows(list(X), gpu):
        product = block
        for _ in range(20):
            product = product @ block
            product = product / cp.max(product)
        sums.append(cp.sum(block))
    assert np.allclose(cp.stack(sums).get(), X.sum(axis=(1, 2)), rtol=1e-4)
    kept = [gpu.download(cp.asarray(block) * 2) for block in X]
    back = [cp.sum(block) for block in stream.stream_rows(kept, gpu, pinned=True)]
    assert np.allclose(cp.stack(back).get(), 2 * X.sum(axis=(1, 2)), rtol=1e-4)


def test_failed_decompositions_raise(cp):
    with linalg_errors(namespace(cp.zeros(1))), pytest.raises(np.linalg.LinAlgError):
        cp.linalg.cholesky(-cp.eye(3))
