"""The search for a column of OnE in one launch; array operations do the same in `scq_gpu.training.orthonormal`."""

from __future__ import annotations

import functools
from importlib.resources import files
from types import ModuleType
from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array
from scq_gpu._core.devices import cuda_device_of

_MOST = 64  # earlier columns that one multiprocessor solves for alone
_THREADS = 256
_SHARED = 48 << 10  # bytes of shared memory that every device gives unasked


def in_one_launch(V: Array) -> bool:
    """Whether `find_column` takes the earlier columns V (R, k, D): few enough, and CuPy's."""
    return cuda_device_of(V) is not None and V.shape[-2] <= _MOST and _shared_bytes(V) <= _SHARED


def find_column(
    gap: Array, m: Array, V: Array, lo: Array, hi: Array, start: Array, *, steps: int, xp: ModuleType
) -> tuple[Array, Array]:
    """The roots tau (R, 1, 1) in [lo, hi], from ``start`` in a number of steps, and v(tau) (R, 1, D)."""
    R, k, D = V.shape
    gap, m, V = (_with_contiguous_rows(x, xp=xp) for x in (gap, m, V))
    bracket = xp.concat([xp.broadcast_to(x, (R, 1, 1)) for x in (lo, hi, start)], axis=-1)
    tau, v = xp.empty((R, 1, 1), dtype=m.dtype), xp.empty((R, 1, D), dtype=m.dtype)
    shared_gap = gap.ndim < 3 or gap.shape[0] == 1
    strides = (0 if shared_gap else gap.strides[0], m.strides[0], V.strides[0])
    args = (gap, m, V, bracket, tau, v, *(np.int64(x // m.itemsize) for x in strides), *map(np.int32, (D, k, steps)))
    kernel = _kernel(cuda_device_of(m), m.dtype.name)
    kernel((R,), (_THREADS,), args, shared_mem=_shared_bytes(V))
    return tau, v


def _with_contiguous_rows(x: Array, *, xp: ModuleType) -> Array:
    rows_touch = x.shape[-2] < 2 or x.strides[-2] == x.shape[-1] * x.itemsize
    return x if x.strides[-1] == x.itemsize and rows_touch else xp.ascontiguousarray(x)


def _shared_bytes(V: Array) -> int:
    k, D = V.shape[-2:]
    return int((3 * D + k * k + k + _THREADS // 32) * V.itemsize)


@functools.cache
def _kernel(gpu: Any, element: str) -> Any:
    return gpu.build(*kernel_source(element)).get_function("find_column")


def kernel_source(element: str) -> tuple[str, tuple[str, ...]]:
    """The CUDA source for problems of float32 or float64, and the options to compile it with."""
    real = {"float64": "double", "float32": "float"}[element]
    source = (files("scq_gpu.kernels.cuda") / "column.cu").read_text(encoding="utf-8")
    return source, ("--std=c++17", f"-DREAL={real}", f"-DEPS={float(np.finfo(element).eps)}")
