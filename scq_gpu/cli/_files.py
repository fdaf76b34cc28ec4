"""Files that commands read and write, beyond what `scq_gpu.io` opens."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import scq_gpu as scq
from scq_gpu._xp import to_device, usable_device
from scq_gpu.cli._console import Lacking
from scq_gpu.codes import code_bytes
from scq_gpu.io import replace_file

_TEXT = {".txt", ".csv", ".labels"}
_IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}


def require_device(device: str | None) -> str | None:
    """The device, if work can run there."""
    if device is None:
        return None
    try:
        return usable_device(device)
    except RuntimeError as error:
        raise Lacking(str(error).replace("device='cpu'", "--device cpu")) from error


def open_rows(paths: Sequence[Path], name: Sequence[str] | None = None) -> Any:
    """Rows of one file or several."""
    chosen = None if not name else name[0] if len(name) == 1 else list(name)
    return scq.io.open_rows(paths[0] if len(paths) == 1 else list(paths), name=chosen)


def open_model(path: Path, device: str | None) -> Any:
    """An encoder from its file, at work on a device."""
    return scq.load(path, device=require_device(device))


def check_output(path: Path, *, overwrite: bool, endings: Iterable[str] = ()) -> Path:
    """A path that can be written to, looked at before the work starts rather than after it."""
    known = list(endings)
    if known and path.suffix.lower() not in known:
        raise ValueError(f"{path} has the ending {path.suffix!r}; what can be written is {', '.join(known)}")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} is there already; pass --overwrite to replace it")
    return path


def read_labels(path: Path | None, *others: Path | None) -> tuple[np.ndarray | None, ...]:
    """Labels of one file or several: integers, or 0/1 in columns; words are numbered, the same in all files."""
    columns = [None if p is None else _read_labels(p) for p in (path, *others)]
    words = [c for c in columns if c is not None and c.dtype.kind in "US"]
    if words:
        known, _ = np.unique(np.concatenate([c.astype(str) for c in columns if c is not None]), return_inverse=True)
        columns = [None if c is None else np.searchsorted(known, c.astype(str)) for c in columns]
    return tuple(columns)


def _read_labels(path: Path) -> np.ndarray:
    if path.suffix.lower() in _TEXT:
        lines = np.array(path.read_text(encoding="utf-8").split("\n"), dtype=str)
        lines = np.char.strip(lines[:-1] if lines[-1] == "" else lines)
        if not len(lines) or (lines == "").any():
            raise ValueError(f"{path} has an empty line {1 + int(np.argmax(lines == ''))}; one label a line is wanted")
        try:
            return lines.astype(np.int64)
        except ValueError:
            return lines
    labels = _load_array(path)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    return labels


def _load_array(path: Path) -> np.ndarray:
    """An array of any number of dimensions from .npy, or the only one of an .npz; else rows of a known format."""
    if path.suffix.lower() not in {".npy", ".npz"}:
        return np.asarray(scq.io.open_rows(path))
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            if len(loaded.files) != 1:
                raise ValueError(f"it holds {', '.join(loaded.files) or 'nothing'}, and one array is wanted")
            labels: np.ndarray = loaded[loaded.files[0]]
            return labels
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def read_images(path: Path) -> Any:
    """An array of images, or the image files of a folder in the natural order of their names."""
    if not path.is_dir():
        return _load_array(path)
    found = [p for p in path.iterdir() if p.suffix.lower() in _IMAGES and not p.name.startswith(".")]
    if not found:
        raise ValueError(f"{path} is a folder without images ({', '.join(sorted(_IMAGES))})")
    return sorted(
        found, key=lambda p: [(0, int(x), "") if x.isdecimal() else (1, 0, x) for x in re.split(r"(\d+)", p.name)]
    )


def open_index(path: Path, n_bits: int, device: str | None) -> Any:
    """Codes to search: an index file, or codes as ``scq-gpu encode`` writes them."""
    if path.suffix == ".safetensors":
        index = scq.HammingIndex.load(path, device=device)
        if index.n_bits != n_bits:
            raise ValueError(f"{path} holds codes of {index.n_bits} bits, and the model makes {n_bits}")
        return index
    return scq.HammingIndex(to_device(open_codes(path, n_bits), device), n_bits)


def stored_bits(path: Path) -> int:
    """How many bits the codes of an array have at most: those of their bytes."""
    if path.suffix != ".npy":
        raise ValueError(f"{path} does not say how long its codes are; pass --bits")
    codes = _load_array(path)
    return 8 * codes.shape[1] if codes.ndim == 2 and codes.shape[1] else 8


def open_codes(path: Path, n_bits: int) -> np.ndarray:
    """Codes that ``scq-gpu encode`` wrote, left on disk until they are used."""
    width = code_bytes(n_bits)
    if path.suffix == ".npy":
        codes = _load_array(path)
        if codes.dtype != np.uint8 or codes.ndim != 2 or codes.shape[1] != width:
            raise ValueError(
                f"{path} holds {codes.dtype} of shape {codes.shape}; codes of {n_bits} bits are uint8 (n, {width})"
            )
        return codes
    if path.suffix == ".bin":
        size = path.stat().st_size
        if not size or size % width:
            raise ValueError(f"{path} has {size} bytes, which is no number of codes of {width} bytes ({n_bits} bits)")
        return np.memmap(path, dtype=np.uint8, mode="r", shape=(size // width, width))
    raise ValueError(f"{path} has the ending {path.suffix!r}; codes are .npy, .bin or an index (.safetensors)")


def write_answers(path: Path, distances: np.ndarray, ids: np.ndarray) -> None:
    """Results of a search: arrays (.npz), or a line for each answer (.csv) or query (.jsonl)."""
    replace_file(path, ANSWERS[path.suffix.lower()](distances, ids))


def _npz(distances: np.ndarray, ids: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, distances=distances, ids=ids)
    return buffer.getvalue()


def _csv(distances: np.ndarray, ids: np.ndarray) -> bytes:
    lines = (
        [query, rank, row, distance]
        for query, pairs in enumerate(zip(ids.tolist(), distances.tolist(), strict=True))
        for rank, (row, distance) in enumerate(zip(*pairs, strict=True))
    )
    return csv_text(["query", "rank", "id", "distance"], lines)


def _jsonl(distances: np.ndarray, ids: np.ndarray) -> bytes:
    lines = (
        json.dumps({"query": query, "ids": found, "distances": far})
        for query, (found, far) in enumerate(zip(ids.tolist(), distances.tolist(), strict=True))
    )
    return "".join(f"{line}\n" for line in lines).encode()


ANSWERS: dict[str, Callable[[np.ndarray, np.ndarray], bytes]] = {".npz": _npz, ".csv": _csv, ".jsonl": _jsonl}


def csv_text(columns: Sequence[str], lines: Iterable[Sequence[Any]]) -> bytes:
    """A table as CSV."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(lines)
    return buffer.getvalue().encode()
