"""Rows of unit length, block by block."""

import array_api_strict
import numpy as np
import pytest

import scq_gpu as scq
from scq_gpu.rows.changed import normalize_rows
from scq_gpu.rows.sources import ArrayRows, open_rows


def unit(X):
    X = np.asarray(X, dtype=np.float64)
    return X / np.sqrt((X**2).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int8, np.uint8, np.int32, np.int64])
@pytest.mark.parametrize("size", [1, 7, 40, 1000])
def test_blocks_are_rows_over_their_lengths(dtype, size):
    X = np.random.default_rng(0).uniform(1, 100, (40, 5)).astype(dtype)
    rows = normalize_rows(X)
    blocks = list(rows.blocks(size))
    assert [len(block) for block in blocks] == [min(size, 40 - i) for i in range(0, 40, size)]
    assert all(block.dtype == rows.dtype for block in blocks)
    assert np.dtype(rows.dtype).kind == "f"
    assert np.dtype(rows.dtype).itemsize >= 4  # float16 would lose the length
    np.testing.assert_allclose(np.concatenate(blocks), unit(X), rtol=1e-6)
    assert rows.shape == (40, 5)
    assert rows.sample().dtype == rows.dtype


def test_squares_of_narrow_integers_do_not_overflow():
    X = np.full((3, 4), 127, dtype=np.int8)
    np.testing.assert_allclose(next(iter(normalize_rows(X).blocks(3))), 0.5)
    X = np.full((3, 4), -128, dtype=np.int8)
    np.testing.assert_allclose(next(iter(normalize_rows(X).blocks(3))), -0.5)


def test_blocks_from_a_row_on():
    X = np.random.default_rng(0).standard_normal((20, 3))
    np.testing.assert_allclose(np.concatenate(list(normalize_rows(X).blocks(4, first=7))), unit(X)[7:])


@pytest.mark.parametrize("zero", [0, 6, 7, 19])
@pytest.mark.parametrize("first", [0, 5])
def test_zero_rows_are_located(zero, first):
    X = np.random.default_rng(0).standard_normal((20, 3))
    X[zero] = 0
    X[-1] = 0  # a later one is not the one to name
    named = zero if zero >= first else 19
    with pytest.raises(ValueError, match=rf"row {named}\b.* is zero .*metric='cosine'.*metric='l2'"):
        list(normalize_rows(X).blocks(7, first=first))


def test_zero_rows_of_files_are_located_there(tmp_path):
    X = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    X[13] = 0
    np.save(tmp_path / "a.npy", X[:10])
    np.save(tmp_path / "b.npy", X[10:])
    with pytest.raises(ValueError, match=r"row 3 of .*b\.npy.* is zero"):
        list(normalize_rows(open_rows([tmp_path / "a.npy", tmp_path / "b.npy"])).blocks(6))


def test_sources_and_namespaces(tmp_path):
    X = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    np.save(tmp_path / "x.npy", X)
    rows = normalize_rows(open_rows(tmp_path / "x.npy"))
    np.testing.assert_allclose(np.concatenate(list(rows.blocks(6))), unit(X), rtol=1e-6)
    assert all(facts["normalized"] for facts in rows.identity())
    strict = normalize_rows(array_api_strict.asarray(X))
    block = next(strict.blocks(20))
    assert type(block) is type(array_api_strict.asarray(X))
    np.testing.assert_allclose(np.from_dlpack(block), unit(X), rtol=1e-6)
    assert normalize_rows(ArrayRows(X, label="mine")).label == "mine"


def test_an_encoder_learns_the_same_from_them_as_from_normalized_rows():
    X = np.random.default_rng(0).standard_normal((300, 12)) * np.geomspace(1, 50, 300)[:, None] + 2
    lazily, beforehand = (scq.OgE(8, random_state=0).fit(rows) for rows in (normalize_rows(X), unit(X)))
    np.testing.assert_allclose(lazily.components_, beforehand.components_, atol=1e-8)
    np.testing.assert_array_equal(lazily.encode(normalize_rows(X)), beforehand.encode(unit(X)))


SIZES = {
    np.float32: [1e-45, 1e-39, 1e-30, 1e-19, 1.0, 1.8e19, 1e25, 1e38],
    np.float64: [1e-300, 1e-160, 1.0, 1e160, 1e307],
}


@pytest.mark.parametrize(("dtype", "size"), [(dtype, size) for dtype, sizes in SIZES.items() for size in sizes])
def test_rows_of_any_length_have_a_direction(dtype, size):
    """Squares of long rows overflow, and those of short ones vanish."""
    X = (np.sign(np.random.default_rng(0).standard_normal((20, 3))) * size).astype(dtype)
    X[3:] *= np.random.default_rng(1).choice([1, 0.5] if size > 1e-40 else [1], (17, 3))
    assert (X != 0).all()
    expected = unit(X.astype(np.float64) / float(np.abs(X.astype(np.float64)).max()))
    for rows in (X, array_api_strict.asarray(X)):
        block = np.asarray(np.from_dlpack(next(iter(normalize_rows(rows).blocks(20)))))
        np.testing.assert_allclose(block, expected, rtol=1e-6)


@pytest.mark.parametrize("size", [1e-40, 1e-25, 1e25])
def test_an_index_by_cosine_finds_rows_of_any_length(size):
    X = np.random.default_rng(0).standard_normal((200, 8))
    plain, scaled = (
        scq.VectorIndex(rows.astype(np.float32), n_bits=8, metric="cosine", random_state=0) for rows in (X, X * size)
    )
    np.testing.assert_array_equal(
        scaled.search((X[:9] * size).astype(np.float32), 5)[1], plain.search(X[:9].astype(np.float32), 5)[1]
    )
    near = scq.metrics.exact_neighbors(X[:9] * 1e200, (X * size).astype(np.float32), k=5, metric="cosine")
    np.testing.assert_array_equal(near, np.argsort(-unit(X[:9]) @ unit(X).T, axis=1)[:, :5])
    with pytest.raises(ValueError, match="row 2 of X_query is zero"):
        scq.metrics.exact_neighbors(X[:3] * [[1], [1], [0]], X, k=5, metric="cosine")
