"""The batched search against brentq, one equation at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from scq_gpu._core.arrays import namespace
from scq_gpu.training.secular import solve_secular

XP = namespace(np.empty(0))


def solve(gap, m):
    return solve_secular(gap, m, xp=XP)[..., 0]


def equations(R=10_000, D=512, seed=0):
    """A quarter each: ordinary roots, roots next to the pole, roots near 1e6, and the hard case."""
    rng = np.random.default_rng(seed)
    gap = np.sort(10 ** rng.uniform(-4, 1, D))[::-1]
    gap -= gap[-1]
    m = rng.standard_normal((R, D)) * np.sqrt(gap / D)
    ordinary, pole, large, hard = np.split(m, 4)
    ordinary *= 10 ** rng.uniform(-1, 2, (len(ordinary), 1))
    ordinary[:, -1] = 10 ** rng.uniform(-3, 0, len(ordinary))
    for part in (pole, hard):
        part *= 0.5 / np.linalg.norm(part[:, :-1] / gap[:-1], axis=1, keepdims=True)
    pole[:, -1] = 10 ** rng.uniform(-12, -8, len(pole))
    large *= 1e6 / np.linalg.norm(large, axis=1, keepdims=True)
    hard[:, -1] = 0
    return gap, m


def by_brentq(gap, m):
    size = np.linalg.norm(m)

    def excess(tau):
        return np.sum(m**2 / (gap + tau) ** 2) - 1

    if size == 0 or excess(1e-18 * size) < 0:
        return 0.0
    return brentq(excess, 1e-18 * size, size * (1 + 1e-15), xtol=1e-300, rtol=1e-13, maxiter=1000)


def test_ten_thousand_equations_agree_with_brentq():
    gap, m = equations()
    tau = solve(gap, m)
    expected = np.array([by_brentq(gap, row) for row in m])
    kinds = np.split(expected, 4)
    assert kinds[1].max() < 1e-7
    assert kinds[2].min() > 9e5
    assert not kinds[3].any()
    np.testing.assert_allclose(tau, expected, rtol=1e-9, atol=0)


@st.composite
def wild_equations(draw):
    D = draw(st.integers(1, 60))
    R = draw(st.integers(1, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    gap = {
        "flat": lambda: np.zeros(D),
        "steep": lambda: np.logspace(3, -12, D),
        "clusters": lambda: np.repeat([1.0, 1e-6], [D // 2, D - D // 2]) * (1 + 1e-3 * rng.random(D)),
        "linear": lambda: np.linspace(5, 0, D),
    }[draw(st.sampled_from(["flat", "steep", "clusters", "linear"]))]()
    gap = gap - gap.min()
    m = rng.standard_normal((R, D)) * 10 ** rng.uniform(-8, 2, (R, D)) ** draw(st.sampled_from([0, 1]))
    m *= (gap + 1e-15) ** draw(st.sampled_from([0.0, 0.5, 1.0]))
    return gap, m * 10.0 ** rng.uniform(-6, 6, (R, 1))


@given(problem=wild_equations())
def test_roots_of_wild_equations(problem):
    gap, m = problem
    tau = solve(gap, m)
    for root, row in zip(tau, m, strict=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            value = np.nansum((row / (gap + root)) ** 2)
        if root > 0:
            assert value == pytest.approx(1, rel=1e-8)
        else:  # at the pole the sum is at most 1 without the terms that vanish there
            assert np.sum((row[gap > 0] / gap[gap > 0]) ** 2) <= 1 + 1e-9


def test_zero_target_is_the_hard_case():
    assert solve(np.array([1.0, 0.0]), np.zeros((2, 2))).tolist() == [0.0, 0.0]


def test_float32_roots():
    gap, m = equations(R=40, D=64)
    gap, m = gap.astype(np.float32), np.concatenate([m[:10], m[20:30]]).astype(np.float32)
    tau = solve(gap, m)
    assert tau.dtype == np.float32
    expected = [by_brentq(gap.astype(float), row.astype(float)) for row in m]
    np.testing.assert_allclose(tau, expected, rtol=1e-4)
