"""Model files: safetensors with the bit contract, versions and training facts in the header.

Their content does not depend on the device, and they are replaced atomically.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from scq_gpu._core.bits import BIT_CONTRACT
from scq_gpu._core.files import check_regular, replace_file
from scq_gpu._version import __version__

FORMAT = "scq_gpu-model"
FORMAT_VERSION = 1
# Errors raised by JSON that is not ours.
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


class ModelFileError(ValueError):
    """A file that is not a model of scq_gpu, or is damaged."""


def write_model(path: str | os.PathLike[str], tensors: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
    """Write arrays and JSON-ready facts as a model file, replacing ``path`` only once all of it is on disk."""
    arrays = {name: np.ascontiguousarray(x) for name, x in tensors.items()}
    header = {"format": FORMAT, "format_version": str(FORMAT_VERSION), "bit_contract": BIT_CONTRACT}
    versions = {"scq_gpu": __version__, "numpy": np.__version__, "python": platform.python_version()}
    header |= {"versions": json.dumps(versions), "facts": json.dumps(facts, allow_nan=False)}
    header["sha256"] = digest(arrays, header)
    replace_file(path, safetensors.numpy.save(arrays, metadata=header))


def read_model(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read the arrays and facts of a model file and check its digest and bit contract."""
    path = Path(path)
    check_regular(path)
    content = path.read_bytes()
    try:
        # The first eight bytes are the length of the JSON header.
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length]).get("__metadata__") or {}
        arrays = safetensors.numpy.load(content)
    except (*_UNREADABLE, safetensors.SafetensorError) as error:
        raise ModelFileError(f"{path} is not a whole safetensors file ({error}); copy or save it again") from error
    if header.get("format") != FORMAT:
        raise ModelFileError(f"{path} is a safetensors file, but not a model of scq_gpu; it holds {sorted(arrays)}")
    version = header.get("format_version", "")
    if version != str(FORMAT_VERSION):
        raise ModelFileError(
            f"{path} has format version {version[:20]}, and this scq_gpu ({__version__}) reads version "
            f"{FORMAT_VERSION}: load it with the scq_gpu that saved it"
        )
    if header.get("sha256") != digest(arrays, header):
        raise ModelFileError(f"{path} is corrupted: it does not match its checksum; copy or save it again")
    contract = header.get("bit_contract")
    if contract != BIT_CONTRACT:
        raise ModelFileError(f"{path} was written for another bit contract: {contract!r}, not {BIT_CONTRACT!r}")
    try:
        facts = json.loads(header["facts"])
    except _UNREADABLE as error:
        raise ModelFileError(f"{path} has no facts that can be read ({error}); save it again") from error
    if not isinstance(facts, dict):
        raise ModelFileError(f"{path} has facts that are a {type(facts).__name__}, not a dictionary; save it again")
    return arrays, facts


def digest(arrays: Mapping[str, np.ndarray], header: Mapping[str, str]) -> str:
    """Compute SHA-256 over everything in the file but the digest itself."""
    digest = hashlib.sha256(json.dumps({k: v for k, v in header.items() if k != "sha256"}, sort_keys=True).encode())
    for name, x in sorted(arrays.items()):
        digest.update(f"{name} {x.dtype.str} {x.shape}".encode())
        digest.update(x.tobytes())
    return digest.hexdigest()
