r"""V steps that move all columns at once (beyond the paper): no order among the bits, so no starved last ones.

**OnE** minimises ``tr(V' diag(lam) V) - 2 tr(V'M)`` over ``V'V = I``. For any ``a >= max(lam)`` the first term is
``a L - tr(V' diag(a - lam) V)``, a concave function that lies below its tangent at any point W, so

    V = polar(diag(a - lam) W + M),    polar(A) = A (A'A)^(-1/2),

minimises an upper bound that touches at W: with W = V the objective never rises.

**OgE** writes ``V = Q diag(s)`` with ``Q'Q = I``. Given s, the same bound with weights s^2 gives
``Q = polar(diag(a - lam) Q diag(s^2) + M diag(s))``; given Q, each length has its minimiser
``s_k = q_k'm_k / (q_k' diag(lam) q_k)``, lam including the ridge. Neither step raises the objective.

Steps are short along axes of little variance. Taken from ``Q + beta (Q - Q_previous)``, each goes on where the last was
heading: seven of them, with beta = 0.8, go as far as twenty without. One that raises the objective is taken back, and
the next goes from Q itself. Going all the way in one V step would not pay: the sign passes between them do the rest.
"""

from __future__ import annotations

from types import ModuleType

from scq_gpu._xp import Array

STEPS = 7
SOFTNESS = 0.3  # of the signs, until the fit has settled: rows nearer to a threshold than this count by their distance
_MOMENTUM = 0.8  # beta
_HEADROOM = 1.01  # a / max(lam): keeps the columns of diag(a - lam) V independent
_SHORTEST = 1e-3  # of a column against the longest, as far as its weight in the polar factor goes


def fit_joint_orthonormal(lam: Array, M: Array, V: Array, *, steps: int = STEPS, xp: ModuleType) -> Array:
    """V step of OnE from orthonormal V (R, D, L), all columns at once: orthonormal, and no worse than V."""
    lam = lam[..., None]
    bound = _HEADROOM * xp.max(lam, axis=-2, keepdims=True) - lam

    def gain(V: Array) -> Array:
        """How far the objective is below 0."""
        return xp.sum((2 * M - lam * V) * V, axis=(-2, -1), keepdims=True)

    best = previous = V
    least = reached = gain(V)
    for _ in range(steps):
        V_new = polar(bound * (best + _MOMENTUM * (best - previous)) + M, xp=xp)
        now = gain(V_new)
        previous, best = best, xp.where(now >= reached, V_new, best)
        reached = xp.maximum(now, reached)
    best = orthonormalise(best, xp=xp)
    return xp.where(gain(best) >= least, best, V)  # rounding, where nothing is left to gain


def fit_joint_orthogonal(lam: Array, M: Array, V: Array, *, ridge: float, steps: int = STEPS, xp: ModuleType) -> Array:
    """V step of OgE from V (R, D, L), all columns at once: pairwise orthogonal, and no worse than V.

    V must have pairwise orthogonal columns, none of them zero.
    """
    lam = (lam + ridge)[..., None]
    bound = _HEADROOM * xp.max(lam, axis=-2, keepdims=True) - lam

    def lengths(Q: Array) -> tuple[Array, Array]:
        """The best ones, and how far below 0 they bring the objective: ``sum_k (q_k'm_k)^2 / (q_k' diag(lam) q_k)``."""
        along = xp.sum(Q * M, axis=-2, keepdims=True)
        s = along / xp.sum(lam * Q * Q, axis=-2, keepdims=True)
        return s, xp.sum(s * along, axis=-1, keepdims=True)

    best = old = previous = V / xp.linalg.vector_norm(V, axis=-2, keepdims=True)
    s, least = lengths(best)
    reached = least
    for _ in range(steps):
        longest = xp.max(xp.abs(s), axis=-1, keepdims=True)
        shortest = _SHORTEST * xp.where(longest > 0, longest, 1.0)
        weights = xp.where(xp.abs(s) >= shortest, s, xp.where(s >= 0, shortest, -shortest))
        Q = polar(bound * (best + _MOMENTUM * (best - previous)) * (weights * weights) + M * weights, xp=xp)
        s_new, now = lengths(Q)
        better = now >= reached
        previous, best, s = best, xp.where(better, Q, best), xp.where(better, s_new, s)
        reached = xp.maximum(now, reached)
    best = orthonormalise(best, xp=xp)
    best = xp.where(lengths(best)[1] >= least, best, old)
    s, _ = lengths(best)
    return best * xp.where(s == 0, float(xp.finfo(M.dtype).eps), s)  # a column keeps its direction, at any length


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
