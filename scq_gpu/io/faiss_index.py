"""A linear map as a Faiss index, and back.

Faiss's `IndexLSH` computes ``rrot.A x - thresholds`` and sets bit k where that is ``>= 0``, at position ``k % 8`` of
byte ``k // 8``: our bit contract, once A is W' and the thresholds are t.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from scq_gpu._core.optional import need

_INSTALL = "pip install faiss-cpu"


class _Step(NamedTuple):
    """``x -> A x + b``, and whether each row is then divided by a length of its own."""

    A: np.ndarray
    b: np.ndarray
    rescales: bool = False


def make_index(components: np.ndarray, threshold: np.ndarray) -> Any:
    """A trained, empty ``faiss.IndexLSH`` whose codes are those of the map."""
    faiss = need("faiss", caller="to_faiss", install=_INSTALL)
    n_bits, d = components.shape
    index = faiss.IndexLSH(d, n_bits, True, True)  # with a matrix and thresholds of its own, which are ours from now on
    faiss.copy_array_to_vector(np.ascontiguousarray(components, dtype=np.float32).ravel(), index.rrot.A)
    faiss.copy_array_to_vector(np.ascontiguousarray(threshold, dtype=np.float32), index.thresholds)
    index.rrot.is_orthonormal = False
    index.rrot.is_trained = index.is_trained = True
    return index


def read_map(source: Any) -> tuple[np.ndarray, np.ndarray]:
    """W' (n_bits, d) and t (n_bits,), in float32, of what Faiss encodes with ``source``."""
    faiss = need("faiss", caller="from_faiss", install=_INSTALL)
    (A, b, rescaled), *rest = _steps(source, faiss)
    for step in rest:
        if rescaled and np.any(step.b):
            raise ValueError(
                "this Faiss chain divides each row by its length and adds a bias or a threshold after that, so its "
                "bits are no linear map of the row; normalize the rows yourself and pass what follows"
            )
        A, b, rescaled = step.A @ A, step.A @ b + step.b, rescaled or step.rescales
    return A.astype(np.float32), (-b).astype(np.float32)


def _steps(source: Any, faiss: ModuleType) -> list[_Step]:
    """What happens to a row, up to ``>= 0``."""
    if isinstance(source, faiss.VectorTransform):
        return [_read_transform(source, faiss)]
    if not isinstance(source, faiss.Index):
        raise TypeError(f"from_faiss got {type(source).__name__}; pass a faiss.Index or a faiss.VectorTransform")
    index = _checked(faiss.downcast_index(source))
    if isinstance(index, faiss.IndexPreTransform):
        chain = [_read_transform(index.chain.at(i), faiss) for i in range(index.chain.size())]
        return chain + _steps(index.index, faiss)
    if not isinstance(index, faiss.IndexLSH):
        raise TypeError(
            f"{type(index).__name__} does not encode by the signs of a linear map; pass a faiss.IndexLSH, an "
            "IndexPreTransform that ends in one, or a VectorTransform. An index that wraps another holds it in "
            "index.index"
        )
    n_bits = index.nbits
    steps = [_read_linear(index.rrot, faiss) if index.rotate_data else _Step(np.eye(n_bits, index.d), np.zeros(n_bits))]
    if index.train_thresholds:
        steps.append(_Step(np.eye(n_bits), -_array(index.thresholds, faiss)))
    return steps


def _read_transform(transform: Any, faiss: ModuleType) -> _Step:
    transform = _checked(faiss.downcast_VectorTransform(transform))
    for kind in type(transform).__mro__:
        if kind.__name__ in _READERS:
            return _READERS[kind.__name__](transform, faiss)
    raise TypeError(f"from_faiss cannot read a {type(transform).__name__}; it reads {', '.join(_READERS)}")


def _read_linear(transform: Any, faiss: ModuleType) -> _Step:
    """Also PCAMatrix, ITQMatrix, OPQMatrix and RandomRotationMatrix: all are a matrix and, some, a bias."""
    A = _array(transform.A, faiss).reshape(transform.d_out, transform.d_in)
    return _Step(A, _array(transform.b, faiss) if transform.have_bias else np.zeros(transform.d_out))


def _read_itq(transform: Any, faiss: ModuleType) -> _Step:
    """Faiss centers the row, divides it by its length, then applies a matrix without bias: signs do not see lengths."""
    last = _read_linear(transform.pca_then_itq, faiss)
    if np.any(last.b):
        raise ValueError("this ITQTransform adds a bias after it divided each row by its length: no linear map")
    return _Step(last.A, -last.A @ _array(transform.mean, faiss), rescales=True)


_READERS: dict[str, Callable[[Any, ModuleType], _Step]] = {
    "LinearTransform": _read_linear,
    "CenteringTransform": lambda transform, faiss: _Step(np.eye(transform.d_in), -_array(transform.mean, faiss)),
    "NormalizationTransform": lambda transform, _: _Step(np.eye(transform.d_in), np.zeros(transform.d_in), True),
    "ITQTransform": _read_itq,
}


def _checked(thing: Any) -> Any:
    if not thing.is_trained:
        raise ValueError(f"this {type(thing).__name__} is not trained; train it in Faiss first")
    return thing


def _array(vector: Any, faiss: ModuleType) -> np.ndarray:
    values: np.ndarray = faiss.vector_to_array(vector)
    return values.astype(np.float64)
