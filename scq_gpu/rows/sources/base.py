"""What a source of rows is: a known shape and type, and rows in blocks, as often as asked."""

from __future__ import annotations

import abc
import contextlib
import os
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from scq_gpu._core.arrays import Array, namespace, row_slices
from scq_gpu._core.host_memory import available_bytes, check_room

READ_AHEAD: Final = 2
"""Blocks read while the one before them is worked on."""


class RowFileError(ValueError):
    """A file of rows that is damaged, is not what its name says, or changed while it was in use."""


class RowSource(abc.ABC):
    """Rows that are read when they are wanted: give it to ``fit`` and ``encode`` in the place of an array.

    ``shape`` (n, d) and ``dtype`` are known before any row is read; ``numpy.asarray`` reads them all.
    """

    shape: tuple[int, int]
    dtype: Any
    label: str
    in_memory: bool = False
    known_moments: Any = None  # of more rows than these, where these are a sample of them

    @abc.abstractmethod
    def blocks(self, size: int, *, first: int = 0) -> Iterator[Array]:
        """The rows from ``first`` on, ``size`` at a time; only the last block is shorter."""

    @abc.abstractmethod
    def locate(self, row: int) -> str:
        """Where a row is, for people."""

    @abc.abstractmethod
    def identity(self) -> list[dict[str, Any]]:
        """What tells these rows from others, ready for JSON."""

    def id_type(self, column: str) -> Any:
        """The Arrow type of a column of ids; refused where there are no columns."""
        raise RowFileError(
            f"{self.label} has no columns, so no ids in {column!r}; those of Parquet and Arrow files have"
        )

    def ids(self, column: str, size: int) -> Iterator[Any]:
        """The ids of all rows, in order, as Arrow arrays of up to some ``size``."""
        raise NotImplementedError

    def sample(self) -> Array:
        """An array like the blocks, of one row, of which only type and device count."""
        return np.zeros((1, self.shape[1]), dtype=self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"{self!r} has to be read to become an array; pass copy=None or copy=True")
        n_bytes = self.shape[0] * self.shape[1] * np.dtype(dtype or self.dtype).itemsize
        check_room(n_bytes, f"{self.label} as an array", cure="pass the source itself, which is read in blocks")
        X = np.empty(self.shape, dtype=dtype or self.dtype)
        size = max(1, (4 << 20) // self.shape[1])
        for number, block in enumerate(self.blocks(size)):
            X[number * size : number * size + block.shape[0]] = block
        return X

    def __repr__(self) -> str:
        return f"<{self.shape[0]:,} x {self.shape[1]:,} {self.dtype} rows of {self.label}>"


class FileRows(RowSource):
    """Rows of one file. A format says what it holds (`_open`) and gives its rows in pieces (`_pieces`).

    ``path`` is a `Path`, or a `Remote`, which is as much of one as is used here. ``name`` says which of the file's
    arrays or columns are meant; None if there is no choice.
    """

    kind: ClassVar[str]
    named: ClassVar[bool] = True  # whether a file can hold several arrays or columns

    def __init__(self, path: Any, name: str | Sequence[str] | None = None) -> None:
        self.path = path
        self.label: str = str(path)
        self.name = name
        self._stamp = _stamp(path)
        if not self._stamp["bytes"]:
            raise RowFileError(f"{path} is empty; {self.kind} was wanted")
        if name is not None and not self.named:
            raise RowFileError(f"{path} holds one array, which has no name; name={name!r} does not fit, leave it out")
        with self._reading():
            shape, dtype = self._open()
        if len(shape) != 2:
            raise RowFileError(f"{path} holds an array of shape {(*shape,)}; 2 dimensions (rows, features) are wanted")
        if not shape[1]:
            raise RowFileError(f"{path} is empty: it holds an array of shape {(*shape,)}")
        if dtype.kind not in "biuf":
            raise RowFileError(f"{path} holds {dtype}; real numbers are wanted")
        self.shape: tuple[int, int] = (int(shape[0]), int(shape[1]))
        self.dtype: Any = dtype.newbyteorder("=")
        self._check_piece(self.shape[1] * dtype.itemsize, "a row")

    @abc.abstractmethod
    def _open(self) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and type of what the file holds, and that it holds all of it."""

    @abc.abstractmethod
    def _pieces(self, size: int, first: int) -> Iterator[np.ndarray]:
        """The rows from ``first`` on, in pieces of whatever height suits the format and is not far above ``size``."""

    def blocks(self, size: int, *, first: int = 0) -> Iterator[np.ndarray]:
        """The rows, read anew; refused if the file is not the one that was opened."""
        self._check_unchanged()
        row = first
        try:
            with self._reading():
                for block in recut(self._pieces(size, first), size):
                    yield block.astype(self.dtype, copy=False)
                    row += block.shape[0]
        except RowFileError:
            self._check_unchanged()  # which says better what is wrong
            raise
        self._check_unchanged()
        if row != self.shape[0]:
            raise RowFileError(f"{self.path} gave {row} rows where {self.shape[0]} were promised; copy it again")

    def locate(self, row: int) -> str:
        """By number and path."""
        return f"row {row} of {self.path}"

    def identity(self) -> list[dict[str, Any]]:
        """Path, name within it, shape, type and stamp."""
        name = self.name if self.name is None or isinstance(self.name, str) else list(self.name)
        facts = {"path": str(self.path.resolve()), "name": name, "shape": list(self.shape), "dtype": str(self.dtype)}
        return [facts | self._stamp]

    def _choose(self, shapes: Mapping[str, tuple[int, ...]]) -> str:
        """The array that is meant: the one named, with or without slashes around it, or the only one of two dimensions.

        ``shapes`` are those of all arrays in the file.
        """
        listed = ", ".join(f"{key!r} {tuple(shape)}" for key, shape in sorted(shapes.items())) or "no array"
        if self.name is not None:
            name = self.name.strip("/") if isinstance(self.name, str) else ""
            if name not in shapes:
                raise RowFileError(f"{self.path} has no array named {self.name!r}; it holds {listed}")
            return name
        candidates = [key for key, shape in shapes.items() if len(shape) == 2]
        if len(candidates) != 1:
            raise RowFileError(
                f"{self.path} holds {len(candidates) or 'no'} arrays of 2 dimensions, where one is wanted: it holds "
                f"{listed}. Say which, as open_rows(path, name=...)"
            )
        return candidates[0]

    def _check_piece(self, n_bytes: int, what: str) -> None:
        """Refuse a file of which the least that can be read at a time does not fit in memory."""
        available = available_bytes()
        if available is not None and 2 * n_bytes > available:
            raise RowFileError(
                f"{self.path} has a header by which {what} takes {n_bytes / 2**30:,.1f} GiB in memory, and "
                f"{available / 2**30:,.1f} GiB are available; it is damaged, or was not made to be read in pieces"
            )

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn whatever a format's library says about a bad file into one error that names the file."""
        try:
            yield
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
            then, now = (_describe(s) for s in (self._stamp, stamp))
            raise RowFileError(
                f"{self.path} changed while it was in use ({then}; now {now}): a fit needs the same rows in every "
                "pass. Wait until it is written, open it and start again"
            )


def _describe(stamp: dict[str, Any]) -> str:
    version = f"version {stamp['tag']}" if "tag" in stamp else f"modified at {stamp['mtime_ns']} ns"
    return f"{stamp['bytes']} bytes, {version}"


def _stamp(path: Any) -> dict[str, Any]:
    """What is looked at to see whether a file, or a folder that holds an array, has changed."""
    if not isinstance(path, Path):  # a `Remote`
        remote: dict[str, Any] = path.stamp()
        return remote
    paths = (Path(root, name) for root, _, names in os.walk(path) for name in names) if path.is_dir() else (path,)
    stats = [file.stat() for file in paths]
    newest = max((s.st_mtime_ns for s in stats), default=0)
    return {"files": len(stats), "bytes": sum(s.st_size for s in stats), "mtime_ns": newest}


class ArrayRows(RowSource):
    """Rows that are in memory already, and know where they came from."""

    in_memory = True

    def __init__(self, X: Array, *, label: str, locate: Callable[[int], str] | None = None) -> None:
        self._X = X
        self.shape: tuple[int, int] = (X.shape[0], X.shape[1])
        self.dtype: Any = X.dtype
        self.label: str = label
        self._locate = locate or (lambda row: f"row {row} of {label}")

    def sample(self) -> Array:
        """The first row."""
        return self._X[: min(1, self.shape[0]), :]

    def blocks(self, size: int, *, first: int = 0) -> Iterator[Array]:
        """Slices, no copies."""
        X = self._X[first:, :]
        return (X[part, :] for part in row_slices(X.shape[0], size))

    def locate(self, row: int) -> str:
        """As whoever made this says."""
        return self._locate(row)

    def identity(self) -> list[dict[str, Any]]:
        """None: rows in memory may have changed."""
        raise TypeError(
            f"{self.label} is in memory: it cannot be told apart from another when a job goes on. Save it and pass the "
            "path, or write its codes at once: numpy.save(out, encoder.encode(X))"
        )


class JoinedRows(RowSource):
    """Rows of several sources, one after the other, cut into blocks as if they were one."""

    def __init__(self, parts: Sequence[RowSource]) -> None:
        self._parts = list(parts)
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
        """The namespace of all; not kept, since modules do not travel between processes."""
        return namespace(*(part.sample() for part in self._parts))

    def sample(self) -> Array:
        """The first part's, in the type of all."""
        return self._xp.astype(self._parts[0].sample(), self.dtype, copy=False)

    def blocks(self, size: int, *, first: int = 0) -> Iterator[Array]:
        """Blocks may come from two parts or more."""
        return recut(self._pieces(size, first), size)

    def _pieces(self, size: int, first: int) -> Iterator[Array]:
        xp = self._xp
        for part, end in zip(self._parts, self._ends, strict=True):
            if end > first:
                inside = max(0, first - (end - part.shape[0]))
                for block in part.blocks(size, first=inside):
                    yield xp.astype(block, self.dtype, copy=False)

    def id_type(self, column: str) -> Any:
        """The type that all parts have."""
        types = [(part.id_type(column), part.label) for part in self._parts]
        for kind, label in types:
            if kind != types[0][0]:
                raise RowFileError(
                    f"{label}: {column!r} is {kind}, in {types[0][1]} it is {types[0][0]}; make them one"
                )
        return types[0][0]

    def ids(self, column: str, size: int) -> Iterator[Any]:
        """Those of each part."""
        for part in self._parts:
            yield from part.ids(column, size)

    def locate(self, row: int) -> str:
        """In its part, and among all."""
        number = bisect_right(self._ends, row)
        part = self._parts[number]
        return f"{part.locate(row - (self._ends[number] - part.shape[0]))} (row {row} of all)"

    def identity(self) -> list[dict[str, Any]]:
        """That of each part."""
        return [facts for part in self._parts for facts in part.identity()]


def recut(pieces: Iterable[Array], size: int) -> Iterator[Array]:
    """Pieces of any height as blocks of ``size`` rows; the last may be shorter."""
    waiting: list[Array] = []
    held = 0
    for piece in pieces:
        while held + piece.shape[0] >= size:
            yield _join([*waiting, piece[: size - held, :]])
            piece, waiting, held = piece[size - held :, :], [], 0
        if piece.shape[0]:
            waiting.append(piece)
            held += piece.shape[0]
    if waiting:
        yield _join(waiting)


def _join(pieces: list[Array]) -> Array:
    return pieces[0] if len(pieces) == 1 else namespace(*pieces).concat(pieces, axis=0)


def read_ahead(blocks: Iterable[Array]) -> Generator[Array, None, None]:
    """The blocks, the next two being read by a thread of its own; it ends with the pass, also with one given up."""
    source = iter(blocks)
    with ThreadPoolExecutor(1, thread_name_prefix="scq-reader") as reader:
        ahead = deque(reader.submit(next, source, None) for _ in range(READ_AHEAD))
        try:
            while (block := ahead.popleft().result()) is not None:
                ahead.append(reader.submit(next, source, None))
                yield block
        finally:
            for future in ahead:
                future.cancel()
