"""Index files: one safetensors file, written piece by piece and read through a memory map.

The format is eight bytes of header length, a JSON header, then raw tensors; every safetensors reader opens it. The ids
(int64) come first and the header is padded to 64 bytes, so that both tensors are aligned and can be used where they
lie. The library's own writer wants all bytes in memory, and its reader copies them, which an index larger than
memory cannot afford; hence these few lines.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scq_gpu._validate import DISTANCES
from scq_gpu.codes import BIT_CONTRACT, code_bytes

FORMAT = "scq_gpu.HammingIndex v1"
_DTYPES: dict[str, np.dtype[Any]] = {"U8": np.dtype("u1"), "I64": np.dtype("<i8")}
_MAX_HEADER = 1 << 20


def write(
    path: str | os.PathLike[str], parts: Sequence[np.ndarray], ids: np.ndarray | None, *, n_bits: int, distance: str
) -> None:
    """Write codes and ids under a temporary name, then rename: a reader never sees half a file."""
    n, width = sum(len(part) for part in parts), code_bytes(n_bits)
    header: dict[str, Any] = {
        "__metadata__": {"format": FORMAT, "n_bits": str(n_bits), "bit_contract": BIT_CONTRACT, "distance": distance},
    }
    begin = 0
    if ids is not None:
        header["ids"] = {"dtype": "I64", "shape": [n], "data_offsets": [0, 8 * n]}
        begin = 8 * n
    header["codes"] = {"dtype": "U8", "shape": [n, width], "data_offsets": [begin, begin + n * width]}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for array in ([] if ids is None else [ids.astype("<i8", copy=False)]) + list(parts):
                for start in range(0, len(array), 1 << 20):
                    file.write(np.ascontiguousarray(array[start : start + (1 << 20)]).data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read(path: str | os.PathLike[str]) -> tuple[np.ndarray, np.ndarray | None, int, str]:
    """Codes, ids (or None), n_bits and distance of an index file, the arrays memory-mapped and read-only."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(_MAX_HEADER, size - 8):
            raise _broken(path, "it has no header")
        try:
            header = json.loads(file.read(length))
            metadata = header["__metadata__"]
        except (ValueError, KeyError, TypeError) as error:
            raise _broken(path, "its header is not that of an index") from error
    if metadata.get("format") != FORMAT:
        raise _broken(path, f"its format is {metadata.get('format')!r}, not {FORMAT!r}")
    if metadata.get("bit_contract") != BIT_CONTRACT:
        raise _broken(path, f"its bit contract is {metadata.get('bit_contract')!r}, not {BIT_CONTRACT!r}")
    distance = metadata.get("distance", "hamming")
    if distance not in DISTANCES:
        raise _broken(path, f"its distance is {distance!r}, not one of {', '.join(DISTANCES)}")
    try:
        n_bits = int(metadata["n_bits"])
        arrays = {name: _map(path, header[name], 8 + length, size) for name in ("codes", "ids") if name in header}
        codes = arrays["codes"]
        if n_bits < 1 or codes.ndim != 2 or codes.shape[1] != code_bytes(n_bits) or codes.dtype != np.uint8:
            raise ValueError(f"codes {codes.shape} do not hold {n_bits} bits")
        if "ids" in arrays and arrays["ids"].shape != codes.shape[:1]:
            raise ValueError("ids and codes differ in length")
    except (ValueError, KeyError, TypeError) as error:
        raise _broken(path, str(error)) from error
    return codes, arrays.get("ids"), n_bits, distance


def _map(path: str | os.PathLike[str], entry: dict[str, Any], base: int, size: int) -> np.ndarray:
    dtype, shape = _DTYPES[entry["dtype"]], tuple(int(s) for s in entry["shape"])
    begin, end = entry["data_offsets"]
    if min(shape) < 0 or end - begin != math.prod(shape) * dtype.itemsize or not 0 <= begin <= end <= size - base:
        raise ValueError(f"the file is {size} bytes long, too short or inconsistent for a tensor of shape {shape}")
    if math.prod(shape) == 0:
        return np.empty(shape, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r", offset=base + begin, shape=shape)


def _broken(path: str | os.PathLike[str], why: str) -> ValueError:
    return ValueError(f"{os.fspath(path)!r} is not a usable index file: {why}; write it again with HammingIndex.save")
