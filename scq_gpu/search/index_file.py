"""Index files: one safetensors file, written piece by piece and read through a memory map.

The format is eight bytes of header length, a JSON header, then raw tensors; every safetensors reader opens it. Tensors
of wider types come first and the header is padded to 64 bytes, so that all tensors are aligned and can be used in
place. The safetensors library needs all bytes in memory to write, and copies them to read, which an index larger than
memory cannot afford.

The last tensor, ``digests``, holds the SHA-256 of the header and of each 16 MiB of the tensors before it. They are
compared on request only, as that reads the whole file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, NamedTuple

import numpy as np

from scq_gpu._core.bits import BIT_CONTRACT, code_bytes
from scq_gpu._core.files import check_regular, replacing
from scq_gpu._core.validate import DISTANCES
from scq_gpu.search.ids import decode_ids, from_rows

FORMAT, VECTOR_FORMAT = "scq_gpu.HammingIndex v2", "scq_gpu.VectorIndex v2"
_DTYPES: dict[str, np.dtype[Any]] = {"BOOL": np.dtype("?")} | {
    f"{kind}{8 * size}": np.dtype(f"<{kind.lower()}{size}")
    for kind, sizes in (("F", (2, 4, 8)), ("I", (1, 2, 4, 8)), ("U", (1, 2, 4, 8)))
    for size in sizes
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MAX_HEADER = 1 << 20
_PIECE = 1 << 20  # rows that are written or checked at a time
_BLOCK = 16 << 20  # bytes behind a digest


class Tensor(NamedTuple):
    """A tensor to be written, piece by piece."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    pieces: Callable[[], Iterable[np.ndarray]]

    @classmethod
    def of(cls, x: np.ndarray) -> Tensor:
        """Return an array as a tensor."""
        return cls(x.shape, x.dtype, lambda: (x[start : start + _PIECE] for start in range(0, len(x), _PIECE)))


class Stored(NamedTuple):
    """Content of an index file; the arrays are memory-mapped and read-only."""

    path: str
    codes: np.ndarray
    ids: np.ndarray | None
    n_bits: int
    facts: dict[str, str]
    extra: dict[str, np.ndarray]
    offsets: dict[str, int]  # of tensors in the file
    next_id: int
    inode: int


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> None:
    """Write tensors and facts, among them ``format`` and ``n_bits``, atomically."""
    # Wide types first: an odd number of bytes would leave what follows unaligned
    tensors = dict(sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize))
    header: dict[str, Any] = {"__metadata__": {"bit_contract": BIT_CONTRACT, **facts}}
    begin = 0
    for name, tensor in tensors.items():
        end = begin + math.prod(tensor.shape) * tensor.dtype.itemsize
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    count = 1 + -(-begin // _BLOCK)
    header["digests"] = {"dtype": "U8", "shape": [count, 32], "data_offsets": [begin, begin + 32 * count]}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    if len(text) > _MAX_HEADER:
        raise ValueError(f"the header of {os.fspath(path)!r} would take {len(text)} bytes, more than {_MAX_HEADER}")
    digests = _Digests(text)
    with replacing(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            for piece in tensor.pieces():
                content = np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
                digests.update(content)
                file.write(content)
        file.write(digests.join())


class _Digests:
    """SHA-256 of a header, and of each `_BLOCK` bytes that follow it."""

    def __init__(self, header: bytes) -> None:
        self._hashes, self._left = [hashlib.sha256(header)], 0

    def update(self, content: memoryview | bytes) -> None:
        while len(content):
            if not self._left:
                self._hashes.append(hashlib.sha256())
                self._left = _BLOCK
            part, content = content[: self._left], content[self._left :]
            self._hashes[-1].update(part)
            self._left -= len(part)

    def join(self) -> bytes:
        return b"".join(one.digest() for one in self._hashes)


def read(path: str | os.PathLike[str], *, format: str = FORMAT, verify: bool = False) -> Stored:
    """Open an index file; ``verify`` reads all of it and compares its digests.

    Everything is read through one descriptor, so a file that is replaced meanwhile is seen as it was. Ids are always
    checked: none empty or below 0. That none comes twice is seen when they are first looked up.
    """
    check_regular(path)
    with open(path, "rb") as file:
        stat = check_regular(path, os.fstat(file.fileno()))
        size = stat.st_size
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(_MAX_HEADER, size - 8):
            raise broken(path, "it has no header")
        try:
            text = file.read(length)
            header = json.loads(text)
            metadata = header["__metadata__"]
            if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
                raise TypeError("its metadata are no dictionary of strings")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise broken(path, "its header is not that of an index") from error
        if metadata.get("format") != format:
            raise broken(path, f"its format is {metadata.get('format')!r}, not {format!r}")
        if metadata.get("bit_contract") != BIT_CONTRACT:
            raise broken(path, f"its bit contract is {metadata.get('bit_contract')!r}, not {BIT_CONTRACT!r}")
        if metadata.get("distance") not in DISTANCES:
            raise broken(path, f"its distance is {metadata.get('distance')!r}, not one of {', '.join(DISTANCES)}")
        try:
            n_bits, next_id = int(metadata["n_bits"]), int(metadata["next_id"])
            entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
            arrays = {name: _map(file, entry, 8 + length, size) for name, entry in entries.items()}
            codes = arrays["codes"]
            if "digests" not in arrays:
                raise ValueError("it has no digests")
            if n_bits < 1 or codes.ndim != 2 or codes.shape[1] != code_bytes(n_bits) or codes.dtype != np.uint8:
                raise ValueError(f"codes {codes.shape} do not hold {n_bits} bits")
            if "ids" in arrays:
                if arrays["ids"].shape[:1] != codes.shape[:1]:
                    raise ValueError("ids and codes differ in length")
                _check_ids(arrays["ids"], next_id)
            elif next_id != len(codes):
                raise ValueError(f"its next id is {next_id}, where its {len(codes)} rows are numbered")
            if verify:
                _verify(file, text, arrays["digests"], header)
                for start in range(0, len(codes) if n_bits % 8 else 0, _PIECE):
                    wrong = np.flatnonzero(codes[start : start + _PIECE, -1] >= 1 << n_bits % 8)
                    if wrong.size:
                        raise ValueError(f"the code of row {start + wrong[0]} has bits set beyond n_bits={n_bits}")
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise broken(path, str(error)) from error
    extra = {name: x for name, x in arrays.items() if name not in ("codes", "ids", "digests")}
    offsets = {name: 8 + length + entry["data_offsets"][0] for name, entry in entries.items()}
    return Stored(os.fspath(path), codes, arrays.get("ids"), n_bits, metadata, extra, offsets, next_id, stat.st_ino)


def format_of(path: str | os.PathLike[str]) -> str | None:
    """Return the format that a safetensors file states, or None if it states none that can be read."""
    check_regular(path)
    with open(path, "rb") as file, contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        length = int.from_bytes(file.read(8), "little")
        said = json.loads(file.read(min(length, _MAX_HEADER)))["__metadata__"]["format"]
        return said if isinstance(said, str) else None
    return None


def _check_ids(ids: np.ndarray, next_id: int) -> None:
    """Check that ids are integers from 0 up to the next, or strings that are not empty."""
    numbers = ids.ndim == 1
    if numbers and ids.dtype != np.dtype("<i8"):
        raise ValueError(f"its ids are {ids.dtype}, not int64")
    for start in range(0, len(ids), _PIECE):
        raw = from_rows(np.ascontiguousarray(ids[start : start + _PIECE]))
        # Raises if a string is not UTF-8
        words = decode_ids(raw)
        wrong = np.flatnonzero((raw < 0) | (raw >= next_id) if numbers else raw == b"")
        if wrong.size:
            kind = "empty" if not numbers else "below 0" if raw[wrong[0]] < 0 else f"not below the next, {next_id}"
            raise ValueError(f"the id {words[wrong[0]]} of row {start + wrong[0]} is {kind}")


def _verify(file: IO[bytes], text: bytes, stored: np.ndarray, header: dict[str, Any]) -> None:
    """Compare the digests of a file with its content."""
    end = header["digests"]["data_offsets"][0]
    if stored.dtype != np.uint8 or stored.shape != (1 + -(-end // _BLOCK), 32):
        raise ValueError(f"its digests have the shape {stored.shape}")
    digests = _Digests(text)
    file.seek(8 + len(text))
    for start in range(0, end, _PIECE):
        digests.update(file.read(min(_PIECE, end - start)))
    found = np.frombuffer(digests.join(), dtype=np.uint8).reshape(-1, 32)
    if found.shape != stored.shape:
        raise ValueError("the file ends too early")
    wrong = np.flatnonzero((found != stored).any(axis=1))
    if wrong.size:
        where = "its header" if not wrong[0] else f"block {wrong[0] - 1} of {len(found) - 1} (of {_BLOCK >> 20} MiB)"
        raise ValueError(f"{where} does not match its digest: the file is damaged")


def _map(file: IO[bytes], entry: dict[str, Any], base: int, size: int) -> np.ndarray:
    dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    if not all(type(number) is int for number in (*shape, begin, end)):
        raise ValueError(f"a tensor has the shape {shape} at {begin}..{end}, where integers are expected")
    fits = 0 <= begin <= end <= size - base and end - begin == math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or not fits:
        raise ValueError(f"the file is {size} bytes long, too short or inconsistent for a tensor of shape {shape}")
    if math.prod(shape) == 0 or not shape:
        return np.empty(shape, dtype=dtype)
    return np.memmap(file, dtype=dtype, mode="r", offset=base + begin, shape=shape)


def broken(path: str | os.PathLike[str], why: str) -> ValueError:
    """Return the error of a file that is not what it should be."""
    return ValueError(f"{os.fspath(path)!r} is not a usable index file: {why}; write it again with its save method")
