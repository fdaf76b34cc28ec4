"""Float queries against the codes of an index, as a function; and rescoring with the original floats."""

from __future__ import annotations

from typing import Any

from scq_gpu._core.arrays import Array
from scq_gpu.search.index import HammingIndex
from scq_gpu.search.rescoring import rescore

__all__ = ["asymmetric_search", "rescore"]


def asymmetric_search(
    encoder: Any, X_query: Array, index: HammingIndex, k: int, *, metric: str = "l2"
) -> tuple[Array, Array]:
    """The k nearest codes to float queries: `HammingIndex.search_asymmetric` as a function.

    Parameters
    ----------
    encoder : fitted encoder
        With ``project(X)``, ``n_bits`` and, learned in ``fit``, ``levels_`` (n_bits, 2); without the latter the levels
        are -1 and +1.
    X_query : array (q, d)
    index : HammingIndex
        Of codes from the same encoder.
    k : int
    metric : {"l2", "cosine", "ip"}, default="l2"

    Returns
    -------
    distances : array (q, k) of float32
    ids : array (q, k) of int64

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu.search import HammingIndex, asymmetric_search
    >>> class Identity:
    ...     n_bits = 2
    ...
    ...     def project(self, X):
    ...         return X
    >>> index = HammingIndex(np.array([[0b00], [0b01], [0b11]], dtype=np.uint8), n_bits=2)
    >>> asymmetric_search(Identity(), np.array([[0.75, -0.25]]), index, k=2)
    (array([[0.625, 1.625]], dtype=float32), array([[1, 2]]))
    """
    return index.search_asymmetric(encoder, X_query, k, metric=metric)
