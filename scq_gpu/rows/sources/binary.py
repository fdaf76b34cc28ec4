"""Formats that are a header and numbers: NumPy's, and those of the vector search benchmarks."""

from __future__ import annotations

import contextlib
import io
import math
import struct
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from scq_gpu._core.files import check_regular
from scq_gpu._core.machine import check_room
from scq_gpu.rows.sources.base import Contents, Name, RowFileError, choose_array
from scq_gpu.rows.sources.locations import Location

BIN_TYPES = {".fbin": "<f4", ".u8bin": "u1", ".i8bin": "i1"}
VECS_TYPES = {".fvecs": "<f4", ".bvecs": "u1"}
# Bytes of zeros that one byte can stand for: 1032 by deflate, about 7,000 by LZMA, a million by bzip2.
_COMPRESSION = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1100, zipfile.ZIP_LZMA: 10_000}


@contextlib.contextmanager
def open_npy(path: Location, name: Name, n_bytes: int) -> Iterator[Contents]:
    """Open an ``.npy`` file, for plain reads: pages of a memory map would count as this process's memory."""
    _reject_name(path, name)
    with path.open("rb", buffering=0) as file:
        shape, by_columns, dtype = _read_npy_header(file)
        _check_size(path, file.tell(), shape, dtype, n_bytes)
        yield Contents(shape, dtype, partial(_read_rows, file, file.tell(), shape, dtype, by_columns))


@contextlib.contextmanager
def open_npz(path: Location, name: Name, n_bytes: int) -> Iterator[Contents]:
    """Open an array in an ``.npz`` archive, decompressed as it is read; rows before the first are decompressed too."""
    with path.open("rb") as whole, zipfile.ZipFile(whole) as archive:
        shapes = {}
        for info in _members(archive, path):
            with archive.open(info) as file:
                shapes[info.filename.removesuffix(".npy")] = _read_npy_header(file)[0]
        member = choose_array(path, name, shapes)
        with archive.open(f"{member}.npy") as file:
            shape, by_columns, dtype = _read_npy_header(file)
            _check_size(f"{path}: {member!r}", file.tell(), shape, dtype, archive.getinfo(f"{member}.npy").file_size)
            if by_columns:
                raise RowFileError(
                    f"{path}: {member!r} is stored column by column, which cannot be read in rows from an archive; "
                    "save numpy.ascontiguousarray of it, or an .npy file"
                )
            yield Contents(shape, dtype, partial(_read_rows, file, file.tell(), shape, dtype, False))


@contextlib.contextmanager
def open_bin(path: Location, name: Name, n_bytes: int) -> Iterator[Contents]:
    """Open ``.fbin``, ``.u8bin`` or ``.i8bin``: the number of rows and columns as uint32, then the rows."""
    _reject_name(path, name)
    dtype = np.dtype(BIN_TYPES[path.suffix.lower()])
    with path.open("rb", buffering=0) as file:
        shape = struct.unpack("<II", file.read(8))
        _check_size(path, 8, shape, dtype, n_bytes, exact=True)
        yield Contents(shape, dtype, partial(_read_rows, file, 8, shape, dtype, False))


@contextlib.contextmanager
def open_vecs(path: Location, name: Name, n_bytes: int) -> Iterator[Contents]:
    """Open ``.fvecs`` or ``.bvecs``: before each row its length, as int32."""
    _reject_name(path, name)
    dtype, kind = np.dtype(VECS_TYPES[path.suffix.lower()]), "an .fvecs or .bvecs file"
    with path.open("rb", buffering=0) as file:
        (d,) = struct.unpack("<i", file.read(4))
        if d < 1:
            raise RowFileError(f"{path} begins with a row of length {d}; it is not {kind}")
        record = np.dtype([("length", "<i4"), ("x", dtype, (d,))])
        n, rest = divmod(n_bytes, record.itemsize)
        if rest:
            raise RowFileError(
                f"{path} has {n_bytes} bytes, which is {n} rows of {d} {dtype} and {rest} bytes more: it is truncated, "
                f"or not {kind}; copy it again"
            )

        def pieces(size: int, first: int) -> Iterator[np.ndarray]:
            for records in _read_rows(file, 0, (n, 1), record, False, size, first):
                lengths = records["length"][:, 0]
                wrong = np.flatnonzero(lengths != d)
                if wrong.size:
                    raise RowFileError(
                        f"{path}: row {first + wrong[0]} has length {lengths[wrong[0]]}, the first has {d}; all must "
                        "be equal"
                    )
                yield np.ascontiguousarray(records["x"][:, 0, :])
                first += len(records)

        yield Contents((n, d), dtype, pieces)


def read_array(path: Path) -> np.ndarray:
    """Read an array of any shape: map an ``.npy`` file, or read the only array of an ``.npz`` archive."""
    try:
        check_regular(path)
        return _map_npy(path) if path.suffix.lower() == ".npy" else _read_only_member(path)
    except (OSError, MemoryError, RowFileError):
        raise
    except Exception as error:
        raise RowFileError(f"{path} cannot be read: {error}") from error


def _map_npy(path: Path) -> np.ndarray:
    with path.open("rb") as file:
        shape, by_columns, dtype = _read_npy_header(file)
        offset = file.tell()
    _check_plain(path, dtype)
    _check_size(path, offset, shape, dtype, path.stat().st_size)
    # Nothing cannot be mapped.
    if not math.prod(shape):
        return np.empty(shape, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape, order="F" if by_columns else "C")


def _read_only_member(path: Path) -> np.ndarray:
    with zipfile.ZipFile(path) as archive:
        members = _members(archive, path)
        if len(members) != 1:
            names = ", ".join(repr(info.filename.removesuffix(".npy")) for info in members[:10]) or "nothing"
            raise RowFileError(f"{path} holds {names}, and one array is expected")
        with archive.open(members[0]) as file:
            shape, by_columns, dtype = _read_npy_header(file)
            _check_plain(path, dtype)
            _check_size(path, file.tell(), shape, dtype, members[0].file_size)
            check_room(math.prod(shape) * dtype.itemsize, f"{path} as an array")
            X = np.empty(shape, dtype=dtype, order="F" if by_columns else "C")
            if X.size:
                _fill(file, X.reshape(-1, order="A"))
            return X


def _check_plain(path: Path, dtype: np.dtype) -> None:
    if dtype.kind not in "biufUS":
        raise RowFileError(f"{path} holds {dtype}; numbers or text are expected")


def _reject_name(path: Location, name: Name) -> None:
    if name is not None:
        raise RowFileError(f"{path} holds one array, which has no name; name={name!r} does not fit, leave it out")


def _check_size(
    what: object, offset: int, shape: tuple[int, ...], dtype: np.dtype, found: int, *, exact: bool = False
) -> None:
    """Check that a file is as long as its header makes it, or longer unless ``exact``."""
    expected = offset + math.prod(shape) * dtype.itemsize
    if found < expected or (found > expected and exact):
        fault = "is truncated" if found < expected else "has another header or type"
        raise RowFileError(
            f"{what} {fault}: {shape} of {dtype} take {expected} bytes with the header, and it has {found}; copy or "
            "write it again"
        )


def _members(archive: zipfile.ZipFile, path: Location, *, most: int = 10_000) -> list[zipfile.ZipInfo]:
    """Return the arrays of an archive; reject one that claims more than there can be before it is opened."""
    members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
    if len(members) > most:
        raise RowFileError(f"{path} holds {len(members)} arrays; up to {most} are looked at")
    for info in members:
        if info.file_size > _COMPRESSION.get(info.compress_type, 2_000_000) * (info.compress_size + 1):
            raise RowFileError(
                f"{path}: {info.filename!r} claims {info.file_size} bytes from {info.compress_size}, more than any "
                "compression gives; save it again"
            )
    return members


def _read_npy_header(file: IO[bytes], *, most: int = 10_000) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return shape, whether stored by columns, and type from an ``.npy`` header of at ``most`` so many bytes."""
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"version {version} of the format is only for named fields")
    prefix = file.read(2 if version == (1, 0) else 4)
    length = int.from_bytes(prefix, "little")
    if length > most:
        raise ValueError(f"its header claims {length} bytes; {most} are the most that make sense")
    content = prefix + file.read(length)
    try:
        shape, by_columns, dtype = read(io.BytesIO(content))
    # NumPy has Python parse it, which may fail in many ways, running out of stack included.
    except Exception as error:
        raise ValueError(f"its header {content[len(prefix) :][:60]!r}... cannot be read ({error})") from error
    if any(size < 0 for size in shape):
        raise ValueError(f"its header claims the shape {shape}")
    return shape, by_columns, dtype


def _read_rows(
    file: IO[bytes], offset: int, shape: Any, dtype: np.dtype, by_columns: bool, size: int, first: int
) -> Iterator[np.ndarray]:
    n, d = shape
    for start in range(first, n, size):
        X = np.empty((min(size, n - start), d), dtype=dtype, order="F" if by_columns else "C")
        if by_columns:
            for k in range(d):
                file.seek(offset + (k * n + start) * dtype.itemsize)
                _fill(file, X[:, k])
        else:
            file.seek(offset + start * d * dtype.itemsize)
            _fill(file, X)
        yield X


def _fill(file: IO[bytes], x: np.ndarray) -> None:
    """Read until x is full."""
    buffer = memoryview(x.reshape(-1).view(np.uint8))
    while buffer:
        count = file.readinto(buffer)  # type: ignore[attr-defined]
        if not count:
            raise EOFError("the file ends too early")
        buffer = buffer[count:]
