"""Codes to start from that are learned from a sample of the rows."""

import array_api_compat.numpy as XP
import numpy as np
import pytest

import scq_gpu as scq
from scq_gpu.rows.basis import compute_basis
from scq_gpu.rows.passes import Rows, UnprojectedRows
from scq_gpu.training import starts

N, D, L = 12_000, 40, 6


@pytest.fixture(scope="module", params=["two-humped", "bell-shaped"])
def problem(request):
    """Rows, their basis, and V (2, D, L): two problems side by side."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, D)) * np.logspace(0, -1.5, D)
    if request.param == "two-humped":
        X[:, :8] += 3 * rng.choice([-1, 1], size=(N, 8))
    X = X.astype(np.float32) + np.float32(0.2)
    rows = Rows(X)
    basis = compute_basis(rows.moments(), n_bits=L, n_components=D, eps=1.2e-7, xp=XP)
    V = np.stack([np.linalg.qr(rng.standard_normal((D, L)))[0] for _ in range(2)])
    return rows, basis, V


def centered_signs(rows, basis, V):
    """M of all rows, in float64 and one product."""
    Y = (rows.X.astype(np.float64) - basis.mean) @ basis.P * basis.scale
    return np.stack([Y.T @ np.where(Y @ v >= 0, 1.0, -1.0) / len(Y) for v in V])


@pytest.mark.parametrize("kept", [True, False], ids=["projected", "unprojected"])
def test_of_all_rows_nothing_changes(problem, kept):
    rows, basis, V = problem
    training = rows.project(basis) if kept else UnprojectedRows(rows, basis)
    M = starts._Sample(training, basis.lam, xp=XP).statistics(V).M
    np.testing.assert_allclose(M, centered_signs(rows, basis, V), atol=2e-5)


def test_a_sample_stands_for_more_rows_than_it_has(problem):
    """The error of M is that of a plain sample of at least twice the rows."""
    rows, basis, V = problem
    training, truth, rng = rows.project(basis), centered_signs(rows, basis, V), np.random.default_rng(1)
    square = {"plain": 0.0, "corrected": 0.0}
    for _ in range(20):
        sample = training.sample(np.sort(rng.choice(N, 1_000, replace=False)))
        for name, seen in (("plain", sample), ("corrected", starts._Sample(sample, basis.lam, xp=XP))):
            square[name] += float(np.sum((seen.statistics(V).M - truth) ** 2))
    assert square["corrected"] < 0.5 * square["plain"]


def test_a_column_without_variance_is_harmless():
    X = np.random.default_rng(0).standard_normal((500, 4)).astype(np.float32)
    rows = Rows(X)
    basis = compute_basis(rows.moments(), n_bits=2, n_components=4, eps=1.2e-7, xp=XP)
    found = starts._Sample(rows.project(basis), basis.lam, xp=XP).statistics(np.zeros((1, 4, 2)))
    assert np.isfinite(found.M).all()


@pytest.mark.parametrize("n_bits", [8, 80])
def test_fits_of_many_rows_learn_their_start_from_a_sample(monkeypatch, n_bits):
    seen = []
    monkeypatch.setattr(starts, "LEARN_ROWS", 600)
    monkeypatch.setattr(starts._Sample, "statistics", _recording(starts._Sample.statistics, seen))
    rng = np.random.default_rng(0)
    X = (rng.choice([-2, 2], size=(1_500, 100)) + rng.standard_normal((1_500, 100))).astype(np.float32)
    scq.OgE(n_bits, preserve="classes", max_iter=3, tol=0, random_state=0).fit(X)
    assert set(seen) == {600}


def _recording(statistics, seen):
    def record(self, V):
        seen.append(self.n)
        return statistics(self, V)

    return record
