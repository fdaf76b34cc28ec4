"""Files are replaced in one step: a reader sees the old one or the new one, and a failure leaves nothing behind."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from scq_gpu._core import files
from scq_gpu._core.files import replace_file, replacing


@pytest.fixture
def umask():
    """Set this process's umask; the old one comes back at the end."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_content_is_there_once_the_block_ends(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"new, ")
        assert path.read_bytes() == b"old"
        file.write(b"in two parts")
    assert path.read_bytes() == b"new, in two parts"
    replace_file(str(path), b"newer")
    assert path.read_bytes() == b"newer"
    assert names(tmp_path) == ["x.bin"]


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_mode_follows_the_umask_and_the_umask_is_left_alone(tmp_path, umask, mask):
    umask(mask)
    replace_file(tmp_path / "x.bin", b"content")
    assert stat.S_IMODE((tmp_path / "x.bin").stat().st_mode) == 0o666 & ~mask
    assert umask(mask) == mask


def write_half(path, error):
    with replacing(path) as file:
        file.write(b"half of")
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_failure_inside_the_block_leaves_the_old_file_and_no_other(tmp_path, error):
    path = tmp_path / "x.bin"
    with pytest.raises(error):
        write_half(path, error)
    assert names(tmp_path) == []
    path.write_bytes(b"old")
    with pytest.raises(error):
        write_half(path, error)
    assert names(tmp_path) == ["x.bin"]
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_failure_of_the_disk_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, step):
    path = tmp_path / "x.bin"
    path.write_bytes(b"old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["x.bin"]


def test_missing_folder_is_named(tmp_path):
    path = tmp_path / "nowhere" / "x.bin"
    with pytest.raises(FileNotFoundError, match=rf"cannot write {path}: the folder {path.parent} does not exist"):
        replace_file(path, b"content")
    assert names(tmp_path) == []


KILLED = """
import os, signal, sys
from scq_gpu._core.files import replacing
with replacing(sys.argv[1]) as file:
    file.write(b"half" * 1000)
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(os.name != "posix", reason="no locks to tell by")
def test_the_next_write_removes_what_killed_ones_left_and_nothing_else(tmp_path):
    path = tmp_path / "x.bin"
    for _ in range(3):
        subprocess.run([sys.executable, "-c", KILLED, path], check=False)
        assert len(names(tmp_path)) == 1  # of the last; each removes that of the one before
    kept = [tmp_path / ".y.bin.0123456789abcdef.tmp", tmp_path / ".x.bin.short.tmp", tmp_path / ".x.bin.tmp"]
    for stranger in kept:
        stranger.write_bytes(b"somebody's")
    link = tmp_path / f".x.bin.{'0' * 16}.tmp"
    link.symlink_to(kept[0])
    with replacing(path) as outer:  # one that is being written is not stale
        outer.write(b"outer")
        replace_file(path, b"inner")
        assert path.read_bytes() == b"inner"
    assert path.read_bytes() == b"outer"
    assert names(tmp_path) == sorted(["x.bin", link.name, *(p.name for p in kept)])


def test_threads_that_save_to_one_name_leave_one_whole_file(tmp_path, umask):
    path = tmp_path / "x.bin"
    contents = [bytes([k]) * 50_000 for k in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda k: [replace_file(path, contents[k]) for _ in range(20)], range(8)))
    assert path.read_bytes() in contents
    assert names(tmp_path) == ["x.bin"]
    assert umask(0o022) == 0o022


@pytest.mark.parametrize(("number", "kind"), [(30, OSError), (13, PermissionError), (28, OSError)])
@pytest.mark.parametrize("step", ["open", "fsync", "replace"])
def test_errors_of_the_system_name_the_file_that_was_wanted(tmp_path, monkeypatch, number, kind, step):
    path = tmp_path / "model.safetensors"

    def fail(*_, **__):
        raise OSError(number, os.strerror(number), str(tmp_path / ".model.safetensors.00.tmp"))

    monkeypatch.setattr(files, step, fail, raising=False) if step == "open" else monkeypatch.setattr(os, step, fail)
    with pytest.raises(kind, match=f"could not write {path}") as caught:
        replace_file(path, b"new")
    assert caught.value.errno == number
    assert ".tmp" not in str(caught.value)


def test_a_folder_in_the_way_is_named(tmp_path):
    (tmp_path / "x.bin").mkdir()
    with pytest.raises(IsADirectoryError, match=r"cannot write .*x\.bin: it is a folder"):
        replace_file(tmp_path / "x.bin", b"content")
