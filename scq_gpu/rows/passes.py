"""Rows in blocks, and the passes over them.

A pass goes through the rows in blocks that stay in cache and leaves a small result that adds up over blocks. `Rows`
holds arrays and files; `scq_gpu.rows.distributed` does the same for Dask arrays.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np

from scq_gpu._core.arrays import (
    Array,
    Device,
    compute_dtype,
    device_of,
    from_host,
    namespace,
    quiet_floats,
    row_slices,
    small_dtype,
    to_host,
)
from scq_gpu._core.bits import code_bytes, signs
from scq_gpu._core.devices import CudaDevice, block_bytes, cuda_device_of, to_device
from scq_gpu._core.host_memory import available_bytes, worth_keeping
from scq_gpu._core.threads import ordered_map, product
from scq_gpu._core.validate import check_linear_map, check_out, nonfinite_error, projected_memory_error
from scq_gpu.kernels.fused import elementwise
from scq_gpu.rows.basis import Basis, Moments
from scq_gpu.rows.sources.base import RowSource, read_ahead
from scq_gpu.rows.stream import fits, join_rows, keep_rows, stream_rows

_TALL_BYTES = 64 << 20
_TALL_PRODUCTS = 1 << 32
_LARGE_MEAN = 4.0  # squared mean over variance of the rows from which products with the mean lose a bit of precision
_PIECE_ROWS = 4096  # of which a part has every so many-th row, before it begins one row later
MANY_PASSES, FEW_PASSES = 50, 12  # over all rows, about: of fits until the loss settles, and of others
_ENCODE_BYTES = 16 << 20  # of a file, encoded at a time: threads are started for each piece

EncodeBlock = Callable[..., tuple[Array, Any]]
"""``encode(X, W, t, out=None)``: codes, and whether all scores were finite (`scq_gpu.kernels.encode.encode_rows`)."""


class KeptRows(Protocol):
    """Some rows in the coordinates of a basis, in memory where the work is."""

    @property
    def n(self) -> int:
        """Number of rows."""

    def statistics(self, V: Array, *, slope: Array | None = None) -> SignStatistics:
        """One sign pass at V (R, D, L); with a ``slope`` (R, L), of ``B - slope XV`` in place of B."""

    def project(self, axes: Array) -> ProjectedRows:
        """The rows projected on axes (D, K)."""


class TrainingRows(Protocol):
    """Rows in the coordinates of a basis, over which training runs its sign passes."""

    @property
    def n(self) -> int:
        """Number of rows."""

    def statistics(self, V: Array) -> SignStatistics:
        """One sign pass at V (R, D, L), for every problem of the batch."""

    def sample(self, numbers: np.ndarray) -> KeptRows:
        """The rows of these ascending numbers, kept in memory where the work is."""

    def parts(self, count: int) -> Sequence[KeptRows]:
        """The rows in that many parts, each spread over all of them; none where that would take a copy.

        Of some thousand rows a part has every ``count``-th, and of the next as well, from one row later: rows that come
        in turns, such as questions and answers, are in all parts alike.
        """


class SignStatistics(NamedTuple):
    """What a sign pass leaves: means over rows, with ``B = sign(XV)``."""

    M: Array
    """``X'B / n`` (R, D, L)."""
    balance: Array
    """The mean of B (R, L): how far each bit is from splitting the rows in half."""


class Rows:
    """Rows of an array or a source, handed out in blocks on the device and in the float type of the work.

    Rows are converted block by block; X itself is never copied as a whole. The next blocks of a file are read while one
    is worked on. Rows in host memory go through a GPU in two buffers, one filled while the other is worked on; where
    the GPU has room for them and for as many projected ones, the moments pass leaves them there for the next.

    Parameters
    ----------
    X : array (n, d) or RowSource
    device : str or None
        Where to work; None follows X.
    """

    def __init__(self, X: Array | RowSource, *, device: str | None = None) -> None:
        self.X: Any = X
        self._device = device
        self.origin: Array = X.sample() if isinstance(X, RowSource) else X[: min(1, X.shape[0]), :]
        """A row in the namespace and on the device that X came from and results go to."""
        self._from_files = isinstance(X, RowSource) and not X.in_memory
        sample = to_device(self.origin, device)
        self.xp: ModuleType = namespace(sample)
        self.device: Device = device_of(sample)
        self.dtype: Any = compute_dtype(sample.dtype, xp=self.xp, device=self.device)
        self.sum_dtype: Any = small_dtype(xp=self.xp, device=self.device)
        self.sample: Array = sample
        self._gpu: CudaDevice | None = cuda_device_of(sample)
        self._streams: bool = self._gpu is not None and isinstance(self.origin, np.ndarray)
        self._row_bytes: int = X.shape[1] * self.xp.finfo(self.dtype).bits // 8
        self._block_rows: int = max(128, block_bytes(sample) // self._row_bytes)
        self._held: list[Array] | None = None  # all blocks of X, on the device

    @property
    def shape(self) -> tuple[int, int]:
        """(n, d)."""
        return tuple(self.X.shape)

    @property
    def tall_rows(self) -> int:
        """Height of the blocks of the moments pass, taller than elsewhere: each adds a d x d matrix to the sum."""
        if self._gpu is not None:
            return self._block_rows
        quick = max(256, _TALL_PRODUCTS // self.shape[1] ** 2)  # a product that an interrupt need not wait long for
        return min(quick, max(self._block_rows, min(4 * self.shape[1], _TALL_BYTES // self._row_bytes)))

    def blocks(self, size: int | None = None) -> Iterator[Array]:
        """The rows, ``size`` at a time, ready for products; a block may be overwritten by the one after next."""
        return (self.xp.astype(X, self.dtype, copy=False) for X in self._stored_blocks(size))

    def _stored_blocks(self, size: int | None = None) -> Iterator[Array]:
        """The rows on the device in the type they are stored in."""
        size = size or self._block_rows
        if self._held is not None and size == self._block_rows:
            return iter(self._held)
        if self._gpu is not None and self._streams:
            return stream_rows(self._blocks_at_origin(size), self._gpu)
        return (to_device(X, self._device) for X in self._blocks_at_origin(size))

    def _blocks_at_origin(self, size: int) -> Iterator[Array]:
        """The rows where they came from, in the type they are stored in."""
        if isinstance(self.X, RowSource):
            return self.X.blocks(size) if self.X.in_memory else read_ahead(self.X.blocks(size))
        return (self.X[part, :] for part in row_slices(self.shape[0], size))

    def _held_blocks(self, gpu: CudaDevice) -> Iterator[Array]:
        """The rows from host memory, ready for products; once all have gone by they stay on the device."""
        held = []
        for X in stream_rows(self._blocks_at_origin(self._block_rows), gpu, stay=True):
            held.append(X)
            yield self.xp.astype(X, self.dtype, copy=False)
        self._held = held

    def _map(self, function: Callable[[Array], Any], blocks: Iterable[Array]) -> Iterator[Any]:
        """``function`` of every block, in order: over threads, but for blocks whose buffers are used again."""
        return ordered_map(function, blocks) if self._on_host else map(function, blocks)

    def moments(self) -> Moments:
        """The moments pass. Refuses NaN and inf, naming the first."""
        if isinstance(self.X, RowSource) and self.X.known_moments is not None:
            known: Moments = self.X.known_moments
            return known

        def measure(X: Array) -> Moments:
            with quiet_floats():  # the result is checked instead
                return Moments.of_block(X, dtype=self.sum_dtype, xp=self.xp)

        if self._gpu is not None and self._streams and fits(2 * self._bytes(*self.shape), self._gpu):
            blocks = self._held_blocks(self._gpu)
        else:
            blocks = self.blocks(self.tall_rows)
        with quiet_floats():
            moments: Moments = functools.reduce(operator.add, self._map(measure, blocks))
        if not bool(self.xp.all(self.xp.isfinite(moments.scatter))):
            raise self._nonfinite("the covariance of X")
        return moments

    def project(self, basis: Basis, *, passes: int = MANY_PASSES) -> TrainingRows:
        """Rows in the coordinates of a basis, for about that many passes of training over all of them.

        They are kept: the one copy that training makes. They stay where the work is, unless that is a GPU with too
        little memory; then they wait in host memory. Rows of files are kept only where that takes little memory
        (`scq_gpu._core.host_memory.worth_keeping`) and are read again in each pass otherwise. Where that is faster
        (`projecting_costs_more`) rows stay as they are, and those of files are kept so: their sums are then the same.
        """
        (n, d), D = self.shape, basis.P.shape[1]
        as_they_are = self._same_type and self.stay_as_they_are(D, passes)
        n_bytes = self._bytes(n, d if as_they_are else D)
        on_device = self._gpu is not None and self.fit_on_device(n, D)
        if self._from_files and not on_device and not worth_keeping(n_bytes):
            return UnprojectedRows(self, basis)
        if as_they_are and (self.in_place or self._on_host):
            return UnprojectedRows(Rows(self.gathered(self.blocks(), n)) if self._from_files else self, basis)
        available = available_bytes() if self._gpu is not None or str(self.device) == "cpu" else None
        if not on_device and available is not None and n_bytes > available:
            raise projected_memory_error((n, D), self.dtype, n_bytes=n_bytes, available=available)
        blocks = self.projected_blocks(self.blocks(), basis, basis.P * basis.scale)
        projected = self.kept(blocks, n, D)
        self._held = None  # training reads the projected rows
        return projected

    def kept(self, blocks: Iterable[Array], n: int, D: int) -> ProjectedRows:
        """Projected rows (n, D), kept where the work is or, where a GPU has no room for them, in host memory."""
        kept, gpu = keep_rows(blocks, self._bytes(n, D), self._gpu)
        return ProjectedRows(kept, sum_dtype=self.sum_dtype, xp=self.xp, gpu=gpu)

    def fit_on_device(self, n: int, D: int) -> bool:
        """Whether rows (n, D) may be kept where the work is."""
        return self._gpu is None or fits(self._bytes(n, D), self._gpu)

    def _bytes(self, n: int, D: int) -> int:
        return int(n * D * self.xp.finfo(self.dtype).bits // 8)

    @property
    def in_place(self) -> bool:
        """Whether blocks of X are views: already on the device and in the float type of the work."""
        return not self._from_files and not self._streams and self._same_type

    @property
    def _same_type(self) -> bool:
        """Whether X is stored in the float type of the work."""
        return bool(self.origin.dtype == self.dtype)

    @property
    def _on_host(self) -> bool:
        """Whether NumPy does the work."""
        return isinstance(self.sample, np.ndarray)

    def stay_as_they_are(self, D: int, passes: int) -> bool:
        """Whether rows are better not projected on D axes. On a GPU passes are short, and calls count, not products."""
        return projecting_costs_more(self.shape[1], D, passes if self._on_host else MANY_PASSES)

    def gathered(self, blocks: Iterable[Array], n: int) -> Array:
        """Blocks of n rows in all as one array."""
        X = self.xp.empty((n, self.shape[1]), dtype=self.dtype, device=self.device)
        filled = 0
        for block in blocks:
            X[filled : filled + block.shape[0], :] = block
            filled += block.shape[0]
        return X

    def centering(self, basis: Basis) -> tuple[Callable[[Array], Array], Array]:
        """How to center rows at little cost: what to do to a block before a product, and what to add after it.

        Returns a function of a block X and a vector c (d,) such that ``function(X) @ A + c @ A = (X - mean) @ A``. A
        mean that is large beside the spread of the rows is subtracted from the rows themselves, rounded to their type,
        and c corrects for the rounding: otherwise the product would lose precision. Any other mean goes into c alone,
        which costs nothing.
        """
        if float(self.xp.sum(basis.mean**2)) <= _LARGE_MEAN * float(self.xp.sum(basis.eigenvalues)):
            return lambda X: X, -basis.mean
        mean = self.xp.astype(basis.mean, self.dtype)
        return lambda X: X - mean, self.xp.astype(mean, self.sum_dtype) - basis.mean

    def projected_blocks(self, blocks: Iterable[Array], basis: Basis, P: Array) -> Iterator[Array]:
        """Centered blocks times P (d, K), which is in the type of sums."""
        center, offset = self.centering(basis)
        P, constant = (self.xp.astype(x, self.dtype) for x in (P, offset @ P))

        def project(X: Array) -> Array:
            Y = center(X) @ P
            Y += constant
            return Y

        return self._map(project, blocks)

    def encode(self, W: Array, t: Array, encode: EncodeBlock, *, out: Array | None = None) -> Array:
        """Packed codes of the rows. Refuses NaN and inf, naming the first.

        Rows come as they are stored. An array goes in one piece, which the engine cuts up or a kernel takes whole; rows
        of files, those on their way through a GPU and, NumPy's aside, integers, which are converted, go in blocks.
        ``out``, in the namespace and on the device of ``origin``, takes the codes where they are made there; else it is
        left alone.
        """
        check_linear_map(self.X, W, t)  # which compiled loops trust
        shape = (self.shape[0], code_bytes(W.shape[1]))
        if out is not None:
            check_out(out, shape=shape, like=self.origin)
        if not self.shape[0]:
            xp, device = namespace(self.origin), device_of(self.origin)
            return xp.empty(shape, dtype=xp.uint8, device=device) if out is None else out
        floats = self._on_host or self.xp.isdtype(self.sample.dtype, "real floating")
        whole = floats and not isinstance(self.X, RowSource) and not self._streams
        size = self._block_rows if self._gpu else max(self._block_rows, _ENCODE_BYTES // self._row_bytes)
        size = self.shape[0] if whole else size
        if not self._on_host:
            return self._gather((encode(X, W, t) for X in self._stored_blocks(size)), "X @ W", to_origin=True)
        codes = out if isinstance(out, np.ndarray) else np.empty(shape, dtype=np.uint8)
        start = 0
        for X in self._stored_blocks(size):
            _, finite = encode(X, W, t, out=codes[start : start + X.shape[0]])
            if not finite:
                raise self._nonfinite("X @ W")
            start += X.shape[0]
        return codes

    def map_scores(
        self,
        W: Array,
        t: Array,
        function: Callable[[Array, Array], Array],
        *,
        to_origin: bool = False,
        wide: bool = False,
    ) -> Array:
        """``function(X @ W, t)`` block by block, results concatenated. Refuses NaN and inf, naming the first.

        With ``to_origin``, results for rows in host memory go there block by block. With ``wide``, products are in the
        type of sums: how BLAS rounds depends on the height of a block, which shows where ``t`` is large and taken away.
        """
        xp, dtype = self.xp, self.sum_dtype if wide else self.dtype
        W, t = xp.astype(W, dtype, copy=False), xp.astype(t, dtype, copy=False)
        return self.map_blocks(
            lambda X: xp.astype(X, dtype, copy=False) @ W,
            lambda scores: function(scores, t),
            where="X @ W",
            to_origin=to_origin,
        )

    def map_blocks(
        self,
        score: Callable[[Array], Array],
        function: Callable[[Array], Array],
        *,
        where: str,
        to_origin: bool = False,
    ) -> Array:
        """``function(score(X))`` block by block, results concatenated. Refuses NaN and inf, naming the first.

        NaN and inf are looked for in the scores (m, ...), to which those of a row must spread.
        """

        def map_block(X: Array) -> tuple[Array, Array]:
            with quiet_floats():
                scores = score(X)
                return function(scores), self.xp.isfinite(self.xp.sum(scores))

        if not self.shape[0]:  # what a row would give, without it
            nothing = map_block(self.xp.zeros((1, self.shape[1]), dtype=self.dtype, device=self.device))[0][:0, ...]
            return to_host(nothing) if to_origin and self._streams else nothing
        return self._gather(self._map(map_block, self.blocks()), where, to_origin=to_origin)

    def _gather(self, parts: Iterable[tuple[Array, Any]], where: str, *, to_origin: bool) -> Array:
        """Results concatenated; the flags beside them, whether a block was finite, are looked at once, at the end.

        Results that go to the host leave the device as they come, so that it holds those of a block or two.
        """
        gpu = self._gpu if to_origin and self._streams else None
        results, flags = [], []
        with quiet_floats():
            for result, finite in parts:
                results.append(result if gpu is None else gpu.download(result))
                flags.append(finite)
        if not bool(flags[0] if len(flags) == 1 else self.xp.all(self.xp.stack(flags))):  # waits for downloads, too
            raise self._nonfinite(where)
        if len(results) == 1:
            return results[0]
        return self.xp.concat(results, axis=0) if gpu is None else np.concatenate(results)

    def _nonfinite(self, where: str) -> ValueError:
        """The error that names the first NaN or inf of X, or says that ``where`` overflows."""
        start = 0
        with quiet_floats():
            for X in self.blocks():
                if not bool(self.xp.isfinite(self.xp.sum(X * 0.0))):
                    break
                start += X.shape[0]
        locate = {"locate": self.X.locate} if isinstance(self.X, RowSource) else {}
        return nonfinite_error(X, first_row=start, where=where, **locate)


def projecting_costs_more(d: int, D: int, passes: int) -> bool:
    """Whether projecting rows once takes more time than it saves in so many passes.

    Per row, projecting takes 2 d D operations. Where nearly all axes are kept, passes over projected rows save nothing
    but the centering, which at worst takes the time of about 25 d operations per pass.
    """
    return D >= 0.9 * d and 2 * D > 25 * passes


class ProjectedRows:
    """Projected rows in blocks.

    Parameters
    ----------
    blocks : list of array (m, D)
        On the device; or in page-locked host memory, to go through ``gpu`` in each pass.
    sum_dtype : dtype
        In which blocks are summed up.
    xp : module
    gpu : CudaDevice or None
    """

    def __init__(
        self, blocks: list[Array], *, sum_dtype: object, xp: ModuleType, gpu: CudaDevice | None = None
    ) -> None:
        self.kept = blocks
        self.gpu = gpu
        self._sum_dtype = sum_dtype
        self._xp = xp

    @property
    def n(self) -> int:
        """Number of rows."""
        return sum(Y.shape[0] for Y in self.kept)

    def statistics(self, V: Array, *, slope: Array | None = None) -> SignStatistics:
        """One sign pass at V (R, D, L), for every problem of the batch.

        With a ``slope`` (R, L) the statistics are those of ``B - slope XV`` in place of B.
        """
        xp, dtype = self._xp, self.kept[0].dtype
        wide = xp.astype(side_by_side(V, xp=xp), dtype)
        take = _residuals_or_signs(slope, dtype=dtype, xp=xp)
        sums = _Sums(dtype=self._sum_dtype, xp=xp)

        def sign(Y: Array) -> tuple[Array, Array]:
            return sums.of_block(Y, take(Y @ wide))

        over = ordered_map if self.gpu is None and isinstance(self.kept[0], np.ndarray) else map
        sums.add(over(sign, self._blocks()))
        return sums.means(self.n, R=V.shape[0])

    def sample(self, numbers: np.ndarray) -> ProjectedRows:
        """The rows of these ascending numbers, kept in memory where the work is."""
        if len(numbers) == self.n:
            return self
        taken = _take(self._blocks(), numbers, xp=self._xp)
        if self.gpu is not None or cuda_device_of(self.kept[0]) is not None:
            taken = join_rows(taken, block_bytes, xp=self._xp)
        return self._with(taken, len(numbers), self.kept[0].shape[1])

    def parts(self, count: int) -> list[ProjectedRows | UnprojectedRows]:
        """The rows in that many parts, which are views; none if they are on a GPU."""
        if not isinstance(self.kept[0], np.ndarray) or self.gpu is not None:
            return []
        views = (list(_every(self.kept, first, count)) for first in range(count))
        return [ProjectedRows(part, sum_dtype=self._sum_dtype, xp=self._xp) for part in views]

    def project(self, axes: Array) -> ProjectedRows:
        """The rows projected on axes (D, K), kept in memory where the work is."""
        axes = self._xp.astype(axes, self.kept[0].dtype)
        return self._with((Y @ axes for Y in self._blocks()), self.n, axes.shape[1])

    def _blocks(self) -> Iterable[Array]:
        return self.kept if self.gpu is None else stream_rows(self.kept, self.gpu, pinned=True)

    def _with(self, blocks: Iterable[Array], n: int, D: int) -> ProjectedRows:
        """Other rows (n, D), kept in memory where the work is if they fit there."""
        n_bytes = n * D * self._xp.finfo(self.kept[0].dtype).bits // 8
        kept, gpu = keep_rows(blocks, n_bytes, self.gpu or cuda_device_of(self.kept[0]))
        return ProjectedRows(kept, sum_dtype=self._sum_dtype, xp=self._xp, gpu=gpu)


class UnprojectedRows:
    """The same passes over rows that are not projected: V and M are instead.

    With ``W = s P V`` (d, L), ``B = sign((X - mean) W)`` and ``M = s P' (X - mean)' B / n``: two products per pass, as
    for projected rows, and nothing of the height of X is kept.
    """

    def __init__(self, rows: Rows, basis: Basis, part: tuple[int, int] | None = None) -> None:
        self._rows = rows
        self._basis = basis
        self._part = part  # its number, and how many there are
        self._P = basis.P * basis.scale
        self._turn = rows.xp.astype(self._P, rows.dtype, copy=False)  # V and M need no more digits than the rows have
        self._center, self._offset = rows.centering(basis)

    @property
    def n(self) -> int:
        """Number of rows."""
        return self._rows.shape[0] if self._part is None else sum(X.shape[0] for X in self.blocks())

    @property
    def stays_so(self) -> bool:
        """Whether projecting a sample of the rows would cost more than it saves."""
        return self._rows.stay_as_they_are(self._P.shape[1], FEW_PASSES)

    def blocks(self) -> Iterator[Array]:
        """The rows, or those of this part, in blocks of the same height."""
        if self._part is None:
            return self._rows.blocks()
        first, count = self._part
        return _every(self._rows.blocks(count * self._rows._block_rows), first, count)

    def statistics(self, V: Array, *, slope: Array | None = None) -> SignStatistics:
        """One sign pass at V (R, D, L), as over projected rows."""
        rows, xp = self._rows, self._rows.xp
        W = product(self._turn, xp.astype(side_by_side(V, xp=xp), rows.dtype, copy=False))
        constant = xp.astype(self._offset @ xp.astype(W, rows.sum_dtype), rows.dtype)
        take = _residuals_or_signs(slope, dtype=rows.dtype, xp=xp)
        sums = _Sums(dtype=rows.sum_dtype, xp=xp)

        def sign(X: Array) -> tuple[Array, Array]:
            X = self._center(X)
            return sums.of_block(X, take(X @ W, constant))

        sums.add(rows._map(sign, self.blocks()))
        M = xp.astype(sums.M + self._offset[:, None] * sums.B, rows.dtype, copy=False)
        sums.M = xp.astype(product(xp.matrix_transpose(self._turn), M), rows.sum_dtype, copy=False)
        return sums.means(self.n, R=V.shape[0])

    def sample(self, numbers: np.ndarray) -> ProjectedRows | UnprojectedRows:
        """The rows of these ascending numbers, in memory; unprojected where that is faster."""
        rows = self._rows
        if rows.in_place and len(numbers) == self.n:
            return self
        taken = _take(rows.blocks(), numbers, xp=rows.xp)
        if self.stays_so and rows.fit_on_device(len(numbers), rows.shape[1]):
            return UnprojectedRows(Rows(rows.gathered(taken, len(numbers))), self._basis)
        projected = rows.projected_blocks(taken, self._basis, self._P)
        if rows._gpu is not None and len(numbers) < self.n:
            projected = join_rows(projected, block_bytes, xp=rows.xp)
        return rows.kept(projected, len(numbers), self._P.shape[1])

    def parts(self, count: int) -> list[ProjectedRows | UnprojectedRows]:
        """The rows in that many parts, which are views; none unless X is NumPy's."""
        if not self._rows.in_place or not self._rows._on_host:
            return []
        return [UnprojectedRows(self._rows, self._basis, (first, count)) for first in range(count)]

    def project(self, axes: Array) -> ProjectedRows:
        """The rows projected on axes (D, K), kept in memory where the work is."""
        projected = self._rows.projected_blocks(self.blocks(), self._basis, self._P @ axes)
        return self._rows.kept(projected, self.n, axes.shape[1])


class TurnedSample:
    """The same passes in other coordinates, those of ``rows`` times R (D, D): V and M are turned, not the rows."""

    def __init__(self, rows: KeptRows, R: Array, *, xp: ModuleType) -> None:
        self._rows, self._R, self._xp = rows, R, xp

    @property
    def n(self) -> int:
        """Number of rows."""
        return self._rows.n

    def statistics(self, V: Array, *, slope: Array | None = None) -> SignStatistics:
        """One sign pass at V (R, D, L), as over projected rows."""
        found = self._rows.statistics(self._R @ V, slope=slope)
        return SignStatistics(self._xp.matrix_transpose(self._R) @ found.M, found.balance)

    def project(self, axes: Array) -> ProjectedRows:
        """The rows projected on axes (D, K), kept in memory where the work is."""
        return self._rows.project(self._R @ axes)


class TurnedRows:
    """All rows of a fit in other coordinates, as `TurnedSample`."""

    def __init__(self, rows: TrainingRows, R: Array, *, xp: ModuleType) -> None:
        self._rows, self._R, self._xp = rows, R, xp

    @property
    def n(self) -> int:
        """Number of rows."""
        return self._rows.n

    def statistics(self, V: Array) -> SignStatistics:
        """One sign pass at V (R, D, L), for every problem of the batch."""
        found = self._rows.statistics(self._R @ V)
        return SignStatistics(self._xp.matrix_transpose(self._R) @ found.M, found.balance)

    def sample(self, numbers: np.ndarray) -> TurnedSample:
        """The rows of these ascending numbers, kept in memory where the work is."""
        return TurnedSample(self._rows.sample(numbers), self._R, xp=self._xp)

    def parts(self, count: int) -> Sequence[TurnedSample]:
        """The rows in that many parts; none where that would take a copy."""
        return [TurnedSample(part, self._R, xp=self._xp) for part in self._rows.parts(count)]


class _Sums:
    """Sums of a sign pass over blocks, all problems side by side in R L columns."""

    M: Array
    B: Array

    def __init__(self, *, dtype: object, xp: ModuleType) -> None:
        self._xp, self._dtype = xp, dtype

    def of_block(self, X: Array, B: Array) -> tuple[Array, Array]:
        """``X'B`` and the sum of B over a block of rows."""
        xp = self._xp
        return xp.astype(xp.matrix_transpose(X) @ B, self._dtype), xp.astype(xp.sum(B, axis=0), self._dtype)

    def add(self, blocks: Iterable[tuple[Array, Array]]) -> None:
        """Add blocks up, in their order."""
        self.M, self.B = functools.reduce(lambda sums, block: (sums[0] + block[0], sums[1] + block[1]), blocks)

    def means(self, n: int, *, R: int) -> SignStatistics:
        """Means over n rows, the problems apart."""
        xp, (d, columns) = self._xp, self.M.shape
        M = xp.permute_dims(xp.reshape(self.M / n, (d, R, columns // R)), (1, 0, 2))
        return SignStatistics(M, xp.reshape(self.B / n, (R, columns // R)))


def _residuals_or_signs(slope: Array | None, *, dtype: object, xp: ModuleType) -> Callable[..., Array]:
    """What a pass takes of the projections of a block: their signs, less a multiple of themselves if there is one."""
    if slope is None:
        return lambda U, constant=0.0: _signs(U, constant, xp=xp)
    flat = xp.astype(xp.reshape(slope, (-1,)), dtype)
    return lambda U, constant=0.0: _residuals(U, constant, flat, xp=xp)


@elementwise
def _signs(U: Array, constant: Array | float, *, xp: ModuleType) -> Array:
    return signs(U + constant >= 0, dtype=U.dtype, xp=xp)


@elementwise
def _residuals(U: Array, constant: Array | float, slope: Array, *, xp: ModuleType) -> Array:
    U = U + constant
    return signs(U >= 0, dtype=U.dtype, xp=xp) - slope * U


def side_by_side(V: Array, *, xp: ModuleType) -> Array:
    """The problems of a batch (R, D, L) as one wide matrix (D, R L), so that one product serves all."""
    R, D, L = V.shape
    return xp.reshape(xp.permute_dims(V, (1, 0, 2)), (D, R * L))


def _every(blocks: Iterable[Array], first: int, count: int) -> Iterator[Array]:
    """Every ``count``-th row of each block, or of pieces of tall ones, from one row later in each."""
    height = max(_PIECE_ROWS, 1024 * count)  # fewer narrow rows are not worth handing to a thread
    pieces = (X[part, :] for X in blocks for part in row_slices(X.shape[0], height))
    for number, X in enumerate(pieces):
        yield X[(first + number) % count :: count, :]


def _take(blocks: Iterable[Array], numbers: np.ndarray, *, xp: ModuleType) -> Iterator[Array]:
    """The rows of these ascending numbers, in pieces."""
    start = 0
    for X in blocks:
        first, last = np.searchsorted(numbers, (start, start + X.shape[0]))
        if last > first:
            yield xp.take(X, from_host(numbers[first:last] - start, xp=xp, device=device_of(X)), axis=0)
        start += X.shape[0]
