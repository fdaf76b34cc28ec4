"""Index files: one safetensors file, written piece by piece and read through a memory map.

The format is eight bytes of header length, a JSON header, then raw tensors; every safetensors reader opens it. Tensors
of wider types come first and the header is padded to 64 bytes, so that all tensors are aligned and can be used where
they lie. The library's own writer wants all bytes in memory, and its reader copies them, which an index larger than
memory cannot afford; hence these few lines.

The last tensor, ``digests``, holds the SHA-256 of the header and of each 16 MiB of the tensors before it. They are
compared on request: that reads the whole file. Files of before have none and load all the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scq_gpu._core.bits import BIT_CONTRACT, code_bytes
from scq_gpu._core.files import replacing
from scq_gpu._core.validate import DISTANCES
from scq_gpu.search.ids import as_words, from_bytes, is_text

FORMAT, VECTOR_FORMAT = "scq_gpu.HammingIndex v1", "scq_gpu.VectorIndex v1"
_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BOOL": np.dtype("?"),
    **{f"I{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
    **{f"U{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MAX_HEADER = 1 << 20
_PIECE = 1 << 20  # rows written, or looked at, at a time
_BLOCK = 16 << 20  # bytes behind a digest


class Stored(NamedTuple):
    """What an index file holds, the arrays memory-mapped and read-only."""

    codes: np.ndarray
    factors: np.ndarray | None
    ids: np.ndarray | None
    n_bits: int
    facts: dict[str, str]
    extra: dict[str, np.ndarray]


def write(
    path: str | os.PathLike[str],
    codes: Sequence[np.ndarray],
    ids: np.ndarray | None,
    factors: Sequence[np.ndarray] | None,
    *,
    n_bits: int,
    facts: Mapping[str, str],
    extra: Mapping[str, Sequence[np.ndarray]] | None = None,
    format: str = FORMAT,
) -> None:
    """Write codes, ids, factors and further tensors, each in parts, all or nothing."""
    tensors: dict[str, list[np.ndarray]] = {} if ids is None else {"ids": [ids]}
    tensors |= {name: list(parts) for name, parts in (extra or {}).items()}
    if factors is not None:
        tensors["factors"] = [part.astype("<f2", copy=False) for part in factors]
    tensors["codes"] = list(codes)
    # wide types first: an odd number of bytes would leave what follows unaligned
    tensors = dict(sorted(tensors.items(), key=lambda item: -item[1][0].dtype.itemsize))
    header: dict[str, Any] = {
        "__metadata__": {"format": format, "n_bits": str(n_bits), "bit_contract": BIT_CONTRACT, **facts}
    }
    begin = 0
    for name, parts in tensors.items():
        shape = [sum(len(part) for part in parts), *parts[0].shape[1:]]
        end = begin + math.prod(shape) * parts[0].dtype.itemsize
        header[name] = {"dtype": _NAMES[parts[0].dtype], "shape": shape, "data_offsets": [begin, end]}
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
        for part in (part for parts in tensors.values() for part in parts):
            for start in range(0, len(part), _PIECE):
                content = np.ascontiguousarray(part[start : start + _PIECE]).reshape(-1).view(np.uint8).data
                digests.update(content)
                file.write(content)
        file.write(digests.join())


class _Digests:
    """SHA-256 of a header, and of each `_BLOCK` bytes of what follows it."""

    def __init__(self, header: bytes) -> None:
        self._done = [hashlib.sha256(header).digest()]
        self._open, self._left = hashlib.sha256(), _BLOCK

    def update(self, content: memoryview | bytes) -> None:
        while len(content):
            part, content = content[: self._left], content[self._left :]
            self._open.update(part)
            self._left -= len(part)
            if not self._left:
                self._done.append(self._open.digest())
                self._open, self._left = hashlib.sha256(), _BLOCK

    def join(self) -> bytes:
        return b"".join(self._done + ([self._open.digest()] if self._left < _BLOCK else []))


def read(path: str | os.PathLike[str], *, format: str = FORMAT, verify: bool = False) -> Stored:
    """Open an index file; ``verify`` reads all of it and compares its digests.

    Ids are checked in any case: ascending, none twice and none below 0.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(_MAX_HEADER, size - 8):
            raise _broken(path, "it has no header")
        try:
            text = file.read(length)
            header = json.loads(text)
            metadata = header["__metadata__"]
            if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
                raise TypeError("its metadata are no dictionary of strings")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise _broken(path, "its header is not that of an index") from error
    if metadata.get("format") != format:
        raise _broken(path, f"its format is {metadata.get('format')!r}, not {format!r}")
    if metadata.get("bit_contract") != BIT_CONTRACT:
        raise _broken(path, f"its bit contract is {metadata.get('bit_contract')!r}, not {BIT_CONTRACT!r}")
    distance = metadata.get("distance", "hamming")
    if distance not in DISTANCES:
        raise _broken(path, f"its distance is {distance!r}, not one of {', '.join(DISTANCES)}")
    try:
        n_bits = int(metadata["n_bits"])
        arrays = {name: _map(path, header[name], 8 + length, size) for name in header if name != "__metadata__"}
        codes = arrays["codes"]
        if n_bits < 1 or codes.ndim != 2 or codes.shape[1] != code_bytes(n_bits) or codes.dtype != np.uint8:
            raise ValueError(f"codes {codes.shape} do not hold {n_bits} bits")
        if "ids" in arrays and arrays["ids"].shape[:1] != codes.shape[:1]:
            raise ValueError("ids and codes differ in length")
        if "factors" in arrays and arrays["factors"].shape != (codes.shape[0], 2):
            raise ValueError("factors and codes differ in length")
        if "ids" in arrays:
            arrays["ids"] = from_bytes(arrays["ids"])
            _check_ids(arrays["ids"])
        if verify:
            _verify(path, text, arrays, header)
            _check_padding(codes, n_bits)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise _broken(path, str(error)) from error
    extra = {name: x for name, x in arrays.items() if name not in ("codes", "factors", "ids", "digests")}
    return Stored(codes, arrays.get("factors"), arrays.get("ids"), n_bits, metadata, extra)


def format_of(path: str | os.PathLike[str]) -> str | None:
    """What a safetensors file says it is; None where it says nothing that can be read."""
    with open(path, "rb") as file, contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        length = int.from_bytes(file.read(8), "little")
        said = json.loads(file.read(min(length, _MAX_HEADER)))["__metadata__"]["format"]
        return said if isinstance(said, str) else None
    return None


def _check_ids(ids: np.ndarray) -> None:
    if is_text(ids):
        _check_words(ids)
        return
    if ids.dtype != np.dtype("<i8"):
        raise ValueError(f"its ids are {ids.dtype}, not int64")
    last = -1
    for start in range(0, len(ids), _PIECE):
        piece = np.asarray(ids[start : start + _PIECE])
        wrong = np.flatnonzero(np.diff(piece, prepend=last) <= 0)
        if wrong.size or piece[0] < 0:  # a difference may overflow where an id is below 0
            at = int(wrong[0]) if wrong.size else 0
            kind = "below 0" if piece[at] < 0 else "there twice, or out of order"
            raise ValueError(f"the id {piece[at]} of row {start + at} is {kind}")
        last = int(piece[-1])


def _check_words(ids: np.ndarray) -> None:
    last = b""
    for start in range(0, len(ids), _PIECE):
        piece = np.concatenate([[last], ids[start : start + _PIECE]])
        as_words(piece)  # fails where one is not UTF-8
        wrong = np.flatnonzero(piece[1:] <= piece[:-1])
        if wrong.size:
            raise ValueError(
                f"the id {piece[1:][wrong[0]]!r} of row {start + wrong[0]} is empty, twice or out of order"
            )
        last = piece[-1]


def _check_padding(codes: np.ndarray, n_bits: int) -> None:
    for start in range(0, len(codes) if n_bits % 8 else 0, _PIECE):
        wrong = np.flatnonzero(codes[start : start + _PIECE, -1] >= 1 << n_bits % 8)
        if wrong.size:
            raise ValueError(f"the code of row {start + wrong[0]} has bits set beyond n_bits={n_bits}")


def _verify(path: str | os.PathLike[str], text: bytes, arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    """Compare the digests of a file with what it holds."""
    if "digests" not in arrays:
        raise ValueError("it was written before there were digests, and cannot be verified")
    stored = arrays["digests"]
    end = header["digests"]["data_offsets"][0]
    if stored.dtype != np.uint8 or stored.shape != (1 + -(-end // _BLOCK), 32):
        raise ValueError(f"its digests have the shape {stored.shape}")
    digests = _Digests(text)
    with open(path, "rb") as file:
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


def _map(path: str | os.PathLike[str], entry: dict[str, Any], base: int, size: int) -> np.ndarray:
    dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    if not all(type(number) is int for number in (*shape, begin, end)):
        raise ValueError(f"a tensor has the shape {shape} at {begin}..{end}, where integers are wanted")
    if (
        min(shape, default=0) < 0
        or end - begin != math.prod(shape) * dtype.itemsize
        or not 0 <= begin <= end <= size - base
    ):
        raise ValueError(f"the file is {size} bytes long, too short or inconsistent for a tensor of shape {shape}")
    if math.prod(shape) == 0 or not shape:
        return np.empty(shape, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r", offset=base + begin, shape=shape)


def _broken(path: str | os.PathLike[str], why: str) -> ValueError:
    return ValueError(f"{os.fspath(path)!r} is not a usable index file: {why}; write it again with its save method")
