"""Signs of randomly rotated principal components.

H. Jegou, M. Douze, C. Schmid, P. Perez, "Aggregating local descriptors into a compact image representation", Computer
Vision and Pattern Recognition, 2010.
"""

from __future__ import annotations

from typing import Any

from scq_gpu._xp import Array
from scq_gpu.baselines.base import _PCABaseline, on_device
from scq_gpu.basis import Basis
from scq_gpu.rows import Rows
from scq_gpu.solvers.rotation import fit_rotation
from scq_gpu.starts import generator


class PCARR(_PCABaseline):
    """PCA and a random rotation: the signs of the leading principal components, turned so that all weigh alike [1]_.

    The start of `ITQ`, and much of its gain over `PCAH`.

    Parameters
    ----------
    n_bits : int, default=32
        At most the rank of the centred rows.
    device : {None, "cpu", "cuda", "cuda:1", ...}, default=None
        Where to work; None follows X.
    random_state : int, Generator or None, default=None
        Seed of the rotation, the same on every backend.

    Attributes
    ----------
    components_, threshold_, mean_, eigenvalues_, scale_, levels_, n_features_in_, n_samples_
        As in `PCAH`.

    References
    ----------
    .. [1] H. Jegou, M. Douze, C. Schmid, P. Perez, "Aggregating local descriptors into a compact image
           representation", CVPR 2010.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import scq_gpu as scq
    >>> X, _ = load_digits(return_X_y=True)
    >>> scq.PCARR(n_bits=16, random_state=0).fit(X).encode(X).shape
    (1797, 2)
    """

    def __init__(self, n_bits: int = 32, *, device: str | None = None, random_state: Any = None) -> None:
        self.n_bits = n_bits
        self.device = device
        self.random_state = random_state

    def _rotation(self, rows: Rows, basis: Basis) -> Array:
        draw = generator(self.random_state).standard_normal((self.n_bits, self.n_bits))
        return fit_rotation(on_device(draw, rows), xp=rows.xp)  # what is nearest to normals is uniform over rotations
