"""Which engine runs: the one place that decides.

Every operation has an engine in array operations, for any namespace and device. Beside it stand compiled loops for
NumPy arrays (extra ``cpu``: llvmlite to encode, numba to search) and kernels for arrays on a GPU (CuPy). Few rows are
encoded by the same engine as many, so that a row has one code; what numba compiles is loaded only where there is enough
work to pay for it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from scq_gpu._core.arrays import Array, device_of, has_llvm, has_numba, namespace
from scq_gpu._core.devices import is_row_major, runs_kernels
from scq_gpu._core.validate import check_choice
from scq_gpu.kernels.cuda.geometry import ELEMENT_BYTES, MAX_BITS, MAX_K, MAX_SCORED_BYTES

PRECISIONS: Final = ("exact", "accurate", "fast")
PAIRS = 1 << 22  # query-code pairs from which loading compiled loops pays


def compiled(x: Array, pairs: int) -> bool:
    """Whether compiled loops run over that many pairs of codes: NumPy arrays, numba installed, enough pairs."""
    return pairs >= PAIRS and has_numba(x)


def has_encode_kernel(X: Array) -> bool:
    """Whether a CUDA kernel encodes X as it is: on a GPU, of a float type with a kernel, row-major."""
    return runs_kernels(X) and X.ndim == 2 and element_of(X) in ELEMENT_BYTES and is_row_major(X)


def encode_engine(X: Array, precision: str) -> str:
    """The engine that encodes rows X: "cuda", "llvm", "numpy" or "arrays"; an error if none has the precision."""
    check_choice(precision, name="precision", choices=PRECISIONS)
    if has_encode_kernel(X):
        return "cuda"
    if precision != "exact":
        raise ValueError(
            f"precision={precision!r} needs a CUDA array (CuPy's, or torch's with CuPy installed), row-major, of "
            f"float32, float16 or bfloat16; X is {X.dtype} of {namespace(X).__name__} on {device_of(X)}. Move it, or "
            f"pass precision='exact' (of {', '.join(map(repr, PRECISIONS))}), which runs everywhere"
        )
    if isinstance(X, np.ndarray):
        return "llvm" if has_llvm(X) else "numpy"
    return "arrays"


def search_engine(codes: Array, pairs: int, *, k: int = 1, distance: str = "hamming") -> str:
    """The engine that searches these codes: "spherical", "cuda", "numba" or "arrays"."""
    if distance == "spherical":
        return "spherical"
    if runs_kernels(codes) and 1 <= codes.shape[1] <= MAX_BITS // 8 and k <= MAX_K:
        return "cuda"
    return "numba" if compiled(codes, pairs) else "arrays"


def asymmetric_engine(codes: Array, pairs: int) -> str:
    """The engine that scores these codes for float queries: "cuda", "numba" or "arrays"."""
    if runs_kernels(codes) and 1 <= codes.shape[1] <= MAX_SCORED_BYTES and is_row_major(codes):
        return "cuda"
    return "numba" if compiled(codes, pairs) else "arrays"


def element_of(x: Array) -> str:
    """The name of an array's element type, the same for CuPy and torch."""
    return str(getattr(x, "dtype", type(x).__name__)).removeprefix("torch.")
