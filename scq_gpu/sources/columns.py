"""Parquet: rows in a column of lists, or one column a feature."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from scq_gpu.sources.base import FileRows, RowFileError, needs


class ParquetRows(FileRows):
    """A Parquet file, by row groups: a column of lists of equal length, or numeric columns side by side."""

    kind = "a Parquet file"

    def _open(self) -> tuple[tuple[int, ...], np.dtype]:
        with self._file() as file:
            schema, metadata = file.schema_arrow, file.metadata
            self._columns = self._choose(schema)
            self._group_rows = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
            types = [schema.field(column).type for column in self._columns]
            self._lists = len(types) == 1 and _is_list(types[0])
            if not self._lists:
                return (metadata.num_rows, len(types)), np.result_type(*(t.to_pandas_dtype() for t in types))
            width = getattr(types[0], "list_size", None)
            if width is None:  # not in the schema: the first row tells, and every row is held to it
                width = 0
                for batch in file.iter_batches(batch_size=1, columns=self._columns):
                    width = len(batch.column(0)[0]) if batch.column(0)[0].is_valid else 0
                    break
            self._width = width
            return (metadata.num_rows, width), np.dtype(types[0].value_type.to_pandas_dtype())

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
                    self._refuse_nulls(column, start)
                X = self._from_lists(columns[0], start) if self._lists else np.stack(columns, axis=1)
                yield X[max(0, first - start) :]
                start += len(batch)

    def _file(self) -> Any:
        # buffered reads keep a large row group from being read whole
        return needs("pyarrow.parquet").ParquetFile(self.path, buffer_size=1 << 20, pre_buffer=False)

    def _choose(self, schema: Any) -> list[str]:
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

    def _refuse_nulls(self, column: Any, start: int) -> None:
        if column.null_count:
            row = start + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise RowFileError(f"{self.path}: row {row} is null; drop or fill in such rows")

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
            place = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
            row, k = start + place // self._width, place % self._width
            raise RowFileError(f"{self.path}: value {k} of row {row} is null; drop or fill in such rows")
        flat: np.ndarray = values.to_numpy(zero_copy_only=False)
        return flat.reshape(-1, self._width)


def _is_numeric(kind: Any) -> bool:
    types = needs("pyarrow").types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _is_list(kind: Any) -> bool:
    types = needs("pyarrow").types
    is_list = types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind)
    return is_list and _is_numeric(kind.value_type)
