r"""The search over nu: roots of ``sum_i (m_i / (gap_i + tau))^2 = 1`` for a batch of problems at once.

Unit vectors that minimize ``v' diag(lam) v - 2 m'v`` have the form ``v = m / (lam + nu)`` (Eq. of v_1 in the paper)
with ``nu >= -min(lam)`` such that ``||v|| = 1``. We search for ``tau = nu + min(lam) >= 0``, the distance to the pole,
with ``gap = lam - min(lam)``: roots next to the pole then keep all their digits.

The paper halves a bracket until it is small. `refine` keeps one too, for every problem of the batch (starts and
scales), but looks at three sums per step,

    p0 = ||v||^2,    p1 = sum v_i^2 / (gap_i + tau),    p2 = sum v_i^2 / (gap_i + tau)^2,

which are the value and two derivatives of ``||v||^2``. So are those of ``c + a / (x + s)^2`` at ``s = 0``, with
``x = p1/p2``, ``a/x^2 = p1^2/p2`` and ``c = p0 - p1^2/p2 >= 0``: the Gauss-Radau quadrature of the sum with one node at
infinity. The root of that model is the next tau, and converges cubically from either side. Where the model has no root
(c >= 1), or one outside the bracket, the bracket is halved on a logarithmic scale.

A fixed, small number of steps therefore does what fifty halvings did, with no look at the data on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from scq_gpu._core.arrays import Array, elementwise, total

Moments = Callable[[Array], tuple[Array, Array, Array]]
"""From tau to p0, p1 and p2, arrays of its shape."""


def refine(moments: Moments, lo: Array, hi: Array, start: Array, *, steps: int, xp: ModuleType) -> tuple[Array, Array]:
    """Narrow brackets ``0 < lo <= root <= hi`` of ``p0(tau) = 1``, all problems together, from ``start``.

    Return the roots, and ``p0`` where it was last evaluated, which is far from 1 where [lo, hi] holds no root.
    """
    # a model's root this close to the bracket is its end, up to rounding
    slack = float(xp.finfo(lo.dtype).eps) ** 0.5
    tau = start
    p0 = xp.ones_like(tau)
    for _ in range(steps):
        p0, p1, p2 = moments(tau)
        lo = xp.where(p0 >= 1, xp.maximum(lo, tau), lo)
        hi = xp.where(p0 >= 1, hi, xp.minimum(hi, tau))
        x = p1 / _divisor(p2, xp)
        c = p0 - p1 * x
        model = tau + x * (xp.sqrt(xp.where(c < 1, p1 * x / (1 - xp.where(c < 1, c, 0.0)), 1.0)) - 1)
        usable = (c < 1) & (model > lo * (1 - slack)) & (model < hi * (1 + slack))
        tau = xp.where(usable, xp.minimum(xp.maximum(model, lo), hi), xp.sqrt(lo) * xp.sqrt(hi))
    return tau, p0


def bracket(
    gap: Array, m: Array, largest: Array | float, *, relative: float, tiny: float, xp: ModuleType
) -> tuple[Array, Array]:
    """Bracket the roots (..., 1) for m (..., D) by ``||m|| - m' diag(gap) m / ||m||^2 <= tau <= ||m||``.

    The lower end is Jensen's inequality; neither end is below ``relative * (largest + ||m||) + tiny``.
    """
    square, spread = SQUARE(m, axis=-1, xp=xp), _SPREAD(m, gap, axis=-1, xp=xp)
    lo, hi = _ends(square, spread, largest, relative, tiny, xp=xp)
    return lo, hi


SQUARE = total(lambda m: m * m, "a * a")
_SPREAD = total(lambda m, gap: gap * m * m, "b * a * a")


@elementwise
def _ends(
    square: Array, spread: Array, largest: Array, relative: float, tiny: float, *, xp: ModuleType
) -> tuple[Array, Array]:
    norm = xp.sqrt(square)
    lowest = relative * (largest + norm) + tiny
    hi = xp.maximum(norm, lowest)
    return xp.minimum(xp.maximum(norm - spread / xp.where(square > 0, square, 1.0), lowest), hi), hi


def solve_secular(gap: Array, m: Array, *, xp: ModuleType) -> Array:
    """Find the roots tau (..., 1) for m (..., D) and gap (D,), of which nothing else is known.

    They are 0 in the hard case, where ``||v|| < 1`` all the way to the pole.
    """
    tiny, relative = float(xp.finfo(m.dtype).smallest_normal) ** 0.5, float(xp.finfo(m.dtype).eps) ** 2
    lowest = relative * xp.linalg.vector_norm(m, axis=-1, keepdims=True) + tiny

    def moments(tau: Array) -> tuple[Array, Array, Array]:
        z = 1 / (gap + tau)
        v = m * z
        w = v * z
        p0, p1, p2 = (xp.sum(x, axis=-1, keepdims=True) for x in (v * v, v * w, w * w))
        return p0, p1, p2

    lo, hi = bracket(gap, m, 0.0, relative=relative, tiny=tiny, xp=xp)
    tau, p0 = refine(moments, lo, hi, hi, steps=64, xp=xp)
    return xp.where((p0 < 1 - 1e-4) & (tau <= 2 * lowest), 0.0, tau)


def minimize_on_sphere(lam: Array, m: Array, *, xp: ModuleType) -> Array:
    """Return the unit vectors v (R, D) that minimize ``v' diag(lam) v - 2 m'v``, one for each row of m.

    In the hard case the norm that m cannot supply goes along the eigenvector of the smallest eigenvalue.
    """
    gap = lam - xp.min(lam)
    tau = solve_secular(gap, m, xp=xp)
    shifted = gap + tau
    v = xp.where(shifted > 0, m / _divisor(shifted, xp), 0.0)
    missing = xp.sqrt(xp.maximum(1 - xp.sum(v * v, axis=-1, keepdims=True), xp.zeros_like(tau)))
    bottom = xp.arange(gap.shape[0], device=gap.device) == xp.argmin(gap)
    v = xp.where(bottom & (tau == 0), xp.where(m >= 0, missing, -missing), v)
    return v / xp.linalg.vector_norm(v, axis=-1, keepdims=True)


def _divisor(x: Array, xp: ModuleType) -> Array:
    """Replace 0 by 1, to divide by x."""
    return xp.where(x > 0, x, xp.ones_like(x))
