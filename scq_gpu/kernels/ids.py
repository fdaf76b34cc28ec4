"""Hash maps from ids to the places of rows: the native one, and one over a dictionary where there is no core.

Ids are int64 (n,), or strings as uint8 (n, width) with zeros behind them; the same string is the same id in any width.
Neither map is for several threads at once. A call that fails changes nothing.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from scq_gpu.kernels import native


class IdMap(Protocol):
    """Methods of both maps."""

    def __len__(self) -> int:
        """Return the number of ids."""

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Return the places of ids as int64, -1 for those that are missing."""

    def insert(self, ids: np.ndarray, places: np.ndarray) -> int:
        """Insert ids and return -1, or the number of the first that is there already or comes twice."""

    def move(self, ids: np.ndarray, places: np.ndarray) -> int:
        """Give ids other places and return -1, or the number of the first that is missing."""

    def erase(self, ids: np.ndarray) -> int:
        """Erase ids and return -1, or the number of the first that is missing or comes twice."""


def id_map(text: bool) -> IdMap:
    """Return an empty map for strings, or for integers."""
    return _DictMap(text) if native.core is None else _NativeMap(text)


class _NativeMap:
    def __init__(self, text: bool) -> None:
        self._map = native.core.IdMap(text)
        self.insert, self.move, self.erase = self._map.insert, self._map.move, self._map.erase

    def __len__(self) -> int:
        return len(self._map)

    def find(self, ids: np.ndarray) -> np.ndarray:
        places = np.empty(len(ids), dtype=np.int64)
        self._map.find(ids, places)
        return places


class _DictMap:
    def __init__(self, text: bool) -> None:
        self._text = text
        self._places: dict[Any, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    def find(self, ids: np.ndarray) -> np.ndarray:
        return np.array([self._places.get(x, -1) for x in self._keys(ids)], dtype=np.int64)

    def insert(self, ids: np.ndarray, places: np.ndarray) -> int:
        keys = self._keys(ids)
        new = dict(zip(keys, places.tolist(), strict=True))
        if len(new) == len(keys) and self._places.keys().isdisjoint(new):
            self._places |= new
            return -1
        first = {x: i for i, x in reversed(list(enumerate(keys)))}
        return next(i for i, x in enumerate(keys) if x in self._places or first[x] < i)

    def move(self, ids: np.ndarray, places: np.ndarray) -> int:
        keys = self._keys(ids)
        missing = next((i for i, x in enumerate(keys) if x not in self._places), -1)
        if missing < 0:
            self._places |= zip(keys, places.tolist(), strict=True)
        return missing

    def erase(self, ids: np.ndarray) -> int:
        keys = self._keys(ids)
        erased: dict[Any, int] = {}
        for number, x in enumerate(keys):
            if x not in self._places:
                self._places |= erased
                return number
            erased[x] = self._places.pop(x)
        return -1

    def _keys(self, ids: np.ndarray) -> list[Any]:
        if self._text:
            return [bytes(x).rstrip(b"\0") for x in ids]
        keys: list[Any] = ids.tolist()
        return keys
