"""From what users pass to ``fit`` and ``encode`` to rows: the kinds of input are told apart here."""

from __future__ import annotations

import os
from typing import Any

from scq_gpu._core.arrays import is_array
from scq_gpu._core.validate import check_array, check_row_count, check_rows
from scq_gpu.rows.distributed import DaskRows, is_dask
from scq_gpu.rows.passes import Rows
from scq_gpu.rows.sources import ArrayRows, JoinedRows, RowSource

InputRows = Rows | DaskRows
"""Rows that encoders learn from and encode, wherever they are."""


def as_rows(X: Any, *, device: str | None, min_rows: int = 1) -> InputRows:
    """Rows of X, checked, with their passes running on ``device`` (None follows X).

    X is an array, a source (`scq_gpu.io.open_rows`), a list of either, or a Dask array.
    """
    if isinstance(X, str | os.PathLike):
        raise TypeError(f"X is a path ({os.fspath(X)!r}); pass scq_gpu.io.open_rows({os.fspath(X)!r})")
    X = join_parts(X)
    if is_dask(X):
        return DaskRows(X, device=device, min_rows=max(1, min_rows))
    if isinstance(X, RowSource):
        check_row_count(X.shape, min_rows=min_rows)
    else:
        X = check_rows(X, min_rows=min_rows)
    return Rows(X, device=device)


def join_parts(X: Any) -> Any:
    """A list of arrays or sources as one source; whatever else X is, a list of rows included, stays what it is."""
    if isinstance(X, list | tuple) and any(
        isinstance(part, RowSource) or (is_array(part) and part.ndim == 2) for part in X
    ):
        return JoinedRows([_part(part, number) for number, part in enumerate(X)])
    return X


def _part(part: Any, number: int) -> RowSource:
    if isinstance(part, RowSource):
        return part
    label = f"X[{number}]"
    if is_dask(part):
        raise TypeError(f"{label} is a Dask array; join them with dask.array.concatenate, and pass the one array")
    array = check_array(part, name=label, min_ndim=2)
    if array.ndim != 2:
        raise ValueError(f"{label} must have 2 dimensions (rows, features), got {array.ndim}")
    return ArrayRows(array, label=label)
