"""Formats that libraries of the extra ``io`` read: HDF5 and Zarr in chunks, Parquet and Arrow in groups of rows."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scq_gpu._core.messages import need
from scq_gpu.rows.sources.base import Contents, Name, RowFileError, check_piece, choose_array
from scq_gpu.rows.sources.locations import Location, Remote

_ZARR_METADATA = frozenset({".zarray", ".zattrs", ".zgroup", ".zmetadata", "zarr.json"})

Batches = Callable[[list[str], int, int], Iterator[Any]]
"""``batches(columns, size, first_group)``: record batches of up to ``size`` rows, from a group of rows on."""


def _library(module: str) -> Any:
    """Import an optional library when a file of its format is opened."""
    return need(module, caller="this format", install='pip install "scq-gpu[io]"')


def _source(path: Location) -> contextlib.AbstractContextManager[Any]:
    """Return what libraries open: a local path itself, or a file from elsewhere."""
    return path.open("rb") if isinstance(path, Remote) else contextlib.nullcontext(path)


@contextlib.contextmanager
def open_hdf5(path: Location, name: Name, n_bytes: int) -> Iterator[Contents]:
    """Open a dataset of an HDF5 file."""
    h5py = _library("h5py")
    found: dict[str, Any] = {}
    with _source(path) as source, h5py.File(source, "r") as file:
        file.visititems(lambda key, thing: found.update({key: thing} if isinstance(thing, h5py.Dataset) else {}))
        array = choose_array(path, name, {key: dataset.shape or () for key, dataset in found.items()})
        dataset, warning = found[array], ""
        if dataset.external or dataset.is_virtual:
            raise RowFileError(f"{path}: {array!r} keeps its rows in other files, which are not read; copy them in")
        if not dataset.id.get_storage_size() and all(dataset.shape):
            raise RowFileError(f"{path}: {array!r} claims {dataset.shape} and holds no data")
        check_piece(path, math.prod(dataset.chunks or (1,)) * dataset.dtype.itemsize, "a chunk")
        if dataset.chunks:
            warning = _check_chunks(path, dataset.id.get_num_chunks(), dataset.shape, dataset.chunks)
        yield Contents(dataset.shape or (), dataset.dtype, partial(_by_chunks, dataset), warning)


@contextlib.contextmanager
def open_zarr(path: Path, name: Name, n_bytes: int) -> Iterator[Contents]:
    """Open an array of a Zarr store in a folder."""
    _reject_pickles(path)
    array, folder = _library("zarr").open(str(path), mode="r"), path
    # A store is a group of arrays, or one array, which has no name.
    if not hasattr(array, "shape"):
        members = array.members(max_depth=None)
        key = choose_array(path, name, {k: thing.shape for k, thing in members if hasattr(thing, "shape")})
        array, folder = array[key], path / key
    elif name is not None:
        choose_array(path, name, {})
    # The library may find metadata that a walk over the folder does not see, such as behind a link.
    _reject_pickle(path, array.metadata.to_dict())
    stored = array.shards or array.chunks
    check_piece(path, math.prod(stored) * np.dtype(array.dtype).itemsize, "a chunk")
    # Chunks are known by their names within the folder of their array.
    files = (Path(root, file).relative_to(folder).as_posix() for root, _, files in os.walk(folder) for file in files)
    found = sum(re.fullmatch(r"(c[./])?\d+([./]\d+)*", file) is not None for file in files)
    warning = _check_chunks(path, found, array.shape, stored)
    yield Contents(array.shape, np.dtype(array.dtype), partial(_by_chunks, array), warning)


def _check_chunks(path: Location, found: int, shape: tuple[int, ...], chunks: tuple[int, ...]) -> str:
    """Return a warning if some chunks, which are read as the fill value, are missing; reject an array without any."""
    expected = math.prod(-(-size // step) for size, step in zip(shape, chunks, strict=True))
    if not found and expected:
        raise RowFileError(f"{path} has none of its {expected} chunks; copy it again")
    if found >= expected:
        return ""
    return (
        f"{path} has {found} of its {expected} chunks; the rows of the others are read as its fill value. "
        "Copy it again, unless it was written without empty chunks"
    )


def _reject_pickles(store: Path) -> None:
    """Reject a Zarr store of which any metadata name the codec ``pickle``."""
    for root, _, names in os.walk(store):
        for path in (Path(root, name) for name in names if name in _ZARR_METADATA):
            if path.stat().st_size > 64 << 20:
                raise RowFileError(f"{path} has {path.stat().st_size} bytes, too many for metadata; copy it again")
            if path.name != ".zattrs":
                _reject_pickle(path, json.loads(path.read_bytes()))


def _reject_pickle(path: Path, metadata: Any) -> None:
    """Reject metadata with a codec called pickle; codecs may be nested, as those of shards are."""
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
            raise RowFileError(
                f"{path} names the codec 'pickle', which can run any command when it is read; nothing was. Have "
                "the store written with another codec, such as zstd"
            )


def _by_chunks(array: Any, size: int, first: int) -> Iterator[np.ndarray]:
    """Yield rows in pieces that end where chunks end."""
    chunk_rows = array.chunks[0] if array.chunks else 1
    height = max(1, size // chunk_rows) * chunk_rows
    start = first
    while start < array.shape[0]:
        stop = min(array.shape[0], (start // chunk_rows) * chunk_rows + height)
        yield np.asarray(array[start:stop])
        start = stop


@contextlib.contextmanager
def open_parquet(path: Location, name: Name, n_bytes: int) -> Iterator[Contents]:
    """Open a Parquet file, by row groups."""
    parquet = _library("pyarrow.parquet")
    # Buffered reads keep a large row group from being read whole.
    with _source(path) as source, parquet.ParquetFile(source, buffer_size=1 << 20, pre_buffer=False) as file:
        groups = [file.metadata.row_group(k).num_rows for k in range(file.metadata.num_row_groups)]

        def batches(columns: list[str], size: int, first_group: int) -> Iterator[Any]:
            row_groups = list(range(first_group, len(groups)))
            return iter(file.iter_batches(batch_size=size, row_groups=row_groups, columns=columns))

        yield _open_table(path, name, file.schema_arrow, groups, batches)


@contextlib.contextmanager
def open_arrow(path: Location, name: Name, n_bytes: int) -> Iterator[Contents]:
    """Open an Arrow file (IPC, also called Feather), by record batches."""
    ipc = _library("pyarrow.ipc")
    with path.open("rb") as file:

        def read(fields: list[int] | None) -> Any:
            return ipc.open_file(file, options=ipc.IpcReadOptions(included_fields=fields))

        schema, heights = read(None).schema, read([])
        groups = [len(heights.get_batch(k)) for k in range(heights.num_record_batches)]

        def batches(columns: list[str], size: int, first_group: int) -> Iterator[Any]:
            reader = read([schema.get_field_index(column) for column in columns])
            for k in range(first_group, len(groups)):
                batch = reader.get_batch(k)
                # Offsets that lead out of their buffers would be followed.
                batch.validate(full=True)
                # A whole batch may be large, and its columns are copied.
                for start in range(0, len(batch), size):
                    yield batch.slice(start, size)

        yield _open_table(path, name, schema, groups, batches)


def _open_table(path: Location, name: Name, schema: Any, groups: list[int], batches: Batches) -> Contents:
    """Open the rows of a table: a column of lists of equal length, or numeric columns side by side.

    ``groups`` holds the number of rows of each group that can be read by itself.
    """
    columns = _choose_columns(path, name, schema)
    types = [schema.field(column).type for column in columns]
    # One column of lists has a width; numeric columns have none.
    width: int | None = None
    if _is_list(types[0]):
        width, types = getattr(types[0], "list_size", 0), [types[0].value_type]
        # Without a width in the schema, the first row has it, and every row is held to it.
        if not width:
            batch = next(batches(columns, 1, 0), None)
            if batch is not None and len(batch) and batch.column(0)[0].is_valid:
                width = len(batch.column(0)[0])
    shape = (sum(groups), len(columns) if width is None else width)
    dtype = np.result_type(*(kind.to_pandas_dtype() for kind in types))
    pieces = partial(_table_pieces, path, columns, width, groups, batches)
    id_type = partial(_id_type, path, schema)
    return Contents(shape, dtype, pieces, id_type=id_type, ids=partial(_ids, path, id_type, batches))


def _choose_columns(path: Location, name: Name, schema: Any) -> list[str]:
    """Choose columns: those named, the only one of lists, or all if all are numbers."""
    numeric = [field.name for field in schema if _is_numeric(field.type)]
    lists = [field.name for field in schema if _is_list(field.type)]
    if name is None:
        if len(lists) == 1:
            return lists
        if not lists and numeric and len(numeric) == len(schema):
            return numeric
    else:
        names = [name] if isinstance(name, str) else list(name)
        if (len(names) == 1 and names[0] in lists) or (names and set(names) <= set(numeric)):
            return names
    listed = ", ".join(f"{field.name!r} {field.type}" for field in schema)
    fault = "say which" if name is None else f"name={name!r} does not fit"
    raise RowFileError(
        f"{path} holds the columns {listed}; {fault}: name=... is one column of lists of numbers, or a list of numeric "
        "columns"
    )


def _table_pieces(
    path: Location, columns: list[str], width: int | None, groups: list[int], batches: Batches, size: int, first: int
) -> Iterator[np.ndarray]:
    start, group = 0, 0
    while group < len(groups) and start + groups[group] <= first:
        start += groups[group]
        group += 1
    for batch in batches(columns, size, group):
        found = [batch.column(column) for column in columns]
        for column in found:
            if column.null_count:
                raise RowFileError(f"{path}: row {start + _first_null(column)} is null; drop or fill in such rows")
        X = np.stack(found, axis=1) if width is None else _from_lists(path, found[0], width, start)
        yield X[max(0, first - start) :]
        start += len(batch)


def _from_lists(path: Location, column: Any, width: int, start: int) -> np.ndarray:
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(lengths != width)
    if wrong.size:
        raise RowFileError(
            f"{path}: row {start + wrong[0]} has {lengths[wrong[0]]} values, the first has {width}; all must be equal"
        )
    values = column.flatten()
    if values.null_count:
        row, k = divmod(_first_null(values), width)
        raise RowFileError(f"{path}: value {k} of row {start + row} is null; drop or fill in such rows")
    flat: np.ndarray = values.to_numpy(zero_copy_only=False)
    return flat.reshape(-1, width)


def _id_type(path: Location, schema: Any, column: str) -> Any:
    if column not in schema.names:
        raise RowFileError(f"{path} has no column {column!r}; it has {', '.join(map(repr, schema.names))}")
    types, kind = _library("pyarrow").types, schema.field(column).type
    plain = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_integer(plain) or types.is_string(plain) or types.is_large_string(plain)):
        raise RowFileError(f"{path}: column {column!r} is {kind}; ids are integers or strings")
    return plain


def _ids(path: Location, id_type: Callable[[str], Any], batches: Batches, column: str, size: int) -> Iterator[Any]:
    kind, start = id_type(column), 0
    for batch in batches([column], size, 0):
        ids = batch.column(0)
        if ids.null_count:
            raise RowFileError(
                f"{path}: row {start + _first_null(ids)} has no {column!r} (null); every row needs an id"
            )
        yield ids.cast(kind)
        start += len(ids)


def _first_null(values: Any) -> int:
    return int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])


def _is_numeric(kind: Any) -> bool:
    types = _library("pyarrow").types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _is_list(kind: Any) -> bool:
    types = _library("pyarrow").types
    is_list = types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind)
    return is_list and _is_numeric(kind.value_type)
