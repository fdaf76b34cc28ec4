"""Formats that are a header and numbers: NumPy's, and those of the vector search benchmarks."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, ClassVar

import numpy as np

from scq_gpu._core.host_memory import check_room
from scq_gpu.rows.sources.base import FileRows, RowFileError

_MAX_HEADER = 10_000  # bytes of an .npy file's header, as NumPy has it
_MAX_MEMBERS = 10_000
_MAX_RATIO = 1100  # of a deflated member: 1032 is the most that the format can give; others compress no better


class NpyRows(FileRows):
    """A ``.npy`` file, by plain reads: pages of a memory map would count as this process's memory."""

    kind = "an .npy file"
    named = False
    _by_columns = False

    def _open(self) -> tuple[tuple[int, ...], np.dtype]:
        with self.path.open("rb") as file:
            shape, self._by_columns, self._stored = _read_npy_header(file)
            self._offset = file.tell()
        self._check_size(shape, longer_is_fine=True)
        return shape, self._stored

    def _check_size(self, shape: tuple[int, ...], *, longer_is_fine: bool = False) -> None:
        """That the file is as long as its header makes it."""
        found, wanted = self._stamp["bytes"], self._offset + math.prod(shape) * self._stored.itemsize
        if found < wanted or (found > wanted and not longer_is_fine):
            fault = "is truncated" if found < wanted else "has another header or type"
            raise RowFileError(
                f"{self.path} {fault}: {shape} of {self._stored} take {wanted} bytes with the header, the file has "
                f"{found}; copy or write it again"
            )

    def _pieces(self, size: int, first: int) -> Iterator[np.ndarray]:
        read = _read_columns if self._by_columns else _read_rows
        with self.path.open("rb", buffering=0) as file:
            yield from read(file, self._offset, self.shape, self._stored, size=size, first=first)


class NpzRows(FileRows):
    """An array in an ``.npz`` archive, decompressed as it is read; to start at a later row, all before it are read."""

    kind = "an .npz archive"

    def _open(self) -> tuple[tuple[int, ...], np.dtype]:
        headers = {}
        with self.path.open("rb") as whole, zipfile.ZipFile(whole) as archive:
            for info in _members(archive, self.path):
                with archive.open(info) as file:
                    headers[info.filename.removesuffix(".npy")] = (*_read_npy_header(file), file.tell())
            self._member = self._choose({name: shape for name, (shape, *_) in headers.items()})
            shape, by_columns, self._stored, offset = headers[self._member]
            stored_bytes = archive.getinfo(f"{self._member}.npy").file_size
        if stored_bytes < offset + math.prod(shape) * self._stored.itemsize:
            raise RowFileError(f"{self.path}: {self._member!r} is shorter than its header says; save it again")
        if by_columns:
            raise RowFileError(
                f"{self.path}: {self._member!r} is stored column by column, which cannot be read in rows from an "
                "archive; save numpy.ascontiguousarray of it, or an .npy file"
            )
        return shape, self._stored

    def _pieces(self, size: int, first: int) -> Iterator[np.ndarray]:
        with (
            self.path.open("rb") as whole,
            zipfile.ZipFile(whole) as archive,
            archive.open(f"{self._member}.npy") as file,
        ):
            _read_npy_header(file)
            yield from _read_rows(file, file.tell(), self.shape, self._stored, size=size, first=first)


class BinRows(NpyRows):
    """``.fbin``, ``.u8bin`` or ``.i8bin``: the number of rows and columns as uint32, then the rows."""

    TYPES: ClassVar = {".fbin": "<f4", ".u8bin": "u1", ".i8bin": "i1"}
    kind = "a .fbin, .u8bin or .i8bin file"

    def _open(self) -> tuple[tuple[int, ...], np.dtype]:
        self._stored, self._offset = np.dtype(self.TYPES[self.path.suffix.lower()]), 8
        with self.path.open("rb") as file:
            n, d = _read_integers(file, 2, "<u4")
        self._check_size((n, d))
        return (n, d), self._stored


class VecsRows(FileRows):
    """``.fvecs`` or ``.bvecs``: before each row its length, as int32."""

    TYPES: ClassVar = {".fvecs": "<f4", ".bvecs": "u1"}
    kind = "an .fvecs or .bvecs file"
    named = False

    def _open(self) -> tuple[tuple[int, ...], np.dtype]:
        dtype = np.dtype(self.TYPES[self.path.suffix.lower()])
        with self.path.open("rb") as file:
            (d,) = _read_integers(file, 1, "<i4")
        if d < 1:
            raise RowFileError(f"{self.path} begins with a row of length {d}; it is not {self.kind}")
        self._record = np.dtype([("length", "<i4"), ("x", dtype, (d,))])
        n_bytes = self._stamp["bytes"]
        n, rest = divmod(n_bytes, self._record.itemsize)
        if rest:
            raise RowFileError(
                f"{self.path} has {n_bytes} bytes, which is {n} rows of {d} {dtype} and {rest} bytes more: it is "
                f"truncated, or not {self.kind}; copy it again"
            )
        return (n, d), dtype

    def _pieces(self, size: int, first: int) -> Iterator[np.ndarray]:
        (n, d), start = self.shape, first
        with self.path.open("rb", buffering=0) as file:
            for records in _read_rows(file, 0, (n, 1), self._record, size=size, first=first):
                lengths = records["length"][:, 0]
                wrong = np.flatnonzero(lengths != d)
                if wrong.size:
                    raise RowFileError(
                        f"{self.path}: row {start + wrong[0]} has length {lengths[wrong[0]]}, the first has {d}; all "
                        "must be equal"
                    )
                yield np.ascontiguousarray(records["x"][:, 0, :])
                start += len(records)


def read_array(path: Path) -> np.ndarray:
    """An array of any number of dimensions, held to its header: the map of an .npy file, or the only one of an .npz."""
    try:
        return _map_npy(path) if path.suffix.lower() == ".npy" else _read_only_member(path)
    except (OSError, MemoryError, RowFileError):
        raise
    except Exception as error:  # whatever parsers and decompressors say about a bad file
        raise RowFileError(f"{path} cannot be read: {error}") from error


def _map_npy(path: Path) -> np.ndarray:
    with path.open("rb") as file:
        shape, by_columns, dtype = _read_npy_header(file)
        offset = file.tell()
    _check_plain(path, dtype)
    if path.stat().st_size < offset + math.prod(shape) * dtype.itemsize:
        raise RowFileError(f"{path} is truncated: its header claims {shape} of {dtype}; copy or write it again")
    if not math.prod(shape):
        return np.empty(shape, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape, order="F" if by_columns else "C")


def _read_only_member(path: Path) -> np.ndarray:
    with zipfile.ZipFile(path) as archive:
        members = _members(archive, path)
        if len(members) != 1:
            names = ", ".join(repr(info.filename.removesuffix(".npy")) for info in members[:10]) or "nothing"
            raise RowFileError(f"{path} holds {names}, and one array is wanted")
        with archive.open(members[0]) as file:
            shape, by_columns, dtype = _read_npy_header(file)
            _check_plain(path, dtype)
            n_bytes = math.prod(shape) * dtype.itemsize
            if members[0].file_size < file.tell() + n_bytes:
                raise RowFileError(f"{path} is shorter than its header says; save it again")
            check_room(n_bytes, f"{path} as an array")
            X = np.empty(shape, dtype=dtype, order="F" if by_columns else "C")
            if X.size:
                _fill(file, X.reshape(-1, order="A"))
            return X


def _check_plain(path: Path, dtype: np.dtype) -> None:
    if dtype.kind not in "biufUS":
        raise RowFileError(f"{path} holds {dtype}; numbers or text are wanted")


def _members(archive: zipfile.ZipFile, path: Path) -> list[zipfile.ZipInfo]:
    """The arrays of an archive; one that claims more than there can be is refused before it is opened."""
    members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
    if len(members) > _MAX_MEMBERS:
        raise RowFileError(f"{path} holds {len(members)} arrays; up to {_MAX_MEMBERS} are looked at")
    for info in members:
        if info.file_size > _MAX_RATIO * (info.compress_size + 1):
            raise RowFileError(
                f"{path}: {info.filename!r} claims {info.file_size} bytes from {info.compress_size}, more than any "
                "compression gives; save it again"
            )
    return members


def _read_npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether stored by columns, and type, from the head of an .npy file."""
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"version {version} of the format is only for named fields")
    prefix = file.read(2 if version == (1, 0) else 4)
    length = int.from_bytes(prefix, "little")
    if length > _MAX_HEADER:
        raise ValueError(f"its header claims {length} bytes; {_MAX_HEADER} are the most that make sense")
    content = prefix + file.read(length)
    try:
        shape, by_columns, dtype = read(io.BytesIO(content))
    except Exception as error:  # NumPy has Python parse it, which may fail in many ways, running out of stack included
        raise ValueError(f"its header {content[len(prefix) :][:60]!r}... cannot be read ({error})") from error
    if any(size < 0 for size in shape):
        raise ValueError(f"its header claims the shape {shape}")
    return shape, by_columns, dtype


def _read_integers(file: IO[bytes], count: int, dtype: str) -> list[int]:
    """The integers that a file begins with, all of four bytes."""
    content = file.read(4 * count)
    if len(content) < 4 * count:
        raise EOFError(f"it ends after {len(content)} bytes, inside its header")
    integers: list[int] = np.frombuffer(content, dtype=dtype).tolist()
    return integers


def _read_rows(
    file: IO[bytes], offset: int, shape: tuple[int, int], dtype: np.dtype, *, size: int, first: int
) -> Iterator[np.ndarray]:
    n, d = shape
    file.seek(offset + first * d * dtype.itemsize)
    for start in range(first, n, size):
        X = np.empty((min(size, n - start), d), dtype=dtype)
        _fill(file, X)
        yield X


def _read_columns(
    file: IO[bytes], offset: int, shape: tuple[int, int], dtype: np.dtype, *, size: int, first: int
) -> Iterator[np.ndarray]:
    n, d = shape
    for start in range(first, n, size):
        X = np.empty((d, min(size, n - start)), dtype=dtype)
        for k in range(d):
            file.seek(offset + (k * n + start) * dtype.itemsize)
            _fill(file, X[k])
        yield X.T


def _fill(file: IO[bytes], x: np.ndarray) -> None:
    """Read until x is full."""
    buffer = memoryview(x.reshape(-1).view(np.uint8))
    while buffer:
        count = file.readinto(buffer)  # type: ignore[attr-defined]
        if not count:
            raise EOFError("the file ends too early")
        buffer = buffer[count:]
