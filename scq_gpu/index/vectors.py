"""Vectors of an index: a column (see `search.columns`) whose rows lie in memory or in files, and are read row by row.

Files are read through a descriptor that is opened once, never mapped: a file that somebody shortens gives an error, and
does not end the process. A file is known again by its size, inode, time of change and a sample of checksums.
"""

from __future__ import annotations

import json
import mmap
import os
import weakref
import zlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from scq_gpu._core.arrays import row_slices, to_host
from scq_gpu._core.files import check_regular, lock
from scq_gpu.kernels import native
from scq_gpu.rows.sources.base import RowSource
from scq_gpu.search.columns import Growing
from scq_gpu.search.index_file import Tensor

FORMATS = ("float16", "int8")
"""What vectors in memory may be rounded to."""

_SAMPLES, _SAMPLE_BYTES = 16, 4096  # checksums of a file
_PIECE_BYTES = 1 << 24
_OVERRIDE_ROWS = 1 << 14  # of a chunk that is copied when one of its rows is replaced
_HEADER_BYTES = 128  # of a file that an index writes


class VectorFileError(ValueError):
    """A file of vectors that is not what it was when the index was made, or cannot be read."""


@dataclass(frozen=True)
class Format:
    """How rows are kept: of a type, or rounded to 8 bits with a scale for each row."""

    dtype: np.dtype[Any]
    d: int
    scaled: bool = False

    @property
    def raw(self) -> tuple[np.dtype[Any], int]:
        """Return the type and the number of items of a kept row."""
        return (np.dtype(np.uint8), self.d + 4) if self.scaled else (self.dtype, self.d)

    def encode(self, X: np.ndarray) -> np.ndarray:
        """Return rows as they are kept."""
        if self.scaled:
            X = X.astype(np.float32)
            scale = np.maximum(np.abs(X).max(axis=1, initial=0), np.finfo(np.float32).tiny) / np.float32(127)
            kept = np.empty((len(X), self.d + 4), dtype=np.uint8)
            kept[:, : self.d] = np.rint(X / scale[:, None]).astype(np.int8).view(np.uint8)
            kept[:, self.d :] = scale[:, None].view(np.uint8)
            return kept
        if not np.can_cast(X.dtype, self.dtype, casting="same_kind"):
            raise ValueError(
                f"X has dtype {X.dtype} and the vectors of the index are {self.dtype}, which would lose what they are; "
                f"pass X.astype({self.dtype.name!r}), or make the index of {X.dtype} vectors"
            )
        with np.errstate(over="ignore"):
            kept = X.astype(self.dtype, copy=False)
        if self.dtype == np.float16 and np.isinf(kept).any():
            raise ValueError("X has values beyond 65,504, which float16 does not hold; scale X, or keep_vectors='int8'")
        return kept

    def decode(self, raw: np.ndarray) -> np.ndarray:
        """Return kept rows as numbers."""
        if not self.scaled:
            return raw
        scale = np.ascontiguousarray(raw[:, self.d :]).view(np.float32)
        numbers: np.ndarray = raw[:, : self.d].view(np.int8) * scale
        return numbers


class _Descriptor:
    """A file that is open as long as somebody reads it."""

    def __init__(self, path: Path, flags: int) -> None:
        check_regular(path)
        self.number = os.open(path, flags | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.number)
        facts = check_regular(path, os.fstat(self.number))
        self.size, self.mtime_ns, self.inode = facts.st_size, facts.st_mtime_ns, facts.st_ino


@dataclass(frozen=True)
class VectorFile:
    """Rows of a file, read through one descriptor.

    ``kind`` is "user" for a file that is the user's, "own" for one that the index writes, "shared" for one that
    another index writes, and "index" for the vectors in an index file.
    """

    path: Path
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, int]
    kind: str
    file: _Descriptor

    @classmethod
    def open(cls, path: Path, offset: int, dtype: np.dtype[Any], shape: tuple[int, int], kind: str) -> VectorFile:
        """Open a file that holds rows from an offset on."""
        found = cls(path, offset, dtype, shape, kind, _Descriptor(path, os.O_RDWR if kind == "own" else os.O_RDONLY))
        found.check()
        return found

    @classmethod
    def create(cls, path: Path, dtype: np.dtype[Any], d: int) -> VectorFile:
        """Create an .npy file for an index to write; a file that is there is left alone."""
        try:
            with open(path, "xb") as file:
                file.write(_npy_header(dtype, (0, d)))
        except FileExistsError:
            raise FileExistsError(
                f"{path} is there already; pass another path as keep_vectors, or remove it if no index needs it"
            ) from None
        return cls.open(path, _HEADER_BYTES, dtype, (0, d), "own")

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row."""
        return self.shape[1] * self.dtype.itemsize

    def check(self) -> None:
        """Raise an error that names the file if it changed since it was opened."""
        facts = os.fstat(self.file.number)
        least = self.offset + self.shape[0] * self.row_bytes
        if facts.st_size < least:
            raise VectorFileError(
                f"{self.path} is {facts.st_size} bytes long and its {self.shape[0]} vectors take {least}: it was cut "
                "off; put the whole file back and load the index again"
            )
        if self.kind in ("user", "index") and (facts.st_size, facts.st_mtime_ns) != (
            self.file.size,
            self.file.mtime_ns,
        ):
            raise VectorFileError(
                f"{self.path} changed since the index opened it; put the old file back and load the index again, or "
                "make an index of the new one"
            )

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return rows by number."""
        out = np.empty((len(rows), self.shape[1]), dtype=self.dtype)
        missing = native.read_rows(self.file.number, self.offset, rows, out)
        # A change before the last row was read is seen here
        self.check()
        if missing >= 0:
            raise VectorFileError(f"row {rows[missing]} of {self.path} cannot be read whole")
        return out.astype(self.dtype.newbyteorder("="), copy=False)

    def append(self, rows: np.ndarray) -> VectorFile:
        """Write rows behind those that are there, and return the longer file."""
        if not lock(self.file.number, self.path):
            raise VectorFileError(f"{self.path} is written by another index; load the index again, or copy both files")
        content = memoryview(np.ascontiguousarray(rows, dtype=self.dtype).reshape(-1).view(np.uint8))
        at, shape = self.offset + self.shape[0] * self.row_bytes, (self.shape[0] + len(rows), self.shape[1])
        while content:
            done = os.pwrite(self.file.number, content[: 1 << 30], at)
            content, at = content[done:], at + done
        os.pwrite(self.file.number, _npy_header(self.dtype, shape), 0)
        return replace(self, shape=shape)

    def facts(self) -> dict[str, Any]:
        """Return what a saved index knows the file by."""
        if self.kind == "own":
            os.fsync(self.file.number)
        stat = os.fstat(self.file.number)
        where = {"path": str(self.path.resolve()), "offset": self.offset, "dtype": self.dtype.str, "kind": self.kind}
        known = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "inode": stat.st_ino}
        return where | known | {"shape": list(self.shape), "checksums": self.checksums()}

    def checksums(self) -> list[int]:
        """Return checksums of pieces that are spread over the rows."""
        size = self.shape[0] * self.row_bytes
        starts = np.linspace(0, max(0, size - _SAMPLE_BYTES), _SAMPLES).astype(np.int64)
        read = (os.pread(self.file.number, min(size, _SAMPLE_BYTES), self.offset + int(at)) for at in starts)
        return [zlib.crc32(content) for content in read]

    @classmethod
    def reopen(cls, facts: dict[str, Any], path: Path | None = None) -> VectorFile:
        """Open a file by its facts. A file at another path may have another time and inode."""
        where = Path(facts["path"])
        if path is not None:
            where = path / where.name if path.is_dir() else path
        if not where.exists():
            raise FileNotFoundError(f"the vectors were in {where}, which does not exist; pass vectors=...")
        shape, kind = (int(facts["shape"][0]), int(facts["shape"][1])), str(facts["kind"])
        found = cls.open(where, int(facts["offset"]), np.dtype(facts["dtype"]), shape, kind)
        fix = f"pass vectors={str(where)!r} if its rows are the same, or make the index again"
        if path is None and found.file.inode != facts["inode"]:
            raise VectorFileError(f"{where} is another file than the one that the index was made of; {fix}")
        now, then = (found.file.size, found.file.mtime_ns), (facts["size"], facts["mtime_ns"])
        if path is None and kind == "user" and now != then:
            raise VectorFileError(f"{where} changed since the index was saved; {fix}")
        if found.checksums() != facts["checksums"]:
            raise VectorFileError(f"{where} does not hold the vectors that the index was made of; make the index again")
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).reopen, (self.facts(),)


@dataclass(frozen=True)
class _Segment:
    """Rows that follow one another: all of a store, or those with some numbers."""

    store: Growing | VectorFile
    encoded: bool  # rows are as `Format.encode` returns them
    numbers: np.ndarray | None = None

    @property
    def n(self) -> int:
        if self.numbers is not None:
            return len(self.numbers)
        return self.store.n if isinstance(self.store, Growing) else self.store.shape[0]

    @property
    def grows(self) -> bool:
        """Return whether rows can be appended, as they can to memory and to an own file."""
        return self.numbers is None and (isinstance(self.store, Growing) or self.store.kind == "own")

    def take(self, rows: np.ndarray) -> np.ndarray:
        return self.store.take(rows if self.numbers is None else self.numbers[rows])


class Vectors:
    """A column of vectors (n, d)."""

    def __init__(
        self,
        format: Format,
        segments: tuple[_Segment, ...] = (),
        updated: Growing | None = None,
        where: dict[int, np.ndarray] | None = None,
        replaced: int = 0,
    ) -> None:
        self.format, self._segments = format, segments
        self._firsts = np.cumsum([0, *(segment.n for segment in segments)])
        self.n = int(self._firsts[-1])
        # A row that was replaced is in `updated`, at the number that `where` has for its place: arrays of
        # `_OVERRIDE_ROWS` places, by their number, of -1 for the other rows
        self._updated = Growing.of(np.empty((0, format.raw[1]), dtype=format.raw[0])) if updated is None else updated
        self._where = where or {}
        self.replaced = replaced  # vectors that take memory, or room in an own file, and are no row's

    @classmethod
    def to_file(cls, path: Path, dtype: np.dtype[Any], d: int) -> Vectors:
        """Return an empty column that writes its rows to a new file."""
        return cls(Format(dtype, d), (_Segment(VectorFile.create(path, dtype, d), encoded=True),))

    @property
    def where(self) -> str:
        """Say where the vectors are."""
        if any(isinstance(segment.store, VectorFile) for segment in self._segments):
            return "vectors in a file"
        rounded = self.format.scaled or self.format.dtype == np.float16
        return "vectors in memory" + (f" as {self.format.dtype.name}" if rounded else "")

    @property
    def shape(self) -> tuple[int, int]:
        """Return the number of rows and their width."""
        return self.n, self.format.d

    def append(self, rows: Any) -> Vectors:
        """Return a column with these rows at the end, which are copied unless they are a file's.

        They are an array, a `VectorFile`, a source of rows that is read piece by piece, or a list of those.
        """
        if isinstance(rows, VectorFile):
            return self._with((*self._segments, _Segment(rows, encoded=False)))
        column = self
        if isinstance(rows, list):
            for some in rows:
                column = column.append(some)
            return column
        pieces = rows.pieces(self._rows_of_piece) if isinstance(rows, RowSource) else (rows,)
        for piece in pieces:
            column = column._append_raw(self.format.encode(to_host(piece)))
        return column

    def _append_raw(self, rows: np.ndarray) -> Vectors:
        last = self._segments[-1:]
        if last and last[0].grows:
            return self._with((*self._segments[:-1], replace(last[0], store=last[0].store.append(rows))))
        return self._with((*self._segments, _Segment(Growing.of(np.array(rows)), encoded=True)))

    def _with(self, segments: tuple[_Segment, ...]) -> Vectors:
        return Vectors(self.format, segments, self._updated, self._where, self.replaced)

    def replace(self, places: np.ndarray, rows: np.ndarray) -> Vectors:
        """Return a column with other rows at some places."""
        return self._replace_raw(places, self.format.encode(rows))

    def _replace_raw(self, places: np.ndarray, rows: np.ndarray) -> Vectors:
        # The first row that takes the place of a file's leaves nothing behind
        first = ~self._growing(places) & (self._overrides(places) < 0)
        where, numbers = dict(self._where), self._updated.n + np.arange(len(places))
        chunk_of, at = np.divmod(places, _OVERRIDE_ROWS)
        for chunk in np.unique(chunk_of).tolist():
            mine = chunk_of == chunk
            where[chunk] = where[chunk].copy() if chunk in where else np.full(_OVERRIDE_ROWS, -1)
            where[chunk][at[mine]] = numbers[mine]
        replaced = self.replaced + len(places) - int(first.sum())
        return Vectors(self.format, self._segments, self._updated.append(rows), where, replaced)

    def take(self, places: np.ndarray) -> np.ndarray:
        """Return the rows at these places, as numbers."""
        return self.format.decode(self.raw(places))

    __getitem__ = take

    def raw(self, places: np.ndarray) -> np.ndarray:
        """Return the rows at these places, as they are kept."""
        if len(self._segments) == 1 and not self._where:
            return self._of_segment(self._segments[0], places)
        dtype, width = self.format.raw
        out = np.empty((len(places), width), dtype=dtype)
        numbers = self._overrides(places)
        segment_of = np.where(numbers >= 0, -1, self._segment_of(places))
        for which in np.unique(segment_of).tolist():
            mine = segment_of == which
            if which < 0:
                out[mine] = self._updated.take(numbers[mine])
            else:
                out[mine] = self._of_segment(self._segments[which], places[mine] - self._firsts[which])
        return out

    def _of_segment(self, segment: _Segment, rows: np.ndarray) -> np.ndarray:
        found = segment.take(rows)
        return found if segment.encoded else self.format.encode(found)

    def _overrides(self, places: np.ndarray) -> np.ndarray:
        """Return the numbers of rows among the updated ones, -1 for others."""
        numbers = np.full(len(places), -1)
        if self._where:
            chunk_of, at = np.divmod(places, _OVERRIDE_ROWS)
            for chunk in np.unique(chunk_of).tolist():
                if chunk in self._where:
                    mine = chunk_of == chunk
                    numbers[mine] = self._where[chunk][at[mine]]
        return numbers

    def _segment_of(self, places: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._firsts, places, side="right") - 1

    def _growing(self, places: np.ndarray) -> np.ndarray:
        """Return which places are in memory, or in a file that the index writes."""
        kinds = np.array([segment.grows for segment in self._segments], dtype=bool)
        found: np.ndarray = kinds[self._segment_of(places)]
        return found

    def kept(self, places: np.ndarray) -> Vectors:
        """Return a column of the rows at these ascending places; those that are not in a user's file are copied."""
        column = Vectors(self.format)
        for segment, first, end in zip(self._segments, self._firsts[:-1], self._firsts[1:], strict=True):
            mine = places[slice(*np.searchsorted(places, [first, end]))]
            if not segment.grows:
                rows = mine - first
                numbers = rows if segment.numbers is None else segment.numbers[rows]
                column = column._with((*column._segments, replace(segment, numbers=numbers)))
                continue
            if isinstance(segment.store, VectorFile):
                # The old file stays for whoever reads it, and for an index that was saved with it (`forget`)
                path, dtype, d = _next_name(segment.store.path), segment.store.dtype, self.format.d
                column = column._with((*column._segments, _Segment(VectorFile.create(path, dtype, d), encoded=True)))
            for some in row_slices(len(mine), self._rows_of_piece):
                column = column._append_raw(self.raw(mine[some]))
        numbers = self._overrides(places)
        still = np.flatnonzero((numbers >= 0) & ~column._growing(np.arange(column.n))) if self._where else numbers[:0]
        return column._replace_raw(still, self._updated.take(numbers[still])) if still.size else column

    @property
    def _rows_of_piece(self) -> int:
        dtype, width = self.format.raw
        return max(1, _PIECE_BYTES // (width * dtype.itemsize))

    def sealed(self) -> Vectors:
        """Return a column of the same rows that does not write into their arrays and files."""

        def seal(store: Growing | VectorFile) -> Growing | VectorFile:
            return store.sealed() if isinstance(store, Growing) else replace(store, kind="shared")

        segments = tuple(replace(s, store=seal(s.store)) if s.grows else s for s in self._segments)
        return Vectors(self.format, segments, self._updated.sealed(), self._where, self.replaced)

    # ---- files ----

    def own_files(self) -> list[Path]:
        """Return the files that the index writes."""
        stores = [segment.store for segment in self._segments if segment.grows]
        return [store.path for store in stores if isinstance(store, VectorFile)]

    def tensors(self, places: np.ndarray) -> tuple[dict[str, Tensor], str]:
        """Return what an index file holds of the rows at these ascending places: tensors, and facts as JSON.

        Rows of users' and own files stay there. The others are one tensor, ``vectors``, in the order of places.
        """
        facts: list[dict[str, Any]] = []
        inline, files = [], []
        for segment, first, end in zip(self._segments, self._firsts[:-1], self._firsts[1:], strict=True):
            mine = places[slice(*np.searchsorted(places, [first, end]))]
            store = segment.store
            if isinstance(store, VectorFile) and store.kind != "index":
                rows = mine - first
                files.append(rows if segment.numbers is None else segment.numbers[rows])
                facts.append(store.facts() | {"rows": len(mine), "encoded": segment.encoded})
            elif len(mine):
                inline.append(mine)
                facts.append({"rows": len(mine)})
        dtype, width = self.format.raw
        held = np.concatenate([places[:0], *inline])
        found: dict[str, Tensor] = {}
        if held.size:
            pieces = row_slices(len(held), self._rows_of_piece)
            found["vectors"] = Tensor((len(held), width), dtype, lambda: (self.raw(held[some]) for some in pieces))
        if files:
            found["vector_rows"] = Tensor.of(np.concatenate(files))
            numbers = self._overrides(places)
            # Rows of files that were replaced
            mine = np.flatnonzero((numbers >= 0) & ~np.isin(places, held))
            if mine.size:
                found["updated_places"] = Tensor.of(mine)
                found["updated"] = Tensor.of(self._updated.take(numbers[mine]))
        return found, json.dumps(asdict(self.format) | {"dtype": self.format.dtype.str, "segments": facts})

    @classmethod
    def from_tensors(
        cls, text: str, tensors: dict[str, np.ndarray], inside: VectorFile | None, moved: Path | None
    ) -> Vectors:
        """Return the column that `tensors` described; ``inside`` are the vectors in the index file itself."""
        said = json.loads(text)
        column = cls(Format(np.dtype(said["dtype"]), int(said["d"]), bool(said["scaled"])))
        held = from_file = 0
        for facts in said["segments"]:
            n = int(facts["rows"])
            if "path" not in facts:
                if inside is None:
                    raise ValueError("it has no vectors")
                numbers = np.arange(held, held + n)
                held += n
                segment = _Segment(inside, encoded=True, numbers=numbers)
            else:
                file = VectorFile.reopen(facts, moved)
                rows = np.array(tensors["vector_rows"][from_file : from_file + n])
                from_file += n
                whole = n == file.shape[0] and bool((rows == np.arange(n)).all())
                if len(rows) != n or (n and (rows.min() < 0 or rows.max() >= file.shape[0])):
                    raise ValueError(f"its vectors are rows that {file.path} does not have")
                segment = _Segment(file, encoded=bool(facts["encoded"]), numbers=None if whole else rows)
            column = column._with((*column._segments, segment))
        if held != (0 if inside is None else inside.shape[0]):
            raise ValueError("its vectors are more than its rows")
        dtype, width = column.format.raw
        if inside is not None and (inside.dtype != dtype or inside.shape[1] != width):
            raise ValueError(f"its vectors are {inside.dtype} of {inside.shape[1]} columns, not {dtype} of {width}")
        if "updated" in tensors:
            places = np.array(tensors["updated_places"])
            if len(places) and (places.min() < 0 or places.max() >= column.n):
                raise ValueError("its updated vectors are of no row")
            column = column._replace_raw(places, np.array(tensors["updated"]))
        return column


def file_of(rows: np.ndarray) -> VectorFile | None:
    """Return the file whose rows a memory map shows, from first to last column, or None."""
    if not isinstance(rows, np.memmap) or rows.filename is None or not rows.flags.c_contiguous or not rows.size:
        return None
    path = Path(str(rows.filename)).resolve()
    begin = rows.ctypes.data - np.frombuffer(rows._mmap, dtype=np.uint8).ctypes.data  # type: ignore[attr-defined]
    offset = rows.offset - rows.offset % mmap.ALLOCATIONGRANULARITY + begin
    try:
        file = VectorFile.open(path, int(offset), rows.dtype, (rows.shape[0], rows.shape[1]), "user")
        ends = np.array([0, len(rows) - 1])
        # Another file may have the name by now
        same = (
            file.take(ends).tobytes() == np.ascontiguousarray(rows[ends]).astype(rows.dtype.newbyteorder("=")).tobytes()
        )
    except (OSError, ValueError):
        return None
    return file if same else None


def _next_name(path: Path) -> Path:
    """Return a name beside a file for its next version: `vectors.npy`, `vectors.1.npy`, `vectors.2.npy`, ..."""
    stem, _, number = path.stem.rpartition(".")
    base, count = (stem, int(number)) if stem and number.isdigit() else (path.stem, 0)
    return path.with_name(f"{base}.{count + 1}{path.suffix}")


def _npy_header(dtype: np.dtype[Any], shape: tuple[int, int]) -> bytes:
    text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape}, }}"
    length = _HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + text.ljust(length - 1).encode() + b"\n"
