"""Encoding rows: product, threshold and bits, block by block, so that the product never exists for all rows at once."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from scq_gpu._core.arrays import Array, compute_dtype, device_of, namespace, quiet_floats, row_slices
from scq_gpu._core.bits import code_bytes, pack_bits
from scq_gpu._core.codes import pack, unpack
from scq_gpu._core.devices import block_bytes, cuda_device_of, is_row_major, on_device_of_arguments, runs_kernels
from scq_gpu._core.threads import ordered_map
from scq_gpu._core.validate import check_linear_map, check_out
from scq_gpu.kernels.cuda import calls, launch
from scq_gpu.kernels.engines import encode_engine, has_encode_kernel

__all__ = ["encode_linear", "pack", "unpack"]


@on_device_of_arguments
def encode_linear(X: Array, W: Array, t: Array, *, precision: str = "exact", out: Array | None = None) -> Array:
    """Encode rows with a linear map: ``pack(X @ W >= t)``.

    Parameters
    ----------
    X : array (n, d)
        Of any real type and memory order; float64 and wide integers are multiplied in float64, all else in float32.
    W : array (d, n_bits)
    t : array (n_bits,)
        All three of one namespace and device.
    precision : {"exact", "accurate", "fast"}
        How the CUDA kernels multiply (see `scq_gpu.kernels.cuda.calls.encode_linear`); elsewhere there is only "exact".
    out : array (n, ceil(n_bits / 8)) of uint8, optional
        Where to write the codes to, such as a memory map; in the namespace of X.

    Returns
    -------
    array (n, ceil(n_bits / 8)) of uint8
        ``out`` if it was given.

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu.kernels import encode_linear
    >>> encode_linear(np.array([[1.0], [0.0], [-1.0]]), np.array([[1.0, -1.0]]), np.array([0.0, 0.5]))
    array([[1],
           [1],
           [2]], dtype=uint8)
    """
    namespace(X, W, t)
    check_linear_map(X, W, t)
    if out is not None:
        check_out(out, shape=(X.shape[0], code_bytes(W.shape[1])), like=X)
    codes, _ = encode_rows(X, W, t, precision=precision, out=out)
    if out is None or codes is out:
        return codes
    out[...] = codes
    return out


def lay_out(W: Array, t: Array, X: Array, *, precision: str) -> tuple[Array, Array]:
    """W and t as `encode_rows` wants them for rows like X, so that not every block of them converts W again."""
    gpu = cuda_device_of(X)
    if gpu is None or precision != "fast" or X.dtype != gpu.xp.float16 or not has_encode_kernel(X):
        return W, t  # taken as they are
    Wt, t = launch.round_to_half(gpu.xp.ascontiguousarray(W.T, dtype=gpu.xp.float32), t, xp=gpu.xp)
    return Wt.T, t


def encode_rows(
    X: Array, W: Array, t: Array, *, precision: str = "exact", out: Array | None = None
) -> tuple[Array, Array | bool]:
    """Codes of rows X, and whether all scores were finite: a boolean, or a boolean array on the device of X.

    ``out`` takes the codes of NumPy rows; elsewhere it is left alone.
    """
    xp = namespace(X)
    dtype = compute_dtype(X.dtype, xp=xp, device=device_of(X))
    if runs_kernels(X) and is_row_major(X) and not has_encode_kernel(X):
        X = xp.astype(X, dtype, copy=False)  # other types have kernels once they are converted
    engine = encode_engine(X, precision)
    if engine == "cuda":
        return calls.encode_rows(X, W, t, precision=precision)
    W, t = (xp.astype(x, dtype, copy=False) for x in (W, t))
    if engine == "arrays":
        return _encode_arrays(X, W, t, xp=xp)
    codes = np.empty((X.shape[0], code_bytes(W.shape[1])), dtype=np.uint8) if out is None else out
    if not X.shape[0]:
        return codes, True
    if engine == "llvm":
        from scq_gpu.kernels import encode_llvm

        return codes, encode_llvm.encode_rows(np.asarray(X), np.asarray(W), np.asarray(t), codes)
    return codes, _encode_numpy(np.asarray(X), W, t, codes)


def _encode_arrays(X: Array, W: Array, t: Array, *, xp: ModuleType) -> tuple[Array, Array]:
    """Products of blocks that stay in cache, in any namespace."""
    size = max(128, block_bytes(X) // (max(W.shape) * xp.finfo(W.dtype).bits // 8))
    codes, finite = [], []
    for part in row_slices(X.shape[0], size) or [slice(0, 0)]:
        scores = xp.astype(X[part, :], W.dtype, copy=False) @ W
        codes.append(pack_bits(scores >= t, xp=xp))
        finite.append(xp.isfinite(xp.sum(scores)))
    return xp.concat(codes, axis=0), xp.all(xp.stack(finite))


def _encode_numpy(X: np.ndarray, W: np.ndarray, t: np.ndarray, out: np.ndarray) -> bool:
    """The same with NumPy, straight into the codes."""
    n, (d, n_bits) = X.shape[0], W.shape
    size = min(n, max(16, block_bytes(X) // (max(d, n_bits) * W.itemsize)))

    def encode(part: slice) -> bool:
        with quiet_floats():  # the scores are checked instead
            scores = X[part].astype(W.dtype, copy=False) @ W
        out[part] = pack_bits(scores >= t, xp=np)
        return bool(np.isfinite(scores.min()) and np.isfinite(scores.max()))

    return all(list(ordered_map(encode, row_slices(n, size))))
