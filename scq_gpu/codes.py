"""The bit contract: how signs become bytes, here and nowhere else.

- Bit k is 1 where ``x . w_k >= t_k``; zero counts as one, in training and in encoding alike.
- Bit k lives in byte ``k // 8`` at position ``k % 8``, least significant bit first.
- A code has ``ceil(n_bits / 8)`` bytes; padding bits are 0.
"""

from __future__ import annotations

from types import ModuleType
from typing import Final, overload

import numpy as np
from numpy.typing import NDArray

from scq_gpu import kernels
from scq_gpu._encode_cpu import encode_rows
from scq_gpu._validate import (
    check_array,
    check_choice,
    check_codes,
    check_integer,
    check_linear_map,
    check_out,
    check_signs,
)
from scq_gpu._xp import Array, cache_bytes, compute_dtype, device_of, namespace, packbits, row_slices

BIT_CONTRACT: Final = "bit k = [x.w_k >= t_k]; byte k//8, position k%8, LSB first; padding 0; v1"


def code_bytes(n_bits: int) -> int:
    """Bytes of a code of ``n_bits`` bits."""
    return -(-n_bits // 8)


@overload
def pack(B: np.ndarray) -> NDArray[np.uint8]: ...
@overload
def pack(B: Array) -> Array: ...
def pack(B: Array) -> Array:
    """Pack signs or booleans into bytes.

    Parameters
    ----------
    B : array (..., n_bits)
        -1/+1 of any signed type, 0/1, or booleans.

    Returns
    -------
    array (..., ceil(n_bits / 8)) of uint8
        In the namespace of B.

    Examples
    --------
    >>> import numpy as np
    >>> import scq_gpu as scq
    >>> scq.pack(np.array([[1, -1, -1, -1, -1, -1, -1, -1, 1]], dtype=np.int8))
    array([[1, 1]], dtype=uint8)
    """
    B = check_array(B, name="B", min_ndim=1)
    xp = namespace(B)
    return pack_bits(check_signs(B, xp=xp), xp=xp)


@overload
def unpack(codes: np.ndarray, n_bits: int) -> NDArray[np.int8]: ...
@overload
def unpack(codes: Array, n_bits: int) -> Array: ...
def unpack(codes: Array, n_bits: int) -> Array:
    """Unpack codes into signs, the inverse of `pack`.

    Parameters
    ----------
    codes : array (..., ceil(n_bits / 8)) of uint8
    n_bits : int

    Returns
    -------
    array (..., n_bits) of int8
        -1 and +1, the paper's B.

    Examples
    --------
    >>> import numpy as np
    >>> import scq_gpu as scq
    >>> scq.unpack(np.array([[1, 1]], dtype=np.uint8), n_bits=9)
    array([[ 1, -1, -1, -1, -1, -1, -1, -1,  1]], dtype=int8)
    """
    n_bits = check_integer(n_bits, name="n_bits", minimum=1)
    codes = check_codes(codes, n_bits)
    xp = namespace(codes)
    shifts = xp.arange(8, dtype=xp.uint8, device=device_of(codes))
    octets = xp.bitwise_and(xp.bitwise_right_shift(codes[..., None], shifts), 1)
    bits = xp.reshape(octets, (*codes.shape[:-1], 8 * codes.shape[-1]))[..., :n_bits]
    return signs(bits == 1, dtype=xp.int8, xp=xp)


def encode_linear(X: Array, W: Array, t: Array, *, precision: str = "exact", out: Array | None = None) -> Array:
    """Encode rows with a linear map: ``pack(X @ W >= t)``, of which only the bits ever exist for all rows at once.

    On a GPU a kernel does it, on the CPU a compiled loop (extra ``cpu``); everything else goes block by block.

    Parameters
    ----------
    X : array (n, d)
        Of any real type and memory order; float64 and wide integers are multiplied in float64, all else in float32.
    W : array (d, n_bits)
    t : array (n_bits,)
        All three of one namespace and device.
    precision : {"exact", "accurate", "fast"}
        How the kernels multiply (see `scq_gpu.kernels.encode_linear`); without one there is only "exact".
    out : array (n, ceil(n_bits / 8)) of uint8, optional
        Where to write the codes to, such as a memory map; in the namespace of X.

    Returns
    -------
    array (n, ceil(n_bits / 8)) of uint8
        ``out`` if it was given.

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu.codes import encode_linear
    >>> encode_linear(np.array([[1.0], [0.0], [-1.0]]), np.array([[1.0, -1.0]]), np.array([0.0, 0.5]))
    array([[1],
           [1],
           [2]], dtype=uint8)
    """
    on_gpu = has_kernel(X, precision)
    xp = namespace(X, W, t)
    check_linear_map(X, W, t)
    shape = (X.shape[0], code_bytes(W.shape[1]))
    if out is not None:
        check_out(out, shape=shape, like=X)
    if on_gpu:
        codes = kernels.encode_linear(X, W, t, precision=precision)
    elif isinstance(X, np.ndarray):
        codes = np.empty(shape, dtype=np.uint8) if out is None else out
        encode_rows(X, W, t, codes)
        return codes
    else:
        codes = _encode_blocks(X, W, t, xp=xp)
    if out is None:
        return codes
    out[...] = codes
    return out


def _encode_blocks(X: Array, W: Array, t: Array, *, xp: ModuleType) -> Array:
    """Products of blocks that stay in cache, for any namespace."""
    dtype = compute_dtype(X.dtype, xp=xp, device=device_of(X))
    W, t = (xp.astype(x, dtype, copy=False) for x in (W, t))
    size = max(128, cache_bytes(X) // (max(W.shape) * xp.finfo(dtype).bits // 8))
    blocks = (X[part, :] for part in row_slices(X.shape[0], size) or [slice(0, 0)])
    return xp.concat([pack_bits(xp.astype(block, dtype, copy=False) @ W >= t, xp=xp) for block in blocks], axis=0)


def has_kernel(X: Array, precision: str) -> bool:
    """Whether a CUDA kernel encodes X, the one place that decides; an error if only a kernel has the precision."""
    check_choice(precision, name="precision", choices=kernels.PRECISIONS)
    if kernels.accepts(X):
        return True
    if precision != "exact":
        raise ValueError(
            f"precision={precision!r} needs a CUDA array (CuPy's, or torch's with CuPy installed), row-major, of "
            f"float32, float16 or bfloat16; X is {X.dtype} of {namespace(X).__name__} on {device_of(X)}. Move it, or "
            f"pass precision='exact' (of {', '.join(map(repr, kernels.PRECISIONS))}), which runs everywhere"
        )
    return False


def pack_bits(bits: Array, *, xp: ModuleType) -> Array:
    """Pack booleans (..., n_bits) into bytes, padding with zeros."""
    padding = -bits.shape[-1] % 8
    if padding:
        zeros = xp.zeros((*bits.shape[:-1], padding), dtype=xp.bool, device=device_of(bits))
        bits = xp.concat([bits, zeros], axis=-1)
    return packbits(bits, xp=xp)


def signs(bits: Array, *, dtype: object, xp: ModuleType) -> Array:
    """+1 where a bit is set, -1 elsewhere."""
    return xp.astype(bits, dtype) * 2 - 1
