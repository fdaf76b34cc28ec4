"""`State`, the immutable codes of an index: a change replaces it, so that a search sees one moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array, device_of, is_array, like, namespace, to_host
from scq_gpu._core.validate import check_index_codes
from scq_gpu.search.ids import check_ids, check_unique, decode_ids, is_text


@dataclass(frozen=True)
class State:
    """Codes, their ids, and search structures built from them."""

    parts: tuple[Array, ...]  # codes (n, bytes), in ascending order of ids
    ids: np.ndarray | None  # ascending, one per row; None if ids are row numbers
    made: dict[str, Any] = field(default_factory=dict)  # engine and tables, built when first needed

    def __len__(self) -> int:
        return sum(part.shape[0] for part in self.parts)

    @property
    def known(self) -> np.ndarray:
        """Return the id of each row."""
        return np.arange(len(self)) if self.ids is None else self.ids

    def check_beside(self, codes: Array, *, name: str) -> None:
        """Check that codes are in the namespace and on the device of these."""
        mine = self.parts[0]
        here, there = namespace(mine), namespace(codes)
        if here is not there or device_of(mine) != device_of(codes):
            raise ValueError(
                f"{name} are {there.__name__} on {device_of(codes)} and the index is {here.__name__} on "
                f"{device_of(mine)}; move one to the other"
            )

    def check_queries(self, queries: Array, n_bits: int) -> Array:
        """Return queries that are packed codes of that many bits beside these."""
        queries = check_index_codes(queries, n_bits=n_bits, name="queries")
        self.check_beside(queries, name="queries")
        return queries

    def rows_of(self, ids: np.ndarray, *, purpose: str) -> np.ndarray:
        """Return the rows of these ids, each of which must be in the index."""
        known = self.known
        if not len(ids):
            return np.zeros(0, dtype=np.int64)
        at = np.minimum(np.searchsorted(known, ids), max(0, len(known) - 1))
        missing = np.flatnonzero(known[at] != ids) if len(known) else np.arange(len(ids))
        if missing.size:
            raise KeyError(f"id {decode_ids(ids)[missing[0]]} is not in the index, so it cannot be {purpose}")
        return at

    def joined(self, *, copy: bool = False) -> State:
        """Return the same codes in one part, behind a memory map unless ``copy`` is set."""
        mapped = 0 if copy or not isinstance(self.parts[0], np.memmap) else 1
        if len(self.parts) - mapped <= 1:
            return self
        xp = namespace(self.parts[0])
        return State((*self.parts[:mapped], xp.concat(list(self.parts[mapped:]), axis=0)), self.ids)

    def taken(self, rows: np.ndarray) -> State:
        """Return some rows, in the order given, without ids."""
        whole = self.joined(copy=True)
        xp, numbers = namespace(whole.parts[0]), like(rows, whole.parts[0])
        return State(tuple(xp.take(part, numbers, axis=0) for part in whole.parts), None)

    def selected(self, rows: np.ndarray) -> State:
        """Return some rows, ascending, with their ids; only these are read from a memory map."""
        if len(rows) == len(self):
            return self
        some = [State((part,), None).taken(mine) for part, mine, _ in split_rows(self.parts, rows)]
        return State(tuple(part for mine in some for part in mine.parts), self.known[rows]).joined(copy=True)

    def numbered(self, ids: np.ndarray) -> State:
        """Return the rows with these ids, in ascending order of ids."""
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        check_unique(ordered)
        ascending = bool((ids[1:] > ids[:-1]).all())
        return replace(self if ascending else self.taken(order), ids=ordered)

    def updated(self, rows: np.ndarray, new: State) -> State:
        """Return the same ids with the codes of some rows replaced by those of ``new``, in one part."""
        order = np.arange(len(self))
        order[rows] = len(self) + np.arange(len(rows))
        return replace(State((*self.parts, *new.parts), None).taken(order), ids=self.ids)

    def allowed(self, allowed: Any) -> State:
        """Return the rows that a filter leaves: a boolean mask over rows, or the ids that may be found."""
        given = np.asarray(to_host(allowed) if is_array(allowed) else allowed)
        if given.dtype.kind == "b":
            if given.shape != (len(self),):
                raise ValueError(
                    f"allowed is a mask of shape {given.shape}; ({len(self)},) is expected, one per id in index.ids"
                )
            return self.selected(np.flatnonzero(given))
        ids = np.unique(check_ids(allowed, existing=self.known))
        if self.ids is None:
            return self.selected(ids[ids < len(self)] if not is_text(ids) else ids[:0])
        return self.selected(np.flatnonzero(np.isin(self.ids, ids)))

    def to_ids(self, rows: Array) -> Array:
        """Return the ids of found rows, -1 or the empty string for none; strings are always NumPy's."""
        if self.ids is None:
            return rows
        found = to_host(rows)
        none = b"" if is_text(self.ids) else -1
        ids = np.where(found >= 0, self.ids[found], none) if len(self.ids) else np.full(found.shape, none)
        return decode_ids(ids) if is_text(self.ids) else like(ids, rows)


def split_rows(parts: Sequence[Any], rows: np.ndarray) -> Iterator[tuple[Any, np.ndarray, np.ndarray]]:
    """Yield each part with the numbers of its own rows, and a mask of where they stand among all."""
    first = 0
    for part in parts:
        mine = (rows >= first) & (rows < first + part.shape[0])
        yield part, rows[mine] - first, mine
        first += part.shape[0]


def check_codes(codes: Array, n_bits: int) -> State:
    """Return the state of packed codes."""
    return State((check_index_codes(codes, n_bits=n_bits, name="codes"),), None)


def no_answers(shape: tuple[int, int], padding: np.generic, *, beside: Array) -> tuple[Array, Array]:
    """Return distances and rows (q, k) of a search that finds nothing, in the namespace of another array."""
    return like(np.full(shape, padding), beside), like(np.full(shape, np.int64(-1)), beside)


def by_distance(query: Array, d: Array, rows: Array, *, n_queries: int, n_bits: int) -> tuple[Array, Array, Array]:
    """Sort pairs, ordered by query and row, by query, distance and row without leaving their device.

    Return offsets (n_queries + 1,), rows and distances.
    """
    xp, device = namespace(query), device_of(query)
    order = xp.argsort(query * (n_bits + 1) + d, stable=True)
    offsets = xp.searchsorted(query, xp.arange(n_queries + 1, dtype=query.dtype, device=device))
    return offsets, xp.take(rows, order, axis=0), xp.take(d, order, axis=0)
