r"""V steps that move all columns at once (beyond the paper): no order among the bits, so no starved last ones.

**OnE** minimises ``tr(V' diag(lam) V) - 2 tr(V'M)`` over ``V'V = I``. For any ``a >= max(lam)`` the first term is
``a L - tr(V' diag(a - lam) V)``, a concave function that lies below its tangent at any point W, so

    V = polar(diag(a - lam) W + M),    polar(A) = A (A'A)^(-1/2),

minimises an upper bound that touches at W: with W = V the objective never rises.

**OgE** writes ``V = Q diag(s)`` with ``Q'Q = I``. Given s, the same bound with weights s^2 gives
``Q = polar(diag(a - lam) Q diag(s^2) + M diag(s))``; given Q, each length has its minimiser
``s_k = q_k'm_k / (q_k' diag(lam) q_k)``, lam including the ridge. Neither step raises the objective.

Steps are short along axes of little variance, so a few of them a V step favour the others; the sign passes between them
do the rest.
"""

from __future__ import annotations

from types import ModuleType

from scq_gpu._xp import Array

STEPS = 20
SOFTNESS = 0.3  # of the signs, until the fit has settled: rows nearer to a threshold than this count by their distance
_HEADROOM = 1.01  # a / max(lam): keeps the columns of diag(a - lam) V independent
_SHORTEST = 1e-3  # of a column against the longest, as far as its weight in the polar factor goes


def fit_joint_orthonormal(lam: Array, M: Array, V: Array, *, steps: int = STEPS, xp: ModuleType) -> Array:
    """V step of OnE from orthonormal V (R, D, L), all columns at once: orthonormal, and no worse than V."""
    lam = lam[..., None]
    bound = _HEADROOM * xp.max(lam, axis=-2, keepdims=True) - lam

    def objective(V: Array) -> Array:
        return xp.sum((lam * V - 2 * M) * V, axis=(-2, -1), keepdims=True)

    V_new = V
    for _ in range(steps):
        V_new = polar(bound * V_new + M, xp=xp)
    V_new = orthonormalise(V_new, xp=xp)
    return xp.where(objective(V_new) <= objective(V), V_new, V)  # rounding, where nothing is left to gain


def fit_joint_orthogonal(lam: Array, M: Array, V: Array, *, ridge: float, steps: int = STEPS, xp: ModuleType) -> Array:
    """V step of OgE from V (R, D, L), all columns at once: pairwise orthogonal, and no worse than V.

    V must have pairwise orthogonal columns, none of them zero.
    """
    lam = (lam + ridge)[..., None]
    bound = _HEADROOM * xp.max(lam, axis=-2, keepdims=True) - lam

    def lengths(Q: Array) -> Array:
        return xp.sum(Q * M, axis=-2, keepdims=True) / xp.sum(lam * Q * Q, axis=-2, keepdims=True)

    def gain(Q: Array) -> Array:
        """How far the best lengths bring the objective below 0: ``sum_k (q_k'm_k)^2 / (q_k' diag(lam) q_k)``."""
        return xp.sum(lengths(Q) * xp.sum(Q * M, axis=-2, keepdims=True), axis=-1, keepdims=True)

    Q = old = V / xp.linalg.vector_norm(V, axis=-2, keepdims=True)
    for _ in range(steps):
        s = lengths(Q)
        longest = xp.max(xp.abs(s), axis=-1, keepdims=True)
        shortest = _SHORTEST * xp.where(longest > 0, longest, 1.0)
        s = xp.where(xp.abs(s) >= shortest, s, xp.where(s >= 0, shortest, -shortest))
        Q = polar(bound * Q * (s * s) + M * s, xp=xp)
    Q = orthonormalise(Q, xp=xp)
    Q = xp.where(gain(Q) >= gain(old), Q, old)
    s = lengths(Q)
    return Q * xp.where(s == 0, float(xp.finfo(M.dtype).eps), s)  # a column keeps its direction, whatever its length


def polar(A: Array, *, xp: ModuleType) -> Array:
    """The matrix with orthonormal columns nearest to A (..., D, L), by an eigendecomposition of order L."""
    w, E = xp.linalg.eigh(xp.matrix_transpose(A) @ A)
    smallest = float(xp.finfo(A.dtype).eps) * xp.max(w, axis=-1, keepdims=True)
    w = xp.maximum(w, xp.where(smallest > 0, smallest, 1.0))
    return A @ ((E / xp.sqrt(w)[..., None, :]) @ xp.matrix_transpose(E))


def orthonormalise(V: Array, *, xp: ModuleType) -> Array:
    """V with V'V = I to rounding, from one that is nearly so: two Newton-Schulz steps, each squaring the error."""
    for _ in range(2):
        V = 1.5 * V - 0.5 * (V @ (xp.matrix_transpose(V) @ V))
    return V
