"""The subset of CuPy that the kernels use, on NumPy arrays and the simulator, to test the code that calls CuPy."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from cuda_on_cpu import Module


class ndarray(np.ndarray):
    """A NumPy array that says which device it is on and where."""

    device_id = 0

    @property
    def device(self) -> Device:
        return Device(self.device_id)

    @property
    def data(self) -> types.SimpleNamespace:
        return types.SimpleNamespace(ptr=self.__array_interface__["data"][0])


class _HostArray(type):
    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, np.ndarray) and not isinstance(x, ndarray)


class HostNumpy(types.ModuleType):
    """NumPy for modules that ask whether an array is in host memory: the arrays of the fake are not."""

    ndarray = _HostArray("ndarray", (), {})

    def __getattr__(self, name: str) -> object:
        return getattr(np, name)


class Device:
    """A device of compute capability 8.6, current within a ``with`` block."""

    current = 0
    compute_capability = "86"

    def __init__(self, device: int) -> None:
        self.id = device

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self) -> int:
        return self.id

    def __enter__(self) -> None:
        self.outer, Device.current = Device.current, self.id

    def __exit__(self, *error: object) -> None:
        Device.current = self.outer


class RawModule(Module):
    """The simulator with CuPy's signature. It remembers which variants were compiled."""

    compiled: ClassVar[list[tuple[str, ...]]] = []

    def __init__(self, *, code: str, options: tuple[str, ...]) -> None:
        super().__init__(code, options)
        self.compiled.append(options)

    def compile(self) -> None:
        """Do nothing: the module is compiled already."""


def array(x: object, *, device: int = 0) -> ndarray:
    """Return an array on a device."""
    view = np.asarray(x).view(ndarray)
    view.device_id = device
    return view


class _Cupy(types.ModuleType):
    def __getattr__(self, name: str) -> object:
        attribute = getattr(np, name)
        if isinstance(attribute, type):
            return attribute

        def on_device(*args: object, **kwargs: object) -> object:
            result = attribute(*args, **kwargs)
            return array(result, device=Device.current) if isinstance(result, np.ndarray) else result

        return on_device


@contextlib.contextmanager
def installed() -> Iterator[types.ModuleType]:
    """``import cupy`` gives the fake within this block."""
    fake = _Cupy("cupy")
    fake.__spec__ = types.SimpleNamespace(name="cupy")
    fake.ndarray = ndarray
    fake.RawModule = RawModule
    free = 1 << 40
    fake.cuda = types.SimpleNamespace(Device=Device, runtime=types.SimpleNamespace(memGetInfo=lambda: (free, free)))
    fake.get_default_memory_pool = lambda: types.SimpleNamespace(free_bytes=lambda: 0)
    RawModule.compiled.clear()
    previous = sys.modules.get("cupy")
    sys.modules["cupy"] = fake
    try:
        yield fake
    finally:
        del sys.modules["cupy"]
        if previous is not None:
            sys.modules["cupy"] = previous
