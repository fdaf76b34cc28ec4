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

from scq_gpu._core.arrays import Array, device_of, from_host, namespace, to_host
from scq_gpu._core.bits import code_bytes
from scq_gpu._core.devices import on_device_of, on_device_of_arguments, to_device
from scq_gpu._core.factors import FACTOR_BYTES, RowFactors, split_factors
from scq_gpu._core.validate import (
    DISTANCES,
    check_choice,
    check_index_codes,
    check_integer,
    check_padding_room,
    check_real,
)
from scq_gpu.kernels import asymmetric
from scq_gpu.kernels.search import searcher
from scq_gpu.search import index_file, multi_index
from scq_gpu.search.ids import as_words, check_ids, count_ids, numbers_after, to_bytes
from scq_gpu.search.scoring import QueryScores, score_queries
from scq_gpu.search.state import State, by_distance, lowest_first

__all__ = ["HammingIndex"]


class HammingIndex:
    """Packed codes, and exact nearest-neighbor and radius search over them.

    The work is done where the codes are. NumPy codes are searched by compiled loops on all cores if numba is installed
    (extra ``cpu``), else by NumPy. Codes on a GPU, up to 1024 bits, are searched by CUDA kernels, from a second copy
    that the first search makes. Codes of any other array namespace are searched by that namespace, on their device.
    Every way gives the same answer: ties are ordered by id, the lowest first.

    Threads may search, add and remove at the same time: a search sees the codes as they were when it began.

    Parameters
    ----------
    codes : array (n, ceil(n_bits / 8)) of uint8
        What ``encoder.encode`` or `scq_gpu.pack` return; with ``encode(X, factors=True)``, four bytes wider. Codes
        without factors are not copied if ids are absent or ascending: a memory map stays a memory map.
    n_bits : int
    ids : array (n,) of integers or strings, optional
        Unique; integers are 0 or more. By default the rows are numbered 0, 1, 2, ... Strings take as many bytes per
        code as the longest has in UTF-8.
    distance : {"hamming", "spherical"}
        "spherical" is the distance made for `SpH`: the bits that differ over the ones in common,
        ``|b1 xor b2| / |b1 and b2|``, infinite between codes that differ and have none in common. It is searched by
        array operations.
    encoder : fitted encoder, optional
        What made the codes: its fingerprint is kept, also in index files, and `search_asymmetric` refuses another.

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu.search import HammingIndex
    >>> index = HammingIndex(np.array([[0b0000], [0b0111], [0b0001]], dtype=np.uint8), n_bits=4)
    >>> distances, ids = index.search(np.array([[0b0011]], dtype=np.uint8), k=2)
    >>> distances, ids
    (array([[1, 1]], dtype=int32), array([[1, 2]]))
    """

    def __init__(
        self,
        codes: Array,
        n_bits: int,
        ids: Array | None = None,
        *,
        distance: str = "hamming",
        encoder: Any = None,
    ) -> None:
        self.distance: str = check_choice(distance, name="distance", choices=DISTANCES)
        self.n_bits: int = check_integer(n_bits, name="n_bits", minimum=1)
        self._fingerprint: str | None = None if encoder is None else _fingerprint(encoder)
        self._lock = threading.Lock()
        with on_device_of(codes):
            self._state = self._first_state(codes, ids)

    def _first_state(self, codes: Array, ids: Array | None) -> State:
        codes, factors = split_factors(codes, self.n_bits)
        codes = check_index_codes(codes, n_bits=self.n_bits, name="codes")
        state = State((codes,), None, None if factors is None else (factors,))
        return state if ids is None else state.numbered(check_ids(ids, n=codes.shape[0]))

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
    def has_factors(self) -> bool:
        """Whether the codes came with factors, which `search_asymmetric` then uses."""
        return self._state.factors is not None

    @property
    def bytes_per_row(self) -> int:
        """Bytes of a code, its factors and its id."""
        ids = 0 if self._state.ids is None else self._state.ids.dtype.itemsize
        return code_bytes(self.n_bits) + (FACTOR_BYTES if self.has_factors else 0) + ids

    @on_device_of_arguments
    def add(self, codes: Array, ids: Array | None = None) -> Self:
        """Add codes.

        Parameters
        ----------
        codes : array (n, ceil(n_bits / 8)) of uint8
            In the namespace of the codes already there; with factors if and only if those have them.
        ids : array (n,) of integers or strings, optional
            By default the numbers after the largest id so far; where ids are strings, they must be given.

        Returns
        -------
        HammingIndex
            The index itself.

        Examples
        --------
        >>> import numpy as np
        >>> from scq_gpu.search import HammingIndex
        >>> index = HammingIndex(np.array([[0]], dtype=np.uint8), n_bits=8)
        >>> len(index.add(np.array([[1], [3]], dtype=np.uint8)))
        3
        """
        new = self._new_codes(codes)
        m, given = len(new), None
        with self._lock:
            state = self._state
            if ids is not None:
                given = check_ids(ids, n=m, like=state.known)
            elif state.ids is not None:
                given = numbers_after(state.ids, m)
            parts = tuple(part for part in (*state.parts, *new.parts) if part.shape[0]) or new.parts
            grown = None
            if new.factors is not None:
                grown = tuple(f for f in (*(state.factors or ()), *new.factors) if f.shape[0]) or new.factors
            added = State(parts, None, grown)
            if given is not None:
                added = added.numbered(np.concatenate([state.known, given]) if len(state) else given)
            self._state = added
        return self

    def _new_codes(self, codes: Array) -> State:
        """Codes that fit those of the index, without ids."""
        codes, factors = split_factors(codes, self.n_bits)
        codes = check_index_codes(codes, n_bits=self.n_bits, name="codes")
        self._check_namespace(codes, name="codes")
        if (factors is not None) != self.has_factors and len(self):
            there, here = ("with", "without") if self.has_factors else ("without", "with")
            raise ValueError(f"the index holds codes {there} factors and these come {here}; encode them alike")
        return State((codes,), None, None if factors is None else (factors,))

    def remove(self, ids: Array) -> Self:
        """Remove codes by id.

        Parameters
        ----------
        ids : array (m,) of integers or strings
            Each must be there.

        Returns
        -------
        HammingIndex
            The index itself. The other codes keep their ids.

        Examples
        --------
        >>> import numpy as np
        >>> from scq_gpu.search import HammingIndex
        >>> index = HammingIndex(np.array([[0], [1], [3]], dtype=np.uint8), n_bits=8).remove([1])
        >>> index.search(np.array([[1]], dtype=np.uint8), k=2)
        (array([[1, 1]], dtype=int32), array([[0, 2]]))
        """
        with self._lock:
            state = self._state
            gone = check_ids(ids, n=count_ids(ids), like=state.known)
            rows = np.delete(np.arange(len(state)), state.rows_of(gone, purpose="removed"))
            with on_device_of(state.parts[0]):
                self._state = replace(state.taken(rows), ids=state.known[rows])
        return self

    @on_device_of_arguments
    def update(self, ids: Array, codes: Array) -> Self:
        """Replace codes by id.

        Parameters
        ----------
        ids : array (m,) of integers or strings
            Each must be there, and come once.
        codes : array (m, ceil(n_bits / 8)) of uint8
            In the namespace of the codes already there; with factors if and only if those have them.

        Returns
        -------
        HammingIndex
            The index itself.

        Examples
        --------
        >>> import numpy as np
        >>> from scq_gpu.search import HammingIndex
        >>> index = HammingIndex(np.array([[0], [1]], dtype=np.uint8), n_bits=8, ids=["a", "b"])
        >>> index.update(["a"], np.array([[255]], dtype=np.uint8)).search(np.array([[255]], dtype=np.uint8), k=1)
        (array([[0]], dtype=int32), array([['a']], dtype='<U1'))
        """
        new = self._new_codes(codes)
        with self._lock:
            state = self._state
            changed = check_ids(ids, n=len(new), like=state.known)
            rows = state.rows_of(changed, purpose="updated")
            order = np.argsort(rows, kind="stable")
            if (np.diff(rows[order]) == 0).any():
                twice = rows[order][np.flatnonzero(np.diff(rows[order]) == 0)[0]]
                raise ValueError(
                    f"id {as_words(state.known)[twice]} is given to more than one code; ids must be unique"
                )
            self._state = state.updated(rows, new)
        return self

    @overload
    def search(self, queries: np.ndarray, k: int, *, allowed: Any = None) -> tuple[np.ndarray, NDArray[np.int64]]: ...
    @overload
    def search(self, queries: Array, k: int, *, allowed: Any = None) -> tuple[Array, Array]: ...
    @on_device_of_arguments
    def search(self, queries: Array, k: int, *, allowed: Any = None) -> tuple[Array, Array]:
        """The k nearest codes of each query.

        Parameters
        ----------
        queries : array (q, ceil(n_bits / 8)) of uint8
            For example ``encoder.encode(X)``.
        k : int
        allowed : array of ids, or boolean mask (n,), optional
            What may be found: some ids, of which those that are not in the index are passed over, or a mask in the
            order of `ids`. The codes allowed are gathered, then searched: the answer is exact.

        Returns
        -------
        distances : array (q, k) of int32
            Ascending; float32 for the spherical distance.
        ids : array (q, k) of int64, or of strings if ids are strings (then NumPy's, wherever the codes are)
            Lowest id first inside a distance. Where there are fewer than k codes the rest is id -1 (the empty string
            among strings) at distance ``n_bits + 1``, which no code can have (inf for the spherical distance).

        Examples
        --------
        >>> import numpy as np
        >>> from scq_gpu.search import HammingIndex
        >>> index = HammingIndex(np.array([[0], [3]], dtype=np.uint8), n_bits=8, ids=np.array([70, 50]))
        >>> index.search(np.array([[1]], dtype=np.uint8), k=3)
        (array([[1, 1, 9]], dtype=int32), array([[50, 70, -1]]))
        """
        state = self._settled(allowed)
        queries = self._check_queries(queries, state)
        k = check_integer(k, name="k", minimum=1)
        check_padding_room(k, queries=queries.shape[0], n=len(state))
        if not queries.shape[0] or not len(state):
            d, rows = self._no_answers(queries, k)
        else:
            d, rows = self._engine(queries, state, k=k).knn(queries, list(state.parts), k, n_bits=self.n_bits)
        return d, state.to_ids(rows)

    def search_asymmetric(
        self, encoder: Any, X_query: Array, k: int, *, metric: str = "l2", allowed: Any = None
    ) -> tuple[Array, Array]:
        r"""The k nearest codes to float queries: the query is not rounded to bits, only the database is.

        It finds more of the true neighbors than the Hamming distance, as fast, and has few ties. No floats of the
        database are needed. Factors are used where the codes have them, which helps where the norms of the rows vary.

        Parameters
        ----------
        encoder : fitted encoder
            The one that made the codes: a linear map, with ``project(X)``, ``n_bits`` and, learned in ``fit``,
            ``levels_``.
        X_query : array (q, d)
        k : int
        metric : {"l2", "cosine", "ip"}, default="l2"
            What the distance estimates: the squared Euclidean distance, one minus the cosine (for an encoder that was
            fitted on normalized rows, codes of such rows, and normalized queries), or the negative inner product.
        allowed : array of ids, or boolean mask (n,), optional
            What may be found, as in `search`.

        Returns
        -------
        distances : array (q, k) of float32
            Ascending; inf where there are fewer than k codes.
        ids : array (q, k) of int64, or of strings
            Lowest id first inside a distance; -1, or the empty string, where there are fewer than k codes.

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
        d, rows, state = self._nearest(encoder, X_query, k, metric=metric, allowed=allowed)
        return d, state.to_ids(rows)

    def _nearest(
        self, encoder: Any, X_query: Array, k: int, *, metric: str, allowed: Any = None
    ) -> tuple[Array, Array, State]:
        """Distances, rows, and the codes that rows are of."""
        k = check_integer(k, name="k", minimum=1)
        self._check_encoder(encoder)
        state = self._settled(allowed)
        check_padding_room(k, queries=int(X_query.shape[0]) if hasattr(X_query, "shape") else 1, n=len(state))
        scores = score_queries(encoder, X_query, metric=metric, factors=state.factors is not None)
        with on_device_of(state.parts[0]):
            if not len(state) or not len(scores.gain):
                xp, device, shape = namespace(state.parts[0]), device_of(state.parts[0]), (len(scores.gain), k)
                none = xp.full(shape, -1, dtype=xp.int64, device=device)
                return xp.full(shape, xp.inf, dtype=xp.float32, device=device), none, state
            return *_nearest_by_scores(scores, state, k, metric=metric), state

    @overload
    def range_search(
        self, queries: np.ndarray, radius: float
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], np.ndarray]: ...
    @overload
    def range_search(self, queries: Array, radius: float) -> tuple[Array, Array, Array]: ...
    @on_device_of_arguments
    def range_search(self, queries: Array, radius: float) -> tuple[Array, Array, Array]:
        """All codes within a radius of each query.

        Large indexes of NumPy codes are searched through tables of code chunks (multi-index hashing) once the scans of
        that radius have cost as much as the tables would; see `prepare`. The answer is the same.

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
        >>> import numpy as np
        >>> from scq_gpu.search import HammingIndex
        >>> index = HammingIndex(np.array([[0b0], [0b1], [0b111]], dtype=np.uint8), n_bits=8)
        >>> index.range_search(np.array([[0b1], [0b11110000]], dtype=np.uint8), radius=1)
        (array([0, 2, 2]), array([1, 0]), array([0, 1], dtype=int32))
        """
        state = self._settled()
        queries = self._check_queries(queries, state)
        radius = self._check_radius(radius)
        nothing = np.zeros(0, dtype=np.int64)
        query, d, rows = nothing, nothing.astype(np.float32 if self.distance == "spherical" else np.int32), nothing
        if queries.shape[0] and len(state):
            query, d, rows = self._within(queries, state, radius)
        if not isinstance(query, np.ndarray):
            offsets, rows, d = by_distance(query, d, rows, n_queries=queries.shape[0], n_bits=self.n_bits)
            return offsets, state.to_ids(rows), d
        order = np.lexsort((rows, d, query))
        offsets = np.zeros(queries.shape[0] + 1, dtype=np.int64)
        np.cumsum(np.bincount(query, minlength=queries.shape[0]), out=offsets[1:])
        xp, device = namespace(queries), device_of(queries)
        found = (from_host(x, xp=xp, device=device) for x in (offsets, rows[order], d[order]))
        offsets, rows, d = found
        return offsets, state.to_ids(rows), d

    def prepare(self, radius: int) -> bool:
        """Build the tables for `range_search` now rather than when they have paid for themselves.

        Parameters
        ----------
        radius : int
            The largest radius that will be asked for.

        Returns
        -------
        bool
            False where tables would not help: few codes, a large radius, codes bunched together, codes that are not
            NumPy's, or the spherical distance. Searches scan all codes then.

        Examples
        --------
        >>> import numpy as np
        >>> from scq_gpu.search import HammingIndex
        >>> HammingIndex(np.array([[0]], dtype=np.uint8), n_bits=8).prepare(radius=1)
        False
        """
        return self._tables(self._settled(), self._check_radius(radius), build=True) is not None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to one safetensors file (tensors ``codes``, ``ids``, ``factors``), in bounded memory.

        Parameters
        ----------
        path : path-like

        Examples
        --------
        >>> import numpy as np, tempfile
        >>> from scq_gpu.search import HammingIndex
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     HammingIndex(np.array([[0], [3]], dtype=np.uint8), n_bits=8).save(f"{folder}/codes.safetensors")
        ...     HammingIndex.load(f"{folder}/codes.safetensors")
        HammingIndex(n=2, n_bits=8, bytes_per_row=1, namespace=array_api_compat.numpy)
        """
        facts = {"distance": self.distance} | ({"encoder": self._fingerprint} if self._fingerprint else {})
        index_file.write(path, *self.tensors(), n_bits=self.n_bits, facts=facts)

    def tensors(self) -> tuple[list[np.ndarray], np.ndarray | None, list[np.ndarray] | None]:
        """Codes, ids and factors on the host, codes and factors in parts: what index files hold."""
        state = self._state
        factors = None if state.factors is None else [to_host(part) for part in state.factors]
        ids = None if state.ids is None else to_bytes(state.ids)
        return [to_host(part) for part in state.parts], ids, factors

    @property
    def ids(self) -> np.ndarray:
        """The ids of all codes, ascending."""
        return np.array(as_words(self._state.known))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: str | None = None, verify: bool = False) -> HammingIndex:
        """Open an index file; see `save` for an example.

        Parameters
        ----------
        path : path-like
        device : {None, "cpu", "cuda", "cuda:1", ...}
            On the CPU the codes are memory-mapped, not read: an index may be larger than memory.
        verify : bool, default=False
            Whether to read all of the file and compare the digests that `save` wrote into it. Ids are checked in any
            case: none twice, none below 0.

        Returns
        -------
        HammingIndex
        """
        return cls.from_stored(index_file.read(path, verify=verify), device=device)

    @classmethod
    def from_stored(cls, stored: index_file.Stored, *, device: str | None = None, encoder: Any = None) -> HammingIndex:
        """The index that a file holds, of codes by this encoder if one is given."""
        index = cls.__new__(cls)  # the file was checked when it was written; checking again would read all of it
        index.n_bits, index.distance = stored.n_bits, stored.facts.get("distance", "hamming")
        index._fingerprint = stored.facts.get("encoder") if encoder is None else _fingerprint(encoder)
        index._lock = threading.Lock()
        codes, factors = (x if x is None or device in (None, "cpu") else to_device(x, device) for x in stored[:2])
        index._state = State((codes,), stored.ids, None if factors is None else (factors,))
        return index

    def _check_queries(self, queries: Array, state: State) -> Array:
        queries = check_index_codes(queries, n_bits=self.n_bits, name="queries")
        self._check_namespace(queries, name="queries")
        return queries

    def _no_answers(self, queries: Array, k: int) -> tuple[Array, Array]:
        """What a search finds where there is nothing to look for, or nothing to find."""
        xp, device = namespace(queries), device_of(queries)
        spherical = self.distance == "spherical"
        dtype, padding = (xp.float32, xp.inf) if spherical else (xp.int32, self.n_bits + 1)
        shape = (queries.shape[0], k)
        return xp.full(shape, padding, dtype=dtype, device=device), xp.full(shape, -1, dtype=xp.int64, device=device)

    def _check_radius(self, radius: Any) -> Any:
        if self.distance == "spherical":
            return check_real(radius, name="radius", minimum=0)
        return min(check_integer(radius, name="radius", minimum=0), self.n_bits)

    def _check_namespace(self, codes: Array, *, name: str) -> None:
        mine = self._state.parts[0]
        here, there = namespace(mine), namespace(codes)
        if here is not there or device_of(mine) != device_of(codes):
            raise ValueError(
                f"{name} are {there.__name__} on {device_of(codes)} and the index is {here.__name__} on "
                f"{device_of(mine)}; move one to the other"
            )

    def _check_encoder(self, encoder: Any) -> None:
        if encoder.n_bits != self.n_bits:
            raise ValueError(
                f"the encoder makes codes of n_bits={encoder.n_bits} and the index holds n_bits={self.n_bits}; "
                "search with the encoder that made the codes"
            )
        if self._fingerprint is not None and _fingerprint(encoder) != self._fingerprint:
            raise ValueError("the codes of this index were made by another encoder; search with the one that made them")

    @property
    def _numbers_rows(self) -> bool:
        """Whether ids are the row numbers, which take no memory."""
        return self._state.ids is None

    def _snapshot(self) -> HammingIndex:
        """An index of the codes as they are now, which does not change with this one; nothing is copied."""
        self._settled()
        return copy.copy(self)

    def _settled(self, allowed: Any = None) -> State:
        """The codes now, or those of them allowed; parts added since the last search are joined, but memory maps."""
        with self._lock, on_device_of(self._state.parts[0]):
            self._state = state = self._state.joined()
        if allowed is None:
            return state
        with on_device_of(state.parts[0]):
            return state.allowed(allowed)

    def _within(self, queries: Array, state: State, radius: Any) -> tuple[Array, Array, Array]:
        """All pairs (query, distance, row), by tables where they are there or have become worth building.

        They are on the host, in any order; or, of an engine that leaves them where the queries are, by query and row.
        """
        tables = self._tables(state, radius, queries=queries.shape[0])
        found: Any = None if tables is None else tables.within(queries, radius)
        if found is None:
            found = self._engine(queries, state).within(queries, list(state.parts), radius)
        query, d, rows = found
        return query, d, rows

    def _tables(self, state: State, radius: Any, *, queries: int = 0, build: bool = False) -> Any:
        """The tables for a radius; None where they do not help, or have not paid for themselves yet.

        They are built once the scans that they would have saved have cost as much.
        """
        if self.distance == "spherical" or not isinstance(state.parts[0], np.ndarray):
            return None
        with self._lock:
            return multi_index.tables(state.made, list(state.parts), self.n_bits, radius, queries=queries, build=build)

    def _engine(self, queries: Array, state: State, *, k: int = 1) -> Any:
        """What searches for these queries; an engine that lays the codes out for itself is kept."""
        engine = searcher(queries, queries.shape[0] * len(state), k=min(k, len(state)), distance=self.distance)
        if not isinstance(engine, type):
            return engine
        with self._lock:
            if "engine" not in state.made:
                state.made["engine"] = engine(list(state.parts))
            return state.made["engine"]


def _fingerprint(encoder: Any) -> str:
    """What tells the map of an encoder from another's."""
    if not hasattr(encoder, "components_") or not hasattr(encoder, "threshold_"):
        raise TypeError(f"{type(encoder).__name__} has no components_ and threshold_; pass a fitted linear encoder")
    digest = hashlib.sha256()
    for name in ("components_", "threshold_"):
        digest.update(np.ascontiguousarray(to_host(getattr(encoder, name)), dtype=np.float32).tobytes())
    return digest.hexdigest()


def _nearest_by_scores(scores: QueryScores, state: State, k: int, *, metric: str) -> tuple[Array, Array]:
    """Distances (q, k) and rows (q, k) of the codes of least score, lowest row first inside a distance."""
    factors = None
    if state.factors is not None:
        offsets = [part[:, 0] if scores.offsets else part[:, 0] * 0 for part in state.factors]
        factors = RowFactors(offsets, [part[:, 1] for part in state.factors], scores.constants)
    d, rows = asymmetric.knn(scores.gain, list(state.parts), k, factors=factors)
    xp = namespace(d)
    d = d * scores.unit + from_host(scores.base, xp=xp, device=device_of(d))[:, None]
    if metric != "ip":
        d = xp.where(d > 0, d, xp.zeros_like(d))
    return d, lowest_first(d, rows)
