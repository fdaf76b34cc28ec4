"""Where rows come from, and the passes over them.

A pass goes through the rows in blocks that stay in cache and leaves a small result that adds up over blocks. Nothing
else in the package touches rows.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from types import ModuleType

from scq_gpu._validate import nonfinite_error
from scq_gpu._xp import Array, cache_bytes, compute_dtype, device_of, namespace, quiet_floats, row_slices, small_dtype, to_device
from scq_gpu.basis import Basis, Moments
from scq_gpu.codes import signs


class Rows:
    """Rows of an array in memory, handed out in blocks on the device and in the float type of the work.

    Conversion happens block by block: X itself is never copied as a whole.

    Parameters
    ----------
    X : array (n, d)
    device : str or None
        Where to work; None follows X.
    """

    def __init__(self, X: Array, *, device: str | None = None) -> None:
        self.X = X
        self._device = device
        sample = to_device(X[:1, :], device)
        self.xp: ModuleType = namespace(sample)
        self.device = device_of(sample)
        self.dtype = compute_dtype(sample.dtype, xp=self.xp, device=self.device)
        self.small = small_dtype(xp=self.xp, device=self.device)
        self._block_rows = max(128, cache_bytes(sample) // (X.shape[1] * self.xp.finfo(self.dtype).bits // 8))

    @property
    def shape(self) -> tuple[int, int]:
        """(n, d)."""
        return tuple(self.X.shape)

    def blocks(self, size: int | None = None) -> Iterator[Array]:
        """The rows, ``size`` at a time, ready for products."""
        for part in row_slices(self.shape[0], size or self._block_rows):
            yield self.xp.astype(to_device(self.X[part, :], self._device), self.dtype, copy=False)

    def moments(self) -> Moments:
        """The moments pass. Refuses NaN and inf, naming the first."""
        # taller blocks than elsewhere: each adds a d x d matrix to the sum
        size = max(self._block_rows, 4 * self.shape[1])
        parts = (Moments.of_block(X, dtype=self.small, xp=self.xp) for X in self.blocks(size))
        with quiet_floats():  # the result is checked instead
            moments = functools.reduce(operator.add, parts)
        if not bool(self.xp.all(self.xp.isfinite(moments.scatter))):
            raise self._nonfinite(where="the covariance of X", bad=lambda X: self.xp.sum(X * 0.0, axis=1))
        return moments

    def project(self, basis: Basis) -> ProjectedRows:
        """Rows in the coordinates of a basis, kept in memory: the one copy that training makes."""
        P = self.xp.astype(basis.P * basis.scale, self.dtype)
        mean = self.xp.astype(basis.mean, self.dtype)
        rounding = self.xp.astype((self.xp.astype(mean, self.small) - basis.mean) @ basis.P * basis.scale, self.dtype)
        return ProjectedRows([(X - mean) @ P + rounding for X in self.blocks()], small=self.small, xp=self.xp)

    def map_scores(self, W: Array, t: Array, function: Callable[[Array, Array], Array]) -> Array:
        """``function(X @ W, t)`` block by block, results on one pile. Refuses NaN and inf, naming the first."""
        W, t = self.xp.astype(W, self.dtype, copy=False), self.xp.astype(t, self.dtype, copy=False)
        results, finite = [], []
        with quiet_floats():
            for X in self.blocks():
                scores = X @ W
                results.append(function(scores, t))
                finite.append(self.xp.isfinite(self.xp.sum(scores)))  # NaN and inf spread to their row's scores
        if not bool(self.xp.all(self.xp.stack(finite))):
            raise self._nonfinite(where="X @ W", bad=lambda X: self.xp.sum(X @ W, axis=1))
        return self.xp.concat(results, axis=0)

    def _nonfinite(self, *, where: str, bad: Callable[[Array], Array]) -> ValueError:
        """The error for the first block in which ``bad``, one number a row, is not finite."""
        start = 0
        with quiet_floats():
            for X in self.blocks():
                if not bool(self.xp.all(self.xp.isfinite(bad(X)))):
                    break
                start += X.shape[0]
        return nonfinite_error(X, first_row=start, where=where)


class ProjectedRows:
    """Projected rows in blocks, over which training runs its sign pass."""

    def __init__(self, blocks: list[Array], *, small: object, xp: ModuleType) -> None:
        self._blocks = blocks
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
        return self.sign_statistics(V)[0]

    def sign_statistics(self, V: Array) -> tuple[Array, Array]:
        """``M`` (R, D, L), and the mean of B (R, L): how far each bit is from splitting the rows in half."""
        xp, (R, D, L) = self._xp, V.shape
        dtype = self._blocks[0].dtype
        wide = xp.astype(xp.reshape(xp.permute_dims(V, (1, 0, 2)), (D, R * L)), dtype)  # all problems in one product
        M = xp.zeros((D, R * L), dtype=self._small, device=device_of(V))
        total = xp.zeros((R * L,), dtype=self._small, device=device_of(V))
        for Y in self._blocks:
            B = signs(Y @ wide >= 0, dtype=dtype, xp=xp)
            M = M + xp.astype(xp.matrix_transpose(Y) @ B, self._small)
            total = total + xp.astype(xp.sum(B, axis=0), self._small)
        M = xp.permute_dims(xp.reshape(M / self.n, (D, R, L)), (1, 0, 2))
        return M, xp.reshape(total / self.n, (R, L))
