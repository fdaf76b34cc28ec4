"""Rows in the coordinates of a basis, and the sign pass over them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np

from scq_gpu._core.arrays import Array, cuda_device_of, device_of, elementwise, from_host, namespace, signs
from scq_gpu._core.machine import ordered_map, product
from scq_gpu.rows.basis import Basis
from scq_gpu.rows.stream import join_rows, keep_rows, stream_rows


class SignStatistics(NamedTuple):
    """Means over the rows that a sign pass leaves, with ``B = sign(XV)``."""

    M: Array
    """``X'B / n`` (R, D, L)."""
    balance: Array
    """Mean of B (R, L), which is 0 for a bit that splits the rows in half."""


@dataclass(frozen=True)
class Batch:
    """One of ``count`` batches of rows, each spread evenly over all rows.

    Row i is in batch ``(i + i // height) % count``: every ``count``-th row of a piece of some thousand rows, and one
    row later in the next piece. Rows that alternate, such as questions and answers, are then in all batches alike. The
    rule depends on row numbers alone, so a batch has the same rows however they are cut into blocks.
    """

    number: int
    count: int
    start: int = 0
    """Number of the first row of the first block."""

    def of(self, blocks: Iterable[Array], *, views: bool) -> Iterator[Array]:
        """Yield the rows of this batch as views of pieces of the blocks, or gathered from each block.

        Views cost nothing on the CPU. On a GPU every piece would cost its own launches.
        """
        start = self.start
        for X in blocks:
            parts = self.slices(start, X.shape[0])
            start += X.shape[0]
            if views:
                yield from (X[part, :] for part in parts)
            elif parts:
                xp = namespace(X)
                numbers = np.concatenate([np.arange(part.start, part.stop, part.step) for part in parts])
                yield xp.take(X, from_host(numbers, xp=xp, device=device_of(X)), axis=0)

    def slices(self, start: int, length: int) -> list[slice]:
        """Return the rows of this batch among ``length`` rows, of which the first has the number ``start``."""
        # a batch has a thousand rows of a piece: fewer are not worth handing to a thread
        height = 1024 * max(4, self.count)
        found = []
        for piece in range(start // height, -(-(start + length) // height)):
            low, high = max(start, piece * height), min(start + length, (piece + 1) * height)
            first = low + (self.number - low - piece) % self.count
            if first < high:
                found.append(slice(first - start, high - start, self.count))
        return found

    def size(self, n: int) -> int:
        """Count the rows of this batch among n."""
        return sum(len(range(part.start, part.stop, part.step)) for part in self.slices(self.start, n))


class TrainingRows(Protocol):
    """Rows in the coordinates of a basis, over which training runs its sign passes."""

    n: int

    def statistics(self, V: Array, *, slope: Array | None = None) -> SignStatistics:
        """Run one sign pass at V (R, D, L), for every problem of the batch.

        With a ``slope`` (R, L) the statistics are those of ``B - slope XV`` in place of B.
        """

    def sample(self, numbers: np.ndarray) -> ProjectedRows | UnprojectedRows:
        """Keep the rows of these ascending numbers in memory where the work is."""

    def batches(self, count: int) -> list[Any]:
        """Split the rows into ``count`` batches, each spread evenly over all of them (`Batch`).

        The list is empty for rows that are read from files in each pass, where every batch would cost a full read.
        """


class ProjectedRows:
    """Projected rows in blocks (m, D), which are summed in ``sum_dtype``.

    Blocks are on the device, or in page-locked host memory, from where they go through ``gpu`` in each pass. With a
    ``batch``, passes are restricted to its rows.
    """

    def __init__(
        self, blocks: list[Array], *, sum_dtype: object, xp: ModuleType, gpu: Any = None, batch: Batch | None = None
    ) -> None:
        self.kept, self.gpu = blocks, gpu
        self._sum_dtype, self._xp, self._batch = sum_dtype, xp, batch
        n = sum(Y.shape[0] for Y in blocks)
        self.n = n if batch is None else batch.size(n)

    def statistics(self, V: Array, *, slope: Array | None = None) -> SignStatistics:
        """Run one sign pass at V (R, D, L); see `TrainingRows.statistics`."""
        xp, dtype = self._xp, self.kept[0].dtype
        wide = xp.astype(side_by_side(V, xp=xp), dtype)
        take = _residuals_or_signs(slope, dtype=dtype, xp=xp)

        def sign(Y: Array) -> tuple[Array, Array]:
            return _sums(Y, take(Y @ wide), dtype=self._sum_dtype, xp=xp)

        over = ordered_map if self.gpu is None and isinstance(self.kept[0], np.ndarray) else map
        M, B = _add_up(over(sign, self.coordinates()))
        return _means(M, B, self.n, R=V.shape[0], xp=xp)

    def sample(self, numbers: np.ndarray) -> ProjectedRows:
        """Keep the rows of these ascending numbers in memory where the work is."""
        if len(numbers) == self.n:
            return self
        taken = take_rows(self.coordinates(), numbers, xp=self._xp)
        if self.gpu is not None or cuda_device_of(self.kept[0]) is not None:
            taken = join_rows(taken)
        return self._with(taken, len(numbers), self.kept[0].shape[1])

    def batches(self, count: int) -> list[ProjectedRows | UnprojectedRows]:
        """Split the rows into batches, which share their memory."""
        return [
            ProjectedRows(self.kept, sum_dtype=self._sum_dtype, xp=self._xp, gpu=self.gpu, batch=Batch(number, count))
            for number in range(count)
        ]

    def project(self, axes: Array) -> ProjectedRows:
        """Project the rows on axes (D, K) and keep them in memory where the work is."""
        axes = self._xp.astype(axes, self.kept[0].dtype)
        return self._with((Y @ axes for Y in self.coordinates()), self.n, axes.shape[1])

    def coordinates(self) -> Iterable[Array]:
        """Yield the rows in the coordinates of the basis, in blocks; one may be overwritten by the one after next."""
        if self._batch is None:
            return self.kept if self.gpu is None else stream_rows(self.kept, self.gpu, pinned=True)
        views = self.gpu is None and isinstance(self.kept[0], np.ndarray)
        taken = self._batch.of(self.kept, views=views)
        # of rows that wait in host memory, only those of the batch go to the device
        return taken if self.gpu is None else stream_rows(list(taken), self.gpu)

    def _with(self, blocks: Iterable[Array], n: int, D: int) -> ProjectedRows:
        """Keep other rows (n, D) in memory where the work is, if they fit there."""
        n_bytes = n * D * self._xp.finfo(self.kept[0].dtype).bits // 8
        gpu = self.gpu or cuda_device_of(self.kept[0])
        kept, gpu = (list(blocks), None) if gpu is None else keep_rows(blocks, n_bytes, gpu)
        return ProjectedRows(kept, sum_dtype=self._sum_dtype, xp=self._xp, gpu=gpu)


class UnprojectedRows:
    """Rows that are left as they are; V and M are projected instead.

    With ``W = s P V`` (d, L), ``B = sign((X - mean) W)`` and ``M = s P' (X - mean)' B / n``. A pass takes two products,
    as for projected rows, and nothing of the height of X is kept.
    """

    def __init__(self, rows: Any, basis: Basis, batch: Batch | None = None) -> None:
        self._rows, self._basis, self._batch = rows, basis, batch
        self._P = basis.P * basis.scale
        # V and M need no more digits than the rows have
        self._turn = rows.xp.astype(self._P, rows.dtype, copy=False)
        self._center, self._offset = rows.centering(basis)
        self.n: int = rows.shape[0] if batch is None else batch.size(rows.shape[0])

    @property
    def stays_so(self) -> bool:
        """Tell if projecting a sample of the rows would cost more than it saves."""
        return bool(self._rows.stay_as_they_are(self._P.shape[1], few_passes=True))

    def blocks(self) -> Iterator[Array]:
        """Yield the rows, or those of this batch."""
        if self._batch is None:
            blocks: Iterator[Array] = self._rows.blocks()
            return blocks
        # taller blocks, so that what is left of each is as tall as a block of all rows
        blocks = self._rows.blocks(self._batch.count * self._rows.block_rows)
        return self._batch.of(blocks, views=self._rows.on_host)

    def coordinates(self) -> Iterable[Array]:
        """Yield the rows in the coordinates of the basis, in blocks, projected anew."""
        blocks: Iterable[Array] = self._rows.projected_blocks(self.blocks(), self._basis, self._P)
        return blocks

    def statistics(self, V: Array, *, slope: Array | None = None) -> SignStatistics:
        """Run one sign pass at V (R, D, L); see `TrainingRows.statistics`."""
        rows, xp = self._rows, self._rows.xp
        W = product(self._turn, xp.astype(side_by_side(V, xp=xp), rows.dtype, copy=False))
        constant = xp.astype(self._offset @ xp.astype(W, rows.sum_dtype), rows.dtype)
        take = _residuals_or_signs(slope, dtype=rows.dtype, xp=xp)

        def sign(X: Array) -> tuple[Array, Array]:
            X = self._center(X)
            return _sums(X, take(X @ W, constant), dtype=rows.sum_dtype, xp=xp)

        M, B = _add_up(rows.map(sign, self.blocks()))
        M = xp.astype(M + self._offset[:, None] * B, rows.dtype, copy=False)
        M = xp.astype(product(xp.matrix_transpose(self._turn), M), rows.sum_dtype, copy=False)
        return _means(M, B, self.n, R=V.shape[0], xp=xp)

    def sample(self, numbers: np.ndarray) -> ProjectedRows | UnprojectedRows:
        """Keep the rows of these ascending numbers in memory, unprojected where that is faster."""
        rows = self._rows
        if rows.in_place and len(numbers) == self.n:
            return self
        taken = take_rows(rows.blocks(), numbers, xp=rows.xp)
        if self.stays_so and rows.fit_on_device(len(numbers), rows.shape[1]):
            return UnprojectedRows(rows.gathered(taken, len(numbers)), self._basis)
        projected = rows.projected_blocks(taken, self._basis, self._P)
        if rows.gpu is not None and len(numbers) < self.n:
            projected = join_rows(projected)
        kept: ProjectedRows = rows.kept(projected, len(numbers), self._P.shape[1])
        return kept

    def batches(self, count: int) -> list[ProjectedRows | UnprojectedRows]:
        """Split the rows into batches; none where a pass reads the rows from files."""
        if not self._rows.in_memory:
            return []
        return [UnprojectedRows(self._rows, self._basis, Batch(number, count)) for number in range(count)]

    def project(self, axes: Array) -> ProjectedRows:
        """Project the rows on axes (D, K) and keep them in memory where the work is."""
        projected = self._rows.projected_blocks(self.blocks(), self._basis, self._P @ axes)
        kept: ProjectedRows = self._rows.kept(projected, self.n, axes.shape[1])
        return kept


# ---- the sign pass ----


def side_by_side(V: Array, *, xp: ModuleType) -> Array:
    """Lay the problems of a batch (R, D, L) side by side in one matrix (D, R L), so that one product serves all."""
    R, D, L = V.shape
    return xp.reshape(xp.permute_dims(V, (1, 0, 2)), (D, R * L))


def _residuals_or_signs(slope: Array | None, *, dtype: object, xp: ModuleType) -> Callable[..., Array]:
    """Choose what a pass takes of the projections of a block: their signs, or residuals of these."""
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


def _sums(X: Array, B: Array, *, dtype: object, xp: ModuleType) -> tuple[Array, Array]:
    """Return ``X'B`` and the sum of B over a block of rows."""
    return xp.astype(xp.matrix_transpose(X) @ B, dtype), xp.astype(xp.sum(B, axis=0), dtype)


def _add_up(blocks: Iterable[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Add the sums of blocks, in their order."""
    return functools.reduce(lambda sums, block: (sums[0] + block[0], sums[1] + block[1]), blocks)


def _means(M: Array, B: Array, n: int, *, R: int, xp: ModuleType) -> SignStatistics:
    """Divide sums by n rows and separate the R problems."""
    d, columns = M.shape
    M = xp.permute_dims(xp.reshape(M / n, (d, R, columns // R)), (1, 0, 2))
    return SignStatistics(M, xp.reshape(B / n, (R, columns // R)))


# ---- samples and batches of rows ----


def take_rows(blocks: Iterable[Array], numbers: np.ndarray, *, xp: ModuleType) -> Iterator[Array]:
    """Yield the rows of these ascending numbers, block by block."""
    start = 0
    for X in blocks:
        first, last = np.searchsorted(numbers, (start, start + X.shape[0]))
        if last > first:
            yield xp.take(X, from_host(numbers[first:last] - start, xp=xp, device=device_of(X)), axis=0)
        start += X.shape[0]
