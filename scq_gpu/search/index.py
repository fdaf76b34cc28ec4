"""Exact search over packed codes: Hamming distance between codes, or float queries against codes."""

from __future__ import annotations

import copy
import hashlib
import os
import threading
from dataclasses import replace
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from scq_gpu._core.arrays import Array, like, namespace, on_device_of, on_device_of_arguments, to_device, to_host
from scq_gpu._core.bits import code_bytes
from scq_gpu._core.validate import DISTANCES, check_choice, check_integer, check_padding_room, check_real
from scq_gpu.kernels import asymmetric
from scq_gpu.kernels.search import searcher
from scq_gpu.search import index_file, multi_index
from scq_gpu.search.ids import check_ids, check_unique, decode_ids, numbers_after, to_bytes
from scq_gpu.search.scoring import score_queries
from scq_gpu.search.state import State, by_distance, check_codes, no_answers


class HammingIndex:
    """Packed codes with exact nearest-neighbor and radius search.

    Codes are searched on their device. NumPy codes are searched by native loops on all cores, codes on a GPU, up to
    1024 bits, by CUDA kernels, both from a second copy that the first search makes (a memory map is not copied). Codes
    of any other array namespace are searched by that namespace. The answer is always the same: ties are ordered by id,
    the lowest first.

    Threads may search, add and remove at the same time: a search sees the codes as they were when it began.

    Parameters
    ----------
    codes : array (n, ceil(n_bits / 8)) of uint8
        As ``encoder.encode`` or `scq_gpu.pack` return them. They are not copied if ids are absent or ascending: a
        memory map stays a memory map.
    n_bits : int
    ids : array (n,) of integers or strings, optional
        Unique; integers are 0 or more. By default the rows are numbered 0, 1, 2, ... Strings take as many bytes per
        code as the longest has in UTF-8.
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
        self._lock = threading.Lock()
        with on_device_of(codes):
            state = check_codes(codes, self.n_bits)
            self._state = state if ids is None else state.numbered(check_ids(ids, n=len(state)))

    def __len__(self) -> int:
        return len(self._state)

    def __repr__(self) -> str:
        facts = [f"n={len(self)}", f"n_bits={self.n_bits}", f"bytes_per_row={self.bytes_per_row}"]
        facts.append(f"namespace={namespace(self._state.parts[0]).__name__}")
        if self.distance != "hamming":
            facts.append(f"distance={self.distance!r}")
        return f"HammingIndex({', '.join(facts)})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    @property
    def has_ids(self) -> bool:
        """Return False if ids are the row numbers, which take no memory."""
        return self._state.ids is not None

    @property
    def bytes_per_row(self) -> int:
        """Return the bytes of a code and its id."""
        ids = 0 if self._state.ids is None else self._state.ids.dtype.itemsize
        return code_bytes(self.n_bits) + ids

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
        new = self._check_new_codes(codes)
        with self._lock:
            state = self._state
            # Empty parts are dropped, unless all are empty
            parts = tuple(part for part in (*state.parts, *new.parts) if part.shape[0]) or new.parts
            added = State(parts, None)
            if ids is not None or state.ids is not None:
                known, m = state.known, len(new)
                given = numbers_after(known, m) if ids is None else check_ids(ids, n=m, existing=known)
                added = added.numbered(np.concatenate([known, given]) if len(state) else given)
            self._state = added
        return self

    def _check_new_codes(self, codes: Array) -> State:
        new = check_codes(codes, self.n_bits)
        self._state.check_beside(new.parts[0], name="codes")
        return new

    def remove(self, ids: Array) -> Self:
        """Remove codes by id and return the index; the other codes keep their ids.

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
        with self._lock:
            state = self._state
            gone = check_ids(ids, existing=state.known)
            rows = np.delete(np.arange(len(state)), state.rows_of(gone, purpose="removed"))
            with on_device_of(state.parts[0]):
                self._state = replace(state.taken(rows), ids=state.known[rows])
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
        new = self._check_new_codes(codes)
        with self._lock:
            state = self._state
            changed = check_ids(ids, n=len(new), existing=state.known)
            rows = state.rows_of(changed, purpose="updated")
            check_unique(np.sort(changed))
            self._state = state.updated(rows, new)
        return self

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
        allowed : array of ids, or boolean mask (n,), optional
            Ids that may be found, of which unknown ones are skipped, or a mask in the order of `ids`. The allowed codes
            are gathered, then searched: the answer is exact.

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
        (array([[1, 1, 9]], dtype=int32), array([[50, 70, -1]]))
        """
        state = self._settled(allowed)
        queries = state.check_queries(queries, self.n_bits)
        k = check_integer(k, name="k", minimum=1)
        check_padding_room(k, queries=queries.shape[0], n=len(state))
        if queries.shape[0] and len(state):
            d, rows = self._engine(queries, state, k=k).knn(queries, list(state.parts), k, n_bits=self.n_bits)
        else:
            padding = np.float32(np.inf) if self.distance == "spherical" else np.int32(self.n_bits + 1)
            d, rows = no_answers((queries.shape[0], k), padding, beside=queries)
        return d, state.to_ids(rows)

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
        allowed : array of ids, or boolean mask (n,), optional
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
        state = self._settled(allowed)
        check_padding_room(k, queries=int(X_query.shape[0]) if hasattr(X_query, "shape") else 1, n=len(state))
        if hasattr(encoder, "query_tables"):
            return self._search_cells(state, encoder, X_query, k, metric=metric)
        scores = score_queries(encoder, X_query, metric=metric)
        with on_device_of(state.parts[0]):
            if len(state) and len(scores.gain):
                searcher = self._engine(state.parts[0], state, distance="hamming")
                d, rows = asymmetric.knn(scores.gain, list(state.parts), k, searcher=searcher)
                # Rounding may leave a distance below 0, but an inner product may be negative
                d, rows = asymmetric.add_base(d, rows, scores.base, least=-np.inf if metric == "ip" else 0.0)
            else:
                d, rows = no_answers((len(scores.gain), k), np.float32(np.inf), beside=state.parts[0])
        return d, state.to_ids(rows)

    def _search_cells(self, state: State, encoder: Any, X_query: Array, k: int, *, metric: str) -> tuple[Array, Array]:
        """Return the k nearest product codes of each float query."""
        tables, base = encoder.query_tables(X_query, metric)
        # Those on a device are known to be finite
        if isinstance(tables, np.ndarray) and not np.isfinite(tables).all():
            raise ValueError("distances from X_query leave the range of float32; scale queries and rows down")
        if not len(state) or not len(tables):
            d, rows = no_answers((len(tables), k), np.float32(np.inf), beside=state.parts[0])
            return d, state.to_ids(rows)
        with on_device_of(state.parts[0]):
            searcher = self._engine(state.parts[0], state, distance="hamming")
            d, rows = asymmetric.cells(tables, list(state.parts), k, searcher=searcher)
            d, rows = asymmetric.add_base(d, rows, base)
        return d, state.to_ids(rows)

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
        self, queries: np.ndarray, radius: float
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], np.ndarray]: ...
    @overload
    def range_search(self, queries: Array, radius: float) -> tuple[Array, Array, Array]: ...
    @on_device_of_arguments
    def range_search(self, queries: Array, radius: float) -> tuple[Array, Array, Array]:
        """Return all codes within a radius of each query.

        Large indexes of NumPy codes are searched through tables of code chunks (multi-index hashing) once the scans of
        that radius have cost as much as building the tables; see `prepare`. The answer is the same.

        Parameters
        ----------
        queries : array (q, ceil(n_bits / 8)) of uint8
        radius : int
            Codes at this distance are inside; a float for the spherical distance.

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
        state = self._settled()
        queries = state.check_queries(queries, self.n_bits)
        radius = self._check_radius(radius)
        # All pairs of a query and a row
        query = rows = np.zeros(0, dtype=np.int64)
        d: Array = query.astype(np.float32 if self.distance == "spherical" else np.int32)
        if queries.shape[0] and len(state):
            tables = self._tables(state, radius, queries=queries.shape[0])
            found: Any = None if tables is None else tables.within(queries, radius)
            if found is None:
                found = self._engine(queries, state).within(queries, list(state.parts), radius)
            query, d, rows = found
        # Pairs on a device come by query and row, pairs on the host in any order
        if not isinstance(query, np.ndarray):
            offsets, rows, d = by_distance(query, d, rows, n_queries=queries.shape[0], n_bits=self.n_bits)
            return offsets, state.to_ids(rows), d
        order = np.lexsort((rows, d, query))
        offsets = np.zeros(queries.shape[0] + 1, dtype=np.int64)
        np.cumsum(np.bincount(query, minlength=queries.shape[0]), out=offsets[1:])
        offsets, rows, d = (like(x, queries) for x in (offsets, rows[order], d[order]))
        return offsets, state.to_ids(rows), d

    def prepare(self, radius: int) -> bool:
        """Build the tables for `range_search` now rather than when they have paid for themselves.

        Parameters
        ----------
        radius : int
            The largest radius of later searches.

        Returns
        -------
        bool
            False if tables would not help: few codes, a large radius, clustered codes, codes that are not NumPy's, or
            the spherical distance. Searches then scan all codes.

        Examples
        --------
        >>> import numpy as np, scq_gpu as scq
        >>> scq.HammingIndex(np.array([[0]], dtype=np.uint8), n_bits=8).prepare(radius=1)
        False
        """
        return self._tables(self._settled(), self._check_radius(radius), build=True) is not None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to one safetensors file (tensors ``codes`` and ``ids``), in bounded memory.

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
        index_file.write(path, self.tensors(), facts | ({"encoder": self._fingerprint} if self._fingerprint else {}))

    def tensors(self) -> dict[str, list[np.ndarray]]:
        """Return ids, if there are any, and codes on the host in the layout of index files, in parts."""
        state = self._state
        found = {"ids": [] if state.ids is None else [to_bytes(state.ids)]}
        found["codes"] = [to_host(part) for part in state.parts]
        return {name: parts for name, parts in found.items() if parts}

    @property
    def ids(self) -> np.ndarray:
        """Return the ids of all codes, ascending."""
        return np.array(decode_ids(self._state.known))

    @property
    def encoded_ids(self) -> np.ndarray:
        """Return the ids of all codes, ascending, with strings encoded as UTF-8."""
        return self._state.known

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
        return cls.from_stored(index_file.read(path, verify=verify), device=device)

    @classmethod
    def from_stored(cls, stored: index_file.Stored, *, device: str | None = None, encoder: Any = None) -> HammingIndex:
        """Return the index of a file; an encoder, if given, is the one of its codes."""
        # The codes were checked when they were written; __init__ would read all of them to check them again
        index = cls.__new__(cls)
        index.n_bits, index.distance = stored.n_bits, stored.facts["distance"]
        index._fingerprint = stored.facts.get("encoder") if encoder is None else _fingerprint(encoder)
        index._checked = () if encoder is None else _map_of(encoder)
        index._lock = threading.Lock()
        codes = stored.codes if device in (None, "cpu") else to_device(stored.codes, device)
        index._state = State((codes,), stored.ids)
        return index

    def _check_radius(self, radius: Any) -> Any:
        if self.distance == "spherical":
            return check_real(radius, name="radius", minimum=0)
        return min(check_integer(radius, name="radius", minimum=0), self.n_bits)

    def snapshot(self) -> HammingIndex:
        """Return an index of the present codes, which does not change with this one; nothing is copied."""
        self._settled()
        return copy.copy(self)

    def _settled(self, allowed: Any = None) -> State:
        """Return the present codes, or the allowed ones; parts added since the last search are joined."""
        with self._lock, on_device_of(self._state.parts[0]):
            self._state = state = self._state.joined()
        if allowed is None:
            return state
        with on_device_of(state.parts[0]):
            return state.allowed(allowed)

    def _tables(self, state: State, radius: Any, *, queries: int = 0, build: bool = False) -> Any:
        """Return the tables for a radius, or None if a scan is the better choice; see `multi_index.tables`."""
        if self.distance == "spherical" or not isinstance(state.parts[0], np.ndarray):
            return None
        with self._lock:
            return multi_index.tables(state.made, list(state.parts), self.n_bits, radius, queries=queries, build=build)

    def _engine(self, queries: Array, state: State, *, k: int = 1, distance: str | None = None) -> Any:
        """Return the engine for these queries."""
        engine = searcher(queries, k=min(k, len(state)), distance=distance or self.distance)
        # An engine with a layout of its own is a class; its object is kept beside the codes
        if not isinstance(engine, type):
            return engine
        with self._lock:
            if "engine" not in state.made:
                state.made["engine"] = engine(list(state.parts))
            return state.made["engine"]


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
