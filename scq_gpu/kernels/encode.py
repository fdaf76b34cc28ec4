"""Encoding rows: which engine runs, and those in array operations.

Product, threshold and bits are computed block by block, so the product never exists for all rows at once. Few rows are
encoded by the same engine as many, so a row has one code.
"""

from __future__ import annotations

from types import ModuleType
from typing import Final

import numpy as np

from scq_gpu._core.arrays import (
    Array,
    block_bytes,
    compute_dtype,
    cuda_device_of,
    device_of,
    is_row_major,
    namespace,
    on_device_of_arguments,
    quiet_floats,
    row_slices,
    runs_kernels,
)
from scq_gpu._core.bits import code_bytes, pack_bits
from scq_gpu._core.machine import ordered_map
from scq_gpu._core.validate import check_choice, check_linear_map, check_out
from scq_gpu.kernels import native
from scq_gpu.kernels.cuda import encode as cuda
from scq_gpu.kernels.cuda.launch import capability_of, element_of

PRECISIONS: Final = ("exact", "accurate", "fast")


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
        How the CUDA kernels multiply; elsewhere there is only "exact". "exact" multiplies in float32. "accurate" takes
        three TF32 passes of the tensor cores for float32 features, with an error of the size of float32's. "fast" takes
        one: float32 features and W are rounded to TF32, W to the type of float16 and bfloat16 features.
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


def has_encode_kernel(X: Array) -> bool:
    """Return whether a CUDA kernel encodes X as it is: row-major floats, on a GPU no older than the kernels."""
    fits = runs_kernels(X) and X.ndim == 2 and element_of(X) in cuda.ELEMENT_BYTES and is_row_major(X)
    return fits and capability_of(X) >= cuda.OLDEST


def encode_engine(X: Array, precision: str) -> str:
    """Name the engine that encodes rows X: "cuda", "native", "numpy" or "arrays"; raise if none has the precision."""
    check_choice(precision, name="precision", choices=PRECISIONS)
    if has_encode_kernel(X):
        return "cuda"
    if precision != "exact":
        if runs_kernels(X) and capability_of(X) < cuda.OLDEST:
            raise RuntimeError(
                f"precision={precision!r} needs compute capability {cuda.OLDEST / 10} or newer; {device_of(X)} has "
                f"{capability_of(X) / 10}. Pass precision='exact', which runs there by array operations"
            )
        raise ValueError(
            f"precision={precision!r} needs a CUDA array (CuPy's, or torch's with CuPy installed), row-major, of "
            f"float32, float16 or bfloat16; X is {X.dtype} of {namespace(X).__name__} on {device_of(X)}. Move it, or "
            f"pass precision='exact' (of {', '.join(map(repr, PRECISIONS))}), which runs everywhere"
        )
    if isinstance(X, np.ndarray):
        return "native" if native.runs_native(X) else "numpy"
    return "arrays"


def lay_out(W: Array, t: Array, X: Array, *, precision: str) -> tuple[Array, Array]:
    """Convert W and t to what `encode_rows` needs for rows like X, once for all blocks of them."""
    gpu = cuda_device_of(X)
    # every other kernel gets W and t as they are
    if gpu is None or precision != "fast" or X.dtype != gpu.xp.float16 or not has_encode_kernel(X):
        return W, t
    Wt, t = cuda.round_map(gpu, W, t, element="float16")
    return Wt.T, t


def encode_rows(
    X: Array, W: Array, t: Array, *, precision: str = "exact", out: Array | None = None
) -> tuple[Array, Array | bool]:
    """Encode rows X, and return the codes and whether all scores were finite.

    The second is a boolean, or a boolean array on the device of X. ``out`` takes the codes of NumPy rows; elsewhere it
    is left alone.
    """
    xp = namespace(X)
    dtype = compute_dtype(X.dtype, xp=xp, device=device_of(X))
    # rows of other types have a kernel once they are converted
    if runs_kernels(X) and is_row_major(X) and not has_encode_kernel(X):
        X = xp.astype(X, dtype, copy=False)
    engine = encode_engine(X, precision)
    if engine == "cuda":
        return cuda.encode_on_gpu(X, W, t, precision=precision)  # type: ignore[arg-type]
    W, t = (xp.astype(x, dtype, copy=False) for x in (W, t))
    if engine == "arrays":
        return _encode_arrays(X, W, t, xp=xp)
    codes = np.empty((X.shape[0], code_bytes(W.shape[1])), dtype=np.uint8) if out is None else out
    if not X.shape[0]:
        return codes, True
    if engine == "native":
        return codes, native.encode_into(codes, np.asarray(X), np.asarray(W), np.asarray(t))
    return codes, _encode_into(codes, np.asarray(X), W, t)


def _encode_arrays(X: Array, W: Array, t: Array, *, xp: ModuleType) -> tuple[Array, Array]:
    """Encode blocks that stay in cache, in any namespace."""
    size = max(128, block_bytes(X) // (max(W.shape) * xp.finfo(W.dtype).bits // 8))
    codes, finite = [], []
    for part in row_slices(X.shape[0], size) or [slice(0, 0)]:
        scores = xp.astype(X[part, :], W.dtype, copy=False) @ W
        codes.append(pack_bits(scores >= t, xp=xp))
        finite.append(xp.isfinite(xp.sum(scores)))
    return xp.concat(codes, axis=0), xp.all(xp.stack(finite))


def _encode_into(out: np.ndarray, X: np.ndarray, W: np.ndarray, t: np.ndarray) -> bool:
    """Encode blocks with NumPy, straight into the codes, and return whether all scores were finite.

    Products are in float64: how BLAS rounds depends on the place of a row, whose code is not to depend on it.
    """
    n, (d, n_bits), largest = X.shape[0], W.shape, np.finfo(W.dtype).max
    W = W.astype(np.float64)
    size = min(n, max(16, block_bytes(X) // (max(d, n_bits) * W.itemsize)))

    def encode(part: slice) -> bool:
        # no warnings: the scores are checked instead
        with quiet_floats():
            scores = X[part].astype(np.float64) @ W
        out[part] = pack_bits(scores >= t, xp=np)
        # compares false with NaN
        return bool(scores.min() >= -largest and scores.max() <= largest)

    return all(list(ordered_map(encode, row_slices(n, size))))
