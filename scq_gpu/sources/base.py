"""What a source of rows is: a known shape and type, and rows in blocks, as often as asked."""

from __future__ import annotations

import abc
import importlib
import os
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from scq_gpu._xp import Array, namespace, row_slices

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

    @abc.abstractmethod
    def blocks(self, size: int, *, first: int = 0) -> Iterator[Array]:
        """The rows from ``first`` on, ``size`` at a time; only the last block is shorter."""

    @abc.abstractmethod
    def locate(self, row: int) -> str:
        """Where a row is, for people."""

    @abc.abstractmethod
    def identity(self) -> list[dict[str, Any]]:
        """What tells these rows from others, ready for JSON."""

    def sample(self) -> Array:
        """An array like the blocks, of one row, of which only type and place count."""
        return np.zeros((1, self.shape[1]), dtype=self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"{self!r} has to be read to become an array; pass copy=None or copy=True")
        X = np.empty(self.shape, dtype=dtype or self.dtype)
        start = 0
        for block in self.blocks(max(1, (4 << 20) // self.shape[1])):
            X[start : start + block.shape[0]] = block
            start += block.shape[0]
        return X

    def __repr__(self) -> str:
        return f"<{self.shape[0]:,} x {self.shape[1]:,} {self.dtype} rows of {self.label}>"


class Stamp(NamedTuple):
    """What is looked at to see whether a file, or a folder that holds an array, has changed."""

    files: int
    bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        """The stamp as it is now."""
        paths = (Path(root, name) for root, _, names in os.walk(path) for name in names) if path.is_dir() else (path,)
        stats = [file.stat() for file in paths]
        return cls(len(stats), sum(s.st_size for s in stats), max((s.st_mtime_ns for s in stats), default=0))


class FileRows(RowSource):
    """Rows of one file. A format says what it holds (`_open`) and gives its rows in pieces (`_pieces`).

    Parameters
    ----------
    path : Path
    name : str, sequence of str or None
        Which of the file's arrays or columns; None if there is no choice.
    """

    shape: tuple[int, int]
    dtype: Any
    label: str
    kind: ClassVar[str]
    named: ClassVar[bool] = True  # whether a file can hold several arrays or columns

    def __init__(self, path: Path, name: str | Sequence[str] | None = None) -> None:
        self.path = path
        self.label = str(path)
        self.name = name
        self._stamp = Stamp.of(path)
        if not self._stamp.bytes:
            raise RowFileError(f"{path} is empty; {self.kind} was wanted")
        if name is not None and not self.named:
            raise RowFileError(f"{path} holds one array, which has no name; name={name!r} does not fit, leave it out")
        with reading(path, self.kind):
            shape, dtype = self._open()
        self.shape, self.dtype = check_stored(shape, dtype, path=path)

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
            with reading(self.path, self.kind):
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
        return [facts | self._stamp._asdict()]

    def _check_unchanged(self) -> None:
        try:
            stamp = Stamp.of(self.path)
        except FileNotFoundError:
            raise RowFileError(f"{self.path} has gone since it was opened; put it back and start again") from None
        if stamp != self._stamp:
            then, now = (f"{s.bytes} bytes, modified at {s.mtime_ns} ns" for s in (self._stamp, stamp))
            raise RowFileError(
                f"{self.path} changed while it was in use ({then}; now {now}): a fit needs the same rows in every "
                "pass. Wait until it is written, open it and start again"
            )


class ArrayRows(RowSource):
    """Rows that are in memory already, and know where they came from."""

    shape: tuple[int, int]
    dtype: Any
    label: str
    in_memory = True

    def __init__(self, X: Array, *, label: str, locate: Callable[[int], str] | None = None) -> None:
        self._X = X
        self.shape, self.dtype, self.label = (X.shape[0], X.shape[1]), X.dtype, label
        self._locate = locate or (lambda row: f"row {row} of {label}")

    def sample(self) -> Array:
        """The first row."""
        return self._X[:1, :]

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
        self._xp = namespace(*(part.sample() for part in parts))
        self.dtype: Any = self._xp.result_type(*(part.dtype for part in parts))

    def sample(self) -> Array:
        """The first part's, in the type of all."""
        return self._xp.astype(self._parts[0].sample(), self.dtype, copy=False)

    def blocks(self, size: int, *, first: int = 0) -> Iterator[Array]:
        """Blocks may come from two parts or more."""
        return recut(self._pieces(size, first), size)

    def _pieces(self, size: int, first: int) -> Iterator[Array]:
        for part, end in zip(self._parts, self._ends, strict=True):
            if end > first:
                inside = max(0, first - (end - part.shape[0]))
                for block in part.blocks(size, first=inside):
                    yield self._xp.astype(block, self.dtype, copy=False)

    def locate(self, row: int) -> str:
        """In its part, and among all."""
        place = bisect_right(self._ends, row)
        part = self._parts[place]
        return f"{part.locate(row - (self._ends[place] - part.shape[0]))} (row {row} of all)"

    def identity(self) -> list[dict[str, Any]]:
        """That of each part."""
        return [facts for part in self._parts for facts in part.identity()]


class reading:
    """Turn whatever a format's library says about a bad file into one error that names the file."""

    def __init__(self, path: Path, kind: str) -> None:
        self._path, self._kind = path, kind

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, exception: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, RowFileError | ImportError | MemoryError):
            return
        raise RowFileError(f"{self._path} cannot be read as {self._kind}: {error}") from error


def check_stored(shape: tuple[int, ...], dtype: np.dtype, *, path: Path) -> tuple[tuple[int, int], np.dtype]:
    """Shape and type of stored rows: two dimensions, neither empty, real numbers, in this machine's byte order."""
    if len(shape) != 2:
        raise RowFileError(f"{path} holds an array of shape {tuple(shape)}; 2 dimensions (rows, features) are wanted")
    n, d = (int(s) for s in shape)
    if not n or not d:
        raise RowFileError(f"{path} is empty: it holds an array of shape {(n, d)}")
    if dtype.kind not in "biuf":
        raise RowFileError(f"{path} holds {dtype}; real numbers are wanted")
    return (n, d), dtype.newbyteorder("=")


def choose(name: Any, shapes: Mapping[str, tuple[int, ...]], *, path: Path) -> str:
    """The array of a file that is meant: the one named, or the only one of two dimensions."""
    listed = ", ".join(f"{key!r} {tuple(shape)}" for key, shape in sorted(shapes.items())) or "no array"
    if name is not None:
        if not isinstance(name, str) or name not in shapes:
            raise RowFileError(f"{path} has no array named {name!r}; it holds {listed}")
        return name
    candidates = [key for key, shape in shapes.items() if len(shape) == 2]
    if len(candidates) != 1:
        raise RowFileError(
            f"{path} holds {len(candidates) or 'no'} arrays of 2 dimensions, where one is wanted: it holds {listed}. "
            "Say which, as open_rows(path, name=...)"
        )
    return candidates[0]


def needs(module: str) -> Any:
    """An optional library, imported when a file of its format is opened."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise ImportError(
            f'{library} is not installed; get it with pip install {library}, or pip install "scq-gpu[io]" for all '
            "formats"
        ) from error


def recut(pieces: Iterable[Array], size: int) -> Iterator[Array]:
    """Pieces of any height as blocks of ``size`` rows; the last may be shorter."""
    waiting: list[Array] = []
    held = 0
    for piece in pieces:
        while held + piece.shape[0] >= size:
            yield _stack([*waiting, piece[: size - held, :]])
            piece, waiting, held = piece[size - held :, :], [], 0
        if piece.shape[0]:
            waiting.append(piece)
            held += piece.shape[0]
    if waiting:
        yield _stack(waiting)


def _stack(pieces: list[Array]) -> Array:
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
