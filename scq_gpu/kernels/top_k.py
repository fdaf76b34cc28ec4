"""The k least values of each query, kept while blocks of candidates go by, on any array namespace."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

from scq_gpu._core.arrays import Array, device_of, row_slices

PAIR_BYTES: Final = 48
"""What a pair of query and candidate takes while it is offered: value, row and order, old and new."""


class Nearest:
    """Running top-k: the least values so far of each query, and their rows.

    Blocks come in ascending order of rows. The best so far stand before the rows of a block in a stable sort, so that
    inside a tie the lowest row comes first.

    Parameters
    ----------
    k : int
    xp : module
    """

    def __init__(self, k: int, *, xp: ModuleType) -> None:
        self._k, self._xp = k, xp
        self._values: Array = None
        self._rows: Array = None

    def offer(self, values: Array, first: int) -> None:
        """Take the values (q, m) of the rows first, first + 1, ..., first + m - 1."""
        xp = self._xp
        rows = xp.arange(first, first + values.shape[1], dtype=xp.int64, device=device_of(values))
        rows = xp.broadcast_to(rows, values.shape)
        if self._values is not None:
            values, rows = xp.concat([self._values, values], axis=1), xp.concat([self._rows, rows], axis=1)
        order = xp.argsort(values, axis=1, stable=True)[:, : min(self._k, values.shape[1])]
        order = xp.astype(order, xp.int64, copy=False)
        self._values, self._rows = (xp.take_along_axis(x, order, axis=1) for x in (values, rows))

    def best(self, *, dtype: Any, padding: float) -> tuple[Array, Array]:
        """Values (q, k) and rows (q, k), ascending, padded with ``padding`` and -1 where there were fewer than k."""
        return pad_answers(self._xp.astype(self._values, dtype), self._rows, self._k, padding=padding, xp=self._xp)


def pad_answers(values: Array, rows: Array, k: int, *, padding: float, xp: ModuleType) -> tuple[Array, Array]:
    """Values and rows (q, m) with m <= k as (q, k), filled up with ``padding`` and -1."""
    missing = (values.shape[0], k - values.shape[1])
    if not missing[1]:
        return values, rows
    fills = (xp.full(missing, fill, dtype=x.dtype, device=device_of(x)) for x, fill in ((values, padding), (rows, -1)))
    d, r = (xp.concat([x, fill], axis=1) for x, fill in zip((values, rows), fills, strict=True))
    return d, r


def code_blocks(parts: list[Array], size: int) -> Iterator[tuple[Array, int]]:
    """Blocks of at most ``size`` codes, and the row each begins with."""
    first = 0
    for part in parts:
        for block in row_slices(part.shape[0], size):
            yield part[block, :], first + block.start
        first += part.shape[0]
