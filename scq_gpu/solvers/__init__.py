"""V steps: pure functions from ``lam`` and ``M`` to ``V``, in the eigenbasis of the covariance.

T. Hoang, T.-T. Do, H. Le, D.-K. Le-Tan, N.-M. Cheung, "Simultaneous Compression and Quantization: A Joint Approach
for Efficient Unsupervised Hashing", Computer Vision and Image Understanding, 2019. Algorithms and equations cited in
this package are of that paper.

``lam (D,)`` are the eigenvalues of X'X / n, ``M = X'B / n`` is (D, L), and every function takes a leading batch axis
over independent problems: ``lam (D,)`` or ``(R, D)``, ``M (R, D, L)``. No function here moves data to the host, save
where its docstring says so.
"""

from __future__ import annotations

from types import ModuleType

from scq_gpu._xp import Array


def loss(lam: Array, M: Array, V: Array, *, ridge: float = 0.0, xp: ModuleType) -> Array:
    r"""The paper's Q without touching a row: ``||B - XV||^2/n + mu ||V||^2 = L + sum((lam + mu) V^2) - 2 sum(M V)``.

    Returns
    -------
    array (R,)
        One value for each problem of the batch.
    """
    return V.shape[-1] + xp.sum(((lam + ridge)[..., None] * V - 2 * M) * V, axis=(-2, -1))
