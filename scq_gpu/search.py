"""Exact search over packed codes in Hamming space."""

from __future__ import annotations

import os
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from scq_gpu import _index_file, _multi_index, kernels
from scq_gpu._hamming import use_numba
from scq_gpu._validate import DISTANCES, check_choice, check_ids, check_index_codes, check_integer, check_real
from scq_gpu._xp import Array, device_of, from_host, namespace, to_device, to_host

__all__ = ["HammingIndex"]


class HammingIndex:
    """Packed codes, and exact nearest-neighbour and radius search over them.

    The work is done where the codes are. NumPy codes are searched by compiled loops on all cores if numba is installed
    (``pip install "scq-gpu[cpu]"``), else by NumPy. Codes on a GPU, up to 1024 bits, are searched by CUDA kernels, from
    a second copy that the first search makes. Codes of any other array namespace are searched by that namespace, on
    their device. Every way gives the same answer: ties are ordered by id, the lowest first.

    Parameters
    ----------
    codes : array (n, ceil(n_bits / 8)) of uint8
        What ``encoder.encode`` or `scq_gpu.pack` return. Not copied if ids are absent or ascending: a memory map stays
        a memory map.
    n_bits : int
    ids : array (n,) of integers, optional
        Unique, 0 or more. By default the rows are numbered 0, 1, 2, ...
    distance : {"hamming", "spherical"}
        "spherical" is the distance made for `SpH`: the bits that differ over the ones in common,
        ``|b1 xor b2| / |b1 and b2|``, infinite between codes that differ and have none in common. It is searched by
        array operations.

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu.search import HammingIndex
    >>> index = HammingIndex(np.array([[0b0000], [0b0111], [0b0001]], dtype=np.uint8), n_bits=4)
    >>> distances, ids = index.search(np.array([[0b0011]], dtype=np.uint8), k=2)
    >>> distances, ids
    (array([[1, 1]], dtype=int32), array([[1, 2]]))
    """

    _plans: dict[int, _multi_index.Plan | None]
    _lookup: tuple[int, _multi_index.MultiIndex] | None
    _kept_engine: Any  # made of the codes at the first search, where the engine is of that kind
    _scanned: float  # what scans have cost that tables would have spared, in distances

    def __init__(self, codes: Array, n_bits: int, ids: Array | None = None, *, distance: str = "hamming") -> None:
        self.distance: str = check_choice(distance, name="distance", choices=DISTANCES)
        self.n_bits: int = check_integer(n_bits, name="n_bits", minimum=1)
        codes = check_index_codes(codes, n_bits=self.n_bits, name="codes")
        self._parts: list[Array] = [codes]
        self._ids: np.ndarray | None = None  # ascending, one a row; None: the row itself
        self._forget_lookup()
        if ids is not None:
            self._set_ids(check_ids(ids, n=codes.shape[0]))

    def __len__(self) -> int:
        return sum(part.shape[0] for part in self._parts)

    def __repr__(self) -> str:
        facts = [f"n={len(self)}", f"n_bits={self.n_bits}", f"namespace={namespace(self._parts[0]).__name__}"]
        if self.distance != "hamming":
            facts.append(f"distance={self.distance!r}")
        return f"HammingIndex({', '.join(facts)})"

    def add(self, codes: Array, ids: Array | None = None) -> HammingIndex:
        """Add codes.

        Parameters
        ----------
        codes : array (n, ceil(n_bits / 8)) of uint8
            In the namespace of the codes already there.
        ids : array (n,) of integers, optional
            By default the numbers after the largest id so far.

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
        codes = check_index_codes(codes, n_bits=self.n_bits, name="codes")
        self._check_namespace(codes, name="codes")
        n, m = len(self), codes.shape[0]
        new = None if ids is None else check_ids(ids, n=m)
        if new is None and self._ids is not None:
            start = int(self._ids[-1]) + 1 if n else 0
            new = np.arange(start, start + m, dtype=np.int64)
        merged = None if new is None else np.concatenate([np.arange(n) if self._ids is None else self._ids, new])
        if merged is not None:
            _check_unique(merged)
        self._parts = [part for part in (*self._parts, codes) if part.shape[0]] or [codes]
        self._forget_lookup()
        if merged is not None:
            self._set_ids(merged)
        return self

    @overload
    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, NDArray[np.int64]]: ...
    @overload
    def search(self, queries: Array, k: int) -> tuple[Array, Array]: ...
    def search(self, queries: Array, k: int) -> tuple[Array, Array]:
        """The k nearest codes of each query.

        Parameters
        ----------
        queries : array (q, ceil(n_bits / 8)) of uint8
            For example ``encoder.encode(X)``.
        k : int

        Returns
        -------
        distances : array (q, k) of int32
            Ascending; float32 for the spherical distance.
        ids : array (q, k) of int64
            Lowest id first inside a distance. Where the index holds fewer than k codes the rest is id -1 at distance
            ``n_bits + 1``, which no code can have (inf for the spherical distance).

        Examples
        --------
        >>> import numpy as np
        >>> from scq_gpu.search import HammingIndex
        >>> index = HammingIndex(np.array([[0], [3]], dtype=np.uint8), n_bits=8, ids=np.array([70, 50]))
        >>> index.search(np.array([[1]], dtype=np.uint8), k=3)
        (array([[1, 1, 9]], dtype=int32), array([[50, 70, -1]]))
        """
        queries = self._check_queries(queries)
        k = check_integer(k, name="k", minimum=1)
        parts = self._joined()
        d, rows = self._engine(queries, k=k).knn(queries, parts, k, n_bits=self.n_bits)
        return d, self._to_ids(rows)

    @overload
    def range_search(
        self, queries: np.ndarray, radius: float
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], np.ndarray]: ...
    @overload
    def range_search(self, queries: Array, radius: float) -> tuple[Array, Array, Array]: ...
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
        queries = self._check_queries(queries)
        query, d, rows = self._within(queries, self._check_radius(radius))
        order = np.lexsort((rows, d, query))
        offsets = np.zeros(queries.shape[0] + 1, dtype=np.int64)
        np.cumsum(np.bincount(query, minlength=queries.shape[0]), out=offsets[1:])
        xp, device = namespace(queries), device_of(queries)
        found = (from_host(x, xp=xp, device=device) for x in (offsets, rows[order], d[order]))
        offsets, rows, d = found
        return offsets, self._to_ids(rows), d

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
        radius = self._check_radius(radius)
        parts = self._joined()
        plan = self._plan(parts, radius)
        if plan is None:
            return False
        if self._lookup is None or self._lookup[0] < radius:
            self._lookup = radius, _multi_index.MultiIndex(parts, plan)
        return True

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to one safetensors file (tensors ``codes`` and ``ids``), in bounded memory.

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
        HammingIndex(n=2, n_bits=8, namespace=array_api_compat.numpy)
        """
        parts = [to_host(part) for part in self._parts]
        _index_file.write(path, parts, self._ids, n_bits=self.n_bits, distance=self.distance)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: str | None = None) -> HammingIndex:
        """Open an index file; see `save` for an example.

        Parameters
        ----------
        path : path-like
        device : {None, "cpu", "cuda", "cuda:1", ...}
            On the CPU the codes are memory-mapped, not read: an index may be larger than memory.

        Returns
        -------
        HammingIndex
        """
        codes, ids, n_bits, distance = _index_file.read(path)
        index = cls.__new__(cls)  # the file was checked when it was written; checking again would read all of it
        index.n_bits, index._ids, index.distance = n_bits, ids, distance
        index._parts = [codes if device in (None, "cpu") else to_device(codes, device)]
        index._forget_lookup()
        return index

    def _check_queries(self, queries: Array) -> Array:
        queries = check_index_codes(queries, n_bits=self.n_bits, name="queries")
        self._check_namespace(queries, name="queries")
        if not len(self):
            raise ValueError("the index is empty; add codes before searching")
        if not queries.shape[0]:
            raise ValueError("queries have no rows; pass at least one code")
        return queries

    def _check_radius(self, radius: Any) -> Any:
        if self.distance == "spherical":
            return check_real(radius, name="radius", minimum=0)
        return min(check_integer(radius, name="radius", minimum=0), self.n_bits)

    def _check_namespace(self, codes: Array, *, name: str) -> None:
        here, there = namespace(self._parts[0]), namespace(codes)
        if here is not there or device_of(self._parts[0]) != device_of(codes):
            raise ValueError(
                f"{name} are {there.__name__} on {device_of(codes)} and the index is {here.__name__} on "
                f"{device_of(self._parts[0])}; move one to the other"
            )

    def _set_ids(self, ids: np.ndarray) -> None:
        """Number the rows, and keep them in the order of their ids, so that the lowest row is the lowest id."""
        _check_unique(ids)
        if (np.diff(ids) > 0).all():
            self._ids = ids
            return
        order = np.argsort(ids)
        codes = self._joined(copy=True)[0]
        xp = namespace(codes)
        self._parts = [xp.take(codes, from_host(order, xp=xp, device=device_of(codes)), axis=0)]
        self._ids = ids[order]

    def _joined(self, *, copy: bool = False) -> list[Array]:
        """The codes, parts added since the last search joined; a memory map stays apart unless ``copy`` says so."""
        mapped = [] if copy else [part for part in self._parts[:1] if isinstance(part, np.memmap)]
        rest = self._parts[len(mapped) :]
        if len(rest) > 1:
            self._parts = [*mapped, namespace(rest[0]).concat(rest, axis=0)]
        return self._parts

    def _to_ids(self, rows: Array) -> Array:
        if self._ids is None:
            return rows
        found = to_host(rows)
        ids = np.where(found >= 0, self._ids[found], -1)
        return from_host(ids, xp=namespace(rows), device=device_of(rows))

    def _within(self, queries: Array, radius: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All pairs (query, distance, row), by tables where they are there or have become worth building."""
        parts = self._joined()
        pairs = queries.shape[0] * len(self)
        plan = self._plan(parts, radius)
        if plan is not None:
            self._scanned += pairs - plan.query_cost * queries.shape[0]
            if (self._lookup is None or self._lookup[0] < radius) and self._scanned > plan.build_cost:
                self.prepare(radius)
            if self._lookup is not None and radius <= self._lookup[0]:
                found = self._lookup[1].within(queries, radius)
                if found is not None:
                    return found
        scan: tuple[np.ndarray, np.ndarray, np.ndarray] = self._engine(queries).within(queries, parts, radius)
        return scan

    def _engine(self, queries: Array, *, k: int = 1) -> Any:
        """What searches for these queries; an engine that lays the codes out for itself is kept."""
        engine = _engine_for(queries, queries.shape[0] * len(self), k=min(k, len(self)), distance=self.distance)
        if not isinstance(engine, type):
            return engine
        if self._kept_engine is None:
            self._kept_engine = engine(self._joined())
        return self._kept_engine

    def _plan(self, parts: list[Array], radius: Any) -> _multi_index.Plan | None:
        if self.distance == "spherical" or not isinstance(parts[0], np.ndarray):
            return None
        if radius not in self._plans:
            self._plans[radius] = _multi_index.plan(parts, self.n_bits, radius)
        return self._plans[radius]

    def _forget_lookup(self) -> None:
        self._plans, self._lookup, self._scanned, self._kept_engine = {}, None, 0.0, None


def _check_unique(ids: np.ndarray) -> None:
    ordered = np.sort(ids)
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if twice.size:
        raise ValueError(f"id {ordered[twice[0]]} is given to more than one code; ids must be unique")


def _engine_for(codes: Array, pairs: int, *, k: int = 1, distance: str = "hamming") -> Any:
    """The module that searches these codes, or the class that does once it has them: the one place that decides."""
    if distance == "spherical":
        from scq_gpu import _search_spherical

        return _search_spherical
    if kernels.searches(codes, k):
        from scq_gpu import _search_cuda

        return _search_cuda.CudaEngine
    if use_numba(codes, pairs):
        from scq_gpu import _search_numba

        return _search_numba
    from scq_gpu import _search_arrays

    return _search_arrays
