"""Values at the edges of floats, rows far from the origin, and no rows at all: right codes, or one sentence."""

import functools
import warnings

import numpy as np
import pytest

import scq_gpu as scq
from scq_gpu.kernels import native

X = np.random.default_rng(0).standard_normal((300, 16))
ENCODERS = {
    "OnE": scq.OnE(8, max_iter=3, tol=0, random_state=0),
    "OgE": scq.OgE(8, max_iter=3, tol=0, random_state=0),
    "LSH": scq.LSH(8, random_state=0),
    "PCAH": scq.PCAH(8),
    "PCARR": scq.PCARR(8, random_state=0),
    "ITQ": scq.ITQ(8, random_state=0),
    "SH": scq.SH(8),
    "SpH": scq.SpH(8, random_state=0),
    "KMH": scq.KMH(8, max_iter=3, random_state=0),
    "BA": scq.BA(8, max_iter=3, random_state=0),
}
every = pytest.mark.parametrize("name", ENCODERS)
quietly = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def fitted(name, X):
    from sklearn.base import clone

    return clone(ENCODERS[name]).fit(X)


@functools.cache
def plain(name):
    return fitted(name, X)


@every
@quietly
@pytest.mark.parametrize("power", [-1000, -530, -480, 498, 505, 509, 1020])
def test_codes_do_not_depend_on_a_power_of_two_or_it_is_refused(name, power):
    scaled = X * 2.0**power
    codes, said = None, ""
    try:
        codes = fitted(name, scaled).encode(scaled)  # a warning would be an error here
    except ValueError as error:
        said = str(error)
    if codes is None:
        assert abs(power) > 450  # squares of these leave the range of float64
        assert any(word in said for word in ("overflows", "too small"))
    else:
        np.testing.assert_array_equal(codes, plain(name).encode(X))


@every
@quietly
@pytest.mark.parametrize("power", [-1000, 400, 505, 1015])
def test_huge_and_tiny_rows_for_an_encoder_of_others(name, power):
    encoder = plain(name)
    if name == "SpH" and power > 450:  # distances to its pivots are squares
        with pytest.raises(ValueError, match="X overflows in X @ pivots"):
            encoder.encode(X * 2.0**power)
    else:
        assert encoder.encode(X * 2.0**power).shape == (300, 1)


@every
@quietly
def test_equal_rows(name):
    for value in (0.0, 1.0, -1e9 / 3):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # no advice to iterate longer
            if name == "LSH":  # which learns no more than the mean
                if native.core is None and value < 0:
                    continue  # scores equal thresholds, and how BLAS rounds them depends on the place of a row
                assert len(np.unique(fitted(name, np.full((100, 16), value)).encode(np.full((9, 16), value)))) == 1
            else:
                with pytest.raises(ValueError, match="X has 100 equal rows: nothing to learn from"):
                    fitted(name, np.full((100, 16), value))


@every
@quietly
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_codes_do_not_depend_on_the_block_far_from_the_origin(name, dtype):
    rng = np.random.default_rng(1)
    X = (rng.standard_normal((1200, 300 if name == "SH" else 40)) + 1e6).astype(dtype)
    encoder = fitted(name, X[:400])
    whole = encoder.encode(X)
    for size in (1, 7, 100):
        parts = np.concatenate([encoder.encode(X[i : i + size]) for i in range(0, min(1200, 100 * size), size)])
        # rows within the rounding of a threshold may go either way; half of all rows did, for SH and KMH
        assert (parts != whole[: len(parts)]).any(axis=1).sum() <= 1


@every
@quietly
def test_no_rows(name, tmp_path):
    encoder = plain(name)
    nothing = np.zeros((0, 16), dtype=np.float32)
    np.save(tmp_path / "x.npy", nothing)
    source = scq.io.open_rows(tmp_path / "x.npy")
    for rows in (nothing, source, [nothing, nothing], [source, source], nothing.astype(int)):
        assert encoder.encode(rows).shape == (0, 1)
        assert encoder.encode(rows).dtype == np.uint8
        assert encoder.transform(rows).shape == (0, 8)
        assert encoder.encode(rows, on_invalid="skip").shape == (0, 1)
        with pytest.raises(ValueError, match="n_samples=0"):
            fitted(name, rows)
    codes = np.load(scq.encode_file(encoder, source, tmp_path / "c.npy"))
    assert (codes.shape, codes.dtype) == ((0, 1), np.uint8)
    if hasattr(encoder, "project"):
        assert encoder.project(nothing).shape == (0, 8)
    if isinstance(encoder, scq.encoders.base.LinearEncoder):
        out = np.empty((0, 1), dtype=np.uint8)
        assert encoder.encode(nothing, out=out) is out


def test_no_rows_on_any_backend(backend):
    rows = backend.array(X.astype(np.float32))
    encoder = scq.OgE(8, max_iter=2, tol=0, random_state=0).fit(rows)
    for answer, width in (
        (encoder.encode(rows[:0, :]), 1),
        (encoder.transform(rows[:0, :]), 8),
        (encoder.project(rows[:0, :]), 8),
    ):
        assert backend.owns(answer)
        assert tuple(answer.shape) == (0, width)


def test_an_empty_shard_among_others(tmp_path):
    for number, part in enumerate((X[:0], X[:100], X[:0], X[100:], X[:0])):
        np.save(tmp_path / f"part-{number}.npy", part)
    encoder = scq.LSH(8, random_state=0).fit(X)
    codes = np.load(scq.encode_file(encoder, tmp_path, tmp_path / "c.npy", block_rows=64))
    np.testing.assert_array_equal(codes, encoder.encode(X))


def test_vector_index_of_nothing():
    index = scq.VectorIndex(X, n_bits=8, random_state=0)
    before = len(index)
    assert len(index.add(X[:0])) == before
    d, ids = index.search(X[:0], 3)
    assert d.shape == ids.shape == (0, 3)
    assert index.search(X[:1], 1)[1][0, 0] == 0


def test_vector_index_with_the_last_ids_and_many_answers():
    index = scq.VectorIndex(X, n_bits=8, random_state=0, ids=np.append(np.arange(299), 2**63 - 2))
    assert index.add(X[:1]).search(X[:1], 301)[1].max() == 2**63 - 1
    with pytest.raises(ValueError, match="no ids are left"):
        index.add(X[:1])
    assert len(index) == 301
    d, ids = index.search(X[:2], 50_000)  # as many candidates as there are, not twenty times as many
    assert d.shape == ids.shape == (2, 50_000)
    assert (ids[:, 301:] == -1).all()
    with pytest.raises(ValueError, match=f"k={10**12} is far above the 301 codes"):
        index.search(X[:2], 10**12)


def test_neighbors_of_nothing():
    assert scq.metrics.exact_neighbors(X[:0], X, k=3).shape == (0, 3)
    assert scq.rescore(X[:0], X, np.zeros((0, 4), dtype=np.int64), metric="l2")[0].shape == (0, 4)
    codes = np.zeros((4, 1), dtype=np.uint8)
    with pytest.raises(ValueError, match="0 query codes"):  # a mean over no queries is no number
        scq.metrics.mean_average_precision(codes[:0], codes, np.zeros(0, int), np.zeros(4, int))
