"""Asymmetric search and rescoring against brute force."""

import array_api_strict
import numpy as np
import pytest
from native_engines import use_engine

from scq_gpu.kernels import asymmetric
from scq_gpu.search import HammingIndex, rescore


def _torch():
    return pytest.importorskip("torch").asarray


ENGINES = {
    "native": lambda: np.asarray,
    "numpy": lambda: np.asarray,
    "array_api_strict": lambda: array_api_strict.asarray,
    "torch": _torch,
}


@pytest.fixture(params=ENGINES)
def asarray(request, monkeypatch):
    if request.param in ("native", "numpy"):
        use_engine(request.param, monkeypatch)
    return ENGINES[request.param]()


def host(x):
    return x if isinstance(x, np.ndarray) else np.from_dlpack(x)


class StandIn:
    """An encoder reduced to what the search asks of one."""

    def __init__(self, n_bits, d=20, seed=0, levels=None):
        self.n_bits = n_bits
        self.W = np.random.default_rng(seed).standard_normal((d, n_bits))
        if levels is not None:
            self.levels_ = levels

    def project(self, X):
        return X @ self.W

    def encode(self, X):
        return np.packbits(self.project(X) >= 0, axis=1, bitorder="little")


def learned_levels(P):
    return np.stack([np.where(P < 0, P, 0).sum(0) / (P < 0).sum(0), np.where(P >= 0, P, 0).sum(0) / (P >= 0).sum(0)], 1)


def brute(P, codes, levels, n_bits, k):
    bits = np.unpackbits(codes, axis=1, bitorder="little")[:, :n_bits].astype(int)
    reconstruction = levels[np.arange(n_bits), bits]
    d = ((P[:, None] - reconstruction[None]) ** 2).sum(axis=2)
    order = np.argsort(d, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(d, order, axis=1), order, d


@pytest.mark.parametrize("n_bits", [1, 7, 8, 33, 64, 200])
@pytest.mark.parametrize("with_levels", [False, True])
def test_asymmetric_is_brute_force(asarray, n_bits, with_levels):
    rng = np.random.default_rng(n_bits)
    X, Q = rng.standard_normal((700, 20)), rng.standard_normal((9, 20))
    encoder = StandIn(n_bits)
    levels = np.tile([-1.0, 1.0], (n_bits, 1))
    if with_levels:
        levels = learned_levels(encoder.project(X))
        encoder.levels_ = asarray(levels)
    codes = encoder.encode(X)
    expected, _, full = brute(encoder.project(Q), codes, levels, n_bits, 25)
    d, ids = HammingIndex(asarray(codes), n_bits).search_asymmetric(encoder, Q, 25)
    assert type(d) is type(asarray(codes))
    np.testing.assert_allclose(host(d), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(np.take_along_axis(full, host(ids), axis=1), expected, rtol=1e-4, atol=1e-4)
    assert all(len(set(row)) == 25 for row in host(ids).tolist())
    assert host(d).dtype == np.float32
    assert host(ids).dtype == np.int64


def test_equal_codes_come_in_order(asarray):
    encoder = StandIn(16)
    X = np.random.default_rng(0).standard_normal((1, 20))
    codes = np.repeat(encoder.encode(X), 50, axis=0)
    index = HammingIndex(asarray(codes), 16, ids=np.arange(50)[::-1] * 2)
    assert host(index.search_asymmetric(encoder, X, 7)[1]).tolist() == [[98, 96, 94, 92, 90, 88, 86]]


def test_fewer_codes_than_k(asarray):
    encoder = StandIn(12)
    X = np.random.default_rng(0).standard_normal((3, 20))
    d, ids = HammingIndex(asarray(encoder.encode(X)), 12).search_asymmetric(encoder, X, 5)
    assert np.isinf(host(d)[:, 3:]).all()
    assert np.isfinite(host(d)[:, :3]).all()
    assert (host(ids)[:, 3:] == -1).all()


@pytest.mark.parametrize("n_queries", [1, 3, 90])
def test_search_over_parts_and_ranges(asarray, n_queries):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (9000, 3), dtype=np.uint8)
    gain = rng.integers(-50, 50, (n_queries, 24)).astype(np.float32)  # whole numbers: sums are exact, ties are many
    d = np.unpackbits(codes, axis=1, bitorder="little").astype(np.float32) @ gain.T
    order = np.argsort(d.T, axis=1, kind="stable")[:, :200]
    sums, rows = asymmetric.knn(gain, [asarray(codes[:11]), asarray(codes[11:])], 200)
    np.testing.assert_array_equal(host(rows), order)
    np.testing.assert_array_equal(host(sums), np.take_along_axis(d.T, order, axis=1))


def test_asymmetric_recalls_more_than_hamming():
    rng = np.random.default_rng(0)
    X, Q = rng.standard_normal((4000, 16)), rng.standard_normal((100, 16))
    encoder = StandIn(32, d=16)
    encoder.levels_ = learned_levels(encoder.project(X))
    index = HammingIndex(encoder.encode(X), 32)
    true = np.argsort(((Q[:, None] - X[None]) ** 2).sum(axis=2), axis=1)[:, :10]

    def recall(ids):
        return np.mean([len(set(a) & set(b)) / 10 for a, b in zip(ids[:, :100].tolist(), true.tolist(), strict=True)])

    hamming, asymmetric = index.search(encoder.encode(Q), 100)[1], index.search_asymmetric(encoder, Q, 100)[1]
    assert recall(asymmetric) > recall(hamming) + 0.05


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.uint8])
def test_rescore_is_brute_force(asarray, dtype):
    if asarray is array_api_strict.asarray and dtype is np.float16:
        pytest.skip("the array API has no float16")
    rng = np.random.default_rng(0)
    X, Q = (rng.uniform(0, 50, (n, 6)).astype(dtype) for n in (80, 7))
    ids = np.array([rng.permutation(80)[:30] for _ in range(7)])
    ids[0, 5:] = -1
    d, found = rescore(asarray(Q), asarray(X), asarray(ids), k=12, metric="l2")
    for row, q in enumerate(Q.astype(float)):
        real = np.sort(ids[row][ids[row] >= 0])
        exact = ((X[real].astype(float) - q) ** 2).sum(axis=1)
        order = np.argsort(exact, kind="stable")[:12]
        np.testing.assert_allclose(host(d)[row, : len(order)], exact[order], rtol=1e-5)
        np.testing.assert_array_equal(host(found)[row, : len(order)], real[order])
    assert (host(found)[0, 5:] == -1).all()
    assert np.isinf(host(d)[0, 5:]).all()


def test_rescore_reads_only_the_rows_it_needs(tmp_path):
    class Source:
        shape = (1000, 3)
        read = 0

        def __getitem__(self, rows):
            assert (np.diff(rows) > 0).all()  # what HDF5 and Zarr ask of row numbers
            self.read += len(rows)
            return np.repeat(rows[:, None], 3, axis=1).astype(np.float32)

    source = Source()
    d, ids = rescore(np.array([[5.0, 5.0, 5.0]]), source, np.array([[900, 4, 7]]), metric="l2")
    assert ids.tolist() == [[4, 7, 900]]
    assert d.tolist() == [[3.0, 12.0, 3 * 895.0**2]]
    assert source.read == 3
    X = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.float32, shape=(50, 3))
    X[:] = np.arange(50)[:, None]
    assert rescore(np.array([[5.0, 5.0, 5.0]]), X, np.array([[9, 4, 7]]), metric="l2")[1].tolist() == [[4, 7, 9]]


def test_bad_input_is_named():
    encoder = StandIn(12)
    X = np.random.default_rng(0).standard_normal((5, 20))
    codes = encoder.encode(X)
    index = HammingIndex(codes, 12)
    nan = X.copy()
    nan[3, 0] = np.nan
    ids = np.zeros((5, 2), dtype=int)
    bad = [
        (lambda: index.search_asymmetric(encoder, nan, 1), "NaN or inf, first nan at row 3"),
        (lambda: index.search_asymmetric(encoder, X, 0), "k=0"),
        (lambda: index.search_asymmetric(StandIn(13), X, 1), "n_bits=13 and the index holds n_bits=12"),
        (lambda: rescore(X, X[:, :3], ids), r"\(queries, 3\) is expected"),
        (lambda: rescore(X, X, ids[:2]), "each of the 5 queries"),
        (lambda: rescore(X, X, ids * 1.0), "dtype float64"),
        (lambda: rescore(X, X, ids + 5), "ids run from 5 to 5"),
        (lambda: rescore(X, X, ids - 2), "ids run from -2"),
        (lambda: rescore(X, X, ids, k=3), "k=3"),
    ]
    for call, message in bad:
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("n_bits", [8, 31, 200])
def test_equal_codes_are_equally_far_and_come_lowest_id_first(asarray, n_bits):
    """Whatever the place of a code among the others: sums of floats depend on their order."""
    rng = np.random.default_rng(n_bits)
    encoder = StandIn(n_bits)
    few = encoder.encode(rng.standard_normal((40, 20)))
    which = rng.integers(40, size=20_011)
    d, ids = HammingIndex(asarray(few[which]), n_bits).search_asymmetric(encoder, rng.standard_normal((7, 20)), 5000)
    for distances, rows in zip(host(d), host(ids), strict=True):
        assert (np.diff(distances) >= 0).all()
        for distance in np.unique(distances):
            assert (np.diff(rows[distances == distance]) > 0).all()
        for code in np.unique(which):
            assert len(np.unique(distances[which[rows] == code])) <= 1
