"""Fits and codes from files and lists are those from memory, in bounded memory."""

import os
import re
import sys
import tracemalloc

import numpy as np
import pytest
from fake_gpu import EagerGpu
from measured_memory import measure, needs_peaks

import scq_gpu as scq
from scq_gpu._core import machine as _host_memory
from scq_gpu._core.validate import InvalidRowsWarning
from scq_gpu.io import RowFileError, open_rows
from scq_gpu.rows import blocks as rows

PARAMETERS = {"n_bits": 10, "max_iter": 6, "tol": 0, "random_state": 0}
FITTED = ("components_", "threshold_", "mean_", "eigenvalues_", "levels_")


def features(dtype=np.float64, n=5000, mean=3.0):
    rng = np.random.default_rng(1)
    mix = np.linalg.qr(rng.standard_normal((24, 24)))[0]
    return ((rng.standard_normal((n, 24)) * np.logspace(0, -1.5, 24)) @ mix + mean).astype(dtype)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 128 rows."""
    monkeypatch.setattr(rows, "block_bytes", lambda x: 0)


@pytest.fixture
def nothing_kept(monkeypatch, small_blocks):
    """Rows of files are read again in each pass, in small blocks."""
    monkeypatch.setattr(rows, "worth_keeping", lambda n_bytes: False)


def saved(path, X):
    np.save(path, X)
    return open_rows(path)


def in_parts(folder, X, cuts=(1, 700, 702, 3000)):
    for k, part in enumerate(np.split(X, cuts)):
        np.save(folder / f"part-{k}.npy", part)
    return open_rows(folder)


# ---- equality ----


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.uint8, np.int64])
@pytest.mark.parametrize("store", [saved, in_parts])
def test_kept_rows_give_the_very_same_encoder(tmp_path, small_blocks, dtype, store):
    X = (features() * 10 + 50).astype(dtype)
    source = store(tmp_path / "x.npy" if store is saved else tmp_path, X)
    expected, encoder = scq.OgE(**PARAMETERS).fit(X), scq.OgE(**PARAMETERS).fit(source)
    for name in FITTED:
        np.testing.assert_array_equal(getattr(encoder, name), getattr(expected, name), strict=True)
    assert encoder.loss_curve_ == expected.loss_curve_
    assert encoder.n_features_in_ == 24
    assert encoder.n_samples_ == 5000
    for method in ("encode", "transform", "project"):
        np.testing.assert_array_equal(getattr(encoder, method)(source), getattr(expected, method)(X), strict=True)


@pytest.mark.parametrize("Encoder", [scq.OgE, scq.OnE])
@pytest.mark.parametrize("parameters", [{}, {"n_init": 3}, {"init": "itq"}, {"n_components": 12, "scale": 2.5}])
def test_rows_that_are_read_again_give_the_same_encoder(tmp_path, nothing_kept, Encoder, parameters):
    X = features(mean=1000.0)
    expected = Encoder(**PARAMETERS | parameters).fit(X)
    encoder = Encoder(**PARAMETERS | parameters).fit(saved(tmp_path / "x.npy", X))
    for name in FITTED:
        np.testing.assert_allclose(getattr(encoder, name), getattr(expected, name), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(encoder.loss_curve_, expected.loss_curve_, rtol=1e-10)


@pytest.mark.parametrize("mean", [0, 1000])
def test_float32_rows_are_centred_before_they_are_multiplied(tmp_path, nothing_kept, mean):
    """A large mean costs no digits: as close to the fit in float64 as float32 rows that are kept."""
    X = features(np.float32, mean=mean)
    parameters = PARAMETERS | {"max_iter": 2, "init": "random"}
    encoder = scq.OgE(**parameters).fit(saved(tmp_path / "x.npy", X))
    exact = scq.OgE(**parameters).fit(X.astype(np.float64))
    assert encoder.components_.dtype == np.float32
    np.testing.assert_allclose(encoder.components_, exact.components_, atol=2e-5)
    np.testing.assert_allclose(encoder.levels_, exact.levels_, atol=2e-5)


def test_sign_statistics_by_the_book(tmp_path, nothing_kept):
    """Against the definition, written out: M = X'B / n over centred, projected, scaled rows."""
    from scq_gpu.rows.basis import compute_basis

    X = features()
    read = rows.Rows(saved(tmp_path / "x.npy", X))
    basis = compute_basis(read.moments(), n_bits=3, n_components=9, scale=0.7, eps=1e-16, xp=read.xp)
    projected = read.project(basis)
    assert isinstance(projected, rows.UnprojectedRows)
    assert projected.n == 5000
    V = np.random.default_rng(2).standard_normal((2, 9, 3))
    M, balance = projected.statistics(V)
    Y = 0.7 * (X - X.mean(0)) @ basis.P
    for r in range(2):
        B = np.where(Y @ V[r] >= 0, 1.0, -1.0)
        np.testing.assert_allclose(M[r], Y.T @ B / 5000, atol=1e-12)
        np.testing.assert_allclose(balance[r], B.mean(0), atol=1e-12)
    places = np.array([0, 1, 700, 4999])
    sample = projected.sample(places)
    np.testing.assert_allclose(np.concatenate(sample.kept), Y[places], atol=1e-12)
    np.testing.assert_allclose(np.concatenate(sample.project(V[0]).kept), Y[places] @ V[0], atol=1e-12)


@pytest.mark.parametrize("mean", [0.0, 100.0])
def test_samples_of_rows_that_are_not_projected(mean):
    """They stay rows; their statistics and projections are those of the coordinates they stand for."""
    from scq_gpu.rows.basis import compute_basis

    X = np.random.default_rng(0).standard_normal((900, 640)) * np.linspace(3, 0.5, 640) + mean
    read = rows.Rows(X)
    basis = compute_basis(read.moments(), n_bits=3, n_components=None, scale=0.7, eps=1e-16, xp=read.xp)
    projected = read.project(basis)
    assert projected.sample(np.arange(900)) is projected
    places = np.arange(1, 900, 7)
    sample = projected.sample(places)
    assert isinstance(sample, rows.UnprojectedRows)
    assert sample.n == len(places)
    V = np.random.default_rng(2).standard_normal((1, 640, 3))
    Y = 0.7 * (X - X.mean(0))[places] @ basis.P
    M = sample.statistics(V).M[0]
    np.testing.assert_allclose(M, Y.T @ np.where(Y @ V[0] >= 0, 1, -1) / len(places), atol=1e-10)
    np.testing.assert_allclose(np.concatenate(sample.project(np.eye(640)).kept), Y, atol=1e-10)
    np.testing.assert_allclose(np.concatenate(sample.project(V[0]).kept), Y @ V[0], atol=1e-10)


def test_such_a_sample_is_copied_once():
    from scq_gpu.rows.basis import compute_basis

    X = np.random.default_rng(0).standard_normal((12_000, 640), dtype=np.float32)
    read = rows.Rows(X)
    basis = compute_basis(read.moments(), n_bits=3, n_components=None, scale=1.0, eps=1e-7, xp=read.xp)
    projected = read.project(basis)
    tracemalloc.start()
    projected.sample(np.arange(10_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    size = X.nbytes * 10 / 12
    assert size <= peak < 1.5 * size


def test_lists_of_arrays_on_every_backend(backend):
    X = features(n=400).astype(np.float32)
    whole, parts = backend.array(X), [backend.array(X[:3]), backend.array(X[3:250]), backend.array(X[250:])]
    expected, encoder = scq.OgE(**PARAMETERS).fit(whole), scq.OgE(**PARAMETERS).fit(parts)
    np.testing.assert_array_equal(backend.host(encoder.components_), backend.host(expected.components_))
    assert encoder.n_features_in_ == 24
    codes = encoder.encode(tuple(parts))
    assert backend.owns(codes)
    np.testing.assert_array_equal(backend.host(codes), backend.host(expected.encode(whole)))


def test_lists_of_arrays_and_sources(tmp_path):
    X = features()
    parts = [X[:10], saved(tmp_path / "x.npy", X[10:4000]), X[4000:]]
    expected, encoder = scq.OgE(**PARAMETERS).fit(X), scq.OgE(**PARAMETERS).fit(parts)
    np.testing.assert_array_equal(encoder.components_, expected.components_)
    np.testing.assert_array_equal(encoder.encode(parts), expected.encode(X))


def test_a_list_of_rows_is_still_an_array():
    X = features(n=50)
    expected = scq.OgE(**PARAMETERS).fit(X)
    for rows_given in (X.tolist(), list(X), tuple(map(tuple, X.tolist()))):
        np.testing.assert_array_equal(scq.OgE(**PARAMETERS).fit(rows_given).components_, expected.components_)


def test_codes_of_a_source_stay_on_the_host(tmp_path):
    """Also where the encoder's own arrays are of another library."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    X = features(np.float32)
    source = saved(tmp_path / "x.npy", X)
    encoder = scq.OgE(**PARAMETERS).fit(torch.from_numpy(X))
    codes = encoder.encode(source)
    assert isinstance(codes, np.ndarray)
    np.testing.assert_array_equal(codes, encoder.encode(X))
    on_cpu = scq.OgE(device="cpu", **PARAMETERS).fit(source)
    np.testing.assert_array_equal(on_cpu.encode(source), scq.OgE(**PARAMETERS).fit(X).encode(X))


@pytest.mark.parametrize("free", [0, 1 << 30])
@pytest.mark.parametrize("kept", [False, True])
def test_files_through_a_gpu(tmp_path, monkeypatch, small_blocks, free, kept):
    X = features()
    source = in_parts(tmp_path, X)
    expected = scq.OgE(**PARAMETERS).fit(X)
    gpu = EagerGpu(free=free)
    monkeypatch.setattr(rows, "cuda_device_of", lambda x: gpu)
    monkeypatch.setattr(rows, "worth_keeping", lambda n_bytes: kept)
    monkeypatch.setattr(rows, "ordered_map", map)  # work on a GPU has an order: no threads share its buffers
    encoder = scq.OgE(**PARAMETERS).fit(source)
    np.testing.assert_allclose(encoder.components_, expected.components_, atol=1e-12)
    assert gpu.downloads == (0 if free else 80)  # blocks of 128 rows in host memory: projected, and for the start


# ---- bad input ----


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_bad_value_is_named_by_file_and_row(tmp_path, nothing_kept, value):
    X = features(np.float32)
    encoder = scq.OgE(**PARAMETERS).fit(X)
    X[2999, 7] = value
    source = in_parts(tmp_path, X)
    where = re.escape(f"row 2297 of {tmp_path}/part-3.npy (row 2999 of all), column 7")
    for call in (encoder.fit, encoder.encode, encoder.transform, encoder.project):
        with pytest.raises(ValueError, match=where):
            call(source)
    with pytest.raises(ValueError, match=re.escape("row 2989 of X[1] (row 2999 of all), column 7")):
        encoder.fit([X[:10], X[10:]])


def test_a_file_rewritten_during_a_fit_is_refused(tmp_path, nothing_kept):
    X = features(np.float32)
    source = saved(tmp_path / "x.npy", X)

    def rewrite(iteration, loss, encoder):
        if iteration == 2:
            np.save(tmp_path / "x.npy", 2 * X)
            os.utime(tmp_path / "x.npy", ns=(5, 5))

    with pytest.raises(RowFileError, match=r"x\.npy changed while it was in use \(480128 bytes.*start again"):
        scq.OgE(**PARAMETERS, callback=rewrite).fit(source)


def test_wrong_number_of_features(tmp_path):
    encoder = scq.OgE(**PARAMETERS).fit(features())
    with pytest.raises(ValueError, match="X has 23 features, but OgE is expecting 24 features"):
        encoder.encode(saved(tmp_path / "x.npy", features()[:, 1:]))
    with pytest.raises(ValueError, match="X has 23 features, but OgE is expecting 24 features"):
        encoder.encode([features()[:, 1:]] * 2)


def test_paths_are_opened(tmp_path):
    X, path = features(), tmp_path / "x.npy"
    np.save(path, X)
    expected = scq.OgE(**PARAMETERS).fit(scq.io.open_rows(path))
    for given in (path, str(path), tmp_path):
        np.testing.assert_array_equal(scq.OgE(**PARAMETERS).fit(given).components_, expected.components_)
    assert scq.OgE(**PARAMETERS).fit([path, str(path)]).n_samples_ == 2 * len(X)
    np.testing.assert_array_equal(expected.encode(path), expected.encode(X))


@pytest.mark.parametrize("kind", ["array", "file", "list", "array_api_strict"])
def test_invalid_rows_are_left_out_of_a_fit(tmp_path, kind):
    X = features()
    X[[0, 7, 8, len(X) - 1], 3] = np.nan, np.inf, np.nan, -np.inf
    expected = scq.OgE(**PARAMETERS).fit(X[np.isfinite(X).all(axis=1)])
    given = {
        "array": lambda: X,
        "file": lambda: saved(tmp_path / "x.npy", X),
        "list": lambda: [X[:8], X[8:]],
        "array_api_strict": lambda: pytest.importorskip("array_api_strict").asarray(X),
    }[kind]()
    with pytest.warns(InvalidRowsWarning, match="^4 of .* rows hold NaN or inf and were skipped: 0, 7, 8, ") as seen:
        encoder = scq.OgE(**PARAMETERS).fit(given, on_invalid="skip")
    assert seen[0].message.rows.tolist() == [0, 7, 8, len(X) - 1]
    assert seen[0].filename == __file__
    assert encoder.n_samples_ == len(X) - 4
    components = np.asarray(np.from_dlpack(encoder.components_))
    np.testing.assert_allclose(components, expected.components_, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="NaN at row 0"):
        scq.OgE(**PARAMETERS).fit(X)


def test_invalid_rows_that_cannot_be_left_out(tmp_path):
    X = features()
    np.testing.assert_array_equal(
        scq.OgE(**PARAMETERS).fit(X, on_invalid="skip").components_, scq.OgE(**PARAMETERS).fit(X).components_
    )
    with pytest.raises(ValueError, match="on_invalid='zero' is not one of 'raise', 'skip'"):
        scq.OgE(**PARAMETERS).fit(X, on_invalid="zero")
    with pytest.raises(TypeError, match="on_invalid='skip' with a generator"):
        scq.OgE(**PARAMETERS).fit((X[i : i + 9] for i in range(0, 90, 9)), on_invalid="skip")
    with pytest.raises(ValueError, match="n_samples=1"):
        scq.OgE(**PARAMETERS).fit(np.where(np.arange(len(X))[:, None] == 4, X, np.nan), on_invalid="skip")


def test_paths_and_lists_that_do_not_fit_together(tmp_path):
    encoder = scq.OgE(**PARAMETERS)
    with pytest.raises(FileNotFoundError, match=r"x\.npy does not exist"):
        encoder.fit("x.npy")
    with pytest.raises(ValueError, match=r"X\[1\] has 5 columns, but X\[0\] has 24"):
        encoder.fit([features(), features()[:, :5]])
    with pytest.raises(ValueError, match=r"X\[1\] must have 2 dimensions, got 1"):
        encoder.fit([features(), features()[0]])
    with pytest.raises(ValueError, match=r"X\[1\] must have 2 dimensions \(rows, features\), got 3"):
        encoder.fit([features(), features()[None]])
    with pytest.raises(TypeError, match=r"X\[1\] has dtype object"):
        encoder.fit([features(), features().astype(object)])
    with pytest.raises(ValueError, match=r"n_samples=1 .*minimum of 2"):
        encoder.fit(saved(tmp_path / "x.npy", features(n=1)))


# ---- memory ----


@pytest.mark.parametrize(
    ("n_bytes", "available", "kept"),
    [
        (512 << 20, None, True),
        ((512 << 20) + 1, None, False),
        (512 << 20, 2 << 30, True),
        (512 << 20, (2 << 30) - 8, False),
    ],
)
def test_the_rule_for_keeping_rows_of_files(monkeypatch, n_bytes, available, kept):
    monkeypatch.setattr(_host_memory, "available_bytes", lambda: available)
    assert _host_memory.worth_keeping(n_bytes) is kept


def test_a_copy_that_cannot_fit_is_refused(tmp_path, monkeypatch):
    X = features()
    monkeypatch.setattr(rows, "available_bytes", lambda: 5000 * 24 * 8 - 1)
    message = r"5,000 x 24 float64: 0.00 GB, and 0.00 GB are available.*open_rows.*float32.*n_components \(now 24\)"
    for given in (X, [X[:5], X[5:]]):
        with pytest.raises(MemoryError, match=message):
            scq.OgE(**PARAMETERS).fit(given)
    scq.OgE(**PARAMETERS, n_components=23).fit(X)
    scq.OgE(**PARAMETERS).fit(X.astype(np.float32))
    monkeypatch.setattr(rows, "available_bytes", lambda: None)  # unknown: no check
    scq.OgE(**PARAMETERS).fit(X)


def test_available_memory_heeds_machine_and_container(tmp_path, monkeypatch):
    free = _host_memory.available_bytes()
    if sys.platform.startswith("linux"):
        assert 0 < free <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    group = tmp_path / "a" / "b"
    group.mkdir(parents=True)
    (tmp_path / "a" / "memory.max").write_text("1000000\n")
    (tmp_path / "a" / "memory.current").write_text("700000\n")
    (tmp_path / "a" / "memory.stat").write_text("anon 1\nactive_file 20000\ninactive_file 30000\n")
    (group / "memory.max").write_text("max\n")
    monkeypatch.setattr(_host_memory, "_CGROUPS", tmp_path)
    assert _host_memory._bytes_left(tmp_path / "a") == 350_000
    assert _host_memory._bytes_left(group) is None
    assert _host_memory._bytes_left(tmp_path) is None


BOUNDED = """
import sys
import numpy as np
import scq_gpu as scq
from scq_gpu.rows import blocks as rows

parameters = dict(max_iter=2, tol=0, random_state=0)
warm = np.random.default_rng(0).standard_normal((4000, 256), dtype=np.float32)
scq.OgE(n_bits=8, **parameters).fit([warm]).encode(warm)
for path in sys.argv[1:]:
    source = scq.io.open_rows(path)
    for kept in (False, True):
        rows.worth_keeping = lambda n_bytes: kept
        fit, encoder = peak(lambda: scq.OgE(n_bits=16, **parameters).fit(source))
        encode, _ = peak(lambda: encoder.encode(source))
        print(fit, encode)
"""


@needs_peaks
def test_memory_of_a_fit_from_a_file_is_bounded(tmp_path):
    X = np.random.default_rng(0).integers(0, 5, size=(90_000, 256), dtype=np.uint8).astype(np.float32)
    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "x.npz", X=X)
    found = measure(BOUNDED, tmp_path / "x.npy", tmp_path / "x.npz")
    for read_again, kept in np.reshape(found, (2, 2, 2)) / 2**20:
        assert read_again[0] < 40 + 50_000 * 256 * 4 / 2**20  # blocks, and the sample that the start is learned from
        assert kept[0] > 0.8 * X.nbytes / 2**20  # the measure works: the copy, 88 MiB, is in it
        assert max(read_again[1], kept[1]) < 72  # four blocks of 16 MiB: two ahead, one handed over, one encoded
