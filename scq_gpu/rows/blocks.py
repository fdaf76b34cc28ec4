"""Rows in blocks, and the passes over them.

A pass goes through the rows in blocks that stay in cache and leaves a small result that adds up over blocks. `Rows`
holds arrays and files. `scq_gpu.rows.distributed` does the same for Dask arrays.
"""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from scq_gpu._core.arrays import (
    Array,
    CudaDevice,
    Device,
    block_bytes,
    compute_dtype,
    cuda_device_of,
    device_of,
    from_host,
    is_array,
    is_dask,
    namespace,
    on_device_of,
    quiet_floats,
    row_slices,
    shared_with_cupy,
    small_dtype,
    to_device,
    to_host,
)
from scq_gpu._core.bits import code_bytes
from scq_gpu._core.machine import KEPT_BYTES, available_bytes, ordered_map, worth_keeping
from scq_gpu._core.validate import check_array, check_linear_map, check_out, check_row_count
from scq_gpu.kernels.encode import encode_engine, encode_rows, lay_out
from scq_gpu.rows.basis import Basis, Moments
from scq_gpu.rows.projected import ProjectedRows, TrainingRows, UnprojectedRows
from scq_gpu.rows.sources import open_rows
from scq_gpu.rows.sources.base import ArrayRows, JoinedRows, RowSource, read_ahead
from scq_gpu.rows.stream import fits, keep_rows, stream_rows


def as_rows(X: Any, *, device: str | None, min_rows: int = 1) -> Rows:
    """Convert user input to rows, checked, whose passes run on ``device`` (None follows X).

    X is an array, a source, a path (`scq_gpu.io.open_rows`), or a list of any. Rows are returned unchanged.
    """
    if isinstance(X, Rows):
        return X
    if _is_path(X) or (isinstance(X, list | tuple) and X and all(map(_is_path, X))):
        X = open_rows(X)
    if is_dask(X):
        raise TypeError(
            "X is a Dask array, whose rows stay with their workers, and all of them have to be read here. Only OnE and "
            "OgE learn on workers; for others pass a part that fits in memory, such as X[:100_000].compute()"
        )
    given = None if isinstance(X, list | tuple) else X
    X = join_parts(X)
    if not isinstance(X, RowSource):
        X = check_array(X, name="X", min_ndim=2)
    check_row_count(X.shape, min_rows=min_rows)
    return Rows(X, device=device, given=given)


def _is_path(X: Any) -> bool:
    return isinstance(X, str | os.PathLike)


def join_parts(X: Any) -> Any:
    """Join a list of arrays or sources into one source; leave any other X as it is, a list of rows included."""
    if not isinstance(X, list | tuple) or not any(
        isinstance(part, RowSource) or (is_array(part) and part.ndim == 2) for part in X
    ):
        return X
    parts: list[RowSource] = []
    for number, part in enumerate(X):
        label = f"X[{number}]"
        if isinstance(part, RowSource):
            parts.append(part)
            continue
        if is_dask(part):
            raise TypeError(f"{label} is a Dask array; join them with dask.array.concatenate, and pass the one array")
        array = check_array(part, name=label, min_ndim=2)
        if array.ndim != 2:
            raise ValueError(f"{label} must have 2 dimensions (rows, features), got {array.ndim}")
        parts.append(ArrayRows(array, label=label))
    return JoinedRows(parts)


class Rows:
    """Rows of an array or a source, handed out in blocks on the device and in the float type of the work.

    Rows are converted block by block; X itself is never copied as a whole. The next blocks of a file are read while one
    is worked on. Rows in host memory go through a GPU in two buffers, one filled while the other is worked on. Where
    the GPU has room for them and for as many projected ones, the moments pass leaves them there for the next.

    The work follows X if ``device`` is None. ``given`` is what the user passed, from which scikit-learn reads column
    names; X by default.
    """

    encode_bytes = 16 << 20  # of a piece of a file, at least, on the CPU: threads are started for each

    def __init__(self, X: Array | RowSource, *, device: str | None = None, given: Any = None) -> None:
        self.X: Any = X
        self.shape: tuple[int, int] = tuple(X.shape)
        self.given: Any = X if given is None else given
        self._device = device
        self.origin: Array = X.sample() if isinstance(X, RowSource) else X[: min(1, X.shape[0]), :]
        """A row in the namespace and on the device that X came from and results go to."""
        self.in_memory: bool = not isinstance(X, RowSource) or X.in_memory
        # torch's own CUDA tensors are worked on by CuPy, in the same memory
        self.X = X = X if isinstance(X, RowSource) else shared_with_cupy(X)
        self.place: Array = to_device(self.origin, device)
        """A row where the work is, in the library that results come in."""
        sample = shared_with_cupy(self.place)
        self.xp: ModuleType = namespace(sample)
        self.device: Device = device_of(sample)
        self.dtype: Any = compute_dtype(sample.dtype, xp=self.xp, device=self.device)
        self.sum_dtype: Any = small_dtype(xp=self.xp, device=self.device)
        self.sample: Array = sample
        self.gpu: CudaDevice | None = cuda_device_of(sample)
        self.on_host: bool = isinstance(sample, np.ndarray)  # NumPy does the work
        self._streams: bool = self.gpu is not None and isinstance(self.origin, np.ndarray)
        self._same_type: bool = bool(sample.dtype == self.dtype)
        # blocks of X are views, already on the device and in the float type of the work
        self.in_place: bool = self.in_memory and not self._streams and self._same_type
        self._row_bytes: int = X.shape[1] * self.xp.finfo(self.dtype).bits // 8
        self._held: list[Array] | None = None  # all blocks of X, on the device
        self._moments: Moments | None = X.known_moments if isinstance(X, RowSource) else None

    @functools.cached_property
    def block_rows(self) -> int:
        """Return the height of a block: on a GPU, one of which eight have room, for buffers, copies and products."""
        height = max(128, block_bytes(self.sample) // self._row_bytes)
        if self.gpu is not None:
            while height > 128 and not self.gpu.grants(8 * min(height, self.shape[0]) * self._row_bytes):
                height = max(128, min(height, self.shape[0]) // 2)
        return height

    def blocks(self, size: int | None = None) -> Iterator[Array]:
        """Yield the rows, ``size`` at a time, ready for products; a block may be overwritten by the one after next."""
        return (self.xp.astype(X, self.dtype, copy=False) for X in self._stored_blocks(size))

    def _stored_blocks(self, size: int | None = None) -> Iterator[Array]:
        """Yield the rows on the device in the type they are stored in."""
        size = size or self.block_rows
        if self._held is not None and size == self.block_rows:
            return iter(self._held)
        if self.gpu is not None and self._streams:
            return stream_rows(self._blocks_at_origin(size), self.gpu)
        return (shared_with_cupy(to_device(X, self._device)) for X in self._blocks_at_origin(size))

    def _blocks_at_origin(self, size: int) -> Iterator[Array]:
        """Yield the rows where they came from, in the type they are stored in."""
        if isinstance(self.X, RowSource):
            return self.X.blocks(size) if self.in_memory else read_ahead(self.X.blocks(size))
        return (self.X[part, :] for part in row_slices(self.shape[0], size))

    def map(self, function: Callable[[Array], Any], blocks: Iterable[Array]) -> Iterator[Any]:
        """Call ``function`` with every block and yield its results in order, on several threads where NumPy works."""
        return ordered_map(function, blocks) if self.on_host else map(function, blocks)

    # ---- training ----

    def moments(self) -> Moments:
        """Run the moments pass, once. Reject NaN and inf, naming the first."""
        if self._moments is not None:
            return self._moments
        if self.gpu is not None and self._streams and fits(2 * self._bytes(*self.shape), self.gpu):
            blocks = self._held_blocks(self.gpu)
        else:
            blocks = self.blocks(self._tall_rows)
        measure = functools.partial(Moments.of_block, dtype=self.sum_dtype, xp=self.xp)
        # no warnings: the result is checked instead
        with quiet_floats():
            moments: Moments = functools.reduce(operator.add, self.map(measure, blocks))
        if not bool(self.xp.all(self.xp.isfinite(moments.scatter))):
            raise self.nonfinite("the covariance of X")
        self._moments = moments
        return moments

    @property
    def _tall_rows(self) -> int:
        """Return the height of the blocks of the moments pass.

        Each adds a d x d matrix to the sum, so they are taller than elsewhere: up to 4 d rows or 64 MiB. A product of
        2^32 multiplications is as long as an interrupt should have to wait for.
        """
        if self.gpu is not None:
            return self.block_rows
        d = self.shape[1]
        return min(max(256, 2**32 // d**2), max(self.block_rows, min(4 * d, (64 << 20) // self._row_bytes)))

    def _held_blocks(self, gpu: CudaDevice) -> Iterator[Array]:
        """Yield the rows from host memory, ready for products; once all have gone by they stay on the device."""
        held = []
        for X in stream_rows(self._blocks_at_origin(self.block_rows), gpu, stay=True):
            held.append(X)
            yield self.xp.astype(X, self.dtype, copy=False)
        self._held = held

    def project(self, basis: Basis, *, few_passes: bool = False) -> TrainingRows:
        """Bring the rows into the coordinates of a basis, for training that takes many passes or ``few_passes``.

        Projected rows are kept, the one copy that training makes. They stay where the work is, unless that is a GPU
        with too little memory; then they wait in host memory. Rows of files are kept only where that takes little
        memory (`scq_gpu._core.machine.worth_keeping`) and are read again in each pass otherwise. Where it is faster
        (`stay_as_they_are`), rows are not projected; those of files are kept so, which gives them the same sums.
        """
        (n, d), D = self.shape, basis.P.shape[1]
        as_they_are = self._same_type and self.stay_as_they_are(D, few_passes=few_passes)
        n_bytes = self._bytes(n, d if as_they_are else D)
        on_device = self.gpu is not None and self.fit_on_device(n, D)
        if not self.in_memory and not on_device and not worth_keeping(n_bytes):
            return UnprojectedRows(self, basis)
        if as_they_are and (self.in_place or self.on_host):
            return UnprojectedRows(self if self.in_memory else self.gathered(self.blocks(), n), basis)
        available = available_bytes() if self.gpu is not None or str(self.device) == "cpu" else None
        if not on_device and available is not None and n_bytes > available:
            raise MemoryError(
                f"training keeps the rows projected, {n:,} x {D:,} {self.dtype}: {n_bytes / 1e9:.2f} GB, and "
                f"{available / 1e9:.2f} GB are available. Fit from a file, which keeps no copy (scq_gpu.io.open_rows); "
                f"or pass float32 features, or fewer n_components (now {D})"
            )
        projected = self.kept(self.projected_blocks(self.blocks(), basis, basis.P * basis.scale), n, D)
        # training reads the projected rows from now on
        self._held = None
        return projected

    def stay_as_they_are(self, D: int, *, few_passes: bool) -> bool:
        """Tell if projecting rows on D axes costs more time than it saves.

        Per row, projecting takes 2 d D operations. Where nearly all axes are kept, passes over projected rows save
        nothing but the centering, which takes the time of about 25 d operations per pass. Training takes about 12
        passes or 50. On a GPU passes are short, and the number of calls counts, not products.
        """
        passes = 12 if few_passes and self.on_host else 50
        return D >= 0.9 * self.shape[1] and 2 * D > 25 * passes

    def kept(self, blocks: Iterable[Array], n: int, D: int) -> ProjectedRows:
        """Keep projected rows (n, D) where the work is or, where a GPU has no room for them, in host memory."""
        kept, gpu = (list(blocks), None) if self.gpu is None else keep_rows(blocks, self._bytes(n, D), self.gpu)
        return ProjectedRows(kept, sum_dtype=self.sum_dtype, xp=self.xp, gpu=gpu)

    def gathered(self, blocks: Iterable[Array], n: int) -> Rows:
        """Gather blocks of n rows in all into one array."""
        X = self.xp.empty((n, self.shape[1]), dtype=self.dtype, device=self.device)
        filled = 0
        for block in blocks:
            X[filled : filled + block.shape[0], :] = block
            filled += block.shape[0]
        return Rows(X)

    def fit_on_device(self, n: int, D: int) -> bool:
        """Tell if rows (n, D) may be kept where the work is."""
        return self.gpu is None or fits(self._bytes(n, D), self.gpu)

    def _bytes(self, n: int, D: int) -> int:
        return int(n * D * self.xp.finfo(self.dtype).bits // 8)

    def centering(self, basis: Basis) -> tuple[Callable[[Array], Array], Array]:
        """Return how to center rows at little cost: what to do to a block before a product, and what to add after it.

        The results are a function of a block X and a vector c (d,) such that ``function(X) @ A + c @ A = (X - mean) @
        A``. A mean that is large beside the spread of the rows is subtracted from the rows themselves, rounded to their
        type, and c corrects for the rounding. Otherwise the product would lose precision. Any other mean goes into c
        alone, which costs nothing.
        """
        # products with a mean of twice the spread lose a bit of precision
        if float(self.xp.sum(basis.mean**2)) <= 4 * float(self.xp.sum(basis.eigenvalues)):
            return lambda X: X, -basis.mean
        mean = self.xp.astype(basis.mean, self.dtype)
        return lambda X: X - mean, self.xp.astype(mean, self.sum_dtype) - basis.mean

    def projected_blocks(self, blocks: Iterable[Array], basis: Basis, P: Array) -> Iterator[Array]:
        """Multiply centered blocks by P (d, K), which is in the type of sums."""
        center, offset = self.centering(basis)
        P, constant = (self.xp.astype(x, self.dtype) for x in (P, offset @ P))

        def project(X: Array) -> Array:
            Y = center(X) @ P
            Y += constant
            return Y

        return self.map(project, blocks)

    # ---- encoding ----

    def encode(self, W: Array, t: Array, *, precision: str = "exact", out: Array | None = None) -> Array:
        """Encode the rows as packed codes. Reject NaN and inf, naming the first.

        Rows come as they are stored. An array goes in one piece, which the engine cuts up or a kernel takes whole. Rows
        of files, those on their way through a GPU and, NumPy's aside, integers, which are converted, go in blocks.
        ``out``, in the namespace and on the device of ``origin``, takes the codes where they are made there; else it is
        left alone.
        """
        if self.on_host:
            encode_engine(self.sample, precision)  # rejects a precision that it lacks before any row is read
        check_linear_map(self.X, W, t)  # which compiled loops trust
        shape = (self.shape[0], code_bytes(W.shape[1]))
        if out is not None:
            check_out(out, shape=shape, like=self.origin)
        W, t = lay_out(W, t, self.sample, precision=precision)
        return self.map_codes(partial(encode_rows, W=W, t=t, precision=precision), shape[1], out=out, where="X @ W")

    def map_codes(
        self, function: Callable[..., tuple[Array, Any]], width: int, *, where: str, out: Array | None = None
    ) -> Array:
        """Concatenate codes (n, width) that ``function(X, out=...)`` makes of rows as they are stored, for `encode`.

        The function gives the codes, and whether the products named by ``where`` were finite.
        """
        shape = (self.shape[0], width)
        if not self.shape[0]:
            xp, device = namespace(self.origin), device_of(self.origin)
            return xp.empty(shape, dtype=xp.uint8, device=device) if out is None else out
        floats = self.on_host or self.xp.isdtype(self.sample.dtype, "real floating")
        if floats and not isinstance(self.X, RowSource) and not self._streams:
            size = self.shape[0]
        else:
            size = self.block_rows if self.gpu else max(self.block_rows, self.encode_bytes // self._row_bytes)
        if not self.on_host:
            return self._gather(map(function, self._stored_blocks(size)), where, to_origin=True)
        codes = out if isinstance(out, np.ndarray) else np.empty(shape, dtype=np.uint8)
        start = 0
        for X in self._stored_blocks(size):
            _, finite = function(X, out=codes[start : start + X.shape[0]])
            if not finite:
                raise self.nonfinite(where)
            start += X.shape[0]
        return codes

    def map_scores(
        self, W: Array, t: Array, function: Callable[..., Array], *, to_origin: bool = False, wide: bool = False
    ) -> Array:
        """Concatenate ``function(X @ W, t)`` of every block. Reject NaN and inf, naming the first.

        With ``to_origin``, results for rows in host memory go there block by block. With ``wide``, products are in the
        type of sums: how BLAS rounds depends on the height of a block, which shows where ``t`` is large and taken away.
        """
        xp, dtype = self.xp, self.sum_dtype if wide else self.dtype
        W, t = xp.astype(W, dtype, copy=False), xp.astype(t, dtype, copy=False)

        def score(X: Array) -> Array:
            return xp.astype(X, dtype, copy=False) @ W

        return self.map_blocks(score, lambda scores: function(scores, t), where="X @ W", to_origin=to_origin)

    def map_blocks(
        self, score: Callable[..., Array], function: Callable[..., Array], *, where: str, to_origin: bool = False
    ) -> Array:
        """Concatenate ``function(score(X))`` of every block. Reject NaN and inf, naming the first.

        NaN and inf are looked for in the scores (m, ...), to which those of a row must spread.
        """

        def map_block(X: Array) -> tuple[Array, Array]:
            with quiet_floats():
                scores = score(X)
                return function(scores), self.xp.isfinite(self.xp.sum(scores))

        if not self.shape[0]:
            # the result of one row has the right width and type
            nothing = map_block(self.xp.zeros((1, self.shape[1]), dtype=self.dtype, device=self.device))[0][:0, ...]
            return to_host(nothing) if to_origin and self._streams else nothing
        return self._gather(self.map(map_block, self.blocks()), where, to_origin=to_origin)

    def _gather(self, parts: Iterable[tuple[Array, Any]], where: str, *, to_origin: bool) -> Array:
        """Concatenate results; the flags beside them, whether a block was finite, are looked at once, at the end.

        Results that go to the host leave the device as they come, so that it holds those of a block or two.
        """
        gpu = self.gpu if to_origin and self._streams else None
        results, flags = [], []
        with quiet_floats():
            for result, finite in parts:
                results.append(result if gpu is None else gpu.download(result))
                flags.append(finite)
        if not bool(flags[0] if len(flags) == 1 else self.xp.all(self.xp.stack(flags))):  # waits for downloads, too
            raise self.nonfinite(where)
        if len(results) == 1:
            return results[0]
        return self.xp.concat(results, axis=0) if gpu is None else np.concatenate(results)

    def nonfinite(self, where: str) -> ValueError:
        """Make the error that names the first NaN or inf of X, or says that ``where`` overflows."""
        start = 0
        with quiet_floats():
            for X in self.blocks():
                if not bool(self.xp.isfinite(self.xp.sum(X * 0.0))):
                    break
                start += X.shape[0]
        host = to_host(X)
        bad = np.argwhere(~np.isfinite(host))
        if not len(bad):
            return ValueError(
                f"X overflows in {where}: a sum of products left the range of {host.dtype}. Scale X down, or pass "
                "float64"
            )
        row, column = bad[0].tolist()
        value = "NaN" if np.isnan(host[row, column]) else "inf"
        place = self.X.locate(start + row) if isinstance(self.X, RowSource) else f"row {start + row}"
        return ValueError(
            f"Input X contains NaN or inf: first {value} at {place}, column {column}. Drop such rows or fill them in"
        )


# ---- rows of an iterator ----


def sample_blocks(blocks: Iterator[Any], *, device: str | None, rng: np.random.Generator) -> tuple[ArrayRows, int]:
    """Go through blocks once: as many rows, drawn uniformly, as `KEPT_BYTES` hold, and the number of all.

    The rows know the moments of all. Each is kept with the same chance (Vitter's Algorithm R), however the rows are cut
    into blocks.
    """
    kept: Any = None
    moments: Moments | None = None
    like: Any = None
    n = 0
    for number, block in enumerate(blocks):
        X = _check_block(block, number, like)
        if not X.shape[0]:
            continue
        with on_device_of(X):
            source = ArrayRows(X, label="X", locate=functools.partial(_locate, n, number))
            mine = Rows(source, device=device).moments()
        moments = mine if moments is None else moments + mine
        host = to_host(X)
        if kept is None:
            like = X[:1, :]
            kept = np.empty((max(2, KEPT_BYTES // (host.shape[1] * host.dtype.itemsize)), host.shape[1]), host.dtype)
        _keep(kept, host, n, rng)
        n += X.shape[0]
    if moments is None or n < 2:
        raise ValueError(f"X is an iterator that gave {n} rows; at least 2 are needed, and an iterator is read once")
    sample = from_host(kept[: min(n, len(kept))], xp=namespace(like), device=device_of(like))
    rows = ArrayRows(sample, label="the rows kept of X")
    rows.known_moments = moments
    return rows, n


def _locate(before: int, block: int, row: int) -> str:
    return f"row {row} of block {block} (row {before + row} of all)"


def _check_block(block: Any, number: int, like: Any) -> Any:
    name = f"block {number} of X"
    X = check_array(block, name=name, min_ndim=1)
    if X.ndim != 2:
        raise ValueError(
            f"{name} has shape {tuple(X.shape)}; an iterator gives blocks (rows, features), not single rows"
        )
    if like is not None and (X.shape[1] != like.shape[1] or X.dtype != like.dtype):
        was = f"{like.shape[1]} columns of {like.dtype}"
        raise ValueError(f"{name} has {X.shape[1]} columns of {X.dtype}, the first had {was}; all must be alike")
    return X


def _keep(kept: np.ndarray, X: np.ndarray, n: int, rng: np.random.Generator) -> None:
    """Take the rows X, after n others, into a uniform sample."""
    free = max(0, min(len(kept) - n, len(X)))
    kept[n : n + free] = X[:free]
    rest = np.arange(n + free, n + len(X))
    places = rng.integers(0, rest + 1) if rest.size else rest
    chosen = places < len(kept)
    # of two rows that are given one place, the later stays
    kept[places[chosen]] = X[free:][chosen]
