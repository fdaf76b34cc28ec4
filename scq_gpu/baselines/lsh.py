"""Random hyperplanes.

M. S. Charikar, "Similarity estimation techniques from rounding algorithms", Symposium on Theory of Computing, 2002.
"""

from __future__ import annotations

from typing import Any

from scq_gpu.baselines.base import _LinearBaseline, mean_row, on_device
from scq_gpu.rows import Rows
from scq_gpu.starts import generator


class LSH(_LinearBaseline):
    """Locality-sensitive hashing: the signs of random projections of the centred rows.

    Two rows share a bit with probability ``1 - angle / pi``, the angle being that between them as seen from the mean
    of the training rows [1]_. Only that mean is learned: features of one sign, such as those behind a ReLU, would
    otherwise have nearly all bits equal.

    Parameters
    ----------
    n_bits : int, default=32
        Any number, also more than there are features.
    device : {None, "cpu", "cuda", "cuda:1", ...}, default=None
        Where to work; None follows X.
    random_state : int, Generator or None, default=None
        Seed of the hyperplanes, the same on every backend.

    Attributes
    ----------
    components_ : array (n_bits, n_features)
        Independent standard normals: bit k is ``x . components_[k] >= threshold_[k]``.
    threshold_ : array (n_bits,)
    mean_ : array (n_features,)
    levels_ : array (n_bits, 2)
        Mean projection of the training rows whose bit is 0, and 1.
    n_features_in_, n_samples_ : int

    References
    ----------
    .. [1] M. S. Charikar, "Similarity estimation techniques from rounding algorithms", STOC 2002.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import scq_gpu as scq
    >>> X, _ = load_digits(return_X_y=True)
    >>> scq.LSH(n_bits=32, random_state=0).fit(X).encode(X).shape
    (1797, 4)
    """

    def __init__(self, n_bits: int = 32, *, device: str | None = None, random_state: Any = None) -> None:
        self.n_bits = n_bits
        self.device = device
        self.random_state = random_state

    def _learn(self, rows: Rows) -> None:
        W = on_device(generator(self.random_state).standard_normal((rows.shape[1], self.n_bits)), rows)
        mean = mean_row(rows)
        self._keep_map(rows, W, mean @ W, mean)
