"""The codes of an index at one moment: never changed, only replaced, so that a search sees one moment."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array, device_of, from_host, is_array, namespace, to_host
from scq_gpu.search.ids import as_words, check_ids, count_ids, is_text


@dataclass(frozen=True)
class State:
    """Codes, their ids and factors, and what was made of them."""

    parts: tuple[Array, ...]  # codes (n, bytes), in ascending order of ids
    ids: np.ndarray | None  # ascending, one per row; None: the row number itself
    factors: tuple[Array, ...] | None  # (n, 2) float16 beside each part
    made: dict[str, Any] = field(default_factory=dict)  # engine and tables made of these codes when first needed

    def __len__(self) -> int:
        return sum(part.shape[0] for part in self.parts)

    @property
    def known(self) -> np.ndarray:
        """The id of each row."""
        return np.arange(len(self)) if self.ids is None else self.ids

    def rows_of(self, ids: np.ndarray, *, purpose: str) -> np.ndarray:
        """The rows of these ids, each of which must be there."""
        known = self.known
        if not len(ids):
            return np.zeros(0, dtype=np.int64)
        at = np.minimum(np.searchsorted(known, ids), max(0, len(known) - 1))
        missing = np.flatnonzero(known[at] != ids) if len(known) else np.arange(len(ids))
        if missing.size:
            raise KeyError(f"id {as_words(ids)[missing[0]]} is not in the index, so it cannot be {purpose}")
        return at

    def joined(self, *, copy: bool = False) -> State:
        """The same codes in one part; a memory map stays apart unless ``copy`` says so."""
        mapped = 0 if copy or not isinstance(self.parts[0], np.memmap) else 1
        if len(self.parts) - mapped <= 1:
            return self
        xp = namespace(self.parts[0])

        def join(parts: tuple[Array, ...]) -> tuple[Array, ...]:
            return (*parts[:mapped], xp.concat(list(parts[mapped:]), axis=0))

        return State(join(self.parts), self.ids, None if self.factors is None else join(self.factors))

    def taken(self, rows: np.ndarray) -> State:
        """Some rows, in the order given, without ids."""
        whole = self.joined(copy=True)
        xp = namespace(whole.parts[0])
        numbers = from_host(rows, xp=xp, device=device_of(whole.parts[0]))
        parts = (xp.take(whole.parts[0], numbers, axis=0),)
        return State(parts, None, None if whole.factors is None else (xp.take(whole.factors[0], numbers, axis=0),))

    def selected(self, rows: np.ndarray) -> State:
        """Some rows, ascending, with their ids; of a memory map only those are read."""
        if len(rows) == len(self):
            return self
        firsts = np.cumsum([0, *(part.shape[0] for part in self.parts)])
        parts, factors = [], []
        for i, (first, last) in enumerate(itertools.pairwise(firsts)):
            mine = State((self.parts[i],), None, None if self.factors is None else (self.factors[i],))
            some = mine.taken(rows[(rows >= first) & (rows < last)] - first)
            parts.append(some.parts[0])
            factors.append(None if some.factors is None else some.factors[0])
        return State(tuple(parts), self.known[rows], None if self.factors is None else tuple(factors)).joined(copy=True)

    def numbered(self, ids: np.ndarray) -> State:
        """The rows with these ids, in their order, so that the lowest row is the lowest id."""
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        twice = np.flatnonzero(ordered[1:] == ordered[:-1])
        if twice.size:
            word = as_words(ordered)[twice[0]]
            raise ValueError(f"id {word} is given to more than one code; ids must be unique")
        ascending = bool((ids[1:] > ids[:-1]).all())
        return replace(self if ascending else self.taken(order), ids=ordered)

    def updated(self, rows: np.ndarray, new: State) -> State:
        """The same ids, with the codes of some rows replaced by those of ``new``, in one part."""
        order = np.arange(len(self))
        order[rows] = len(self) + np.arange(len(rows))
        factors = None if self.factors is None or new.factors is None else (*self.factors, *new.factors)
        return replace(State((*self.parts, *new.parts), None, factors).taken(order), ids=self.ids)

    def allowed(self, allowed: Any) -> State:
        """The rows that a filter leaves: a boolean mask over rows, or the ids that may be found."""
        given = np.asarray(to_host(allowed) if is_array(allowed) else allowed)
        if given.dtype.kind == "b":
            if given.shape != (len(self),):
                raise ValueError(
                    f"allowed is a mask of shape {given.shape}; ({len(self)},) is wanted, one per id in index.ids"
                )
            return self.selected(np.flatnonzero(given))
        ids = np.unique(check_ids(allowed, n=count_ids(allowed), like=self.known))
        if self.ids is None:
            return self.selected(ids[ids < len(self)] if not is_text(ids) else ids[:0])
        return self.selected(np.flatnonzero(np.isin(self.ids, ids)))

    def to_ids(self, rows: Array) -> Array:
        """The ids of rows that a search found, -1 or the empty string for none; strings are NumPy's in any case."""
        if self.ids is None:
            return rows
        found = to_host(rows)
        if is_text(self.ids):
            if not len(self.ids):
                return np.full(found.shape, "", dtype=np.str_)
            return as_words(np.where(found >= 0, self.ids[found], b""))
        ids = np.where(found >= 0, self.ids[found], -1) if len(self.ids) else np.full(found.shape, -1)
        return from_host(ids, xp=namespace(rows), device=device_of(rows))


def by_distance(query: Array, d: Array, rows: Array, *, n_queries: int, n_bits: int) -> tuple[Array, Array, Array]:
    """Pairs that come by query and row, sorted by query, distance and row without leaving their device.

    Returns offsets (n_queries + 1,), rows and distances.
    """
    xp, device = namespace(query), device_of(query)
    order = xp.argsort(query * (n_bits + 1) + d, stable=True)
    offsets = xp.searchsorted(query, xp.arange(n_queries + 1, dtype=query.dtype, device=device))
    return offsets, xp.take(rows, order, axis=0), xp.take(d, order, axis=0)


def lowest_first(d: Array, rows: Array) -> Array:
    """The rows of ascending distances (q, k), lowest first also inside distances that rounding has made equal."""
    near, found = to_host(d), to_host(rows)
    wrong = np.flatnonzero(
        ((near[:, 1:] == near[:, :-1]) & (found[:, 1:] < found[:, :-1]) & (found[:, 1:] >= 0)).any(1)
    )
    if not wrong.size:
        return rows
    found = np.array(found)
    last = np.where(found[wrong] < 0, np.iinfo(np.int64).max, found[wrong])
    found[wrong] = np.take_along_axis(found[wrong], np.lexsort((last, near[wrong]), axis=1), axis=1)
    return from_host(found, xp=namespace(rows), device=device_of(rows))
