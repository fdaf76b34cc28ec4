"""Rows that are changed piece by piece as they are read: scaled to unit length, or with invalid rows filled in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array, compute_dtype, device_of, namespace
from scq_gpu._core.validate import fill_invalid, unit_rows
from scq_gpu.rows.sources.base import ArrayRows, RowSource


class ChangedRows(RowSource):
    """Rows of a source, each piece of which goes through a function.

    ``change(piece, first)`` gives rows of the same shape and of ``dtype``; ``first`` is the number of the first. The
    ``facts`` are added to the identity of the rows.
    """

    def __init__(
        self, rows: RowSource, change: Callable[[Array, int], Array], *, dtype: Any, facts: dict[str, Any]
    ) -> None:
        self._rows, self._change, self._facts, self.dtype = rows, change, facts, dtype
        self.shape, self.label, self.in_memory = rows.shape, rows.label, rows.in_memory

    def sample(self) -> Array:
        """Return one row of the right kind."""
        sample = self._rows.sample()
        return namespace(sample).astype(sample, self.dtype, copy=False)

    def pieces(self, size: int, *, first: int = 0) -> Iterator[Array]:
        """Yield the rows from ``first`` on, in pieces of any height."""
        row = first
        for piece in self._rows.pieces(size, first=first):
            yield self._change(piece, row)
            row += piece.shape[0]

    def locate(self, row: int) -> str:
        """Return the location that the rows themselves give."""
        return self._rows.locate(row)

    def identity(self) -> list[dict[str, Any]]:
        """Return the identity of the rows, and what was changed."""
        return [facts | self._facts for facts in self._rows.identity()]


def normalize_rows(X: Array | RowSource, *, label: str = "X") -> ChangedRows:
    """Divide rows by their lengths, which the cosine ignores. Reject zero rows by number."""
    source = X if isinstance(X, RowSource) else ArrayRows(X, label=label)
    sample = source.sample()
    xp = namespace(sample)
    dtype = compute_dtype(sample.dtype, xp=xp, device=device_of(sample))

    def normalize(block: Array, first: int) -> Array:
        return unit_rows(xp.astype(block, dtype, copy=False), lambda row: source.locate(first + row))

    return ChangedRows(source, normalize, dtype=dtype, facts={"normalized": True})


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

    source = X if isinstance(X, RowSource) else ArrayRows(X, label="X")
    filled = ChangedRows(source, fill, dtype=source.dtype, facts={})
    return filled, lambda: np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *found.values()]))
