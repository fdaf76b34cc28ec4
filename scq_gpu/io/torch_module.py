"""A linear map as a torch module. The class is made when it is first asked for: importing this needs no torch."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array, namespace
from scq_gpu._core.bits import pack_bits
from scq_gpu._core.optional import need


def make_module(components: np.ndarray, threshold: np.ndarray) -> Any:
    """A ``torch.nn.Module`` from rows (..., d) to packed codes (..., ceil(n_bits / 8)) of uint8."""
    return _module_class()(components, threshold)


@functools.cache
def _module_class() -> Any:
    torch = need("torch", caller="to_torch", install="see https://pytorch.org/get-started")

    class TorchEncoder(torch.nn.Module):  # type: ignore[name-defined]
        """``pack(x @ components.T >= threshold)``; both are buffers, which ``.to(device)`` moves."""

        def __init__(self, components: np.ndarray, threshold: np.ndarray) -> None:
            super().__init__()
            self.register_buffer("components", torch.from_numpy(np.array(components, dtype=np.float32)))
            self.register_buffer("threshold", torch.from_numpy(np.array(threshold, dtype=np.float32)))

        def forward(self, x: Array) -> Array:
            """Packed codes of rows of any real type, on the device of the buffers."""
            scores = x.to(self.components.dtype) @ self.components.mT
            return pack_bits(scores >= self.threshold, xp=namespace(scores))

        def extra_repr(self) -> str:
            n_bits, d = self.components.shape
            return f"n_features={d}, n_bits={n_bits}"

    # where pickle and torch.save look it up: the module's __getattr__
    TorchEncoder.__module__, TorchEncoder.__qualname__ = __name__, "TorchEncoder"
    return TorchEncoder


def __getattr__(name: str) -> Any:
    if name == "TorchEncoder":
        return _module_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
