"""Rows of a Dask array: every chunk stays with its worker, passes run there, and their small results add up in a tree.

The client receives only what the algebra of a fit needs, in NumPy: d x d once, D x L per pass. Sums follow the order of
the chunks, whichever worker holds them and whenever it is done, so a lost worker changes nothing: Dask computes its
chunks again elsewhere. Dask is imported only here, when it is used.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from scq_gpu._core.arrays import Array, device_of, from_host, namespace, on_device_of_arguments, small_dtype, to_host
from scq_gpu._core.bits import code_bytes
from scq_gpu._core.validate import check_array, check_dask_rows
from scq_gpu.kernels.encode import encode_engine
from scq_gpu.rows.basis import Basis, Moments
from scq_gpu.rows.blocks import Rows
from scq_gpu.rows.projected import Batch, ProjectedRows, SignStatistics, TrainingRows, UnprojectedRows
from scq_gpu.rows.sources.base import ArrayRows

PERSIST: Final = "scq-gpu.persist"
"""Dask configuration: whether projected rows stay in the workers' memory during a fit; True unless set."""

_FAN_IN = 8  # results added up by one task

Move = Callable[[np.ndarray], Array]
Sample = tuple[np.ndarray, bool]


class DaskRows:
    """Rows of a Dask array, whose passes run on Dask's workers: those of the current client, or local threads.

    Chunks are NumPy or CuPy arrays of known sizes; columns in several chunks are put into one. ``device`` must be None,
    as work is done where the chunks are.
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
        self.given: Any = X
        self.X: Any = X.rechunk({1: -1})
        self.shape: tuple[int, int] = tuple(self.X.shape)
        self.origin: Array = np.zeros((1, X.shape[1]), dtype=X.dtype)
        like = Rows(self.origin)
        self.xp, self.device, self.dtype, self.sum_dtype = like.xp, like.device, like.dtype, like.sum_dtype
        self.sample: Array = X._meta
        self.place: Array = X._meta
        self.firsts: list[int] = np.cumsum((0, *self.X.chunks[0][:-1])).tolist()
        self._moments: Moments | None = None

    def moments(self) -> Moments:
        """Run the moments pass once, one task per chunk. Reject NaN and inf, naming the first of a chunk."""
        if self._moments is None:
            self._moments = compute_sum(self.over_chunks(_chunk_moments), _sum)
        return self._moments

    def project(self, basis: Basis, *, few_passes: bool = False) -> TrainingRows:
        """Bring rows into the coordinates of a basis, kept by the workers unless Dask's configuration says not to."""
        import dask

        if dask.config.get(PERSIST, True):
            parts = list(dask.persist(*self.over_chunks(_project_chunk, basis, few_passes)))
        else:
            parts = self.over_chunks(_Unprojected, basis)
        return _ProjectedChunks(parts, self.firsts, self.shape, basis)

    def encode(self, W: Array, t: Array, *, precision: str = "exact", out: Array | None = None) -> Any:
        """Encode the rows as a Dask array of packed codes, computed when it is."""
        if out is not None:
            raise TypeError(
                "out cannot take codes that are yet to be computed; leave it away, and write them with "
                "dask.array.store(encoder.encode(X), out)"
            )
        if isinstance(self.sample, np.ndarray):
            encode_engine(self.sample, precision)
        like = np.zeros((1, code_bytes(W.shape[1])), dtype=np.uint8)
        return self._map_chunks(lambda rows, W, t: rows.encode(W, t, precision=precision), W, t, like=like)

    def map_scores(
        self, W: Array, t: Array, function: Callable[..., Array], *, to_origin: bool = False, wide: bool = False
    ) -> Any:
        """Return ``function(X @ W, t)``, which gives one row per row, as a Dask array, computed when it is."""
        like = function(np.zeros((2, W.shape[1]), dtype=self.dtype), t.astype(self.dtype))
        return self._map_chunks(lambda rows, W, t: rows.map_scores(W, t, function, wide=wide), W, t, like=like)

    def over_chunks(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call ``function(chunk, number of its first row, *arguments)`` of every chunk when it is computed."""
        return over_parts(function, self.X.to_delayed().ravel(), self.firsts, *arguments)

    def _map_chunks(self, run: Callable[..., Array], W: Array, t: Array, *, like: np.ndarray) -> Any:
        """Map ``run(rows, W, t)`` over the chunks as a Dask array, with the width and type of ``like``."""
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

    def __init__(
        self, parts: list[Any], firsts: list[int], shape: tuple[int, int], basis: Basis, batch: Batch | None = None
    ) -> None:
        self._parts, self.firsts, self._shape, self._basis, self._batch = parts, firsts, shape, basis, batch
        self.n = shape[0] if batch is None else batch.size(shape[0])

    def statistics(self, V: Array, *, slope: Array | None = None) -> SignStatistics:
        """Run one sign pass at V (R, D, L); see `TrainingRows.statistics`."""
        found = self._compute(_sign_part, _add_statistics, V, slope)
        return SignStatistics(*(x / self.n for x in found))

    def sample(self, numbers: np.ndarray) -> ProjectedRows | UnprojectedRows:
        """Bring the rows of these ascending numbers here, unprojected where those of an array would be."""
        # numbers count all rows, whichever the batch
        parts = over_parts(_run_on_part, self._parts, self.firsts, None, _sample_part, numbers, self._basis.P.shape[1])
        rows, projected = compute_sum(parts, _join_samples)
        return _projected([rows]) if projected else UnprojectedRows(Rows(rows), self._basis)

    def batches(self, count: int) -> list[Any]:
        """Split the rows into batches; those of a chunk stay with its worker."""
        given = (self._parts, self.firsts, self._shape, self._basis)
        return [_ProjectedChunks(*given, batch=Batch(number, count)) for number in range(count)]

    def project(self, axes: Array) -> ProjectedRows:
        """Bring the rows here, projected on axes (D, K)."""
        return _projected(self._compute(_project_part, _sum, axes))

    def _compute(self, run: Callable[..., Any], add: Callable[[list[Any]], Any], *arguments: Any) -> Any:
        return compute_sum(over_parts(_run_on_part, self._parts, self.firsts, self._batch, run, *arguments), add)


class _Unprojected(NamedTuple):
    """A chunk that is projected anew in each pass."""

    chunk: Array
    first: int
    basis: Basis


# ---- on the client ----


def over_parts(function: Callable[..., Any], parts: Sequence[Any], firsts: list[int], *arguments: Any) -> list[Any]:
    """Call ``function(part, number of its first row, *arguments)`` of every part when it is computed."""
    from dask import delayed

    task = delayed(function, pure=False)
    shared = [_shared(x) if isinstance(x, np.ndarray | Basis) else x for x in arguments]
    return [task(part, first, *shared) for part, first in zip(parts, firsts, strict=True)]


def compute_sum(parts: list[Any], add: Callable[[list[Any]], Any]) -> Any:
    """Add up all parts, of which those of empty chunks are None. Only the sum leaves the workers."""
    from dask import delayed

    task = delayed(_add_up, pure=False)
    while len(parts) > 1:
        parts = [task(parts[i : i + _FAN_IN], add) for i in range(0, len(parts), _FAN_IN)]
    return parts[0].compute()


def _shared(value: Any) -> Any:
    """Put a value for many tasks into the graph once; workers pass it on, also to one that replaces another."""
    from dask import delayed

    return delayed(value, traverse=False, pure=False)


# ---- on the workers ----


def _rows(chunk: Array, first: int) -> Rows:
    """Return the rows of a chunk that is not empty, named by their numbers in the whole."""
    return Rows(ArrayRows(_aligned(chunk), label="X", locate=lambda row: f"row {first + row}"))


def _on_device(basis: Basis, rows: Rows) -> Basis:
    arrays = (basis.mean, basis.P, basis.lam, basis.eigenvalues)
    mean, P, lam, eigenvalues = (from_host(x, xp=rows.xp, device=rows.device) for x in arrays)
    return Basis(mean, P, lam, basis.scale, eigenvalues)


def _aligned(x: Array) -> Array:
    """Align the elements of x in memory, as they may not be once they have been sent.

    NumPy multiplies unaligned elements several times slower, and with other rounding, so that results would depend on
    which worker holds a chunk.
    """
    return np.require(x, requirements="A") if isinstance(x, np.ndarray) else x


def _projected(blocks: list[Array], batch: Batch | None = None) -> ProjectedRows:
    blocks = [_aligned(Y) for Y in blocks]
    xp = namespace(blocks[0])
    return ProjectedRows(blocks, sum_dtype=small_dtype(xp=xp, device=device_of(blocks[0])), xp=xp, batch=batch)


@on_device_of_arguments
def _chunk_moments(chunk: Array, first: int) -> Moments | None:
    if not chunk.shape[0]:
        return None
    moments = _rows(chunk, first).moments()
    return Moments(moments.n, to_host(moments.mean), to_host(moments.scatter))


@on_device_of_arguments
def _project_chunk(chunk: Array, first: int, basis: Basis, few_passes: bool) -> list[Array] | _Unprojected:
    """Return blocks of projected rows, plain arrays, whose size Dask can see when it decides what to spill to disk.

    Rows stay as they are where projecting them costs more than it saves.
    """
    if not chunk.shape[0]:
        return []
    rows = _rows(chunk, first)
    projected = rows.project(_on_device(basis, rows), few_passes=few_passes)
    if not isinstance(projected, ProjectedRows):
        return _Unprojected(chunk, first, basis)
    if projected.gpu is not None:
        raise MemoryError(
            f"a chunk of {chunk.shape[0]} rows, projected, does not fit on its GPU; "
            f"take smaller chunks (X.rechunk), or set dask.config.set({{{PERSIST!r}: False}})"
        )
    return projected.kept


@on_device_of_arguments
def _run_on_part(
    part: list[Array] | _Unprojected, first: int, batch: Batch | None, run: Callable[..., Any], *arguments: Any
) -> Any:
    """Call ``run(rows, first, move, *arguments)`` for the rows of a part that are in a batch; None if there are none.

    ``move`` brings an array of the client to where the rows are.
    """
    height = part.chunk.shape[0] if isinstance(part, _Unprojected) else sum(Y.shape[0] for Y in part)
    mine = None if batch is None else replace(batch, start=first)
    if not height or (mine is not None and not mine.size(height)):
        return None
    training: ProjectedRows | UnprojectedRows
    if isinstance(part, _Unprojected):
        rows = _rows(part.chunk, part.first)
        training, like = UnprojectedRows(rows, _on_device(part.basis, rows), mine), rows.sample
    else:
        training, like = _projected(part, mine), part[0]
    return run(training, first, functools.partial(from_host, xp=namespace(like), device=device_of(like)), *arguments)


def _sign_part(rows: Any, first: int, move: Move, V: np.ndarray, slope: np.ndarray | None) -> SignStatistics:
    """Return the statistics of a part, times its number of rows."""
    means = rows.statistics(move(V), slope=None if slope is None else move(slope))
    return SignStatistics(*(to_host(x) * rows.n for x in means))


def _project_part(rows: Any, first: int, move: Move, axes: np.ndarray) -> list[np.ndarray]:
    """Return the rows of a part on the host, projected on axes."""
    return [to_host(Y) for Y in rows.project(move(axes)).kept]


def _sample_part(rows: Any, first: int, move: Move, numbers: np.ndarray, n_axes: int) -> Sample | None:
    """Return a sample of a part, whose first row has the number ``first``, and whether it is projected."""
    start, end = np.searchsorted(numbers, (first, first + rows.n))
    if start == end:
        return None
    sample = rows.sample(numbers[start:end] - first)
    if isinstance(sample, UnprojectedRows) and sample.stays_so:
        return np.concatenate([to_host(X) for X in sample.blocks()]), False
    if isinstance(sample, UnprojectedRows):
        sample = sample.project(move(np.eye(n_axes)))
    return np.concatenate([to_host(Y) for Y in sample.kept]), True


def _join_samples(samples: list[Sample]) -> Sample:
    # parts are all projected, or none is
    return np.concatenate([rows for rows, _ in samples]), samples[0][1]


def _add_up(parts: list[Any], add: Callable[[list[Any]], Any]) -> Any:
    parts = [part for part in parts if part is not None]
    return add(parts) if parts else None


def _sum(parts: list[Any]) -> Any:
    return functools.reduce(operator.add, parts)


def _add_statistics(parts: list[SignStatistics]) -> SignStatistics:
    return SignStatistics(*(np.sum(x, axis=0) for x in zip(*parts, strict=True)))


@on_device_of_arguments
def _run_on_chunk(
    chunk: Array, *, run: Callable[..., Array], linear_map: tuple[np.ndarray, np.ndarray], block_info: Any = None
) -> Array:
    """Call ``run(rows, W, t)`` on a chunk, in its namespace; a row of zeros stands in for an empty chunk."""
    first = block_info[0]["array-location"][0][0]
    xp = namespace(chunk)
    full = chunk if chunk.shape[0] else xp.zeros((1, chunk.shape[1]), dtype=chunk.dtype, device=device_of(chunk))
    rows = _rows(full, first)
    result = run(rows, *(from_host(x, xp=rows.xp, device=rows.device) for x in linear_map))
    return result[: chunk.shape[0], :]
