"""One test body over all backends: the ``backend`` fixture makes arrays, and says which library and device."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import array_api_strict
import numpy as np
import pytest
from hypothesis import settings

if _build := os.environ.get("SCQ_NATIVE_BUILD"):  # make test-native: another build of the native core
    (_file,) = Path(_build).glob("_core*.so")
    _spec = importlib.util.spec_from_file_location("scq_gpu.kernels.native._core", _file)
    sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_spec.name])

from scq_gpu._core.arrays import namespace, to_host

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # lets scikit-learn's array-API checks run

DATA = Path(__file__).parent / "data"
collect_ignore_glob = ["cupy_on_cpu/*"]  # scripts for an environment of their own (make test-cupy)

# Freed arrays stay with this process for the next ones: to get pages from the kernel anew is much of a test's time. Not
# with those that tests start, which may measure their memory.
with contextlib.suppress(OSError, AttributeError, TypeError):  # glibc alone has it
    for _threshold in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
        ctypes.CDLL(None).mallopt(_threshold, 1 << 30)

settings.register_profile("scq", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("scq")
settings.register_profile(  # tests/campaigns/properties.py: examples by a seed, nothing kept
    "campaign", deadline=None, max_examples=int(os.environ.get("CAMPAIGN_EXAMPLES", "300")), database=None
)


@dataclass(frozen=True)
class Backend:
    """An array library on one of its devices."""

    name: str
    device: object
    has_float64: bool = True

    def array(self, x):
        """A NumPy array in this library, in float32 where it has no float64."""
        x = np.asarray(x)
        if x.dtype == np.float64 and not self.has_float64:
            x = x.astype(np.float32)
        return self.namespace.asarray(x.copy(), device=self.device)

    @property
    def namespace(self):
        if self.name == "numpy":
            return namespace(np.empty(0))
        if self.name == "array_api_strict":
            return array_api_strict
        if self.name == "torch":
            import torch

            return namespace(torch.empty(0))
        import cupy

        return namespace(cupy.empty(0))

    def owns(self, x) -> bool:
        """Whether x is an array of this library on this device."""
        from array_api_compat import device

        return namespace(x) is self.namespace and (self.device is None or device(x) == self.device)

    @staticmethod
    def host(x) -> np.ndarray:
        return to_host(x)


def _strict(device: str) -> Backend:
    return Backend("array_api_strict", array_api_strict.Device(device), has_float64=device != "no_float64")


@pytest.fixture(autouse=True)
def _newest_array_api():
    """scikit-learn's checks leave array_api_strict at the version of the standard that they were written for."""
    array_api_strict.reset_array_api_strict_flags()


def _missing(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{module} is not installed")


@functools.cache
def _no_gpu() -> str:
    """Why nothing can run on a GPU here; empty where it can."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed"
    import cupy

    return "" if cupy.is_available() else "CuPy finds no CUDA device here"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is marked as needing a GPU where there is none."""
    if item.get_closest_marker("gpu") and _no_gpu():
        pytest.skip(f"not run: {_no_gpu()}")


@pytest.fixture(
    params=[
        "numpy",
        "strict-CPU_DEVICE",
        "strict-device1",
        "strict-no_float64",
        pytest.param("torch", marks=_missing("torch")),
        pytest.param("cupy", marks=pytest.mark.gpu),
    ]
)
def backend(request) -> Backend:
    name = request.param
    if name.startswith("strict-"):
        return _strict(name.removeprefix("strict-"))
    return Backend(name, None)


@pytest.fixture(params=["case_a", "case_b", "case_c"])
def case(request):
    """What the paper authors' own code returned: see tests/data/README.md."""
    with np.load(DATA / f"{request.param}.npz") as file:
        return {name: file[name] for name in file.files} | {"name": request.param}


@pytest.fixture(scope="session")
def digits():
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return X.astype(np.float32), y
