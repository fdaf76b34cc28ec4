"""Encoders that were learned elsewhere."""

from __future__ import annotations

from typing import Any, Self

from sklearn.exceptions import NotFittedError

from scq_gpu.encoders.base import LinearEncoder
from scq_gpu.io.faiss_index import read_map
from scq_gpu.io.formats import convert

__all__ = ["ImportedEncoder", "convert", "from_faiss"]


class ImportedEncoder(LinearEncoder):
    """An encoder whose map comes from other software: it encodes, projects, saves and exports, but does not learn.

    `scq_gpu.from_faiss` makes one.

    Parameters
    ----------
    n_bits : int, default=32
    device : {None, "cpu", "cuda", "cuda:1", ...}, default=None
        Where to work; None follows X.

    Attributes
    ----------
    components_ : array (n_bits, n_features)
        W': bit k is ``x . components_[k] >= threshold_[k]``.
    threshold_ : array (n_bits,)
    n_features_in_ : int

    Examples
    --------
    >>> import faiss, numpy as np
    >>> import scq_gpu as scq
    >>> scq.from_faiss(faiss.IndexLSH(8, 4))
    ImportedEncoder(n_bits=4)
    """

    def __init__(self, n_bits: int = 32, *, device: str | None = None) -> None:
        self.n_bits = n_bits
        self.device = device

    def fit(self, X: Any, y: object = None) -> Self:
        """Check that X (n, n_features) has the right number of features; there is nothing to learn."""
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(
                "an ImportedEncoder cannot learn: make it with scq_gpu.from_faiss or scq_gpu.load. Inside a pipeline "
                "that gets cloned, wrap it in sklearn.frozen.FrozenEstimator"
            )
        self._open(X, reset=False)
        return self


def from_faiss(source: Any) -> ImportedEncoder:
    """Make an encoder of what Faiss learned.

    Parameters
    ----------
    source : faiss.Index or faiss.VectorTransform
        A trained ``IndexLSH``, an ``IndexPreTransform`` that ends in one (for example ``"ITQ64,LSH"``), or a transform
        whose signs are the bits. Transforms may be a ``LinearTransform`` (PCA, OPQ, ITQ and random rotations are), a
        ``CenteringTransform``, an ``ITQTransform``, or a ``NormalizationTransform`` with no bias after it.

    Returns
    -------
    encoder
        Its codes are those of ``source.sa_encode``, up to the rounding of float32 products. Only the map of an index is
        read, not the codes it holds.

    Examples
    --------
    >>> import faiss, numpy as np
    >>> import scq_gpu as scq
    >>> X = np.random.default_rng(0).normal(size=(500, 16)).astype(np.float32)
    >>> index = faiss.index_factory(16, "PCA8,LSH")
    >>> index.train(X)
    >>> encoder = scq.from_faiss(index)
    >>> bool((encoder.encode(X) == index.sa_encode(X)).all())
    True
    """
    components, threshold = read_map(source)
    encoder = ImportedEncoder(n_bits=components.shape[0])
    encoder.components_, encoder.threshold_ = components, threshold
    encoder.n_features_in_ = components.shape[1]
    return encoder
