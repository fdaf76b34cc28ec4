"""OPQ: codes, tables and files against a slow NumPy reference that knows nothing of the package."""

import json
import re
import warnings

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn_failures import EXPECTED_FAILURES
from threadpoolctl import threadpool_limits

import scq_gpu as scq
from scq_gpu.io import models
from scq_gpu.training import cells as training

METRICS = ("l2", "cosine", "ip")


def rows(n=1500, d=20, seed=0):
    """Clusters of different spread along mixed axes, off the origin."""
    rng = np.random.default_rng(seed)
    Y = rng.standard_normal((n, d)) + 2 * rng.standard_normal((8, d))[rng.integers(8, size=n)]
    return Y * np.linspace(2.0, 0.3, d) @ np.linalg.qr(rng.standard_normal((d, d)))[0] + rng.normal(size=d)


X = rows()


@pytest.fixture(scope="module")
def encoder():
    return scq.OPQ(n_bits=32, max_iter=3, random_state=0).fit(X)


# ---- the reference ----


def slow_parts(encoder, X):
    """Rows along the axes of each byte, one row at a time: (n, bytes, width)."""
    return np.array([[[axis @ (x - encoder.mean_) for axis in axes] for axes in encoder.axes_] for x in X])


def slow_squares(encoder, X):
    """Squared distances to every cell: (n, bytes, 256)."""
    return np.array(
        [
            [[((part - cell) ** 2).sum() for cell in cells] for part, cells in zip(parts, encoder.cells_, strict=True)]
            for parts in slow_parts(encoder, X)
        ]
    )


def slow_decode(encoder, codes):
    decoded = []
    for code in codes:
        x = np.array(encoder.mean_)
        for byte, number in enumerate(code):
            x = x + sum(c * axis for c, axis in zip(encoder.cells_[byte][number], encoder.axes_[byte], strict=True))
        decoded.append(x)
    return np.array(decoded)


def slow_distances(encoder, queries, codes, metric):
    """Distances to decoded rows: (q, n)."""
    decoded = slow_decode(encoder, codes)
    if metric == "ip":
        return np.array([[-(q @ x) for x in decoded] for q in queries])
    squares = np.array([[((q - x) ** 2).sum() for x in decoded] for q in queries])
    return squares / 2 if metric == "cosine" else squares


# ---- what codes and tables are ----


def test_codes_are_the_nearest_cells(encoder):
    codes = encoder.encode(X)
    assert codes.shape == (1500, 4)
    assert codes.dtype == np.uint8
    np.testing.assert_array_equal(codes[:60], slow_squares(encoder, X[:60]).argmin(axis=2))
    assert len(np.unique(codes[:, 0])) > 100


def test_decode_adds_the_mean_and_the_cells(encoder):
    codes = encoder.encode(X[:50])
    decoded = encoder.decode(codes)
    np.testing.assert_allclose(decoded, slow_decode(encoder, codes), rtol=1e-12, atol=1e-12)
    assert ((X[:50] - decoded) ** 2).sum() < 0.3 * ((X[:50] - X.mean(axis=0)) ** 2).sum()


@pytest.mark.parametrize("metric", METRICS)
def test_tables_add_up_to_distances_to_decoded_rows(encoder, metric):
    queries, codes = rows(9, seed=7), encoder.encode(X[:40])
    tables, base = encoder.query_tables(queries, metric)
    assert (tables.shape, base.shape) == ((9, 4, 256), (9,))
    assert tables.dtype == base.dtype == np.float32
    sums = base[:, None] + sum(tables[:, byte, codes[:, byte]] for byte in range(4))
    np.testing.assert_allclose(sums, slow_distances(encoder, queries, codes, metric), rtol=2e-5, atol=2e-4)


def test_tables_of_l2_are_the_squares_along_the_axes_of_a_byte(encoder):
    queries = rows(5, seed=8)
    tables, base = encoder.query_tables(queries)
    np.testing.assert_allclose(tables, slow_squares(encoder, queries), rtol=1e-5, atol=1e-5)
    outside = ((queries - encoder.mean_) ** 2).sum(axis=1) - (slow_parts(encoder, queries) ** 2).sum(axis=(1, 2))
    np.testing.assert_allclose(base, outside, atol=1e-5)
    assert (tables >= 0).all()
    assert (base >= 0).all()


@pytest.mark.parametrize("metric", METRICS)
def test_few_queries_have_the_tables_of_many(encoder, metric):
    """Few of NumPy take a shorter way."""
    queries = rows(90, seed=7)
    tables, base = encoder.query_tables(queries, metric)
    for few in (slice(0, 1), slice(5, 40)):
        some, some_base = encoder.query_tables(queries[few], metric)
        np.testing.assert_allclose(some, tables[few], rtol=1e-6, atol=1e-5)
        np.testing.assert_allclose(some_base, base[few], rtol=1e-6, atol=1e-5)
    with pytest.raises(ValueError, match="X has 19 features, but OPQ is expecting 20"):
        encoder.query_tables(queries[:1, 1:], metric)


def test_an_unknown_metric_is_named(encoder):
    with pytest.raises(ValueError, match=r"metric.*'hamming'"):
        encoder.query_tables(X[:2], "hamming")


def test_groups_of_sixteen_are_near_each_other():
    """The nibbles are worth a search: cells of one group are nearer than cells at random."""
    encoder = scq.OPQ(16, random_state=0).fit(rows(4000, 8))
    for cells in encoder.cells_:
        within = cells.reshape(16, 16, -1).var(axis=1).sum(axis=-1).mean()
        assert within < 0.5 * cells.var(axis=0).sum()


# ---- what a fit does ----


@pytest.mark.parametrize("n_bits", [8, 24, 64])
def test_axes_are_orthonormal_and_unused_ones_zero(n_bits):
    encoder = scq.OPQ(n_bits, max_iter=4, random_state=1).fit(X)
    width = {8: 16, 24: 7, 64: 3}[n_bits]
    assert encoder.axes_.shape == (n_bits // 8, width, 20)
    axes = encoder.axes_.reshape(-1, 20)
    used = (axes != 0).any(axis=1)
    assert used.sum() == min(20, 2 * n_bits)
    np.testing.assert_allclose(axes[used] @ axes[used].T, np.eye(used.sum()), atol=1e-12)
    assert not encoder.cells_.transpose(0, 2, 1).reshape(-1, 256)[~used].any()


def slow_loss(encoder, X, nu):
    """Both terms of the loss, for the codes of `encode` and groups at the means of their rows."""
    codes, parts = encoder.encode(X), slow_parts(encoder, X)
    loss = ((X - encoder.mean_) ** 2).sum() - (parts**2).sum()
    loss *= 1 + nu
    for byte, cells in enumerate(encoder.cells_):
        loss += sum(
            ((part - cells[code]) ** 2).sum() for part, code in zip(parts[:, byte], codes[:, byte], strict=True)
        )
        for group in range(16):
            members = parts[codes[:, byte] // 16 == group, byte]
            loss += nu * ((members - members.mean(axis=0)) ** 2).sum() if len(members) else 0
    return loss / len(X)


@pytest.mark.parametrize(("n_bits", "leap"), [(8, 0.8), (32, 0.8), (32, 30.0)])
def test_the_loss_never_rises_and_is_that_of_both_terms(n_bits, leap, monkeypatch):
    """With a leap of 30, rounds have to be taken back."""
    monkeypatch.setattr(training, "LEAP", leap)
    seen = []
    encoder = scq.OPQ(n_bits, max_iter=15, random_state=0, callback=lambda *args: seen.append(args)).fit(X)
    assert encoder.n_iter_ == len(encoder.loss_curve_) == 15
    assert (np.diff(encoder.loss_curve_) <= 0).all()
    assert encoder.loss_curve_[-1] < (0.9995 if n_bits == 8 else 0.99) * encoder.loss_curve_[0]
    if leap > 1:
        assert (np.diff(encoder.loss_curve_) == 0).any()
    assert [number for number, _, _ in seen] == list(range(1, 16))
    assert [loss for _, loss, _ in seen] == encoder.loss_curve_
    # codes are those before the last V, so the loss of new ones is a little less
    assert encoder.loss_curve_[-1] == pytest.approx(slow_loss(encoder, X, 0.1), rel=0.01)
    assert encoder.loss_curve_[-1] != pytest.approx(slow_loss(encoder, X, 0.0), rel=0.05)
    shown = seen[3][2]
    assert seen[3][1] == pytest.approx(slow_loss(shown, X, 0.1), rel=0.03)


def test_groups_are_tighter_with_their_own_term(monkeypatch):
    """The term is what a search by groups lives on, so it must do something."""
    scatter = []
    for nu in (0.0, 1.0):
        monkeypatch.setattr(training, "NU", nu)
        monkeypatch.setattr("scq_gpu.encoders.opq.NU", nu)
        encoder = scq.OPQ(16, max_iter=20, random_state=0).fit(X)
        scatter.append(slow_loss(encoder, X, 1.0) - slow_loss(encoder, X, 0.0))
    assert scatter[1] < 0.98 * scatter[0]


def test_a_rotation_is_learned():
    losses = scq.OPQ(16, max_iter=30, random_state=0).fit(X).loss_curve_
    assert losses[-1] < 0.97 * losses[0]


def test_a_sample_comes_first_where_rows_are_many(monkeypatch):
    """Three rounds over all rows from the start end higher than twenty over a sample and one over all."""
    at_once = scq.OPQ(32, max_iter=3, random_state=0).fit(X).loss_curve_[-1]
    monkeypatch.setattr("scq_gpu.encoders.opq.START_ROWS", 1400)
    assert scq.OPQ(32, max_iter=1, random_state=0).fit(X).loss_curve_[-1] < at_once


def test_the_seed_decides():
    first, again, other = (scq.OPQ(16, max_iter=2, random_state=seed).fit(X).encode(X) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_codes_do_not_depend_on_the_number_of_threads():
    many = rows(20_000, 40).astype(np.float32)  # a sample comes first, and there are several blocks
    codes = []
    for count in (1, 2, 4):
        with threadpool_limits(count, user_api="blas"):
            codes.append(scq.OPQ(32, max_iter=2, random_state=0).fit(many).encode(many))
    np.testing.assert_array_equal(codes[0], codes[1])
    np.testing.assert_array_equal(codes[0], codes[2])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("offset", [0, 1e6])
def test_a_row_has_one_code_alone_or_among_others(dtype, offset):
    Y = (rows(1000, 50, seed=3) + offset).astype(dtype)
    encoder = scq.OPQ(64, max_iter=2, random_state=0).fit(Y)
    whole = encoder.encode(Y)
    for size in (1, 7, 100, 129):
        parts = [encoder.encode(Y[i : i + size]) for i in range(0, min(1000, 150 * size), size)]
        found = np.concatenate(parts)
        np.testing.assert_array_equal(found, whole[: len(found)])
    np.testing.assert_array_equal(encoder.encode(Y[::-1]), whole[::-1])


# ---- kinds of rows ----


def test_backends_agree(backend):
    encoder = scq.OPQ(24, max_iter=3, random_state=0).fit(backend.array(X))
    codes = encoder.encode(backend.array(X))
    tables, base = encoder.query_tables(backend.array(X[:3]))
    decoded = encoder.decode(codes)
    arrays = [getattr(encoder, name) for name in encoder._fitted_arrays]
    assert all(backend.owns(x) for x in (codes, tables, base, decoded, *arrays))
    expected = scq.OPQ(24, max_iter=3, random_state=0).fit(X)
    agree = (backend.host(codes) == expected.encode(X)).mean()
    # a rounded sum can send a row to another cell, and others after it; float32 more easily than float64
    assert agree > (0.999 if backend.has_float64 else 0.2)
    loss = encoder.loss_curve_[-1]
    np.testing.assert_allclose(loss, expected.loss_curve_[-1], rtol=1e-6 if backend.has_float64 else 0.03)


def test_an_encoder_follows_rows_to_another_backend(backend, encoder):
    codes = encoder.encode(backend.array(X))
    assert backend.owns(codes)
    assert (backend.host(codes) == encoder.encode(X)).mean() > 0.999
    tables, base = encoder.query_tables(backend.array(X[:3]), "ip")
    expected, expected_base = encoder.query_tables(X[:3], "ip")
    np.testing.assert_allclose(backend.host(tables), expected, atol=1e-4)
    np.testing.assert_allclose(backend.host(base), expected_base, atol=1e-4)
    np.testing.assert_allclose(backend.host(encoder.decode(codes)), encoder.decode(backend.host(codes)), atol=1e-4)


def test_files_and_lists_of_rows_give_the_codes_of_arrays(tmp_path):
    np.save(tmp_path / "x.npy", X)
    source = scq.io.open_rows(tmp_path / "x.npy")
    expected = scq.OPQ(16, max_iter=2, random_state=0).fit(X)
    for kind in (source, [X[:700], X[700:]]):
        encoder = scq.OPQ(16, max_iter=2, random_state=0).fit(kind)
        np.testing.assert_array_equal(encoder.encode(kind), expected.encode(X))
    encoder = scq.OPQ(16, max_iter=2, random_state=0).fit(iter([X[:700], X[700:]]))
    assert (encoder.n_samples_, encoder.n_samples_kept_) == (1500, 1500)
    np.testing.assert_array_equal(np.load(scq.encode_file(expected, source, tmp_path / "c.npy")), expected.encode(X))


def test_rows_that_are_read_in_every_pass(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", X)
    expected = scq.OPQ(16, max_iter=2, random_state=0).fit(X).encode(X)
    monkeypatch.setattr("scq_gpu.rows.blocks.worth_keeping", lambda n_bytes: False)
    source = scq.io.open_rows(tmp_path / "x.npy")
    assert (scq.OPQ(16, max_iter=2, random_state=0).fit(source).encode(source) == expected).mean() > 0.99


def test_invalid_rows_and_no_rows(encoder):
    bad = X[:5].copy()
    bad[3, 2] = np.nan
    with pytest.raises(ValueError, match="first NaN at row 3, column 2"):
        encoder.encode(bad)
    with pytest.warns(scq._core.validate.InvalidRowsWarning):
        assert encoder.encode(bad, on_invalid="skip").shape == (4, 4)
    with pytest.raises(ValueError, match="first NaN at row 3, column 2"):
        encoder.query_tables(bad)
    assert encoder.encode(X[:0]).shape == (0, 4)
    assert encoder.decode(encoder.encode(X[:0])).shape == (0, 20)
    tables, base = encoder.query_tables(X[:0])
    assert (tables.shape, base.shape) == ((0, 4, 256), (0,))


def test_codes_do_not_depend_on_a_power_of_two(encoder):
    for power in (-400, -60, 60, 400):
        scaled = clone(encoder).fit(X * 2.0**power)
        np.testing.assert_array_equal(scaled.encode(X * 2.0**power), encoder.encode(X))
    with pytest.raises(ValueError, match="overflows in query_tables"):
        scaled.query_tables(X[:2] * 2.0**400)


# ---- edge shapes ----


@given(n=st.integers(2, 40), d=st.integers(1, 12), n_bits=st.integers(1, 48), seed=st.integers(0, 99))
def test_any_shape_gives_codes_or_says_why_not(n, d, n_bits, seed):
    Y = np.random.default_rng(seed).standard_normal((n, d))
    try:
        encoder = scq.OPQ(n_bits, max_iter=2, random_state=0).fit(Y)
    except ValueError as error:
        assert n_bits % 8 or n_bits // 8 > min(n - 1, d)
        assert f"n_bits={n_bits}" in str(error)  # noqa: PT017
        return
    codes = encoder.encode(Y)
    assert codes.shape == (n, n_bits // 8)
    np.testing.assert_array_equal(encoder.encode(Y[:1]), codes[:1])
    assert (np.diff(encoder.loss_curve_) <= 1e-12).all()
    # with as many cells as rows, most rows have their own
    assert ((Y - encoder.decode(codes)) ** 2).sum() < 0.5 * ((Y - Y.mean(axis=0)) ** 2).sum() + 1e-12


def test_codes_longer_than_the_rank():
    """48 bits of rank 7: two axes in one byte, one in the others."""
    low = X[:, :7] @ np.random.default_rng(0).standard_normal((7, 30))
    encoder = scq.OPQ(48, random_state=0).fit(low)
    assert encoder.axes_.shape == (6, 2, 30)
    assert (encoder.axes_ != 0).any(axis=2).sum() == 7
    assert encoder.loss_curve_[-1] < 5e-3 * low.var(axis=0).sum()


def test_constant_axes_and_equal_rows():
    flat = np.concatenate([X[:300, :4], np.full((300, 3), 5.0)], axis=1)
    encoder = scq.OPQ(16, max_iter=3, random_state=0).fit(flat)
    decoded = encoder.decode(encoder.encode(flat))
    np.testing.assert_allclose(decoded[:, 4:], 5.0, atol=1e-9)
    with pytest.raises(ValueError, match="X has 100 equal rows: nothing to learn from"):
        scq.OPQ(8).fit(np.full((100, 16), 3.0))


def test_one_axis_is_split_into_256():
    line = np.random.default_rng(0).standard_normal((2000, 1))
    encoder = scq.OPQ(8, max_iter=30, random_state=0).fit(line)
    assert ((line - encoder.decode(encoder.encode(line))) ** 2).mean() < 2e-4
    assert encoder.loss_curve_[-1] < 2e-3  # groups are 16 times as wide
    with pytest.raises(ValueError, match=r"n_bits=16 makes 2 bytes .* more than the 1 dimensions left"):
        scq.OPQ(16).fit(line)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_bits": 12}, "n_bits=12 is not a multiple of 8.*n_bits=16"),
        ({"n_bits": 0}, "'n_bits' .* Got 0"),
        ({"max_iter": 0}, "'max_iter' .* Got 0"),
        ({"callback": 3}, "'callback' .* Got 3"),
    ],
)
def test_bad_parameters_are_named(parameters, message):
    with pytest.raises(ValueError, match=message):
        scq.OPQ(**parameters).fit(X)


@pytest.mark.parametrize(("shape", "dtype"), [((3, 5), np.uint8), ((3, 4), np.int64), ((3, 4, 1), np.uint8)])
def test_codes_that_do_not_fit_are_refused(encoder, shape, dtype):
    with pytest.raises(ValueError, match=r"OPQ\(n_bits=32\) decodes uint8 of shape \(n, 4\)"):
        encoder.decode(np.zeros(shape, dtype))


@parametrize_with_checks([scq.OPQ(n_bits=8, max_iter=2)], expected_failed_checks=lambda estimator: EXPECTED_FAILURES)
def test_estimator_checks(estimator, check):
    check(estimator)


# ---- model files and other software ----


def test_model_files_hold_all_of_an_encoder(encoder, tmp_path):
    encoder.save(tmp_path / "m.safetensors")
    loaded = scq.load(tmp_path / "m.safetensors")
    assert isinstance(loaded, scq.OPQ)
    assert loaded.get_params() == encoder.get_params()
    np.testing.assert_array_equal(loaded.encode(X), encoder.encode(X))
    for name in ("scale_", "loss_curve_", "n_iter_", "n_features_in_", "n_samples_"):
        assert getattr(loaded, name) == getattr(encoder, name)
    assert encoder.to("cpu") is encoder
    np.testing.assert_array_equal(loaded.to("cpu").query_tables(X[:2])[0], encoder.query_tables(X[:2])[0])
    encoder.device = None


@pytest.mark.parametrize("name", ["axes_", "cells_", "mean_"])
def test_model_files_that_do_not_fit_are_refused(encoder, tmp_path, name):
    path = tmp_path / "m.safetensors"
    encoder.save(path)
    arrays = safetensors.numpy.load(path.read_bytes())
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    header.pop("sha256")
    changes = [lambda x: x[:-1], lambda x: x[..., :-1], lambda x: x * np.nan, lambda x: (0 * x).astype(int)]
    for change in changes:
        changed = arrays | {name: np.ascontiguousarray(change(arrays[name]))}
        metadata = header | {"sha256": models.digest(changed, header)}
        path.write_bytes(safetensors.numpy.save(changed, metadata=metadata))
        with pytest.raises(scq.ModelFileError, match=f"{name}|width|shape"):
            scq.load(path)
    header["facts"] = header["facts"].replace('"n_bits": 32', '"n_bits": 31')
    metadata = header | {"sha256": models.digest(arrays, header)}
    path.write_bytes(safetensors.numpy.save(arrays, metadata=metadata))
    with pytest.raises(scq.ModelFileError, match="n_bits is 31, where a multiple of 8"):
        scq.load(path)


def test_faiss_gives_the_same_codes_and_distances():
    pytest.importorskip("faiss")
    encoder = scq.OPQ(56, max_iter=3, random_state=0).fit(X.astype(np.float32))  # groups of 2 and 3 axes
    index = encoder.to_faiss()
    index.add(X.astype(np.float32))
    codes = encoder.encode(X.astype(np.float32))
    assert (index.sa_encode(X.astype(np.float32)) == codes).mean() > 0.999
    queries = rows(20, seed=9).astype(np.float32)
    distances, ids = index.search(queries, 10)
    tables, _ = encoder.query_tables(queries)
    sums = sum(tables[:, byte, codes[:, byte]] for byte in range(7))
    np.testing.assert_allclose(np.take_along_axis(sums, ids, axis=1), distances, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(np.sort(sums, axis=1)[:, :10], distances, rtol=1e-4, atol=1e-3)


def test_what_needs_a_linear_map_to_bits_says_so(encoder):
    for name in ("transform", "fit_transform", "project", "to_onnx", "to_torch"):
        assert not hasattr(encoder, name)
    with pytest.raises(AttributeError, match=r"OPQ has no to_onnx: .* no linear map"):
        encoder.to_onnx()
    with pytest.raises(AttributeError, match="'OPQ' object has no attribute 'nothing'"):
        _ = encoder.nothing
    labels = np.zeros(1500, dtype=int)
    with pytest.raises(TypeError, match=r"OPQ have no Hamming distance.* without labels"):
        scq.evaluate(encoder, X[:10], X[10:], labels[:10], labels[10:])
    with pytest.raises(TypeError, match=r"OPQ.*Hamming"):
        scq.write_report("never.html", encoder, X)
    dask = pytest.importorskip("dask.array")
    with pytest.raises(TypeError, match="OPQ does not encode a Dask array"):
        encoder.encode(dask.from_array(X))
    with pytest.raises(TypeError, match="Dask array"), warnings.catch_warnings():
        encoder.fit(dask.from_array(X))


def test_evaluate_and_sweep_measure_recall_with_float_queries(encoder):
    queries, database = X[:200], X[200:]
    found = scq.evaluate(encoder, queries, database)
    decoded = slow_decode(encoder, encoder.encode(database))
    near, answer = (((queries[:, None] - Y) ** 2).sum(axis=2).argsort(axis=1) for Y in (database, decoded))
    shares = [
        np.mean([len({*a[:depth].tolist()} & {*b[:10].tolist()}) / 10 for a, b in zip(answer, near, strict=True)])
        for depth in (10, 100)
    ]
    assert (found.asymmetric_10_at_10, found.asymmetric_10_at_100) == pytest.approx(shares, abs=0.02)
    assert found.recall_10_at_10 is None
    assert found.rescored_16x > found.rescored_4x > found.asymmetric_10_at_10
    sweep = scq.sweep_bits(database, bits=(8, 32), encoder=scq.OPQ(max_iter=2, random_state=0))
    table = sweep.evaluate(queries, database)
    assert [row["n_bits"] for row in table] == [8, 32]
    assert table[1]["asymmetric_10_at_100"] > table[0]["asymmetric_10_at_100"] > 0.3


def test_a_bar_is_shown_where_asked(monkeypatch):
    shown = []
    monkeypatch.setattr("scq_gpu.encoders.base.tqdm", lambda x, desc, **options: shown.append(desc) or x)
    monkeypatch.setattr("scq_gpu.encoders.base._with_rows_per_second", lambda bar, n: bar)
    monkeypatch.setattr("scq_gpu.encoders.opq.START_ROWS", 600)
    scq.OPQ(16, max_iter=2, random_state=0, verbose=True).fit(X)
    assert [re.sub(r"^OPQ 16 bits, ", "", name) for name in shown] == ["sample", "passes"]
