"""Launches of kernels on one device, and CuPy arrays from the arrays that callers have.

Kernels take CuPy arrays and torch CUDA tensors, which are shared through DLPack and not copied. They are compiled on
first use and run on CuPy's current stream. Importing this module imports neither CuPy nor torch.

A device is a `scq_gpu._core.arrays.CudaDevice`. The tests put NumPy and a simulator in its place, and run the same
code from there on, including argument types and grids. A variant is one compiled form of a kernel file: hashable, with
the name of the file as ``source`` and the preprocessor definitions as ``defines``. The shared memory that it asks for
and the structs in its .cu file describe the same bytes; the tests run the kernels under AddressSanitizer with exactly
these sizes.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from importlib.resources import files
from typing import Any, Final

import array_api_compat
import numpy as np

from scq_gpu._core.arrays import Array, CudaDevice, cuda_device, on_gpu, shared_with_cupy, shared_with_torch

THREADS: Final = 256
"""Threads of a block, for every kernel."""
SHARED_BYTES: Final = 48 << 10
"""Shared memory per block that every device grants; a kernel that needs more has to ask before its launch."""
GRID: Final = 8 * 132
"""Blocks that keep a large GPU of 132 multiprocessors busy to the end."""
NULL: Final = np.uintp(0)
"""The argument of a kernel that stands for no array."""


@dataclasses.dataclass(frozen=True)
class RealVariant:
    """A kernel file compiled for arrays of float32 or float64, with constants of its own."""

    source: str
    element: str
    constants: tuple[str, ...] = ()

    @property
    def defines(self) -> tuple[str, ...]:
        """Return the preprocessor definitions."""
        real = {"float64": "double", "float32": "float"}[self.element]
        return f"REAL={real}", f"EPS={float(np.finfo(self.element).eps)}", *self.constants


def ceil_div(a: int, b: int) -> int:
    """Divide and round up."""
    return -(-a // b)


def read_source(name: str) -> str:
    """Read a kernel file and replace its ``#include "..."`` lines by the files, so that one text is compiled."""
    text = (files(__package__) / name).read_text(encoding="utf-8")
    return re.sub(r'^#include "(.+)"$', lambda match: read_source(match[1]), text, flags=re.MULTILINE)


def build_options(variant: Any) -> tuple[str, ...]:
    """Return the compiler options of a variant, except the architecture."""
    return ("--std=c++17", *(f"-D{define}" for define in variant.defines))


@functools.cache
def _module(device: Any, variant: Any) -> Any:
    return device.build(read_source(variant.source), build_options(variant))


@functools.cache
def _kernel(device: Any, variant: Any, name: str, shared: int) -> Any:
    kernel = _module(device, variant).get_function(name)
    if shared > SHARED_BYTES:
        kernel.max_dynamic_shared_size_bytes = shared
    return kernel


def launch(device: Any, variant: Any, name: str, *, blocks: int, shared: int, args: tuple[Any, ...]) -> None:
    """Launch a kernel on the current stream. Arrays go by address, numbers as the NumPy scalars they are."""
    # CUDA's limit for the first dimension of a grid
    most = 2**31 - 1
    if blocks > most:
        raise ValueError(f"{name} would take {blocks} blocks and a grid has at most {most}; pass fewer rows at a time")
    if blocks:
        _kernel(device, variant, name, shared)((blocks,), (THREADS,), args, shared_mem=shared)


def element_of(x: Array) -> str:
    """Return the name of the element type, the same for CuPy and torch."""
    return str(getattr(x, "dtype", type(x).__name__)).removeprefix("torch.")


def on_one_device(**arrays: Array) -> tuple[CudaDevice, list[Array]]:
    """Return the device that holds all arrays, and the arrays as CuPy arrays."""
    for name, x in arrays.items():
        if not on_gpu(x):
            raise TypeError(
                f"{name} is a {type(x).__module__}.{type(x).__name__} in host memory; the kernels take CuPy arrays and "
                "torch CUDA tensors: move it, for example with cupy.asarray, or use the functions of scq_gpu itself, "
                "which take arrays anywhere"
            )
    views = [as_cupy(x) for x in arrays.values()]
    devices = {name: view.device.id for name, view in zip(arrays, views, strict=True)}
    if len(set(devices.values())) > 1:
        where = ", ".join(f"{name} on cuda:{device}" for name, device in devices.items())
        raise ValueError(f"arrays are on different devices ({where}); move them to one")
    return cuda_device(views[0].device.id), views


def as_cupy(x: Array) -> Array:
    """Return a CuPy array as it is, and a CuPy view of a torch tensor."""
    # CuPy has no bfloat16, so the kernels get its bits
    if element_of(x) == "bfloat16":
        import torch

        x = x.view(torch.int16)
    return shared_with_cupy(x)


def capability_of(x: Array) -> int:
    """Return 10 major + minor of the compute capability of an array's GPU."""
    return cuda_device(as_cupy(x).device.id).capability


def scratch(xp: Any, most: int, least: int) -> Array:
    """Allocate ``most`` words of 32 bits or, while the allocator refuses, half as many, but at least ``least``."""
    while True:
        try:
            return xp.empty(most, dtype=xp.uint32)
        except MemoryError:
            if most <= least:
                raise
            most = max(least, most // 2)


def allowed_words(device: Any, allowed: Array | None) -> Any:
    """Return a bitset of rows, uint64 words, as words of 32 bits on the device; a null pointer for None."""
    return NULL if allowed is None else device.xp.asarray(allowed).view(device.xp.uint32)


def in_library_of(x: Array, result: Array) -> Array:
    """Return a CuPy result as an array of the library of x."""
    return shared_with_torch(result) if array_api_compat.is_torch_array(x) else result
