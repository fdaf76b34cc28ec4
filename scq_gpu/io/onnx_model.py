"""A linear map as an ONNX graph: one MatMul, one comparison, and eight bits to a byte."""

from __future__ import annotations

from typing import Any

import numpy as np

from scq_gpu._core.bits import BIT_CONTRACT, code_bytes
from scq_gpu._core.optional import need
from scq_gpu._version import __version__

_OPSET = 13  # the first whose ReduceSum takes its axes as an input; every onnxruntime in use runs it
_IR_VERSION = 7  # that opset's own: the newest the onnx package knows would shut older runtimes out


def make_model(components: np.ndarray, threshold: np.ndarray, *, encoder: str) -> Any:
    """An ``onnx.ModelProto`` from ``X`` (n, d) of float32 to ``codes`` (n, ceil(n_bits / 8)) of uint8, any n."""
    onnx = need("onnx", caller="to_onnx", install='pip install "scq-gpu[export]"')
    n_bits, d = components.shape
    width = code_bytes(n_bits)
    # columns of zeros that never reach their threshold: the padding bits are 0 without a step of their own
    W = np.zeros((d, 8 * width), dtype=np.float32)
    t = np.full(8 * width, np.inf, dtype=np.float32)
    W[:, :n_bits], t[:n_bits] = components.T, threshold
    constants = {
        "W": W,
        "t": t,
        "octets": np.array([0, width, 8], dtype=np.int64),  # 0 keeps the number of rows
        "powers": np.array([1 << k for k in range(8)], dtype=np.int32),
        "last": np.array([-1], dtype=np.int64),
    }
    make_node, types = onnx.helper.make_node, onnx.TensorProto
    graph = onnx.helper.make_graph(
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
        [onnx.helper.make_tensor_value_info("X", types.FLOAT, ["n", d])],
        [onnx.helper.make_tensor_value_info("codes", types.UINT8, ["n", width])],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = onnx.helper.make_model(
        graph,
        opset_imports=[onnx.helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
        producer_name="scq_gpu",
        producer_version=__version__,
    )
    facts = {"bit_contract": BIT_CONTRACT, "n_bits": str(n_bits), "n_features": str(d), "encoder": encoder}
    onnx.helper.set_model_props(model, facts)
    onnx.checker.check_model(model, full_check=True)
    return model
