r"""A linear map as a Faiss index, and back.

Faiss's `IndexLSH` computes ``rrot.A x - thresholds`` and sets bit k where that is ``>= 0``, at position ``k % 8`` of
byte ``k // 8``: our bit contract, once A is W' and the thresholds are t. Its binary indexes take codes as they are.

Float queries against codes are a product quantizer of four bits per group, which Faiss scans with tables in registers
(`IndexPQFastScan`). With the coordinates :math:`o_k` and the levels of `scq_gpu.search.scoring`, their midpoints
:math:`m_k` and half differences :math:`h_k`, and :math:`b_k = \pm 1`,

.. math:: |o(q) - c(b)|^2 = |o(q) - m|^2 + |h|^2 - 2 \sum_k (o_k(q) - m_k) \, b_k h_k,

so codes rank by the last sum. A row, however, gets the bit :math:`b_k` of the sign of :math:`o_k`, not of
:math:`o_k - m_k`, and Faiss encodes a row by the nearest centroid in the space of the queries. Two more axes per group
part the two: on one, every vector is K and the centroid is :math:`-\sum_k m_k b_k h_k / K`, which is the term with
:math:`m_k`; on the other every vector is 0, and the centroids differ there such that the first
axis does not change which of them is nearest.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from scq_gpu._core.bits import code_bytes
from scq_gpu._core.optional import need
from scq_gpu.search.scoring import UnitMap

KINDS = ("flat", "ivf", "hnsw", "asymmetric")

_INSTALL = "pip install faiss-cpu"
_GROUP = 4  # bits per group of a fast scan: 16 table entries fill a register
_HNSW_LINKS = 32  # Faiss's own default


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


def make_binary_index(n_bits: int, kind: str, *, n_lists: int) -> Any:
    """An empty binary index for codes, with an inverted index (untrained) or a graph."""
    faiss = need("faiss", caller="to_faiss", install=_INSTALL)
    description = f"BIVF{n_lists}" if kind == "ivf" else f"BHNSW{_HNSW_LINKS}"
    return faiss.index_binary_factory(8 * code_bytes(n_bits), description)


def make_asymmetric_index(known: UnitMap) -> Any:
    """A trained, empty index that encodes as the map does, and scores codes against float queries."""
    faiss = need("faiss", caller="to_faiss", install=_INSTALL)
    if known.components is None:
        raise ValueError("an index for floats needs the components of the map")
    n_bits, d = known.components.shape
    n_groups = 2 * code_bytes(n_bits)  # whole bytes, so that Faiss's codes are ours
    padding = [(0, _GROUP * n_groups - n_bits), (0, 0)]
    halves = np.pad(known.levels @ [[-0.5, 0.5], [0.5, 0.5]], padding).reshape(n_groups, _GROUP, 2)
    missing = np.arange(_GROUP * n_groups).reshape(n_groups, _GROUP) >= n_bits
    size = float(np.sqrt(np.mean(known.levels**2))) or 1.0
    centroids = _centroids(halves[:, :, 0], halves[:, :, 1], missing, size)

    axes = centroids.shape[2]
    A, b = np.zeros((n_groups, axes, d)), np.zeros((n_groups, axes))
    A[:, :_GROUP] = np.pad(known.components / known.lengths[:, None], padding).reshape(n_groups, _GROUP, d)
    b[:, :_GROUP] = np.pad(-known.threshold / known.lengths, padding[0]).reshape(n_groups, _GROUP)
    b[:, _GROUP] = size
    transform = faiss.LinearTransform(d, n_groups * axes, True)
    scan = faiss.IndexPQFastScan(n_groups * axes, n_groups, _GROUP, faiss.METRIC_INNER_PRODUCT)
    for values, vector in ((A, transform.A), (b, transform.b), (centroids, scan.pq.centroids)):
        faiss.copy_array_to_vector(values.astype(np.float32).ravel(), vector)
    transform.is_trained = scan.is_trained = True
    return faiss.IndexPreTransform(transform, scan)


def _centroids(h: np.ndarray, m: np.ndarray, missing: np.ndarray, size: float) -> np.ndarray:
    """Centroids (groups, 16, 6) from h and m (groups, 4): see the head of this module; K is ``size``."""
    bits = np.arange(2**_GROUP)[:, None] >> np.arange(_GROUP) & 1
    signs = 2 * bits - 1
    moved = np.sum(signs * (m * h)[:, None, :], axis=2)
    too_near = 2 * moved + (moved / size) ** 2  # by how much less another row's squared distance would be
    never = size**2 * np.sum(bits * missing[:, None, :], axis=2)  # bits that pad the last byte stay 0
    apart = np.sqrt(np.max(too_near, axis=1, keepdims=True) - too_near + never)
    return np.concatenate([signs * h[:, None, :], -moved[:, :, None] / size, apart[:, :, None]], axis=2)


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
