"""Asymmetric distances against the formulas, written out in NumPy, on every engine."""

import array_api_strict
import numpy as np
import pytest
from native_engines import use_engine

import scq_gpu as scq
from scq_gpu.search.index import HammingIndex

ENGINES = {"native": np.asarray, "numpy": np.asarray, "array_api_strict": array_api_strict.asarray}
METRICS = ["l2", "cosine", "ip"]


@pytest.fixture(params=ENGINES)
def asarray(request, monkeypatch):
    if request.param in ("native", "numpy"):
        use_engine(request.param, monkeypatch)
    return ENGINES[request.param]


def host(x):
    return x if isinstance(x, np.ndarray) else np.from_dlpack(x)


def rows(n=1500, d=24, seed=0):
    """Rows off the origin, whose norms vary."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * np.linspace(2, 0.3, d) * rng.uniform(0.5, 2, (n, 1))
    return (X + rng.standard_normal(d)).astype(np.float32)


class Formulas:
    """The docstring of `scq_gpu.search.scoring`, from the fitted arrays alone, in float64."""

    def __init__(self, encoder):
        W = np.array(encoder.components_, dtype=np.float64)
        self.lengths = np.linalg.norm(W, axis=1)
        self.u = W / self.lengths[:, None]
        self.mean = np.array(encoder.mean_, dtype=np.float64)
        self.offset = np.array(encoder.threshold_, dtype=np.float64) / self.lengths
        self.levels = np.array(encoder.levels_, dtype=np.float64) / self.lengths[:, None]

    def coordinates(self, X):
        return X.astype(np.float64) @ self.u.T - self.offset

    def bits(self, X):
        return self.coordinates(X) >= 0

    def distances(self, Q, bits, metric):
        """(q, n), by the metric."""
        o, Q = self.coordinates(Q), Q.astype(np.float64)
        c = self.levels[np.arange(len(self.u)), bits.astype(int)]
        if metric == "ip":
            return -((Q @ self.mean)[:, None] + Q @ self.u.T @ c.T)
        d = ((o[:, None] - c[None]) ** 2).sum(2)
        return d / 2 if metric == "cosine" else d


def check(found, expected, k):
    """Found distances are the least of those expected, and belong to the rows found."""
    d, ids = (host(x) for x in found)
    assert d.dtype == np.float32
    assert ids.dtype == np.int64
    assert d.shape == ids.shape == (len(expected), k)
    size = np.abs(expected).max()
    np.testing.assert_allclose(d, np.sort(expected, axis=1)[:, :k], rtol=1e-4, atol=2e-5 * size)
    np.testing.assert_allclose(d, np.take_along_axis(expected, ids, axis=1), rtol=1e-4, atol=2e-5 * size)
    assert (np.diff(d, axis=1) >= 0).all()
    assert all(len(set(row)) == k for row in ids.tolist())


def normalized(X):
    return X / np.linalg.norm(X, axis=1, keepdims=True)


@pytest.mark.parametrize("Encoder", [scq.OgE, scq.OnE, scq.ITQ, scq.LSH, scq.PCAH])
@pytest.mark.parametrize("metric", METRICS)
def test_distances_are_the_formulas(asarray, metric, Encoder):
    X, Q = rows(), rows(9, seed=1)
    if metric == "cosine":
        X, Q = normalized(X), normalized(Q)
    encoder = Encoder(20, random_state=0) if Encoder is not scq.PCAH else Encoder(20)
    encoder.fit(X)
    formulas = Formulas(encoder)
    index = HammingIndex(asarray(encoder.encode(X)), 20)
    expected = formulas.distances(Q, formulas.bits(X), metric)
    found = index.search_asymmetric(encoder, Q, 30, metric=metric)
    assert type(found[0]) is type(asarray(np.zeros(1, dtype=np.float32)))
    check(found, expected, 30)


@pytest.mark.parametrize("n_bits", [1, 7, 8, 9, 24])
@pytest.mark.parametrize("metric", METRICS)
def test_lengths_and_queries_of_other_namespaces(asarray, n_bits, metric):
    X, Q = rows(400).astype(np.float64), rows(5, seed=1).astype(np.float64)
    encoder = scq.OgE(n_bits, random_state=0).fit(X)
    formulas = Formulas(encoder)
    index = HammingIndex(asarray(encoder.encode(X)), n_bits)
    expected = formulas.distances(Q, formulas.bits(X), metric)
    check(index.search_asymmetric(encoder, asarray(Q), 11, metric=metric), expected, 11)


def test_engines_agree(monkeypatch):
    X, Q = rows(6000), rows(7, seed=1)
    encoder = scq.OgE(21, random_state=0).fit(X)
    for metric in METRICS:
        answers = []
        for engine in ("native", "numpy"):
            use_engine(engine, monkeypatch)
            index = HammingIndex(encoder.encode(X), 21)
            answers.append(index.search_asymmetric(encoder, Q, 40, metric=metric))
        np.testing.assert_array_equal(answers[0][1], answers[1][1])
        np.testing.assert_allclose(answers[0][0], answers[1][0], rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("metric", METRICS)
def test_estimates_are_near_the_truth(metric):
    """Not only what the formulas say: what they are for."""
    X, Q = rows(3000), rows(60, seed=1)
    if metric == "cosine":
        X, Q = normalized(X), normalized(Q)
    encoder = scq.OgE(24, random_state=0).fit(X)
    true = {
        "l2": ((Q[:, None] - X[None]) ** 2).sum(2),
        "cosine": 1 - Q @ X.T,
        "ip": -Q @ X.T,
    }[metric]
    d, ids = HammingIndex(encoder.encode(X), 24).search_asymmetric(encoder, Q, 3000, metric=metric)
    estimates = np.empty_like(true)
    np.put_along_axis(estimates, ids, d, axis=1)
    assert np.corrcoef(estimates.ravel(), true.ravel())[0, 1] > 0.75


@pytest.mark.parametrize("metric", METRICS)
def test_ties_go_to_the_row_that_came_first(asarray, metric):
    X = rows(30)
    encoder = scq.OgE(8, random_state=0).fit(X)
    codes = np.repeat(encoder.encode(X[:1]), 40, axis=0)
    ids = np.random.default_rng(0).permutation(40) * 3
    d, found = HammingIndex(asarray(codes), 8, ids=asarray(ids)).search_asymmetric(encoder, X[:2], 9, metric=metric)
    assert host(found).tolist() == [ids[:9].tolist()] * 2
    assert all(len(set(row)) == 1 for row in host(d).tolist())


@pytest.mark.parametrize("metric", METRICS)
def test_distances_that_rounding_makes_equal_are_ordered_by_id(asarray, metric):
    """A far query: all codes are about as far, to the digits of float32."""
    X = rows(800)
    encoder = scq.OgE(24, random_state=0).fit(X)
    index = HammingIndex(asarray(encoder.encode(X)), 24)
    Q = np.full((3, 24), 300.0, dtype=np.float32) * np.array([[1], [30], [1000]], dtype=np.float32)
    d, ids = (host(x) for x in index.search_asymmetric(encoder, Q, 800, metric=metric))
    assert (np.diff(d, axis=1) >= 0).all()
    same = np.diff(d, axis=1) == 0
    assert (np.diff(ids, axis=1)[same] > 0).all()


@pytest.mark.parametrize("metric", METRICS)
def test_more_wanted_than_there_are(asarray, metric):
    X = rows(30)
    encoder = scq.OgE(8, random_state=0).fit(X)
    d, ids = HammingIndex(asarray(encoder.encode(X[:5])), 8).search_asymmetric(encoder, X[:2], 8, metric=metric)
    assert np.isfinite(host(d)[:, :5]).all()
    assert np.isposinf(host(d)[:, 5:]).all()
    assert (host(ids)[:, 5:] == -1).all()
    assert sorted(host(ids)[0, :5].tolist()) == [0, 1, 2, 3, 4]


# -- refusals -----------------------------------------------------------------------------------------------------


def test_another_encoder_is_told_by_its_fingerprint(tmp_path):
    X = rows(300)
    encoder, other = (scq.OgE(8, random_state=seed).fit(X) for seed in (0, 1))
    index = HammingIndex(encoder.encode(X), 8, encoder=encoder)
    with pytest.raises(ValueError, match="made by another encoder"):
        index.search_asymmetric(other, X[:2], 3)
    index.save(tmp_path / "i.safetensors")
    loaded = HammingIndex.load(tmp_path / "i.safetensors")
    with pytest.raises(ValueError, match="made by another encoder"):
        loaded.search_asymmetric(other, X[:2], 3)
    encoder.save(tmp_path / "m.safetensors")
    again = scq.load(tmp_path / "m.safetensors")
    for a, b in zip(loaded.search_asymmetric(again, X[:2], 3), index.search_asymmetric(encoder, X[:2], 3), strict=True):
        np.testing.assert_array_equal(a, b)
    loaded.add(encoder.encode(X[:5])).remove([0])
    with pytest.raises(ValueError, match="made by another encoder"):
        loaded.search_asymmetric(other, X[:2], 3)
    assert HammingIndex(encoder.encode(X), 8).search_asymmetric(other, X[:2], 3)[1].shape == (2, 3)  # nothing known


def test_encoder_of_another_length_is_refused():
    X = rows(300)
    index = HammingIndex(scq.OgE(8, random_state=0).fit(X).encode(X), 8)
    with pytest.raises(ValueError, match="n_bits=9 and the index holds n_bits=8"):
        index.search_asymmetric(scq.OgE(9, random_state=0).fit(X), X[:2], 3)


@pytest.mark.parametrize("encoder", [scq.OgE(8), scq.SH(8), scq.SpH(8, random_state=0)])
def test_encoders_without_a_linear_map_have_no_fingerprint(encoder):
    X = rows(300)
    codes = scq.OgE(8, random_state=0).fit(X).encode(X)
    if not isinstance(encoder, scq.OgE):
        encoder.fit(X)
    with pytest.raises((TypeError, ValueError), match=rf"{type(encoder).__name__}.*fitted linear encoder"):
        HammingIndex(codes, 8, encoder=encoder)


def test_imported_encoders_know_no_mean():
    faiss = pytest.importorskip("faiss")
    X = rows(500)
    source = faiss.index_factory(24, "ITQ16,LSH")
    source.train(X)
    encoder = scq.from_faiss(source)
    index = HammingIndex(encoder.encode(X), 16, encoder=encoder)
    with pytest.raises(ValueError, match=r"ImportedEncoder does not know the mean.*metric='ip'.*metric='l2'"):
        index.search_asymmetric(encoder, X[:3], 5, metric="ip")
    assert index.search_asymmetric(encoder, X[:3], 5, metric="l2")[1].shape == (3, 5)
    assert index.search_asymmetric(encoder, X[:3], 5, metric="cosine")[1].shape == (3, 5)


@pytest.mark.parametrize("metric", ["L2", "dot", None, "euclidean"])
def test_unknown_metrics_are_told_the_known_ones(metric):
    X = rows(100)
    encoder = scq.OgE(8, random_state=0).fit(X)
    with pytest.raises(ValueError, match=r"metric=.* is not one of 'l2', 'cosine', 'ip'"):
        HammingIndex(encoder.encode(X), 8).search_asymmetric(encoder, X[:2], 3, metric=metric)
