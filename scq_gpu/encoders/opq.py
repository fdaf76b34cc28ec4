"""Optimized product quantization (Ge et al., 2013): codes that name cells, one byte for each group of axes."""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from scq_gpu._core.arrays import (
    Array,
    device_of,
    from_host,
    generator,
    is_dask,
    like,
    namespace,
    quiet_floats,
    to_host,
)
from scq_gpu._core.machine import blas_in_one_thread
from scq_gpu._core.validate import METRICS, check_array, check_choice
from scq_gpu.encoders.base import POSITIVE_INTEGER, Encoder, show_progress
from scq_gpu.io import faiss_index
from scq_gpu.kernels import quantize
from scq_gpu.rows.basis import compute_basis
from scq_gpu.training.cells import CELLS, NU, Quantizer, centers, first_cells, first_rotation, learn

START_ROWS = 64 * CELLS
"""Rows that V is learned on first. Cells of 64 rows fit those better than others, which rounds over all rows mend."""
_MAPS: weakref.WeakKeyDictionary[OPQ, tuple[tuple[Array, ...], quantize.Map]] = weakref.WeakKeyDictionary()
FEW_QUERIES = 64
"""Queries that go without the checks of rows of any kind, which would take longer than their tables."""


class OPQ(Encoder):
    r"""Product codes: each byte names the cell that a row falls into along a group of axes, the axes learned too [1]_.

    Where `OnE` has two levels for each column of V, a group of columns has 256 cells here, in 16 groups of 16. The high
    nibble of a byte names the group, the low nibble the cell in it. A search may look at groups first, and at cells of
    the best rows only. With the cell C(a) and the mean of its group, G(a), of each row, the fit minimizes

    .. math:: \frac1n |X - C(a) V'|^2 + \frac{0.1}n |X - G(a) V'|^2 \quad \text{with} \quad V'V = I

    over V, cells and codes by turns. `encode` then takes the nearest cell.

    Codes of cells keep more neighbors per byte than bits do, for queries that stay floats (`query_tables`). They have
    no Hamming distance: cells whose numbers are alike need not be near each other.

    Parameters
    ----------
    n_bits : int, default=64
        Length of the codes, a multiple of 8. Rows need at least one dimension per byte.
    max_iter : int, default=14
        Rounds over all rows, each of two passes. With more than 16,384 rows, 20 rounds over a sample go before.
    device, random_state, callback, verbose
        As in `OgE`.

    Attributes
    ----------
    axes_ : array (n_bits / 8, width, n_features)
        V' by byte: orthonormal rows, and rows of zeros where a byte has fewer axes than others.
    cells_ : array (n_bits / 8, 256, width)
        Cells along these axes, as differences from the mean.
    mean_ : array (n_features,)
    scale_ : float
        Factor on the rows in training, which gives the leading principal axis a variance of 1.
    loss_curve_ : list of float
        The loss above after each round over all rows. It never rises.
    n_iter_ : int
    n_features_in_, n_samples_, n_samples_kept_ : int
        As in `OgE`.

    References
    ----------
    .. [1] T. Ge, K. He, Q. Ke, J. Sun, "Optimized product quantization for approximate nearest neighbor search",
           CVPR 2013.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import scq_gpu as scq
    >>> X, _ = load_digits(return_X_y=True)
    >>> encoder = scq.OPQ(n_bits=64, random_state=0).fit(X)
    >>> codes = encoder.encode(X)
    >>> codes.shape, encoder.decode(codes).shape
    ((1797, 8), (1797, 64))
    >>> tables, base = encoder.query_tables(X[:5])
    >>> squares = base + sum(tables[:, byte, codes[0, byte]] for byte in range(8))  # from 5 queries to row 0
    >>> squares.shape
    (5,)
    """

    axes_: Array
    cells_: Array
    mean_: Array
    scale_: float
    loss_curve_: list[float]
    n_iter_: int
    _fitted_arrays = ("axes_", "cells_", "mean_")
    _fitted_facts = ("n_features_in_", "scale_", "loss_curve_", "n_iter_", "n_samples_")
    _parameter_constraints: ClassVar[dict[str, Any]] = {"max_iter": POSITIVE_INTEGER, "callback": [callable, None]}

    def __init__(
        self,
        n_bits: int = 64,
        *,
        max_iter: int = 14,
        device: str | None = None,
        random_state: Any = None,
        callback: Callable[[int, float, Any], object] | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(n_bits, device=device)
        self.max_iter = max_iter
        self.random_state = random_state
        self.callback = callback
        self.verbose = verbose

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.n_bits % 8:
            raise ValueError(
                f"n_bits={self.n_bits} is not a multiple of 8, and a code of OPQ is a number of whole bytes; pass "
                f"n_bits={self.n_bits + -self.n_bits % 8}"
            )

    def _learn(self, rows: Any) -> None:
        xp, n_bytes = rows.xp, self.n_bits // 8
        moments = rows.moments()
        total = float(xp.sum(xp.linalg.diagonal(moments.scatter)) / moments.n)
        eps = float(xp.finfo(rows.dtype).eps)
        basis = compute_basis(moments, n_bits=1, n_components=4 * self.n_bits, eps=eps, xp=xp)
        # what is not kept is lost: two axes for each bit, and up to four while they hold less than 85 % of the variance
        less = np.count_nonzero(np.cumsum(to_host(basis.eigenvalues)) < 0.85 * total)
        D = min(basis.lam.shape[0], max(2 * self.n_bits, int(less)))
        basis = dataclasses.replace(basis, P=basis.P[:, :D], lam=basis.lam[:D], eigenvalues=basis.eigenvalues[:D])
        if D < n_bytes:
            raise ValueError(
                f"n_bits={self.n_bits} makes {n_bytes} bytes of at least one dimension each, more than the {D} "
                f"dimensions left after PCA of {rows.shape[0]} rows x {rows.shape[1]} features; lower n_bits"
            )
        projected, rng = rows.project(basis), generator(self.random_state)
        most = min(START_ROWS, projected.n)
        sample = projected.sample(np.sort(rng.choice(projected.n, most, replace=False)))
        V = from_host(first_rotation(to_host(basis.lam), n_bytes), xp=xp, device=rows.device)
        Y = xp.concat([Z @ xp.astype(V, Z.dtype) for Z in sample.coordinates()])
        found = Quantizer(V, *first_cells(Y, n_bytes, rng, dtype=V.dtype, xp=xp))
        run = partial(learn, lam=basis.lam, over=rows.map, xp=xp)
        if most < projected.n:
            found, _ = run(sample, start=found, iterations=show_progress(self, range(20), n=most, what="sample"))

        # the loss along axes that are not kept
        rest = (1 + NU) * max(total - float(xp.sum(basis.eigenvalues)), 0.0)
        losses: list[float] = []

        def settle(encoder: OPQ, found: Quantizer) -> None:
            axes = xp.matrix_transpose(basis.P @ found.V)
            arrays = xp.reshape(axes, (n_bytes, -1, axes.shape[1])), found.cells / basis.scale, basis.mean
            for name, x in zip(self._fitted_arrays, arrays, strict=True):
                setattr(encoder, name, xp.astype(x, rows.dtype))
            encoder.scale_, encoder.loss_curve_, encoder.n_iter_ = basis.scale, list(losses), len(losses)
            encoder.n_samples_ = rows.shape[0]

        def watch(iteration: int, found: Quantizer, loss: float) -> None:
            losses.append(rest + loss / basis.scale**2)
            if self.callback is not None:
                shown = copy.copy(self)
                settle(shown, found)
                self.callback(iteration, losses[-1], shown)

        passes = show_progress(self, range(1, self.max_iter + 1), n=rows.shape[0])
        found, _ = run(projected, start=found, iterations=passes, watch=watch)
        settle(self, found)

    def __getattr__(self, name: str) -> Any:
        if name in ("project", "transform", "to_onnx", "to_torch"):
            raise AttributeError(
                f"OPQ has no {name}: its codes name cells and are no linear map to bits. Search them with float "
                "queries (query_tables, to_faiss), or take OgE, which has one"
            )
        return self.__getattribute__(name)  # raises what Python says of names that are not there

    def _encode(self, X: Any) -> Array:
        if is_dask(X):
            raise TypeError("OPQ does not encode a Dask array; encode parts that fit in memory")
        with self._opened(X, *self._fitted_arrays) as (rows, axes, cells, mean):
            by = self._map_to_cells(axes, cells, mean, xp=rows.xp)
            codes = rows.map_codes(partial(quantize.encode_rows, by=by), cells.shape[0], where="X @ axes")
        return self._returned(codes, rows)

    def _map_to_cells(self, axes: Array, cells: Array, mean: Array, *, xp: ModuleType) -> quantize.Map:
        """Return the map at the scale of training. For one row, making it would take as long as using it."""
        arrays = axes, cells, mean
        known = _MAPS.get(self)
        if known is None or any(x is not y for x, y in zip(known[0], arrays, strict=True)):
            W = xp.matrix_transpose(xp.reshape(axes, (-1, axes.shape[2]))) * self.scale_
            known = _MAPS[self] = arrays, quantize.Map.of(mean, W, cells * self.scale_)
        return known[1]

    def decode(self, codes: Array) -> Array:
        """Return the rows that codes stand for: the mean and the cells of each.

        Parameters
        ----------
        codes : array (n, n_bits / 8) of uint8
            Of any array namespace.

        Returns
        -------
        array (n, n_features) of float
            In the namespace and on the device of the codes.
        """
        check_is_fitted(self)
        codes = check_array(codes, name="codes", min_ndim=2)
        xp, (n_bytes, width, d) = namespace(codes), self.axes_.shape
        if codes.dtype != xp.uint8 or codes.ndim != 2 or codes.shape[1] != n_bytes:
            raise ValueError(
                f"codes are {codes.dtype} of shape {tuple(codes.shape)}; OPQ(n_bits={self.n_bits}) decodes uint8 of "
                f"shape (n, {n_bytes}), as `encode` returns them"
            )
        axes, cells, mean = (like(getattr(self, name), codes) for name in self._fitted_arrays)
        with blas_in_one_thread(xp):
            return mean + centers(codes, cells, xp=xp) @ xp.reshape(axes, (n_bytes * width, d))

    def query_tables(self, X: Any, metric: str = "l2") -> tuple[Array, Array]:
        """Return tables of distances between float queries and cells.

        The distance between query i and a row of code c is ``base[i] + sum(tables[i, byte, c[byte]] for all bytes)``.

        Parameters
        ----------
        X : rows (q, n_features)
            Queries, as for ``encode``.
        metric : {"l2", "cosine", "ip"}, default="l2"
            Distances to the decoded row: the square of the Euclidean, half of it (for rows and queries of length 1), or
            the inner product times -1.

        Returns
        -------
        tables : array (q, n_bits / 8, 256) of float32
        base : array (q,) of float32
            For "l2" and "cosine" the part of the distance outside of V, 0 or more; for "ip" that of the mean.
        """
        check_choice(metric, name="metric", choices=METRICS)
        if self._takes_as_it_is(X):
            with blas_in_one_thread(np), quiet_floats():
                found = self._tables(X, *(getattr(self, name) for name in self._fitted_arrays), metric=metric, xp=np)
            if np.isfinite(np.sum(found)):
                return _split(found, xp=np)
        with self._opened(X, *self._fitted_arrays) as (rows, *arrays):
            measure = partial(self._tables, metric=metric, xp=rows.xp)
            found = rows.map_blocks(lambda X: measure(X, *arrays), lambda x: x, where="query_tables", to_origin=True)
        found = self._returned(found, rows)
        return _split(found, xp=namespace(found))

    def _takes_as_it_is(self, X: Any) -> bool:
        """Return whether X are a few rows of NumPy that need no checks but those of their products."""
        check_is_fitted(self)
        return (
            type(X) is np.ndarray
            and X.ndim == 2
            and 1 <= X.shape[0] <= FEW_QUERIES
            and X.shape[1] == self.n_features_in_
            and X.dtype in (np.float32, np.float64)
            and self.device is None
            and isinstance(self.axes_, np.ndarray)
            and not hasattr(self, "feature_names_in_")
        )

    def _tables(self, X: Array, axes: Array, cells: Array, mean: Array, *, metric: str, xp: ModuleType) -> Array:
        """Return for queries X the entries of all cells, byte by byte, and the base: (q, 256 bytes + 1)."""
        axes, cells, mean = (xp.astype(x, X.dtype, copy=False) for x in (axes, cells, mean))
        n_bytes, width, d = axes.shape
        # squares are taken at the scale of training, where they are near 1
        cells, unit = cells * self.scale_, (0.5 if metric == "cosine" else 1.0) / self.scale_**2
        X = (X if metric == "ip" else X - mean) * self.scale_
        Y = X @ xp.matrix_transpose(xp.reshape(axes, (n_bytes * width, d)))
        if metric == "ip":
            base = -(X @ (mean * self.scale_))
        else:
            base = xp.sum(X * X, axis=1) - xp.sum(Y * Y, axis=1)
            base = xp.maximum(base, xp.zeros_like(base))
        Y = xp.permute_dims(xp.reshape(Y, (X.shape[0], n_bytes, width)), (1, 0, 2))
        tables = -(Y @ xp.matrix_transpose(cells))
        if metric != "ip":
            # a product takes a fifth of the time of a sum along a short axis
            y, c = ((x * x) @ xp.ones((width,), dtype=x.dtype, device=device_of(x)) for x in (Y, cells))
            tables = 2 * tables + y[:, :, None] + c[:, None, :]
            tables = xp.maximum(tables, xp.zeros_like(tables))
        tables = xp.reshape(xp.permute_dims(tables, (1, 0, 2)), (X.shape[0], n_bytes * CELLS))
        return xp.astype(xp.concat([tables, base[:, None]], axis=1) * unit, xp.float32)

    def to_faiss(self) -> Any:
        """Make an empty Faiss index whose codes are those of this encoder, up to the rounding of float32 products.

        Returns
        -------
        faiss.IndexPreTransform (a LinearTransform and an IndexPQ)
            Trained: ``add`` and ``search`` take floats. Its distances are those of `query_tables` without ``base``.
        """
        check_is_fitted(self)
        return faiss_index.make_product_index(*(to_host(getattr(self, name)) for name in self._fitted_arrays))

    @classmethod
    def _array_shapes(cls, params: dict[str, Any], fitted: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
        n_bytes, odd = divmod(params["n_bits"], 8)
        if odd:
            raise ValueError(f"n_bits is {params['n_bits']}, where a multiple of 8 is expected")
        return {"axes_": (n_bytes, "width", "n_features_in_"), "cells_": (n_bytes, CELLS, "width")}


def _split(found: Array, *, xp: ModuleType) -> tuple[Array, Array]:
    """Return tables (q, bytes, 256) and base (q,)."""
    return xp.reshape(found[:, :-1], (found.shape[0], found.shape[1] // CELLS, CELLS)), found[:, -1]
