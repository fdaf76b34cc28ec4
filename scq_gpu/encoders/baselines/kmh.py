"""K-means hashing (He et al., 2013), in the subspaces of optimized product quantization (Ge et al., 2013)."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Options

from scq_gpu._core.arrays import Array, device_of, from_host, generator, signs, to_host
from scq_gpu._core.messages import warn_caller
from scq_gpu.encoders.base import POSITIVE_INTEGER, BitEncoder, real
from scq_gpu.encoders.baselines.base import blocks_of, on_device, principal_axes, projections
from scq_gpu.kernels.linalg import polar
from scq_gpu.rows.blocks import Rows


class KMH(BitEncoder):
    r"""K-means hashing: a row's code names its nearest word, and near words have near names [1]_.

    The principal axes are dealt out to ``n_bits / bits_per_subspace`` subspaces so that the product of the variances
    is about the same in each [2]_. In each, :math:`2^b` words :math:`c_i` minimize

    .. math:: \frac1n \sum_x |x - c_{i(x)}|^2 + \lambda \sum_{i,j} w_{ij} \left(|c_i - c_j| - s \sqrt{h(i,j)}\right)^2

    with h(i, j) the Hamming distance of the words' numbers, :math:`w_{ij} = n_i n_j / n^2` the share of pairs that have
    these words, and s the side of the cube that the words start from. Rows get their nearest words and the words move,
    in turn.

    Parameters
    ----------
    n_bits : int, default=32
        A multiple of ``bits_per_subspace``.
    bits_per_subspace : {2, 4, 8}, default=4
        A subspace has :math:`2^b` words, and encoding a row takes :math:`2^b` distances per subspace.
    n_components : int, default=512
        Most principal components to keep; a multiple of the number of subspaces is used.
    affinity : float, default=10
        The authors' lambda, the cost of differences between Hamming distances and distances of words.
    max_iter : int, default=50
        Most iterations.
    tol : float, default=1e-4
        The fit ends when the loss falls by less than this, relatively. Giving rows their nearest words can raise the
        second term through its weights. An iteration that raises the loss ends the fit and is undone.
    device, random_state
        As in `PCARR`.

    Attributes
    ----------
    words_ : array (n_subspaces, 2 ** bits_per_subspace, dimensions)
        Bit j of the number of a word is bit j of its subspace's part of the code.
    axes_ : array (n_subspaces * dimensions, n_features)
        The principal axes, by subspace.
    offset_ : array (n_subspaces * dimensions,)
        The mean of the training rows in these coordinates.
    loss_curve_ : list of float
    n_iter_ : int
    converged_ : bool
    n_features_in_, n_samples_ : int

    Notes
    -----
    The words start as the corners of a cube along the leading b axes of their subspace, rotated by ITQ. The authors
    move one word at a time by a quasi-Newton search. Here all move together, by majorization as in multidimensional
    scaling, which never raises the loss and needs no search. With :math:`p_i = n_i/n`, :math:`m_i` the mean of the rows
    at word i and :math:`\bar m` that of all,

    .. math:: c_i \leftarrow \frac1{1 + 2\lambda} \left(m_i + 2\lambda \left(\bar m +
              \sum_j p_j \, s \sqrt{h(i,j)} \, \frac{c_i - c_j}{|c_i - c_j|}\right)\right)

    The projected rows are kept in memory during the fit.

    References
    ----------
    .. [1] K. He, F. Wen, J. Sun, "K-means hashing: An affinity-preserving quantization method for learning binary
           compact codes", CVPR 2013.
    .. [2] T. Ge, K. He, Q. Ke, J. Sun, "Optimized product quantization for approximate nearest neighbor search",
           CVPR 2013.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import scq_gpu as scq
    >>> X, _ = load_digits(return_X_y=True)
    >>> encoder = scq.KMH(n_bits=32, n_components=32, random_state=0).fit(X)
    >>> encoder.words_.shape, encoder.encode(X).shape
    ((8, 16, 4), (1797, 4))
    """

    _fitted_arrays = ("words_", "axes_", "offset_")
    _fitted_facts = ("n_features_in_", "n_samples_", "loss_curve_", "n_iter_", "converged_")
    _parameter_constraints: ClassVar = {
        **dict.fromkeys(("n_components", "max_iter"), POSITIVE_INTEGER),
        **dict.fromkeys(("affinity", "tol"), real(0)),
        "bits_per_subspace": [Options(Integral, {2, 4, 8})],
    }

    def __init__(
        self,
        n_bits: int = 32,
        *,
        bits_per_subspace: int = 4,
        n_components: int = 512,
        affinity: float = 10.0,
        max_iter: int = 50,
        tol: float = 1e-4,
        device: str | None = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(n_bits, device=device)
        self.bits_per_subspace = bits_per_subspace
        self.n_components = n_components
        self.affinity = affinity
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def _check_parameters(self) -> None:
        super()._check_parameters()
        b = self.bits_per_subspace
        if self.n_bits % b:
            raise ValueError(
                f"n_bits={self.n_bits} is not a multiple of bits_per_subspace={b}; change either, for example to "
                f"n_bits={self.n_bits + -self.n_bits % b}"
            )

    def _learn(self, rows: Rows) -> None:
        xp = rows.xp
        subspaces = self.n_bits // self.bits_per_subspace
        basis = principal_axes(rows, n_bits=1, n_components=self.n_components, scale=1.0)
        D = basis.lam.shape[0]
        if D < subspaces:
            raise ValueError(
                f"n_bits={self.n_bits} makes {subspaces} subspaces of {self.bits_per_subspace} bits, more than the {D} "
                f"dimensions left after PCA; lower n_bits, or raise bits_per_subspace or n_components (now "
                f"{self.n_components})"
            )
        order = from_host(_deal_out(to_host(basis.lam), subspaces), xp=xp, device=rows.device)
        W = xp.take(basis.P, order, axis=1)
        t = basis.mean @ W
        Y = _by_subspace(projections(rows, W, t), subspaces, xp=xp)
        words = _first_words(Y, self.bits_per_subspace, generator(self.random_state), rows)
        words = self._move_words(Y, words, energy=xp.sum(xp.take(basis.lam, order, axis=0)), rows=rows)
        self.words_, self.axes_, self.offset_ = (xp.astype(x, rows.dtype) for x in (words, W.T, t))

    def _move_words(self, Y: Array, words: Array, *, energy: Array, rows: Rows) -> Array:
        """Find words (subspaces, 2**b, dimensions) of least loss for projected rows Y (subspaces, n, dimensions).

        ``energy`` is the mean squared length of these rows.
        """
        xp = rows.xp
        K = words.shape[1]
        h = np.arange(K)
        side = 2 * xp.sqrt(xp.mean(xp.sum(words * words, axis=-1), axis=-1) / self.bits_per_subspace)
        targets = side[:, None, None] * on_device(np.sqrt(np.bitwise_count(h[:, None] ^ h), dtype=np.float64), rows)
        curve: list[float] = []
        converged = False
        while len(curve) < self.max_iter and not converged:
            shares, sums = _assign(Y, xp.astype(words, Y.dtype), dtype=rows.sum_dtype, xp=xp)
            moved = words
            # Moves are cheap beside the assignment.
            for _ in range(10):
                moved = _move(moved, shares, sums, targets, affinity=self.affinity, xp=xp)
            loss = float(energy + _loss(moved, shares, sums, targets, affinity=self.affinity, xp=xp))
            converged = bool(curve) and curve[-1] - loss < self.tol * loss
            if not curve or loss <= curve[-1]:
                curve.append(loss)
                words = moved
        self.loss_curve_, self.n_iter_, self.converged_ = curve, len(curve), converged
        if not converged:
            warn_caller(
                f"KMH stopped at max_iter={self.max_iter} before its loss settled within tol={self.tol:g}; raise "
                "max_iter or tol",
                ConvergenceWarning,
            )
        return words

    def _map_bits(self, X: Any, function: Callable[[Array], Array]) -> Array:
        with self._opened(X, "words_", "axes_", "offset_") as (rows, words, axes, offset):
            xp = rows.xp
            words = xp.astype(words, rows.dtype, copy=False)

            def name_words(scores: Array, t: Array) -> Array:
                Y = _by_subspace(xp.astype(scores - t, words.dtype, copy=False), words.shape[0], xp=xp)
                numbers = xp.matrix_transpose(xp.concat([x for _, x in _nearest(Y, words, xp=xp)], axis=1))
                shifts = xp.arange(words.shape[1].bit_length() - 1, dtype=numbers.dtype, device=device_of(numbers))
                bits = xp.bitwise_and(xp.bitwise_right_shift(numbers[..., None], shifts), 1)  # (m, subspaces, b)
                return function(xp.reshape(bits, (numbers.shape[0], -1)) == 1)

            result = rows.map_scores(axes.T, offset, name_words, wide=True)
        return self._returned(result, rows)

    @property
    def _n_features_out(self) -> int:
        subspaces, words, _ = self.words_.shape
        return int(subspaces) * (int(words).bit_length() - 1)


def _deal_out(eigenvalues: np.ndarray, subspaces: int) -> np.ndarray:
    """Deal out axes, equally many each, by falling variance to the subspace of least product so far."""
    size = len(eigenvalues) // subspaces
    # No logarithm is below 0, so an axis always adds to a product.
    logs = np.log(eigenvalues / eigenvalues[-1])
    dealt: list[list[int]] = [[] for _ in range(subspaces)]
    products = np.zeros(subspaces)
    for axis in range(size * subspaces):
        least = int(np.argmin(np.where([len(axes) < size for axes in dealt], products, np.inf)))
        dealt[least].append(axis)
        products[least] += logs[axis]
    return np.concatenate(dealt).astype(np.int64)


def _by_subspace(Y: Array, subspaces: int, *, xp: ModuleType) -> Array:
    """Reshape rows (n, subspaces * dimensions) to (subspaces, n, dimensions)."""
    return xp.permute_dims(xp.reshape(Y, (Y.shape[0], subspaces, -1)), (1, 0, 2))


def _first_words(Y: Array, b: int, rng: np.random.Generator, rows: Rows) -> Array:
    """Return the corners of a cube along the leading b axes of each subspace, rotated by ITQ, with the best side.

    A subspace of fewer dimensions than bits gets the cube's shadow.
    """
    xp, (subspaces, n, dimensions) = rows.xp, Y.shape
    k = min(b, dimensions)
    lead = Y[:, :, :k]
    # Corners times R (..., b, k) are words.
    R = polar(on_device(rng.standard_normal((subspaces, b, k)), rows), xp=xp)
    # Twenty steps of ITQ are enough for a start.
    for _ in range(20):
        M = xp.zeros_like(R)
        for part in blocks_of(n, subspaces * b):
            scores = lead[:, part, :] @ xp.astype(xp.matrix_transpose(R), Y.dtype)
            B = signs(scores >= 0, dtype=Y.dtype, xp=xp)
            M = M + xp.astype(xp.matrix_transpose(B) @ lead[:, part, :], rows.sum_dtype) / n
        R = polar(M, xp=xp)
    half_side = xp.sum(M * R, axis=(1, 2), keepdims=True) / k
    corners = on_device(np.where(np.arange(2**b)[:, None] >> np.arange(b) & 1, 1.0, -1.0), rows)
    flat = xp.zeros((subspaces, 2**b, dimensions - k), dtype=rows.sum_dtype, device=rows.device)
    return xp.concat([half_side * (corners @ R), flat], axis=-1)


def _nearest(Y: Array, words: Array, *, xp: ModuleType) -> Any:
    """Yield the slice of each block of rows and the numbers (subspaces, m) of their nearest words."""
    lengths = xp.sum(words * words, axis=-1)[:, None, :]
    for part in blocks_of(Y.shape[1], words.shape[0] * words.shape[1]):
        yield part, xp.argmin(lengths - 2 * (Y[:, part, :] @ xp.matrix_transpose(words)), axis=-1)


def _assign(Y: Array, words: Array, *, dtype: Any, xp: ModuleType) -> tuple[Array, Array]:
    """Return the share of rows (subspaces, K) at each word, and their sum (subspaces, K, dimensions), over n."""
    n = Y.shape[1]
    shares = xp.zeros(words.shape[:2], dtype=dtype, device=device_of(Y))
    sums = xp.zeros(words.shape, dtype=dtype, device=device_of(Y))
    for part, numbers in _nearest(Y, words, xp=xp):
        every = xp.arange(words.shape[1], dtype=numbers.dtype, device=device_of(Y))[:, None]
        here = xp.astype(numbers[:, None, :] == every, Y.dtype)  # (subspaces, K, m)
        shares = shares + xp.astype(xp.sum(here, axis=-1), dtype)
        sums = sums + xp.astype(here @ Y[:, part, :], dtype)
    return shares / n, sums / n


def _move(words: Array, shares: Array, sums: Array, targets: Array, *, affinity: float, xp: ModuleType) -> Array:
    """Move all words as in the notes of `KMH`; a word without rows stays."""
    d = _distances(words, xp=xp)
    pull = xp.where(d > 0, shares[:, None, :] * targets / xp.where(d > 0, d, xp.ones_like(d)), xp.zeros_like(d))
    apart = xp.sum(pull, axis=-1)[..., None] * words - pull @ words
    used = (shares > 0)[..., None]
    means = sums / xp.where(used, shares[..., None], xp.ones_like(shares[..., None]))
    center = xp.sum(sums, axis=1, keepdims=True)
    return xp.where(used, (means + 2 * affinity * (center + apart)) / (1 + 2 * affinity), words)


def _loss(words: Array, shares: Array, sums: Array, targets: Array, *, affinity: float, xp: ModuleType) -> Array:
    """Return the loss, less the mean squared length of the rows."""
    quantization = xp.sum(words * (shares[..., None] * words - 2 * sums))
    strain = (_distances(words, xp=xp) - targets) ** 2
    return quantization + affinity * xp.sum(shares[:, :, None] * shares[:, None, :] * strain)


def _distances(words: Array, *, xp: ModuleType) -> Array:
    """Return the distances (subspaces, K, K) between words, exactly 0 on the diagonal."""
    lengths = xp.sum(words * words, axis=-1)
    squared = lengths[:, :, None] + lengths[:, None, :] - 2 * (words @ xp.matrix_transpose(words))
    off = 1 - xp.eye(words.shape[1], dtype=words.dtype, device=device_of(words))
    return xp.sqrt(xp.where(squared > 0, squared, xp.zeros_like(squared)) * off)
