"""Signs of linear maps: random ones (LSH), and principal components as they are (PCAH) or rotated (PCARR, ITQ)."""

from __future__ import annotations

from typing import Any

from scq_gpu._core.arrays import Array
from scq_gpu._core.validate import check_integer
from scq_gpu.encoders.baselines.base import _LinearBaseline, mean_row, on_device, principal_axes
from scq_gpu.rows.basis import Basis
from scq_gpu.rows.inputs import InputRows
from scq_gpu.training.linalg import generator, polar
from scq_gpu.training.loop import train
from scq_gpu.training.rotation import rotation_step


class LSH(_LinearBaseline):
    """Locality-sensitive hashing: the signs of random projections of the centered rows.

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
    threshold_, mean_, levels_, n_features_in_, n_samples_
        As in `PCAH`.

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

    def _learn(self, rows: InputRows) -> None:
        W = on_device(generator(self.random_state).standard_normal((rows.shape[1], self.n_bits)), rows)
        mean = mean_row(rows)
        self._keep_map(rows, W.T, mean @ W, mean)


class PCAH(_LinearBaseline):
    """PCA hashing: the signs of the leading principal components [1]_.

    The first bits carry most of the variance and the last ones little, but all count alike in a Hamming distance:
    codes get worse with length. A rotation (`PCARR`, `ITQ`) mends that.

    Parameters
    ----------
    n_bits : int, default=32
        At most the rank of the centered rows.
    device : {None, "cpu", "cuda", "cuda:1", ...}, default=None
        Where to work; None follows X.

    Attributes
    ----------
    components_ : array (n_bits, n_features)
        The principal axes, rotated (or not), times ``scale_``: bit k is ``x . components_[k] >= threshold_[k]``.
    threshold_ : array (n_bits,)
    mean_ : array (n_features,)
    eigenvalues_ : array (n_bits,)
        Variances along the axes.
    scale_ : float
        As for `OnE`; it changes no bit, and makes quantization losses comparable.
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

    _fitted_arrays = (*_LinearBaseline._fitted_arrays, "eigenvalues_")
    _fitted_facts = (*_LinearBaseline._fitted_facts, "scale_")

    def __init__(self, n_bits: int = 32, *, device: str | None = None) -> None:
        self.n_bits = n_bits
        self.device = device

    def _learn(self, rows: InputRows) -> None:
        basis = principal_axes(rows, n_bits=self.n_bits, n_components=self.n_bits)
        W_t, t = basis.fold(self._rotation(rows, basis))
        self._keep_map(rows, W_t, t, basis.mean)
        self.eigenvalues_ = rows.xp.astype(basis.eigenvalues, rows.dtype)
        self.scale_ = basis.scale

    def _rotation(self, rows: InputRows, basis: Basis) -> Array:
        """The rotation (n_bits, n_bits) of the axes."""
        return rows.xp.eye(self.n_bits, dtype=rows.sum_dtype, device=rows.device)


class PCARR(PCAH):
    """PCA and a random rotation: the signs of the leading principal components, turned so that all weigh alike [1]_.

    The start of `ITQ`, and much of its gain over `PCAH`.

    Parameters
    ----------
    n_bits, device
        As in `PCAH`.
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
        super().__init__(n_bits, device=device)
        self.random_state = random_state

    def _rotation(self, rows: InputRows, basis: Basis) -> Array:
        draw = generator(self.random_state).standard_normal((self.n_bits, self.n_bits))
        return polar(on_device(draw, rows), xp=rows.xp)  # what is nearest to normals is uniform over rotations


class ITQ(PCARR):
    """Iterative quantization: principal components, rotated so that their signs lose least [1]_.

    Minimizes ``||B - XR||^2`` over signs B and rotations R, X being the leading ``n_bits`` principal components, from a
    random rotation: signs and the rotation nearest to them in turn. All rows take part, none is normalized.

    Parameters
    ----------
    n_bits, device, random_state
        As in `PCARR`.
    max_iter : int, default=50
        Iterations, the authors' number by default; exactly so many are run.

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

    _fitted_facts = (*PCARR._fitted_facts, "loss_curve_", "n_iter_")

    def __init__(
        self, n_bits: int = 32, *, max_iter: int = 50, device: str | None = None, random_state: Any = None
    ) -> None:
        super().__init__(n_bits, device=device, random_state=random_state)
        self.max_iter = max_iter

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_integer(self.max_iter, name="max_iter", minimum=1)

    def _rotation(self, rows: InputRows, basis: Basis) -> Array:
        (run,) = train(
            rows.project(basis),
            basis.lam,
            super()._rotation(rows, basis)[None, ...],
            step=rotation_step(xp=rows.xp, ahead=False),
            ridge=0.0,
            tol=0.0,
            iterations=range(self.max_iter),
            xp=rows.xp,
        )
        self.loss_curve_, self.n_iter_ = run.losses, len(run.losses)
        return run.V
