"""Codes from file to file: the right bytes, whatever happens on the way."""

import copy
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time

import numpy as np
import pytest

import scq_gpu as scq
from scq_gpu.io import code_files, open_rows

N, D = 3000, 12


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)


@pytest.fixture(scope="module")
def encoder(X):
    return scq.OgE(n_bits=11, max_iter=3, tol=0, random_state=0).fit(X)


@pytest.fixture
def path(X, tmp_path):
    np.save(tmp_path / "x.npy", X)
    return tmp_path / "x.npy"


def names(folder):
    return sorted(p.name for p in folder.iterdir())


class Stopping:
    """The encoder, until it has encoded so many blocks."""

    def __init__(self, encoder, blocks, error=KeyboardInterrupt):
        self.__dict__ |= vars(encoder)
        self._encoder, self._left, self._error = encoder, blocks + 1, error  # and the row that is tried first
        self.__class__ = type(type(encoder).__name__, (Stopping,), {})

    def encode(self, X):
        if not self._left:
            raise self._error
        self._left -= 1
        return self._encoder.encode(X)


class Counting(Stopping):
    def __init__(self, encoder):
        super().__init__(encoder, 10**9)
        self.__class__ = type(type(encoder).__name__, (Counting,), {})
        self._rows = -1

    def encode(self, X):
        self._rows += X.shape[0]
        return super().encode(X)


# ---- what is written ----


@pytest.mark.parametrize("block_rows", [None, 1000, 997, N, 10 * N])
def test_npy_and_raw(encoder, X, path, tmp_path, block_rows):
    codes = encoder.encode(X)
    np.save(tmp_path / "expected.npy", codes)
    out = scq.encode_file(encoder, path, tmp_path / "codes.npy", block_rows=block_rows)
    assert out == tmp_path / "codes.npy"
    assert out.read_bytes() == (tmp_path / "expected.npy").read_bytes()
    raw = scq.encode_file(encoder, open_rows(path), str(tmp_path / "codes.bin"), block_rows=block_rows)
    assert raw.read_bytes() == codes.tobytes()
    assert names(tmp_path) == ["codes.bin", "codes.npy", "expected.npy", "x.npy"]


def test_lists_of_files(encoder, X, tmp_path):
    for k, part in enumerate(np.split(X, [5, 1800])):
        np.save(tmp_path / f"x{k}.npy", part)
    out = scq.encode_file(encoder, [tmp_path / f"x{k}.npy" for k in range(3)], tmp_path / "codes.npy", block_rows=700)
    np.testing.assert_array_equal(np.load(out), encoder.encode(X))


def test_permissions_are_those_of_any_new_file(encoder, path, tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    out = scq.encode_file(encoder, path, tmp_path / "codes.npy")
    assert stat.S_IMODE(out.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


# ---- stopped and started again ----


@pytest.mark.parametrize("blocks", [0, 1, 4])
@pytest.mark.parametrize("ending", ["npy", "bin"])
def test_goes_on_where_it_was(encoder, path, tmp_path, blocks, ending):
    whole = scq.encode_file(encoder, path, tmp_path / f"whole.{ending}", block_rows=500).read_bytes()
    out = tmp_path / f"codes.{ending}"
    with pytest.raises(KeyboardInterrupt):
        scq.encode_file(Stopping(encoder, blocks), path, out, block_rows=500)
    assert not out.exists()
    assert names(tmp_path)[:2] == [f"codes.{ending}.partial", f"codes.{ending}.partial.json"]
    counting = Counting(encoder)
    assert scq.encode_file(counting, path, out, block_rows=500).read_bytes() == whole
    assert counting._rows == N - 500 * blocks
    assert names(tmp_path) == [f"codes.{ending}", f"whole.{ending}", "x.npy"]


def stopped(encoder, path, out, **options):
    with pytest.raises(KeyboardInterrupt):
        scq.encode_file(Stopping(encoder, 2), path, out, **{"block_rows": 500} | options)
    assert json.loads(out.with_name(f"{out.name}.partial.json").read_text())["done"] == 1000


@pytest.mark.parametrize("change", ["encoder", "source", "block_rows", "partial", "nonsense"])
def test_another_job_starts_over(encoder, X, path, tmp_path, change):
    out = tmp_path / "codes.npy"
    journal, partial = tmp_path / "codes.npy.partial.json", tmp_path / "codes.npy.partial"
    stopped(encoder, path, out)
    other, block_rows = encoder, 500
    if change == "encoder":
        other = scq.OgE(n_bits=11, max_iter=3, tol=0, random_state=1).fit(X)
    elif change == "source":
        os.utime(path, ns=(5, 5))
    elif change == "block_rows":
        block_rows = 400
    elif change == "partial":
        os.truncate(partial, partial.stat().st_size - 1)
    else:
        journal.write_text(json.dumps(json.loads(journal.read_text()) | {"done": N + 500}))
    counting = Counting(other)
    scq.encode_file(counting, path, out, block_rows=block_rows)
    assert counting._rows == N
    np.testing.assert_array_equal(np.load(out), other.encode(X))


def test_what_the_journal_does_not_vouch_for_is_written_again(encoder, X, path, tmp_path):
    """After a crash of the machine the end of the file may be anything."""
    out = tmp_path / "codes.npy"
    stopped(encoder, path, out)
    with (tmp_path / "codes.npy.partial").open("ab") as file:
        file.write(b"\xff" * 12345)
    scq.encode_file(encoder, path, out, block_rows=500)
    np.testing.assert_array_equal(np.load(out), encoder.encode(X))


def test_digest_goes_by_what_was_learned(encoder, X):
    """Names of features are objects, others in every process; only their text may count."""
    same, other = (scq.OgE(n_bits=11, max_iter=3, tol=0, random_state=seed).fit(X) for seed in (0, 1))
    digest = code_files._encoder_digest
    assert digest(encoder) == digest(same) != digest(other)
    named = copy.copy(encoder)
    for fitted in (same, named):
        fitted.feature_names_in_ = np.array([f"feature {k}" for k in range(D)], dtype=object)
    assert digest(encoder) != digest(same) == digest(named)


JOB = """
import sys, time
import scq_gpu as scq
from scq_gpu.io import code_files

code_files._JOURNAL_SECONDS = 0
encoder = scq.load(sys.argv[1])
encode, rows = type(encoder).encode, [-1]

def slowly(self, X, **options):
    rows[0] += X.shape[0]
    time.sleep(0.004)
    return encode(self, X, **options)

type(encoder).encode = slowly
print("go", flush=True)
scq.encode_file(encoder, sys.argv[2], sys.argv[3], block_rows=10)
print(rows[0])
"""


def progress(journal):
    return json.loads(journal.read_text())["done"] if journal.exists() else 0


def test_killed_at_any_moment(encoder, path, tmp_path):
    encoder.save(tmp_path / "m.safetensors")
    whole = scq.encode_file(encoder, path, tmp_path / "whole.npy", block_rows=10).read_bytes()
    out, journal = tmp_path / "codes.npy", tmp_path / "codes.npy.partial.json"
    command = [sys.executable, "-c", JOB, tmp_path / "m.safetensors", path, out]
    rng = np.random.default_rng(0)
    reached = 0
    for _ in range(3):
        job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert job.stdout.readline() == "go\n"
        deadline = time.monotonic() + 60
        while progress(journal) <= reached and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.2))
        job.send_signal(signal.SIGKILL)
        assert job.wait() == -signal.SIGKILL
        job.stdout.close()
        assert not out.exists()
        assert progress(journal) > reached
        reached = progress(journal)
    assert 0 < reached < N
    last = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(last.split()[1]) == N - reached
    assert out.read_bytes() == whole
    assert names(tmp_path) == ["codes.npy", "m.safetensors", "whole.npy", "x.npy"]


@pytest.mark.parametrize("moment", ["before the name", "after the name"])
def test_killed_at_the_very_end(encoder, path, tmp_path, monkeypatch, moment):
    out = tmp_path / "codes.npy"
    replace = os.replace

    class Killed(BaseException):
        pass

    def die(source, target):
        if str(target) == str(out):
            if moment == "after the name":
                replace(source, target)
            raise Killed
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(code_files.os, "replace", die)
        patch.setattr(code_files, "_JOURNAL_SECONDS", 0)
        with pytest.raises(Killed):
            scq.encode_file(encoder, path, out, block_rows=500)
    counting = Counting(encoder)
    if moment == "before the name":
        scq.encode_file(counting, path, out, block_rows=500)
        assert counting._rows == 0  # all codes were there
    else:
        with pytest.raises(FileExistsError):
            scq.encode_file(counting, path, out, block_rows=500)
    assert names(tmp_path) == ["codes.npy", "x.npy"]
    assert np.load(out).shape == (N, 2)


# ---- what must not happen ----


def test_a_finished_file_is_replaced_only_when_asked(encoder, X, path, tmp_path):
    out = tmp_path / "codes.npy"
    out.write_bytes(b"precious")
    with pytest.raises(FileExistsError, match=r"codes\.npy exists; pass overwrite=True"):
        scq.encode_file(encoder, path, out)
    with pytest.raises(KeyboardInterrupt):
        scq.encode_file(Stopping(encoder, 2), path, out, overwrite=True, block_rows=500)
    assert out.read_bytes() == b"precious"
    counting = Counting(encoder)
    scq.encode_file(counting, path, out, overwrite=True, block_rows=500)
    assert counting._rows == N - 1000
    np.testing.assert_array_equal(np.load(out), encoder.encode(X))


def test_a_file_that_appears_meanwhile_is_kept(encoder, path, tmp_path):
    out = tmp_path / "codes.npy"

    class Meddling(Counting):
        def encode(self, X):
            out.write_bytes(b"precious")
            return super().encode(X)

    meddling = Counting(encoder)
    meddling.__class__ = type("OgE", (Meddling,), {})
    with pytest.raises(FileExistsError):
        scq.encode_file(meddling, path, out)
    assert out.read_bytes() == b"precious"


def test_bad_arguments(encoder, X, path, tmp_path):
    for out, error, message in (
        ("codes.txt", ValueError, r"codes\.txt' must end in \.npy .* or \.bin"),
        ("nowhere/codes.npy", FileNotFoundError, r"folder .*nowhere does not exist"),
        ("x.npy", ValueError, "x.npy is read"),
    ):
        with pytest.raises(error, match=message):
            scq.encode_file(encoder, path, tmp_path / out, overwrite=True)
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        scq.encode_file(encoder, path, tmp_path / "folder.npy")
    with pytest.raises(ValueError, match="block_rows=0 must be an integer >= 1"):
        scq.encode_file(encoder, path, tmp_path / "codes.npy", block_rows=0)
    with pytest.raises(TypeError, match=r"path is an array .*, not a path"):
        scq.encode_file(encoder, X, tmp_path / "codes.npy")
    with pytest.raises(FileNotFoundError, match=r"no\.npy does not exist"):
        scq.encode_file(encoder, tmp_path / "no.npy", tmp_path / "codes.npy")
    np.save(tmp_path / "narrow.npy", X[:, :5])
    with pytest.raises(ValueError, match="X has 5 features, but OgE is expecting 12"):
        scq.encode_file(encoder, tmp_path / "narrow.npy", tmp_path / "codes.npy")
    assert names(tmp_path) == ["folder.npy", "narrow.npy", "x.npy"]


def test_a_bad_value_is_named_by_file_and_row_and_what_was_done_is_kept(encoder, X, path, tmp_path):
    bad = X.copy()
    bad[2222, 3] = np.nan
    np.save(path, bad)
    with pytest.raises(ValueError, match=re.escape(f"first NaN at row 2222 of {path}, column 3")):
        scq.encode_file(encoder, path, tmp_path / "codes.npy", block_rows=500)
    assert json.loads((tmp_path / "codes.npy.partial.json").read_text())["done"] == 2000


def test_a_source_that_changes_is_refused(encoder, path, tmp_path):
    class Rewriting(Counting):
        def encode(self, X):
            os.utime(path, ns=(5, 5))
            return super().encode(X)

    rewriting = Counting(encoder)
    rewriting.__class__ = type("OgE", (Rewriting,), {})
    with pytest.raises(scq.io.RowFileError, match=r"x\.npy changed while it was in use"):
        scq.encode_file(rewriting, path, tmp_path / "codes.npy", block_rows=500)
    assert not (tmp_path / "codes.npy").exists()


def test_two_jobs_do_not_share_a_file(encoder, path, tmp_path):
    pytest.importorskip("fcntl", reason="no file locks on this system")
    out = tmp_path / "codes.npy"

    class Twice(Counting):
        def encode(self, X):
            if X.shape[0] > 1:
                with pytest.raises(BlockingIOError, match="another process is writing"):
                    scq.encode_file(encoder, path, out, block_rows=500)
            return super().encode(X)

    twice = Counting(encoder)
    twice.__class__ = type("OgE", (Twice,), {})
    scq.encode_file(twice, path, out, block_rows=500)
    assert twice._rows == N
    assert names(tmp_path) == ["codes.npy", "x.npy"]


# ---- the disk ----

FULL = """
import resource, signal, sys
import scq_gpu as scq

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]), resource.RLIM_INFINITY))
try:
    scq.encode_file(scq.load(sys.argv[1]), sys.argv[2], sys.argv[3], block_rows=500)
except OSError as error:
    print(type(error).__name__, error.errno, error.strerror)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the size of files by RLIMIT_FSIZE")
def test_no_more_room(encoder, path, tmp_path):
    """A limit on the size of files makes write fail half-way, as a full disk does."""
    encoder.save(tmp_path / "m.safetensors")
    out = tmp_path / "codes.npy"
    said = subprocess.run(
        [sys.executable, "-c", FULL, tmp_path / "m.safetensors", path, out, "3000"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert re.search(
        r"OSError 27 File too large: could not write .*codes\.npy\.partial after .* call encode_file", said
    )
    assert not out.exists()
    counting = Counting(encoder)
    scq.encode_file(counting, path, out, block_rows=500)
    assert counting._rows == 2000  # two blocks had found room
    assert names(tmp_path) == ["codes.npy", "m.safetensors", "x.npy"]


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_disk_full_names_the_file_and_the_cure(encoder, path, tmp_path, monkeypatch, call):
    out = tmp_path / "codes.npy"

    def fail(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(code_files.os, call, fail)
        with pytest.raises(
            OSError, match=r"No space left on device: could not write .* of 3,000 rows\. Make room"
        ) as e:
            scq.encode_file(encoder, path, out, block_rows=500)
    assert e.value.errno == 28
    assert not out.exists()
    scq.encode_file(encoder, path, out, block_rows=500)
    assert names(tmp_path) == ["codes.npy", "x.npy"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_unwritable_folder(encoder, path, tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with pytest.raises(PermissionError, match=r"Permission denied: could not write .*codes\.npy"):
            scq.encode_file(encoder, path, folder / "codes.npy")
    finally:
        folder.chmod(stat.S_IRWXU)
    assert names(folder) == []


def test_progress_only_on_a_terminal(encoder, path, tmp_path, capsys, monkeypatch):
    scq.encode_file(encoder, path, tmp_path / "a.npy")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    scq.encode_file(encoder, path, tmp_path / "b.npy", block_rows=100)
    assert re.search(r"b\.npy: 100%.*3\.00k/3\.00k \[.*rows/s\]", capsys.readouterr().err)
    scq.encode_file(encoder, path, tmp_path / "c.npy", progress=False)
    assert capsys.readouterr().err == ""
