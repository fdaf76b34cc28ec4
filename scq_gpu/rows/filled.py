"""Rows with zeros in the place of those that hold NaN or inf, which are remembered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array
from scq_gpu._core.invalid import fill_invalid
from scq_gpu.rows.sources.base import ArrayRows, RowSource


class FilledRows(RowSource):
    """Rows of an array or a source, invalid ones filled with zeros block by block.

    Parameters
    ----------
    X : array (n, d) or RowSource
    """

    shape: tuple[int, int]
    dtype: Any
    label: str

    def __init__(self, X: Array | RowSource) -> None:
        self._rows = X if isinstance(X, RowSource) else ArrayRows(X, label="X")
        self.shape, self.dtype, self.label = self._rows.shape, self._rows.dtype, self._rows.label
        self.in_memory: bool = self._rows.in_memory
        self._found: dict[int, np.ndarray] = {}  # by the first row of a block, as rows may be gone through twice

    @property
    def invalid(self) -> np.ndarray:
        """Numbers of the invalid rows seen so far, ascending."""
        return np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *self._found.values()]))

    def sample(self) -> Array:
        """One row of the right kind."""
        return fill_invalid(self._rows.sample())[0]

    def blocks(self, size: int, *, first: int = 0) -> Iterator[Array]:
        """The rows from ``first`` on, ``size`` at a time."""
        row = first
        for block in self._rows.blocks(size, first=first):
            X, bad = fill_invalid(block)
            if bad.size:
                self._found[row] = bad + row
            yield X
            row += block.shape[0]

    def locate(self, row: int) -> str:
        """As the rows themselves say."""
        return self._rows.locate(row)

    def identity(self) -> list[dict[str, Any]]:
        """That of the rows."""
        return self._rows.identity()
