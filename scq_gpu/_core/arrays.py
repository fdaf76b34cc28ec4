"""Array namespaces, dtypes and copies between libraries.

Public functions look up the namespace of their input once, here, and hand ``xp`` on; nothing inside asks again. With
`scq_gpu._core.devices`, this is where array libraries are known by name.
"""

from __future__ import annotations

import contextlib
import importlib.util
from types import ModuleType
from typing import Any

import array_api_compat
import numpy as np

Array = Any
Device = Any


def is_array(x: object) -> bool:
    """Whether x is an array of some array-API namespace."""
    return bool(array_api_compat.is_array_api_obj(x))


def namespace(*arrays: Array) -> ModuleType:
    """The array-API namespace that all arrays belong to."""
    xp: ModuleType = array_api_compat.array_namespace(*arrays)
    return xp


def device_of(x: Array) -> Device:
    """The device x lives on, in its own library's terms."""
    return array_api_compat.device(x)


def detach(x: Array) -> Array:
    """x without an autograd history: a fit over a tensor that requires gradients must not build a graph."""
    return x.detach() if array_api_compat.is_torch_array(x) else x


def to_host(x: Array) -> np.ndarray:
    """x as a NumPy array: an explicit copy off the device, where one is needed."""
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(x)
    host: np.ndarray
    if array_api_compat.is_cupy_array(x):
        host = x.get()
    elif array_api_compat.is_torch_array(x):
        x = x.detach().cpu()
        host = (x.float() if str(x.dtype) == "torch.bfloat16" else x).numpy()
    else:
        try:
            host = np.from_dlpack(x)
        except BufferError:  # NumPy 2.0 takes nothing that is read-only
            host = np.from_dlpack(namespace(x).asarray(x, copy=True))
    return host


def from_host(x: np.ndarray, *, xp: ModuleType, device: Device) -> Array:
    """A NumPy array as an array of xp on device, in float32 where float64 does not exist there."""
    if x.dtype == np.float64 and "float64" not in _floats(xp, device):
        x = x.astype(np.float32)
    if not x.flags.writeable:
        x = x.copy()  # some libraries share memory and warn about, or refuse, read-only arrays
    return xp.asarray(x, device=device)


def like(x: Array, other: Array) -> Array:
    """x in the namespace and on the device of another array, copied only where it is elsewhere."""
    xp, device = namespace(other), device_of(other)
    return x if namespace(x) is xp and device_of(x) == device else from_host(to_host(x), xp=xp, device=device)


def small_dtype(*, xp: ModuleType, device: Device) -> Any:
    """The float type of the small algebra: float64 where the device has it."""
    return _floats(xp, device).get("float64", xp.float32)


def compute_dtype(dtype: Any, *, xp: ModuleType, device: Device) -> Any:
    """The float type in which rows of ``dtype`` are multiplied.

    float64, and integers too wide for float32's 24-bit significand, ask for float64; everything else, float16 and
    bfloat16 included, runs in float32.
    """
    wide = (dtype == xp.float64) if "float64" in _floats(xp, device) else False
    if xp.isdtype(dtype, "integral"):
        wide = xp.iinfo(dtype).bits > 16
    return small_dtype(xp=xp, device=device) if wide else xp.float32


def _floats(xp: ModuleType, device: Device) -> dict[str, Any]:
    found: dict[str, Any] = xp.__array_namespace_info__().dtypes(device=device, kind="real floating")
    return found


def quiet_floats() -> contextlib.AbstractContextManager[object]:
    """No floating-point warnings from NumPy, the one library that gives them."""
    return np.errstate(all="ignore")


def has_numba(x: Array) -> bool:
    """Whether loops that numba compiles can work on x: a NumPy array, and numba installed."""
    return isinstance(x, np.ndarray) and importlib.util.find_spec("numba") is not None


def has_llvm(x: Array) -> bool:
    """Whether loops that llvmlite compiles can work on x: a NumPy array, and llvmlite installed."""
    return isinstance(x, np.ndarray) and importlib.util.find_spec("llvmlite") is not None


def row_slices(n: int, size: int) -> list[slice]:
    """Slices that cut n rows into blocks of ``size``; the last stays open, since array-API slices must not overrun."""
    return [slice(start, start + size if start + size < n else None) for start in range(0, n, size)]
