"""Iterative quantization.

Y. Gong, S. Lazebnik, "Iterative quantization: A Procrustean approach to learning binary codes", Computer Vision and
Pattern Recognition, 2011.
"""

from __future__ import annotations

from typing import Any

from scq_gpu._validate import check_integer
from scq_gpu._xp import Array
from scq_gpu.baselines.base import _PCABaseline, on_device
from scq_gpu.basis import Basis
from scq_gpu.rows import Rows
from scq_gpu.solvers.rotation import fit_rotation
from scq_gpu.starts import generator
from scq_gpu.training import VStep, train


class ITQ(_PCABaseline):
    """Iterative quantization: principal components, rotated so that their signs lose least [1]_.

    Minimises ``||B - XR||^2`` over signs B and rotations R, X being the leading ``n_bits`` principal components, from a
    random rotation: signs and the rotation nearest to them in turn. All rows take part, none is normalised.

    Parameters
    ----------
    n_bits : int, default=32
        At most the rank of the centred rows.
    max_iter : int, default=50
        Iterations, the authors' number by default; exactly so many are run.
    device : {None, "cpu", "cuda", "cuda:1", ...}, default=None
        Where to work; None follows X.
    random_state : int, Generator or None, default=None
        Seed of the first rotation, the same on every backend.

    Attributes
    ----------
    components_, threshold_, mean_, eigenvalues_, scale_, levels_, n_features_in_, n_samples_
        As in `PCAH`.
    loss_curve_ : list of float
        ``||B - XR||^2 / n`` of the scaled rows after each iteration.
    n_iter_ : int

    See Also
    --------
    OnE : The same loss with axes that are learned too.

    References
    ----------
    .. [1] Y. Gong, S. Lazebnik, "Iterative quantization: A Procrustean approach to learning binary codes", CVPR 2011.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import scq_gpu as scq
    >>> X, _ = load_digits(return_X_y=True)
    >>> encoder = scq.ITQ(n_bits=16, random_state=0).fit(X)
    >>> encoder.loss_curve_[0] > encoder.loss_curve_[-1]
    True
    """

    loss_curve_: list[float]
    n_iter_: int
    _fitted_facts = (*_PCABaseline._fitted_facts, "loss_curve_", "n_iter_")

    def __init__(
        self, n_bits: int = 32, *, max_iter: int = 50, device: str | None = None, random_state: Any = None
    ) -> None:
        self.n_bits = n_bits
        self.max_iter = max_iter
        self.device = device
        self.random_state = random_state

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_integer(self.max_iter, name="max_iter", minimum=1)

    def _rotation(self, rows: Rows, basis: Basis) -> Array:
        xp = rows.xp

        def rotate(lam: Array, M: Array, V: Array, memory: None) -> tuple[Array, None, Array]:
            return fit_rotation(M, xp=xp), None, xp.ones((1,), dtype=xp.bool, device=rows.device)

        draw = generator(self.random_state).standard_normal((1, self.n_bits, self.n_bits))
        (run,) = train(
            rows.project(basis),
            basis.lam,
            fit_rotation(on_device(draw, rows), xp=xp),
            step=VStep(rotate),
            ridge=0.0,
            tol=0.0,
            iterations=range(self.max_iter),
            watch=None,
            xp=xp,
        )
        self.loss_curve_, self.n_iter_ = run.losses, len(run.losses)
        return run.V
