r"""The secular equation ``sum_i (m_i / (gap_i + tau))^2 = 1``, for thousands of problems at once.

Unit vectors that minimise ``v' diag(lam) v - 2 m'v`` have the form ``v = m / (lam + nu)`` (Eq. of v_1 in the paper)
with ``nu >= -min(lam)`` such that ``||v|| = 1``. We search for ``tau = nu + min(lam) >= 0``, the distance to the pole,
with ``gap = lam - min(lam)``: roots next to the pole then keep all their digits.

The paper halves a bracket until it is small. `refine` keeps one too, but looks at three sums a step,

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

from scq_gpu._xp import Array, cache_bytes, has_numba, row_slices

_COMPILED = 1 << 20  # terms from which loading the compiled loops pays
_NODES = 64  # of the logarithmic grid on which one matrix product evaluates every equation
_STEPS = 3  # of `refine` inside one cell of that grid; two reach 1e-9, three reach rounding

Moments = Callable[[Array], tuple[Array, Array, Array]]


def refine(moments: Moments, lo: Array, hi: Array, start: Array, *, steps: int, xp: ModuleType) -> tuple[Array, Array]:
    """Narrow brackets ``0 < lo <= root <= hi`` of ``p0(tau) = 1``, all problems together.

    Parameters
    ----------
    moments : callable
        ``tau -> (p0, p1, p2)``, arrays of tau's shape.
    lo, hi, start : array
        The brackets, and where to look first.

    Returns
    -------
    tau, p0 : array
        The roots, and ``p0`` where it was last evaluated: far from 1 where [lo, hi] holds no root.
    """
    slack = float(xp.finfo(lo.dtype).eps) ** 0.5  # a model's root this close to the bracket is its end, up to rounding
    tau = start
    p0 = xp.ones_like(tau)
    for _ in range(steps):
        p0, p1, p2 = moments(tau)
        lo = xp.where(p0 >= 1, xp.maximum(lo, tau), lo)
        hi = xp.where(p0 >= 1, hi, xp.minimum(hi, tau))
        x = p1 / _positive(p2, xp)
        c = p0 - p1 * x
        model = tau + x * (xp.sqrt(xp.where(c < 1, p1 * x / (1 - xp.where(c < 1, c, 0.0)), 1.0)) - 1)
        usable = (c < 1) & (model > lo * (1 - slack)) & (model < hi * (1 + slack))
        tau = xp.where(usable, xp.minimum(xp.maximum(model, lo), hi), xp.sqrt(lo) * xp.sqrt(hi))
    return tau, p0


def solve_secular(gap: Array, m: Array, *, xp: ModuleType) -> Array:
    r"""Solve ``sum_i (m_i / (gap_i + tau))^2 = 1`` for every row m.

    Parameters
    ----------
    gap : array (D,)
        ``lam - min(lam)``: not negative, and 0 at least once.
    m : array (R, D)

    Returns
    -------
    array (R,)
        The roots tau > 0; 0 in the hard case, where the sum stays below 1 all the way to the pole.

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu._xp import namespace
    >>> m = np.array([[0.0, 3.0], [0.5, 0.0]])
    >>> solve_secular(np.array([1.0, 0.0]), m, xp=namespace(m))
    array([3., 0.])
    """
    if m.shape[0] * m.shape[1] >= _COMPILED and has_numba(m):
        from scq_gpu._secular_numba import solve_rows

        return solve_rows(gap, m)
    return solve_arrays(gap, m, xp=xp)


def solve_arrays(gap: Array, m: Array, *, xp: ModuleType) -> Array:
    """`solve_secular` with array operations alone."""
    tall, short = (max(1, cache_bytes(m) // (share * 8 * m.shape[-1])) for share in (2, 16))
    brackets = [_bracket(gap, m[part, :], xp=xp) for part in row_slices(m.shape[0], tall)]
    lowest, lo, hi, start = (xp.concat(column) for column in zip(*brackets, strict=True))

    def solve(part: slice) -> Array:
        rows = m[part, :]

        def moments(tau: Array) -> tuple[Array, Array, Array]:
            z = 1 / (gap + tau[:, None])
            v = rows * z
            w = v * z
            return xp.vecdot(v, v), xp.vecdot(v, w), xp.vecdot(w, w)

        tau, p0 = refine(moments, lo[part], hi[part], start[part], steps=_STEPS, xp=xp)
        hard = (p0 < 1 - 1e-4) & (tau <= 2 * lowest[part])
        return xp.where(hard, 0.0, tau)

    # short blocks: z, v and w side by side in a core's own cache
    return xp.concat([solve(part) for part in row_slices(m.shape[0], short)])


def minimise_on_sphere(lam: Array, m: Array, *, xp: ModuleType) -> Array:
    """The unit vectors v (R, D) that minimise ``v' diag(lam) v - 2 m'v``, one for each row of m.

    In the hard case the norm that m cannot supply goes along the eigenvector of the smallest eigenvalue.
    """
    gap = lam - xp.min(lam)
    tau = solve_secular(gap, m, xp=xp)[..., None]
    shifted = gap + tau
    v = xp.where(shifted > 0, m / _positive(shifted, xp), 0.0)
    missing = xp.sqrt(xp.maximum(1 - xp.sum(v * v, axis=-1, keepdims=True), xp.zeros_like(tau)))
    bottom = xp.arange(gap.shape[0], device=gap.device) == xp.argmin(gap)
    fill = xp.where(m >= 0, missing, -missing)
    v = xp.where(bottom & (tau == 0), fill, v)
    return v / xp.linalg.vector_norm(v, axis=-1, keepdims=True)


def _bracket(gap: Array, m: Array, *, xp: ModuleType) -> tuple[Array, Array, Array, Array]:
    """The smallest tau told apart from the pole, brackets of the roots, and a first guess.

    Jensen's inequality gives ``||m|| - m' diag(gap) m / ||m||^2 <= tau <= ||m||``. One matrix product then evaluates
    every equation on a logarithmic grid: its cell is the bracket, the chord through the cell the guess.
    """
    eps = float(xp.finfo(m.dtype).eps)
    tiny = float(xp.finfo(m.dtype).smallest_normal) ** 0.5
    g = m * m
    square = xp.sum(g, axis=-1)
    norm = xp.sqrt(square)
    hi = xp.maximum(norm, xp.full_like(norm, tiny))
    lowest = hi * eps**2 + tiny
    jensen = norm - (g @ gap) / _positive(square, xp)
    lo = xp.minimum(xp.maximum(jensen, lowest), hi)

    first, last = xp.log(xp.min(lo)), xp.log(xp.max(hi))
    x = first + xp.linspace(0.0, 1.0, _NODES, dtype=m.dtype, device=m.device) * (last - first)
    nodes = xp.exp(x)
    y = nodes / (gap[:, None] + nodes)
    scaled = g @ (y * y)  # nodes^2 ||v||^2
    above = xp.count_nonzero(scaled >= nodes * nodes, axis=-1)
    cell = xp.clip(above - 1, 0, _NODES - 2)
    x_left, x_right = xp.take(x, cell), xp.take(x, cell + 1)
    ends = xp.take_along_axis(scaled, xp.stack([cell, cell + 1], axis=-1), axis=-1)
    ends = xp.log(xp.maximum(ends, xp.full_like(ends, tiny**2)))
    left, right = ends[:, 0] - 2 * x_left, ends[:, 1] - 2 * x_right
    chord = x_left + (x_right - x_left) * left / _positive(left - right, xp)
    lo = xp.where(above > 0, xp.maximum(lo, xp.exp(x_left)), lo)
    hi = xp.maximum(xp.where(above < _NODES, xp.minimum(hi, xp.exp(x_right)), hi), lo)
    return lowest, lo, hi, xp.minimum(xp.maximum(xp.exp(xp.clip(chord, first, last)), lo), hi)


def _positive(x: Array, xp: ModuleType) -> Array:
    """x as a divisor: 1 where x is 0."""
    return xp.where(x > 0, x, xp.ones_like(x))
