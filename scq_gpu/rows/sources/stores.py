"""Formats that libraries of the extra ``io`` read: HDF5 and Zarr, in chunks, and Parquet."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scq_gpu._core.optional import need
from scq_gpu._core.warn import warn_caller
from scq_gpu.rows.sources.base import FileRows, RowFileError


def _library(module: str) -> Any:
    """An optional library, imported when a file of its format is opened."""
    return need(module, caller="this format", install='pip install "scq-gpu[io]"')


class Hdf5Rows(FileRows):
    """A dataset of an HDF5 file."""

    kind = "an HDF5 file"

    def _open(self) -> tuple[tuple[int, ...], np.dtype]:
        h5py = _library("h5py")
        found: dict[str, Any] = {}
        with h5py.File(self.path, "r") as file:
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
            return shapes[self._array], dataset.dtype

    def _pieces(self, size: int, first: int) -> Iterator[np.ndarray]:
        with _library("h5py").File(self.path, "r") as file:
            yield from _by_chunks(file[self._array], size=size, first=first)


class ZarrRows(FileRows):
    """An array of a Zarr store in a folder."""

    kind = "a Zarr store"
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
        self._check_chunks(math.prod(-(-size // step) for size, step in zip(array.shape, stored, strict=True)))
        return array.shape, np.dtype(array.dtype)

    def _check_chunks(self, wanted: int) -> None:
        """Chunks that are not there read as the fill value: said if some are missing, refused if all are."""
        files = (name for _, _, names in os.walk(self.path / self._array) for name in names)
        found = sum(name not in _ZARR_METADATA and not name.startswith(".") for name in files)
        if not found and wanted:
            raise RowFileError(f"{self.path} has none of its {wanted} chunks; copy it again")
        if found < wanted:
            warn_caller(
                f"{self.path} has {found} of its {wanted} chunks; the rows of the others are read as its fill value. "
                "Copy it again, unless it was written without empty chunks"
            )

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


class ParquetRows(FileRows):
    """A Parquet file, by row groups: a column of lists of equal length, or numeric columns side by side."""

    kind = "a Parquet file"

    def _open(self) -> tuple[tuple[int, ...], np.dtype]:
        with self._file() as file:
            schema, metadata = file.schema_arrow, file.metadata
            self._columns = self._choose_columns(schema)
            self._group_rows = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
            types = [schema.field(column).type for column in self._columns]
            self._lists = len(types) == 1 and _is_list(types[0])
            if not self._lists:
                return (metadata.num_rows, len(types)), np.result_type(*(t.to_pandas_dtype() for t in types))
            self._width = getattr(types[0], "list_size", 0)
            if not self._width:  # not in the schema: the first row tells, and every row is held to it
                batch = next(file.iter_batches(batch_size=1, columns=self._columns), None)
                if batch is not None and batch.column(0)[0].is_valid:
                    self._width = len(batch.column(0)[0])
            return (metadata.num_rows, self._width), np.dtype(types[0].value_type.to_pandas_dtype())

    def _pieces(self, size: int, first: int) -> Iterator[np.ndarray]:
        start, group = 0, 0
        while group < len(self._group_rows) and start + self._group_rows[group] <= first:
            start += self._group_rows[group]
            group += 1
        groups = range(group, len(self._group_rows))
        with self._file() as file:
            for batch in file.iter_batches(batch_size=size, row_groups=list(groups), columns=self._columns):
                columns = [batch.column(column) for column in self._columns]
                for column in columns:
                    if column.null_count:
                        raise RowFileError(
                            f"{self.path}: row {start + _first_null(column)} is null; drop or fill in such rows"
                        )
                X = self._from_lists(columns[0], start) if self._lists else np.stack(columns, axis=1)
                yield X[max(0, first - start) :]
                start += len(batch)

    def _file(self) -> Any:
        # buffered reads keep a large row group from being read whole
        return _library("pyarrow.parquet").ParquetFile(self.path, buffer_size=1 << 20, pre_buffer=False)

    def _choose_columns(self, schema: Any) -> list[str]:
        """The columns that are meant: those named, the only one of lists, or all if all are numbers."""
        numeric = [field.name for field in schema if _is_numeric(field.type)]
        lists = [field.name for field in schema if _is_list(field.type)]
        if self.name is None:
            if len(lists) == 1:
                return lists
            if not lists and numeric and len(numeric) == len(schema):
                return numeric
        else:
            names = [self.name] if isinstance(self.name, str) else list(self.name)
            if (len(names) == 1 and names[0] in lists) or (names and set(names) <= set(numeric)):
                return names
        listed = ", ".join(f"{field.name!r} {field.type}" for field in schema)
        wanted = "say which" if self.name is None else f"name={self.name!r} does not fit"
        raise RowFileError(
            f"{self.path} holds the columns {listed}; {wanted}: name=... is one column of lists of numbers, or a list "
            "of numeric columns"
        )

    def _from_lists(self, column: Any, start: int) -> np.ndarray:
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(lengths != self._width)
        if wrong.size:
            raise RowFileError(
                f"{self.path}: row {start + wrong[0]} has {lengths[wrong[0]]} values, the first has {self._width}; "
                "all must be equal"
            )
        values = column.flatten()
        if values.null_count:
            row, k = divmod(_first_null(values), self._width)
            raise RowFileError(f"{self.path}: value {k} of row {start + row} is null; drop or fill in such rows")
        flat: np.ndarray = values.to_numpy(zero_copy_only=False)
        return flat.reshape(-1, self._width)


def _first_null(values: Any) -> int:
    return int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])


def _is_numeric(kind: Any) -> bool:
    types = _library("pyarrow").types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _is_list(kind: Any) -> bool:
    types = _library("pyarrow").types
    is_list = types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind)
    return is_list and _is_numeric(kind.value_type)
