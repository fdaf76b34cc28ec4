"""Compiled `solvers.secular.solve_secular`: an equation at a time, until it is solved; imported only with numba.

The step is that of `solvers.secular.refine`. A loop over scalars needs no grid to start from and stops when it is done,
which arrays of equations cannot.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from scq_gpu._numba_threads import allowed_threads, over_tasks
from scq_gpu._xp import row_slices

_STEPS = 60  # most steps; halving alone would be done by then


def solve_rows(gap: np.ndarray, m: np.ndarray) -> np.ndarray:
    """The roots tau (R,) for the rows of m (R, D); 0 in the hard case."""
    tau = np.empty(m.shape[0], dtype=m.dtype)
    gap, m = np.ascontiguousarray(gap), np.ascontiguousarray(m)
    info = np.finfo(m.dtype)
    tiny, eps = float(info.smallest_normal) ** 0.5, float(info.eps)
    several = -(-m.shape[0] // (4 * allowed_threads()))
    over_tasks([(_solve, gap, m[part], tau[part], eps, tiny) for part in row_slices(m.shape[0], several)])
    return tau


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "arcp"}, inline="always")
def _sums(gap, m, tau):  # type: ignore[no-untyped-def]
    p0, p1, p2 = 0.0, 0.0, 0.0
    for i in range(len(gap)):
        z = 1.0 / (gap[i] + tau)
        v = m[i] * z
        w = v * z
        p0 += v * v
        p1 += v * w
        p2 += w * w
    return p0, p1, p2


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "arcp"})
def _solve(gap, m, out, eps, tiny):  # type: ignore[no-untyped-def]
    slack = np.sqrt(eps)
    for r in range(m.shape[0]):
        square, weighted = 0.0, 0.0
        for i in range(m.shape[1]):
            g = m[r, i] * m[r, i]
            square += g
            weighted += g * gap[i]
        norm = np.sqrt(square)
        hi = max(norm, tiny)
        lowest = hi * eps**2 + tiny
        lo = lowest
        if square > 0:
            lo = min(max(norm - weighted / square, lowest), hi)
        tau = lo
        if lo == lowest:
            if _sums(gap, m[r], lowest)[0] < 1:
                out[r] = 0.0  # the hard case
                continue
            tau = hi
        for _ in range(_STEPS):
            p0, p1, p2 = _sums(gap, m[r], tau)
            if p0 >= 1:
                lo = max(lo, tau)
            else:
                hi = min(hi, tau)
            x = p1 / p2 if p2 > 0 else 0.0
            c = p0 - p1 * x
            step = np.sqrt(lo) * np.sqrt(hi)
            if c < 1:
                model = tau + x * (np.sqrt(p1 * x / (1 - c)) - 1)
                if lo * (1 - slack) < model < hi * (1 + slack):
                    step = min(max(model, lo), hi)
            done = abs(step - tau) <= 64 * eps * tau
            tau = step
            if done:
                break
        out[r] = tau
