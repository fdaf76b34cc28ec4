"""What is said where there is no GPU, no driver, an old one, no such device, or no memory left."""

from __future__ import annotations

import contextlib
import sys
import types

import numpy as np
import pytest

import scq_gpu as scq
from scq_gpu._core import arrays as devices


def fake_cupy(*, driver: int, runtime: int = 12080, count: int = 0) -> types.ModuleType:
    """A CuPy that finds a driver for CUDA ``driver`` (0: none) and so many devices."""
    cupy = types.ModuleType("cupy")
    cupy.is_available = lambda: count > 0
    cupy.cuda = types.SimpleNamespace(
        runtime=types.SimpleNamespace(
            driverGetVersion=lambda: driver, runtimeGetVersion=lambda: runtime, getDeviceCount=lambda: count
        )
    )
    return cupy


@pytest.mark.parametrize(
    ("cupy", "message"),
    [
        (None, r"CuPy is not installed\. Install the GPU extra .*pip install \"scq-gpu\[cuda12\]\""),
        (fake_cupy(driver=0), r"finds no NVIDIA driver\. Install the NVIDIA driver, or"),
        (
            fake_cupy(driver=12020, runtime=13000),
            r"too old: it supports CUDA 12\.2, .* built for CUDA 13\.0\. Update the NVIDIA driver, or install CuPy for "
            r"it \(pip install \"scq-gpu\[cuda12\]\"\)",
        ),
        (fake_cupy(driver=11040), r"supports CUDA 11\.4, .* built for CUDA 12\.8\. Update the NVIDIA driver, or pass"),
        (
            fake_cupy(driver=12040),
            r"the NVIDIA driver finds no GPU\. See what nvidia-smi lists, and .*CUDA_VISIBLE_DEVICES",
        ),
    ],
    ids=["no CuPy", "no driver", "old driver", "very old driver", "no GPU"],
)
def test_why_there_is_no_gpu(monkeypatch, cupy, message):
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    with pytest.raises(RuntimeError, match=rf"device='cuda' is not usable: .*{message}.*device='cpu'") as raised:
        scq.OgE(n_bits=4, device="cuda").fit([[0.0, 1.0], [1.0, 0.0]])
    assert ("pip install" in str(raised.value)) == ("pip" in message), "installing CuPy helps only where it is missing"


@pytest.mark.parametrize(("count", "there"), [(1, "'cuda:0'"), (4, "'cuda:0' to 'cuda:3'")])
def test_a_device_that_is_not_there(monkeypatch, count, there):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(driver=12080, count=count))
    message = rf"device='cuda:7' is not usable: there is no such device; pass {there}, or pass device='cpu'"
    with pytest.raises(RuntimeError, match=message):
        devices.usable_device("cuda:7")
    assert devices.usable_device(f"cuda:{count - 1}")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("CUDA_ERROR_UNSUPPORTED_PTX_VERSION: the provided PTX was compiled with an unsupported toolchain.", "too old"),
        ("cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version", "too old"),
        ("nvrtc: error: invalid value for --gpu-architecture", "invalid value"),
    ],
)
def test_a_driver_that_refuses_the_kernels(monkeypatch, error, says):
    class RawModule:
        def __init__(self, **_):
            pass

        def compile(self):
            raise RuntimeError(error)

    cupy = fake_cupy(driver=12020, runtime=12080, count=1)
    cupy.RawModule = RawModule
    cupy.cuda.Device = lambda ordinal: contextlib.nullcontext()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    with pytest.raises(RuntimeError, match=says) as raised:
        devices.CudaDevice(0).build("", ())
    if says == "too old":
        assert "cuda:0 cannot run the kernels" in str(raised.value)
        assert str(raised.value).endswith(
            "it supports CUDA 12.2, and this CuPy is built for CUDA 12.8. Update the NVIDIA driver"
        )


class FullDevice(contextlib.nullcontext):
    id = 1
    mem_info = 3 << 20, 64 << 20


@pytest.fixture
def full_device(monkeypatch):
    """A GPU without memory that is entered for an array."""
    cupy = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(Device=lambda number: FullDevice())
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return devices._entered((1, np.zeros(1)))


def test_memory_that_ends_is_told_in_full(full_device):
    message = r"cuda:1 is out of memory: 12\.0 MiB more were requested, and 3\.0 MiB of 64\.0 MiB are free.*='cuda'"
    with pytest.raises(MemoryError, match=message), full_device:
        raise MemoryError("Out of memory allocating 12,582,912 bytes (allocated so far: 61,000,000 bytes).")


def test_other_memory_errors_pass(full_device):
    with pytest.raises(MemoryError, match=r"^the host's$"), full_device:
        raise MemoryError("the host's")
