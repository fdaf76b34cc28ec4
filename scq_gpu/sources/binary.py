"""Formats that are a header and numbers: NumPy's, and those of the vector search benchmarks."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, ClassVar

import numpy as np

from scq_gpu.sources.base import FileRows, RowFileError, choose


class NpyRows(FileRows):
    """A ``.npy`` file, by plain reads: pages of a memory map would count as this process's memory."""

    kind = "an .npy file"
    named = False

    def _open(self) -> tuple[tuple[int, ...], np.dtype]:
        with self.path.open("rb") as file:
            self._header = _read_header(file)
            self._offset = file.tell()
        _check_size(self.path, self._offset + _nbytes(self._header), self._header, at_least=True)
        return self._header[0], self._header[2]

    def _pieces(self, size: int, first: int) -> Iterator[np.ndarray]:
        shape, fortran, dtype = self._header
        with self.path.open("rb", buffering=0) as file:
            read = _read_columns if fortran else _read_rows
            yield from read(file, self._offset, (shape[0], shape[1]), dtype, size=size, first=first)


class NpzRows(FileRows):
    """An array in an ``.npz`` archive, decompressed as it is read; to start at a later row, all before it are read."""

    kind = "an .npz archive"

    def _open(self) -> tuple[tuple[int, ...], np.dtype]:
        with zipfile.ZipFile(self.path) as archive:
            headers = {}
            for member in archive.namelist():
                if member.endswith(".npy"):
                    with archive.open(member) as file:
                        headers[member.removesuffix(".npy")] = _read_header(file), file.tell()
            self._member = choose(self.name, {name: header[0] for name, (header, _) in headers.items()}, path=self.path)
            self._header, offset = headers[self._member]
            stored = archive.getinfo(f"{self._member}.npy").file_size
        shape, fortran, dtype = self._header
        if stored < offset + _nbytes(self._header):
            raise RowFileError(f"{self.path}: {self._member!r} is shorter than its header says; save it again")
        if fortran:
            raise RowFileError(
                f"{self.path}: {self._member!r} is stored column by column, which cannot be read in rows from an "
                "archive; save numpy.ascontiguousarray of it, or an .npy file"
            )
        return shape, dtype

    def _pieces(self, size: int, first: int) -> Iterator[np.ndarray]:
        shape, _, dtype = self._header
        with zipfile.ZipFile(self.path) as archive, archive.open(f"{self._member}.npy") as file:
            _read_header(file)
            yield from _read_rows(file, file.tell(), (shape[0], shape[1]), dtype, size=size, first=first)


class BinRows(FileRows):
    """``.fbin``, ``.u8bin`` or ``.i8bin``: the number of rows and columns as uint32, then the rows."""

    TYPES: ClassVar = {".fbin": "<f4", ".u8bin": "u1", ".i8bin": "i1"}
    kind = "a .fbin, .u8bin or .i8bin file"
    named = False

    def _open(self) -> tuple[tuple[int, ...], np.dtype]:
        dtype = np.dtype(self.TYPES[self.path.suffix.lower()])
        with self.path.open("rb") as file:
            n, d = np.frombuffer(_exactly(file, 8), dtype="<u4").tolist()
        _check_size(self.path, 8 + _nbytes(((n, d), False, dtype)), ((n, d), False, dtype))
        return (n, d), dtype

    def _pieces(self, size: int, first: int) -> Iterator[np.ndarray]:
        dtype = np.dtype(self.TYPES[self.path.suffix.lower()])
        with self.path.open("rb", buffering=0) as file:
            yield from _read_rows(file, 8, self.shape, dtype, size=size, first=first)


class VecsRows(FileRows):
    """``.fvecs`` or ``.bvecs``: before each row its length, as int32."""

    TYPES: ClassVar = {".fvecs": "<f4", ".bvecs": "u1"}
    kind = "an .fvecs or .bvecs file"
    named = False

    def _open(self) -> tuple[tuple[int, ...], np.dtype]:
        dtype = np.dtype(self.TYPES[self.path.suffix.lower()])
        with self.path.open("rb") as file:
            d = int(np.frombuffer(_exactly(file, 4), dtype="<i4")[0])
        if d < 1:
            raise RowFileError(f"{self.path} begins with a row of length {d}; it is not {self.kind}")
        self._record = np.dtype([("length", "<i4"), ("x", dtype, (d,))])
        found = self.path.stat().st_size
        n, rest = divmod(found, self._record.itemsize)
        if rest:
            raise RowFileError(
                f"{self.path} has {found} bytes, which is {n} rows of {d} {dtype} and {rest} bytes more: it is "
                f"truncated, or not {self.kind}; copy it again"
            )
        return (n, d), dtype

    def _pieces(self, size: int, first: int) -> Iterator[np.ndarray]:
        n, d = self.shape
        with self.path.open("rb", buffering=0) as file:
            file.seek(first * self._record.itemsize)
            for start in range(first, n, size):
                records = np.empty(min(size, n - start), dtype=self._record)
                _fill(file, records.view(np.uint8))
                wrong = np.flatnonzero(records["length"] != d)
                if wrong.size:
                    raise RowFileError(
                        f"{self.path}: row {start + wrong[0]} has length {records['length'][wrong[0]]}, "
                        f"the first has {d}; all must be equal"
                    )
                yield np.ascontiguousarray(records["x"])


Header = tuple[tuple[int, ...], bool, np.dtype]


def _check_size(path: Path, wanted: int, header: Header, *, at_least: bool = False) -> None:
    """That a file is as long as its header makes it."""
    found = path.stat().st_size
    if found < wanted or (found > wanted and not at_least):
        shape, _, dtype = header
        fault = "is truncated" if found < wanted else "has another header or type"
        raise RowFileError(
            f"{path} {fault}: {shape} of {dtype} take {wanted} bytes with the header, the file has {found}; "
            "copy or write it again"
        )


def _read_header(file: IO[bytes]) -> Header:
    """Shape, whether stored by columns, and type, from the head of an .npy file."""
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"version {version} of the format is only for named fields")
    return read(file)


def _nbytes(header: Header) -> int:
    shape, _, dtype = header
    return int(np.prod([int(s) for s in shape], dtype=object)) * dtype.itemsize if shape else dtype.itemsize


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


def _exactly(file: IO[bytes], count: int) -> bytes:
    content = file.read(count)
    if len(content) < count:
        raise EOFError(f"it ends after {len(content)} bytes, inside its header")
    return content
