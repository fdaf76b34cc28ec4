"""Devices: where work may run, and `CudaDevice`, all that this package asks of a GPU.

The rest of the package knows a GPU only as a `CudaDevice`: memory, a stream of work, a stream of copies, events that
order one after the other, and compiled kernels. The tests put other objects in its place: one that runs both streams in
random order, one that compiles CUDA sources for the CPU.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import array_api_compat
import numpy as np

from scq_gpu._core.arrays import Array, namespace, to_host

P = ParamSpec("P")
T = TypeVar("T")
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")
_CACHE_BYTES = 4 << 20
_GPU_BLOCK_BYTES = 128 << 20
_BLOCKS_AT_ONCE = 24
_TORCH_WITHOUT_CUDA = "torch sees no CUDA device. Install the NVIDIA driver and a torch built for CUDA"
_DRIVER_REFUSES = re.compile("(?i)unsupported_?ptx_?version|insufficient_?driver|system_?driver_?mismatch")


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
    usable_device(device)
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
    count, reason = count_cuda_devices(library)
    if _ordinal(device) >= count:
        there = "'cuda:0'" if count == 1 else f"'cuda:0' to 'cuda:{count - 1}'"
        reason = reason or f"there is no such device; pass {there}"
        raise RuntimeError(f"device={device!r} is not usable: {reason}, or pass device='cpu' to work on the CPU")
    return device


def _ordinal(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def count_cuda_devices(library: str = "cupy") -> tuple[int, str]:
    """How many CUDA devices a library can use here; and why none, with what to do about it."""
    if library == "torch":
        import torch

        return torch.cuda.device_count(), "" if torch.cuda.is_available() else _TORCH_WITHOUT_CUDA
    try:
        import cupy
    except ImportError:
        return 0, (
            "CuPy is not installed. Install the GPU extra for your driver "
            '(pip install "scq-gpu[cuda12]" or "scq-gpu[cuda13]")'
        )
    if not cupy.is_available():
        return 0, _why_unavailable(cupy.cuda.runtime)
    return cupy.cuda.runtime.getDeviceCount(), ""


def _why_unavailable(runtime: Any) -> str:
    """Why CuPy, which is installed, has no device, and the cure: a driver, a newer one, or a GPU."""
    driver, built_for = int(runtime.driverGetVersion()), int(runtime.runtimeGetVersion())
    if not driver:
        return "CuPy is installed and finds no NVIDIA driver. Install the NVIDIA driver"
    if driver // 1000 < built_for // 1000:
        return _driver_too_old(driver, built_for)
    return "the NVIDIA driver finds no GPU. See what nvidia-smi lists, and whether CUDA_VISIBLE_DEVICES hides it"


def _driver_too_old(driver: int, built_for: int) -> str:
    major = driver // 1000
    older = f', or install CuPy for it (pip install "scq-gpu[cuda{major}]")' if 12 <= major < built_for // 1000 else ""
    return (
        f"the NVIDIA driver is too old: it supports CUDA {_version(driver)}, and this CuPy is built for CUDA "
        f"{_version(built_for)}. Update the NVIDIA driver{older}"
    )


def _version(number: int) -> str:
    """12040, as CUDA numbers its versions, as 12.4."""
    return f"{number // 1000}.{number % 1000 // 10}"


def on_gpu(x: Array) -> bool:
    """Whether x is a CuPy array or a torch CUDA tensor."""
    return bool(array_api_compat.is_cupy_array(x) or (array_api_compat.is_torch_array(x) and x.is_cuda))


def runs_kernels(x: Array) -> bool:
    """Whether CUDA kernels can work on x: it is on a GPU, and CuPy, which compiles them, is installed."""
    return on_gpu(x) and importlib.util.find_spec("cupy") is not None


def is_row_major(x: Array) -> bool:
    """Whether the elements of a row of x (n, d) are next to each other; rows may be any stride apart."""
    if x.shape[1] == 1:
        return True
    step: int = x.stride(1) if array_api_compat.is_torch_array(x) else x.strides[1] // x.itemsize
    return step == 1


def on_device_of(*things: Any) -> contextlib.AbstractContextManager[object]:
    """A context in which CuPy works on the device of these arrays; nothing changes where none of them is CuPy's.

    CuPy allocates and launches on its current device, wherever the arguments are. Every public function therefore
    enters the device of its arrays, once. Things that are no arrays are passed over, and lists are looked into.
    """
    places: dict[int, Any] = {}
    for thing in things:
        for x in thing if isinstance(thing, list | tuple) else (thing,):
            if array_api_compat.is_cupy_array(x):
                places.setdefault(x.device.id, x.device)
    if len(places) > 1:
        where = " and ".join(f"cuda:{number}" for number in sorted(places))
        raise ValueError(
            f"arrays are on different devices, {where}; move them to one, for example with "
            f"`with cupy.cuda.Device({min(places)}): x = cupy.asarray(x)`"
        )
    return _entered(*places.values()) if places else contextlib.nullcontext()


@contextlib.contextmanager
def _entered(device: Any) -> Iterator[None]:
    """CuPy works on ``device``; where its memory ends, the error says how much was wanted and is there."""
    with device:
        try:
            yield
        except MemoryError as error:
            wanted = re.search(r"[Oo]ut of memory allocating ([\d,]+) bytes", str(error))
            if wanted is None:
                raise
            raise _device_memory_error(device, int(wanted[1].replace(",", ""))) from error


def _device_memory_error(device: Any, wanted: int) -> MemoryError:
    free, total = device.mem_info
    return MemoryError(
        f"cuda:{device.id} is out of memory: {wanted / 2**20:,.1f} MiB more were wanted, and {free / 2**20:,.1f} MiB "
        f"of {total / 2**20:,.1f} MiB are free, besides what CuPy's pool keeps. Leave rows in host memory and pass "
        "device='cuda', which takes them through the GPU in blocks; pass fewer rows or queries at a time, or fewer "
        "n_components; or free arrays of other work"
    )


def on_device_of_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function enter the device of its arguments; arrays on two devices are refused."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with on_device_of(*args, *kwargs.values()):
            return function(*args, **kwargs)

    return run


def linalg_errors(xp: ModuleType) -> contextlib.AbstractContextManager[object]:
    """Make failed decompositions raise: CuPy, to avoid a synchronization, otherwise returns whatever is left."""
    return _linalg_state(xp, "raise")


def unchecked_linalg(xp: ModuleType) -> contextlib.AbstractContextManager[object]:
    """Leave it to the caller to notice failed decompositions of CuPy, which then synchronizes for none of them."""
    return _linalg_state(xp, "ignore")


def _linalg_state(xp: ModuleType, state: str) -> contextlib.AbstractContextManager[object]:
    if array_api_compat.is_cupy_namespace(xp):
        import cupyx

        context: contextlib.AbstractContextManager[object] = cupyx.errstate(linalg=state)
        return context
    return contextlib.nullcontext()


def block_bytes(x: Array) -> int:
    """Size of a block of rows on x's device.

    On a CPU, 4 MiB: it stays in a core's share of L3 between two products. On a GPU 128 MiB, so that calls of the
    driver take under 5 % of the time it takes to copy a block there (docs/roofline.md), but no more than a 24th of what
    is free: two of them are under way from the host, and a pass makes copies and products of each.
    """
    gpu = cuda_device_of(x)
    return _CACHE_BYTES if gpu is None else min(_GPU_BLOCK_BYTES, gpu.free_bytes() // _BLOCKS_AT_ONCE)


def affordable(x: Array, items: int, *, bytes_each: int) -> int:
    """At most ``items`` of that size, and at least one, as many as a quarter of the memory free on x's GPU holds."""
    gpu = cuda_device_of(x)
    return items if gpu is None else max(1, min(items, gpu.free_bytes() // (4 * bytes_each)))


def cuda_device_of(x: Array) -> CudaDevice | None:
    """The GPU that a CuPy array is on; None for every other array."""
    return cuda_device(x.device.id) if array_api_compat.is_cupy_array(x) else None


@functools.cache
def cuda_device(ordinal: int) -> CudaDevice:
    """The device of that number, the same object every time: compiled kernels are cached by it."""
    return CudaDevice(ordinal)


class CudaDevice:
    """A CUDA device through CuPy. Work runs on the current stream, uploads on a stream of their own.

    Only `finish_copies` and an event's ``synchronize`` make the host wait.
    """

    def __init__(self, ordinal: int) -> None:
        import cupy

        self.xp: Any = cupy
        self.name = f"cuda:{ordinal}"
        self._ordinal = ordinal

    @functools.cached_property
    def capability(self) -> int:
        """10 major + minor of the compute capability."""
        return int(self.xp.cuda.Device(self._ordinal).compute_capability)

    def current(self) -> Any:
        """A context in which this is CuPy's current device."""
        return self.xp.cuda.Device(self._ordinal)

    def build(self, source: str, options: tuple[str, ...]) -> Any:
        """Compile CUDA C++; the result has ``get_function(name)``, whose kernels take (grid, block, args)."""
        with self.current():
            module = self.xp.RawModule(code=source, options=options)
            try:
                module.compile()
            except Exception as error:
                if not _DRIVER_REFUSES.search(str(error)):
                    raise
                runtime = self.xp.cuda.runtime
                versions = int(runtime.driverGetVersion()), int(runtime.runtimeGetVersion())
                raise RuntimeError(f"{self.name} cannot run the kernels: {_driver_too_old(*versions)}") from error
            return module

    def address(self, x: Array) -> int:
        """Address of the first element of x."""
        return int(x.data.ptr)

    def free_bytes(self) -> int:
        """Memory that can still be had: the driver's, and what CuPy's pool holds unused."""
        with self.current():
            free = self.xp.cuda.runtime.memGetInfo()[0]
            return int(free + self.xp.get_default_memory_pool().free_bytes())

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Device memory from CuPy's pool; earlier work may still be reading what was there before."""
        with self.current():
            return self.xp.empty(shape, dtype)

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Page-locked host memory, from which copies run while the host goes on."""
        import cupyx

        host: np.ndarray = cupyx.empty_pinned(shape, dtype)
        return host

    def mark(self) -> Any:
        """An event: the point that the stream of work has come to."""
        with self.current():
            return self.xp.cuda.get_current_stream().record(self._event())

    def wait(self, event: Any) -> None:
        """Hold further work until ``event``."""
        with self.current():
            self.xp.cuda.get_current_stream().wait_event(event)

    def upload(self, host: np.ndarray, out: Array, *, after: Any) -> Any:
        """Copy to the device on the stream of copies, after ``after``; returns the event of its end."""
        with self.current():
            self._copies.wait_event(after)
            out.set(host, stream=self._copies)
            return self._copies.record(self._event())

    def download(self, x: Array) -> np.ndarray:
        """A page-locked copy of x, complete when the work given so far is.

        The memory is not from CuPy's pool, which would round it up and keep it for good.
        """
        memory = self.xp.cuda.PinnedMemoryPointer(self.xp.cuda.PinnedMemory(x.nbytes), 0)
        host: np.ndarray = np.ndarray(x.shape, x.dtype, buffer=memory)
        with self.current():
            host = x.get(out=host, blocking=False)
        return host

    def finish_copies(self) -> None:
        """Make the host wait until no upload is under way."""
        self._copies.synchronize()

    def _event(self) -> Any:
        return self.xp.cuda.Event(disable_timing=True)

    @functools.cached_property
    def _copies(self) -> Any:
        with self.current():
            return self.xp.cuda.Stream(non_blocking=True)
