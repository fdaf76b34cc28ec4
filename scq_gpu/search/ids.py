"""Ids of codes: integers, or strings.

Strings are kept as UTF-8 in rows of equal width (NumPy's ``S``): they sort as the strings do, take as many bytes as the
longest, and lie in an index file as they lie in memory. No id is empty, so the empty string stands for "none".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from scq_gpu._core.arrays import is_array, to_host
from scq_gpu._core.validate import check_ids as check_integer_ids

__all__ = ["as_words", "check_ids", "count_ids", "from_bytes", "is_text", "numbers_after", "to_bytes"]


def check_ids(ids: Any, *, n: int, like: np.ndarray | None = None) -> np.ndarray:
    """Ids of n codes on the host: int64, 0 or more, or strings as bytes.

    ``like`` are ids that they are to be of one kind with, unless there are none.
    """
    text = _as_text(ids)
    if text is None:
        checked = check_integer_ids(ids, n=n)
    else:
        if text.shape != (n,):
            raise ValueError(f"ids have shape {text.shape}; {n} codes take ({n},)")
        checked = _encode(text)
    if n and like is not None and len(like) and is_text(checked) != is_text(like):
        mine, theirs = ("strings", "integers") if is_text(checked) else ("integers", "strings")
        raise ValueError(f"ids are {mine}, such as {ids[0]!r}, and those of the index are {theirs}; use one kind")
    return checked


def count_ids(ids: Any) -> int:
    """How many ids were passed."""
    return int(np.size(to_host(ids) if is_array(ids) else np.asarray(ids)))


def is_text(ids: np.ndarray) -> bool:
    """Whether ids are strings."""
    return ids.dtype.kind == "S"


def as_words(ids: np.ndarray) -> np.ndarray:
    """Ids as users see them: integers as they are, strings as strings."""
    if not is_text(ids):
        return ids
    words: np.ndarray = np.strings.decode(ids, "utf-8")
    return words


def numbers_after(ids: np.ndarray, m: int) -> np.ndarray:
    """The m numbers after the largest of ascending ids."""
    if is_text(ids) and len(ids):
        raise ValueError(f"the ids of this index are strings, such as {str(as_words(ids[:1])[0])!r}; pass ids")
    start = int(ids[-1]) + 1 if len(ids) else 0
    if not m:
        return np.zeros(0, dtype=np.int64)
    if start + (m - 1) > np.iinfo(np.int64).max:
        raise ValueError(f"no ids are left after the largest, {start - 1}; pass ids")
    return start + np.arange(m)


def to_bytes(ids: np.ndarray) -> np.ndarray:
    """Ids as an index file holds them: int64, or (n, width) of uint8."""
    return ids.view(np.uint8).reshape(len(ids), -1) if is_text(ids) else ids.astype("<i8", copy=False)


def from_bytes(stored: np.ndarray) -> np.ndarray:
    """Ids from what an index file holds; no copy is made."""
    if stored.dtype != np.uint8 or stored.ndim != 2:
        return stored
    n, width = stored.shape
    if not width:
        raise ValueError("its ids are strings of no length")
    return np.frombuffer(stored, dtype=f"S{width}") if n else np.zeros(0, dtype=f"S{width}")


def _as_text(ids: Any) -> np.ndarray | None:
    """Ids that are strings as an array of them; None for whatever else they are."""
    if is_array(ids) and not isinstance(ids, np.ndarray):
        return None
    found = np.asarray(ids)
    if found.dtype.kind == "U":
        return found
    if found.dtype.kind == "T":
        found = found.astype(object)
    if found.dtype.kind != "O" or not any(isinstance(x, str) for x in found.flat):
        return None
    wrong = next((i for i, x in enumerate(found.flat) if not isinstance(x, str)), None)
    if wrong is not None:
        raise TypeError(f"ids[{wrong}] is {found.flat[wrong]!r} and others are strings; fill it in, or pass str of all")
    return found.astype(str)


def _encode(text: np.ndarray) -> np.ndarray:
    empty = np.flatnonzero(text == "")
    if empty.size:
        raise ValueError(f"ids[{empty[0]}] is the empty string, which stands for no id; give it a name")
    try:
        encoded: np.ndarray = np.strings.encode(text, "utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"an id cannot be written as UTF-8 ({error}); replace such characters") from error
    return encoded if encoded.dtype.itemsize else encoded.astype("S1")
