"""Tables, which hold columns of many kinds: Parquet and Arrow files, read by pyarrow of the extra ``io``."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from scq_gpu._core.optional import need
from scq_gpu.rows.sources.base import FileRows, RowFileError
from scq_gpu.rows.sources.locations import Remote


def _library(module: str) -> Any:
    """pyarrow, imported when a table is opened."""
    return need(module, caller="this format", install='pip install "scq-gpu[io]"')


class TableRows(FileRows):
    """Rows of a table: a column of lists of equal length, or numeric columns side by side.

    A format opens the file, and gives batches of some of its columns.
    """

    _group_rows: list[int]  # rows of each piece of the file that can be read by itself

    @abc.abstractmethod
    def _schema(self) -> Any:
        """The columns; sets ``_group_rows``."""

    @abc.abstractmethod
    def _batches(self, columns: list[str], size: int, *, first_group: int = 0) -> Iterator[Any]:
        """Record batches of about ``size`` rows, from a group on."""

    def id_type(self, column: str) -> Any:
        """The type of a column of ids, refused where it cannot be one."""
        schema = self._schema_read
        if column not in schema.names:
            raise RowFileError(f"{self.path} has no column {column!r}; it has {', '.join(map(repr, schema.names))}")
        types, kind = _library("pyarrow").types, schema.field(column).type
        plain = kind.value_type if types.is_dictionary(kind) else kind
        if not (types.is_integer(plain) or types.is_string(plain) or types.is_large_string(plain)):
            raise RowFileError(f"{self.path}: column {column!r} is {kind}; ids are integers or strings")
        return plain

    def ids(self, column: str, size: int) -> Iterator[Any]:
        """The ids of all rows, in order, as Arrow arrays."""
        kind, start = self.id_type(column), 0
        self._check_unchanged()
        with self._reading():
            for batch in self._batches([column], size):
                ids = batch.column(0)
                if ids.null_count:
                    raise RowFileError(
                        f"{self.path}: row {start + _first_null(ids)} has no {column!r} (null); every row needs an id"
                    )
                yield ids.cast(kind)
                start += len(ids)

    def _open(self) -> tuple[tuple[int, ...], np.dtype]:
        schema = self._schema_read = self._schema()
        n = sum(self._group_rows)
        self._columns = self._choose_columns(schema)
        types = [schema.field(column).type for column in self._columns]
        self._lists = len(types) == 1 and _is_list(types[0])
        if not self._lists:
            return (n, len(types)), np.result_type(*(t.to_pandas_dtype() for t in types))
        self._width = getattr(types[0], "list_size", 0)
        if not self._width:  # not in the schema: the first row tells, and every row is held to it
            batch = next(self._batches(self._columns, 1), None)
            if batch is not None and len(batch) and batch.column(0)[0].is_valid:
                self._width = len(batch.column(0)[0])
        return (n, self._width), np.dtype(types[0].value_type.to_pandas_dtype())

    def _pieces(self, size: int, first: int) -> Iterator[np.ndarray]:
        start, group = 0, 0
        while group < len(self._group_rows) and start + self._group_rows[group] <= first:
            start += self._group_rows[group]
            group += 1
        for batch in self._batches(self._columns, size, first_group=group):
            columns = [batch.column(column) for column in self._columns]
            for column in columns:
                if column.null_count:
                    raise RowFileError(
                        f"{self.path}: row {start + _first_null(column)} is null; drop or fill in such rows"
                    )
            X = self._from_lists(columns[0], start) if self._lists else np.stack(columns, axis=1)
            yield X[max(0, first - start) :]
            start += len(batch)

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


class ParquetRows(TableRows):
    """A Parquet file, by row groups."""

    kind = "a Parquet file"

    def _schema(self) -> Any:
        with self._file() as file:
            self._group_rows = [file.metadata.row_group(k).num_rows for k in range(file.metadata.num_row_groups)]
            return file.schema_arrow

    def _batches(self, columns: list[str], size: int, *, first_group: int = 0) -> Iterator[Any]:
        groups = list(range(first_group, len(self._group_rows)))
        with self._file() as file:
            yield from file.iter_batches(batch_size=size, row_groups=groups, columns=columns)

    @contextlib.contextmanager
    def _file(self) -> Iterator[Any]:
        with contextlib.ExitStack() as stack:
            source = stack.enter_context(self.path.open("rb")) if isinstance(self.path, Remote) else self.path
            # buffered reads keep a large row group from being read whole
            options = {"buffer_size": 1 << 20, "pre_buffer": False}
            yield stack.enter_context(_library("pyarrow.parquet").ParquetFile(source, **options))


class ArrowRows(TableRows):
    """An Arrow file (IPC, also called Feather), by record batches."""

    kind = "an Arrow file (IPC)"

    def _schema(self) -> Any:
        with self._file([]) as file:
            self._group_rows = [len(file.get_batch(k)) for k in range(file.num_record_batches)]
        with self._file() as file:
            return file.schema

    def _batches(self, columns: list[str], size: int, *, first_group: int = 0) -> Iterator[Any]:
        chosen = [self._schema_read.get_field_index(column) for column in columns]
        with self._file(chosen) as file:
            for k in range(first_group, file.num_record_batches):
                batch = file.get_batch(k)
                batch.validate(full=True)  # offsets that lead out of their buffers would be followed
                for start in range(0, len(batch), size):
                    yield batch.slice(start, size)

    @contextlib.contextmanager
    def _file(self, fields: list[int] | None = None) -> Iterator[Any]:
        ipc = _library("pyarrow.ipc")
        with (
            self.path.open("rb") as file,
            ipc.open_file(file, options=ipc.IpcReadOptions(included_fields=fields)) as reader,
        ):
            yield reader


def _first_null(values: Any) -> int:
    return int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])


def _is_numeric(kind: Any) -> bool:
    types = _library("pyarrow").types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _is_list(kind: Any) -> bool:
    types = _library("pyarrow").types
    is_list = types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind)
    return is_list and _is_numeric(kind.value_type)
