"""Files of rows, of many formats: read in blocks, as often as asked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from scq_gpu._core.arrays import is_array
from scq_gpu.rows.sources import base, binary, stores
from scq_gpu.rows.sources.base import ArrayRows, FileRows, JoinedRows, Name, Opener, RowFileError, RowSource, read_ahead
from scq_gpu.rows.sources.locations import Location, Remote, in_order, is_url, locate

__all__ = ["ArrayRows", "JoinedRows", "RowFileError", "RowSource", "is_url", "open_rows", "read_ahead"]

_ZARR = ("a Zarr store", stores.open_zarr)
FORMATS: dict[str, tuple[str, Opener]] = {
    ".npy": ("an .npy file", binary.open_npy),
    ".npz": ("an .npz archive", binary.open_npz),
    **dict.fromkeys(binary.BIN_TYPES, ("a .fbin, .u8bin or .i8bin file", binary.open_bin)),
    **dict.fromkeys(binary.VECS_TYPES, ("an .fvecs or .bvecs file", binary.open_vecs)),
    ".parquet": ("a Parquet file", stores.open_parquet),
    **dict.fromkeys((".arrow", ".feather"), ("an Arrow file (IPC)", stores.open_arrow)),
    **dict.fromkeys((".h5", ".hdf5"), ("an HDF5 file", stores.open_hdf5)),
    ".zarr": _ZARR,
}
"""A format by the ending of its files: a name for messages, and an opener (see `FileRows`)."""

Paths = str | os.PathLike[str] | RowSource | Sequence["str | os.PathLike[str] | RowSource"]


def open_rows(path: Paths, *, name: Name = None) -> RowSource:
    """Open a file of rows, which ``fit`` and ``encode`` read in blocks.

    The format goes by the ending: ``.npy``, ``.npz``, ``.fbin``, ``.u8bin``, ``.i8bin``, ``.fvecs``, ``.bvecs``,
    ``.parquet``, ``.arrow``, ``.feather``, ``.h5``, ``.hdf5`` or ``.zarr``. The last six need the extra ``io``.

    Parameters
    ----------
    path : path or list of paths
        A file, a folder, a pattern such as ``part-*.parquet``, or a list of those. Files of a folder or pattern are
        joined in the natural order of their names (``part-2`` before ``part-10``), a list in its own order. A URL
        (``s3://``, ``gs://``, ``https://``, ...) is read through fsspec (extra ``remote``), all formats but Zarr.
    name : str or list of str, optional
        The array of an ``.npz`` archive, HDF5 file or Zarr store that holds several. For a Parquet or Arrow file, one
        column of lists or a list of numeric columns.

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
    if is_array(path):
        raise TypeError(
            f"path is an array ({type(path).__module__}), not a path; fit and encode take arrays themselves"
        )
    if not isinstance(path, Sequence) or not path:
        raise ValueError(f"path={path!r} is neither a path nor a list of paths with at least one in it")
    return JoinedRows([open_rows(part, name=name) for part in path])


def memory_map(path: str | os.PathLike[str]) -> np.ndarray | None:
    """Map a file's rows into memory, to be read row by row; return None for formats and places that cannot."""
    if is_url(path):
        return None
    path, kind = Path(path), Path(path).suffix.lower()
    if kind != ".npy" and kind not in binary.BIN_TYPES:
        return None
    # This checks the header against the file.
    rows = open_rows(path)
    if kind == ".npy":
        return binary.read_array(path)
    return np.memmap(path, dtype=binary.BIN_TYPES[kind], mode="r", offset=8, shape=rows.shape)


def _open_path(path: Location, name: Name) -> RowSource:
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    found = FORMATS.get(path.suffix.lower())
    if isinstance(path, Remote):
        if found is None and path.is_dir():
            return _open_folder(path, name)
        if found is _ZARR:
            raise RowFileError(f"{path} is a Zarr store, which is read from local folders alone; copy it first")
    elif path.is_dir() and found is not _ZARR:
        # A Zarr store may have any name, but one of these files is in it.
        if not any((path / mark).exists() for mark in ("zarr.json", ".zarray", ".zgroup")):
            return _open_folder(path, name)
        found = _ZARR
    if found is not None:
        return FileRows(path, *found, name=name)
    known = ", ".join(FORMATS)
    if path.suffix.lower() == ".safetensors":
        raise RowFileError(f"{path} is a model or an index, where rows are expected ({known})")
    raise RowFileError(f"{path} has the ending {path.suffix!r}; those known are {known}")


def _open_folder(folder: Location, name: Name) -> RowSource:
    """Join the files of rows in a folder; skip hidden ones, such as unfinished ones."""
    found = [p for p in folder.iterdir() if p.suffix.lower() in FORMATS and not p.name.startswith((".", "_"))]
    for path in found:
        if isinstance(folder, Path) and isinstance(path, Path) and path.is_symlink():
            base.check_link(path, folder)
    if not found:
        raise RowFileError(f"{folder} is a folder without a file of rows ({', '.join(FORMATS)})")
    return JoinedRows([_open_path(part, name) for part in in_order(found, str(folder))])
