r"""Linear maps as Faiss indexes, and back.

Faiss's `IndexLSH` computes ``rrot.A x - thresholds`` and sets bit k where that is ``>= 0``, at position ``k % 8`` of
byte ``k // 8``. That is our bit contract, with A = W' and the thresholds t. Its binary indexes take codes as they are.

A product quantizer of four bits per group (`IndexPQFastScan`, tables in registers) compares float queries with codes.
With the coordinates :math:`o_k` and the levels of `scq_gpu.search.scoring`, their midpoints :math:`m_k`, their half
differences :math:`h_k`, and :math:`b_k = \pm 1`,

.. math:: |o(q) - c(b)|^2 = |o(q) - m|^2 + |h|^2 - 2 \sum_k (o_k(q) - m_k) \, b_k h_k,

so codes rank by the last sum. The bit :math:`b_k` of a row is the sign of :math:`o_k`, not of :math:`o_k - m_k`, but
Faiss encodes a row by the nearest centroid in the space of the queries. Two more axes per group separate the two. On
the first, every vector is K and the centroid is :math:`-\sum_k m_k b_k h_k / K`, which is the term with :math:`m_k`. On
the second, every vector is 0, and the centroids are placed such that the first axis does not change the nearest one.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from scq_gpu._core.bits import code_bytes
from scq_gpu._core.messages import need
from scq_gpu.search.scoring import UnitMap

KINDS = ("flat", "ivf", "hnsw", "asymmetric")

_INSTALL = "pip install faiss-cpu"
_GROUP = 4  # bits per group of a fast scan: 16 table entries fill a register


class _Step(NamedTuple):
    """The map ``x -> A x + b``; ``rescales`` means that each row is then divided by its own length."""

    A: np.ndarray
    b: np.ndarray
    rescales: bool = False


def make_index(components: np.ndarray, threshold: np.ndarray) -> Any:
    """Build a trained, empty ``faiss.IndexLSH`` that makes the codes of the map."""
    faiss = need("faiss", caller="to_faiss", install=_INSTALL)
    n_bits, d = components.shape
    # The index has its own matrix and thresholds, which are replaced here.
    index = faiss.IndexLSH(d, n_bits, True, True)
    faiss.copy_array_to_vector(np.ascontiguousarray(components, dtype=np.float32).ravel(), index.rrot.A)
    faiss.copy_array_to_vector(np.ascontiguousarray(threshold, dtype=np.float32), index.thresholds)
    index.rrot.is_orthonormal = False
    index.rrot.is_trained = index.is_trained = True
    return index


def make_binary_index(n_bits: int, kind: str, *, n_lists: int) -> Any:
    """Build an empty binary index for codes, with untrained inverted lists or a graph."""
    faiss = need("faiss", caller="to_faiss", install=_INSTALL)
    description = f"BIVF{n_lists}" if kind == "ivf" else "BHNSW32"
    return faiss.index_binary_factory(8 * code_bytes(n_bits), description)


def make_asymmetric_index(known: UnitMap) -> Any:
    """Build a trained, empty index that encodes like the map and scores codes against float queries."""
    faiss = need("faiss", caller="to_faiss", install=_INSTALL)
    if known.components is None:
        raise ValueError("an index for floats needs the components of the map")
    n_bits, d = known.components.shape
    # Two groups fill a byte, so that Faiss's codes are ours.
    n_groups = 2 * code_bytes(n_bits)
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


def make_product_index(axes: np.ndarray, cells: np.ndarray, mean: np.ndarray) -> Any:
    """Build a trained, empty index of product codes with these cells (bytes, 256, width) along axes from the mean."""
    faiss = need("faiss", caller="to_faiss", install=_INSTALL)
    n_bytes, width, d = axes.shape
    A = axes.reshape(n_bytes * width, d).astype(np.float64)
    transform = faiss.LinearTransform(d, n_bytes * width, True)
    index = faiss.IndexPQ(n_bytes * width, n_bytes, 8)
    for values, vector in ((A, transform.A), (-A @ mean, transform.b), (cells, index.pq.centroids)):
        faiss.copy_array_to_vector(values.astype(np.float32).ravel(), vector)
    transform.is_trained = index.is_trained = True
    return faiss.IndexPreTransform(transform, index)


def _centroids(h: np.ndarray, m: np.ndarray, missing: np.ndarray, size: float) -> np.ndarray:
    """Compute centroids (groups, 16, 6) from h and m (groups, 4) as the module docstring derives; K is ``size``."""
    bits = np.arange(2**_GROUP)[:, None] >> np.arange(_GROUP) & 1
    signs = 2 * bits - 1
    moved = np.sum(signs * (m * h)[:, None, :], axis=2)
    # The first extra axis brings a centroid this much nearer, which the second axis compensates.
    too_near = 2 * moved + (moved / size) ** 2
    # Bits that pad the last byte stay 0.
    never = size**2 * np.sum(bits * missing[:, None, :], axis=2)
    apart = np.sqrt(np.max(too_near, axis=1, keepdims=True) - too_near + never)
    return np.concatenate([signs * h[:, None, :], -moved[:, :, None] / size, apart[:, :, None]], axis=2)


def read_map(source: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return W' (n_bits, d) and t (n_bits,), in float32, of the map that ``source`` encodes with."""
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
    """List the maps that Faiss applies to a row before ``>= 0``."""
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
    if isinstance(transform, faiss.LinearTransform):
        return _read_linear(transform, faiss)
    d = transform.d_in
    if isinstance(transform, faiss.CenteringTransform):
        return _Step(np.eye(d), -_array(transform.mean, faiss))
    if isinstance(transform, faiss.NormalizationTransform):
        return _Step(np.eye(d), np.zeros(d), rescales=True)
    # It centers a row, divides it by its length and applies a matrix.
    if isinstance(transform, faiss.ITQTransform):
        last = _read_linear(transform.pca_then_itq, faiss)
        if np.any(last.b):
            raise ValueError("this ITQTransform adds a bias after it divided each row by its length: no linear map")
        return _Step(last.A, -last.A @ _array(transform.mean, faiss), rescales=True)
    raise TypeError(
        f"from_faiss cannot read a {type(transform).__name__}; it reads LinearTransform, CenteringTransform, "
        "NormalizationTransform, ITQTransform"
    )


def _read_linear(transform: Any, faiss: ModuleType) -> _Step:
    """Read a LinearTransform, PCAMatrix, ITQMatrix, OPQMatrix or RandomRotationMatrix, with or without a bias."""
    A = _array(transform.A, faiss).reshape(transform.d_out, transform.d_in)
    return _Step(A, _array(transform.b, faiss) if transform.have_bias else np.zeros(transform.d_out))


def _checked(thing: Any) -> Any:
    if not thing.is_trained:
        raise ValueError(f"this {type(thing).__name__} is not trained; train it in Faiss first")
    return thing


def _array(vector: Any, faiss: ModuleType) -> np.ndarray:
    values: np.ndarray = faiss.vector_to_array(vector)
    return values.astype(np.float64)
