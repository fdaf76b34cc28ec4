"""What is no regular file ends in an error at once, and links do not lead out of a folder of rows."""

import os
import re

import numpy as np
import pytest
from row_files import X, npy, zarr_array
from strange_files import STRANGE, put, within

import scq_gpu as scq
from scq_gpu.io import RowFileError, open_rows
from scq_gpu.rows.sources import memory_map
from scq_gpu.rows.sources.binary import read_array

pytestmark = pytest.mark.skipif(os.name != "posix", reason="FIFOs and SIGALRM are POSIX's")
ROWS = (".npy", ".npz", ".fbin", ".u8bin", ".fvecs", ".parquet", ".arrow", ".h5", ".zarr")
USES = {
    **{f"rows {ending}": (ending, open_rows) for ending in ROWS},
    "memory map": (".npy", memory_map),
    "labels .npy": (".npy", read_array),
    "labels .npz": (".npz", read_array),
    **{f"codes {ending}": (ending, scq.io.read_codes) for ending in (".npy", ".parquet", ".arrow")},
    "model": (".safetensors", scq.load),
    "index": (".safetensors", scq.HammingIndex.load),
    "vector index": (".safetensors", scq.VectorIndex.load),
}


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("use", USES)
def test_in_the_place_of_a_file(tmp_path, kind, use):
    ending, read = USES[use]
    path = put(kind, tmp_path / f"x{ending}")
    with within(), pytest.raises((ValueError, OSError), match=re.escape(f"x{ending}")):
        read(path)


@pytest.mark.parametrize("kind", ["fifo", "socket", "device"])
def test_between_two_passes(tmp_path, kind):
    rows = open_rows(npy(tmp_path / "x.npy", X))
    put(kind, tmp_path / "x.npy")
    with within(), pytest.raises(RowFileError, match=r"x\.npy is a .*not a file"):
        np.asarray(rows)


def make_store(folder, zarr_format):
    store = zarr_array(folder / "x.zarr", X, chunks=(20, 7), zarr_format=zarr_format)
    metadata = {".zarray", ".zattrs", "zarr.json"}
    return store, sorted(p for p in store.rglob("*") if p.is_file() and p.name not in metadata)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("kind", STRANGE)
def test_in_the_place_of_a_chunk_or_of_metadata(tmp_path, zarr_format, kind):
    store, chunks = make_store(tmp_path, zarr_format)
    rows = open_rows(store)
    put(kind, chunks[1])
    for read in (lambda: open_rows(store), lambda: np.asarray(rows)):
        with within(), pytest.raises(RowFileError, match=re.escape(str(chunks[1]))) as caught:
            read()
        assert len(str(caught.value)) < 500
    put(kind, store / (".zarray" if zarr_format == 2 else "zarr.json"))
    with within(), pytest.raises((RowFileError, OSError), match=re.escape(str(store))):
        open_rows(store)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("folder", [False, True])
def test_a_chunk_that_is_a_link_out_of_its_store(tmp_path, zarr_format, folder):
    store, chunks = make_store(tmp_path, zarr_format)
    rows = open_rows(store)
    secret = tmp_path / "secret"
    if folder:  # chunks of version 3 are in c, and version 2 has no such folder
        chunk = store / "c"
        secret.mkdir() if zarr_format == 2 else chunk.rename(secret)
    else:
        chunk = chunks[1]
        chunk.rename(secret)
    chunk.symlink_to(secret)
    for read in (lambda: open_rows(store), lambda: np.asarray(rows)):
        with pytest.raises(RowFileError, match=rf"{re.escape(str(chunk))} is a link"):
            read()


def test_a_chunk_that_is_a_link_within_its_store(tmp_path):
    store, chunks = make_store(tmp_path, 2)
    chunks[1].unlink()
    chunks[1].symlink_to(chunks[0].name)
    np.testing.assert_array_equal(np.asarray(open_rows(store))[20:40], X[:20])
    (tmp_path / "link.zarr").symlink_to(store)  # a link that the user names is the user's
    assert open_rows(tmp_path / "link.zarr").shape == X.shape


@pytest.mark.parametrize("name", ["loop", "loop.npy", "loop.zarr"])
@pytest.mark.parametrize("store", [False, True])
def test_a_folder_with_a_link_to_itself(tmp_path, name, store):
    folder = tmp_path / "x"
    if store:
        folder = zarr_array(tmp_path / "x.zarr", X)
    else:
        folder.mkdir()
        npy(folder / "a.npy", X)
    (folder / name).symlink_to(folder, target_is_directory=True)
    with within():
        if name == "loop" and not store:  # no file of rows
            assert open_rows(folder).shape == X.shape
            return
        with pytest.raises(RowFileError, match=f"{name} is a link") as caught:
            open_rows(folder)
    assert len(str(caught.value)) < 500


def test_a_file_that_is_a_link_out_of_its_folder(tmp_path):
    folder = tmp_path / "x"
    folder.mkdir()
    npy(folder / "a.npy", X)
    npy(tmp_path / "secret.npy", X)
    (folder / "b.npy").symlink_to(folder / "a.npy")
    assert open_rows(folder).shape == (2 * len(X), 7)
    (folder / "c.npy").symlink_to(tmp_path / "secret.npy")
    with pytest.raises(RowFileError, match=r"c\.npy is a link that leaves"):
        open_rows(folder)
    assert open_rows(str(folder / "*.npy")).shape == (3 * len(X), 7)  # named one by one, links are the user's
    put("fifo", folder / "c.npy")
    with within(), pytest.raises(RowFileError, match=r"c\.npy is a FIFO"):
        open_rows(folder)
