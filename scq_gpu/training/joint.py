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

from scq_gpu._core.arrays import Array, elementwise, total
from scq_gpu.kernels.linalg import orthonormalize, polar, skew
from scq_gpu.training.loop import VStep

STEPS = 7
"""Steps within one V step."""
_MOMENTUM = 0.8  # beta


def orthonormal_step(*, steps: int = STEPS, xp: ModuleType) -> VStep:
    """Make the joint V step of OnE."""

    def run(lam: Array, M: Array, V: Array, memory: None) -> tuple[Array, None, None]:
        return fit_joint_orthonormal(lam, M, V, steps=steps, xp=xp), None, None

    return VStep(run, descends=True, nearest=lambda V: orthonormalize(polar(V, xp=xp), xp=xp))


def orthogonal_step(ridge: float, *, steps: int = STEPS, xp: ModuleType) -> VStep:
    """Make the joint V step of OgE."""

    def run(lam: Array, M: Array, V: Array, memory: None) -> tuple[Array, None, None]:
        return fit_joint_orthogonal(lam, M, V, ridge=ridge, steps=steps, xp=xp), None, None

    def nearest(V: Array) -> Array:
        lengths = xp.linalg.vector_norm(V, axis=-2, keepdims=True)
        return orthonormalize(polar(V / lengths, xp=xp), xp=xp) * lengths

    return VStep(run, descends=True, nearest=nearest, ridge=ridge)


def rotation_step(*, ahead: bool = True, xp: ModuleType) -> VStep:
    """Make the V step of ITQ (Gong and Lazebnik, 2011): the rotation (R, L, L) that brings rows nearest to their signs.

    This orthogonal Procrustes problem is OnE's with as many axes as bits. Its solution never raises the loss for the
    signs it is given, so that they may be taken ``ahead`` of it. Where two bits have the same signs in all rows, M is
    singular and its polar factor is no rotation; V then stays what it was.
    """

    def run(lam: Array, M: Array, V: Array, memory: None) -> tuple[Array, None, None]:
        R = polar(M, xp=xp)
        # products of R'R are off by up to 1 % from rounding, which `orthonormalize` removes
        return xp.where(skew(R, xp=xp) <= 1e-4, R, V), None, None

    return VStep(run, descends=ahead)


def fit_joint_orthonormal(lam: Array, M: Array, V: Array, *, steps: int = STEPS, xp: ModuleType) -> Array:
    """Improve orthonormal V (R, D, L), all columns at once; the result is orthonormal and no worse than V."""
    lam = lam[..., None]
    bound = _bound(lam, xp.max(lam, axis=-2, keepdims=True), xp=xp)

    def gain(V: Array) -> Array:
        """Return how far the objective is below 0."""
        return _GAIN(M, lam, V, axis=(-2, -1), xp=xp)

    best = Q = V
    least = reached = now = gain(V)
    for _ in range(steps):
        best, A = _next_orthonormal(best, Q, reached, now, bound, M, xp=xp)
        reached = xp.maximum(now, reached)
        Q = polar(A, xp=xp)
        now = gain(Q)
    best = orthonormalize(_better(best, Q, reached, now, xp=xp), xp=xp)
    # where nothing is left to gain, rounding may have made it worse
    return _better(V, best, least, gain(best), xp=xp)


def fit_joint_orthogonal(lam: Array, M: Array, V: Array, *, ridge: float, steps: int = STEPS, xp: ModuleType) -> Array:
    """Improve V (R, D, L), all columns at once; the result has pairwise orthogonal columns and is no worse than V.

    V must have pairwise orthogonal columns, none of them zero.
    """
    lam = (lam + ridge)[..., None]
    bound = _bound(lam, xp.max(lam, axis=-2, keepdims=True), xp=xp)

    def lengths(Q: Array) -> tuple[Array, Array, Array]:
        """Return ``q_k'm_k`` and ``q_k' diag(lam) q_k``, whose ratio is s_k, and the gain at these lengths."""
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


@elementwise
def _bound(lam: Array, largest: Array, *, xp: ModuleType) -> Array:
    """Return ``a - lam``, with a above max(lam), so that the columns of diag(a - lam) V stay independent."""
    return 1.01 * largest - lam


@elementwise
def _better(old: Array, new: Array, before: Array, after: Array, *, xp: ModuleType) -> Array:
    """Select the new one where its gain is no less."""
    return xp.where(after >= before, new, old)


@elementwise
def _next_orthonormal(
    best: Array, Q: Array, reached: Array, now: Array, bound: Array, M: Array, *, xp: ModuleType
) -> tuple[Array, Array]:
    """Return the better of two, and the matrix of the next polar factor, extrapolated from the last step."""
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
    """Do the same with weights, none of which is much less than the longest of the columns."""
    better = xp.where(now >= reached, Q, best)
    shortest = 1e-3 * xp.where(longest > 0, longest, 1.0)
    weights = xp.where(xp.abs(s) >= shortest, s, xp.where(s >= 0, shortest, -shortest))
    return better, (bound * (better + _MOMENTUM * (better - best)) * weights + M) * weights


@elementwise
def _best_lengths(
    s: Array, reached: Array, now: Array, along: Array, across: Array, *, xp: ModuleType
) -> tuple[Array, Array, Array]:
    """Return the lengths of the better of two, their sizes, and its gain."""
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
    """Return the better of two, each column at its best length; one that should vanish keeps its direction."""
    s = xp.where(after >= before, along / across, old_along / old_across)
    return xp.where(after >= before, new, old) * xp.where(s == 0, tiny, s)
