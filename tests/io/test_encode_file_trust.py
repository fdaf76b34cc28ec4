"""encode_file beside strangers' files, with rows that are not numbers, and with inputs that change under it."""

import json
import os

import numpy as np
import pytest

import scq_gpu as scq
from scq_gpu._core.validate import InvalidRowsWarning

N, D = 1200, 16


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)


@pytest.fixture(scope="module")
def encoder(X):
    return scq.OgE(n_bits=11, max_iter=2, tol=0, random_state=0).fit(X)


@pytest.fixture
def path(X, tmp_path):
    np.save(tmp_path / "x.npy", X)
    return tmp_path / "x.npy"


class Stopping:
    def __init__(self, encoder, blocks):
        self.__dict__ |= vars(encoder)
        self._encoder, self._left, self._rows = encoder, blocks + 1, -1
        self.__class__ = type(type(encoder).__name__, (Stopping,), {})

    def encode(self, X):
        if not self._left:
            raise KeyboardInterrupt
        self._left -= 1
        self._rows += X.shape[0]
        return self._encoder.encode(X)


def stop(encoder, path, out, blocks=3, **options):
    with pytest.raises(KeyboardInterrupt):
        scq.encode_file(Stopping(encoder, blocks), path, out, block_rows=100, **options)


# ---- files that are not ours ----


@pytest.mark.parametrize("kind", ["link", "dangling link", "hard link", "content", "folder", "fifo"])
@pytest.mark.parametrize("ending", [".partial", ".partial.invalid"])
def test_what_is_not_ours_is_left_alone(encoder, path, tmp_path, kind, ending):
    out, victim = tmp_path / "codes.npy", tmp_path / "victim"
    there = tmp_path / f"codes.npy{ending}"
    victim.write_bytes(b"precious")
    if kind == "link":
        there.symlink_to(victim)
    elif kind == "dangling link":
        there.symlink_to(tmp_path / "nowhere")
    elif kind == "hard link":
        os.link(victim, there)
    elif kind == "content":
        there.write_bytes(b"precious")
    elif kind == "folder":
        there.mkdir()
    else:
        os.mkfifo(there)
    with pytest.raises(FileExistsError, match=r"left as it is\. Remove it, or choose another name"):
        scq.encode_file(encoder, path, out)
    assert victim.read_bytes() == b"precious"
    assert os.path.lexists(there)
    assert not (tmp_path / "nowhere").exists()
    assert not out.exists()
    if kind == "content":
        assert there.read_bytes() == b"precious"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"done": 5}', '{"scq_gpu": "encode_file"}', "[" * 5000])
def test_a_partial_file_with_a_strange_journal_is_a_strangers(encoder, path, tmp_path, content):
    (tmp_path / "codes.npy.partial").write_bytes(b"precious")
    (tmp_path / "codes.npy.partial.json").write_text(content)
    with pytest.raises(FileExistsError, match="no journal of encode_file is beside it"):
        scq.encode_file(encoder, path, tmp_path / "codes.npy")
    assert (tmp_path / "codes.npy.partial").read_bytes() == b"precious"


def test_a_link_that_takes_the_place_of_our_own_file_is_not_followed(encoder, path, tmp_path):
    out, victim = tmp_path / "codes.npy", tmp_path / "victim"
    stop(encoder, path, out)
    victim.write_bytes(b"precious")
    (tmp_path / "codes.npy.partial").unlink()
    (tmp_path / "codes.npy.partial").symlink_to(victim)
    with pytest.raises(FileExistsError, match="it is a link"):
        scq.encode_file(encoder, path, out, block_rows=100)
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize(
    ("ending", "link"),
    [
        *((ending, None) for ending in ("", ".invalid.npy")),
        *(
            (ending, link)
            for ending in ("", ".invalid.npy", ".partial", ".partial.json", ".partial.invalid")
            for link in ("symbolic", "hard")
        ),
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_no_file_of_a_job_is_its_source(encoder, X, tmp_path, ending, link, overwrite):
    source, there = tmp_path / "rows.npy", tmp_path / f"codes.npy{ending}"
    np.save(source, X)
    if link is None:
        content = source.read_bytes()
        source.rename(there)
        source = there
    else:
        (there.symlink_to if link == "symbolic" else there.hardlink_to)(source)
        content = source.read_bytes()
    with pytest.raises((ValueError, FileExistsError), match=r"codes\.npy"):
        scq.encode_file(encoder, source, tmp_path / "codes.npy", overwrite=overwrite)
    assert source.read_bytes() == there.read_bytes() == content
    assert {p.name for p in tmp_path.iterdir()} == {source.name, there.name}


def test_no_file_of_a_job_is_in_a_store_that_is_its_source(encoder, X, tmp_path):
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    zarr.create_array(str(tmp_path / "x.zarr"), shape=X.shape, dtype="f4")[:] = X
    with pytest.raises(ValueError, match="is read"):
        scq.encode_file(encoder, tmp_path / "x.zarr", tmp_path / "x.zarr" / "codes.npy")


@pytest.mark.parametrize("content", ["text", "floats", "a table of numbers"])
@pytest.mark.parametrize(("overwrite", "on_invalid"), [(True, "raise"), (True, "zero"), (False, "zero")])
def test_a_report_that_is_not_ours_stays(encoder, bad_path, path, tmp_path, content, overwrite, on_invalid):
    report = tmp_path / "codes.npy.invalid.npy"
    if content == "text":
        report.write_text("precious")
    else:
        np.save(report, np.zeros(5) if content == "floats" else np.zeros((5, 2), dtype=np.int64))
    before = report.read_bytes()
    with pytest.raises(FileExistsError, match=r"codes\.npy\.invalid\.npy is there"):
        scq.encode_file(encoder, bad_path, tmp_path / "codes.npy", overwrite=overwrite, on_invalid=on_invalid)
    assert report.read_bytes() == before
    assert not (tmp_path / "codes.npy").exists()


def test_a_report_is_replaced_with_its_codes_only(encoder, bad_path, tmp_path):
    out, report = tmp_path / "codes.npy", tmp_path / "codes.npy.invalid.npy"
    np.save(report, np.arange(3))
    with pytest.raises(FileExistsError, match=r"codes\.npy\.invalid\.npy is there"):
        scq.encode_file(encoder, bad_path, out, on_invalid="zero")
    assert np.load(report).tolist() == [0, 1, 2]
    with pytest.warns(InvalidRowsWarning):
        scq.encode_file(encoder, bad_path, out, on_invalid="zero", overwrite=True)
    assert np.load(report).tolist() == BAD


def test_a_job_killed_between_its_report_and_its_codes_goes_on(encoder, bad_path, tmp_path, monkeypatch):
    out, replace = tmp_path / "codes.npy", os.replace

    def killed(source, target):
        if str(target) == str(out):
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            scq.encode_file(encoder, bad_path, out, on_invalid="zero")
    assert np.load(f"{out}.invalid.npy").tolist() == BAD
    with pytest.warns(InvalidRowsWarning):
        scq.encode_file(encoder, bad_path, out, on_invalid="zero")
    assert np.load(f"{out}.invalid.npy").tolist() == BAD
    assert out.exists()


def test_the_journal_is_there_before_the_file_it_is_about(encoder, path, tmp_path, monkeypatch):
    """Killed between the two, the job can be begun again."""
    opened = os.open
    seen = []

    def watch(name, *args, **kwargs):
        if str(name).endswith(".partial"):
            seen.append((tmp_path / "codes.npy.partial.json").exists())
        return opened(name, *args, **kwargs)

    monkeypatch.setattr(os, "open", watch)
    scq.encode_file(encoder, path, tmp_path / "codes.npy")
    assert seen
    assert all(seen)


# ---- inputs that change ----


@pytest.mark.parametrize("change", [slice(None), slice(60, 100), slice(150, 250), slice(299, 300)])
def test_rows_changed_with_size_and_time_kept_are_noticed(encoder, X, path, tmp_path, change, monkeypatch):
    from scq_gpu.io import block_codes

    monkeypatch.setattr(block_codes, "_SAMPLE_ROWS", 100)  # of a block of 100: any row would show
    out = tmp_path / "codes.npy"
    stop(encoder, path, out)
    before = path.stat()
    changed = X.copy()
    changed[change] *= -1
    np.save(path, changed)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.warns(UserWarning, match="changed since"):
        scq.encode_file(encoder, path, out, block_rows=100)
    np.testing.assert_array_equal(np.load(out), encoder.encode(changed))


def test_checksums_are_of_rows_all_over_a_block(encoder, X, path, tmp_path):
    out = tmp_path / "codes.npy"
    stop(encoder, path, out)
    before = path.stat()
    changed = X.copy()
    changed[:300] *= np.where(np.arange(300) % 100 < 40, 1, -1)[:, None]  # no block changes at its beginning
    np.save(path, changed)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.warns(UserWarning, match="changed since"):
        scq.encode_file(encoder, path, out, block_rows=100)
    np.testing.assert_array_equal(np.load(out), encoder.encode(changed))


def shards(folder, X, parts=4):
    folder.mkdir()
    for number, part in enumerate(np.array_split(X, parts)):
        np.save(folder / f"part-{number}.npy", part)
    return folder


@pytest.mark.parametrize("ending", ["npy", "bin"])
def test_a_mended_shard_costs_that_shard(encoder, X, tmp_path, ending):
    bad = X.copy()
    bad[710, 3] = np.nan
    folder = shards(tmp_path / "rows", bad)
    out = tmp_path / f"codes.{ending}"
    with pytest.raises(ValueError, match=r"row 110 of .*part-2\.npy \(row 710 of all\)"):
        scq.encode_file(encoder, folder, out, block_rows=100)
    np.save(folder / "part-2.npy", X[600:900])
    counting = Stopping(encoder, 10**9)
    scq.encode_file(counting, folder, out, block_rows=100)
    assert counting._rows == 600
    whole = scq.encode_file(encoder, folder, tmp_path / f"whole.{ending}", block_rows=100)
    assert out.read_bytes() == whole.read_bytes()


def test_a_shard_with_fewer_rows_than_before(encoder, X, tmp_path):
    folder, out = shards(tmp_path / "rows", X), tmp_path / "codes.npy"
    stop(encoder, folder, out, blocks=8)
    np.save(folder / "part-1.npy", X[300:550])
    counting = Stopping(encoder, 10**9)
    scq.encode_file(counting, folder, out, block_rows=100)
    assert counting._rows == 1150 - 300
    np.testing.assert_array_equal(np.load(out), encoder.encode(np.delete(X, np.s_[550:600], axis=0)))


# ---- rows that are not numbers ----

BAD = [0, 7, 99, 100, 555, N - 1]


@pytest.fixture
def bad_path(X, tmp_path):
    bad = X.copy()
    bad[BAD, 2] = [np.nan, np.inf, -np.inf, np.nan, np.inf, np.nan]
    np.save(tmp_path / "bad.npy", bad)
    return tmp_path / "bad.npy"


def expected(encoder, X, on_invalid):
    codes = encoder.encode(X)
    if on_invalid == "skip":
        return np.delete(codes, BAD, axis=0)
    codes[BAD] = 0
    return codes


@pytest.mark.parametrize("on_invalid", ["skip", "zero"])
@pytest.mark.parametrize("ending", ["npy", "bin"])
@pytest.mark.parametrize("stopped", [0, 1, 6, 12])
def test_invalid_rows_are_reported_also_after_a_stop(encoder, X, bad_path, tmp_path, on_invalid, ending, stopped):
    out = tmp_path / f"codes.{ending}"
    if stopped < 12:
        stop(encoder, bad_path, out, blocks=stopped, on_invalid=on_invalid)
    with pytest.warns(
        InvalidRowsWarning, match=r"6 of 1,200 rows hold NaN or inf .*0, 7, 99, 100, 555, \.\.\."
    ) as said:
        scq.encode_file(encoder, bad_path, out, block_rows=100, on_invalid=on_invalid)
    assert said[0].message.rows.tolist() == BAD
    assert f"all are in {out}.invalid.npy" in str(said[0].message)
    assert np.load(f"{out}.invalid.npy").tolist() == BAD
    codes = np.load(out) if ending == "npy" else np.fromfile(out, dtype=np.uint8).reshape(-1, 2)
    np.testing.assert_array_equal(codes, expected(encoder, X, on_invalid))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.npy", f"codes.{ending}", f"codes.{ending}.invalid.npy"]


def test_another_choice_starts_over_and_an_old_report_goes(encoder, X, bad_path, path, tmp_path):
    out = tmp_path / "codes.npy"
    stop(encoder, bad_path, out, blocks=6, on_invalid="skip")
    with pytest.warns(InvalidRowsWarning):
        scq.encode_file(encoder, bad_path, out, block_rows=100, on_invalid="zero")
    np.testing.assert_array_equal(np.load(out), expected(encoder, X, "zero"))
    assert np.load(f"{out}.invalid.npy").tolist() == BAD
    scq.encode_file(encoder, path, out, block_rows=100, on_invalid="zero", overwrite=True)
    assert not (tmp_path / "codes.npy.invalid.npy").exists()


def test_raise_names_the_row_and_keeps_the_blocks_before(encoder, X, tmp_path):
    bad = X.copy()
    bad[555, 2] = np.nan
    np.save(tmp_path / "bad.npy", bad)
    with pytest.raises(ValueError, match="row 555 of"):
        scq.encode_file(encoder, tmp_path / "bad.npy", tmp_path / "codes.npy", block_rows=100)
    assert json.loads((tmp_path / "codes.npy.partial.json").read_text())["done"] == 500


@pytest.mark.parametrize("on_invalid", ["skip", "zero"])
@pytest.mark.parametrize("name", ["OgE", "LSH", "SH", "SpH"])
@pytest.mark.filterwarnings("ignore:.*stopped at max_iter")
def test_encode(X, bad_path, on_invalid, name):
    random = {} if name == "SH" else {"random_state": 0}
    encoder = getattr(scq, name)(n_bits=8, **random).fit(X)
    bad = np.load(bad_path)
    for rows in (bad, scq.io.open_rows(bad_path), [bad[:500], bad[500:]]):
        with pytest.warns(InvalidRowsWarning, match="6 of 1,200 rows") as said:
            codes = encoder.encode(rows, on_invalid=on_invalid)
        np.testing.assert_array_equal(codes, expected(encoder, X, on_invalid))
        assert said[0].message.rows.tolist() == BAD
        with pytest.raises(ValueError, match="NaN or inf"):
            encoder.encode(rows)
    np.testing.assert_array_equal(encoder.encode(X, on_invalid=on_invalid), encoder.encode(X))
    np.testing.assert_array_equal(encoder.encode((X > 0), on_invalid=on_invalid), encoder.encode(X > 0))
    with pytest.raises(ValueError, match="on_invalid='drop' is not one of 'raise', 'skip', 'zero'"):
        encoder.encode(X, on_invalid="drop")


def test_encode_into_an_array(X, encoder, bad_path):
    bad = np.load(bad_path)
    out = np.full((N, 2), 255, dtype=np.uint8)
    with pytest.warns(InvalidRowsWarning):
        assert encoder.encode(bad, out=out, on_invalid="zero") is out
    np.testing.assert_array_equal(out, expected(encoder, X, "zero"))
    with pytest.warns(InvalidRowsWarning), pytest.raises(ValueError, match="these codes have"):
        encoder.encode(bad, out=out, on_invalid="skip")
