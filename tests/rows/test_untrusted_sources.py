"""Files of rows that mean harm: code in a codec, headers that claim what no machine has, rows kept elsewhere."""

import json
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
from row_files import X, hdf5, npy, zarr_array

import scq_gpu as scq
from scq_gpu._core import machine as host_memory
from scq_gpu.rows.sources import stores

pytest.importorskip("zarr", reason="zarr is not installed")
h5py = pytest.importorskip("h5py", reason="h5py is not installed")

PICKLE = {"id": "pickle", "protocol": 5}


class Command:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def v2(folder, **changes):
    folder.mkdir(parents=True)
    facts = {"zarr_format": 2, "shape": [4, 2], "chunks": [4, 2], "dtype": "<f4", "compressor": None, "filters": None}
    (folder / ".zarray").write_text(json.dumps(facts | {"fill_value": 0, "order": "C"} | changes))
    (folder / "0.0").write_bytes(pickle.dumps(Command(folder.parent / "ran")))
    return folder


def v3(folder, *codecs):
    folder.mkdir(parents=True)
    grid = {"name": "regular", "configuration": {"chunk_shape": [4, 2]}}
    keys = {"name": "default", "configuration": {"separator": "/"}}
    facts = {"zarr_format": 3, "node_type": "array", "shape": [4, 2], "data_type": "float32", "fill_value": 0.0}
    facts |= {"chunk_grid": grid, "chunk_key_encoding": keys, "codecs": list(codecs), "attributes": {}}
    (folder / "zarr.json").write_text(json.dumps(facts))
    (folder / "c" / "0").mkdir(parents=True)
    (folder / "c" / "0" / "0").write_bytes(pickle.dumps(Command(folder.parent / "ran")))
    return folder


BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
SHARD = {"chunk_shape": [2, 2], "codecs": [BYTES, {"name": "numcodecs.pickle"}], "index_codecs": [BYTES]}
STORES = {
    "v2 compressor": lambda f: v2(f, compressor=PICKLE),
    "v2 filter": lambda f: v2(f, filters=[{"id": "delta", "dtype": "<f4"}, PICKLE]),
    "v2 objects": lambda f: v2(f, filters=[PICKLE], dtype="|O"),
    "v2 capitals": lambda f: v2(f, compressor={"id": "Pickle"}),
    "v3 codec": lambda f: v3(f, BYTES, {"name": "numcodecs.pickle", "configuration": {"protocol": 5}}),
    "v3 plain name": lambda f: v3(f, {"name": "pickle"}),
    "v3 in a shard": lambda f: v3(f, {"name": "sharding_indexed", "configuration": SHARD}),
}


@pytest.mark.parametrize("make", STORES.values(), ids=STORES)
def test_a_codec_that_runs_commands_is_refused_by_name_before_anything_is_read(tmp_path, make, monkeypatch):
    store = make(tmp_path / "x.zarr")

    def never(module):
        raise AssertionError(f"{module} was asked to open it")

    with monkeypatch.context() as patch:
        patch.setattr(stores, "_library", never)
        with pytest.raises(scq.io.RowFileError, match="names the codec 'pickle'"):
            scq.io.open_rows(store)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("marks", [".zgroup", ".zmetadata"])
def test_a_codec_deeper_in_a_group(tmp_path, marks):
    store = tmp_path / "g.zarr"
    v2(store / "deep" / "x", compressor=PICKLE)
    (store / ".zgroup").write_text('{"zarr_format": 2}')
    if marks == ".zmetadata":
        facts = json.loads((store / "deep" / "x" / ".zarray").read_text())
        text = {"metadata": {".zgroup": {"zarr_format": 2}, "x/.zarray": facts}, "zarr_consolidated_format": 1}
        (store / ".zmetadata").write_text(json.dumps(text))
    with pytest.raises(scq.io.RowFileError, match="names the codec 'pickle'"):
        scq.io.open_rows(store, name="deep/x")
    assert not (store / "deep" / "ran").exists()


def test_a_codec_that_appears_after_the_store_was_opened(tmp_path):
    store = zarr_array(tmp_path / "x.zarr", X, zarr_format=2)
    rows = scq.io.open_rows(store)
    facts = json.loads((store / ".zarray").read_text())
    (store / ".zarray").write_text(json.dumps(facts | {"compressor": PICKLE}))
    with pytest.raises(scq.io.RowFileError, match=r"changed while it was in use|names the codec 'pickle'"):
        np.asarray(rows)


def test_a_codec_behind_a_link(tmp_path):
    """A walk over the folder does not see it; the metadata that the library found are looked at once more."""
    v2(tmp_path / "elsewhere", compressor=PICKLE)
    store = tmp_path / "g.zarr"
    store.mkdir()
    (store / ".zgroup").write_text('{"zarr_format": 2}')
    (store / "x").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with pytest.raises(scq.io.RowFileError):
        np.asarray(scq.io.open_rows(store, name="x"))
    assert not (tmp_path / "ran").exists()


def test_attributes_may_say_what_they_like(tmp_path):
    store = zarr_array(tmp_path / "x.zarr", X, attributes={"name": "pickled cucumbers"})
    np.testing.assert_array_equal(np.asarray(scq.io.open_rows(store)), X)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_missing_chunks_are_said_and_a_store_without_any_is_refused(tmp_path, zarr_format):
    store = zarr_array(tmp_path / "x.zarr", X, chunks=(20, 7), zarr_format=zarr_format)
    chunks = sorted(p for p in store.rglob("*") if p.is_file() and p.name not in stores._ZARR_METADATA)
    assert len(chunks) == 6
    chunks[2].rename(chunks[2].with_name("notes"))  # a file, but no chunk
    with pytest.warns(UserWarning, match="has 5 of its 6 chunks"):
        scq.io.open_rows(store)
    for chunk in chunks:
        chunk.unlink(missing_ok=True)
    with pytest.raises(scq.io.RowFileError, match="has none of its 6 chunks"):
        scq.io.open_rows(store)


def test_shards_are_counted_as_they_are_stored(tmp_path):
    store = zarr_array(tmp_path / "x.zarr", X, chunks=(5, 7), shards=(20, 7))
    np.testing.assert_array_equal(np.asarray(scq.io.open_rows(store)), X)


def test_missing_chunks_of_hdf5_are_said(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", (100, 7), "f4", chunks=(20, 7))[:60] = 1
    with pytest.warns(UserWarning, match="has 3 of its 5 chunks"):
        scq.io.open_rows(tmp_path / "x.h5")


def test_hdf5_rows_in_other_files_are_refused(tmp_path):
    (tmp_path / "secret").write_bytes(os.urandom(400))
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (20, 5), "f4", external=[(str(tmp_path / "secret"), 0, 400)])
    with pytest.raises(scq.io.RowFileError, match="keeps its rows in other files"):
        scq.io.open_rows(path)
    hdf5(tmp_path / "part.h5", X)
    layout = h5py.VirtualLayout(shape=X.shape, dtype="f4")
    layout[:] = h5py.VirtualSource(str(tmp_path / "part.h5"), "x", shape=X.shape)
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
    with pytest.raises(scq.io.RowFileError, match="keeps its rows in other files"):
        scq.io.open_rows(tmp_path / "v.h5")


def test_headers_that_claim_more_than_there_is_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(host_memory, "_machine_bytes", lambda: 1 << 20)
    monkeypatch.setattr(host_memory, "_container_bytes", lambda: None)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", (400_000, 2), "f4", chunks=(400_000, 2), compression="gzip")[:1] = 1
    with pytest.raises(scq.io.RowFileError, match=r"a chunk takes .* GiB in memory, and .* GiB are available"):
        scq.io.open_rows(tmp_path / "x.h5")
    store = zarr_array(tmp_path / "x.zarr", np.ones((400_000, 2), dtype=np.float32), chunks=(400_000, 2))
    with pytest.raises(scq.io.RowFileError, match="a chunk takes"):
        scq.io.open_rows(store)
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((2, 500_000), dtype=np.float32))
    with pytest.raises(scq.io.RowFileError, match="a row takes"):
        scq.io.open_rows(tmp_path / "x.npz")
    rows = scq.io.open_rows(npy(tmp_path / "x.npy", np.zeros((300_000, 2), dtype=np.float32)))
    with pytest.raises(MemoryError, match=r"x.npy as an array would take .* GiB of memory, and"):
        np.asarray(rows)


def test_hdf5_that_claims_rows_and_holds_none(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", (10**9, 10**3), "f4", chunks=(1000, 1000), compression="gzip")
    with pytest.raises(scq.io.RowFileError, match="holds no data"):
        scq.io.open_rows(tmp_path / "x.h5")


def test_npz_that_claims_more_than_compression_gives(tmp_path):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.zeros((100, 100)))
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\x01\x02") + 24  # the uncompressed size, in the directory at the end
    content[at : at + 4] = struct.pack("<I", 1 << 31)
    path.write_bytes(content)
    with pytest.raises(scq.io.RowFileError, match="claims 2147483648 bytes"):
        scq.io.open_rows(path)


def npy_header(text, version=1):
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text


HEADERS = {
    "dashes": npy_header(b"-" * 9000),
    "brackets": npy_header(b"[" * 9000),
    "huge": npy_header(b"", 2)[:8] + struct.pack("<I", 0xFFFFFFF0) + b"{}",
    "no dictionary": npy_header(b"1\n"),
    "negative": npy_header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4)}\n"),
    "objects": npy_header(b"{'descr': '|O', 'fortran_order': False, 'shape': (1, 4)}\n") + bytes(32),
    "enormous": npy_header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999, 9999999999)}\n"),
    "digits": npy_header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"9" * 8000 + b", 4)}\n"),
}


@pytest.mark.parametrize("content", HEADERS.values(), ids=HEADERS)
@pytest.mark.parametrize("ending", [".npy", ".npz"])
def test_npy_headers_of_any_kind_name_the_file(tmp_path, content, ending):
    path = tmp_path / f"x{ending}"
    if ending == ".npy":
        path.write_bytes(content)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", content)
    with pytest.raises(scq.io.RowFileError, match=f"x{ending}"):
        scq.io.open_rows(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_npz_of_zeros_is_what_compression_gives(tmp_path, method):
    np.save(tmp_path / "x.npy", np.zeros((1_000_000, 4), dtype=np.float32))
    with zipfile.ZipFile(tmp_path / "x.npz", "w", method) as archive:
        archive.write(tmp_path / "x.npy", "x.npy")
    rows = scq.io.open_rows(tmp_path / "x.npz")
    assert not np.asarray(rows).any()


def test_rows_wider_than_float64(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 4), dtype=np.longdouble))
    if np.dtype(np.longdouble).itemsize > 8:
        with pytest.raises(
            scq.io.RowFileError, match=r"x\.npy holds float128; real numbers are expected, of at most 8 bytes"
        ):
            scq.io.open_rows(tmp_path / "x.npy")
