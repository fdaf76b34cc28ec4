"""Where rows come from, and the passes over them.

A pass goes through the rows in blocks that stay in cache and leaves a small result that adds up over blocks. Nothing
else in the package touches rows.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from scq_gpu._encode_cpu import encode_rows
from scq_gpu._host_memory import available_bytes, worth_keeping
from scq_gpu._stream import Gpu, fits, stream_rows
from scq_gpu._validate import check_out, nonfinite_error, room_error
from scq_gpu._xp import (
    Array,
    Device,
    cache_bytes,
    compute_dtype,
    device_of,
    from_host,
    gpu_of,
    namespace,
    quiet_floats,
    row_slices,
    small_dtype,
    to_device,
)
from scq_gpu.basis import Basis, Moments
from scq_gpu.codes import code_bytes, encode_linear, has_kernel, pack_bits, signs
from scq_gpu.sources import RowSource, read_ahead

_TALL_BYTES = 64 << 20
_LARGE_MEAN = 4.0  # its square against the variance of the rows: products with it then lose a bit of their digits
_CPU_BYTES = 16 << 20  # of a file, encoded at a time: threads are started for each


class Rows:
    """Rows of an array or a source, handed out in blocks on the device and in the float type of the work.

    Conversion happens block by block: X itself is never copied as a whole. The next blocks of a file are read while one
    is worked on. Rows in host memory go through a GPU in two buffers, one filled while the other is worked on.

    Parameters
    ----------
    X : array (n, d) or RowSource
    device : str or None
        Where to work; None follows X.
    """

    def __init__(self, X: Array | RowSource, *, device: str | None = None) -> None:
        self.X: Any = X
        self._device = device
        self.home: Array = X.sample() if isinstance(X, RowSource) else X[:1, :]
        """A row in the namespace and on the device that X came from and results go to."""
        self._from_files = isinstance(X, RowSource) and not X.in_memory
        sample = to_device(self.home, device)
        self.xp: ModuleType = namespace(sample)
        self.device: Device = device_of(sample)
        self.dtype: Any = compute_dtype(sample.dtype, xp=self.xp, device=self.device)
        self.small: Any = small_dtype(xp=self.xp, device=self.device)
        self._sample = sample
        self._gpu: Gpu | None = gpu_of(sample)
        self._row_bytes: int = X.shape[1] * self.xp.finfo(self.dtype).bits // 8
        self._block_rows: int = max(128, cache_bytes(sample) // self._row_bytes)

    @property
    def shape(self) -> tuple[int, int]:
        """(n, d)."""
        return tuple(self.X.shape)

    @property
    def tall_rows(self) -> int:
        """Height of the blocks of the moments pass, taller than elsewhere: each adds a d x d matrix to the sum."""
        return max(self._block_rows, min(4 * self.shape[1], _TALL_BYTES // self._row_bytes))

    def blocks(self, size: int | None = None) -> Iterator[Array]:
        """The rows, ``size`` at a time, ready for products; a block may be overwritten by the one after next."""
        return (self.xp.astype(X, self.dtype, copy=False) for X in self._stored_blocks(size))

    def _stored_blocks(self, size: int | None = None) -> Iterator[Array]:
        """The rows on the device in the type they are stored in."""
        size = size or self._block_rows
        blocks: Iterator[Array]
        if isinstance(self.X, RowSource):
            blocks = self.X.blocks(size) if self.X.in_memory else read_ahead(self.X.blocks(size))
        else:
            blocks = (self.X[part, :] for part in row_slices(self.shape[0], size))
        if self._gpu is not None and isinstance(self.home, np.ndarray):
            return stream_rows(blocks, self._gpu)
        return (to_device(X, self._device) for X in blocks)

    def moments(self) -> Moments:
        """The moments pass. Refuses NaN and inf, naming the first."""
        parts = (Moments.of_block(X, dtype=self.small, xp=self.xp) for X in self.blocks(self.tall_rows))
        with quiet_floats():  # the result is checked instead
            moments = functools.reduce(operator.add, parts)
        if not bool(self.xp.all(self.xp.isfinite(moments.scatter))):
            raise self._nonfinite(where="the covariance of X", bad=lambda X: self.xp.sum(X * 0.0, axis=1))
        return moments

    def project(self, basis: Basis) -> ProjectedRows:
        """Rows in the coordinates of a basis, for the passes of training.

        They are kept: the one copy that training makes. They stay where the work is, unless that is a GPU with too
        little room; then they wait in host memory. Rows of files are kept only where that takes little memory
        (`scq_gpu._host_memory.worth_keeping`) and are read again in each pass otherwise; so are rows in memory where
        that is faster (`_dear_to_project`).
        """
        n, D = self.shape[0], basis.P.shape[1]
        n_bytes = n * D * self.xp.finfo(self.dtype).bits // 8
        on_device = self._gpu is not None and fits(n_bytes, self._gpu)
        if self._from_files and not on_device and not worth_keeping(n_bytes):
            return RereadRows(self, basis)
        if self._ready and _dear_to_project(self.shape[1], D):
            return RereadRows(self, basis)
        available = available_bytes() if self._gpu is not None or str(self.device) == "cpu" else None
        if not on_device and available is not None and n_bytes > available:
            raise room_error((n, D), self.dtype, n_bytes=n_bytes, available=available)
        P = self.xp.astype(basis.P * basis.scale, self.dtype)
        centre, left = self.centring(basis)
        constant = self.xp.astype(left @ basis.P * basis.scale, self.dtype)
        blocks = (centre(X) @ P + constant for X in self.blocks())
        if self._gpu is None or on_device:
            return ProjectedRows(list(blocks), small=self.small, xp=self.xp)
        on_host = [self._gpu.download(Y) for Y in blocks]
        return ProjectedRows(on_host, small=self.small, xp=self.xp, gpu=self._gpu)

    @property
    def _ready(self) -> bool:
        """Whether blocks of X are views: in the place and float type of the work."""
        in_place = self._gpu is None or not isinstance(self.home, np.ndarray)
        return not self._from_files and in_place and self.home.dtype == self.dtype

    def centring(self, basis: Basis) -> tuple[Callable[[Array], Array], Array]:
        """What to do to a block of rows before a product, and what to add to it then to have centred rows (d,).

        A mean that is large beside the spread of the rows is taken from them: else they would lose digits. It is
        rounded to their type, and what that took too much is left to add. Any other costs nothing: all of it is left,
        to be taken from the few columns of a product.
        """
        if float(self.xp.sum(basis.mean**2)) <= _LARGE_MEAN * float(self.xp.sum(basis.eigenvalues)):
            return lambda X: X, -basis.mean
        mean = self.xp.astype(basis.mean, self.dtype)
        return lambda X: X - mean, self.xp.astype(mean, self.small) - basis.mean

    def encode(self, W: Array, t: Array, *, precision: str, out: Array | None = None) -> Array:
        """Packed codes of the rows. Refuses NaN and inf, naming the first.

        ``out``, in the namespace and on the device of ``home``, takes the codes where they are made there; elsewhere it
        is left alone.
        """
        shape = (self.shape[0], code_bytes(W.shape[1]))
        if out is not None:
            check_out(out, shape=shape, like=self.home)
        stored = has_kernel(self._sample, "exact")
        sample = self._sample if stored else self.xp.astype(self._sample, self.dtype, copy=False)
        if has_kernel(sample, precision):
            return self._encode_with_kernel(W, t, precision=precision, stored=stored)
        if self._gpu is not None or not isinstance(sample, np.ndarray):
            return self.map_scores(W, t, lambda scores, t: pack_bits(scores >= t, xp=self.xp))
        codes = out if isinstance(out, np.ndarray) else np.empty(shape, dtype=np.uint8)
        self._encode_on_cpu(W, t, codes)
        return codes

    def _encode_on_cpu(self, W: Array, t: Array, codes: np.ndarray) -> None:
        """Straight into the codes. An array goes in one piece: it is cut up, and spread over threads, further in."""
        W, t = self.xp.astype(W, self.dtype, copy=False), self.xp.astype(t, self.dtype, copy=False)
        size = max(self._block_rows, _CPU_BYTES // self._row_bytes)
        start = 0
        for X in self._stored_blocks(self.shape[0] if isinstance(self.X, np.ndarray) else size):
            if not encode_rows(X, W, t, codes[start : start + X.shape[0]]):
                raise self._nonfinite(where="X @ W", bad=lambda X: self.xp.sum(X @ W, axis=1))
            start += X.shape[0]

    def _encode_with_kernel(self, W: Array, t: Array, *, precision: str, stored: bool) -> Array:
        """A kernel takes the rows as they are stored and keeps the scores to itself, so averages are looked at."""
        W, t = (self.xp.astype(x, self.xp.float32, copy=False) for x in (W, t))
        dtype = self._sample.dtype if stored else self.dtype
        weights = self.xp.full((self.shape[1],), 0.5 / self.shape[1], dtype=dtype, device=self.device)

        def encode_block(X: Array) -> tuple[Array, Array]:
            codes = encode_linear(X, W, t, precision=precision)
            return codes, self.xp.all(self.xp.isfinite(X @ weights))  # half an average of finite numbers is finite

        blocks = self._stored_blocks() if stored else self.blocks()
        return self._gather(map(encode_block, blocks), where="X", bad=lambda X: self.xp.mean(X, axis=1))

    def map_scores(self, W: Array, t: Array, function: Callable[[Array, Array], Array]) -> Array:
        """``function(X @ W, t)`` block by block, results on one pile. Refuses NaN and inf, naming the first."""
        W, t = self.xp.astype(W, self.dtype, copy=False), self.xp.astype(t, self.dtype, copy=False)
        return self.map_blocks(lambda X: X @ W, lambda scores: function(scores, t), where="X @ W")

    def map_blocks(self, score: Callable[[Array], Array], function: Callable[[Array], Array], *, where: str) -> Array:
        """``function(score(X))`` block by block, results on one pile. Refuses NaN and inf, naming the first.

        NaN and inf are looked for in the scores (m, ...), to which those of a row must spread.
        """

        def map_block(X: Array) -> tuple[Array, Array]:
            scores = score(X)
            return function(scores), self.xp.isfinite(self.xp.sum(scores))

        return self._gather(map(map_block, self.blocks()), where=where, bad=lambda X: self.xp.sum(score(X), axis=1))

    def _gather(self, parts: Iterable[tuple[Array, Array]], *, where: str, bad: Callable[[Array], Array]) -> Array:
        """Results on one pile; the flags beside them, whether a block was finite, are looked at once, at the end."""
        with quiet_floats():
            results, finite = zip(*parts, strict=True)
        if not bool(self.xp.all(self.xp.stack(finite))):
            raise self._nonfinite(where=where, bad=bad)
        return self.xp.concat(results, axis=0)

    def _nonfinite(self, *, where: str, bad: Callable[[Array], Array]) -> ValueError:
        """The error for the first block in which ``bad``, one number a row, is not finite."""
        start = 0
        with quiet_floats():
            for X in self.blocks():
                if not bool(self.xp.all(self.xp.isfinite(bad(X)))):
                    break
                start += X.shape[0]
        locate = {"locate": self.X.locate} if isinstance(self.X, RowSource) else {}
        return nonfinite_error(X, first_row=start, where=where, **locate)


def _dear_to_project(d: int, D: int) -> bool:
    """Whether some 50 passes over rows as they are, at worst centred in each, take less time than projecting them once.

    Per row, projecting takes 2 d D operations; a pass that need not shrink the rows saves nothing by it, and centring
    takes the time of about 25 d operations.
    """
    return D >= 0.9 * d and 2 * D > 50 * 25


class ProjectedRows:
    """Projected rows in blocks, over which training runs its sign pass.

    Parameters
    ----------
    blocks : list of array (m, D)
        On the device; or in page-locked host memory, to go through ``gpu`` in each pass.
    small : dtype
        In which blocks are summed up.
    xp : module
    gpu : Gpu or None
    """

    def __init__(self, blocks: list[Array], *, small: object, xp: ModuleType, gpu: Gpu | None = None) -> None:
        self._blocks = blocks
        self._gpu = gpu
        self._small = small
        self._xp = xp

    @property
    def n(self) -> int:
        """How many rows."""
        return sum(Y.shape[0] for Y in self._blocks)

    def sign_pass(self, V: Array) -> Array:
        """``M = X'B / n`` with ``B = sign(XV)``, for every problem of the batch.

        Parameters
        ----------
        V : array (R, D, L)

        Returns
        -------
        array (R, D, L)
        """
        return self.statistics(V).M

    def statistics(self, V: Array, *, gain: np.ndarray | None = None) -> SignStatistics:
        """A pass with ``B = sign(XV)``; or, for problems with a finite ``gain`` (R,), ``B = clip(gain XV, -1, 1)``."""
        xp, (R, D, L) = self._xp, V.shape
        dtype = self._blocks[0].dtype
        wide = xp.astype(xp.reshape(xp.permute_dims(V, (1, 0, 2)), (D, R * L)), dtype)  # all problems in one product
        targets = Targets(gain, like=wide, n_bits=L, xp=xp)
        sums = _Sums(D, R * L, small=self._small, device=device_of(V), xp=xp)
        for Y in self._blocks if self._gpu is None else stream_rows(self._blocks, self._gpu, pinned=True):
            sums.add(Y, targets(Y @ wide))
        return sums.mean(self.n, R=R)

    def sample(self, places: np.ndarray) -> ProjectedRows:
        """The rows at sorted places, kept where the work is."""
        if self._gpu is None and len(places) == self.n:
            return self
        blocks = self._blocks if self._gpu is None else stream_rows(self._blocks, self._gpu, pinned=True)
        return ProjectedRows(list(_take(blocks, places, xp=self._xp)), small=self._small, xp=self._xp)

    def kept(self) -> ProjectedRows:
        """Rows of a sample in the coordinates of the basis, if they are not there yet."""
        return self

    def onto(self, axes: Array) -> ProjectedRows:
        """Rows of a sample, projected on axes (D, L)."""
        blocks = [Y @ self._xp.astype(axes, Y.dtype) for Y in self._blocks]
        return ProjectedRows(blocks, small=self._small, xp=self._xp)


def _take(blocks: Iterable[Array], places: np.ndarray, *, xp: ModuleType) -> Iterator[Array]:
    """The rows of blocks at sorted places of the whole."""
    start = 0
    for X in blocks:
        first, last = np.searchsorted(places, (start, start + X.shape[0]))
        if last > first:
            yield xp.take(X, from_host(places[first:last] - start, xp=xp, device=device_of(X)), axis=0)
        start += X.shape[0]


class SignStatistics(NamedTuple):
    """What a sign pass leaves, as means over rows."""

    M: Array
    """``X'B / n`` (R, D, L)."""
    balance: Array
    """The mean of B (R, L): how far each bit is from splitting the rows in half."""
    energy: Array
    """The mean of B^2 (R, L): 1 for signs, less for soft ones."""


class Targets:
    """What projections (m, R L) are drawn to: their signs, or soft ones where the problem has a finite gain (R,)."""

    def __init__(self, gain: np.ndarray | None, *, like: Array, n_bits: int, xp: ModuleType) -> None:
        self._xp, self._dtype = xp, like.dtype
        self._gain = self._hard = None
        if gain is not None:
            columns, place = np.repeat(gain, n_bits), {"xp": xp, "device": device_of(like)}
            hard = np.isinf(columns)
            self._gain = xp.astype(from_host(np.where(hard, 0.0, columns), **place), like.dtype)
            self._hard = from_host(hard, **place) if hard.any() else None

    def __call__(self, Z: Array) -> Array:
        """Of projections Z."""
        xp = self._xp
        if self._gain is None:
            return signs(Z >= 0, dtype=self._dtype, xp=xp)
        B = xp.clip(Z * self._gain, -1.0, 1.0)
        return B if self._hard is None else xp.where(self._hard, signs(Z >= 0, dtype=self._dtype, xp=xp), B)


class _Sums:
    """Sums of a sign pass over blocks, all problems side by side in R L columns."""

    def __init__(self, d: int, columns: int, *, small: object, device: object, xp: ModuleType) -> None:
        self._xp, self._small = xp, small
        self.M = xp.zeros((d, columns), dtype=small, device=device)
        self.B = xp.zeros((columns,), dtype=small, device=device)
        self._energy = xp.zeros((columns,), dtype=small, device=device)

    def add(self, X: Array, B: Array) -> None:
        """A block of rows and what they are drawn to."""
        xp = self._xp
        self.M = self.M + xp.astype(xp.matrix_transpose(X) @ B, self._small)
        self.B = self.B + xp.astype(xp.sum(B, axis=0), self._small)
        self._energy = self._energy + xp.astype(xp.sum(B * B, axis=0), self._small)

    def mean(self, n: int, *, R: int) -> SignStatistics:
        """Means over n rows, the problems apart."""
        xp, (d, columns) = self._xp, self.M.shape
        M = xp.permute_dims(xp.reshape(self.M / n, (d, R, columns // R)), (1, 0, 2))
        return SignStatistics(M, *(xp.reshape(x / n, (R, columns // R)) for x in (self.B, self._energy)))


class RereadRows(ProjectedRows):
    """The same passes over rows that are not kept, but read again in each: what is projected is V and M.

    With ``W = s P V`` (d, L), ``B = sign((X - mean) W)`` and ``M = s P' (X - mean)' B / n``: two products a pass, as
    with rows that are kept, and nothing of the height of X.
    """

    def __init__(self, rows: Rows, basis: Basis) -> None:
        self._rows = rows
        self._basis = basis
        self._P = basis.P * basis.scale
        self._centre, self._left = rows.centring(basis)

    @property
    def n(self) -> int:
        """How many rows."""
        return self._rows.shape[0]

    def statistics(self, V: Array, *, gain: np.ndarray | None = None) -> SignStatistics:
        """As for rows that are kept."""
        rows, xp, (R, D, L) = self._rows, self._rows.xp, V.shape
        wide = self._P @ xp.reshape(xp.permute_dims(V, (1, 0, 2)), (D, R * L))  # all problems in one product
        W, constant = (xp.astype(x, rows.dtype) for x in (wide, self._left @ wide))
        targets = Targets(gain, like=W, n_bits=L, xp=xp)
        sums = _Sums(rows.shape[1], R * L, small=rows.small, device=device_of(V), xp=xp)
        for X in rows.blocks():
            X = self._centre(X)
            sums.add(X, targets(X @ W + constant))
        sums.M = xp.matrix_transpose(self._P) @ (sums.M + self._left[:, None] * sums.B)
        return sums.mean(self.n, R=R)

    def sample(self, places: np.ndarray) -> ProjectedRows:
        """As for rows that are kept; they stay as they are where they are dear to project."""
        rows = self._rows
        if rows._ready and len(places) == self.n:
            return self
        taken = _take(rows.blocks(), places, xp=rows.xp)
        if not _dear_to_project(*self._P.shape):
            return self._projected(taken, self._P)
        X = rows.xp.empty((len(places), rows.shape[1]), dtype=rows.dtype, device=rows.device)
        filled = 0
        for part in taken:
            X[filled : filled + part.shape[0], :] = part
            filled += part.shape[0]
        return RereadRows(Rows(X), self._basis)

    def kept(self) -> ProjectedRows:
        """As for rows that are kept."""
        return self._projected(self._rows.blocks(), self._P)

    def onto(self, axes: Array) -> ProjectedRows:
        """As for rows that are kept."""
        return self._projected(self._rows.blocks(), self._P @ axes)

    def _projected(self, blocks: Iterable[Array], P: Array) -> ProjectedRows:
        """Rows on the columns of P (d, K), which is in the type of sums."""
        rows = self._rows
        P, constant = (rows.xp.astype(x, rows.dtype) for x in (P, self._left @ P))
        return ProjectedRows([self._centre(X) @ P + constant for X in blocks], small=rows.small, xp=rows.xp)
