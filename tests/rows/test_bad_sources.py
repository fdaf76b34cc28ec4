"""Files of rows that are damaged, foreign, missing or change: an error that names the file."""

import os
import re
import struct
import sys
import zipfile

import numpy as np
import pytest
from row_files import X, fbin, fvecs, hdf5, npy, parquet, zarr_array

from scq_gpu.io import RowFileError, open_rows


def test_missing(tmp_path):
    for ending in ("npy", "parquet", "zarr"):
        with pytest.raises(FileNotFoundError, match=rf"no\.{ending} does not exist"):
            open_rows(tmp_path / f"no.{ending}")


def test_unknown_ending(tmp_path):
    (tmp_path / "x.csv").write_text("1,2")
    with pytest.raises(RowFileError, match=r"x\.csv has the ending '\.csv'; those known are \.npy"):
        open_rows(tmp_path / "x.csv")


@pytest.mark.parametrize("ending", [".npy", ".npz", ".fbin", ".u8bin", ".fvecs", ".bvecs", ".parquet", ".h5", ".zarr"])
def test_empty_and_foreign_files(tmp_path, ending):
    path = tmp_path / f"x{ending}"
    path.write_bytes(b"")
    with pytest.raises(RowFileError, match=rf"x\{ending} is empty"):
        open_rows(path)
    path.write_bytes(b"This is not a file of rows at all, whatever it is called.")
    with pytest.raises(RowFileError, match=re.escape(str(path))):
        open_rows(path)


def write(kind, path):
    return {
        ".npy": npy,
        ".npz": lambda path, X: np.savez_compressed(path, X=X),
        ".fbin": fbin,
        ".fvecs": fvecs,
        ".parquet": parquet,
        ".h5": lambda path, X: hdf5(path, X, chunks=(10, 7), compression="gzip"),
    }[kind](path, X)


@pytest.mark.parametrize("ending", [".npy", ".npz", ".fbin", ".fvecs", ".parquet", ".h5"])
@pytest.mark.parametrize("share", [0.001, 0.3, 0.9, 0.999])
def test_truncated(tmp_path, ending, share):
    path = tmp_path / f"x{ending}"
    write(ending, path)
    content = path.read_bytes()
    path.write_bytes(content[: max(1, int(share * len(content)))])
    with pytest.raises(RowFileError, match=re.escape(str(path))):
        np.asarray(open_rows(path))  # headers tell most; damage inside a compressed block shows when it is read


def test_what_the_header_says_and_what_there_is(tmp_path):
    path = npy(tmp_path / "x.npy", X)
    os.truncate(path, 1000)
    with pytest.raises(RowFileError, match=r"x\.npy is truncated: \(103, 7\) of float32 take 3012 bytes .*has 1000"):
        open_rows(path)
    path = fbin(tmp_path / "x.fbin", X, shape=(100, 7))
    with pytest.raises(RowFileError, match=r"another header or type: \(100, 7\) of float32 take 2808 bytes .*has 2892"):
        open_rows(path)
    path = fbin(tmp_path / "y.fbin", X, shape=(2**32 - 1, 2**32 - 1))
    with pytest.raises(RowFileError, match="truncated"):
        open_rows(path)


@pytest.mark.parametrize("shape", [(0, 0), (7, 0), (4,), (2, 3, 4), ()])
def test_arrays_that_are_not_rows(tmp_path, shape):
    path = npy(tmp_path / "x.npy", np.zeros(shape))
    with pytest.raises(RowFileError, match=r"x\.npy (is empty: it )?holds an array of shape " + re.escape(str(shape))):
        open_rows(path)


@pytest.mark.parametrize("dtype", ["c16", "U3", "M8[s]", "f4,i4"])
def test_arrays_that_are_not_numbers(tmp_path, dtype):
    path = npy(tmp_path / "x.npy", np.zeros((3, 2), dtype=dtype))
    with pytest.raises(RowFileError, match=r"x\.npy holds .*real numbers are expected"):
        open_rows(path)


def test_vecs_rows_of_another_length(tmp_path):
    path = fvecs(tmp_path / "x.fvecs", X)
    content = bytearray(path.read_bytes())
    content[60 * 32 : 60 * 32 + 4] = struct.pack("<i", 6)
    path.write_bytes(content)
    with pytest.raises(RowFileError, match=r"x\.fvecs: row 60 has length 6, the first has 7"):
        list(open_rows(path).blocks(8))
    for d in (0, -3, 1 << 30):
        path.write_bytes(struct.pack("<i", d) + b"1234")
        with pytest.raises(RowFileError, match=r"x\.fvecs"):
            open_rows(path)


def test_a_name_where_there_is_none(tmp_path):
    for write_one, ending in ((npy, ".npy"), (fbin, ".fbin"), (fvecs, ".fvecs")):
        path = write_one(tmp_path / f"x{ending}", X)
        with pytest.raises(
            RowFileError, match=rf"x\{ending} holds one array, which has no name; name='X' does not fit"
        ):
            open_rows(path, name="X")


def test_npz_choice(tmp_path):
    np.savez(tmp_path / "x.npz", X=X, Y=X, z=np.arange(3))
    with pytest.raises(RowFileError, match=r"2 arrays of 2 dimensions.*'X' \(103, 7\), 'Y' \(103, 7\), 'z' \(3,\)"):
        open_rows(tmp_path / "x.npz")
    with pytest.raises(RowFileError, match="no array named 'W'; it holds 'X'"):
        open_rows(tmp_path / "x.npz", name="W")
    np.savez(tmp_path / "f.npz", X=np.asfortranarray(X))
    with pytest.raises(RowFileError, match=r"'X' is stored column by column.*ascontiguousarray"):
        open_rows(tmp_path / "f.npz")


def test_npz_with_a_damaged_member(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", X=np.arange(200_000.0).reshape(-1, 4))
    source = open_rows(tmp_path / "x.npz")
    with zipfile.ZipFile(tmp_path / "x.npz") as archive:
        middle = archive.getinfo("X.npy").header_offset + archive.getinfo("X.npy").compress_size // 2
    content = bytearray((tmp_path / "x.npz").read_bytes())
    content[middle : middle + 8] = bytes(8)
    stat = (tmp_path / "x.npz").stat()
    (tmp_path / "x.npz").write_bytes(content)
    os.utime(tmp_path / "x.npz", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(RowFileError, match=r"x\.npz cannot be read as an \.npz archive"):
        np.asarray(source)


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    (tmp_path / "x.h5").write_bytes(b"something")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r"needs h5py, which cannot be imported .*scq-gpu\[io\]"):
        open_rows(tmp_path / "x.h5")


# ---- files that change ----


@pytest.mark.parametrize("change", ["touched", "appended", "gone", "shortened"])
def test_a_file_that_changed_between_passes_is_refused(tmp_path, change):
    path = npy(tmp_path / "x.npy", X)
    source = open_rows([path])
    list(source.blocks(10))
    if change == "touched":
        os.utime(path, ns=(1, 1))
    elif change == "appended":
        path.write_bytes(path.read_bytes() + b"more")
    elif change == "shortened":
        os.truncate(path, 900)
    else:
        path.unlink()
    with pytest.raises(RowFileError, match=r"x\.npy (changed while it was in use|has gone since it was opened)"):
        list(source.blocks(10))


def test_a_file_that_changes_during_a_pass_is_refused(tmp_path):
    path = npy(tmp_path / "x.npy", X)
    blocks = open_rows(path).blocks(10)
    next(blocks)
    os.utime(path, ns=(1, 1))
    with pytest.raises(RowFileError, match=r"x\.npy changed while it was in use"):
        list(blocks)
    blocks = open_rows(path).blocks(10)
    next(blocks)
    os.truncate(path, 1000)
    with pytest.raises(RowFileError, match=r"x\.npy changed while it was in use"):
        list(blocks)


def test_a_zarr_store_that_changed_is_refused(tmp_path):
    source = open_rows(zarr_array(tmp_path / "x.zarr", X, chunks=(10, 7)))
    list(source.blocks(10))
    max((tmp_path / "x.zarr" / "c").rglob("*")).write_bytes(b"other")
    with pytest.raises(RowFileError, match=r"x\.zarr changed"):
        list(source.blocks(10))
