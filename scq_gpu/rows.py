"""Where rows come from, and the passes over them.

A pass goes through the rows in blocks that stay in cache and leaves a small result that adds up over blocks. Nothing
else in the package touches rows.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType

import numpy as np

from scq_gpu._stream import Gpu, fits, stream_rows
from scq_gpu._validate import nonfinite_error
from scq_gpu._xp import (
    Array,
    cache_bytes,
    compute_dtype,
    device_of,
    gpu_of,
    namespace,
    quiet_floats,
    row_slices,
    small_dtype,
    to_device,
)
from scq_gpu.basis import Basis, Moments
from scq_gpu.codes import encode_linear, has_kernel, pack_bits, signs


class Rows:
    """Rows of an array in memory, handed out in blocks on the device and in the float type of the work.

    Conversion happens block by block: X itself is never copied as a whole. Rows in host memory go through a GPU in two
    buffers, one filled while the other is worked on.

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
        self._sample = sample
        self._gpu: Gpu | None = gpu_of(sample)
        self._block_rows = max(128, cache_bytes(sample) // (X.shape[1] * self.xp.finfo(self.dtype).bits // 8))

    @property
    def shape(self) -> tuple[int, int]:
        """(n, d)."""
        return tuple(self.X.shape)

    def blocks(self, size: int | None = None) -> Iterator[Array]:
        """The rows, ``size`` at a time, ready for products; a block may be overwritten by the one after next."""
        return (self.xp.astype(X, self.dtype, copy=False) for X in self._stored_blocks(size))

    def _stored_blocks(self, size: int | None = None) -> Iterator[Array]:
        """The rows on the device in the type they are stored in."""
        blocks = (self.X[part, :] for part in row_slices(self.shape[0], size or self._block_rows))
        if self._gpu is not None and isinstance(self.X, np.ndarray):
            return stream_rows(blocks, self._gpu)
        return (to_device(X, self._device) for X in blocks)

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
        """Rows in the coordinates of a basis, kept in memory: the one copy that training makes.

        They stay where the work is, unless that is a GPU with too little room; then they wait in host memory.
        """
        P = self.xp.astype(basis.P * basis.scale, self.dtype)
        mean = self.xp.astype(basis.mean, self.dtype)
        rounding = self.xp.astype((self.xp.astype(mean, self.small) - basis.mean) @ basis.P * basis.scale, self.dtype)
        blocks = ((X - mean) @ P + rounding for X in self.blocks())
        n_bytes = self.shape[0] * P.shape[1] * self.xp.finfo(self.dtype).bits // 8
        if self._gpu is None or fits(n_bytes, self._gpu):
            return ProjectedRows(list(blocks), small=self.small, xp=self.xp)
        on_host = [self._gpu.download(Y) for Y in blocks]
        return ProjectedRows(on_host, small=self.small, xp=self.xp, gpu=self._gpu)

    def encode(self, W: Array, t: Array, *, precision: str) -> Array:
        """Packed codes of the rows. Refuses NaN and inf, naming the first.

        A kernel takes the rows as they are stored and keeps the scores to itself, so the rows' averages are looked at.
        """
        stored = has_kernel(self._sample, "exact")
        sample = self._sample if stored else self.xp.astype(self._sample, self.dtype, copy=False)
        if not has_kernel(sample, precision):
            return self.map_scores(W, t, lambda scores, t: pack_bits(scores >= t, xp=self.xp))
        W, t = (self.xp.astype(x, self.xp.float32, copy=False) for x in (W, t))
        weights = self.xp.full((self.shape[1],), 0.5 / self.shape[1], dtype=sample.dtype, device=self.device)

        def encode_block(X: Array) -> tuple[Array, Array]:
            codes = encode_linear(X, W, t, precision=precision)
            return codes, self.xp.all(self.xp.isfinite(X @ weights))  # half an average of finite numbers is finite

        blocks = self._stored_blocks() if stored else self.blocks()
        return self._gather(map(encode_block, blocks), where="X", bad=lambda X: self.xp.mean(X, axis=1))

    def map_scores(self, W: Array, t: Array, function: Callable[[Array, Array], Array]) -> Array:
        """``function(X @ W, t)`` block by block, results on one pile. Refuses NaN and inf, naming the first."""
        W, t = self.xp.astype(W, self.dtype, copy=False), self.xp.astype(t, self.dtype, copy=False)

        def map_block(X: Array) -> tuple[Array, Array]:
            scores = X @ W
            return function(scores, t), self.xp.isfinite(self.xp.sum(scores))  # NaN and inf spread to the row's scores

        return self._gather(map(map_block, self.blocks()), where="X @ W", bad=lambda X: self.xp.sum(X @ W, axis=1))

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
        return nonfinite_error(X, first_row=start, where=where)


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
        return self.sign_statistics(V)[0]

    def sign_statistics(self, V: Array) -> tuple[Array, Array]:
        """``M`` (R, D, L), and the mean of B (R, L): how far each bit is from splitting the rows in half."""
        xp, (R, D, L) = self._xp, V.shape
        dtype = self._blocks[0].dtype
        wide = xp.astype(xp.reshape(xp.permute_dims(V, (1, 0, 2)), (D, R * L)), dtype)  # all problems in one product
        M = xp.zeros((D, R * L), dtype=self._small, device=device_of(V))
        total = xp.zeros((R * L,), dtype=self._small, device=device_of(V))
        for Y in self._blocks if self._gpu is None else stream_rows(self._blocks, self._gpu, pinned=True):
            B = signs(Y @ wide >= 0, dtype=dtype, xp=xp)
            M = M + xp.astype(xp.matrix_transpose(Y) @ B, self._small)
            total = total + xp.astype(xp.sum(B, axis=0), self._small)
        M = xp.permute_dims(xp.reshape(M / self.n, (D, R, L)), (1, 0, 2))
        return M, xp.reshape(total / self.n, (R, L))
