"""HDF5 and Zarr: arrays stored in chunks, each of which is decompressed once in a pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from scq_gpu.sources.base import FileRows, choose, needs


class Hdf5Rows(FileRows):
    """A dataset of an HDF5 file."""

    kind = "an HDF5 file"

    def _open(self) -> tuple[tuple[int, ...], np.dtype]:
        h5py = needs("h5py")
        with h5py.File(self.path, "r") as file:
            found: dict[str, Any] = {}
            file.visititems(lambda name, thing: found.update({name: thing} if isinstance(thing, h5py.Dataset) else {}))
            shapes = {name: dataset.shape or () for name, dataset in found.items()}
            self._dataset = choose(_without_slash(self.name), shapes, path=self.path)
            dataset = found[self._dataset]
            self._chunk_rows = dataset.chunks[0] if dataset.chunks else 1
            return shapes[self._dataset], dataset.dtype

    def _pieces(self, size: int, first: int) -> Iterator[np.ndarray]:
        with needs("h5py").File(self.path, "r") as file:
            yield from _by_chunks(file[self._dataset], self._chunk_rows, size=size, first=first)


class ZarrRows(FileRows):
    """An array of a Zarr store in a folder."""

    kind = "a Zarr store"

    def _open(self) -> tuple[tuple[int, ...], np.dtype]:
        store = self._store()
        if hasattr(store, "shape"):
            self._array = ""
            if self.name is not None:
                choose(self.name, {}, path=self.path)
        else:
            shapes = {name: thing.shape for name, thing in store.members(max_depth=None) if hasattr(thing, "shape")}
            self._array = choose(_without_slash(self.name), shapes, path=self.path)
        array = store[self._array] if self._array else store
        return array.shape, np.dtype(array.dtype)

    def _pieces(self, size: int, first: int) -> Iterator[np.ndarray]:
        store = self._store()
        array = store[self._array] if self._array else store
        yield from _by_chunks(array, array.chunks[0], size=size, first=first)

    def _store(self) -> Any:
        return needs("zarr").open(str(self.path), mode="r")


def _without_slash(name: Any) -> Any:
    return name.strip("/") if isinstance(name, str) else name


def _by_chunks(array: Any, chunk_rows: int, *, size: int, first: int) -> Iterator[np.ndarray]:
    """Rows in pieces that end where chunks end."""
    n = array.shape[0]
    height = max(1, size // chunk_rows) * chunk_rows
    start = first
    while start < n:
        stop = min(n, (start // chunk_rows) * chunk_rows + height)
        yield np.asarray(array[start:stop])
        start = stop
