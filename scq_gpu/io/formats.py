"""Codes in the layouts of other software.

Hamming distances do not depend on the order of bits, but what a system shows, slices or multiplies with floats does.
Each format has the order of that system's own documentation (docs/interchange.md names the pages).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from scq_gpu._core.arrays import Array, namespace, on_device_of_arguments, to_host
from scq_gpu._core.codes import unpack
from scq_gpu._core.validate import check_choice, check_index_codes, check_integer


@overload
def convert(codes: Array, n_bits: int, to: Literal["hex", "pgvector"]) -> list[str]: ...
@overload
def convert(codes: Array, n_bits: int, to: Literal["bits"]) -> NDArray[np.str_]: ...
@overload
def convert(
    codes: np.ndarray,
    n_bits: int,
    to: Literal["faiss", "cuvs", "milvus", "usearch", "lancedb", "sentence-transformers", "ubinary"],
) -> NDArray[np.uint8]: ...
@overload
def convert(codes: np.ndarray, n_bits: int, to: Literal["binary", "vespa", "elasticsearch"]) -> NDArray[np.int8]: ...
@overload
def convert(codes: np.ndarray, n_bits: int, to: Literal["qdrant", "weaviate"]) -> NDArray[np.float32]: ...
@overload
def convert(codes: Array, n_bits: int, to: str) -> Any: ...
@on_device_of_arguments
def convert(codes: Array, n_bits: int, to: str) -> Any:
    """Convert codes to the layout of another library or database.

    Parameters
    ----------
    codes : array (n, ceil(n_bits / 8)) of uint8
        Result of ``encoder.encode`` or `scq_gpu.pack`.
    n_bits : int
    to : str
        ============================================ ===================================================================
        "faiss", "cuvs", "milvus"                    uint8 (n, bytes), least significant bit first: unchanged
        "usearch", "lancedb", "ubinary",             uint8 (n, bytes), most significant bit first, like
        "sentence-transformers"                      `numpy.packbits`
        "binary"                                     int8 (n, bytes): sentence-transformers' ``binary``, "ubinary" - 128
        "vespa", "elasticsearch"                     int8 (n, bytes): the bytes of "ubinary" read as signed
        "hex"                                        list of n strings: the bytes of "ubinary", two digits each
        "pgvector"                                   list of n strings of ``n_bits`` characters 0 and 1
        "bits"                                       the same as a NumPy array of strings
        "qdrant", "weaviate"                         float32 (n, n_bits) of -1 and +1
        ============================================ ===================================================================

    Returns
    -------
    array, or list of str
        Arrays of numbers in the namespace and on the device of the codes. Bits that pad the last byte are 0, in either
        order, and add nothing to a distance. Where a system needs a dimension in whole bytes, it is ``8 * bytes``.

    Examples
    --------
    >>> import numpy as np, scq_gpu as scq
    >>> codes = scq.pack(np.array([[1, 1, 0, 0, 0, 0, 0, 0, 1]]))
    >>> codes, scq.convert(codes, 9, to="ubinary")
    (array([[3, 1]], dtype=uint8), array([[192, 128]], dtype=uint8))
    >>> scq.convert(codes, 9, to="pgvector"), scq.convert(codes, 9, to="hex")
    (['110000001'], ['c080'])
    """
    n_bits = check_integer(n_bits, name="n_bits", minimum=1)
    function = FORMATS[check_choice(to, name="to", choices=FORMATS)]
    return function(check_index_codes(codes, n_bits=n_bits, name="codes"), n_bits)


def _msb_first(codes: Array, n_bits: int) -> Array:
    """Reverse the bits of each byte: swap halves, then quarters, then single bits."""
    for mask, shift in ((0x0F, 4), (0x33, 2), (0x55, 1)):
        codes = ((codes & mask) << shift) | ((codes >> shift) & mask)
    return codes


def _minus_128(values: Array) -> Array:
    """Subtract 128 from bytes."""
    xp = namespace(values)
    return xp.astype(xp.astype(values, xp.int16) - 128, xp.int8)


def _bit_strings(codes: Array, n_bits: int) -> np.ndarray:
    digits = np.unpackbits(to_host(codes), axis=1, count=n_bits, bitorder="little") + np.uint8(ord("0"))
    return digits.view(f"S{n_bits}")[:, 0].astype(f"U{n_bits}")


FORMATS: dict[str, Callable[[Array, int], Any]] = {
    **dict.fromkeys(("faiss", "cuvs", "milvus"), lambda codes, n_bits: codes),
    **dict.fromkeys(("usearch", "lancedb", "sentence-transformers", "ubinary"), _msb_first),
    "binary": lambda codes, n_bits: _minus_128(_msb_first(codes, n_bits)),
    # With its top bit flipped, a byte minus 128 is the byte read as two's complement.
    **dict.fromkeys(("vespa", "elasticsearch"), lambda codes, n_bits: _minus_128(_msb_first(codes, n_bits) ^ 128)),
    "hex": lambda codes, n_bits: [row.tobytes().hex() for row in to_host(_msb_first(codes, n_bits))],
    "pgvector": lambda codes, n_bits: _bit_strings(codes, n_bits).tolist(),
    "bits": _bit_strings,
    **dict.fromkeys(
        ("qdrant", "weaviate"),
        lambda codes, n_bits: namespace(codes).astype(unpack(codes, n_bits), namespace(codes).float32),
    ),
}
