"""Bad input gets an error that names the value, what was wanted and the cure."""

import importlib.util
import re
import warnings

import numpy as np
import pytest
import scipy.sparse

import scq_gpu as scq

GOOD = np.random.default_rng(0).standard_normal((40, 8))


def fit(X=GOOD, Encoder=scq.OgE, **parameters):
    return Encoder(**({"n_bits": 4, "random_state": 0, "max_iter": 3, "tol": 0} | parameters)).fit(X)


def with_value(value, row=17, column=5, dtype=np.float64):
    X = GOOD.astype(dtype)
    X[row, column] = value
    return X


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(("value", "name"), [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "inf")])
def test_nonfinite_names_row_and_column(value, name, dtype):
    where = re.escape(f"first {name} at row 17, column 5")
    with pytest.raises(ValueError, match=where):
        fit(with_value(value, dtype=dtype))
    encoder = fit()
    for method in (encoder.encode, encoder.transform, encoder.project):
        with pytest.raises(ValueError, match=where):
            method(with_value(value, dtype=dtype))


def test_nonfinite_in_a_later_block_is_counted_from_the_top():
    X = np.random.default_rng(0).random((200_000, 8), dtype=np.float32)
    encoder = fit(X)
    X[170_001, 3] = np.nan
    for call in (fit, encoder.encode):
        with pytest.raises(ValueError, match="row 170001, column 3"):
            call(X)


@pytest.mark.parametrize(
    ("X", "error", "message"),
    [
        (GOOD[0], ValueError, r"must have 2 dimensions, got 1 \(shape \(8,\)\).*reshape"),
        (GOOD[None], ValueError, r"must have 2 dimensions .*got 3"),
        (np.zeros((0, 8)), ValueError, "n_samples=0"),
        (np.zeros((8, 0)), ValueError, r"0 feature\(s\)"),
        (GOOD[:1], ValueError, "n_samples=1 .*minimum of 2"),
        (GOOD + 1j, ValueError, "Complex data not supported.*complex128"),
        (GOOD.astype(object), TypeError, "dtype object.*astype"),
        (GOOD.astype(str), TypeError, "not numeric"),
        (scipy.sparse.csr_matrix(GOOD), TypeError, "sparse.*toarray"),
        (np.ones((40, 8)), ValueError, "40 equal rows"),
        (np.full((40, 8), 0.1, dtype=np.float32), ValueError, "40 equal rows"),
    ],
)
def test_unusable_rows(X, error, message):
    with pytest.raises(error, match=message):
        fit(X)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_bits": 0}, r"'n_bits' parameter of OgE must be an int in the range \[1, inf\). Got 0 instead"),
        ({"n_bits": 2.5}, r"'n_bits' parameter of OgE must be an int .* Got 2.5 instead"),
        ({"n_bits": True}, r"'n_bits' parameter of OgE must be an int .* Got True instead"),
        ({"n_bits": 9}, "n_bits=9 exceeds the 8 dimensions left after PCA"),
        ({"n_bits": 4, "n_components": 3}, r"n_bits=4 exceeds the 3 dimensions.*raise n_components \(now 3\)"),
        ({"n_components": 0}, r"'n_components' parameter of OgE must be an int .*'auto'.* or None. Got 0 instead"),
        ({"scale": 0}, r"'scale' parameter of OgE must be a float in the range \(0.0, inf\).* Got 0 instead"),
        ({"scale": -1.0}, "'scale' parameter .* Got -1.0 instead"),
        ({"scale": float("inf")}, "'scale' parameter .* Got inf instead"),
        ({"scale": float("nan")}, "'scale' parameter .* Got nan instead"),
        ({"scale": "big"}, "'scale' parameter .* Got 'big' instead"),
        ({"ridge": -0.1}, "'ridge' parameter .* Got -0.1 instead"),
        ({"solver": "magic"}, "'solver' parameter of OgE must be a str among .*'joint'.* Got 'magic' instead"),
        (
            {"init": "zeros"},
            "'init' parameter of OgE must be a str among .*'longer_code'.* or an array-like. Got 'zeros' instead",
        ),
        ({"init": np.zeros((8, 3))}, r"init has shape \(8, 3\); it must be .* \(8, 4\)"),
        ({"init": np.ones((8, 4))}, "init has rank 1; its 4 columns must be linearly independent"),
        ({"init": np.full((8, 4), np.nan)}, "init contains NaN or inf, first nan at row 0, column 0"),
        ({"max_iter": 0}, "'max_iter' parameter .* Got 0 instead"),
        ({"tol": -1}, "'tol' parameter .* Got -1 instead"),
        ({"n_init": 0}, "'n_init' parameter .* Got 0 instead"),
        ({"device": "gpu"}, "device='gpu' is not one of None, 'cpu', 'cuda'"),
    ],
)
def test_bad_parameters_are_refused_by_name(parameters, message):
    with pytest.raises(ValueError, match=message):
        fit(**parameters)


def test_callback_must_be_callable():
    with pytest.raises(TypeError, match=r"'callback' parameter of OgE must be a callable or None. Got 3 instead"):
        fit(callback=3)


def test_constant_columns_and_duplicate_rows_are_fine():
    X = np.repeat(GOOD, 3, axis=0)
    X[:, 2] = 7.25
    encoder = fit(X)
    assert np.abs(encoder.components_[:, 2]).max() < 1e-12
    codes = encoder.encode(X)
    np.testing.assert_array_equal(codes[::3], codes[1::3])


@pytest.mark.parametrize("Encoder", [scq.OgE, scq.OnE])
def test_fewer_rows_than_components_warns_and_works(Encoder):
    with pytest.warns(UserWarning, match=r"\(5 rows, 8 features\) has rank 4: keeping 4 components of 8"):
        encoder = fit(GOOD[:5], Encoder, n_bits=3, n_components=8)
    assert len(encoder.eigenvalues_) == 4
    assert len(fit(GOOD[:5], Encoder, n_bits=3).eigenvalues_) == 4  # who asked for no number is not warned of it


def test_fewer_rows_than_bits_is_refused():
    with pytest.raises(ValueError, match="n_bits=4 exceeds the 3 dimensions left after PCA of 4 rows"):
        fit(GOOD[:4])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numerical_rank_is_found_and_said(dtype):
    rng = np.random.default_rng(1)
    X = (rng.standard_normal((300, 5)) @ rng.standard_normal((5, 20))).astype(dtype)
    with pytest.warns(UserWarning, match="has rank 5"):
        encoder = fit(X, n_components=None)
    assert encoder.eigenvalues_.shape == (5,)
    assert encoder.eigenvalues_.min() > 0


def test_float16_sums_do_not_overflow():
    """The sum of a column, and of squares, is far beyond float16's 65504."""
    X = (1000 + 100 * GOOD).repeat(50, axis=0).astype(np.float16)
    encoder = fit(X)
    np.testing.assert_allclose(encoder.mean_, X.astype(np.float64).mean(0), rtol=1e-5)
    assert np.isfinite(encoder.components_).all()
    np.testing.assert_array_equal(encoder.encode(X), encoder.encode(X.astype(np.float32)))


def test_float32_overflow_is_said_not_hidden():
    X = (GOOD * 1e25).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"), pytest.raises(ValueError, match=r"overflows.*Scale X down"):
        fit(X)


def test_wrong_number_of_features():
    with pytest.raises(ValueError, match="X has 5 features, but OgE is expecting 8 features"):
        fit().encode(GOOD[:, :5])


@pytest.mark.parametrize("method", ["encode", "transform", "project"])
def test_unfitted(method):
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError, match="OnE instance is not fitted yet"):
        getattr(scq.OnE(), method)(GOOD)
    with pytest.raises(NotFittedError):
        scq.OnE().save("never.safetensors")


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed")
def test_cuda_without_a_gpu_says_what_to_do_and_never_falls_back(tmp_path):
    message = r"device='cuda' is not usable: .*pip install \"scq-gpu\[cuda12\]\".*device='cpu'"
    with pytest.raises(RuntimeError, match=message):
        fit(device="cuda")
    encoder = fit()
    encoder.save(tmp_path / "m.safetensors")
    with pytest.raises(RuntimeError, match="device='cuda:3' is not usable"):
        encoder.to("cuda:3")
    with pytest.raises(RuntimeError, match=message):
        scq.load(tmp_path / "m.safetensors", device="cuda")
    assert isinstance(encoder.components_, np.ndarray)


def test_device_of_a_foreign_namespace_is_refused():
    strict = pytest.importorskip("array_api_strict")
    with pytest.raises(ValueError, match="cannot move arrays of array_api_strict; move X yourself"):
        fit(strict.asarray(GOOD), device="cpu")


def with_missing():
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pd.DataFrame((GOOD * 9).astype(int)).astype("Int64")
    frame.iloc[3, 2] = pd.NA
    return frame


STRANGE = {
    "masked": (lambda: np.ma.masked_array(GOOD, mask=GOOD > 1), ValueError, r"X has masked entries.*X\.filled\(0\)"),
    "masked rows": (lambda: list(np.ma.masked_array(GOOD, mask=GOOD > 1)), ValueError, "X has masked entries"),
    "masked parts": (lambda: [GOOD, np.ma.masked_array(GOOD, mask=GOOD > 1)], ValueError, r"masked entries"),
    "words": (lambda: np.array([["a", 1.0]] * 9, dtype=object), TypeError, "it holds 'a': fill in what is no number"),
    "missing values": (with_missing, TypeError, "it holds <NA>: fill in what is no number"),
}

if np.dtype(np.longdouble).itemsize > 8:
    STRANGE["longdouble"] = (
        lambda: GOOD.astype(np.longdouble),
        TypeError,
        r"wider than float64; pass X\.astype\(numpy\.float64\)",
    )


@pytest.mark.parametrize(("make", "error", "message"), STRANGE.values(), ids=STRANGE)
def test_arrays_without_a_value_everywhere(make, error, message):
    X = make()
    encoder = fit()
    for call in (fit, encoder.encode, lambda X: scq.VectorIndex(X, encoder=encoder)):
        with pytest.raises(error, match=message):
            call(X)


def test_a_masked_array_without_masked_entries_is_an_array():
    np.testing.assert_array_equal(fit().encode(np.ma.masked_array(GOOD)), fit().encode(GOOD))


def test_a_warning_of_convergence_does_not_contradict_itself():
    """The fall of a pass may be below tol, and the next one, which would confirm it, is not there any more."""
    X = np.random.default_rng(0).random((200, 16)) > 0.5
    said = []
    for max_iter in range(1, 30):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            scq.OgE(4, solver="joint", max_iter=max_iter, tol=0.02, random_state=0, preserve="classes").fit(X)
        said += [str(one.message) for one in found if "max_iter" in str(one.message)]
    falls = [float(re.search(r"last relative fall (\S+?)[,)]", text)[1]) for text in said]
    assert min(falls) < 0.02 < max(falls)
    for text, fall in zip(said, falls, strict=True):
        assert ("one more pass would have to confirm" in text) == (fall < 0.02)
        assert "before its loss was known to have settled" in text
