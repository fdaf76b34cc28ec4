"""Where rows come from when they are not an array: files of many formats, read in blocks, as often as asked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from scq_gpu.rows.sources.base import ArrayRows, FileRows, JoinedRows, RowFileError, RowSource, read_ahead
from scq_gpu.rows.sources.binary import BinRows, NpyRows, NpzRows, VecsRows
from scq_gpu.rows.sources.locations import Location, Remote, in_order, is_url, locate
from scq_gpu.rows.sources.stores import Hdf5Rows, ZarrRows
from scq_gpu.rows.sources.tables import ArrowRows, ParquetRows

__all__ = ["ArrayRows", "JoinedRows", "RowFileError", "RowSource", "is_url", "open_rows", "read_ahead"]

_FORMATS: dict[str, type[FileRows]] = {
    ".npy": NpyRows,
    ".npz": NpzRows,
    **dict.fromkeys(BinRows.TYPES, BinRows),
    **dict.fromkeys(VecsRows.TYPES, VecsRows),
    ".parquet": ParquetRows,
    ".arrow": ArrowRows,
    ".feather": ArrowRows,
    ".h5": Hdf5Rows,
    ".hdf5": Hdf5Rows,
    ".zarr": ZarrRows,
}
_ZARR_MARKS = ("zarr.json", ".zarray", ".zgroup")

Paths = str | os.PathLike[str] | RowSource | Sequence["str | os.PathLike[str] | RowSource"]


def open_rows(path: Paths, *, name: str | Sequence[str] | None = None) -> RowSource:
    """Open a file of rows, to be read in blocks whenever ``fit`` or ``encode`` goes through them.

    The format goes by the ending: ``.npy``, ``.npz``, ``.fbin``, ``.u8bin``, ``.i8bin``, ``.fvecs``, ``.bvecs``,
    ``.parquet``, ``.arrow``, ``.feather``, ``.h5``, ``.hdf5`` or ``.zarr``. The last six need the extra ``io``.

    Parameters
    ----------
    path : path or list of paths
        A file; a folder, whose files of these formats are joined in the natural order of their names (``part-2`` before
        ``part-10``); a pattern such as ``part-*.parquet``, in the same order; or a list of those, joined in the order
        given. A URL (``s3://``, ``gs://``, ``https://``, ...) is read through fsspec (extra ``remote``), all formats
        but Zarr.
    name : str or list of str, optional
        What to take where a file holds several: an array of an ``.npz`` archive, HDF5 file or Zarr store, or of a
        Parquet or Arrow file one column of lists or a list of numeric columns.

    Returns
    -------
    RowSource
        With ``shape`` and ``dtype``; ``numpy.asarray`` of it reads everything.

    Examples
    --------
    >>> import tempfile, numpy as np, scq_gpu as scq
    >>> X = np.random.default_rng(0).normal(size=(1000, 16)).astype(np.float32)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/x.npy", X)
    ...     rows = scq.io.open_rows(f"{folder}/x.npy")
    ...     encoder = scq.OgE(n_bits=8, random_state=0).fit(rows)
    ...     codes = encoder.encode(rows)
    >>> rows.shape, rows.dtype, codes.shape
    ((1000, 16), dtype('float32'), (1000, 1))
    """
    if isinstance(path, RowSource):
        return path
    if isinstance(path, str | os.PathLike):
        found = locate(path)
        if not isinstance(found, list):
            return _open_path(found, name)
        return JoinedRows([_open_path(part, name) for part in found])
    if not isinstance(path, Sequence) or not path:
        raise ValueError(f"path={path!r} is neither a path nor a list of paths with at least one in it")
    return JoinedRows([open_rows(part, name=name) for part in path])


def memory_map(path: str | os.PathLike[str]) -> np.ndarray | None:
    """A file's rows as a memory map, which can be read row by row; None for formats and places that cannot."""
    if is_url(path):
        return None
    path, kind = Path(path), Path(path).suffix.lower()
    if kind != ".npy" and kind not in BinRows.TYPES:
        return None
    rows = open_rows(path)  # which checks the header against the file
    if kind == ".npy":
        mapped: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        return mapped
    return np.memmap(path, dtype=BinRows.TYPES[kind], mode="r", offset=8, shape=rows.shape)


def _open_path(path: Location, name: str | Sequence[str] | None) -> RowSource:
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    kind = _FORMATS.get(path.suffix.lower())
    if isinstance(path, Remote):
        if kind is None and path.is_dir():
            return _open_folder(path, name)
        if kind is ZarrRows:
            raise RowFileError(f"{path} is a Zarr store, which is read from local folders alone; copy it first")
    elif path.is_dir() and kind is not ZarrRows:
        if not any((path / mark).exists() for mark in _ZARR_MARKS):
            return _open_folder(path, name)
        kind = ZarrRows
    if kind is None and path.suffix.lower() == ".safetensors":
        raise RowFileError(f"{path} is a model or an index, where rows are wanted ({', '.join(_FORMATS)})")
    if kind is None:
        raise RowFileError(f"{path} has the ending {path.suffix!r}; those known are {', '.join(_FORMATS)}")
    return kind(path, name)


def _open_folder(folder: Location, name: str | Sequence[str] | None) -> RowSource:
    """The files of rows in a folder, joined; hidden ones, such as unfinished ones, are left out."""
    files = (p for p in folder.iterdir() if p.suffix.lower() in _FORMATS and not p.name.startswith((".", "_")))
    found = list(files)
    if not found:
        raise RowFileError(f"{folder} is a folder without a file of rows ({', '.join(_FORMATS)})")
    return JoinedRows([_open_path(part, name) for part in in_order(found, str(folder))])
