"""`pack` and `unpack`, the public functions over the layout of `scq_gpu._core.bits`."""

from __future__ import annotations

from typing import overload

import numpy as np
from numpy.typing import NDArray

from scq_gpu._core.arrays import Array, namespace, on_device_of_arguments, signs
from scq_gpu._core.bits import pack_bits, unpack_bits
from scq_gpu._core.validate import check_array, check_codes, check_integer, check_signs


@overload
def pack(B: np.ndarray) -> NDArray[np.uint8]: ...
@overload
def pack(B: Array) -> Array: ...
@on_device_of_arguments
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
@on_device_of_arguments
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
    return signs(unpack_bits(codes, xp=xp)[..., :n_bits], dtype=xp.int8, xp=xp)
