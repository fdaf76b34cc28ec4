"""Namespaces, devices and copies between them: the one file that knows array libraries by name.

Public functions look the namespace of their input up once, here, and hand ``xp`` on; nothing inside asks again.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import re
from types import ModuleType
from typing import Any

import array_api_compat
import numpy as np

Array = Any
Device = Any

_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


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


def to_device(x: Array, device: str | None) -> Array:
    """x on ``device`` (None, "cpu", "cuda" or "cuda:1"); None leaves it where it is.

    NumPy arrays become CuPy arrays on a GPU and come back as NumPy arrays; torch tensors stay torch tensors.
    """
    if device is None:
        return x
    if array_api_compat.is_torch_array(x):
        return x.to(usable_device(device, library="torch"))
    if not (array_api_compat.is_numpy_array(x) or array_api_compat.is_cupy_array(x)):
        raise ValueError(
            f"device={device!r} cannot move arrays of {namespace(x).__name__}; move X yourself and pass device=None"
        )
    usable_device(device, library="cupy")
    if device == "cpu":
        return to_host(x)
    import cupy

    with cupy.cuda.Device(_ordinal(device)):
        return cupy.asarray(x)


def usable_device(device: str, *, library: str = "cupy") -> str:
    """``device`` unchanged if work can run there; otherwise an error that says how to get there."""
    if not isinstance(device, str) or not _DEVICE.fullmatch(device):
        raise ValueError(f"device={device!r} is not one of None, 'cpu', 'cuda', 'cuda:0', 'cuda:1', ...")
    if device == "cpu":
        return device
    count, reason = _cuda_count(library)
    if _ordinal(device) >= count:
        raise RuntimeError(
            f"device={device!r} is not usable: {reason or f'this machine has {count} CUDA device(s)'}. "
            'Install the GPU extra for your driver (pip install "scq-gpu[cuda12]" or "scq-gpu[cuda13]"), '
            "or pass device='cpu' to work on the CPU"
        )
    return device


def _ordinal(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def _cuda_count(library: str) -> tuple[int, str]:
    """How many CUDA devices a library can use here, and why none."""
    if library == "torch":
        import torch

        return torch.cuda.device_count(), "" if torch.cuda.is_available() else "torch sees no CUDA device"
    try:
        import cupy
    except ImportError:
        return 0, "CuPy is not installed"
    if not cupy.is_available():
        return 0, "CuPy is installed but finds no CUDA driver or device"
    return cupy.cuda.runtime.getDeviceCount(), ""


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


def linalg_errors(xp: ModuleType) -> contextlib.AbstractContextManager[object]:
    """Failed decompositions raise: CuPy, to spare itself a look at the device, otherwise returns what is left."""
    if array_api_compat.is_cupy_namespace(xp):
        import cupyx

        raising: contextlib.AbstractContextManager[object] = cupyx.errstate(linalg="raise")
        return raising
    return contextlib.nullcontext()


def has_numba(x: Array) -> bool:
    """Whether compiled loops can work on x: a NumPy array, and numba installed."""
    return isinstance(x, np.ndarray) and importlib.util.find_spec("numba") is not None


def row_slices(n: int, size: int) -> list[slice]:
    """Slices that cut n rows into blocks of ``size``; the last stays open, since array-API slices must not overrun."""
    return [slice(start, start + size if start + size < n else None) for start in range(0, n, size)]


def cache_bytes(x: Array) -> int:
    """How large a block of rows may be to stay in the cache of x's device between two products.

    4 MiB suits a CPU core's share of L3; half of L2 a GPU.
    """
    if array_api_compat.is_cupy_array(x):
        return max(4 << 20, int(x.device.attributes["L2CacheSize"]) // 2)
    return 4 << 20


def gpu_of(x: Array) -> CupyGpu | None:
    """The GPU that a CuPy array is on, as `scq_gpu._stream` sees it; None for every other array."""
    return CupyGpu(x.device.id) if array_api_compat.is_cupy_array(x) else None


class CupyGpu:
    """A `scq_gpu._stream.Gpu` on CuPy: work runs on the current stream, uploads on one of their own."""

    def __init__(self, ordinal: int) -> None:
        import cupy

        self._cuda = cupy.cuda
        self._ordinal = ordinal

    def free_bytes(self) -> int:
        """What the driver has left, and what CuPy's pool holds unused."""
        import cupy

        with self._current():
            return int(self._cuda.runtime.memGetInfo()[0] + cupy.get_default_memory_pool().free_bytes())

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """From CuPy's pool."""
        import cupy

        with self._current():
            return cupy.empty(shape, dtype)

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """From CuPy's pool."""
        import cupyx

        host: np.ndarray = cupyx.empty_pinned(shape, dtype)
        return host

    def mark(self) -> Any:
        """An event on the current stream."""
        with self._current():
            return self._cuda.get_current_stream().record(self._cuda.Event(disable_timing=True))

    def wait(self, event: Any) -> None:
        """The current stream waits."""
        with self._current():
            self._cuda.get_current_stream().wait_event(event)

    def upload(self, host: np.ndarray, out: Array, *, after: Any) -> Any:
        """On the stream of copies."""
        with self._current():
            self._copies.wait_event(after)
            out.set(host, stream=self._copies)
            return self._copies.record(self._cuda.Event(disable_timing=True))

    def download(self, x: Array) -> np.ndarray:
        """On the current stream, to memory that is given back: the pool would round it up and keep it for good."""
        memory = self._cuda.PinnedMemoryPointer(self._cuda.PinnedMemory(x.nbytes), 0)
        host: np.ndarray = np.ndarray(x.shape, x.dtype, buffer=memory)
        with self._current():
            host = x.get(out=host, blocking=False)
        return host

    def finish_copies(self) -> None:
        """The host waits for the stream of copies."""
        self._copies.synchronize()

    @functools.cached_property
    def _copies(self) -> Any:
        with self._current():
            return self._cuda.Stream(non_blocking=True)

    def _current(self) -> Any:
        return self._cuda.Device(self._ordinal)


def packbits(bits: Array, *, xp: ModuleType) -> Array:
    """Pack the last axis of a boolean array, whose length is a multiple of 8, least significant bit first."""
    if isinstance(bits, np.ndarray):
        return np.packbits(bits, axis=-1, bitorder="little")
    weights = xp.asarray([1 << k for k in range(8)], dtype=xp.uint8, device=device_of(bits))
    octets = xp.reshape(xp.astype(bits, xp.uint8), (*bits.shape[:-1], bits.shape[-1] // 8, 8))
    return xp.sum(octets * weights, axis=-1, dtype=xp.uint8)
