"""Ids of codes: integers or strings.

Strings are kept as UTF-8 in rows of equal width (NumPy's ``S``): they sort as the strings do, take as many bytes as the
longest, and have the same layout in an index file as in memory. No id is empty, so the empty string stands for "none".
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any
from uuid import UUID

import numpy as np

from scq_gpu._core.arrays import is_array, to_host
from scq_gpu._core.validate import check_array


def check_ids(ids: Any, *, n: int | None = None, text: bool | None = None) -> np.ndarray:
    """Return the ids of n codes, or of any number, on the host, as int64 of 0 or more or as encoded strings.

    ``text`` says which of the two they must be; None allows both.
    """
    if isinstance(ids, Set):
        raise TypeError(f"ids are a {type(ids).__name__}, which has no order; pass a list of them")
    if n is None:
        n = int(np.size(to_host(ids) if is_array(ids) else np.asarray(ids)))
    words = _as_text(ids)
    checked = _check_numbers(ids, n=n) if words is None else _encode(words, n=n)
    if not n and text is not None:
        return np.zeros(0, dtype="S1" if text else np.int64)
    if text is not None and is_text(checked) != text:
        mine, theirs = ("strings", "integers") if is_text(checked) else ("integers", "strings")
        first = np.asarray(to_host(ids[:1]) if is_array(ids) else ids[:1]).tolist()[0]  # a plain string or integer
        raise ValueError(f"ids are {mine}, such as {first!r}, and those of the index are {theirs}; use one kind")
    return checked


def _check_numbers(ids: Any, *, n: int) -> np.ndarray:
    given = ids if is_array(ids) else np.asarray(ids)
    if isinstance(given, np.ndarray) and given.dtype.kind not in "biufc":
        fix = "numpy.strings.decode(ids, 'utf-8')" if given.dtype.kind == "S" else "[str(x) for x in ids]"
        first = given.flat[0] if given.size else None
        raise TypeError(f"ids are {given.dtype}, such as {first!r}; integers or strings are expected, such as {fix}")
    checked = to_host(check_array(ids, name="ids", min_ndim=1))
    # NumPy makes floats of an empty list
    if checked.shape == (n,) == (0,):
        return np.zeros(0, dtype=np.int64)
    if checked.shape != (n,) or checked.dtype.kind not in "iu":
        raise ValueError(f"ids have shape {checked.shape} and dtype {checked.dtype}; {n} codes take ({n},) integers")
    if n and (int(checked.min()) < 0 or int(checked.max()) > np.iinfo(np.int64).max):
        raise ValueError(
            f"ids run from {checked.min()} to {checked.max()}; they must be 0 or more (-1 is padding) and fit int64"
        )
    return checked.astype(np.int64)


def is_text(ids: np.ndarray) -> bool:
    """Return True if ids are encoded strings."""
    return ids.dtype.kind == "S"


def decode_ids(ids: np.ndarray) -> np.ndarray:
    """Return ids as users see them: integers unchanged, encoded strings as strings."""
    decoded: np.ndarray = np.strings.decode(ids, "utf-8") if is_text(ids) else ids
    return decoded


def check_numbers_left(start: int, m: int) -> None:
    """Reject m numbers from ``start`` on that int64 does not hold."""
    if m and start + m - 1 > np.iinfo(np.int64).max:
        raise ValueError(f"no ids are left after the largest, {start - 1}; pass ids")


def as_rows(ids: np.ndarray) -> np.ndarray:
    """Return ids in the layout of columns and files: int64, or (n, width) of uint8."""
    return ids.view(np.uint8).reshape(len(ids), ids.dtype.itemsize) if is_text(ids) else ids.astype("<i8", copy=False)


def from_rows(stored: np.ndarray) -> np.ndarray:
    """Return ids from the layout of columns and files, without a copy."""
    if stored.dtype != np.uint8 or stored.ndim != 2:
        return stored
    n, width = stored.shape
    if not width:
        raise ValueError("its ids are strings of no length")
    return np.frombuffer(stored, dtype=f"S{width}") if n else np.zeros(0, dtype=f"S{width}")


def _as_text(ids: Any) -> np.ndarray | None:
    """Return an array of the ids if they are strings or UUIDs, otherwise None."""
    if is_array(ids) and not isinstance(ids, np.ndarray):
        return None
    found = np.asarray(ids)
    # NumPy makes strings of numbers beside strings, and drops null characters at the end of a string
    if found.dtype.kind == "U" and not isinstance(ids, np.ndarray):
        found = np.asarray(ids, dtype=object)
    if np.ma.is_masked(ids):
        raise ValueError("ids has masked entries, which have no value; every code needs an id")
    if found.dtype.kind == "T":
        found = found.astype(object)
    if found.dtype.kind == "O" and any(isinstance(x, str | UUID) for x in found.flat):
        wrong = next((i for i, x in enumerate(found.flat) if not isinstance(x, str | UUID)), None)
        if wrong is not None:
            raise TypeError(
                f"ids[{wrong}] is {found.flat[wrong]!r} and others are strings; fill it in, or pass str of all"
            )
    elif found.dtype.kind != "U":
        return None
    null = next((i for i, x in enumerate(found.flat) if "\0" in str(x)), None)
    if null is not None:
        raise ValueError(f"ids[{null}] is {found.flat[null]!r}, which has a null character; take it out")
    return found.astype(str)


def _encode(text: np.ndarray, *, n: int) -> np.ndarray:
    if text.shape != (n,):
        raise ValueError(f"ids have shape {text.shape}; {n} codes take ({n},)")
    empty = np.flatnonzero(text == "")
    if empty.size:
        raise ValueError(f"ids[{empty[0]}] is the empty string, which stands for no id; give it a name")
    try:
        encoded: np.ndarray = np.strings.encode(text, "utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"an id cannot be written as UTF-8 ({error}); replace such characters") from error
    return encoded if encoded.dtype.itemsize else encoded.astype("S1")
