r"""Cells of groups of axes, and the rotation that suits them.

The columns of V come in groups of w, each with a codebook of 256 cells that one byte names. The high nibble of a cell's
number names one of 16 groups of cells, which a search looks at first. With the cell C(a) and the mean of its group,
G(a), of each row, the rows Z in the coordinates of a basis are fitted by

    min |Z V - C(a)|^2 + nu |Z V - G(a)|^2   over V'V = I, the cells, and the codes a,

by turns: a row gets its nearest cell, in the sum of both terms; a cell and a group move to the means of their rows; and
``V = polar(Z'(C(a) + nu G(a)))`` (Ge et al., 2013, for nu = 0). No turn raises the loss.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from scq_gpu._core.arrays import Array, device_of, from_host, row_slices, to_host
from scq_gpu.kernels.linalg import orthonormalize, polar
from scq_gpu.kernels.quantize import nearest, sum_by_cell

NIBBLE = 16
CELLS = NIBBLE**2  # that one byte can name
NU = 0.1
"""Weight of groups, which a search by groups needs tight (theory.md)."""
LEAP = 0.8
"""How far codes are found ahead of V, in units of its last step."""
HEIGHT = 4096
"""Rows whose distances to the cells of one byte stay in cache."""

Map = Callable[[Callable[..., Any], Iterable[Any]], Iterable[Any]]


class Quantizer(NamedTuple):
    """A rotation and its cells."""

    V: Array
    """(D, bytes * w), orthonormal but for columns of zeros, which fill up the groups."""
    cells: Array
    """(bytes, 256, w)"""
    groups: Array
    """(bytes, 16, w): the mean of the rows of each."""


# ---- rows and cells ----


def centers(codes: Array, cells: Array, *, xp: ModuleType) -> Array:
    """Return the cells (m, bytes * w) that codes (m, bytes) name."""
    return xp.concat([xp.take(cells[g, ...], codes[:, g], axis=0) for g in range(cells.shape[0])], axis=1)


def _move(cells: Array, sums: Array, *, xp: ModuleType) -> Array:
    """Move cells to the means of their rows; a cell without rows stays."""
    counts = sums[..., -1:]
    return xp.where(counts > 0, sums[..., :-1] / xp.where(counts > 0, counts, 1.0), cells)


# ---- the start ----


def first_rotation(variances: np.ndarray, n_bytes: int) -> np.ndarray:
    """Return V (D, bytes * w) of the axes of these falling variances, so that the products of bytes are about the same.

    Each axis goes to the byte of least product so far that has room (Ge et al., 2013).
    """
    w = -(-len(variances) // n_bytes)
    V = np.zeros((len(variances), n_bytes, w))
    # no logarithm is below 0, so an axis always adds to a product
    logs, products, sizes = np.log(variances / variances[-1]), np.zeros(n_bytes), np.zeros(n_bytes, dtype=int)
    for axis, log in enumerate(logs):
        # of equal products, the byte of fewest axes
        byte = np.lexsort((sizes, np.where(sizes < w, products, np.inf)))[0]
        V[axis, byte, sizes[byte]] = 1.0
        products[byte] += log
        sizes[byte] += 1
    return V.reshape(len(variances), n_bytes * w)


def first_cells(Y: Array, n_bytes: int, rng: np.random.Generator, *, dtype: Any, xp: ModuleType) -> tuple[Array, Array]:
    """Find cells (bytes, 256, w) and groups (bytes, 16, w) for rotated rows Y by k-means, and k-means in each group."""
    w = Y.shape[1] // n_bytes
    groups, codes = _k_means(Y, n_bytes, rng, dtype=dtype, xp=xp)
    codes, found = to_host(codes), []
    for g in range(n_bytes):
        for k in range(NIBBLE):
            # a group without rows gets the cells of all, which then keep none of them
            rows = np.flatnonzero(codes[:, g] == k) if np.any(codes[:, g] == k) else np.arange(len(codes))
            part = xp.take(Y[:, g * w : (g + 1) * w], from_host(rows, xp=xp, device=device_of(Y)), axis=0)
            found.append(_k_means(part, 1, rng, dtype=dtype, xp=xp)[0])
    return xp.reshape(xp.concat(found), (n_bytes, CELLS, w)), groups


def _k_means(Y: Array, n_bytes: int, rng: np.random.Generator, *, dtype: Any, xp: ModuleType) -> tuple[Array, Array]:
    """Return 16 cells of each byte (bytes, 16, w) from random rows on, and the codes of the rows."""
    n = Y.shape[0]
    numbers = from_host(rng.choice(n, NIBBLE, replace=n < NIBBLE), xp=xp, device=device_of(Y))
    cells = xp.astype(xp.permute_dims(xp.reshape(xp.take(Y, numbers, axis=0), (NIBBLE, n_bytes, -1)), (1, 0, 2)), dtype)
    # the rounds over all 256 cells that follow make up for what is missing
    for _ in range(8):
        codes = nearest(Y, xp.astype(cells, Y.dtype), xp=xp)
        cells = _move(cells, sum_by_cell(codes, Y, NIBBLE, dtype=dtype, xp=xp), xp=xp)
    return cells, nearest(Y, xp.astype(cells, Y.dtype), xp=xp)


# ---- rounds ----


def learn(
    rows: Any,
    lam: Array,
    start: Quantizer,
    *,
    iterations: Iterable[int],
    over: Map,
    watch: Callable[[int, Quantizer, float], object] | None = None,
    xp: ModuleType,
) -> tuple[Quantizer, list[float]]:
    """Run rounds from a start, and return the last quantizer and the loss after each round, which never rises.

    ``rows.coordinates()`` gives blocks (m, D) with variances ``lam``, and ``over`` maps a function over them. V moves
    slowly, since the cells hold on to it, so codes are found ahead of it, at ``V + (V - V_previous)``. Where that
    raises the loss, the round is taken back and the next is run at V itself.
    """
    found, ahead = start, start.V
    losses: list[float] = []
    for iteration in iterations:
        moved, M, square = _round(rows, found._replace(V=ahead), over=over, xp=xp)
        V = _rotate(M, found.V, lam, xp=xp)
        loss = float((1 + NU) * xp.sum(lam) + square - 2 * xp.sum(M * V))
        if losses and loss > losses[-1]:
            ahead, loss = found.V, losses[-1]
        else:
            ahead, found = V + LEAP * (V - found.V), moved._replace(V=V)
        losses.append(loss)
        if watch is not None:
            watch(iteration, found, loss)
    return found, losses


def _round(rows: Any, at: Quantizer, *, over: Map, xp: ModuleType) -> tuple[Quantizer, Array, Array]:
    """Move cells and groups to means of rows, and return them with the moments ``Z'T / n`` and ``|C|^2 + nu |G|^2``.

    T is ``C(a) + nu G(a)``.
    """
    (n_bytes, K, w), dtype = at.cells.shape, at.cells.dtype
    targets, squares = _pulled(at, xp=xp)

    def code(Z: Array) -> tuple[Array, Array]:
        V, T, lengths = (xp.astype(x, Z.dtype, copy=False) for x in (at.V, targets, squares))
        parts, sums = [], xp.zeros((n_bytes, K, w + 1), dtype=dtype, device=device_of(Z))
        for part in row_slices(Z.shape[0], HEIGHT):
            Y = Z[part, :] @ V
            parts.append(nearest(Y, T, lengths, xp=xp))
            sums = sums + sum_by_cell(parts[-1], Y, K, dtype=dtype, xp=xp)
        return xp.concat(parts), sums

    def correlate(pair: tuple[Array, Array]) -> Array:
        Z, codes = pair
        T = centers(codes, xp.astype(targets, Z.dtype, copy=False), xp=xp)
        return xp.astype(xp.matrix_transpose(Z) @ T, dtype)

    coded = list(over(code, rows.coordinates()))
    sums = functools.reduce(operator.add, (sums for _, sums in coded))
    of_groups = xp.sum(xp.reshape(sums, (n_bytes, NIBBLE, NIBBLE, w + 1)), axis=2)
    moved = Quantizer(at.V, _move(at.cells, sums, xp=xp), _move(at.groups, of_groups, xp=xp))
    targets, squares = _pulled(moved, xp=xp)
    blocks = zip(rows.coordinates(), (codes for codes, _ in coded), strict=True)
    M = functools.reduce(operator.add, over(correlate, blocks))
    return moved, M / rows.n, xp.sum(sums[..., -1] * squares) / rows.n


def _pulled(at: Quantizer, *, xp: ModuleType) -> tuple[Array, Array]:
    """Return ``C + nu G`` (bytes, 256, w) and ``|C|^2 + nu |G|^2`` (bytes, 256) of each cell C and its group G."""
    n_bytes, _, w = at.cells.shape
    C, G = xp.reshape(at.cells, (n_bytes, NIBBLE, NIBBLE, w)), at.groups[:, :, None, :]
    squares = xp.sum(C * C, axis=-1) + NU * xp.sum(G * G, axis=-1)
    return xp.reshape(C + NU * G, at.cells.shape), xp.reshape(squares, (n_bytes, CELLS))


def _rotate(M: Array, V: Array, lam: Array, *, xp: ModuleType) -> Array:
    """Return the V of least loss for M, near the V before where M leaves it open: with a little of it added to M.

    That is a proximal term, under which the loss does not rise. Columns of zeros stay.
    """
    used = to_host(xp.any(V != 0, axis=0))
    place = from_host(np.where(used, np.cumsum(used) - 1, used.sum()), xp=xp, device=device_of(M))
    kept = from_host(np.flatnonzero(used), xp=xp, device=device_of(M))
    # directions shorter than the root of eps would be lost in the polar factor
    little = 64 * float(xp.finfo(M.dtype).eps) ** 0.5 * lam[0]
    A = xp.take(M + little * V, kept, axis=1)
    A = orthonormalize(polar(A, xp=xp), xp=xp)
    return xp.take(xp.concat([A, 0 * A[:, :1]], axis=1), place, axis=1)
