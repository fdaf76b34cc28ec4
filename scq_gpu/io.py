"""Files: rows to fit on and to encode (`open_rows`), and models.

A model file is safetensors with the bit contract, versions and training facts in the header. It is the same whatever
device wrote it. It is written under a temporary name and renamed, so that a model file is either the old one or the new
one, never half of each.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from scq_gpu._version import __version__
from scq_gpu.codes import BIT_CONTRACT
from scq_gpu.sources import RowFileError, RowSource, open_rows

__all__ = ["ModelFileError", "RowFileError", "RowSource", "open_rows"]

FORMAT = "scq_gpu-model"
FORMAT_VERSION = 1


class ModelFileError(ValueError):
    """A file that is not a model of ours, or not a whole one."""


def write_model(path: str | os.PathLike[str], tensors: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
    """Write arrays and JSON-ready facts as a model file, replacing ``path`` only once all of it is on disk."""
    arrays = {name: np.ascontiguousarray(x) for name, x in tensors.items()}
    versions = {"scq_gpu": __version__, "numpy": np.__version__, "python": platform.python_version()}
    header = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "bit_contract": BIT_CONTRACT,
        "versions": json.dumps(versions),
        "facts": json.dumps(facts, allow_nan=False),
    }
    header["sha256"] = _digest(arrays, header)
    replace_file(path, safetensors.numpy.save(arrays, metadata=header))


def read_model(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and facts of a model file, after checking that it is whole and speaks our bit contract."""
    path = Path(path)
    content = path.read_bytes()
    try:
        header = _header(content)
        arrays = safetensors.numpy.load(content)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(f"{path} is not a whole safetensors file ({error}); copy or save it again") from error
    if header.get("format") != FORMAT:
        raise ModelFileError(f"{path} is a safetensors file, but not a model of scq_gpu; it holds {sorted(arrays)}")
    version = header.get("format_version", "")
    if version.isdecimal() and int(version) > FORMAT_VERSION:
        raise ModelFileError(
            f"{path} has format version {version}; this scq_gpu ({__version__}) reads up to {FORMAT_VERSION}. "
            "Upgrade scq-gpu to load it"
        )
    if header.get("sha256") != _digest(arrays, header):
        raise ModelFileError(f"{path} is corrupted: it does not match its checksum; copy or save it again")
    if header["bit_contract"] != BIT_CONTRACT:
        raise ModelFileError(
            f"{path} was written for another bit contract: {header['bit_contract']!r}, not {BIT_CONTRACT!r}"
        )
    return arrays, json.loads(header["facts"])


def replace_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Write ``content`` to ``path`` by way of a temporary file beside it; on failure ``path`` is as it was."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist")
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _header(content: bytes) -> dict[str, str]:
    """The metadata of a safetensors file: eight bytes of length, then JSON."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]).get("__metadata__") or {}


def _digest(arrays: Mapping[str, np.ndarray], header: Mapping[str, str]) -> str:
    """SHA-256 over everything in the file but itself."""
    digest = hashlib.sha256(json.dumps({k: v for k, v in header.items() if k != "sha256"}, sort_keys=True).encode())
    for name in sorted(arrays):
        x = arrays[name]
        digest.update(f"{name} {x.dtype.str} {x.shape}".encode())
        digest.update(np.ascontiguousarray(x).tobytes())
    return digest.hexdigest()


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
