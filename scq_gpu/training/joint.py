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
from scq_gpu.kernels.fused import elementwise, total
from scq_gpu.training.linalg import orthonormalize, polar
from scq_gpu.training.loop import VStep

STEPS = 7
_MOMENTUM = 0.8  # beta
_HEADROOM = 1.01  # a / max(lam): keeps the columns of diag(a - lam) V independent
_SHORTEST = 1e-3  # of a column against the longest, as far as its weight in the polar factor goes


def orthonormal_step(*, steps: int = STEPS, xp: ModuleType) -> VStep:
    """The joint V step of OnE, for the training loop."""

    def run(lam: Array, M: Array, V: Array, memory: None) -> tuple[Array, None, None]:
        return fit_joint_orthonormal(lam, M, V, steps=steps, xp=xp), None, None

    return VStep(run, descends=True, nearest=lambda V: orthonormalize(polar(V, xp=xp), xp=xp))


def orthogonal_step(ridge: float, *, steps: int = STEPS, xp: ModuleType) -> VStep:
    """The joint V step of OgE, for the training loop."""

    def run(lam: Array, M: Array, V: Array, memory: None) -> tuple[Array, None, None]:
        return fit_joint_orthogonal(lam, M, V, ridge=ridge, steps=steps, xp=xp), None, None

    def nearest(V: Array) -> Array:
        lengths = xp.linalg.vector_norm(V, axis=-2, keepdims=True)
        return orthonormalize(polar(V / lengths, xp=xp), xp=xp) * lengths

    return VStep(run, descends=True, nearest=nearest)


def fit_joint_orthonormal(lam: Array, M: Array, V: Array, *, steps: int = STEPS, xp: ModuleType) -> Array:
    """V step of OnE from orthonormal V (R, D, L), all columns at once: orthonormal, and no worse than V."""
    lam = lam[..., None]
    bound = _bound(lam, xp=xp)

    def gain(V: Array) -> Array:
        """How far the objective is below 0."""
        return _GAIN(M, lam, V, axis=(-2, -1), xp=xp)

    best = Q = V
    least = reached = now = gain(V)
    for _ in range(steps):
        best, A = _next_orthonormal(best, Q, reached, now, bound, M, xp=xp)
        reached = xp.maximum(now, reached)
        Q = polar(A, xp=xp)
        now = gain(Q)
    best = orthonormalize(_better(best, Q, reached, now, xp=xp), xp=xp)
    return _better(V, best, least, gain(best), xp=xp)  # rounding, where nothing is left to gain


def fit_joint_orthogonal(lam: Array, M: Array, V: Array, *, ridge: float, steps: int = STEPS, xp: ModuleType) -> Array:
    """V step of OgE from V (R, D, L), all columns at once: pairwise orthogonal, and no worse than V.

    V must have pairwise orthogonal columns, none of them zero.
    """
    lam = (lam + ridge)[..., None]
    bound = _bound(lam, xp=xp)

    def lengths(Q: Array) -> tuple[Array, Array, Array]:
        """``q_k'm_k`` and ``q_k' diag(lam) q_k``, whose ratio is s_k, and how far below 0 these bring the objective."""
        along, across = _DOT(Q, M, axis=-2, xp=xp), _SQUARE(lam, Q, axis=-2, xp=xp)
        return along, across, _RATIO(along, across, axis=-1, xp=xp)

    old = best = Q = V / xp.linalg.vector_norm(V, axis=-2, keepdims=True)
    *first, least = *fit, now = lengths(Q)
    s, reached = first[0] / first[1], least
    for _ in range(steps):
        s, size, most = _best_lengths(s, reached, now, *fit, xp=xp)
        longest = xp.max(size, axis=-1, keepdims=True)
        best, A = _next_orthogonal(best, Q, reached, now, bound, M, s, longest, xp=xp)
        reached = most
        Q = polar(A, xp=xp)
        *fit, now = lengths(Q)
    best = orthonormalize(_better(best, Q, reached, now, xp=xp), xp=xp)
    *fit, now = lengths(best)
    return _with_lengths(old, best, least, now, *first, *fit, float(xp.finfo(M.dtype).eps), xp=xp)


_GAIN = total(lambda m, lam, v: (2 * m - lam * v) * v, "(2 * a - b * c) * c")
_DOT = total(lambda q, m: q * m, "a * b")
_SQUARE = total(lambda lam, q: lam * q * q, "a * b * b")
_RATIO = total(lambda along, across: along * along / across, "a * a / b")


def _bound(lam: Array, *, xp: ModuleType) -> Array:
    """``a - lam`` for lam (..., D, 1)."""
    return _below(xp.max(lam, axis=-2, keepdims=True), lam, xp=xp)


@elementwise
def _below(largest: Array, lam: Array, *, xp: ModuleType) -> Array:
    return _HEADROOM * largest - lam


@elementwise
def _better(old: Array, new: Array, before: Array, after: Array, *, xp: ModuleType) -> Array:
    """The new one where its gain is no less."""
    return xp.where(after >= before, new, old)


@elementwise
def _next_orthonormal(
    best: Array, Q: Array, reached: Array, now: Array, bound: Array, M: Array, *, xp: ModuleType
) -> tuple[Array, Array]:
    """The better of two, and what the next polar factor is taken of: a step from where the last was heading."""
    better = xp.where(now >= reached, Q, best)
    return better, bound * (better + _MOMENTUM * (better - best)) + M


@elementwise
def _next_orthogonal(
    best: Array,
    Q: Array,
    reached: Array,
    now: Array,
    bound: Array,
    M: Array,
    s: Array,
    longest: Array,
    *,
    xp: ModuleType,
) -> tuple[Array, Array]:
    """The same with weights, none of which is much less than the longest of the columns."""
    better = xp.where(now >= reached, Q, best)
    shortest = _SHORTEST * xp.where(longest > 0, longest, 1.0)
    weights = xp.where(xp.abs(s) >= shortest, s, xp.where(s >= 0, shortest, -shortest))
    return better, (bound * (better + _MOMENTUM * (better - best)) * weights + M) * weights


@elementwise
def _best_lengths(
    s: Array, reached: Array, now: Array, along: Array, across: Array, *, xp: ModuleType
) -> tuple[Array, Array, Array]:
    """The lengths of the better of two, their sizes, and its gain."""
    better = xp.where(now >= reached, along / across, s)
    return better, xp.abs(better), xp.maximum(now, reached)


@elementwise
def _with_lengths(
    old: Array,
    new: Array,
    before: Array,
    after: Array,
    old_along: Array,
    old_across: Array,
    along: Array,
    across: Array,
    tiny: float,
    *,
    xp: ModuleType,
) -> Array:
    """The better of two, each column at its best length; one that should vanish keeps its direction."""
    s = xp.where(after >= before, along / across, old_along / old_across)
    return xp.where(after >= before, new, old) * xp.where(s == 0, tiny, s)
