"""The baselines: one interface over all methods and backends."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import DH, UHBDNN
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn_failures import EXPECTED_FAILURES

import scq_gpu as scq

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

METHODS = {
    "LSH": scq.LSH(n_bits=12, random_state=3),
    "PCAH": scq.PCAH(n_bits=12),
    "PCARR": scq.PCARR(n_bits=12, random_state=3),
    "ITQ": scq.ITQ(n_bits=12, max_iter=10, random_state=3),
    "SH": scq.SH(n_bits=12),
    "SpH": scq.SpH(n_bits=12, random_state=3),
    "KMH": scq.KMH(n_bits=12, bits_per_subspace=2, random_state=3),
    "BA": scq.BA(n_bits=12, random_state=3),
    "BA-long": scq.BA(n_bits=14, random_state=3),
    "DH": DH(n_bits=12, hidden=(16, 14), learning_rate=0.01, max_iter=8, tol=0, random_state=3),
    "UHBDNN": UHBDNN(n_bits=12, hidden=(16, 14), lbfgs_iter=20, max_iter=3, tol=0, random_state=3),
}
LINEAR = ["LSH", "PCAH", "PCARR", "ITQ", "BA", "BA-long"]
SEEDED = ["LSH", "PCARR", "ITQ", "SpH", "KMH", "BA", "UHBDNN"]


@pytest.fixture(params=METHODS)
def method(request):
    return clone(METHODS[request.param])


def rows(n=400, d=20, seed=0):
    """Rows of different spread along mixed axes, off the origin."""
    rng = np.random.default_rng(seed)
    scales = np.linspace(2.0, 0.3, d)
    return rng.standard_normal((n, d)) * scales @ np.linalg.qr(rng.standard_normal((d, d)))[0] + rng.normal(size=d)


X = rows()


def bits_of(codes, n_bits):
    return np.unpackbits(codes, axis=1, bitorder="little")[:, :n_bits]


@parametrize_with_checks(
    [
        scq.LSH(n_bits=1),
        scq.PCAH(n_bits=1),
        scq.PCARR(n_bits=1),
        scq.ITQ(n_bits=1, max_iter=3),
        scq.SH(n_bits=1),
        scq.SpH(n_bits=1),
        scq.KMH(n_bits=2, bits_per_subspace=2, max_iter=3),
        scq.BA(n_bits=1, max_iter=3),
        DH(n_bits=1, hidden=(3,), max_iter=3, random_state=0),
        UHBDNN(n_bits=1, hidden=(3,), max_iter=2, lbfgs_iter=3, random_state=0),
    ],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_estimator_checks(estimator, check):
    check(estimator)


def test_backends_agree(backend, method):
    encoder = clone(method).fit(backend.array(X))
    codes = encoder.encode(backend.array(X))
    assert backend.owns(codes)
    assert all(backend.owns(getattr(encoder, name)) for name in encoder._fitted_arrays)
    expected = bits_of(clone(method).fit(X).encode(X), method.n_bits)
    found = bits_of(backend.host(codes), method.n_bits)
    # a rounded sum can send a step of a discrete search another way; float32 more easily than float64
    assert (found == expected).mean() > (0.999 if backend.has_float64 else 0.9)
    signs = backend.host(encoder.transform(backend.array(X)))
    assert signs.dtype == np.int8
    np.testing.assert_array_equal(signs, 2 * found.astype(np.int8) - 1)
    if hasattr(encoder, "project"):
        np.testing.assert_array_equal(backend.host(encoder.project(backend.array(X))) >= 0, found == 1)


def test_an_encoder_follows_rows_to_another_backend(backend, method):
    encoder = method.fit(X)
    codes = encoder.encode(backend.array(X))
    assert backend.owns(codes)
    expected = encoder.encode(X.astype(np.float32) if not backend.has_float64 else X)
    assert (bits_of(backend.host(codes), 12) == bits_of(expected, 12)).mean() > 0.999


@settings(max_examples=60)
@given(
    name=st.sampled_from(sorted(METHODS)),
    n=st.integers(2, 40),
    d=st.integers(1, 12),
    n_bits=st.integers(1, 20),
    seed=st.integers(0, 99),
)
def test_any_shape_gives_codes_or_says_why_not(name, n, d, n_bits, seed):
    encoder = clone(METHODS[name]).set_params(n_bits=n_bits)
    Y = np.random.default_rng(seed).standard_normal((n, d))
    try:
        encoder.fit(Y)
    except ValueError as error:
        rank = min(n - 1, d)
        limit = 2 * rank if name == "KMH" else rank
        assert n_bits > limit or (name == "KMH" and n_bits % 2)
        assert f"n_bits={n_bits}" in str(error)  # noqa: PT017
        assert name not in ("LSH", "SH", "SpH", "DH")
        return
    codes = encoder.encode(Y)
    assert codes.shape == (n, -(-n_bits // 8))
    np.testing.assert_array_equal(scq.unpack(codes, n_bits), encoder.transform(Y))
    np.testing.assert_array_equal(scq.pack(encoder.transform(Y)), codes)  # padding is 0
    assert encoder.get_feature_names_out().shape == (n_bits,)
    np.testing.assert_array_equal(encoder.encode(Y[:1]), codes[:1])


def test_model_files_hold_all_of_an_encoder(method, tmp_path):
    encoder = method.fit(X.astype(np.float32))
    encoder.save(tmp_path / "m.safetensors")
    loaded = scq.load(tmp_path / "m.safetensors")
    assert type(loaded) is type(encoder)
    assert loaded.get_params() == encoder.get_params()
    learned = {name for name in vars(encoder) if name.endswith("_") and not name.startswith("_")}
    assert learned == {*encoder._fitted_arrays, *encoder._fitted_facts}
    for name in encoder._fitted_arrays:
        np.testing.assert_array_equal(getattr(loaded, name), getattr(encoder, name), strict=True)
    for name in encoder._fitted_facts:
        assert getattr(loaded, name) == getattr(encoder, name)
    np.testing.assert_array_equal(loaded.encode(X), encoder.encode(X))
    moved = scq.load(tmp_path / "m.safetensors", device="cpu")
    assert moved.device == "cpu"
    np.testing.assert_array_equal(moved.encode(X), encoder.encode(X))


def test_device_cpu_gives_the_same_codes_back_in_place(backend, method):
    if backend.name == "array_api_strict":
        pytest.skip("its arrays cannot be moved by name")
    moved = clone(method).set_params(device="cpu").fit(backend.array(X))
    codes = moved.encode(backend.array(X))
    assert backend.owns(codes)
    np.testing.assert_array_equal(
        backend.host(codes), backend.host(method.fit(backend.array(X)).encode(backend.array(X)))
    )


@pytest.mark.parametrize("name", SEEDED)
def test_seeds(name):
    def codes(random_state):
        return clone(METHODS[name]).set_params(random_state=random_state).fit(X).encode(X)

    np.testing.assert_array_equal(codes(5), codes(5))
    np.testing.assert_array_equal(codes(np.random.default_rng(5)), codes(5))
    assert (codes(5) != codes(6)).any()


def test_a_list_of_parts_is_the_whole(method):
    whole = clone(method).fit(X)
    parts = clone(method).fit([X[:150], X[150:]])
    np.testing.assert_array_equal(parts.encode([X[:7], X[7:]]), whole.encode(X))


def test_rows_of_a_file_are_those_in_memory(method, tmp_path):
    np.save(tmp_path / "X.npy", X)
    source = scq.io.open_rows(tmp_path / "X.npy")
    whole = clone(method).fit(X)
    np.testing.assert_array_equal(clone(method).fit(source).encode(source), whole.encode(X))


def test_dask_arrays_are_encoded_but_not_fitted(method):
    dask_array = pytest.importorskip("dask.array", reason="arrays in chunks")
    chunked = dask_array.from_array(X, chunks=(150, 20))
    with pytest.raises(TypeError, match=r"X is a Dask array.*pass a part that fits in memory"):
        clone(method).fit(chunked)
    encoder = method.fit(X)
    if isinstance(encoder, scq.SpH):
        with pytest.raises(TypeError, match="SpH does not encode a Dask array"):
            encoder.encode(chunked)
        return
    np.testing.assert_array_equal(np.asarray(encoder.encode(chunked)), encoder.encode(X))
    np.testing.assert_array_equal(np.asarray(encoder.transform(chunked)), encoder.transform(X))


@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.uint8, np.int32])
def test_types_of_rows(method, dtype):
    Y = (10 * X + 40).clip(0, 120).astype(dtype)
    wide = Y.astype(np.float64 if dtype == np.int32 else np.float32)
    np.testing.assert_array_equal(clone(method).fit(Y).encode(Y), clone(method).fit(wide).encode(wide))


def test_rows_far_from_the_origin(method):
    """A mean of a thousand times the spread costs float32 some digits of a row, and few bits.

    Codes of its own, BA's and UHBDNN's, are a discrete search, which lost digits can send another way: how far depends
    on how a processor's BLAS rounds.
    """
    near = clone(method).fit(X)
    far = clone(method).fit((X + 1000).astype(np.float32))
    same = bits_of(near.encode(X), 12) == bits_of(far.encode((X + 1000).astype(np.float32)), 12)
    assert same.mean() > (0.8 if isinstance(method, scq.BA | UHBDNN) else 0.98)


@pytest.mark.parametrize(("value", "name"), [(np.nan, "NaN"), (-np.inf, "inf")])
def test_nonfinite_rows_are_named(method, value, name):
    bad = X.copy()
    bad[117, 5] = value
    where = re.escape(f"first {name} at row 117, column 5")
    with pytest.raises(ValueError, match=where):
        clone(method).fit(bad)
    encoder = method.fit(X)
    for call in (encoder.encode, encoder.transform, *([encoder.project] if hasattr(encoder, "project") else [])):
        with pytest.raises(ValueError, match=where):
            call(bad)


def test_a_failed_fit_leaves_the_encoder_as_it_was(method):
    encoder = method.fit(X)
    before = encoder.encode(X)
    with pytest.raises(ValueError, match="NaN"):
        encoder.fit(np.full((30, 20), np.nan))
    np.testing.assert_array_equal(encoder.encode(X), before)


def test_unfitted(method, tmp_path):
    for call in (lambda: method.encode(X), lambda: method.transform(X), lambda: method.save(tmp_path / "m")):
        with pytest.raises(NotFittedError, match=f"{type(method).__name__} instance is not fitted yet"):
            call()


def test_wrong_rows(method):
    with pytest.raises(ValueError, match="minimum of 2"):
        method.fit(X[:1])
    with pytest.raises(ValueError, match=r"must have 2 dimensions, got 1 \(shape \(20,\)\)"):
        method.fit(X[0])
    method.fit(X)
    with pytest.raises(ValueError, match="X has 19 features"):
        method.encode(X[:, 1:])


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"LSH", "SpH"}))
def test_equal_rows_have_no_principal_axes(name):
    with pytest.raises(ValueError, match="30 equal rows: nothing to learn from"):
        clone(METHODS[name]).fit(np.ones((30, 20)))


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        *((clone(METHODS[name]).set_params(n_bits=0), "'n_bits' parameter of .* Got 0") for name in METHODS),
        (scq.LSH(n_bits=2.5), "'n_bits' parameter of LSH must be an int .* Got 2.5"),
        (scq.LSH(device="tpu"), "device='tpu' is not one of"),
        (scq.PCAH(n_bits=21), r"n_bits=21 exceeds the 20 dimensions left after PCA of 400 rows .*; lower n_bits$"),
        (scq.ITQ(n_bits=21), r"n_bits=21 exceeds the 20 dimensions .*; lower n_bits$"),
        (scq.ITQ(n_bits=2, max_iter=0), r"'max_iter' parameter of ITQ must be an int in the range \[1, inf\)\. Got 0"),
        (scq.SpH(n_bits=2, max_iter=0), "'max_iter' parameter of SpH must be .* Got 0"),
        (scq.SpH(n_bits=2, tol=0), r"'tol' .* must be a float in the range \(0\.0, inf\)\. Got 0"),
        (scq.KMH(n_bits=8, bits_per_subspace=3), r"'bits_per_subspace' .* among \{8, 2, 4\}\. Got 3"),
        (scq.KMH(n_bits=9), "n_bits=9 is not a multiple of bits_per_subspace=4; .*n_bits=12"),
        (scq.KMH(n_bits=128), r"n_bits=128 makes 32 subspaces of 4 bits, more than the 20 dimensions left"),
        (scq.KMH(n_bits=8, n_components=1), r"makes 2 subspaces .*the 1 dimensions left .*\(now 1\)"),
        (scq.KMH(n_bits=8, n_components=None), "'n_components' .* must be an int .* Got None"),
        (scq.KMH(n_bits=8, affinity=-1), "'affinity' .* must be a float .* Got -1"),
        (scq.KMH(n_bits=8, tol=-1), "'tol' .* must be a float .* Got -1"),
        (scq.KMH(n_bits=8, max_iter=0), "'max_iter' .* must be an int .* Got 0"),
        (scq.BA(n_bits=4, n_components=3), r"n_bits=4 exceeds the 3 dimensions.*raise n_components \(now 3\)"),
        (scq.BA(n_bits=4, mu=0), r"'mu' .* must be a float in the range \(0\.0, inf\)\. Got 0"),
        (scq.BA(n_bits=4, growth=1), r"'growth' .* must be a float in the range \(1\.0, inf\)\. Got 1"),
        (scq.BA(n_bits=4, growth=float("inf")), "'growth' .* Got inf"),
        (scq.BA(n_bits=4, mu=True), "'mu' .* Got True"),
        (scq.ITQ(n_bits=2, max_iter=True), "'max_iter' .* Got True"),
        (scq.KMH(n_bits=8, bits_per_subspace=4.0), r"'bits_per_subspace' .* Got 4\.0"),
        (scq.BA(n_bits=4, max_iter=0), "'max_iter' .* must be an int .* Got 0"),
    ],
)
def test_bad_parameters(encoder, message):
    with pytest.raises(ValueError, match=message):
        encoder.fit(X)


@pytest.mark.filterwarnings("default::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (scq.SpH(n_bits=8, max_iter=2, random_state=0), "SpH stopped at max_iter=2 with overlaps .* of a quarter away"),
        (scq.KMH(n_bits=8, max_iter=2, tol=0, random_state=0), "KMH stopped at max_iter=2 before its loss settled"),
        (scq.BA(n_bits=8, max_iter=1, random_state=0), "BA stopped at max_iter=1 before its hash gave the codes"),
    ],
)
def test_a_fit_that_does_not_settle_says_so(encoder, message):
    with pytest.warns(ConvergenceWarning, match=message):
        encoder.fit(X)
    assert not encoder.converged_
    assert encoder.n_iter_ == encoder.max_iter


@pytest.mark.parametrize("name", [*LINEAR, "SpH"])
def test_levels_are_mean_projections_by_bit(name):
    encoder = clone(METHODS[name]).fit(X)
    P = encoder.project(X)
    expected = [[P[P[:, k] < 0, k].mean(), P[P[:, k] >= 0, k].mean()] for k in range(encoder.n_bits)]
    np.testing.assert_allclose(encoder.levels_, expected, rtol=1e-9)


def test_a_bit_that_is_always_one_has_a_level_for_it():
    encoder = scq.LSH(n_bits=1, random_state=0).fit(np.ones((4, 2)))
    assert np.isfinite(encoder.levels_).all()


@pytest.mark.parametrize("name", LINEAR)
def test_linear_maps(name):
    encoder = clone(METHODS[name]).fit(X)
    np.testing.assert_allclose(encoder.project(X), X @ encoder.components_.T - encoder.threshold_, atol=1e-12)
    np.testing.assert_allclose(encoder.mean_, X.mean(axis=0), atol=1e-12)
    index = scq.HammingIndex(encoder.encode(X), encoder.n_bits)
    _, ids = index.search_asymmetric(encoder, X[:50], k=5)
    assert ids.shape == (50, 5)


def test_evaluate(method):
    y = np.arange(400) % 4
    encoder = method.fit(X)
    figures = scq.evaluate(encoder, X[:50], X, y[:50], y, k=20)
    codes = encoder.encode(X[:50]), encoder.encode(X)
    assert figures.precision_at_k == scq.metrics.precision_at_k(*codes, y[:50], y, k=20)
    linear = hasattr(encoder, "components_")
    assert np.isfinite([figures.quantization_loss, figures.retained_variance]).tolist() == [linear, linear]
    spherical = scq.evaluate(encoder, X[:50], X, y[:50], y, k=20, distance="spherical")
    mAP = scq.metrics.mean_average_precision(*codes, y[:50], y, distance="spherical")
    assert spherical.mean_average_precision == mAP
    assert spherical.precision_at_radius == figures.precision_at_radius
    assert spherical.mean_average_precision != figures.mean_average_precision


def test_evaluate_more_bits_than_features():
    y = np.arange(400) % 4
    figures = scq.evaluate(scq.LSH(n_bits=24, random_state=0).fit(X), X[:50], X, y[:50], y)
    assert np.isnan(figures.retained_variance)
    assert figures.quantization_loss > 0
