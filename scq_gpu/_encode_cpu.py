"""Encoding rows of NumPy arrays: product, threshold and bits, block by block, straight into the codes."""

from __future__ import annotations

import numpy as np

from scq_gpu._xp import cache_bytes, compute_dtype, device_of, has_numba, namespace, packbits, quiet_floats, row_slices


def encode_rows(X: np.ndarray, W: np.ndarray, t: np.ndarray, out: np.ndarray) -> bool:
    """Write ``pack(X @ W >= t)`` to ``out``, and say whether all scores were finite.

    The rows (n, d) may have any type and layout: they are converted a block at a time. With numba (extra ``cpu``) a
    row's code does not depend on the rows beside it.
    """
    if not X.shape[0]:
        return True
    dtype = compute_dtype(X.dtype, xp=namespace(X), device=device_of(X))
    X, W, t = np.asarray(X), np.asarray(W, dtype=dtype), np.asarray(t, dtype=dtype)
    if has_numba(X):
        from scq_gpu import _encode_numba

        return _encode_numba.encode_rows(X, W, t, out)
    return _encode_blocks(X, W, t, out)


def _encode_blocks(X: np.ndarray, W: np.ndarray, t: np.ndarray, out: np.ndarray) -> bool:
    """The same with NumPy alone: products of blocks that stay in cache."""
    n, (d, n_bits) = X.shape[0], W.shape
    size = min(n, max(16, cache_bytes(X) // (max(d, n_bits) * W.itemsize)))
    scores, bits = np.empty((size, n_bits), dtype=W.dtype), np.empty((size, n_bits), dtype=bool)
    finite = True
    with quiet_floats():  # the scores are looked at instead
        for part in row_slices(n, size):
            block = X[part].astype(W.dtype, copy=False)
            m = block.shape[0]
            np.matmul(block, W, out=scores[:m])
            np.greater_equal(scores[:m], t, out=bits[:m])
            out[part] = packbits(bits[:m], xp=np)
            finite = finite and bool(np.isfinite(scores[:m].min()) and np.isfinite(scores[:m].max()))
    return finite
