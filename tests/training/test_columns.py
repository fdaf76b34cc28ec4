"""Each column is the true minimiser of its own sub-problem."""

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from v_step_problems import problems

from scq_gpu._core.arrays import namespace
from scq_gpu.training.loop import loss
from scq_gpu.training.orthogonal import fit_orthogonal
from scq_gpu.training.orthonormal import fit_orthonormal
from scq_gpu.training.secular import minimize_on_sphere

XP = namespace(np.empty(0))


def one(lam, M):
    V, _, found = fit_orthonormal(lam, M[None], xp=XP)
    return (V if found.all() else fit_orthonormal(lam, M[None], patient=True, xp=XP)[0])[0]


@given(problems())
def test_orthonormal_columns_are_minimisers(problem):
    check_orthonormal_columns(*problem)


@pytest.mark.parametrize("seed", range(20))
def test_orthonormal_columns_where_nothing_is_left(seed):
    """Two bits that agree on every row, and no axis before another: for some of these, 0 to the last digit is left."""
    M = np.random.default_rng(seed).standard_normal((3, 3))
    M[:, 1], M[-1] = M[:, 0], 0
    check_orthonormal_columns(np.ones(3), M)


def check_orthonormal_columns(lam, M):
    V = one(lam, M)
    D, L = M.shape
    assert np.abs(V.T @ V - np.eye(L)).max() <= 1e-12
    rng = np.random.default_rng(0)
    for k in range(L):
        m, v, earlier = M[:, k], V[:, k], V[:, :k]
        size = np.linalg.norm(m) + lam.max()
        best = reference.orthonormal_column_value(lam, m, earlier)
        value = reference.column_value(lam, m, v)
        assert value <= best + 1e-9 * size
        # stationarity: lam v - m lies in the span of v and the earlier columns
        gradient = lam * v - m
        basis = V[:, : k + 1]
        assert np.linalg.norm(gradient - basis @ (basis.T @ gradient)) <= 1e-7 * size
        for _ in range(5):
            other = v + 10.0 ** rng.uniform(-6, 0) * rng.standard_normal(D)
            other -= earlier @ (earlier.T @ other)
            if np.linalg.norm(other) > 1e-9:
                other /= np.linalg.norm(other)
                assert value <= reference.column_value(lam, m, other) + 1e-9 * size


@given(problems(), st.sampled_from([0.02, 1e-3, 1.0]))
def test_orthogonal_columns_are_minimisers(problem, ridge):
    lam, M = problem
    V = fit_orthogonal(lam, M[None], ridge=ridge, xp=XP)[0]
    D, L = M.shape
    lengths = np.linalg.norm(V, axis=0)
    gram = V.T @ V - np.diag(lengths**2)
    assert np.abs(gram).max() <= 1e-9 * max(lengths.max(), 1e-300) ** 2
    rng = np.random.default_rng(0)
    for k in range(L):
        m, v = M[:, k], V[:, k]
        earlier = V[:, :k][:, lengths[:k] > 0]
        earlier = earlier / np.linalg.norm(earlier, axis=0)
        size = np.linalg.norm(m / (lam + ridge)) + 1e-300
        expected = reference.orthogonal_column(lam, m, np.linalg.qr(earlier)[0] if earlier.shape[1] else earlier, ridge)
        np.testing.assert_allclose(v, expected, rtol=0, atol=1e-6 * size)
        value = reference.column_value(lam + ridge, m, v)
        for _ in range(5):
            other = v + 10.0 ** rng.uniform(-6, 0) * size * rng.standard_normal(D)
            other -= earlier @ (earlier.T @ other)
            assert value <= reference.column_value(lam + ridge, m, other) + 1e-7 * size * np.linalg.norm(m)


@given(problems())
def test_unit_minimiser_without_constraints(problem):
    lam, M = problem
    v = minimize_on_sphere(lam, M.T.copy(), xp=XP)
    for m, row in zip(M.T, v, strict=True):
        best = reference.orthonormal_column_value(lam, m, np.zeros((len(lam), 0)))
        assert np.linalg.norm(row) == pytest.approx(1, abs=1e-12)
        assert reference.column_value(lam, m, row) <= best + 1e-9 * (np.linalg.norm(m) + lam.max())


def test_float32_columns_keep_their_constraints():
    rng = np.random.default_rng(3)
    lam = np.logspace(0, -3, 40).astype(np.float32)
    M = (rng.standard_normal((1, 40, 12)) * np.sqrt(lam)[:, None]).astype(np.float32)
    V = fit_orthonormal(lam, M, xp=XP)[0]
    assert V.dtype == np.float32
    assert np.abs(V[0].T @ V[0] - np.eye(12)).max() <= 1e-6
    G = fit_orthogonal(lam, M, ridge=0.02, xp=XP)
    gram = G[0].T @ G[0]
    assert G.dtype == np.float32
    assert np.abs(gram - np.diag(np.diag(gram))).max() <= 1e-6 * np.diag(gram).max()


def test_batch_is_the_problems_one_by_one():
    rng = np.random.default_rng(1)
    lam = np.sort(rng.exponential(size=(3, 20)))[:, ::-1].copy()
    M = rng.standard_normal((3, 20, 7)) * 0.3
    together, _, found = fit_orthonormal(lam, M, xp=XP)
    patiently = fit_orthonormal(lam, M, patient=True, xp=XP)[0]
    orthogonal = fit_orthogonal(lam, M, ridge=0.1, xp=XP)
    for r in range(3):
        alone, _, found_alone = fit_orthonormal(lam[r], M[r : r + 1], xp=XP)
        assert found[r] == found_alone[0]
        if found[r]:
            np.testing.assert_allclose(together[r], alone[0], atol=1e-10)
        np.testing.assert_allclose(patiently[r], one(lam[r], M[r]), atol=1e-7)
        np.testing.assert_allclose(orthogonal[r], fit_orthogonal(lam[r], M[r : r + 1], ridge=0.1, xp=XP)[0], atol=1e-10)


def test_loss_without_rows_is_the_loss_over_rows():
    rng = np.random.default_rng(2)
    X = rng.standard_normal((50, 6))
    lam, P = np.linalg.eigh(X.T @ X / 50)
    Y, V = X @ P, rng.standard_normal((6, 4))
    B = reference.sign(Y @ rng.standard_normal((6, 4)))  # any signs, not only those of YV
    direct = np.sum((B - Y @ V) ** 2) / 50 + 0.3 * np.sum(V**2)
    np.testing.assert_allclose(loss(lam, (Y.T @ B / 50)[None], V[None], ridge=0.3, xp=XP), [direct])


def test_a_start_changes_the_way_not_the_answer():
    rng = np.random.default_rng(8)
    lam = np.logspace(1, -2, 30)
    M = rng.standard_normal((1, 30, 9)) * np.sqrt(lam)[:, None] * 0.2
    cold = fit_orthonormal(lam, M, patient=True, xp=XP)
    for factor in (1.0, 1.5, 1e-3, 1e3):
        V, tau, _ = fit_orthonormal(lam, M, start=cold[1] * factor, patient=True, xp=XP)
        np.testing.assert_allclose(V, cold[0], atol=1e-8)
        np.testing.assert_allclose(tau, cold[1], rtol=1e-7)
    assert fit_orthonormal(lam, M, start=cold[1], xp=XP)[2].all()
