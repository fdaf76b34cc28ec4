"""Linear maps as an ONNX graph or a torch module."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array, namespace
from scq_gpu._core.bits import BIT_CONTRACT, code_bytes, pack_bits
from scq_gpu._core.messages import need
from scq_gpu._version import __version__


def make_onnx(components: np.ndarray, threshold: np.ndarray, *, encoder: str) -> Any:
    """Build an ``onnx.ModelProto`` from ``X`` (n, d) of float32 to ``codes`` (n, ceil(n_bits / 8)) of uint8."""
    onnx = need("onnx", caller="to_onnx", install='pip install "scq-gpu[export]"')
    n_bits, d = components.shape
    width = code_bytes(n_bits)
    # Padding bits are columns of zeros that never reach their threshold.
    W = np.zeros((d, 8 * width), dtype=np.float32)
    t = np.full(8 * width, np.inf, dtype=np.float32)
    W[:, :n_bits], t[:n_bits] = components.T, threshold
    constants = {
        "W": W,
        "t": t,
        # A dimension of 0 keeps the number of rows.
        "octets": np.array([0, width, 8], dtype=np.int64),
        "powers": np.array([1 << k for k in range(8)], dtype=np.int32),
        "last": np.array([-1], dtype=np.int64),
    }
    helper, make_node, types = onnx.helper, onnx.helper.make_node, onnx.TensorProto
    graph = helper.make_graph(
        [
            make_node("MatMul", ["X", "W"], ["scores"]),
            make_node("GreaterOrEqual", ["scores", "t"], ["bits"]),
            make_node("Cast", ["bits"], ["numbers"], to=types.INT32),
            make_node("Reshape", ["numbers", "octets"], ["by_byte"]),
            make_node("Mul", ["by_byte", "powers"], ["weighted"]),
            make_node("ReduceSum", ["weighted", "last"], ["bytes"], keepdims=0),
            make_node("Cast", ["bytes"], ["codes"], to=types.UINT8),
        ],
        "scq_gpu encoder",
        [helper.make_tensor_value_info("X", types.FLOAT, ["n", d])],
        [helper.make_tensor_value_info("codes", types.UINT8, ["n", width])],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    # Opset 13 is the first whose ReduceSum takes its axes as an input. IR version 7 belongs to it; the newest version
    # that the onnx package knows would exclude older runtimes.
    made_by = {"producer_name": "scq_gpu", "producer_version": __version__}
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7, **made_by)
    facts = {"bit_contract": BIT_CONTRACT, "n_bits": str(n_bits), "n_features": str(d), "encoder": encoder}
    helper.set_model_props(model, facts)
    onnx.checker.check_model(model, full_check=True)
    return model


def make_torch(components: np.ndarray, threshold: np.ndarray) -> Any:
    """Build a ``torch.nn.Module`` from rows (..., d) to packed codes (..., ceil(n_bits / 8)) of uint8."""
    return _module_class()(components, threshold)


@functools.cache
def _module_class() -> Any:
    """Define the class on first use, so that importing this module does not import torch."""
    torch = need("torch", caller="to_torch", install="see https://pytorch.org/get-started")

    class TorchEncoder(torch.nn.Module):  # type: ignore[name-defined]
        """``pack(x @ components.T >= threshold)``; both are buffers, which ``.to(device)`` moves."""

        def __init__(self, components: np.ndarray, threshold: np.ndarray) -> None:
            super().__init__()
            self.register_buffer("components", torch.from_numpy(np.array(components, dtype=np.float32)))
            self.register_buffer("threshold", torch.from_numpy(np.array(threshold, dtype=np.float32)))

        def forward(self, x: Array) -> Array:
            """Encode rows of any real type on the device of the buffers."""
            scores = x.to(self.components.dtype) @ self.components.mT
            return pack_bits(scores >= self.threshold, xp=namespace(scores))

        def extra_repr(self) -> str:
            n_bits, d = self.components.shape
            return f"n_features={d}, n_bits={n_bits}"

    # pickle and torch.save look the class up through __getattr__ of this module.
    TorchEncoder.__module__, TorchEncoder.__qualname__ = __name__, "TorchEncoder"
    return TorchEncoder


def __getattr__(name: str) -> Any:
    if name == "TorchEncoder":
        return _module_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
