"""Files of rows, written by hand or by the library that owns the format."""

import struct

import numpy as np
import pytest

X = np.random.default_rng(0).standard_normal((103, 7)).astype(np.float32)


def fvecs(path, X, dtype="<f4"):
    path.write_bytes(b"".join(struct.pack("<i", len(x)) + x.astype(dtype).tobytes() for x in X))
    return path


def fbin(path, X, dtype="<f4", shape=None):
    path.write_bytes(struct.pack("<II", *(shape or X.shape)) + X.astype(dtype).tobytes())
    return path


def npy(path, X):
    np.save(path, X)
    return path


def parquet(path, X, **options):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import pyarrow.parquet as pq

    values = pa.array(np.ascontiguousarray(X).reshape(-1))
    table = pa.table({"id": np.arange(len(X)), "x": pa.FixedSizeListArray.from_arrays(values, X.shape[1])})
    pq.write_table(table, path, **options)
    return path


def hdf5(path, X, name="x", **options):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(path, "a") as file:
        file.create_dataset(name, data=X, **options)
    return path


def zarr_array(path, X, **options):
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    array = zarr.create_array(str(path), shape=X.shape, dtype=X.dtype, **options)
    array[:] = X
    return path
