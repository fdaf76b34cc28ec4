"""Rows of a Dask array: every chunk stays with its worker, passes run there, and their small results add up in a tree.

What reaches the client is what the algebra of a fit needs, in NumPy: d x d once, D x L per pass. The order of a sum is
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

from scq_gpu._core.arrays import Array, Device, compute_dtype, device_of, from_host, namespace, small_dtype, to_host
from scq_gpu._core.bits import code_bytes
from scq_gpu._core.devices import on_device_of_arguments
from scq_gpu._core.validate import check_array, check_dask_rows
from scq_gpu.rows.basis import Basis, Moments
from scq_gpu.rows.passes import (
    MANY_PASSES,
    EncodeBlock,
    ProjectedRows,
    Rows,
    SignStatistics,
    TrainingRows,
    UnprojectedRows,
)
from scq_gpu.rows.sources.base import ArrayRows

PERSIST: Final = "scq-gpu.persist"
"""Dask configuration: whether projected rows stay in the workers' memory during a fit; True unless set."""

_FAN_IN = 8  # results added up by one task


def is_dask(X: object) -> bool:
    """Whether X is a Dask collection, asked without importing Dask."""
    return hasattr(X, "__dask_graph__")


class DaskRows:
    """Rows of a Dask array, whose passes run on Dask's workers: those of the current client, or local threads.

    Parameters
    ----------
    X : dask.array.Array (n, d)
        With chunks of NumPy or CuPy arrays of known sizes; columns in several chunks are put into one.
    device : None
        Work is done where the chunks are.
    min_rows : int
    """

    def __init__(self, X: Any, *, device: str | None, min_rows: int = 1) -> None:
        import dask.array

        if not isinstance(X, dask.array.Array):
            raise TypeError(
                f"X is a Dask collection of type {type(X).__name__}; pass a dask.array.Array, "
                "such as frame.to_dask_array(lengths=True)"
            )
        check_dask_rows(X, device=device, min_rows=min_rows)
        check_array(X._meta, name="X", min_ndim=2)  # the type of its chunks
        self.X: Any = X.rechunk({1: -1})
        self.shape: tuple[int, int] = tuple(self.X.shape)
        self.origin: Array = np.zeros((1, X.shape[1]), dtype=X.dtype)
        self.xp: ModuleType = namespace(self.origin)
        self.device: Device = device_of(self.origin)
        self.dtype: Any = compute_dtype(self.origin.dtype, xp=self.xp, device=self.device)
        self.sum_dtype: Any = small_dtype(xp=self.xp, device=self.device)
        self.sample: Array = X._meta
        self._firsts: list[int] = np.cumsum((0, *self.X.chunks[0][:-1])).tolist()

    def moments(self) -> Moments:
        """The moments pass, one task per chunk. Refuses NaN and inf, naming the first of a chunk."""
        add = functools.partial(functools.reduce, operator.add)
        moments: Moments = _compute(self._over_chunks(_chunk_moments), add)
        return moments

    def project(self, basis: Basis, *, passes: int = MANY_PASSES) -> TrainingRows:
        """Rows in the coordinates of a basis, kept by the workers unless Dask's configuration has it otherwise."""
        import dask

        if dask.config.get(PERSIST, True):
            parts = list(dask.persist(*self._over_chunks(_project_chunk, basis, passes)))
        else:
            parts = self._over_chunks(_Unprojected, basis)
        return _ProjectedChunks(parts, self._firsts, self.shape[0], basis)

    def encode(self, W: Array, t: Array, encode: EncodeBlock, *, out: Array | None = None) -> Any:
        """Packed codes as a Dask array, computed when it is."""
        if out is not None:
            raise TypeError(
                "out cannot take codes that are yet to be computed; leave it away, and write them with "
                "dask.array.store(encoder.encode(X), out)"
            )
        like = np.zeros((1, code_bytes(W.shape[1])), dtype=np.uint8)
        return self._map_chunks(lambda rows, W, t: rows.encode(W, t, encode), W, t, like=like)

    def map_scores(
        self,
        W: Array,
        t: Array,
        function: Callable[[Array, Array], Array],
        *,
        to_origin: bool = False,
        wide: bool = False,
    ) -> Any:
        """``function(X @ W, t)``, which must give one row per row, as a Dask array, computed when it is."""
        like = function(np.zeros((2, W.shape[1]), dtype=self.dtype), t.astype(self.dtype))
        if like.ndim != 2 or like.shape[0] != 2:
            raise _unsupported()
        return self._map_chunks(lambda rows, W, t: rows.map_scores(W, t, function, wide=wide), W, t, like=like)

    def blocks(self, size: int | None = None) -> Any:
        """Refused: rows stay with their workers."""
        raise _unsupported()

    def map_blocks(
        self,
        score: Callable[[Array], Array],
        function: Callable[[Array], Array],
        *,
        where: str,
        to_origin: bool = False,
    ) -> Any:
        """Refused: rows stay with their workers."""
        raise _unsupported()

    def _over_chunks(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        return _over(function, self.X.to_delayed().ravel(), self._firsts, *arguments)

    def _map_chunks(self, run: Callable[..., Array], W: Array, t: Array, *, like: np.ndarray) -> Any:
        """``run(rows, W, t)`` of every chunk as a Dask array, with the width and type of ``like``."""
        from dask.array.utils import meta_from_array

        return self.X.map_blocks(
            _run_on_chunk,
            run=run,
            linear_map=_shared((W, t)),
            dtype=like.dtype,
            chunks=(self.X.chunks[0], (like.shape[1],)),
            meta=meta_from_array(self.X._meta, ndim=2, dtype=like.dtype),
        )


class _ProjectedChunks:
    """Projected rows of chunks, each to be computed, or kept by a worker."""

    def __init__(self, parts: list[Any], firsts: list[int], n: int, basis: Basis) -> None:
        self._parts, self._firsts, self.n, self._basis = parts, firsts, n, basis

    def statistics(self, V: Array) -> SignStatistics:
        """One sign pass at V (R, D, L), for every problem of the batch."""
        sums = _compute(_over(_chunk_signs, self._parts, self._firsts, V), _add_statistics)
        return SignStatistics(*(x / self.n for x in sums))

    def sample(self, numbers: np.ndarray) -> ProjectedRows | UnprojectedRows:
        """The rows of these ascending numbers, brought here; unprojected where those of an array would be."""
        found = _compute(_over(_chunk_sample, self._parts, self._firsts, numbers), _join_samples)
        return _projected([found.rows]) if found.projected else UnprojectedRows(Rows(found.rows), self._basis)

    def parts(self, count: int) -> list[ProjectedRows | UnprojectedRows]:
        """None: parts of the rows are not brought here."""
        return []


class _Unprojected(NamedTuple):
    """A chunk that is projected anew in each pass."""

    chunk: Array
    first: int
    basis: Basis


# ---- on the client ----


def _over(function: Callable[..., Any], parts: Sequence[Any], firsts: list[int], *arguments: Any) -> list[Any]:
    """``function(part, number of its first row, *arguments)`` of every part, to be computed."""
    from dask import delayed

    task, shared = delayed(function, pure=False), [_shared(x) for x in arguments]
    return [task(part, first, *shared) for part, first in zip(parts, firsts, strict=True)]


def _compute(parts: list[Any], add: Callable[[list[Any]], Any]) -> Any:
    """What all parts add up to; those of empty chunks are None. Only the sum leaves the workers."""
    from dask import delayed

    task = delayed(_add_up, pure=False)
    while len(parts) > 1:
        parts = [task(parts[i : i + _FAN_IN], add) for i in range(0, len(parts), _FAN_IN)]
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
    """The rows of a chunk that is not empty, named by their numbers in the whole."""
    return Rows(ArrayRows(_aligned(chunk), label="X", locate=lambda row: f"row {first + row}"))


def _on_device(basis: Basis, rows: Rows) -> Basis:
    arrays = (basis.mean, basis.P, basis.lam, basis.eigenvalues)
    mean, P, lam, eigenvalues = (from_host(x, xp=rows.xp, device=rows.device) for x in arrays)
    return Basis(mean, P, lam, basis.scale, eigenvalues)


def _aligned(x: Array) -> Array:
    """x with its elements aligned in memory, as they may not be once they have been sent.

    NumPy multiplies others another way: several times slower, and with other rounding, so that results would depend
    on which worker holds a chunk.
    """
    return np.require(x, requirements="A") if isinstance(x, np.ndarray) else x


def _projected(blocks: list[Array]) -> ProjectedRows:
    blocks = [_aligned(Y) for Y in blocks]
    xp = namespace(blocks[0])
    return ProjectedRows(blocks, sum_dtype=small_dtype(xp=xp, device=device_of(blocks[0])), xp=xp)


@on_device_of_arguments
def _chunk_moments(chunk: Array, first: int) -> Moments | None:
    if not chunk.shape[0]:
        return None
    moments = _rows(chunk, first).moments()
    return Moments(moments.n, to_host(moments.mean), to_host(moments.scatter))


@on_device_of_arguments
def _project_chunk(chunk: Array, first: int, basis: Basis, passes: int) -> list[Array] | _Unprojected:
    """Blocks of projected rows, plain arrays, whose size Dask can see when it decides what to write to disk.

    Rows stay as they are where projecting them costs more than it saves.
    """
    if not chunk.shape[0]:
        return []
    rows = _rows(chunk, first)
    projected = rows.project(_on_device(basis, rows), passes=passes)
    if not isinstance(projected, ProjectedRows):
        return _Unprojected(chunk, first, basis)
    if projected.gpu is not None:
        raise MemoryError(
            f"a chunk of {chunk.shape[0]} rows, projected, does not fit on its GPU; "
            f"take smaller chunks (X.rechunk), or set dask.config.set({{{PERSIST!r}: False}})"
        )
    return projected.kept


def _training_rows(part: list[Array] | _Unprojected) -> tuple[ProjectedRows | UnprojectedRows, Array] | None:
    """The rows of a part and an array of their kind; None if there are none."""
    if not isinstance(part, _Unprojected):
        return (_projected(part), part[0]) if part else None
    if not part.chunk.shape[0]:
        return None
    rows = _rows(part.chunk, part.first)
    return UnprojectedRows(rows, _on_device(part.basis, rows)), rows.sample


@on_device_of_arguments
def _chunk_signs(part: list[Array] | _Unprojected, first: int, V: np.ndarray) -> SignStatistics | None:
    """The statistics of a part, times its number of rows."""
    if (found := _training_rows(part)) is None:
        return None
    rows, like = found
    means = rows.statistics(from_host(V, xp=namespace(like), device=device_of(like)))
    return SignStatistics(*(to_host(x) * rows.n for x in means))


class _Sample(NamedTuple):
    """Rows of parts, on the host."""

    rows: np.ndarray
    projected: bool


def _join_samples(samples: list[_Sample]) -> _Sample:
    return _Sample(np.concatenate([sample.rows for sample in samples]), samples[0].projected)


@on_device_of_arguments
def _chunk_sample(part: list[Array] | _Unprojected, first: int, numbers: np.ndarray) -> _Sample | None:
    """Rows of a part, the first of which has the number ``first``; of every part alike projected or as they are."""
    if (found := _training_rows(part)) is None:
        return None
    rows, like = found
    start, end = np.searchsorted(numbers, (first, first + rows.n))
    if start == end:
        return None
    sample = rows.sample(numbers[start:end] - first)
    if isinstance(sample, UnprojectedRows) and sample.stays_so:
        return _Sample(np.concatenate([to_host(X) for X in sample.blocks()]), projected=False)
    if isinstance(sample, UnprojectedRows):
        axes = np.eye(part.basis.P.shape[1])  # type: ignore[union-attr]
        sample = sample.project(from_host(axes, xp=namespace(like), device=device_of(like)))
    return _Sample(np.concatenate([to_host(Y) for Y in sample.kept]), projected=True)


def _add_up(parts: list[Any], add: Callable[[list[Any]], Any]) -> Any:
    parts = [part for part in parts if part is not None]
    return add(parts) if parts else None


def _add_statistics(parts: list[SignStatistics]) -> SignStatistics:
    return SignStatistics(*(np.sum(x, axis=0) for x in zip(*parts, strict=True)))


@on_device_of_arguments
def _run_on_chunk(
    chunk: Array, *, run: Callable[..., Array], linear_map: tuple[np.ndarray, np.ndarray], block_info: Any = None
) -> Array:
    """``run(rows, W, t)`` on a chunk, in its namespace; what an empty chunk gives is learned from a row of zeros."""
    first = block_info[0]["array-location"][0][0]
    xp = namespace(chunk)
    full = chunk if chunk.shape[0] else xp.zeros((1, chunk.shape[1]), dtype=chunk.dtype, device=device_of(chunk))
    rows = _rows(full, first)
    result = run(rows, *(from_host(x, xp=rows.xp, device=rows.device) for x in linear_map))
    return result[: chunk.shape[0], :]
