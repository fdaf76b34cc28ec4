r"""V steps that move all columns at once (beyond the paper): no order among the bits, so no starved last ones.

**OnE** minimizes ``tr(V' diag(lam) V) - 2 tr(V'M)`` over ``V'V = I``. For any ``a >= max(lam)`` the first term is
``a L - tr(V' diag(a - lam) V)``, a concave function that lies below its tangent at any point W, so

    V = polar(diag(a - lam) W + M),    polar(A) = A (A'A)^(-1/2),

minimizes an upper bound that touches at W: with W = V the objective never rises.

**OgE** writes ``V = Q diag(s)`` with ``Q'Q = I``. Given s, the same bound with weights s^2 gives
``Q = polar(diag(a - lam) Q diag(s^2) + M diag(s))``; given Q, each length has its minimizer
``s_k = q_k'm_k / (q_k' diag(lam) q_k)``, lam including the ridge. Neither step raises the objective.

Steps are short along axes of little variance. Taken from ``Q + beta (Q - Q_previous)``, each goes on where the last was
heading: seven of them, with beta = 0.8, go as far as twenty without. One that raises the objective is taken back, and
the next goes from Q itself. Going all the way in one V step would not pay: the sign passes between them do the rest.
"""

from __future__ import annotations

from types import ModuleType

from scq_gpu._core.arrays import Array
from scq_gpu.training.linalg import orthonormalize, polar
from scq_gpu.training.loop import VStep, all_solved

STEPS = 7
_MOMENTUM = 0.8  # beta
_HEADROOM = 1.01  # a / max(lam): keeps the columns of diag(a - lam) V independent
_SHORTEST = 1e-3  # of a column against the longest, as far as its weight in the polar factor goes


def orthonormal_step(*, xp: ModuleType) -> VStep:
    """The joint V step of OnE, for the training loop."""

    def run(lam: Array, M: Array, V: Array, memory: None) -> tuple[Array, None, Array]:
        return fit_joint_orthonormal(lam, M, V, xp=xp), None, all_solved(M, xp=xp)

    return VStep(run, descends=True)


def orthogonal_step(ridge: float, *, xp: ModuleType) -> VStep:
    """The joint V step of OgE, for the training loop."""

    def run(lam: Array, M: Array, V: Array, memory: None) -> tuple[Array, None, Array]:
        return fit_joint_orthogonal(lam, M, V, ridge=ridge, xp=xp), None, all_solved(M, xp=xp)

    return VStep(run, descends=True)


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
    best = orthonormalize(best, xp=xp)
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
    best = orthonormalize(best, xp=xp)
    best = xp.where(lengths(best)[1] >= least, best, old)
    s, _ = lengths(best)
    return best * xp.where(s == 0, float(xp.finfo(M.dtype).eps), s)  # a column keeps its direction, at any length
