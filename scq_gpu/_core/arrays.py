"""Array libraries: namespaces, types, devices, copies between them, and expressions that a GPU runs in one launch.

Public functions look up the namespace of their input once, here, and pass ``xp`` on. Only this module and the kernels
know array libraries by name. A `CudaDevice` is the package's only interface to a GPU: memory, a stream of work, a
stream of copies, events that order one after the other, and compiled kernels. The tests replace it by objects that run
both streams in random order or compile CUDA sources for the CPU.

Everywhere but on CuPy a function of elementwise operations runs as it is written. On CuPy `elementwise` compiles it
into one kernel, and `total` runs the CUDA expression that stands beside it.
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
import array_api_compat.numpy
import numpy as np

Array = Any
Device = Any


def is_array(x: object) -> bool:
    """Return True for an array of any array-API namespace."""
    return bool(array_api_compat.is_array_api_obj(x))


def is_dask(x: object) -> bool:
    """Return True for a Dask collection, without importing Dask."""
    return hasattr(x, "__dask_graph__")


def namespace(*arrays: Array) -> ModuleType:
    """Return the array-API namespace that all arrays belong to."""
    # telling it for any library takes a third of the time of a small call
    plain = all(type(x) is np.ndarray for x in arrays)
    xp: ModuleType = array_api_compat.numpy if plain else array_api_compat.array_namespace(*arrays)
    return xp


def device_of(x: Array) -> Device:
    """Return the device of x, in its own library's terms."""
    return array_api_compat.device(x)


def detach(x: Array) -> Array:
    """Drop the autograd history: a fit over a tensor that requires gradients must not build a graph."""
    return x.detach() if array_api_compat.is_torch_array(x) else x


def to_host(x: Array) -> np.ndarray:
    """Return x as a NumPy array, copied off its device where needed."""
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(x)
    if is_dask(x):
        raise TypeError(f"a Dask array of shape {tuple(x.shape)} is with its workers, not here; pass its .compute()")
    host: np.ndarray
    if array_api_compat.is_cupy_array(x):
        host = x.get()
    elif array_api_compat.is_torch_array(x):
        x = x.detach().cpu()
        host = (x.float() if str(x.dtype) == "torch.bfloat16" else x).numpy()
    else:
        try:
            host = np.from_dlpack(x)
        # NumPy 2.0 rejects read-only buffers
        except BufferError:
            host = np.from_dlpack(namespace(x).asarray(x, copy=True))
    return host


def from_host(x: np.ndarray, *, xp: ModuleType, device: Device) -> Array:
    """Copy a NumPy array to xp on device, as float32 where the device has no float64."""
    if x.dtype == np.float64 and "float64" not in _floats(xp, device):
        x = x.astype(np.float32)
    # Some libraries share memory, and warn about read-only arrays or reject them
    if not x.flags.writeable:
        x = x.copy()
    return xp.asarray(x, device=device)


def like(x: Array, other: Array) -> Array:
    """Return x in the namespace and on the device of another array, copied only if it is elsewhere.

    CuPy and torch share the memory of a GPU.
    """
    if isinstance(x, np.ndarray) and isinstance(other, np.ndarray):
        return x
    xp, device = namespace(other), device_of(other)
    if namespace(x) is not xp and on_gpu(x) and on_gpu(other):
        x = shared_with_cupy(x) if array_api_compat.is_torch_array(x) else shared_with_torch(x)
    return x if namespace(x) is xp and device_of(x) == device else from_host(to_host(x), xp=xp, device=device)


def shared_with_cupy(x: Array) -> Array:
    """Return a torch CUDA tensor as a CuPy array in the same memory; any other array, and bfloat16, as it is."""
    if not (array_api_compat.is_torch_array(x) and runs_kernels(x)) or str(x.dtype) == "torch.bfloat16":
        return x
    import cupy

    return cupy.from_dlpack(x.detach())


def shared_with_torch(x: Array) -> Array:
    """Return a CuPy array as a torch tensor in the same memory."""
    import torch

    return torch.from_dlpack(x)


def small_dtype(*, xp: ModuleType, device: Device) -> Any:
    """Return the float type of the small algebra: float64 where the device has it."""
    return _floats(xp, device).get("float64", xp.float32)


def compute_dtype(dtype: Any, *, xp: ModuleType, device: Device) -> Any:
    """Return the float type in which rows of ``dtype`` are multiplied.

    float64, and integers too wide for float32's 24-bit significand, take float64. All others, float16 and bfloat16
    included, take float32.
    """
    wide = (dtype == xp.float64) if "float64" in _floats(xp, device) else False
    if xp.isdtype(dtype, "integral"):
        wide = xp.iinfo(dtype).bits > 16
    return small_dtype(xp=xp, device=device) if wide else xp.float32


def _floats(xp: ModuleType, device: Device) -> dict[str, Any]:
    found: dict[str, Any] = xp.__array_namespace_info__().dtypes(device=device, kind="real floating")
    return found


def quiet_floats() -> contextlib.AbstractContextManager[object]:
    """Silence floating-point warnings of NumPy, the only library that emits them."""
    return np.errstate(all="ignore")


def row_slices(n: int, size: int) -> list[slice]:
    """Cut n rows into slices of ``size``; the last stays open, since array-API slices must not overrun."""
    return [slice(start, start + size if start + size < n else None) for start in range(0, n, size)]


def join_pieces(pieces: list[Array]) -> Array:
    """Concatenate pieces of rows; one piece is not copied."""
    return pieces[0] if len(pieces) == 1 else namespace(*pieces).concat(pieces, axis=0)


def signs(bits: Array, *, dtype: object, xp: ModuleType) -> Array:
    """Return +1 where a bit is set and -1 elsewhere."""
    return xp.astype(bits, dtype) * 2 - 1


def generator(random_state: Any) -> np.random.Generator:
    """Make a NumPy generator from None, a seed, a Generator or a RandomState; random numbers are drawn on the host."""
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**31, size=4))
    return np.random.default_rng(random_state)


# ---- devices ----

P = ParamSpec("P")
T = TypeVar("T")
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")
_DRIVER_REJECTS = re.compile("(?i)unsupported_?ptx_?version|insufficient_?driver|system_?driver_?mismatch")


def to_device(x: Array, device: str | None) -> Array:
    """Move x to ``device`` ("cpu", "cuda" or "cuda:1"); None leaves it where it is.

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
    """Return ``device`` unchanged if work can run there; otherwise raise an error that says how to make it usable."""
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
    """Return the number of CUDA devices that a library can use, and if there is none, the reason and the fix."""
    if library == "torch":
        import torch

        reason = "torch sees no CUDA device. Install the NVIDIA driver and a torch built for CUDA"
        return torch.cuda.device_count(), "" if torch.cuda.is_available() else reason
    try:
        import cupy
    except ImportError:
        return 0, (
            "CuPy is not installed. Install the GPU extra for your driver "
            '(pip install "scq-gpu[cuda12]" or "scq-gpu[cuda13]")'
        )
    runtime = cupy.cuda.runtime
    if cupy.is_available():
        return runtime.getDeviceCount(), ""
    driver, built_for = int(runtime.driverGetVersion()), int(runtime.runtimeGetVersion())
    if not driver:
        return 0, "CuPy is installed and finds no NVIDIA driver. Install the NVIDIA driver"
    if driver // 1000 < built_for // 1000:
        return 0, _driver_too_old(driver, built_for)
    return 0, "the NVIDIA driver finds no GPU. See what nvidia-smi lists, and whether CUDA_VISIBLE_DEVICES hides it"


def _driver_too_old(driver: int, built_for: int) -> str:
    major = driver // 1000
    # CUDA's version number 12040 is 12.4
    supported, needed = (f"{number // 1000}.{number % 1000 // 10}" for number in (driver, built_for))
    older = f', or install CuPy for it (pip install "scq-gpu[cuda{major}]")' if 12 <= major < built_for // 1000 else ""
    return (
        f"the NVIDIA driver is too old: it supports CUDA {supported}, and this CuPy is built for CUDA {needed}. "
        f"Update the NVIDIA driver{older}"
    )


def on_gpu(x: Array) -> bool:
    """Return True for a CuPy array or a torch CUDA tensor."""
    return bool(array_api_compat.is_cupy_array(x) or (array_api_compat.is_torch_array(x) and x.is_cuda))


def runs_kernels(x: Array) -> bool:
    """Return True if x is on a GPU and CuPy, which compiles CUDA kernels, is installed."""
    return on_gpu(x) and importlib.util.find_spec("cupy") is not None


def is_row_major(x: Array) -> bool:
    """Return True if the elements of a row of x (n, d) are adjacent; rows may be any stride apart."""
    if x.shape[1] == 1:
        return True
    step: int = x.stride(1) if array_api_compat.is_torch_array(x) else x.strides[1] // x.itemsize
    return step == 1


def on_device_of(*things: Any) -> contextlib.AbstractContextManager[object]:
    """Return a context in which CuPy works on the device of these arrays and, for tensors, on torch's stream there.

    CuPy allocates and launches on its current device, wherever the arguments are. Every public function therefore
    enters the device of its arrays once. Lists are searched for arrays; arrays that are not on a GPU are skipped.
    """
    places: dict[int, Any] = {}
    for thing in things:
        for x in thing if isinstance(thing, list | tuple) else (thing,):
            if array_api_compat.is_cupy_array(x):
                places.setdefault(x.device.id, x)
            elif array_api_compat.is_torch_array(x) and runs_kernels(x):
                places[x.device.index] = x
    if len(places) > 1:
        where = " and ".join(f"cuda:{number}" for number in sorted(places))
        raise ValueError(
            f"arrays are on different devices, {where}; move them to one, for example with "
            f"`with cupy.cuda.Device({min(places)}): x = cupy.asarray(x)`"
        )
    return _entered(*places.items()) if places else contextlib.nullcontext()


@contextlib.contextmanager
def _entered(place: tuple[int, Array]) -> Iterator[None]:
    """Make an array's device CuPy's current one; errors of its memory say how much was requested and is free."""
    import cupy

    number, x = place
    device = cupy.cuda.Device(number)
    stream: Any = contextlib.nullcontext()
    if array_api_compat.is_torch_array(x):
        stream = cupy.cuda.Stream.from_external(_TorchStream(x))
    with device, stream:
        try:
            yield
        except MemoryError as error:
            found = re.search(r"[Oo]ut of memory allocating ([\d,]+) bytes", str(error))
            if found is None:
                raise
            requested, free, total = (n / 2**20 for n in (int(found[1].replace(",", "")), *device.mem_info))
            raise MemoryError(
                f"cuda:{device.id} is out of memory: {requested:,.1f} MiB more were requested, and {free:,.1f} MiB of "
                f"{total:,.1f} MiB are free, besides what CuPy's pool keeps. Leave rows in host memory and pass "
                "device='cuda', which takes them through the GPU in blocks; pass fewer rows or queries at a time, or "
                "fewer n_components; or free arrays of other work"
            ) from error


class _TorchStream:
    """The current stream of torch on the device of a tensor, by the CUDA stream protocol, which older torch lacks."""

    def __init__(self, x: Array) -> None:
        import torch

        self._pointer = int(torch.cuda.current_stream(x.device).cuda_stream)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._pointer


def on_device_of_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function enter the device of its arguments; arrays on two devices are rejected."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with on_device_of(*args, *kwargs.values()):
            return function(*args, **kwargs)

    return run


def linalg_errors(xp: ModuleType, state: str = "raise") -> contextlib.AbstractContextManager[object]:
    """Make failed decompositions of CuPy raise, at the cost of a synchronization, instead of returning garbage.

    With "ignore" they are left to the caller, so that none of them synchronizes.
    """
    if array_api_compat.is_cupy_namespace(xp):
        import cupyx

        context: contextlib.AbstractContextManager[object] = cupyx.errstate(linalg=state)
        return context
    return contextlib.nullcontext()


def block_bytes(x: Array) -> int:
    """Return the size of a block of rows on x's device."""
    gpu = cuda_device_of(x)
    # On a CPU, 4 MiB stay in a core's share of L3 between two products
    if gpu is None:
        return 64 << 20 if on_gpu(x) else 4 << 20
    # With 128 MiB, driver calls take under 5 % of the time to copy a block (benchmarks/kernel_counts.py)
    return min(128 << 20, gpu.total_bytes // 48)


def affordable(x: Array, items: int, *, bytes_each: int) -> int:
    """Return how many of ``items``, at least one, have twice their memory granted on x's GPU."""
    gpu = cuda_device_of(x)
    while gpu is not None and items > 1 and not gpu.grants(2 * items * bytes_each):
        items //= 2
    return items


def cuda_device_of(x: Array) -> CudaDevice | None:
    """Return the GPU of a CuPy array, or None for any other array."""
    return cuda_device(x.device.id) if array_api_compat.is_cupy_array(x) else None


@functools.cache
def cuda_device(ordinal: int) -> CudaDevice:
    """Return the device of that number, the same object every time: compiled kernels are cached by it."""
    return CudaDevice(ordinal)


class CudaDevice:
    """A CUDA device through CuPy, with a stream of its own for uploads; work runs on the current stream.

    Only `finish_copies` and an event's ``synchronize`` make the host wait.
    """

    def __init__(self, ordinal: int) -> None:
        import cupy

        self.xp: Any = cupy
        self.name = f"cuda:{ordinal}"
        self._ordinal = ordinal

    @functools.cached_property
    def capability(self) -> int:
        """Return 10 major + minor of the compute capability."""
        return int(self.current().compute_capability)

    def current(self) -> Any:
        """Return a context in which this is CuPy's current device."""
        return self.xp.cuda.Device(self._ordinal)

    def build(self, source: str, options: tuple[str, ...]) -> Any:
        """Compile CUDA C++; the result has ``get_function(name)``, whose kernels take (grid, block, args)."""
        with self.current():
            module = self.xp.RawModule(code=source, options=options)
            try:
                module.compile()
            except Exception as error:
                if not _DRIVER_REJECTS.search(str(error)):
                    raise
                runtime = self.xp.cuda.runtime
                versions = int(runtime.driverGetVersion()), int(runtime.runtimeGetVersion())
                raise RuntimeError(f"{self.name} cannot run the kernels: {_driver_too_old(*versions)}") from error
            return module

    def address(self, x: Array) -> int:
        """Return the address of the first element of x."""
        return int(x.data.ptr)

    @functools.cached_property
    def total_bytes(self) -> int:
        """Return the size of the memory."""
        with self.current():
            return int(self.xp.cuda.runtime.memGetInfo()[1])

    def grants(self, n_bytes: int) -> bool:
        """Ask the allocator, which may be the user's, for that much memory, and give it back.

        The driver's count of free bytes knows nothing of pools and their limits.
        """
        try:
            self.empty((n_bytes,), np.uint8)
        except MemoryError:
            return False
        return True

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return device memory from CuPy's allocator; earlier work may still be reading its old content."""
        with self.current():
            return self.xp.empty(shape, dtype)

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return page-locked host memory, from which copies run while the host goes on."""
        import cupyx

        host: np.ndarray = cupyx.empty_pinned(shape, dtype)
        return host

    def mark(self) -> Any:
        """Return an event that marks the current end of the stream of work."""
        with self.current():
            return self.xp.cuda.get_current_stream().record(self.xp.cuda.Event(disable_timing=True))

    def wait(self, event: Any) -> None:
        """Hold further work until ``event`` has happened."""
        with self.current():
            self.xp.cuda.get_current_stream().wait_event(event)

    def upload(self, host: np.ndarray, out: Array, *, after: Any) -> Any:
        """Copy to the device on the stream of copies, after the event ``after``, and return the event of its end."""
        with self.current():
            self._copies.wait_event(after)
            out.set(host, stream=self._copies)
            return self._copies.record(self.xp.cuda.Event(disable_timing=True))

    def download(self, x: Array) -> np.ndarray:
        """Return a page-locked copy of x, complete when the work given so far is.

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

    @functools.cached_property
    def _copies(self) -> Any:
        with self.current():
            return self.xp.cuda.Stream(non_blocking=True)


# ---- expressions in one launch ----


def elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run a function of elementwise operations as one kernel where its first argument is a CuPy array.

    The function takes arrays that broadcast against each other, then ``xp``, and returns an array or a tuple of them.
    On CuPy all results have the common shape of the arguments.
    """

    @functools.wraps(function)
    def run(*args: Array, xp: ModuleType) -> Any:
        if array_api_compat.is_cupy_array(args[0]):
            return _compiled(function, xp)(*args)
        return function(*args, xp=xp)

    return run


@functools.cache
def _compiled(function: Callable[..., Any], xp: ModuleType) -> Any:
    import cupy

    def body(*args: Array) -> Any:
        return function(*args, xp=xp)

    return cupy.fuse(kernel_name=function.__name__.lstrip("_"))(body)


class total:
    """The sum of an elementwise expression over axes that are kept with length 1.

    The function, of arrays that broadcast against each other, is given once more as ``source``, in CUDA, with its
    arguments named a, b, c, in their order.
    """

    def __init__(self, function: Callable[..., Array], source: str) -> None:
        self.function, self._source = function, source

    def __call__(self, *args: Array, axis: int | tuple[int, ...], xp: ModuleType) -> Array:
        """Compute the sum in the namespace of the arguments."""
        if array_api_compat.is_cupy_array(args[0]):
            return self._kernel(len(args))(*args, axis=axis, keepdims=True)
        return xp.sum(self.function(*args), axis=axis, keepdims=True)

    # the cache holds one kernel per expression of this package
    @functools.cache  # noqa: B019
    def _kernel(self, count: int) -> Any:
        import cupy

        arguments = ", ".join(f"T {name}" for name in "abcd"[:count])
        return cupy.ReductionKernel(arguments, "T y", self._source, "a + b", "y = a", "0", "total")
