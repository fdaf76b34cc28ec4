"""The columnwise V step of OnE for many starts at once, against one start at a time, and against a loop of brentq.

    python -m pytest benchmarks/bench_columnwise.py -o addopts=--import-mode=importlib --benchmark-only -q -s

The step is the second of a fit: M is from a sign pass over random rows, and the search over nu begins at the roots of
the first. The loop finds the nu of each column with `scipy.optimize.brentq`, on the same function in the same bracket.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq

from scq_gpu.rows.basis import compute_basis
from scq_gpu.rows.passes import Rows
from scq_gpu.training.orthonormal import fit_orthonormal
from scq_gpu.training.secular import bracket
from scq_gpu.training.starts import draw_starts

N, D, L = 5_000, 256, 32
BATCHES = (1, 8, 32)


@pytest.fixture(scope="module", params=BATCHES, ids=lambda R: f"R={R}")
def step(request):
    """lam, M and the roots of the step before."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, D)) * np.logspace(0, -1, D)
    rows = Rows(X)
    xp = rows.xp
    basis = compute_basis(rows.moments(), n_bits=L, n_components=D, eps=2.2e-16, xp=xp)
    projected = rows.project(basis)
    V = draw_starts("random", basis, projected, n_bits=L, n_init=request.param, random_state=0, xp=xp)
    V, tau, _ = fit_orthonormal(basis.lam, projected.statistics(V).M, xp=xp)
    return basis.lam, projected.statistics(V).M, tau, xp


def by_brentq(lam, M, xp):
    """V (D, L) of one problem, column by column."""
    gap, V = lam - lam.min(), np.zeros((0, len(lam)))
    for m in M.T:

        def column(tau, m=m, V=V):
            z = 1 / (gap + tau)
            return z * (m - np.linalg.solve((V * z) @ V.T, V @ (z * m)) @ V)

        def excess(tau, column=column):
            v = column(tau)
            return v @ v - 1

        lo, hi = bracket(gap, m - (m @ V.T) @ V, np.full(1, 1e-12), xp=xp)
        v = column(brentq(excess, lo[0] * (1 - 1e-9), hi[0] * (1 + 1e-9), rtol=1e-13))
        v = v - (v @ V.T) @ V
        V = np.concatenate([V, v[None] / np.linalg.norm(v)])
    return V.T


def test_v_step(benchmark, side_by_side, step):
    lam, M, tau, xp = step
    R = len(M)

    def together():
        return fit_orthonormal(lam, M, start=tau, xp=xp)

    def one_by_one():
        return [fit_orthonormal(lam, M[r : r + 1], start=tau[r : r + 1], xp=xp) for r in range(R)]

    def loop():
        return np.stack([by_brentq(lam, m, xp) for m in M])

    V, _, found = together()
    assert found.all(), "the step of a fit that needs no retry"
    np.testing.assert_allclose(V, loop(), atol=1e-6)
    batched, single, brent = side_by_side(together, one_by_one, loop, rounds=5)
    benchmark.pedantic(together, rounds=1)
    benchmark.extra_info |= {"one by one / batched": single / batched, "brentq / batched": brent / batched}
    print(
        f"\nR = {R}, D = {D}, {L} bits: batched {1e3 * batched:.1f} ms, one by one {single / batched:.2f} x as long, "
        f"a loop of brentq {brent / batched:.1f} x"
    )
