"""Rows of a Dask array: every chunk stays with its worker, passes run there, and their small results add up in a tree.

What reaches the client is what the algebra of a fit needs, in NumPy: d x d once, D x L a pass. The order of a sum is
that of the chunks, whichever worker holds them and whenever it is done, so a worker that is lost changes nothing: Dask
computes its chunks again elsewhere. Dask is imported only here, when it is used.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final, NamedTuple

import numpy as np

from scq_gpu._validate import check_array, check_dask_rows
from scq_gpu._xp import Array, Device, compute_dtype, device_of, from_host, namespace, small_dtype, to_host
from scq_gpu.basis import Basis, Moments
from scq_gpu.codes import code_bytes, has_kernel
from scq_gpu.rows import ProjectedRows, RereadRows, Rows, SignStatistics
from scq_gpu.sources import ArrayRows

PERSIST: Final = "scq-gpu.persist"
"""Dask configuration: whether projected rows stay in the workers' memory during a fit; True unless set."""

_FAN_IN = 8  # results added up by one task


def is_dask(X: object) -> bool:
    """Whether X is a Dask collection, asked without importing Dask."""
    return hasattr(X, "__dask_graph__")


class DaskRows(Rows):
    """Rows of a Dask array, whose passes run on Dask's workers: those of the current client, or local threads.

    Parameters
    ----------
    X : dask.array.Array (n, d)
        With chunks of NumPy or CuPy arrays of known sizes; columns in several chunks are put into one.
    device : None
        Work is done where the chunks are.
    min_rows : int
    """

    X: Any

    def __init__(self, X: Any, *, device: str | None, min_rows: int = 1) -> None:
        import dask.array

        if not isinstance(X, dask.array.Array):
            raise TypeError(
                f"X is a Dask collection of type {type(X).__name__}; pass a dask.array.Array, "
                "such as frame.to_dask_array(lengths=True)"
            )
        check_dask_rows(X, device=device, min_rows=min_rows)
        check_array(X._meta, name="X", min_ndim=2)  # the type of its chunks
        self.X = X.rechunk({1: -1})
        self.home: Array = np.zeros((1, X.shape[1]), dtype=X.dtype)
        self.xp: ModuleType = namespace(self.home)
        self.device: Device = device_of(self.home)
        self.dtype: Any = compute_dtype(self.home.dtype, xp=self.xp, device=self.device)
        self.small: Any = small_dtype(xp=self.xp, device=self.device)
        sizes = self.X.chunks[0]
        self._firsts = np.cumsum((0, *sizes[:-1])).tolist()

    def moments(self) -> Moments:
        """The moments pass, one task a chunk. Refuses NaN and inf, naming the first of a chunk."""
        add = functools.partial(functools.reduce, operator.add)
        moments: Moments = _compute(self._over_chunks(_chunk_moments), add)
        return moments

    def project(self, basis: Basis) -> ProjectedRows:
        """Rows in the coordinates of a basis, kept by the workers unless Dask's configuration has it otherwise."""
        import dask

        shared = _shared(basis)
        if not dask.config.get(PERSIST, True):
            parts = self._over_chunks(_Reread, shared)
        else:
            parts = list(dask.persist(*self._over_chunks(_project_chunk, shared)))
        return _ProjectedChunks(parts, firsts=self._firsts, n=self.shape[0])

    def encode(self, W: Array, t: Array, *, precision: str, out: Array | None = None) -> Any:
        """Packed codes as a Dask array, computed when it is."""
        if out is not None:
            raise TypeError(
                "out cannot take codes that are yet to be computed; leave it away, and write them with "
                "dask.array.store(encoder.encode(X), out)"
            )
        if isinstance(self.X._meta, np.ndarray):
            has_kernel(self.X._meta, precision)  # none has, but it says so now rather than on a worker
        return self._map_chunks(
            lambda rows, W, t: rows.encode(W, t, precision=precision),
            W,
            t,
            width=code_bytes(W.shape[1]),
            dtype=np.dtype(np.uint8),
        )

    def map_scores(self, W: Array, t: Array, function: Callable[[Array, Array], Array]) -> Any:
        """``function(X @ W, t)``, which must give a row for a row, as a Dask array, computed when it is."""
        like = function(np.zeros((2, W.shape[1]), dtype=self.dtype), t.astype(self.dtype))
        if like.ndim != 2 or like.shape[0] != 2:
            raise _unsupported()
        return self._map_chunks(
            lambda rows, W, t: rows.map_scores(W, t, function), W, t, width=like.shape[1], dtype=like.dtype
        )

    def _stored_blocks(self, size: int | None = None) -> Any:
        raise _unsupported()

    def _over_chunks(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """``function(chunk, number of its first row, *arguments)`` of every chunk, to be computed."""
        from dask import delayed

        task = delayed(function, pure=False)
        chunks = self.X.to_delayed().ravel()
        return [task(chunk, first, *arguments) for chunk, first in zip(chunks, self._firsts, strict=True)]

    def _map_chunks(self, run: Callable[..., Array], W: Array, t: Array, *, width: int, dtype: np.dtype) -> Any:
        from dask.array.utils import meta_from_array

        return self.X.map_blocks(
            _run_on_chunk,
            run=run,
            linear_map=_shared((W, t)),
            dtype=dtype,
            chunks=(self.X.chunks[0], (width,)),
            meta=meta_from_array(self.X._meta, ndim=2, dtype=dtype),
        )


class _ProjectedChunks(ProjectedRows):
    """Projected rows of chunks, each to be computed, or kept by a worker."""

    def __init__(self, parts: list[Any], *, firsts: list[int], n: int) -> None:
        self._parts = parts
        self._firsts = firsts
        self._n = n

    @property
    def n(self) -> int:
        """How many rows."""
        return self._n

    def statistics(self, V: Array, *, gain: np.ndarray | None = None) -> SignStatistics:
        """As for rows in memory."""
        from dask import delayed

        task, shared = delayed(_chunk_signs, pure=False), _shared((V, gain))
        sums = _compute([task(part, shared) for part in self._parts], _add_statistics)
        return SignStatistics(*(x / self._n for x in sums))

    def sample(self, places: np.ndarray) -> ProjectedRows:
        """The rows at sorted places, brought here."""
        from dask import delayed

        task, shared = delayed(_chunk_sample, pure=False), _shared(places)
        taken = _compute(
            [task(part, first, shared) for part, first in zip(self._parts, self._firsts, strict=True)], np.concatenate
        )
        xp = namespace(taken)
        return ProjectedRows([taken], small=small_dtype(xp=xp, device=device_of(taken)), xp=xp)


class _Reread(NamedTuple):
    """A chunk that is projected anew in each pass."""

    chunk: Array
    first: int
    basis: Basis


# ---- on the client ----


def _compute(parts: list[Any], add: Callable[[list[Any]], Any]) -> Any:
    """What all parts add up to; those of empty chunks are None. Only the sum leaves the workers."""
    from dask import delayed

    task = delayed(functools.partial(_add_up, add=add), pure=False)
    while len(parts) > 1:
        parts = [task(parts[i : i + _FAN_IN]) for i in range(0, len(parts), _FAN_IN)]
    return parts[0].compute()


def _shared(value: Any) -> Any:
    """A value for many tasks, in the graph once: workers pass it on, and one that replaces another can have it too."""
    from dask import delayed

    return delayed(value, traverse=False, pure=False)


def _unsupported() -> TypeError:
    return TypeError(
        "X is a Dask array, whose rows stay with their workers; this encoder has to go through them here. Fit OnE or "
        "OgE, or fit on a part that fits in memory, such as X[:100_000].compute()"
    )


# ---- on the workers ----


def _rows(chunk: Array, first: int) -> Rows:
    """The rows of a chunk that is not empty, named by their place in the whole."""
    return Rows(ArrayRows(chunk, label="X", locate=lambda row: f"row {first + row}"))


def _on_device(basis: Basis, rows: Rows) -> Basis:
    mean, P, lam = (from_host(x, xp=rows.xp, device=rows.device) for x in (basis.mean, basis.P, basis.lam))
    return Basis(mean, P, lam, basis.scale)


def _chunk_moments(chunk: Array, first: int) -> Moments | None:
    if not chunk.shape[0]:
        return None
    moments = _rows(chunk, first).moments()
    return Moments(moments.n, to_host(moments.mean), to_host(moments.scatter))


def _project_chunk(chunk: Array, first: int, basis: Basis) -> list[Array] | _Reread:
    """Blocks of projected rows, plain arrays, whose size Dask can see when it decides what to write to disk.

    Rows that are dear to project stay as they are.
    """
    if not chunk.shape[0]:
        return []
    rows = _rows(chunk, first)
    projected = rows.project(_on_device(basis, rows))
    if isinstance(projected, RereadRows):
        return _Reread(chunk, first, basis)
    if projected._gpu is not None:
        raise MemoryError(
            f"a chunk of {chunk.shape[0]} rows, projected, does not fit on its GPU; "
            f"take smaller chunks (X.rechunk), or set dask.config.set({{{PERSIST!r}: False}})"
        )
    return projected._blocks


def _projected(part: Sequence[Array] | _Reread) -> tuple[ProjectedRows, Array] | None:
    """The rows of a part and an array of their kind; None if there are none."""
    if isinstance(part, _Reread):
        if not part.chunk.shape[0]:
            return None
        rows = _rows(part.chunk, part.first)
        return RereadRows(rows, _on_device(part.basis, rows)), rows._sample
    if not part:
        return None
    xp = namespace(part[0])
    return ProjectedRows(list(part), small=small_dtype(xp=xp, device=device_of(part[0])), xp=xp), part[0]


def _chunk_signs(part: Sequence[Array] | _Reread, at: tuple[np.ndarray, np.ndarray | None]) -> SignStatistics | None:
    """The statistics of a part, times its number of rows."""
    found = _projected(part)
    if found is None:
        return None
    projected, like = found
    V, gain = at
    means = projected.statistics(from_host(V, xp=namespace(like), device=device_of(like)), gain=gain)
    return SignStatistics(*(to_host(x) * projected.n for x in means))


def _chunk_sample(part: Sequence[Array] | _Reread, first: int, places: np.ndarray) -> np.ndarray | None:
    """The rows of a part, the first of which is number ``first``, at sorted places of the whole."""
    found = _projected(part)
    if found is None:
        return None
    start, end = np.searchsorted(places, (first, first + found[0].n))
    if start == end:
        return None
    return np.concatenate([to_host(Y) for Y in found[0].sample(places[start:end] - first).kept()._blocks])


def _add_up(parts: list[Any], *, add: Callable[[list[Any]], Any]) -> Any:
    parts = [part for part in parts if part is not None]
    return add(parts) if parts else None


def _add_statistics(parts: list[SignStatistics]) -> SignStatistics:
    return SignStatistics(*(np.sum(x, axis=0) for x in zip(*parts, strict=True)))


def _run_on_chunk(
    chunk: Array,
    *,
    run: Callable[[Rows, Array, Array], Array],
    linear_map: tuple[np.ndarray, np.ndarray],
    block_info: Any = None,
) -> Array:
    """``run(rows, W, t)`` on a chunk, in its namespace; what an empty chunk gives is learned from a row of zeros."""
    first = block_info[0]["array-location"][0][0]
    xp = namespace(chunk)
    full = chunk if chunk.shape[0] else xp.zeros((1, chunk.shape[1]), dtype=chunk.dtype, device=device_of(chunk))
    rows = _rows(full, first)
    result = run(rows, *(from_host(x, xp=rows.xp, device=rows.device) for x in linear_map))
    return result[: chunk.shape[0], :]
