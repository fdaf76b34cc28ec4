"""Columns of an index: one row per place, in the order in which rows came.

A column never changes. `append`, `replace` and `kept` return another one, and copy no more than they touch: a search
that holds the old column still sees the old rows. Appended rows go into room behind the rows that are there, which only
the latest column may use; `sealed` is a column for another owner, who may not.

A column has ``n`` rows and the methods ``append(rows)``, ``take(places)``, ``kept(places)``, ``sealed()`` and
``pieces()``, which yields its rows on the host, some at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array, like, namespace, row_slices, to_host
from scq_gpu.kernels import asymmetric, native
from scq_gpu.kernels.search import searcher

_LEAST_ROOM = 1024  # rows
_CHUNK_BYTES = 1 << 18  # of codes: to copy as many, for one row that is replaced, takes a few microseconds
_PIECE_BYTES = 1 << 24


class Growing:
    """Rows of one type in memory."""

    def __init__(self, parts: tuple[np.ndarray, ...], firsts: tuple[int, ...], n: int, filled: list[int]) -> None:
        self.n = n
        self._parts, self._firsts = parts, firsts  # a part ends where the next begins; the last may have room
        self._filled = filled  # the number of rows that were written to these parts, shared by columns of one owner

    @classmethod
    def of(cls, rows: np.ndarray) -> Growing:
        """Return a column of rows that nobody else changes."""
        return cls((rows,), (0,), len(rows), [len(rows)])

    @property
    def sample(self) -> np.ndarray:
        """Return an array of no rows, of the type and width of these."""
        return self._parts[0][:0]

    @property
    def nbytes(self) -> int:
        """Return the bytes that are allocated."""
        return sum(part.nbytes for part in self._parts)

    def append(self, rows: np.ndarray) -> Growing:
        """Return a column with these rows at the end; they are copied."""
        end = self.n + len(rows)
        used, part = self.n - self._firsts[-1], self._parts[-1]
        if self._filled[0] == self.n and used + len(rows) <= len(part):
            part[used : used + len(rows)] = rows
            self._filled[0] = end
            return Growing(self._parts, self._firsts, end, self._filled)
        # An eighth of room: parts are few, and little memory waits for rows
        room = np.empty((max(len(rows), self.n // 8, _LEAST_ROOM), *part.shape[1:]), dtype=part.dtype)
        room[: len(rows)] = rows
        return Growing((*self._parts, room), (*self._firsts, self.n), end, [end])

    def take(self, places: np.ndarray) -> np.ndarray:
        """Return the rows at these places."""
        if len(self._parts) == 1:
            found: np.ndarray = self._parts[0][places]
            return found
        out = np.empty((len(places), *self._parts[0].shape[1:]), dtype=self._parts[0].dtype)
        part_of = np.searchsorted(self._firsts, places, side="right") - 1
        for number in np.unique(part_of):
            mine = part_of == number
            out[mine] = self._parts[number][places[mine] - self._firsts[number]]
        return out

    def pieces(self) -> Iterator[np.ndarray]:
        """Yield all rows in order."""
        ends = (*self._firsts[1:], self.n)
        for part, first, end in zip(self._parts, self._firsts, ends, strict=True):
            size = max(1, _PIECE_BYTES // max(1, part[:1].nbytes))
            for some in row_slices(end - first, size):
                yield part[: end - first][some]

    def kept(self, places: np.ndarray) -> Growing:
        """Return a column of the rows at these ascending places alone."""
        return Growing.of(self.take(places))

    def sealed(self) -> Growing:
        """Return a column of the same rows that does not write into their arrays."""
        return Growing(self._parts, self._firsts, self.n, [-1])


class NativeCodes:
    """Codes of NumPy as the native core scans them, in chunks of blocks of 64 rows.

    Chunks of a memory map are its rows as they are, which the core lays out as it scans them.
    """

    def __init__(self, chunks: tuple[np.ndarray, ...], n: int, width: int, filled: list[int]) -> None:
        self.n, self.width = n, width
        self._chunks, self._filled = chunks, filled  # as in `Growing`

    @classmethod
    def of(cls, codes: np.ndarray) -> NativeCodes:
        """Return a column of codes (n, bytes); they are copied unless they are a memory map."""
        n, width = codes.shape
        column = cls((), 0, width, [0])
        if not isinstance(codes, np.memmap):
            return column.append(codes)
        whole = n - n % column._rows_of_chunk
        views = tuple(codes[:whole][some] for some in row_slices(whole, column._rows_of_chunk))
        return cls(views, whole, width, [whole]).append(np.asarray(codes[whole:]))

    @property
    def sample(self) -> np.ndarray:
        """Return an array of no codes."""
        return np.empty((0, self.width), dtype=np.uint8)

    @property
    def _rows_of_chunk(self) -> int:
        return max(1, _CHUNK_BYTES // (64 * self.width)) * 64

    def append(self, codes: np.ndarray) -> NativeCodes:
        """Return a column with these codes at the end; they are copied."""
        height, end = self._rows_of_chunk, self.n + len(codes)
        chunks, done, at = list(self._chunks), 0, self.n % self._rows_of_chunk
        if at and len(codes):
            if self._filled[0] != self.n:
                chunks[-1] = chunks[-1].copy()
            done = min(len(codes), height - at)
            self._write(chunks[-1], np.arange(at, at + done), codes[:done])
        for some in row_slices(len(codes) - done, height):
            chunk = np.zeros((height // 64, 64 * self.width), dtype=np.uint8)
            rows = np.ascontiguousarray(codes[done:][some])
            native.core.to_blocks(rows, chunk[: -(-len(rows) // 64)])
            chunks.append(chunk)
        filled = self._filled if self._filled[0] == self.n else [0]
        filled[0] = end
        return NativeCodes(tuple(chunks), end, self.width, filled)

    def replace(self, places: np.ndarray, codes: np.ndarray) -> NativeCodes:
        """Return a column with other codes at some places; the chunks of these are copied."""
        chunks, chunk_of = list(self._chunks), places // self._rows_of_chunk
        for number in np.unique(chunk_of):
            mine = chunk_of == number
            old = chunks[number]
            chunks[number] = old.copy() if self._blocked(old) else native.to_blocks(old)
            self._write(chunks[number], places[mine] % self._rows_of_chunk, codes[mine])
        return NativeCodes(tuple(chunks), self.n, self.width, self._filled)

    def take(self, places: np.ndarray) -> np.ndarray:
        """Return the codes at these places."""
        out = np.empty((len(places), self.width), dtype=np.uint8)
        chunk_of, at = np.divmod(places, self._rows_of_chunk)
        for number in np.unique(chunk_of):
            mine, chunk = chunk_of == number, self._chunks[number]
            rows = at[mine]
            out[mine] = self._lanes(chunk)[rows // 64, :, rows % 64] if self._blocked(chunk) else chunk[rows]
        return out

    def pieces(self) -> Iterator[np.ndarray]:
        """Yield all codes in order."""
        for number, chunk in enumerate(self._chunks):
            count = min(self._rows_of_chunk, self.n - number * self._rows_of_chunk)
            rows = np.empty((count, self.width), dtype=np.uint8)
            if self._blocked(chunk):
                native.core.to_rows(chunk, rows)
            yield rows if self._blocked(chunk) else chunk

    def kept(self, places: np.ndarray) -> NativeCodes:
        """Return a column of the codes at these ascending places alone."""
        column, first = NativeCodes((), 0, self.width, [0]), 0
        for piece in self.pieces():
            begin, end = np.searchsorted(places, [first, first + len(piece)])
            column, first = column.append(piece[places[begin:end] - first]), first + len(piece)
        return column

    def sealed(self) -> NativeCodes:
        """Return a column of the same codes that does not write into their chunks."""
        return NativeCodes(self._chunks, self.n, self.width, [-1])

    def knn(self, queries: np.ndarray, k: int, *, n_bits: int, allowed: np.ndarray | None) -> tuple[Array, Array]:
        """Find the k nearest codes of each query: distances (q, k) and places (q, k), padded with n_bits + 1 and -1."""
        return self._engine(allowed).knn(queries, [], k, n_bits=n_bits)

    def within(self, queries: np.ndarray, radius: Any, allowed: np.ndarray | None) -> tuple[Array, Array, Array]:
        """Find all pairs within a radius: (query, distance, place)."""
        return self._engine(allowed).within(queries, [], radius)

    def least(self, gain: np.ndarray, k: int, allowed: np.ndarray | None) -> tuple[Array, Array]:
        """Find the codes of least score, as `kernels.asymmetric.knn` does."""
        return asymmetric.knn(gain, [self.sample], k, searcher=self._engine(allowed))

    def cells(self, tables: np.ndarray, k: int, allowed: np.ndarray | None, *, keep: int) -> tuple[Array, Array]:
        """Find the product codes of least score, as `kernels.asymmetric.cells` does."""
        return asymmetric.cells(tables, [self.sample], k, searcher=self._engine(allowed), keep=keep)

    def _engine(self, allowed: np.ndarray | None) -> native.CodeSearch:
        height, words = self._rows_of_chunk, self._rows_of_chunk // 64
        rows = [
            native.core.Rows(
                chunk,
                min(height, self.n - number * height),
                self._blocked(chunk),
                None if allowed is None else allowed[number * words : (number + 1) * words],
            )
            for number, chunk in enumerate(self._chunks)
        ]
        return native.CodeSearch(rows)

    def _blocked(self, chunk: np.ndarray) -> bool:
        return int(chunk.shape[1]) != self.width

    def _lanes(self, chunk: np.ndarray) -> np.ndarray:
        return chunk.reshape(-1, self.width, 64)

    def _write(self, chunk: np.ndarray, at: np.ndarray, codes: np.ndarray) -> None:
        self._lanes(chunk)[at // 64, :, at % 64] = codes


class ArrayCodes:
    """Codes of any array namespace, searched there, and those of NumPy where the native core does not search them."""

    def __init__(self, parts: tuple[Array, ...], distance: str) -> None:
        self._parts, self._distance = parts, distance
        self._made: dict[Any, Any] = {}  # what searches made of the codes
        self.n = sum(part.shape[0] for part in parts)
        self.width = int(parts[0].shape[1])

    @property
    def sample(self) -> Array:
        """Return an array of no codes."""
        return self._parts[0][:0, :]

    def append(self, codes: Array) -> ArrayCodes:
        """Return a column with these codes at the end; they are copied unless they are a memory map."""
        mine = codes if isinstance(codes, np.memmap) else _copied(codes)
        parts = [part for part in self._parts if part.shape[0]]
        return ArrayCodes((*parts, mine) if mine.shape[0] or not parts else tuple(parts), self._distance)

    def replace(self, places: np.ndarray, codes: Array) -> ArrayCodes:
        """Return a column with other codes at some places."""
        order = np.arange(self.n)
        order[places] = self.n + np.arange(len(places))
        return ArrayCodes((_take(self.append(codes)._joined, order),), self._distance)

    def take(self, places: np.ndarray) -> Array:
        """Return the codes at these places."""
        return _take(self._joined, places)

    def pieces(self) -> Iterator[np.ndarray]:
        """Yield all codes on the host, in order."""
        for part in self._parts:
            yield from (to_host(part[some, :]) for some in row_slices(part.shape[0], _PIECE_BYTES // self.width + 1))

    def kept(self, places: np.ndarray) -> ArrayCodes:
        """Return a column of the codes at these ascending places alone."""
        return ArrayCodes((self.take(places),), self._distance)

    def sealed(self) -> ArrayCodes:
        """Return the column itself: its arrays have no room."""
        return self

    @property
    def _joined(self) -> Array:
        """Return all codes as one array, made when first needed."""
        if "joined" not in self._made:
            parts = self._parts
            self._made["joined"] = parts[0] if len(parts) == 1 else namespace(parts[0]).concat(list(parts), axis=0)
        return self._made["joined"]

    def knn(self, queries: Array, k: int, *, n_bits: int, allowed: np.ndarray | None) -> tuple[Array, Array]:
        """Find the k nearest codes of each query: distances (q, k) and places (q, k), padded."""
        engine, codes, places, bits = self._engine(allowed, k)
        d, rows = engine.knn(queries, [codes], k, n_bits=n_bits, **bits)
        return d, _to_places(rows, places)

    def within(self, queries: Array, radius: Any, allowed: np.ndarray | None) -> tuple[Array, Array, Array]:
        """Find all pairs within a radius: (query, distance, place)."""
        engine, codes, places, bits = self._engine(allowed, 1)
        query, d, rows = engine.within(queries, [codes], radius, **bits)
        return query, d, _to_places(rows, places)

    def least(self, gain: Any, k: int, allowed: np.ndarray | None) -> tuple[Array, Array]:
        """Find the codes of least score, as `kernels.asymmetric.knn` does."""
        codes, places, bits = self._filtered(allowed, by_bits=asymmetric.engine(self._joined) == "cuda")
        d, rows = asymmetric.knn(gain, [codes], k, **bits)
        return d, _to_places(rows, places)

    def cells(self, tables: Any, k: int, allowed: np.ndarray | None, *, keep: int) -> tuple[Array, Array]:
        """Find the product codes of least score, as `kernels.asymmetric.cells` does."""
        codes, places, bits = self._filtered(allowed, by_bits=asymmetric.engine(self._joined) == "cuda")
        d, rows = asymmetric.cells(tables, [codes], k, keep=keep, **bits)
        return d, _to_places(rows, places)

    def _engine(self, allowed: np.ndarray | None, k: int) -> tuple[Any, Array, np.ndarray | None, dict[str, Array]]:
        """Return the engine of Hamming distances, and what `_filtered` returns for it."""
        engine = searcher(self._joined, k=min(k, self.n), distance=self._distance)
        # An engine with a layout of its own is a class, which takes the bitset
        if not isinstance(engine, type):
            return engine, *self._filtered(allowed, by_bits=False)
        if engine not in self._made:
            self._made[engine] = engine([self._joined])
        return self._made[engine], *self._filtered(allowed, by_bits=True)

    def _filtered(
        self, allowed: np.ndarray | None, *, by_bits: bool
    ) -> tuple[Array, np.ndarray | None, dict[str, Array]]:
        """Return the codes to search, their places (None: all), and the bitset for engines that take one."""
        if allowed is None:
            return self._joined, None, {}
        # Those of the last filter are kept: between changes, that is mostly the bitset of rows that were not removed
        known = self._made.get(by_bits)
        if known is None or known[0] is not allowed:
            if by_bits:
                made: Any = self._joined, None, {"allowed": like(allowed, self._joined)}
            else:
                places = np.flatnonzero(unpack_words(allowed, self.n))
                made = _take(self._joined, places), places, {}
            known = self._made[by_bits] = (allowed, made)
        found: tuple[Array, np.ndarray | None, dict[str, Array]] = known[1]
        return found


Codes = NativeCodes | ArrayCodes


def make_codes(codes: Array, distance: str) -> Codes:
    """Return a column of codes (n, bytes)."""
    if searcher(codes, distance=distance) is native.CodeSearch:
        return NativeCodes.of(codes)
    return ArrayCodes((codes[:0, :],), distance).append(codes)


def pack_words(flags: np.ndarray) -> np.ndarray:
    """Return flags (n,) as a bitset of uint64, bit r % 64 of word r / 64."""
    packed = np.packbits(flags, bitorder="little")
    padded = np.zeros(-(-len(packed) // 8) * 8, dtype=np.uint8)
    padded[: len(packed)] = packed
    return padded.view(np.uint64)


def unpack_words(words: np.ndarray, n: int) -> np.ndarray:
    """Return the first n bits of a bitset as flags."""
    return np.unpackbits(words.view(np.uint8), count=n, bitorder="little").view(bool)


def _copied(codes: Array) -> Array:
    return namespace(codes).asarray(codes, copy=True)


def _take(codes: Array, places: np.ndarray) -> Array:
    if isinstance(codes, np.ndarray):
        return np.asarray(codes[places])
    return namespace(codes).take(codes, like(places, codes), axis=0)


def _to_places(rows: Array, places: np.ndarray | None) -> Array:
    """Return the places of found rows; -1 stays."""
    return rows if places is None else like(np.append(places, -1)[to_host(rows)], rows)
