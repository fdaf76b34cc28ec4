"""Rows scaled to unit length as they are read: what the cosine compares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scq_gpu._core.arrays import Array, compute_dtype, device_of, namespace
from scq_gpu.rows.sources.base import ArrayRows, RowSource


class NormalizedRows(RowSource):
    """Rows of an array or a source, divided by their lengths block by block. Zero rows are refused by number.

    Parameters
    ----------
    X : array (n, d) or RowSource
    label : str
        What errors call X.
    """

    shape: tuple[int, int]
    dtype: Any
    label: str

    def __init__(self, X: Array | RowSource, *, label: str = "X") -> None:
        self._rows = X if isinstance(X, RowSource) else ArrayRows(X, label=label)
        self.shape, self.label, self.in_memory = self._rows.shape, self._rows.label, self._rows.in_memory
        sample = self._rows.sample()
        self._xp = namespace(sample)
        self.dtype = compute_dtype(sample.dtype, xp=self._xp, device=device_of(sample))

    def sample(self) -> Array:
        """One row of the right kind."""
        return self._xp.astype(self._rows.sample(), self.dtype, copy=False)

    def blocks(self, size: int, *, first: int = 0) -> Iterator[Array]:
        """The rows from ``first`` on, ``size`` at a time."""
        xp, row = self._xp, first
        for block in self._rows.blocks(size, first=first):
            X = xp.astype(block, self.dtype, copy=False)
            norms = xp.linalg.vector_norm(X, axis=1, keepdims=True)
            if bool(xp.any(norms == 0)):
                zero = int(xp.argmax(xp.astype(norms[:, 0] == 0, xp.int8)))
                raise ValueError(
                    f"{self.locate(row + zero)} is zero and has no direction, which metric='cosine' compares; drop it, "
                    "or use metric='l2'"
                )
            yield X / norms
            row += block.shape[0]

    def locate(self, row: int) -> str:
        """As the rows themselves say."""
        return self._rows.locate(row)

    def identity(self) -> list[dict[str, Any]]:
        """That of the rows, and that they are normalized."""
        return [facts | {"normalized": True} for facts in self._rows.identity()]
