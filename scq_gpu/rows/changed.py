"""Rows that are changed piece by piece as they are read: scaled to unit length, invalid rows filled in or left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array, compute_dtype, device_of, namespace, on_device_of
from scq_gpu._core.validate import fill_invalid, unit_rows
from scq_gpu.rows.sources.base import ArrayRows, RowSource

_BLOCK_ENTRIES = 1 << 22


class ChangedRows(RowSource):
    """Rows of a source, each piece of which goes through a function.

    ``change(piece, first)`` gives rows of ``dtype``, those of the numbers ``kept`` or all; ``first`` is the number of
    the first. The ``facts`` are added to the identity of the rows.
    """

    def __init__(
        self,
        rows: RowSource,
        change: Callable[[Array, int], Array],
        *,
        dtype: Any,
        facts: dict[str, Any],
        kept: np.ndarray | None = None,
    ) -> None:
        self._rows, self._change, self._facts, self._kept, self.dtype = rows, change, facts, kept, dtype
        self.shape = (rows.shape[0] if kept is None else len(kept), rows.shape[1])
        self.label, self.in_memory = rows.label, rows.in_memory

    def sample(self) -> Array:
        """Return one row of the right kind."""
        sample = self._rows.sample()
        return namespace(sample).astype(sample, self.dtype, copy=False)

    def pieces(self, size: int, *, first: int = 0) -> Iterator[Array]:
        """Yield the rows from ``first`` on, in pieces of any height."""
        row = first if self._kept is None else int(self._kept[first])
        for piece in self._rows.pieces(size, first=row):
            yield self._change(piece, row)
            row += piece.shape[0]

    def id_type(self, column: str) -> Any:
        """Return the type of the rows' own ids."""
        return self._rows.id_type(column)

    def ids(self, column: str, size: int) -> Iterator[Any]:
        """Yield the ids of the rows themselves."""
        return self._rows.ids(column, size)

    def locate(self, row: int) -> str:
        """Return the location that the rows themselves give."""
        return self._rows.locate(row if self._kept is None else int(self._kept[row]))

    def identity(self) -> list[dict[str, Any]]:
        """Return the identity of the rows, and what was changed."""
        return [facts | self._facts for facts in self._rows.identity()]


def normalize_rows(X: Array | RowSource, *, label: str = "X") -> ChangedRows:
    """Divide rows by their lengths, which the cosine ignores. Reject zero rows by number."""
    source = _source_of(X, label)
    sample = source.sample()
    xp = namespace(sample)
    # a type, not the class of its numbers, knows its size
    with on_device_of(sample):
        dtype = xp.astype(sample, compute_dtype(sample.dtype, xp=xp, device=device_of(sample))).dtype
    return ChangedRows(source, partial(_normalize, source=source, dtype=dtype), dtype=dtype, facts={"normalized": True})


def _normalize(block: Array, first: int, *, source: RowSource, dtype: Any) -> Array:
    scaled = namespace(block).astype(block, dtype, copy=False)
    return unit_rows(scaled, lambda row: source.locate(first + row))


def fill_rows(X: Array | RowSource) -> tuple[ChangedRows, Callable[[], np.ndarray]]:
    """Put zeros in the place of rows that hold NaN or inf.

    The second result is a function that gives the numbers of the invalid rows seen so far, ascending.
    """
    found: dict[int, np.ndarray] = {}  # by the first row of a piece, as rows may be read twice

    def fill(block: Array, first: int) -> Array:
        Y, bad = fill_invalid(block)
        if bad.size:
            found[first] = bad + first
        return Y

    source = _source_of(X)
    filled = ChangedRows(source, fill, dtype=source.dtype, facts={})
    return filled, lambda: np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *found.values()]))


def drop_invalid(X: Array | RowSource) -> tuple[Array | RowSource, np.ndarray]:
    """Leave out rows that hold NaN or inf, and return their numbers, which takes a pass."""
    source, first, found = _source_of(X), 0, [np.zeros(0, dtype=np.int64)]
    for block in source.blocks(max(1, _BLOCK_ENTRIES // source.shape[1])):
        found.append(fill_invalid(block)[1] + first)
        first += block.shape[0]
    invalid = np.concatenate(found)
    if not invalid.size:
        return X, invalid
    kept = np.delete(np.arange(source.shape[0]), invalid)

    def choose(block: Array, first: int) -> Array:
        low, high = np.searchsorted(kept, (first, first + block.shape[0]))
        xp = namespace(block)
        return xp.take(block, xp.asarray(kept[low:high] - first, device=device_of(block)), axis=0)

    return ChangedRows(source, choose, dtype=source.dtype, facts={}, kept=kept), invalid


def _source_of(X: Array | RowSource, label: str = "X") -> RowSource:
    return X if isinstance(X, RowSource) else ArrayRows(X, label=label)
