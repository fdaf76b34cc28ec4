"""`Store`: the rows of an index by place, under ids. `HammingIndex` and `VectorIndex` stand on it.

Rows have places in the order in which they came, and keep them when they are updated. A removed row stays in its place,
dead, until the store is compacted: when a quarter of the rows is dead, or on request. Ties go to the lower place, and
``ids`` and masks are in the order of places.

What a search needs is in one immutable `State`, which a change replaces. So a search sees one moment, and waits for
no writer.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self
from uuid import UUID

import numpy as np

from scq_gpu._core.arrays import Array, is_array, like, on_device_of, to_device, to_host
from scq_gpu._core.machine import worth_keeping
from scq_gpu.kernels.ids import IdMap, id_map
from scq_gpu.search.columns import Codes, Growing, make_codes, pack_words, unpack_words
from scq_gpu.search.ids import as_rows, check_ids, check_numbers_left, decode_ids, from_rows
from scq_gpu.search.index_file import Stored, Tensor, broken

_DEAD_SHARE = 4  # compact when one row of so many is dead
_STORES: weakref.WeakSet[Store] = weakref.WeakSet()


@dataclass(frozen=True)
class State:
    """Rows at one moment."""

    codes: Codes
    ids: Growing | None  # of places, int64 (n,) or strings as uint8 (n, width); None: ids are places
    alive: np.ndarray | None = None  # bitset (see `columns.pack_words`), bits from n on set; None: all rows are
    n_alive: int = 0
    vectors: Any = None  # column of vectors, if any

    def places(self) -> np.ndarray:
        """Return the places of all rows that are alive."""
        return np.arange(self.codes.n) if self.alive is None else np.flatnonzero(unpack_words(self.alive, self.codes.n))

    def raw_ids(self, places: np.ndarray) -> np.ndarray:
        """Return the ids of places, strings encoded."""
        return places if self.ids is None else from_rows(self.ids.take(places))

    def found_ids(self, places: Array) -> Array:
        """Return the ids of found places, -1 or the empty string for none; strings are always NumPy's."""
        if self.ids is None:
            return places
        found = to_host(places)
        ids = self.raw_ids(np.maximum(found.reshape(-1), 0) if self.codes.n else np.zeros(0, dtype=np.int64))
        text = ids.dtype.kind == "S"
        if not len(ids):
            ids = np.full(found.size, b"" if text else -1, dtype=ids.dtype)
        ids = np.where(found >= 0, ids.reshape(found.shape), np.asarray(b"" if text else -1, dtype=ids.dtype))
        return decode_ids(ids) if text else like(ids, places)

    def all_ids(self) -> np.ndarray:
        """Return the ids of all rows that are alive, in the order of their places."""
        return np.array(decode_ids(self.raw_ids(self.places())))

    def tensors(self) -> dict[str, Tensor]:
        """Return what an index file holds of codes, and of ids that are no row numbers."""
        alive = None if self.alive is None else unpack_words(self.alive, self.codes.n)

        def tensor(column: Any) -> Tensor:
            def pieces() -> Iterator[np.ndarray]:
                first = 0
                for piece in column.pieces():
                    yield piece if alive is None else piece[alive[first : first + len(piece)]]
                    first += len(piece)

            sample = to_host(column.sample)
            return Tensor((self.n_alive, *sample.shape[1:]), sample.dtype, pieces)

        found = {"codes": tensor(self.codes)}
        if self.ids is not None:
            found["ids"] = tensor(self.ids)
        elif alive is not None:
            found["ids"] = Tensor.of(self.places())
        return found

    @property
    def id_bytes(self) -> int:
        """Return the bytes that an id takes."""
        if self.ids is None:
            return 0
        return self.ids.sample.itemsize * (self.ids.sample.shape[1] if self.is_text else 1)

    @property
    def is_text(self) -> bool:
        """Return whether ids are strings."""
        return self.ids is not None and self.ids.sample.ndim == 2


class Selection:
    """Rows of an index that a search may find; see `VectorIndex.select`.

    Rows that are added later are not in it, not even under an id that was selected and removed.
    """

    def __init__(self, store: Store, words: np.ndarray, count: int) -> None:
        self._store, self._words, self._count = store, words, count

    def __len__(self) -> int:
        """Return the number of rows that were selected."""
        return self._count

    def __repr__(self) -> str:
        return f"Selection({self._count} rows)"


class Store:
    """Codes, ids and, if they are kept, vectors of an index. All methods may be called from many threads."""

    def __init__(self, state: State, *, next_id: int | None = None) -> None:
        self._state = state
        self._next_id = state.codes.n if next_id is None else next_id  # the least number above all ids so far
        self._begin()

    @classmethod
    def of(cls, codes: Codes, ids: Any, vectors: Any = None) -> Store:
        """Return the store of rows that are there already, with ids, or numbered."""
        state = State(codes, None, None, codes.n, vectors)
        if ids is None:
            return cls(state)
        raw = check_ids(ids, n=codes.n)
        rows = as_rows(raw)
        largest = int(raw.max()) + 1 if len(raw) and raw.dtype.kind != "S" else 0
        store = cls(replace(state, ids=Growing.of(np.array(rows))), next_id=largest)
        known = store._map = id_map(raw.dtype.kind == "S")
        store._check_new(known, known.insert(rows, np.arange(codes.n)), rows)
        return store

    @classmethod
    def from_file(cls, stored: Stored, *, device: str | None = None, vectors: Any = None) -> Store:
        """Return the store of an index file. Codes stay in the file if they would take much memory; ids are read."""
        codes: Any = stored.codes
        if device not in (None, "cpu"):
            codes = to_device(np.array(codes), device)
        elif worth_keeping(codes.nbytes):
            codes = np.array(codes)
        ids = None if stored.ids is None else Growing.of(np.array(stored.ids))
        with on_device_of(codes):
            column = make_codes(codes, stored.facts["distance"])
        store = cls(State(column, ids, None, column.n, vectors), next_id=stored.next_id)
        if ids is not None:
            raw = from_rows(ids.take(np.arange(ids.n)))
            # Ids that ascend are unique; others are looked up
            if (raw[1:] <= raw[:-1]).any():
                try:
                    store._id_map(store.state, text=store.state.is_text)
                except ValueError as error:
                    raise broken(stored.path, str(error)) from error
        return store

    def _begin(self) -> None:
        _STORES.add(self)
        self._lock = threading.Lock()
        self._map: IdMap | None = None
        self._selections: weakref.WeakSet[Selection] = weakref.WeakSet()

    def __getstate__(self) -> dict[str, Any]:
        state = self._state
        sealed = replace(
            state,
            codes=state.codes.sealed(),
            ids=None if state.ids is None else state.ids.sealed(),
            vectors=None if state.vectors is None else state.vectors.sealed(),
        )
        return {"_state": sealed, "_next_id": self._next_id}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    def __copy__(self) -> Store:
        store = object.__new__(Store)
        store.__setstate__(self.__getstate__())
        return store

    @property
    def state(self) -> State:
        """Return the rows at this moment."""
        return self._state

    @property
    def next_id(self) -> int:
        """Return the number that the next row gets if no id is given."""
        return self._next_id

    # ---- changes ----

    def add(self, codes: Array, ids: Any, vectors: Any = None, *, empty: Any = None) -> None:
        """Add rows. ``empty()`` gives other columns of codes and vectors for an index that has no rows."""
        with self._lock:
            state, m = self._state, codes.shape[0]
            if not state.n_alive and empty is not None:
                fresh_codes, fresh_vectors = empty()
                state = State(fresh_codes, None, vectors=fresh_vectors)
            n = state.codes.n
            raw = None if ids is None else check_ids(ids, n=m, text=state.is_text if state.n_alive else None)
            if raw is None and (state.ids is not None or self._next_id != n):
                if state.is_text:
                    example = str(decode_ids(state.raw_ids(state.places()[:1]))[0])
                    raise ValueError(f"the ids of this index are strings, such as {example!r}; pass ids")
                check_numbers_left(self._next_id, m)
                raw = self._next_id + np.arange(m) if m else np.zeros(0, dtype=np.int64)
            column = state.ids
            if raw is not None:
                new = as_rows(raw)
                if not state.n_alive:
                    column, self._map = Growing.of(new[:0].copy()), None
                elif column is None:
                    column = Growing.of(np.arange(n))
                column = _wide_enough(column, new)
                new = _padded(new, column)
            state = replace(
                state,
                codes=state.codes.append(codes),
                ids=column if raw is None or column is None else column.append(new),
                alive=_extended(state.alive, n + m),
                n_alive=state.n_alive + m,
                vectors=None if vectors is None else state.vectors.append(vectors),
            )
            if raw is not None:
                known = self._id_map(self._state if self._state.n_alive else None, text=raw.dtype.kind == "S")
                self._check_new(known, known.insert(new, n + np.arange(m)), new)
            self._state = state
            largest = int(raw.max()) + 1 if raw is not None and m and raw.dtype.kind != "S" else 0
            self._next_id = max(self._next_id, state.codes.n if state.ids is None else largest)

    def update(self, ids: Any, codes: Array, vectors: Any = None) -> None:
        """Replace rows by id; they keep their places."""
        with self._lock:
            state = self._state
            raw = check_ids(ids, n=codes.shape[0], text=state.is_text if state.n_alive else None)
            places = self._places_of(state, raw, purpose="updated")
            unique, first = np.unique(places, return_index=True)
            if len(unique) < len(places):
                twice = np.delete(np.arange(len(places)), first)[0]
                raise ValueError(f"id {decode_ids(raw)[twice]} is given to more than one code; ids must be unique")
            if not len(places):
                return
            changed = state.codes.replace(places, codes)
            kept = None if vectors is None else state.vectors.replace(places, vectors)
            self._state = replace(state, codes=changed, vectors=kept)
            self._reclaim()

    def remove(self, ids: Any) -> None:
        """Remove rows by id."""
        with self._lock:
            state = self._state
            raw = check_ids(ids, text=state.is_text if state.n_alive else None)
            places = np.unique(self._places_of(state, raw, purpose="removed"))
            if not len(places):
                return
            n = state.codes.n
            alive = pack_words(np.ones(n, dtype=bool)) if state.alive is None else state.alive.copy()
            if state.alive is None and n % 64:
                alive[-1] |= np.uint64((1 << 64) - (1 << n % 64))
            np.bitwise_and.at(alive, places // 64, ~(np.uint64(1) << (places % 64).astype(np.uint64)))
            if state.ids is not None:
                self._id_map(state, text=state.is_text).erase(state.ids.take(places))
            self._state = replace(state, alive=alive, n_alive=state.n_alive - len(places))
            self._reclaim()

    def compact(self) -> None:
        """Free the dead rows."""
        with self._lock:
            self._compact()

    def _reclaim(self) -> None:
        state = self._state
        dead = state.codes.n - state.n_alive + (0 if state.vectors is None else state.vectors.replaced)
        if dead * _DEAD_SHARE >= state.codes.n:
            self._compact()

    def _compact(self) -> None:
        state = self._state
        if state.n_alive == state.codes.n and not (state.vectors is not None and state.vectors.replaced):
            return
        places, n = state.places(), state.codes.n
        ids = state.ids
        if len(places) < n:
            ids = Growing.of(places) if ids is None else ids.kept(places)
        with on_device_of(state.codes.sample):
            codes = state.codes.kept(places)
        vectors = None if state.vectors is None else state.vectors.kept(places)
        new = State(codes, ids, None, len(places), vectors)
        known = None if ids is None else id_map(state.is_text)
        if known is not None and ids is not None:
            known.insert(ids.take(np.arange(ids.n)), np.arange(ids.n))
        for selection in list(self._selections):
            selection._words = pack_words(_flags(selection._words, n)[places])
        self._state, self._map = new, known

    # ---- ids ----

    def find(self, ids: Any) -> tuple[State, np.ndarray]:
        """Return the present state, and the places of ids, -1 for those that are not in it."""
        with self._lock:
            state = self._state
            raw = check_ids(ids, text=state.is_text if state.n_alive else None)
            return state, self._find(state, raw)

    def contains(self, id: Any) -> bool:
        """Return whether a row has this id."""
        if isinstance(id, str | UUID | int | np.integer) and not isinstance(id, bool):
            with contextlib.suppress(ValueError):
                return bool(self.find([id])[1][0] >= 0)
        return False

    def get(self, ids: Any) -> tuple[State, np.ndarray]:
        """Return the present state, and the places of ids, all of which must be in it."""
        with self._lock:
            state = self._state
            raw = check_ids(ids, text=state.is_text if state.n_alive else None)
            return state, self._places_of(state, raw, purpose="returned")

    def _places_of(self, state: State, raw: np.ndarray, *, purpose: str) -> np.ndarray:
        places = self._find(state, raw)
        missing = np.flatnonzero(places < 0)
        if missing.size:
            raise KeyError(f"id {decode_ids(raw)[missing[0]]} is not in the index, so it cannot be {purpose}")
        return places

    def _find(self, state: State, raw: np.ndarray) -> np.ndarray:
        if not state.n_alive or not len(raw):
            return np.full(len(raw), -1)
        if state.ids is not None:
            return self._id_map(state, text=state.is_text).find(as_rows(raw))
        inside = raw < state.codes.n
        places = np.where(inside, raw, 0)
        if state.alive is not None:
            inside &= (state.alive[places // 64] >> (places % 64).astype(np.uint64) & np.uint64(1)).astype(bool)
        return np.where(inside, places, -1)

    def _id_map(self, state: State | None, *, text: bool) -> IdMap:
        """Return the map of ids to places, made when first needed."""
        if self._map is None:
            known = id_map(text)
            if state is not None:
                places = state.places()
                rows = places if state.ids is None else state.ids.take(places)
                self._check_new(known, known.insert(rows, places), rows)
            self._map = known
        return self._map

    def _check_new(self, known: IdMap, wrong: int, rows: np.ndarray) -> None:
        if wrong >= 0:
            mine = rows[wrong : wrong + 1]
            there = known.find(mine)[0] >= 0
            # Where ids are places, the map was made for these ids alone, and nobody keeps it
            self._map = None if self._state.ids is None else self._map
            what = "is in the index already" if there else "is given to more than one code"
            raise ValueError(f"id {decode_ids(from_rows(mine))[0]} {what}; ids must be unique")

    # ---- filters ----

    def select(self, allowed: Any) -> Selection:
        """Return the rows with these ids, or those of a mask in the order of ids, for many searches."""
        with self._lock:
            state = self._state
            words = self._words(state, allowed)
            selection = Selection(self, words, int(np.bitwise_count(words).sum()))
            self._selections.add(selection)
            return selection

    def searched(self, allowed: Any) -> tuple[State, np.ndarray | None, int]:
        """Return the present state, the bitset of rows that may be found (None: all), and how many these are."""
        if allowed is None:
            state = self._state
            return state, state.alive, state.n_alive
        with self._lock:
            state = self._state
            if isinstance(allowed, Selection):
                if allowed._store is not self:
                    raise ValueError("allowed is a selection of another index; select the rows of this one")
                words = allowed._words
            else:
                words = self._words(state, allowed)
        missing = -(-state.codes.n // 64) - len(words)
        if missing > 0:
            words = np.concatenate([words, np.zeros(missing, dtype=np.uint64)])
        if state.alive is not None:
            words = words & state.alive[: len(words)]
        return state, words, int(np.bitwise_count(words).sum())

    def _words(self, state: State, allowed: Any) -> np.ndarray:
        """Return a bitset of places from ids or a mask."""
        given = np.asarray(to_host(allowed) if is_array(allowed) else allowed) if not _is_ids(allowed) else None
        flags = np.zeros(state.codes.n, dtype=bool)
        if given is not None and given.dtype.kind == "b":
            if given.shape != (state.n_alive,):
                raise ValueError(
                    f"allowed is a mask of shape {given.shape}; ({state.n_alive},) is expected, one per id in index.ids"
                )
            flags[slice(None) if state.alive is None else state.places()] = given
            return pack_words(flags)
        raw = check_ids(allowed, text=state.is_text if state.n_alive else None)
        places = self._find(state, raw)
        flags[places[places >= 0]] = True
        return pack_words(flags)


def _renew_locks() -> None:
    """Free a forked child of locks, and of maps of ids, that other threads of its parent held."""
    for store in _STORES:
        store._lock, store._map = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


class RowsById:
    """What indexes over a store have in common."""

    _store: Store

    def __len__(self) -> int:
        return self._store.state.n_alive

    def __contains__(self, id: Any) -> bool:
        return self._store.contains(id)

    @property
    def ids(self) -> np.ndarray:
        """Return the ids of all rows, in the order in which they came."""
        return self._store.state.all_ids()

    def select(self, allowed: Any) -> Selection:
        """Return rows as a filter for many searches, which costs them less than ids or a mask.

        Parameters
        ----------
        allowed : array of ids, or boolean mask (n,)
            A mask is in the order of `ids`. Ids that are not in the index are ignored.

        Returns
        -------
        Selection
            These rows, wherever the index moves them. Rows added later are not in it; removed rows are not found.

        Examples
        --------
        >>> import numpy as np, scq_gpu as scq
        >>> index = scq.HammingIndex(np.array([[0], [1], [3]], dtype=np.uint8), n_bits=8)
        >>> some = index.select([1, 2])
        >>> index.search(np.array([[0]], dtype=np.uint8), k=1, allowed=some)
        (array([[1]], dtype=int32), array([[1]]))
        """
        return self._store.select(allowed)

    def compact(self) -> Self:
        """Free the memory of removed rows now, and return the index.

        It is done by itself when a quarter of the rows was removed.
        """
        self._store.compact()
        return self


def _is_ids(allowed: Any) -> bool:
    return isinstance(allowed, Sequence) and not isinstance(allowed, str) and any(isinstance(x, str) for x in allowed)


def _flags(words: np.ndarray, n: int) -> np.ndarray:
    """Return the first n bits, those behind the end as False."""
    known = min(n, 64 * len(words))
    flags = np.zeros(n, dtype=bool)
    flags[:known] = unpack_words(words, known)
    return flags


def _extended(alive: np.ndarray | None, n: int) -> np.ndarray | None:
    """Return a bitset with room for n rows, new ones alive."""
    if alive is None or 64 * len(alive) >= n:
        return alive
    return np.concatenate([alive, np.full(-(-n // 64) - len(alive), ~np.uint64(0))])


def _wide_enough(column: Growing, new: np.ndarray) -> Growing:
    """Return the column with strings at least as wide as the new ones."""
    if new.ndim == 1 or new.shape[1] <= column.sample.shape[1]:
        return column
    # Eight bytes more at least, so that few columns are copied
    width = -(-new.shape[1] // 8) * 8 if column.n else new.shape[1]
    wide = np.zeros((column.n, width), dtype=np.uint8)
    wide[:, : column.sample.shape[1]] = column.take(np.arange(column.n))
    return Growing.of(wide)


def _padded(new: np.ndarray, column: Growing) -> np.ndarray:
    if new.ndim == 1 or new.shape[1] == column.sample.shape[1]:
        return new
    padded = np.zeros((len(new), column.sample.shape[1]), dtype=np.uint8)
    padded[:, : new.shape[1]] = new
    return padded
