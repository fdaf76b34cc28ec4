"""Signs of principal components.

B. Wang, Z. Li, M. Li, W.-Y. Ma, "Large-scale duplicate detection for web image search", International Conference on
Multimedia and Expo, 2006.
"""

from __future__ import annotations

from scq_gpu._xp import Array
from scq_gpu.baselines.base import _PCABaseline
from scq_gpu.basis import Basis
from scq_gpu.rows import Rows


class PCAH(_PCABaseline):
    """PCA hashing: the signs of the leading principal components [1]_.

    The first bits carry most of the variance and the last ones little, but all count alike in a Hamming distance:
    codes get worse with length. A rotation (`PCARR`, `ITQ`) mends that.

    Parameters
    ----------
    n_bits : int, default=32
        At most the rank of the centred rows.
    device : {None, "cpu", "cuda", "cuda:1", ...}, default=None
        Where to work; None follows X.

    Attributes
    ----------
    components_ : array (n_bits, n_features)
        The principal axes times ``scale_``: bit k is ``x . components_[k] >= threshold_[k]``.
    threshold_ : array (n_bits,)
    mean_ : array (n_features,)
    eigenvalues_ : array (n_bits,)
        Variances along the axes.
    scale_ : float
        As for `OnE`; it changes no bit.
    levels_ : array (n_bits, 2)
        Mean projection of the training rows whose bit is 0, and 1.
    n_features_in_, n_samples_ : int

    References
    ----------
    .. [1] B. Wang, Z. Li, M. Li, W.-Y. Ma, "Large-scale duplicate detection for web image search", ICME 2006.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import scq_gpu as scq
    >>> X, _ = load_digits(return_X_y=True)
    >>> scq.PCAH(n_bits=16).fit(X).encode(X).shape
    (1797, 2)
    """

    def __init__(self, n_bits: int = 32, *, device: str | None = None) -> None:
        self.n_bits = n_bits
        self.device = device

    def _rotation(self, rows: Rows, basis: Basis) -> Array:
        return rows.xp.eye(self.n_bits, dtype=rows.small, device=rows.device)
