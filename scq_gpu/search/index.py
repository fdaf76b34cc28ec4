"""Exact search over packed codes: Hamming distance between codes, or float queries against codes."""

from __future__ import annotations

import copy
import hashlib
import os
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from scq_gpu._core.arrays import Array, device_of, like, namespace, on_device_of, on_device_of_arguments, to_host
from scq_gpu._core.bits import code_bytes
from scq_gpu._core.validate import (
    DISTANCES,
    check_choice,
    check_index_codes,
    check_integer,
    check_padding_room,
    check_real,
)
from scq_gpu.search import index_file
from scq_gpu.search.answers import by_distance, no_answers, search_floats
from scq_gpu.search.columns import make_codes
from scq_gpu.search.store import RowsById, Store


class HammingIndex(RowsById):
    """Packed codes with exact nearest-neighbor and radius search.

    Codes are copied, and searched on their device: NumPy codes by native loops on all cores, codes on a GPU, up to 1024
    bits, by CUDA kernels, and codes of any other array namespace by that namespace. The answer is always the same.

    Rows keep the order in which they came. Ties go to the row that came first, and `ids` and masks are in that order;
    an updated row keeps its place. Threads may search, add, update and remove at the same time: a search sees the codes
    as they were when it began, and waits for nobody. Adding, updating and removing cost what they touch.

    Parameters
    ----------
    codes : array (n, ceil(n_bits / 8)) of uint8
        As ``encoder.encode`` or `scq_gpu.pack` return them. A memory map is not copied.
    n_bits : int
    ids : array (n,) of integers or strings, optional
        Unique; integers are 0 or more. By default the rows are numbered 0, 1, 2, ... UUIDs become strings. Strings
        take as many bytes per code as the longest has in UTF-8.
    distance : {"hamming", "spherical"}
        "spherical" is the distance of `SpH`: the bits that differ over the ones in common,
        ``|b1 xor b2| / |b1 and b2|``, infinite between codes that differ and have none in common. It is searched by
        array operations.
    encoder : fitted encoder, optional
        Encoder of the codes. Its fingerprint is kept, also in index files, and `search_asymmetric` rejects another.

    Examples
    --------
    >>> import numpy as np, scq_gpu as scq
    >>> index = scq.HammingIndex(np.array([[0b0000], [0b0111], [0b0001]], dtype=np.uint8), n_bits=4)
    >>> distances, ids = index.search(np.array([[0b0011]], dtype=np.uint8), k=2)
    >>> distances, ids
    (array([[1, 1]], dtype=int32), array([[1, 2]]))
    """

    _checked: tuple[Array, ...]
    """Arrays of an encoder that is known to have made the codes."""

    def __init__(
        self, codes: Array, n_bits: int, ids: Array | None = None, *, distance: str = "hamming", encoder: Any = None
    ) -> None:
        self.distance: str = check_choice(distance, name="distance", choices=DISTANCES)
        self.n_bits: int = check_integer(n_bits, name="n_bits", minimum=1)
        self._fingerprint: str | None = None if encoder is None else _fingerprint(encoder)
        self._checked = () if encoder is None else _map_of(encoder)
        with on_device_of(codes):
            codes = self._check_codes(codes)
            self._store = Store.of(make_codes(codes, self.distance), ids)

    def _check_codes(self, codes: Array) -> Array:
        return check_index_codes(codes, n_bits=self.n_bits, name="codes")

    def __repr__(self) -> str:
        facts = [f"n={len(self)}", f"n_bits={self.n_bits}", f"bytes_per_row={self.bytes_per_row}"]
        facts.append(f"namespace={namespace(self._store.state.codes.sample).__name__}")
        if self.distance != "hamming":
            facts.append(f"distance={self.distance!r}")
        return f"HammingIndex({', '.join(facts)})"

    def __copy__(self) -> Self:
        same = object.__new__(type(self))
        vars(same).update(vars(self), _store=copy.copy(self._store))
        return same

    @property
    def bytes_per_row(self) -> int:
        """Return the bytes of a code and its id."""
        return code_bytes(self.n_bits) + self._store.state.id_bytes

    @on_device_of_arguments
    def add(self, codes: Array, ids: Array | None = None) -> Self:
        """Add codes and return the index.

        Parameters
        ----------
        codes : array (n, ceil(n_bits / 8)) of uint8
            In the namespace of the codes already there.
        ids : array (n,) of integers or strings, optional
            By default the numbers after the largest id so far; string ids must be given.

        Examples
        --------
        >>> import numpy as np, scq_gpu as scq
        >>> index = scq.HammingIndex(np.array([[0]], dtype=np.uint8), n_bits=8)
        >>> len(index.add(np.array([[1], [3]], dtype=np.uint8)))
        3
        """
        self._store.add(self._beside(self._check_codes(codes), name="codes"), ids)
        return self

    def remove(self, ids: Array) -> Self:
        """Remove codes by id and return the index; the other codes keep their ids and order.

        Parameters
        ----------
        ids : array (m,) of integers or strings
            Each must be in the index.

        Examples
        --------
        >>> import numpy as np, scq_gpu as scq
        >>> index = scq.HammingIndex(np.array([[0], [1], [3]], dtype=np.uint8), n_bits=8).remove([1])
        >>> index.search(np.array([[1]], dtype=np.uint8), k=2)
        (array([[1, 1]], dtype=int32), array([[0, 2]]))
        """
        self._store.remove(ids)
        return self

    @on_device_of_arguments
    def update(self, ids: Array, codes: Array) -> Self:
        """Replace codes by id and return the index.

        Parameters
        ----------
        ids : array (m,) of integers or strings
            Each must be in the index, and come once.
        codes : array (m, ceil(n_bits / 8)) of uint8
            In the namespace of the codes already there.

        Examples
        --------
        >>> import numpy as np, scq_gpu as scq
        >>> index = scq.HammingIndex(np.array([[0], [1]], dtype=np.uint8), n_bits=8, ids=["a", "b"])
        >>> index.update(["a"], np.array([[255]], dtype=np.uint8)).search(np.array([[255]], dtype=np.uint8), k=1)
        (array([[0]], dtype=int32), array([['a']], dtype='<U1'))
        """
        self._store.update(ids, self._beside(self._check_codes(codes), name="codes"))
        return self

    def get(self, ids: Array) -> Array:
        """Return the codes with these ids, each of which must be in the index.

        Parameters
        ----------
        ids : array (m,) of integers or strings

        Returns
        -------
        array (m, ceil(n_bits / 8)) of uint8
        """
        state, places = self._store.get(ids)
        with on_device_of(state.codes.sample):
            return state.codes.take(places)

    def _beside(self, codes: Array, *, name: str) -> Array:
        """Return codes that are in the namespace and on the device of those of the index."""
        mine = self._store.state.codes.sample
        here, there = namespace(mine), namespace(codes)
        if here is not there or device_of(mine) != device_of(codes):
            raise ValueError(
                f"{name} are {there.__name__} on {device_of(codes)} and the index is {here.__name__} on "
                f"{device_of(mine)}; move one to the other"
            )
        return codes

    @overload
    def search(self, queries: np.ndarray, k: int, *, allowed: Any = None) -> tuple[np.ndarray, NDArray[np.int64]]: ...
    @overload
    def search(self, queries: Array, k: int, *, allowed: Any = None) -> tuple[Array, Array]: ...
    @on_device_of_arguments
    def search(self, queries: Array, k: int, *, allowed: Any = None) -> tuple[Array, Array]:
        """Return the k nearest codes of each query.

        Parameters
        ----------
        queries : array (q, ceil(n_bits / 8)) of uint8
            For example ``encoder.encode(X)``.
        k : int
        allowed : Selection, array of ids, or boolean mask (n,), optional
            Rows that may be found: see `select`. The answer is exact.

        Returns
        -------
        distances : array (q, k) of int32
            Ascending; float32 for the spherical distance.
        ids : array (q, k) of int64, or of strings if ids are strings (then NumPy's, wherever the codes are)
            Lowest id first inside a distance. With fewer than k codes the rest is id -1 (the empty string among
            strings) at distance ``n_bits + 1``, which no code can have (inf for the spherical distance).

        Examples
        --------
        >>> import numpy as np, scq_gpu as scq
        >>> index = scq.HammingIndex(np.array([[0], [3]], dtype=np.uint8), n_bits=8, ids=np.array([70, 50]))
        >>> index.search(np.array([[1]], dtype=np.uint8), k=3)
        (array([[1, 1, 9]], dtype=int32), array([[70, 50, -1]]))
        """
        queries = check_index_codes(queries, n_bits=self.n_bits, name="queries")
        queries = self._beside(queries, name="queries")
        k = check_integer(k, name="k", minimum=1)
        state, words, n = self._store.searched(allowed)
        check_padding_room(k, queries=queries.shape[0], n=n)
        if queries.shape[0] and n:
            d, places = state.codes.knn(queries, k, n_bits=self.n_bits, allowed=words)
        else:
            padding = np.float32(np.inf) if self.distance == "spherical" else np.int32(self.n_bits + 1)
            d, places = no_answers((queries.shape[0], k), padding, beside=queries)
        return d, state.found_ids(places)

    def search_asymmetric(
        self, encoder: Any, X_query: Array, k: int, *, metric: str = "l2", allowed: Any = None
    ) -> tuple[Array, Array]:
        """Return the k nearest codes to float queries; only the database is rounded to bits.

        The search finds more of the true neighbors than the Hamming distance, as fast, and has few ties. It needs no
        floats of the database.

        Parameters
        ----------
        encoder : fitted encoder
            The encoder of the codes, a linear map: ``project(X)``, ``n_bits`` and, learned in ``fit``, ``levels_``
            (n_bits, 2). Without levels, -1 and +1 are taken.
        X_query : array (q, d)
        k : int
        metric : {"l2", "cosine", "ip"}, default="l2"
            Distance to estimate: the squared Euclidean distance, one minus the cosine (for an encoder that was fitted
            on normalized rows, codes of such rows, and normalized queries), or the negative inner product.
        allowed : Selection, array of ids, or boolean mask (n,), optional
            As in `search`.

        Returns
        -------
        distances : array (q, k) of float32
            Ascending; inf where there are fewer than k codes.
        ids : array (q, k)
            As in `search`.

        Examples
        --------
        >>> import numpy as np, scq_gpu as scq
        >>> X = np.random.default_rng(0).normal(size=(500, 16))
        >>> encoder = scq.OgE(n_bits=8, random_state=0).fit(X)
        >>> index = scq.HammingIndex(encoder.encode(X), n_bits=8)
        >>> distances, ids = index.search_asymmetric(encoder, X[:2], k=3)
        >>> ids.shape
        (2, 3)
        """
        k = check_integer(k, name="k", minimum=1)
        if encoder.n_bits != self.n_bits:
            raise ValueError(
                f"the encoder makes codes of n_bits={encoder.n_bits} and the index holds n_bits={self.n_bits}; "
                "search with the encoder that made the codes"
            )
        self._check_encoder(encoder)
        state, words, n = self._store.searched(allowed)
        check_padding_room(k, queries=int(X_query.shape[0]) if hasattr(X_query, "shape") else 1, n=n)
        d, places = search_floats(state.codes, encoder, X_query, k, metric=metric, allowed=words, n=n)
        return d, state.found_ids(places)

    def _check_encoder(self, encoder: Any) -> None:
        """Reject an encoder that is known not to have made the codes."""
        if self._fingerprint is None:
            return
        arrays = _map_of(encoder)
        # A digest of the arrays takes longer than a search for one query
        if len(arrays) == len(self._checked) and all(x is y for x, y in zip(arrays, self._checked, strict=True)):
            return
        if _fingerprint(encoder) != self._fingerprint:
            raise ValueError("the codes of this index were made by another encoder; search with the one that made them")
        self._checked = arrays

    @overload
    def range_search(
        self, queries: np.ndarray, radius: float, *, allowed: Any = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], np.ndarray]: ...
    @overload
    def range_search(self, queries: Array, radius: float, *, allowed: Any = None) -> tuple[Array, Array, Array]: ...
    @on_device_of_arguments
    def range_search(self, queries: Array, radius: float, *, allowed: Any = None) -> tuple[Array, Array, Array]:
        """Return all codes within a radius of each query.

        Parameters
        ----------
        queries : array (q, ceil(n_bits / 8)) of uint8
        radius : int
            Codes at this distance are inside; a float for the spherical distance.
        allowed : Selection, array of ids, or boolean mask (n,), optional
            As in `search`.

        Returns
        -------
        offsets : array (q + 1,) of int64
            Query i's results are ``ids[offsets[i]:offsets[i + 1]]``.
        ids : array of int64
        distances : array of int32
            By distance, lowest id first inside a distance; float32 for the spherical distance.

        Examples
        --------
        >>> import numpy as np, scq_gpu as scq
        >>> index = scq.HammingIndex(np.array([[0b0], [0b1], [0b111]], dtype=np.uint8), n_bits=8)
        >>> index.range_search(np.array([[0b1], [0b11110000]], dtype=np.uint8), radius=1)
        (array([0, 2, 2]), array([1, 0]), array([0, 1], dtype=int32))
        """
        queries = check_index_codes(queries, n_bits=self.n_bits, name="queries")
        queries = self._beside(queries, name="queries")
        radius = self._check_radius(radius)
        state, words, n = self._store.searched(allowed)
        # All pairs of a query and a row
        query = places = np.zeros(0, dtype=np.int64)
        d: Array = query.astype(np.float32 if self.distance == "spherical" else np.int32)
        if queries.shape[0] and n:
            query, d, places = state.codes.within(queries, radius, words)
        # Pairs on a device come by query and row, pairs on the host in any order
        if not isinstance(query, np.ndarray):
            offsets, places, d = by_distance(query, d, places, n_queries=queries.shape[0], n_bits=self.n_bits)
            return offsets, state.found_ids(places), d
        order = np.lexsort((places, d, query))
        offsets = np.zeros(queries.shape[0] + 1, dtype=np.int64)
        np.cumsum(np.bincount(query, minlength=queries.shape[0]), out=offsets[1:])
        offsets, places, d = (like(x, queries) for x in (offsets, places[order], d[order]))
        return offsets, state.found_ids(places), d

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to one safetensors file (tensors ``codes`` and ``ids``), in bounded memory.

        Removed rows are not in it.

        Parameters
        ----------
        path : path-like

        Examples
        --------
        >>> import numpy as np, scq_gpu as scq, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     scq.HammingIndex(np.array([[0], [3]], dtype=np.uint8), n_bits=8).save(f"{folder}/codes.safetensors")
        ...     scq.HammingIndex.load(f"{folder}/codes.safetensors")
        HammingIndex(n=2, n_bits=8, bytes_per_row=1, namespace=array_api_compat.numpy)
        """
        facts = {"format": index_file.FORMAT, "n_bits": str(self.n_bits), "distance": self.distance}
        facts |= {"next_id": str(self._store.next_id)} | ({"encoder": self._fingerprint} if self._fingerprint else {})
        index_file.write(path, self._store.state.tensors(), facts)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: str | None = None, verify: bool = False) -> HammingIndex:
        """Open an index file; see `save` for an example.

        Parameters
        ----------
        path : path-like
        device : {None, "cpu", "cuda", "cuda:1", ...}
            On the CPU the codes are memory-mapped, not read: an index may be larger than memory.
        verify : bool, default=False
            Read the whole file and compare the digests that `save` wrote into it. Ids are always checked: none twice,
            none below 0.
        """
        stored = index_file.read(path, verify=verify)
        # The codes were checked when they were written; __init__ would read all of them to check them again
        index = cls.__new__(cls)
        index.n_bits, index.distance = stored.n_bits, stored.facts["distance"]
        index._fingerprint, index._checked = stored.facts.get("encoder"), ()
        index._store = Store.from_file(stored, device=device)
        return index

    def _check_radius(self, radius: Any) -> Any:
        if self.distance == "spherical":
            return check_real(radius, name="radius", minimum=0)
        return min(check_integer(radius, name="radius", minimum=0), self.n_bits)


def _map_of(encoder: Any) -> tuple[Array, ...]:
    """Return the arrays that decide the codes of an encoder."""
    names = ("axes_", "cells_", "mean_") if hasattr(encoder, "query_tables") else ("components_", "threshold_")
    if not all(hasattr(encoder, name) for name in names):
        raise TypeError(f"{type(encoder).__name__} has no {' and '.join(names)}; pass a fitted linear encoder or OPQ")
    return tuple(getattr(encoder, name) for name in names)


def _fingerprint(encoder: Any) -> str:
    """Return a digest of the map of an encoder."""
    digest = hashlib.sha256()
    for x in _map_of(encoder):
        digest.update(np.ascontiguousarray(to_host(x), dtype=np.float32).tobytes())
    return digest.hexdigest()
