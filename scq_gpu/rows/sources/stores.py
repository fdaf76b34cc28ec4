"""Formats that libraries of the extra ``io`` read in chunks: HDF5 and Zarr."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scq_gpu._core.optional import need
from scq_gpu._core.warn import warn_caller
from scq_gpu.rows.sources.base import FileRows, RowFileError
from scq_gpu.rows.sources.locations import Remote


def _library(module: str) -> Any:
    """An optional library, imported when a file of its format is opened."""
    return need(module, caller="this format", install='pip install "scq-gpu[io]"')


class Hdf5Rows(FileRows):
    """A dataset of an HDF5 file."""

    kind = "an HDF5 file"

    def _open(self) -> tuple[tuple[int, ...], np.dtype]:
        h5py = _library("h5py")
        found: dict[str, Any] = {}
        with self._file() as file:
            file.visititems(lambda name, thing: found.update({name: thing} if isinstance(thing, h5py.Dataset) else {}))
            shapes = {name: dataset.shape or () for name, dataset in found.items()}
            self._array = self._choose(shapes)
            dataset = found[self._array]
            if dataset.external or dataset.is_virtual:
                raise RowFileError(
                    f"{self.path}: {self._array!r} keeps its rows in other files, which are not read; copy them in"
                )
            if not dataset.id.get_storage_size() and all(dataset.shape):
                raise RowFileError(f"{self.path}: {self._array!r} claims {dataset.shape} and holds no data")
            self._check_piece(math.prod(dataset.chunks or (1,)) * dataset.dtype.itemsize, "a chunk")
            if dataset.chunks:
                _warn_of_missing(self.path, dataset.id.get_num_chunks(), _count_chunks(dataset.shape, dataset.chunks))
            return shapes[self._array], dataset.dtype

    def _pieces(self, size: int, first: int) -> Iterator[np.ndarray]:
        with self._file() as file:
            yield from _by_chunks(file[self._array], size=size, first=first)

    @contextlib.contextmanager
    def _file(self) -> Iterator[Any]:
        h5py = _library("h5py")
        if not isinstance(self.path, Remote):
            with h5py.File(self.path, "r") as file:
                yield file
            return
        with self.path.open("rb") as remote, h5py.File(remote, "r") as file:
            yield file


class ZarrRows(FileRows):
    """An array of a Zarr store in a folder."""

    kind = "a Zarr store"
    path: Path
    _array = ""  # its name; none where the store is one array

    def _open(self) -> tuple[tuple[int, ...], np.dtype]:
        _refuse_pickles(self.path)
        store = self._store()
        if not hasattr(store, "shape"):
            members = store.members(max_depth=None)
            self._array = self._choose({name: thing.shape for name, thing in members if hasattr(thing, "shape")})
        elif self.name is not None:
            self._choose({})  # refuses it
        array = self._store()
        stored = array.shards or array.chunks
        self._check_piece(math.prod(stored) * np.dtype(array.dtype).itemsize, "a chunk")
        self._check_chunks(_count_chunks(array.shape, stored))
        return array.shape, np.dtype(array.dtype)

    def _check_chunks(self, wanted: int) -> None:
        """Chunks that are not there read as the fill value: said if some are missing, refused if all are."""
        folder = self.path / self._array
        files = (Path(root, name).relative_to(folder) for root, _, names in os.walk(folder) for name in names)
        found = sum(_ZARR_CHUNK.fullmatch(file.as_posix()) is not None for file in files)
        if not found and wanted:
            raise RowFileError(f"{self.path} has none of its {wanted} chunks; copy it again")
        _warn_of_missing(self.path, found, wanted)

    def _pieces(self, size: int, first: int) -> Iterator[np.ndarray]:
        _refuse_pickles(self.path)
        return _by_chunks(self._store(), size=size, first=first)

    def _store(self) -> Any:
        """The store, or the array of it that is meant, once that is known."""
        store = _library("zarr").open(str(self.path), mode="r")
        found = store[self._array] if self._array else store
        if hasattr(found, "shape") and _names_pickle(found.metadata.to_dict()):  # as the library sees it
            raise _pickled(self.path)
        return found


def _count_chunks(shape: tuple[int, ...], chunks: tuple[int, ...]) -> int:
    return math.prod(-(-size // step) for size, step in zip(shape, chunks, strict=True))


def _warn_of_missing(path: Path, found: int, wanted: int) -> None:
    if found < wanted:
        warn_caller(
            f"{path} has {found} of its {wanted} chunks; the rows of the others are read as its fill value. "
            "Copy it again, unless it was written without empty chunks"
        )


_ZARR_CHUNK = re.compile(r"(c[./])?\d+([./]\d+)*")  # the name of a chunk's file, in the folder of its array
_ZARR_METADATA = frozenset({".zarray", ".zattrs", ".zgroup", ".zmetadata", "zarr.json"})
_MAX_METADATA = 64 << 20


def _refuse_pickles(store: Path) -> None:
    """Refuse a Zarr store that names the codec ``pickle``, by which reading a chunk can run any command."""
    for root, _, names in os.walk(store):
        for path in (Path(root, name) for name in names if name in _ZARR_METADATA):
            if path.stat().st_size > _MAX_METADATA:
                raise RowFileError(f"{path} has {path.stat().st_size} bytes, too many for metadata; copy it again")
            if path.name != ".zattrs" and _names_pickle(json.loads(path.read_bytes())):
                raise _pickled(path)


def _names_pickle(metadata: Any) -> bool:
    """Whether a codec called pickle stands anywhere in metadata; they may be nested, as those of shards are."""
    waiting = [metadata]
    while waiting:
        thing = waiting.pop()
        if isinstance(thing, Mapping):
            names = [thing.get(key) for key in ("id", "name", "codec_id", "object_codec_id")]
            waiting.extend(value for key, value in thing.items() if key != "attributes")
        else:
            names = [getattr(thing, "codec_id", None)]
            waiting.extend(thing if isinstance(thing, list | tuple) else ())
        if any(isinstance(name, str) and "pickle" in name.lower() for name in names):
            return True
    return False


def _pickled(path: Path) -> RowFileError:
    return RowFileError(
        f"{path} names the codec 'pickle', which can run any command when it is read; nothing was. Have whoever made "
        "the store write it with another codec, such as zstd"
    )


def _by_chunks(array: Any, *, size: int, first: int) -> Iterator[np.ndarray]:
    """Rows in pieces that end where chunks end."""
    chunk_rows = array.chunks[0] if array.chunks else 1
    height = max(1, size // chunk_rows) * chunk_rows
    start = first
    while start < array.shape[0]:
        stop = min(array.shape[0], (start // chunk_rows) * chunk_rows + height)
        yield np.asarray(array[start:stop])
        start = stop
