"""Spectral hashing.

Y. Weiss, A. Torralba, R. Fergus, "Spectral hashing", Advances in Neural Information Processing Systems, 2008.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from scq_gpu._xp import Array, from_host, namespace, to_host
from scq_gpu.baselines.base import on_device, principal_axes
from scq_gpu.estimator import Encoder
from scq_gpu.rows import Rows


class SH(Encoder):
    r"""Spectral hashing: the signs of the smoothest waves along the principal axes [1]_.

    If the rows filled a box along their principal axes, the eigenfunctions of its Laplacian along an axis of range
    [a, b] would be the waves :math:`\sin(\pi/2 + k \pi (x - a) / (b - a))`, k = 1, 2, ... The ``n_bits`` of lowest
    frequency over all axes are taken: a long axis gets several bits, a short one none.

    Parameters
    ----------
    n_bits : int, default=32
        Any number, also more than there are features.
    device : {None, "cpu", "cuda", "cuda:1", ...}, default=None
        Where to work; None follows X.

    Attributes
    ----------
    frequencies_ : array (n_bits, n_features)
        The axis of each wave times its frequency: bit k is ``cos(x . frequencies_[k] - phases_[k]) >= 0``.
    phases_ : array (n_bits,)
    modes_ : array (n_bits, 2) of integers
        Axis and k of each wave.
    n_features_in_, n_samples_ : int

    References
    ----------
    .. [1] Y. Weiss, A. Torralba, R. Fergus, "Spectral hashing", NIPS 2008.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import scq_gpu as scq
    >>> X, _ = load_digits(return_X_y=True)
    >>> encoder = scq.SH(n_bits=16).fit(X)
    >>> encoder.modes_[-3:].tolist()  # of the last bits, two are second waves along longer axes
    [[3, 2], [13, 1], [0, 2]]
    """

    frequencies_: Array
    phases_: Array
    modes_: Array
    _fitted_arrays = ("frequencies_", "phases_", "modes_")
    _fitted_facts = ("n_features_in_", "n_samples_")

    def __init__(self, n_bits: int = 32, *, device: str | None = None) -> None:
        self.n_bits = n_bits
        self.device = device

    def _learn(self, rows: Rows) -> None:
        xp = rows.xp
        basis = principal_axes(rows, n_bits=1, n_components=self.n_bits, scale=1.0)
        offset = basis.mean @ basis.P

        def extremes(scores: Array, t: Array) -> Array:
            scores = scores - t
            return xp.stack([xp.min(scores, axis=0), xp.max(scores, axis=0)])[None, ...]

        found = rows.map_scores(basis.P, offset, extremes)  # (blocks, 2, axes)
        low, high = (
            to_host(x).astype(np.float64) for x in (xp.min(found[:, 0, :], axis=0), xp.max(found[:, 1, :], axis=0))
        )
        axis, k = _smoothest_waves(high - low, self.n_bits)
        frequency = on_device(k * np.pi / (high - low)[axis], rows)
        places = from_host(axis, xp=xp, device=rows.device)
        start = xp.take(offset + on_device(low, rows), places, axis=0)
        self.frequencies_ = xp.astype((xp.take(basis.P, places, axis=1) * frequency).T, rows.dtype)
        self.phases_ = xp.astype(start * frequency, rows.dtype)
        self.modes_ = from_host(np.stack([axis, k], axis=1), xp=xp, device=rows.device)

    def project(self, X: Any) -> Array:
        """The waves at each row, between -1 and 1, whose signs are the bits.

        Parameters
        ----------
        X : array (n, n_features)

        Returns
        -------
        array (n, n_bits) of float
        """
        return self._map_waves(X, lambda waves: waves)

    def _map_bits(self, X: Any, function: Callable[[Array], Array]) -> Array:
        return self._map_waves(X, lambda waves: function(waves >= 0))

    def _map_waves(self, X: Any, function: Callable[[Array], Array]) -> Array:
        def run(rows: Rows, W: Array, t: Array) -> Array:
            return rows.map_scores(W.T, t, lambda scores, t: function(namespace(scores).cos(scores - t)))

        return self._run_with(X, ("frequencies_", "phases_"), run)


def _smoothest_waves(ranges: np.ndarray, n_bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Axis and number (from 1) of the waves of lowest frequency over axes of these ranges, the lowest first."""
    k = np.arange(1, n_bits + 1)
    frequencies = k / ranges[:, None]
    chosen = np.argsort(frequencies, axis=None, kind="stable")[:n_bits]
    axis, place = np.divmod(chosen, n_bits)
    return axis, k[place]
