"""Sources of rows: a known shape and type, and rows in blocks, as often as asked."""

from __future__ import annotations

import abc
import contextlib
import os
import stat
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scq_gpu._core.arrays import Array, join_pieces, namespace
from scq_gpu._core.files import check_regular
from scq_gpu._core.machine import available_bytes, check_room
from scq_gpu._core.messages import warn_caller

Name = str | Sequence[str] | None
"""The array or columns of a file that are meant; None if there is no choice."""


class RowFileError(ValueError):
    """A file of rows that is damaged, is not what its name says, or changed while it was in use."""


class RowSource(abc.ABC):
    """Rows that are read on demand; pass one to ``fit`` and ``encode`` in place of an array.

    ``shape`` (n, d) and ``dtype`` are known before any row is read; ``numpy.asarray`` reads them all.
    """

    shape: tuple[int, int]
    dtype: Any
    label: str
    in_memory: bool = False
    known_moments: Any = None
    """Moments of all rows, if these are a sample of them."""

    def blocks(self, size: int, *, first: int = 0) -> Iterator[Array]:
        """Yield the rows from ``first`` on, ``size`` at a time; only the last block is shorter."""
        return recut(self.pieces(size, first=first), size)

    @abc.abstractmethod
    def pieces(self, size: int, *, first: int = 0) -> Iterator[Array]:
        """Yield the rows from ``first`` on, in pieces of any height; ``size`` is the height of the blocks to come."""

    @abc.abstractmethod
    def locate(self, row: int) -> str:
        """Describe where a row is, for an error message."""

    @abc.abstractmethod
    def identity(self) -> list[dict[str, Any]]:
        """Return facts, ready for JSON, that distinguish these rows from others."""

    def id_type(self, column: str) -> Any:
        """Return the Arrow type of a column of ids; reject a source without columns."""
        raise RowFileError(f"{self.label} has no columns, so no ids in {column!r}; Parquet and Arrow files have")

    def ids(self, column: str, size: int) -> Iterator[Any]:
        """Yield the ids of all rows, in order, as Arrow arrays of up to ``size``."""
        raise NotImplementedError

    def sample(self) -> Array:
        """Return an array of one row with the type and device of the blocks; its values do not matter."""
        return np.zeros((1, self.shape[1]), dtype=self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"{self!r} has to be read to become an array; pass copy=None or copy=True")
        n_bytes = self.shape[0] * self.shape[1] * np.dtype(dtype or self.dtype).itemsize
        check_room(n_bytes, f"{self.label} as an array", fix="pass the source itself, which is read in blocks")
        X = np.empty(self.shape, dtype=dtype or self.dtype)
        row = 0
        for piece in self.pieces(max(1, (4 << 20) // self.shape[1])):
            X[row : row + piece.shape[0]] = piece
            row += piece.shape[0]
        return X

    def __repr__(self) -> str:
        return f"<{self.shape[0]:,} x {self.shape[1]:,} {self.dtype} rows of {self.label}>"


class Contents(NamedTuple):
    """Contents of an open file. ``pieces(size, first)`` gives the rows from ``first`` on, in pieces of about ``size``.

    A format with columns has ``id_type(column)`` and ``ids(column, size)`` of `RowSource`. A file that can be read but
    looks incomplete has a ``warning``.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    pieces: Callable[[int, int], Iterator[np.ndarray]]
    warning: str = ""
    id_type: Any = None
    ids: Any = None


Opener = Callable[[Any, Name, int], contextlib.AbstractContextManager[Contents]]
"""``open_format(path, name, n_bytes)`` opens a file of ``n_bytes`` and checks that it holds all its header claims."""


class FileRows(RowSource):
    """Rows of one file, a `Path` or `Remote`, whose format has a name for messages (``kind``) and an opener."""

    def __init__(self, path: Any, kind: str, opener: Opener, *, name: Name = None) -> None:
        self.path, self.kind, self.name, self._opener = path, kind, name, opener
        self.label: str = str(path)
        self._stamp = _stamp(path)
        if not self._stamp["bytes"]:
            raise RowFileError(f"{path} is empty; {kind} is expected")
        with self._open() as contents:
            shape, dtype = contents.shape, contents.dtype
        if len(shape) != 2:
            raise RowFileError(f"{path} holds an array of shape {(*shape,)}; 2 dimensions are expected: rows, features")
        if not shape[1]:
            raise RowFileError(f"{path} is empty: it holds an array of shape {(*shape,)}")
        if dtype.kind not in "biuf" or dtype.itemsize > 8:
            raise RowFileError(f"{path} holds {dtype}; real numbers are expected, of at most 8 bytes")
        self.shape: tuple[int, int] = (int(shape[0]), int(shape[1]))
        self.dtype: Any = dtype.newbyteorder("=")
        check_piece(path, self.shape[1] * dtype.itemsize, "a row")
        if contents.warning:
            warn_caller(contents.warning)

    def pieces(self, size: int, *, first: int = 0) -> Iterator[np.ndarray]:
        """Read the rows anew; reject a file that is not the one that was opened."""
        self._check_unchanged()
        row = first
        try:
            with self._open() as contents:
                for piece in contents.pieces(size, first):
                    yield piece.astype(self.dtype, copy=False)
                    row += piece.shape[0]
        except RowFileError:
            # A change explains any other fault.
            self._check_unchanged()
            raise
        self._check_unchanged()
        if row != self.shape[0]:
            raise RowFileError(f"{self.path} gave {row} rows where {self.shape[0]} were promised; copy it again")

    def id_type(self, column: str) -> Any:
        """Return the Arrow type of a column of ids; reject a column that cannot be one."""
        with self._open() as contents:
            return contents.id_type(column) if contents.id_type else super().id_type(column)

    def ids(self, column: str, size: int) -> Iterator[Any]:
        """Yield the ids of all rows, in order, as Arrow arrays of up to ``size``."""
        self._check_unchanged()
        with self._open() as contents:
            yield from contents.ids(column, size)

    def locate(self, row: int) -> str:
        """Return the number of the row and the path."""
        return f"row {row} of {self.path}"

    def identity(self) -> list[dict[str, Any]]:
        """Return path, name within the file, shape, type and stamp."""
        name = self.name if self.name is None or isinstance(self.name, str) else list(self.name)
        facts = {"path": str(self.path.resolve()), "name": name, "shape": list(self.shape), "dtype": str(self.dtype)}
        return [facts | self._stamp]

    @contextlib.contextmanager
    def _open(self) -> Iterator[Contents]:
        """Open the file, and turn any error of a format's library into one that names it."""
        try:
            with self._opener(self.path, self.name, self._stamp["bytes"]) as contents:
                yield contents
        except (RowFileError, ImportError, MemoryError):
            raise
        except Exception as error:
            raise RowFileError(f"{self.path} cannot be read as {self.kind}: {error}") from error

    def _check_unchanged(self) -> None:
        try:
            stamp = _stamp(self.path)
        except FileNotFoundError:
            raise RowFileError(f"{self.path} has gone since it was opened; put it back and start again") from None
        if stamp != self._stamp:
            then, now = (
                f"{s['bytes']} bytes, " + (f"version {s['tag']}" if "tag" in s else f"modified at {s['mtime_ns']} ns")
                for s in (self._stamp, stamp)
            )
            raise RowFileError(
                f"{self.path} changed while it was in use ({then}; now {now}): a fit needs the same rows in every "
                "pass. Wait until it is written, open it and start again"
            )


def _stamp(path: Any) -> dict[str, Any]:
    """Return facts that change with a file, or with a folder that holds an array."""
    if not isinstance(path, Path):
        return dict(path.stamp())
    try:
        stats = list(_members(path)) if path.is_dir() else [check_regular(path)]
    except ValueError as error:
        raise RowFileError(str(error)) from error
    newest = max((s.st_mtime_ns for s in stats), default=0)
    return {"files": len(stats), "bytes": sum(s.st_size for s in stats), "mtime_ns": newest}


def _members(folder: Path) -> Iterator[os.stat_result]:
    """Yield the facts of the files in a folder and in those within it; links to folders are rejected."""
    for root, folders, names in os.walk(folder):
        for path in (Path(root, name) for name in (*names, *folders)):
            facts = path.lstat()
            if stat.S_ISLNK(facts.st_mode):
                check_link(path, folder)
                facts = path.stat()
            if not stat.S_ISDIR(facts.st_mode):
                yield check_regular(path, facts)


def check_link(path: Path, folder: Path) -> None:
    """Reject a link in a folder that leads out of it, or to a folder, which may hold the link itself."""
    target = os.path.realpath(path)
    if not os.path.isfile(target) or not Path(target).is_relative_to(os.path.realpath(folder)):
        raise RowFileError(
            f"{path} is a link that leaves {folder} or leads to no file, and is not followed: put the file itself in "
            "its place, or pass the files one by one"
        )


def choose_array(path: Any, name: Name, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Choose among the arrays of a file: the one named, or the only one of two dimensions.

    Slashes around the name do not matter.
    """
    listed = ", ".join(f"{key!r} {tuple(shape)}" for key, shape in sorted(shapes.items())) or "no array"
    if name is not None:
        plain = name.strip("/") if isinstance(name, str) else ""
        if plain not in shapes:
            raise RowFileError(f"{path} has no array named {name!r}; it holds {listed}")
        return plain
    candidates = [key for key, shape in shapes.items() if len(shape) == 2]
    if len(candidates) != 1:
        raise RowFileError(
            f"{path} holds {len(candidates) or 'no'} arrays of 2 dimensions, where one is expected: it holds {listed}. "
            "Choose one with open_rows(path, name=...)"
        )
    return candidates[0]


def check_piece(path: Any, n_bytes: int, what: str) -> None:
    """Reject a file if the least that can be read at a time does not fit in memory."""
    available = available_bytes()
    if available is not None and 2 * n_bytes > available:
        raise RowFileError(
            f"{path} has a header by which {what} takes {n_bytes / 2**30:,.1f} GiB in memory, and "
            f"{available / 2**30:,.1f} GiB are available; it is damaged, or was not made to be read in pieces"
        )


class ArrayRows(RowSource):
    """Rows that are in memory already, with a label and a location for messages."""

    in_memory = True

    def __init__(self, X: Array, *, label: str, locate: Callable[[int], str] | None = None) -> None:
        self._X = X
        self.shape: tuple[int, int] = (X.shape[0], X.shape[1])
        self.dtype: Any = X.dtype
        self.label: str = label
        self._locate = locate or (lambda row: f"row {row} of {label}")

    def sample(self) -> Array:
        """Return the first row."""
        return self._X[: min(1, self.shape[0]), :]

    def pieces(self, size: int, *, first: int = 0) -> Iterator[Array]:
        """Yield one view of all rows."""
        return iter((self._X[first:, :],))

    def locate(self, row: int) -> str:
        """Return the caller-provided location."""
        return self._locate(row)

    def identity(self) -> list[dict[str, Any]]:
        """Reject the request: rows in memory may have changed."""
        raise TypeError(
            f"{self.label} is in memory: it cannot be distinguished from another when a job goes on. Save it and pass "
            "the path, or write its codes at once: numpy.save(out, encoder.encode(X))"
        )


class JoinedRows(RowSource):
    """Rows of several sources, one after the other."""

    def __init__(self, parts: Sequence[RowSource]) -> None:
        self.parts = list(parts)
        width = parts[0].shape[1]
        for part in parts:
            if part.shape[1] != width:
                raise ValueError(
                    f"{part.label} has {part.shape[1]} columns, but {parts[0].label} has {width}; "
                    "rows that are to be joined must be equally wide"
                )
        self._ends = list(accumulate(part.shape[0] for part in parts))
        self.shape: tuple[int, int] = (self._ends[-1], width)
        self.in_memory: bool = all(part.in_memory for part in parts)
        self.label: str = parts[0].label if len(parts) == 1 else f"{parts[0].label} to {parts[-1].label} ({len(parts)})"
        self.dtype: Any = self._xp.result_type(*(part.dtype for part in parts))

    @property
    def _xp(self) -> Any:
        """Return the namespace of all parts; it is not stored, because modules cannot be pickled."""
        return namespace(*(part.sample() for part in self.parts))

    def sample(self) -> Array:
        """Return the sample of the first part, in the type of all."""
        return self._xp.astype(self.parts[0].sample(), self.dtype, copy=False)

    def pieces(self, size: int, *, first: int = 0) -> Iterator[Array]:
        """Yield the pieces of each part, in the type of all."""
        xp = self._xp
        for part, end in zip(self.parts, self._ends, strict=True):
            if end > first:
                inside = max(0, first - (end - part.shape[0]))
                for piece in part.pieces(size, first=inside):
                    yield xp.astype(piece, self.dtype, copy=False)

    def id_type(self, column: str) -> Any:
        """Return the type that all parts have."""
        types = [(part.id_type(column), part.label) for part in self.parts]
        for kind, label in types:
            if kind != types[0][0]:
                raise RowFileError(
                    f"{label}: {column!r} is {kind}, in {types[0][1]} it is {types[0][0]}; make them one"
                )
        return types[0][0]

    def ids(self, column: str, size: int) -> Iterator[Any]:
        """Yield the ids of each part."""
        for part in self.parts:
            yield from part.ids(column, size)

    def locate(self, row: int) -> str:
        """Return the location within its part, and the number among all rows."""
        number = bisect_right(self._ends, row)
        part = self.parts[number]
        return f"{part.locate(row - (self._ends[number] - part.shape[0]))} (row {row} of all)"

    def identity(self) -> list[dict[str, Any]]:
        """Return the facts of each part."""
        return [facts for part in self.parts for facts in part.identity()]


def recut(pieces: Iterable[Array], size: int) -> Iterator[Array]:
    """Cut and join pieces of any height into blocks of ``size`` rows; the last may be shorter."""
    waiting: list[Array] = []
    held = 0
    for piece in pieces:
        start = 0
        while held + piece.shape[0] - start >= size:
            stop = start + size - held
            yield join_pieces([*waiting, piece[start:stop, :]])
            waiting, held, start = [], 0, stop
        if start < piece.shape[0]:
            waiting.append(piece[start:, :])
            held += piece.shape[0] - start
    if waiting:
        yield join_pieces(waiting)


def read_ahead(blocks: Iterable[Array]) -> Generator[Array, None, None]:
    """Yield the blocks while a thread reads the next two; the thread ends with the pass, even an abandoned one."""
    source = iter(blocks)
    with ThreadPoolExecutor(1, thread_name_prefix="scq-reader") as reader:
        ahead = deque(reader.submit(next, source, None) for _ in range(2))
        try:
            while (block := ahead.popleft().result()) is not None:
                ahead.append(reader.submit(next, source, None))
                yield block
        finally:
            for future in ahead:
                future.cancel()
