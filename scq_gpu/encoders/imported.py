"""Encoders that were learned elsewhere."""

from __future__ import annotations

from typing import Any, Self

from sklearn.exceptions import NotFittedError

from scq_gpu.encoders.base import LinearEncoder
from scq_gpu.io.faiss_index import read_map


class ImportedEncoder(LinearEncoder):
    """An encoder with a map from other software, as `scq_gpu.from_faiss` makes one.

    It encodes, projects, saves and exports, but does not learn.

    Parameters
    ----------
    n_bits, device
        As in `OgE`.

    Attributes
    ----------
    components_, threshold_, n_features_in_
        As in `OgE`.

    Examples
    --------
    >>> import faiss, numpy as np
    >>> import scq_gpu as scq
    >>> scq.from_faiss(faiss.IndexLSH(8, 4))
    ImportedEncoder(n_bits=4)
    """

    def fit(self, X: Any, y: object = None, *, on_invalid: str = "raise") -> Self:
        """Check that X (n, n_features) has the right number of features, and learn nothing."""
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(
                "an ImportedEncoder cannot learn: make it with scq_gpu.from_faiss or scq_gpu.load. Inside a pipeline "
                "that gets cloned, wrap it in sklearn.frozen.FrozenEstimator"
            )
        self._open(X, reset=False)
        return self


def from_faiss(source: Any) -> ImportedEncoder:
    """Make an encoder from an index or a transform of Faiss.

    Parameters
    ----------
    source : faiss.Index or faiss.VectorTransform
        A trained ``IndexLSH``, an ``IndexPreTransform`` that ends in one (for example ``"ITQ64,LSH"``), or a transform
        whose signs are the bits. A transform is a ``LinearTransform`` (such as PCA, OPQ, ITQ or a random rotation), a
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
