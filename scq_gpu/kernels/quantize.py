"""Product codes of rows: the nearest of 256 cells for each byte, by the native core, a CUDA kernel or array operations.

Byte g of rotated rows Y (m, bytes * w) names the cell c of ``cells[g]`` for which ``y . c - |c|^2 / 2`` is largest.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from scq_gpu._core.arrays import Array, compute_dtype, device_of, namespace, on_gpu, quiet_floats, row_slices
from scq_gpu.kernels import native
from scq_gpu.kernels.cuda import quantize as cuda


class Map(NamedTuple):
    """From rows to product codes: the cells nearest to (X - mean) @ W."""

    mean: Array
    """(d,)"""
    W: Array
    """(d, bytes * w)"""
    cells: Array
    """(bytes, 256, w)"""
    halves: Array
    """(bytes, 256): half the squared lengths of the cells"""

    @classmethod
    def of(cls, mean: Array, W: Array, cells: Array) -> Map:
        """Return the map with the lengths of its cells."""
        return cls(mean, W, cells, _halves(cells, xp=namespace(cells)))


def encode_rows(X: Array, by: Map, *, out: Array | None = None) -> tuple[Array, Array | bool]:
    """Encode rows X, and return the codes (n, bytes) and whether all products were finite, as `encode.encode_rows`."""
    xp = namespace(X)
    dtype = compute_dtype(X.dtype, xp=xp, device=device_of(X))
    if isinstance(X, np.ndarray) and not (native.runs_native(X) or on_gpu(X)):
        # How BLAS rounds depends on the place of a row, whose code is not to depend on it
        dtype = xp.float64
    by = Map(*(xp.astype(x, dtype, copy=False) for x in by))
    if native.runs_native(X):
        codes = np.empty((X.shape[0], by.cells.shape[0]), dtype=np.uint8) if out is None else np.asarray(out)
        return codes, native.quantize_into(codes, np.asarray(X), by.mean, by.W, by.cells, by.halves)
    # How products round depends on the height of a matrix, too, so each has the same, the last filled up with zeros. On
    # a GPU few large products take less time.
    height = 4096 if on_gpu(X) else 128

    def each(X: Array, function: Callable[[Array], Array]) -> Array:
        n = X.shape[0]
        filling = xp.zeros((-n % height, X.shape[1]), dtype=X.dtype, device=device_of(X))
        X = xp.concat([X, filling]) if filling.shape[0] else X
        return xp.concat([function(X[part, :]) for part in row_slices(X.shape[0], height)])[:n, ...]

    with quiet_floats():
        Y = each(X, lambda X: (xp.astype(X, dtype, copy=False) - by.mean) @ by.W)
        if cuda.has_quantize_kernel(Y, by.cells):
            codes, finite = cuda.nearest_on_gpu(Y, by.cells, by.halves)
        else:
            codes, finite = each(Y, lambda Y: nearest(Y, by.cells, xp=xp)), xp.isfinite(xp.sum(Y))
    if out is None:
        return codes, finite
    out[...] = codes
    return out, finite


def nearest(Y: Array, cells: Array, squares: Array | None = None, *, xp: ModuleType) -> Array:
    """Return the numbers (m, bytes) of the cells nearest to rotated rows Y (m, bytes * w).

    ``squares`` (bytes, 256) are added to distances in place of the squared lengths of the cells.
    """
    K, w = cells.shape[1:]
    halves = _halves(cells, xp=xp) if squares is None else squares / 2
    if K == 256 and Y.shape[0] and native.runs_native(Y):
        codes = np.empty((Y.shape[0], cells.shape[0]), dtype=np.uint8)
        native.quantize_into(codes, np.asarray(Y), None, None, cells, halves, threads=1)
        return codes
    if cuda.has_quantize_kernel(Y, cells):
        return cuda.nearest_on_gpu(Y, cells, halves)[0]
    found = []
    for g in range(cells.shape[0]):
        scores = Y[:, g * w : (g + 1) * w] @ xp.matrix_transpose(cells[g, ...])
        scores -= halves[g, :]
        found.append(xp.argmax(scores, axis=1))
    return xp.astype(xp.stack(found, axis=1), xp.uint8)


def sum_by_cell(codes: Array, Y: Array, K: int, *, dtype: Any, xp: ModuleType) -> Array:
    """Return for K cells of each byte (bytes, K, w + 1) the sum of their rows in Y, and their number."""
    w = Y.shape[1] // codes.shape[1]
    if native.runs_native(Y) and dtype == xp.float64:
        sums = np.zeros((codes.shape[1], 256, w + 1))
        native.core.add_by_cell(np.ascontiguousarray(codes), np.ascontiguousarray(Y), sums, 1)
        return sums[:, :K]
    # rows are sorted by cell, so the sums of the cells are differences of running sums
    every = xp.arange(K, dtype=codes.dtype, device=device_of(codes))
    one = xp.ones((Y.shape[0], 1), dtype=dtype, device=device_of(Y))
    found = []
    for g in range(codes.shape[1]):
        order = xp.argsort(codes[:, g], stable=True)
        ends = xp.searchsorted(xp.take(codes[:, g], order), every, side="right")
        rows = xp.take(Y[:, g * w : (g + 1) * w], order, axis=0)
        running = xp.cumulative_sum(xp.concat([xp.astype(rows, dtype), one], axis=1), axis=0, include_initial=True)
        upto = xp.take(running, ends, axis=0)
        found.append(upto - xp.concat([running[:1, :], upto[:-1, :]]))
    return xp.stack(found)


def _halves(cells: Array, *, xp: ModuleType) -> Array:
    return xp.sum(cells * cells, axis=-1) / 2
