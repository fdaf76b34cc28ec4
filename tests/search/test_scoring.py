"""Asymmetric distances against the formulas, written out in NumPy; with and without factors, on every engine."""

import array_api_strict
import numpy as np
import pytest
from native_engines import use_engine

import scq_gpu as scq
from scq_gpu._core.factors import join_factors, split_factors
from scq_gpu.search.index import HammingIndex
from scq_gpu.search.scoring import row_factors

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
        U, _, V = np.linalg.svd(self.u.T, full_matrices=False)
        self.frame = U @ V
        self.unit = 1 / np.sqrt((self.levels**2).mean() * len(self.levels))

    def coordinates(self, X):
        return X.astype(np.float64) @ self.u.T - self.offset

    def bits(self, X):
        return self.coordinates(X) >= 0

    def factors(self, X):
        """r and f, as they are stored: in the scale in which rows have length 1 on average, rounded to float16."""
        centred = X.astype(np.float64) - self.mean
        o = centred @ self.frame
        inside, S = (o**2).sum(1), (o * np.where(self.bits(X), 1, -1)).sum(1)
        outside, m = (centred**2).sum(1) - inside, np.pi / 2 * (self.levels**2).mean(1).sum()
        lost, tau = inside - S**2 / len(self.u), S**2 / (S**2 + 100 * inside)
        f = S / len(self.u) + tau * lost / S
        r = S**2 / len(self.u) + tau * lost + m * outside / (m + outside)
        return np.stack([r * self.unit**2, f * self.unit], axis=1).astype(np.float16)

    def distances(self, Q, bits, metric, factors=None):
        """(q, n), by the metric."""
        o, Q = self.coordinates(Q), Q.astype(np.float64)
        c = self.levels[np.arange(len(self.u)), bits.astype(int)]
        if factors is not None:
            r, f = factors.astype(np.float64).T / np.array([[self.unit**2], [self.unit]])
            b = np.where(bits, 1.0, -1.0)
        if metric == "ip":
            along = Q @ (self.u.T if factors is None else self.frame)
            inner = along @ c.T if factors is None else (along @ b.T) * f
            return -((Q @ self.mean)[:, None] + inner)
        if factors is None:
            d = ((o[:, None] - c[None]) ** 2).sum(2)
        else:
            d = ((Q - self.mean) ** 2).sum(1)[:, None] + r - 2 * f * ((Q - self.mean) @ self.frame @ b.T)
        return np.maximum(d / (2 if metric == "cosine" else 1), 0)


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
@pytest.mark.parametrize("factors", [False, True])
def test_distances_are_the_formulas(asarray, factors, metric, Encoder):
    X, Q = rows(), rows(9, seed=1)
    if metric == "cosine":
        X, Q = normalized(X), normalized(Q)
    encoder = Encoder(20, random_state=0) if Encoder is not scq.PCAH else Encoder(20)
    encoder.fit(X)
    formulas = Formulas(encoder)
    index = HammingIndex(asarray(encoder.encode(X, factors=factors)), 20)
    assert index.has_factors is factors
    stored = formulas.factors(X) if factors else None
    expected = formulas.distances(Q, formulas.bits(X), metric, stored)
    found = index.search_asymmetric(encoder, Q, 30, metric=metric)
    assert type(found[0]) is type(asarray(np.zeros(1, dtype=np.float32)))
    check(found, expected, 30)


@pytest.mark.parametrize("n_bits", [1, 7, 8, 9, 24])
@pytest.mark.parametrize("metric", METRICS)
def test_lengths_and_queries_of_other_namespaces(asarray, n_bits, metric):
    X, Q = rows(400).astype(np.float64), rows(5, seed=1).astype(np.float64)
    encoder = scq.OgE(n_bits, random_state=0).fit(X)
    formulas = Formulas(encoder)
    for factors in (False, True):
        index = HammingIndex(asarray(encoder.encode(X, factors=factors)), n_bits)
        expected = formulas.distances(Q, formulas.bits(X), metric, formulas.factors(X) if factors else None)
        check(index.search_asymmetric(encoder, asarray(Q), 11, metric=metric), expected, 11)


def test_engines_agree(monkeypatch):
    X, Q = rows(6000), rows(7, seed=1)
    encoder = scq.OgE(21, random_state=0).fit(X)
    for factors in (False, True):
        index = HammingIndex(encoder.encode(X, factors=factors), 21)
        for metric in METRICS:
            answers = []
            for engine in ("native", "numpy"):
                use_engine(engine, monkeypatch)
                answers.append(index.search_asymmetric(encoder, Q, 40, metric=metric))
            np.testing.assert_array_equal(answers[0][1], answers[1][1])
            np.testing.assert_allclose(answers[0][0], answers[1][0], rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("factors", [False, True])
def test_estimates_are_near_the_truth(metric, factors):
    """Not only what the formulas say: what they are for. Factors help where norms vary."""
    X, Q = rows(3000), rows(60, seed=1)
    if metric == "cosine":
        X, Q = normalized(X), normalized(Q)
    encoder = scq.OgE(24, random_state=0).fit(X)
    true = {
        "l2": ((Q[:, None] - X[None]) ** 2).sum(2),
        "cosine": 1 - Q @ X.T,
        "ip": -Q @ X.T,
    }[metric]
    d, ids = HammingIndex(encoder.encode(X, factors=factors), 24).search_asymmetric(encoder, Q, 3000, metric=metric)
    estimates = np.empty_like(true)
    np.put_along_axis(estimates, ids, d, axis=1)
    assert np.corrcoef(estimates.ravel(), true.ravel())[0, 1] > (0.85 if factors else 0.75)
    if factors:
        assert abs((estimates - true).mean()) < 0.5 * true.std()
        found = ids[:, :10]
        assert abs((d[:, :10] - np.take_along_axis(true, found, axis=1)).mean()) < 0.7 * true.std()


def test_frame_is_computed_once_for_a_map(monkeypatch):
    """Its SVD took three times as long as a search with 256 bits; a map that is changed in place has another frame."""
    X, counts, svd = rows(), [], np.linalg.svd
    encoder = scq.OgE(16, random_state=0).fit(X)
    monkeypatch.setattr(np.linalg, "svd", lambda *args, **kwargs: counts.append(1) or svd(*args, **kwargs))
    index = HammingIndex(encoder.encode(X, factors=True), 16)
    for _ in range(3):
        before = index.search_asymmetric(encoder, X[:5], 3)
    assert len(counts) == 1
    encoder.components_[:8] = encoder.components_[:8][::-1].copy()
    after = index.search_asymmetric(encoder, X[:5], 3)
    assert len(counts) == 2
    assert not np.array_equal(before[0], after[0])


@pytest.mark.parametrize("decay", [0.5, 0.7])
def test_rows_that_their_code_fits_badly_do_not_crowd_the_top(decay):
    """Short codes of unit rows with a spectrum: with f = |o|^2 / S one result in four was of the worst tenth."""
    axes = np.arange(1, 97) ** -decay
    unit = normalized(np.random.default_rng(0).standard_normal((4200, 96)) * axes).astype(np.float32)
    X, Q = unit[:4000], unit[4000:]
    encoder = scq.OgE(16, random_state=0).fit(X)
    formulas = Formulas(encoder)
    o = (X - formulas.mean) @ formulas.frame
    fits = (o * np.where(formulas.bits(X), 1, -1)).sum(1) ** 2 / (o**2).sum(1)
    badly = fits < np.quantile(fits, 0.1)
    true = np.argsort(-Q @ X.T, axis=1)[:, :10]
    recall = {}
    for factors in (False, True):
        index = HammingIndex(encoder.encode(X, factors=factors), 16)
        ids = index.search_asymmetric(encoder, Q, 100, metric="cosine")[1]
        recall[factors] = [(ids[:, :k, None] == true[:, None]).any(1).mean() for k in (10, 100)]
        assert badly[ids[:, :10]].mean() < 0.13
    assert recall[True][0] > recall[False][0] + 0.02
    assert recall[True][1] > recall[False][1] + 0.02


def test_rows_that_their_code_does_not_fit_at_all_lie_at_the_mean():
    """S = 0, or below where columns are far from orthogonal; f = |o|^2 / S would have no bound."""
    sums = np.array([[4.0, 1e-6, 4.0], [4.0, 0.0, 4.0], [4.0, -1.0, 4.0], [0.0, 0.0, 0.0], [4.0, 4.0, 4.0]])
    factors = row_factors(sums, 8).astype(np.float64)
    np.testing.assert_allclose(factors[:4], 0, atol=1e-6)
    assert (factors[4] > 0).all()


@pytest.mark.parametrize("outside", [1e-3, 1.0, 1e6, 1e30])
def test_what_is_outside_adds_at_most_what_is_inside_on_average(outside):
    (inside, f), (both, g) = row_factors(np.array([[1.0, 2.0, 1.0], [1.0, 2.0, 1.0 + outside]]), 8).astype(float)
    assert f == g
    assert 0.98 * min(outside, 1) / 2 <= both - inside <= 1.02 * min(outside, np.pi / 2) + 1e-3


def test_factors_are_little_endian_halves_in_the_last_four_bytes(asarray):
    X = rows(300)
    for n_bits in (3, 8, 20):
        encoder = scq.OgE(n_bits, random_state=0).fit(X)
        plain, wide = (host(encoder.encode(asarray(X), factors=factors)) for factors in (False, True))
        assert wide.shape == (300, -(-n_bits // 8) + 4)
        assert wide.dtype == np.uint8
        np.testing.assert_array_equal(wide[:, :-4], plain)
        stored = np.frombuffer(wide[:, -4:].tobytes(), dtype="<f2").reshape(300, 2)
        expected = Formulas(encoder).factors(X)
        np.testing.assert_allclose(stored.astype(float), expected.astype(float), rtol=2e-3)
        assert (stored == expected).mean() > 0.95  # the others were at the edge of rounding
        assert (stored >= 0).all()


def test_split_and_join_are_each_others_inverse(asarray):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (50, 3), dtype=np.uint8)
    factors = np.abs(rng.standard_normal((50, 2)) * 10.0 ** rng.integers(-4, 4, (50, 2))).astype(np.float16)
    factors[:4, 0] = 0, 65504, 6e-8, 1
    wide = join_factors(asarray(codes), factors)
    assert type(wide) is type(asarray(codes))
    np.testing.assert_array_equal(
        host(wide)[:, 3:], np.frombuffer(factors.astype("<f2").tobytes(), "u1").reshape(50, 4)
    )
    plain, split = split_factors(wide, 24)
    np.testing.assert_array_equal(host(plain), codes)
    np.testing.assert_array_equal(host(split).astype(np.float16), factors)
    assert split_factors(wide, 56)[1] is None  # just as wide as those bits take
    assert split_factors(asarray(codes), 24)[1] is None


def test_long_codes_taken_for_short_ones_with_factors_are_refused():
    """64 bits are as wide as 32 with factors: told apart by what the last four bytes can hold."""
    codes = np.random.default_rng(0).integers(0, 256, (500, 8), dtype=np.uint8)
    with pytest.raises(ValueError, match=r"n_bits=32.*factors"):
        HammingIndex(codes, 32)
    index = HammingIndex(codes[:, :4], 32)
    with pytest.raises(ValueError, match=r"n_bits=32.*factors"):
        index.add(codes)
    assert len(index) == 500


@pytest.mark.parametrize("far", [10.0, 300.0, 3e4, 1e7])
def test_rows_far_out_are_far(far):
    """Also those whose squared norm is beyond float16."""
    X = rows(400)
    encoder = scq.OgE(12, random_state=0).fit(X)
    mixed = X[:40].copy()
    mixed[:20] = encoder.mean_ + far * (mixed[:20] - encoder.mean_)
    mixed[20] = encoder.mean_
    wide = encoder.encode(mixed, factors=True)
    stored = np.frombuffer(wide[:, -4:].tobytes(), dtype="<f2").astype(float)
    assert np.isfinite(stored).all()
    assert (stored >= 0).all()
    d, ids = HammingIndex(wide, 12).search_asymmetric(encoder, X[40:60], 40)
    assert np.isfinite(d).all()
    assert (np.sort(ids[:, 20:], axis=1) == np.arange(20)).all()
    _, ids = HammingIndex(wide, 12).search_asymmetric(encoder, mixed[:1], 1, metric="ip")
    assert ids[0, 0] < 20


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("factors", [False, True])
def test_ties_go_to_the_lowest_id(asarray, metric, factors):
    X = rows(30)
    encoder = scq.OgE(8, random_state=0).fit(X)
    codes = np.repeat(encoder.encode(X[:1], factors=factors), 40, axis=0)
    ids = np.random.default_rng(0).permutation(40) * 3
    d, found = HammingIndex(asarray(codes), 8, ids=asarray(ids)).search_asymmetric(encoder, X[:2], 9, metric=metric)
    assert host(found).tolist() == [list(range(0, 27, 3))] * 2
    assert all(len(set(row)) == 1 for row in host(d).tolist())


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("factors", [False, True])
def test_distances_that_rounding_makes_equal_are_ordered_by_id(asarray, metric, factors):
    """A far query: all codes are about as far, to the digits of float32."""
    X = rows(800)
    encoder = scq.OgE(24, random_state=0).fit(X)
    index = HammingIndex(asarray(encoder.encode(X, factors=factors)), 24)
    Q = np.full((3, 24), 300.0, dtype=np.float32) * np.array([[1], [30], [1000]], dtype=np.float32)
    d, ids = (host(x) for x in index.search_asymmetric(encoder, Q, 800, metric=metric))
    assert (np.diff(d, axis=1) >= 0).all()
    same = np.diff(d, axis=1) == 0
    assert (np.diff(ids, axis=1)[same] > 0).all()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("factors", [False, True])
def test_more_wanted_than_there_are(asarray, metric, factors):
    X = rows(30)
    encoder = scq.OgE(8, random_state=0).fit(X)
    d, ids = HammingIndex(asarray(encoder.encode(X[:5], factors=factors)), 8).search_asymmetric(
        encoder, X[:2], 8, metric=metric
    )
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
    with pytest.raises(ValueError, match=r"ImportedEncoder does not know the mean.*factors"):
        encoder.encode(X, factors=True)
    index = HammingIndex(encoder.encode(X), 16, encoder=encoder)
    with pytest.raises(ValueError, match=r"ImportedEncoder does not know the mean.*metric='ip'.*metric='l2'"):
        index.search_asymmetric(encoder, X[:3], 5, metric="ip")
    assert index.search_asymmetric(encoder, X[:3], 5, metric="l2")[1].shape == (3, 5)
    assert index.search_asymmetric(encoder, X[:3], 5, metric="cosine")[1].shape == (3, 5)
    wide = join_factors(encoder.encode(X), np.ones((500, 2), dtype=np.float16))
    with pytest.raises(ValueError, match=r"ImportedEncoder does not know the mean.*factors"):
        HammingIndex(wide, 16).search_asymmetric(encoder, X[:3], 5)


@pytest.mark.parametrize("metric", ["L2", "dot", None, "euclidean"])
def test_unknown_metrics_are_told_the_known_ones(metric):
    X = rows(100)
    encoder = scq.OgE(8, random_state=0).fit(X)
    with pytest.raises(ValueError, match=r"metric=.* is not one of 'l2', 'cosine', 'ip'"):
        HammingIndex(encoder.encode(X), 8).search_asymmetric(encoder, X[:2], 3, metric=metric)


def test_out_takes_codes_with_factors():
    X = rows(100)
    encoder = scq.OgE(8, random_state=0).fit(X)
    out = np.zeros((100, 5), dtype=np.uint8)
    assert encoder.encode(X, factors=True, out=out) is out
    np.testing.assert_array_equal(out, encoder.encode(X, factors=True))
    with pytest.raises(ValueError, match=r"\(100, 5\)"):
        encoder.encode(X, factors=True, out=np.zeros((100, 1), dtype=np.uint8))
    with pytest.raises((TypeError, ValueError), match="uint8"):
        encoder.encode(X, factors=True, out=np.zeros((100, 5), dtype=np.float64))


def test_factors_of_rows_in_files_and_frames(tmp_path):
    X = rows(700)
    encoder = scq.OgE(8, random_state=0).fit(X)
    np.save(tmp_path / "x.npy", X)
    wide = encoder.encode(X, factors=True)
    np.testing.assert_array_equal(encoder.encode(scq.io.open_rows(tmp_path / "x.npy"), factors=True), wide)
    np.testing.assert_array_equal(encoder.encode([X[:300], X[300:]], factors=True), wide)
    np.testing.assert_array_equal(encoder.encode(X[5:6], factors=True), wide[5:6])
