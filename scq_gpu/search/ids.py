"""Ids of codes: integers or strings.

Strings are kept as UTF-8 in rows of equal width (NumPy's ``S``): they sort as the strings do, take as many bytes as the
longest, and have the same layout in an index file as in memory. No id is empty, so the empty string stands for "none".
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np

from scq_gpu._core.arrays import is_array, to_host
from scq_gpu._core.validate import check_array


def check_ids(ids: Any, *, n: int | None = None, existing: np.ndarray | None = None) -> np.ndarray:
    """Return the ids of n codes, or of any number, on the host, as int64 of 0 or more or as encoded strings.

    They must be of one kind with the ``existing`` ids, if there are any.
    """
    if isinstance(ids, Set):
        raise TypeError(f"ids are a {type(ids).__name__}, which has no order; pass a list of them")
    if n is None:
        n = int(np.size(to_host(ids) if is_array(ids) else np.asarray(ids)))
    text = _as_text(ids)
    checked = _check_numbers(ids, n=n) if text is None else _encode(text, n=n)
    if n and existing is not None and len(existing) and is_text(checked) != is_text(existing):
        mine, theirs = ("strings", "integers") if is_text(checked) else ("integers", "strings")
        raise ValueError(f"ids are {mine}, such as {ids[0]!r}, and those of the index are {theirs}; use one kind")
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


def check_unique(ascending: np.ndarray) -> None:
    """Check that no id comes twice."""
    twice = ascending[1:][ascending[1:] == ascending[:-1]]
    if twice.size:
        raise ValueError(f"id {decode_ids(twice)[0]} is given to more than one code; ids must be unique")


def is_text(ids: np.ndarray) -> bool:
    """Return True if ids are encoded strings."""
    return ids.dtype.kind == "S"


def decode_ids(ids: np.ndarray) -> np.ndarray:
    """Return ids as users see them: integers unchanged, encoded strings as strings."""
    decoded: np.ndarray = np.strings.decode(ids, "utf-8") if is_text(ids) else ids
    return decoded


def numbers_after(ids: np.ndarray, m: int) -> np.ndarray:
    """Return the m numbers after the largest of ascending ids."""
    if is_text(ids) and len(ids):
        raise ValueError(f"the ids of this index are strings, such as {str(decode_ids(ids[:1])[0])!r}; pass ids")
    start = int(ids[-1]) + 1 if len(ids) else 0
    if not m:
        return np.zeros(0, dtype=np.int64)
    if start + (m - 1) > np.iinfo(np.int64).max:
        raise ValueError(f"no ids are left after the largest, {start - 1}; pass ids")
    return start + np.arange(m)


def to_bytes(ids: np.ndarray) -> np.ndarray:
    """Return ids in the layout of an index file: int64, or (n, width) of uint8."""
    return ids.view(np.uint8).reshape(len(ids), -1) if is_text(ids) else ids.astype("<i8", copy=False)


def from_bytes(stored: np.ndarray) -> np.ndarray:
    """Return ids from the layout of an index file, without a copy."""
    if stored.dtype != np.uint8 or stored.ndim != 2:
        return stored
    n, width = stored.shape
    if not width:
        raise ValueError("its ids are strings of no length")
    return np.frombuffer(stored, dtype=f"S{width}") if n else np.zeros(0, dtype=f"S{width}")


def _as_text(ids: Any) -> np.ndarray | None:
    """Return an array of the ids if they are strings, otherwise None."""
    if is_array(ids) and not isinstance(ids, np.ndarray):
        return None
    found = np.asarray(ids)
    # NumPy makes strings of numbers beside strings, and drops null characters at the end of a string
    if found.dtype.kind == "U" and not isinstance(ids, np.ndarray):
        found = np.asarray(ids, dtype=object)
    if np.ma.is_masked(ids):
        raise ValueError("ids has masked entries, which have no value; every code needs an id")
    if found.dtype.kind == "U":
        return found
    if found.dtype.kind == "T":
        found = found.astype(object)
    if found.dtype.kind != "O" or not any(isinstance(x, str) for x in found.flat):
        return None
    wrong = next((i for i, x in enumerate(found.flat) if not isinstance(x, str)), None)
    if wrong is not None:
        raise TypeError(f"ids[{wrong}] is {found.flat[wrong]!r} and others are strings; fill it in, or pass str of all")
    null = next((i for i, x in enumerate(found.flat) if x.endswith("\0")), None)
    if null is not None:
        raise ValueError(f"ids[{null}] is {found.flat[null]!r}, and NumPy drops the null at its end; take it off")
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
