"""Data frames in and out, alone and in pipelines."""

import numpy as np
import pytest
import reference
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import scq_gpu as scq

NAMES = [f"pixel{k}" for k in range(64)]


def pandas_frame(X):
    return pytest.importorskip("pandas").DataFrame(X, columns=NAMES)


def polars_frame(X):
    return pytest.importorskip("polars").DataFrame(X, schema=NAMES)


FRAMES = {"pandas": pandas_frame, "polars": polars_frame}


@pytest.fixture(params=list(FRAMES))
def library(request):
    return request.param


@pytest.fixture
def X(digits):
    return digits[0][:600]


@pytest.fixture
def frame(library, X):
    return FRAMES[library](X)


def encoder(**changes):
    return scq.OgE(n_bits=5, n_components=32, init="pca", max_iter=3, tol=0, **changes)


def assert_nearly_equal(result, expected):
    """Frames hold columns, arrays rows: BLAS sums them in another order, and a fit can turn that into a few signs."""
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    assert (result != expected).mean() < 0.01


def renamed(frame, library):
    return frame.rename(columns={"pixel0": "other"}) if library == "pandas" else frame.rename({"pixel0": "other"})


def test_a_frame_is_its_numbers(frame, X):
    """The same map and codes as from the array, in its float32, with names kept."""
    plain, framed = encoder().fit(X), encoder().fit(frame)
    np.testing.assert_allclose(framed.components_, plain.components_, atol=1e-4, strict=True)
    assert framed.feature_names_in_.tolist() == NAMES
    W, t = framed.components_.T, framed.threshold_
    codes, signs, floats = framed.encode(frame), framed.transform(frame), framed.project(frame)
    assert type(codes) is type(signs) is type(floats) is np.ndarray
    reference.assert_same_codes(codes, X, W, t, 5)
    np.testing.assert_array_equal(scq.pack(signs), codes, strict=True)
    np.testing.assert_allclose(floats, X @ W - t, atol=1e-4, strict=True)


def test_columns_are_known_by_name(frame, library):
    fitted = encoder().fit(frame)
    with pytest.raises(ValueError, match="Feature names unseen at fit time:\n- other"):
        fitted.encode(renamed(frame, library))
    with pytest.raises(ValueError, match="must be in the same order"):
        fitted.project(frame[NAMES[::-1]])
    with pytest.raises(ValueError, match="Feature names seen at fit time, yet now missing"):
        fitted.transform(frame[NAMES[1:]])
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        fitted.encode(frame.to_numpy())


def test_one_library_fits_and_the_other_encodes(X):
    fitted = encoder().fit(pandas_frame(X))
    reference.assert_same_codes(fitted.encode(polars_frame(X)), X, fitted.components_.T, fitted.threshold_, 5)


def test_frames_of_integers(library, X):
    whole = X.astype(np.int16)
    frame = FRAMES[library](whole)
    assert_nearly_equal(encoder().fit_transform(frame), encoder().fit_transform(whole))


def test_names_survive_a_model_file(frame, library, tmp_path):
    encoder().fit(frame).save(tmp_path / "m.safetensors")
    loaded = scq.load(tmp_path / "m.safetensors")
    loaded.encode(frame)
    with pytest.raises(ValueError, match="feature names"):
        loaded.encode(renamed(frame, library))


@pytest.mark.parametrize("output", list(FRAMES))
def test_set_output(frame, X, output):
    """A frame of either library comes out, whichever went in; encode stays an array of bytes."""
    module = pytest.importorskip(output)
    fitted = encoder().set_output(transform=output).fit(frame)
    signs = fitted.transform(frame)
    assert isinstance(signs, module.DataFrame)
    assert list(signs.columns) == ["oge0", "oge1", "oge2", "oge3", "oge4"]
    assert_nearly_equal(signs.to_numpy(), encoder().fit_transform(X))
    assert type(fitted.encode(frame)) is np.ndarray


def test_pandas_index_is_kept(X):
    frame = pandas_frame(X).set_index(np.arange(600) * 7)
    signs = encoder().set_output(transform="pandas").fit_transform(frame)
    assert signs.index.equals(frame.index)


def test_pipeline_of_frames(frame, library, X):
    pipeline = make_pipeline(StandardScaler(), encoder()).set_output(transform=library)
    signs = pipeline.fit_transform(frame)
    assert type(signs).__module__.startswith(library)
    assert_nearly_equal(signs.to_numpy(), make_pipeline(StandardScaler(), encoder()).fit_transform(X))
    assert pipeline.get_feature_names_out().tolist() == list(signs.columns)


def test_column_transformer_picks_columns_by_name(frame, X):
    transformer = make_column_transformer((encoder(), NAMES[8:56]), remainder="drop")
    assert_nearly_equal(transformer.fit_transform(frame), encoder().fit_transform(X[:, 8:56]))


def test_grid_search_over_bits(digits, library):
    """Parameters are set by name, fits are clones, frames are cut into folds."""
    X, y = digits[0][:600], digits[1][:600]
    pipeline = make_pipeline(encoder(), KNeighborsClassifier(1, metric="hamming", algorithm="brute"))
    search = GridSearchCV(clone(pipeline), {"oge__n_bits": [1, 16]}, cv=3).fit(FRAMES[library](X), y)
    assert search.best_params_ == {"oge__n_bits": 16}


def test_missing_values_are_named_by_place(library, X):
    holes = X.astype(np.float64)
    holes[3, 2] = np.nan
    frame = FRAMES[library](holes)
    if library == "polars":
        frame = frame.fill_nan(None)
        assert frame["pixel2"].null_count() == 1
    with pytest.raises(ValueError, match="first NaN at row 3, column 2"):
        encoder().fit(frame)
    with pytest.raises(ValueError, match="first NaN at row 3, column 2"):
        encoder().fit(FRAMES[library](X)).encode(frame)


def test_columns_of_text_are_refused(frame, library):
    if library == "pandas":
        mixed = frame.assign(name="seven")
    else:
        mixed = frame.with_columns(pytest.importorskip("polars").lit("seven").alias("name"))
    with pytest.raises(TypeError, match="X has dtype object, which is not numeric"):
        encoder().fit(mixed)


def test_polars_column_of_embeddings(X):
    """One column of fixed-size arrays, as embeddings are often kept, is a matrix."""
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"embedding": X}, schema={"embedding": polars.Array(polars.Float32, 64)})
    assert_nearly_equal(encoder().fit_transform(frame["embedding"].to_numpy()), encoder().fit_transform(X))
