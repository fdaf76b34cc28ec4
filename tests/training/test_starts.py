"""Codes that are learned from batches of the rows, or from a sample of them."""

import itertools
import warnings

import array_api_compat.numpy as XP
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import scq_gpu as scq
from scq_gpu.rows.basis import compute_basis
from scq_gpu.rows.blocks import Rows
from scq_gpu.rows.projected import Batch, UnprojectedRows
from scq_gpu.training import joint, loop, starts
from scq_gpu.training.joint import STEPS, orthogonal_step, orthonormal_step
from scq_gpu.training.loop import BatchPasses, train_on_batches

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
    M = BatchPasses(training, basis.lam, xp=XP).statistics(V).M
    np.testing.assert_allclose(M, centered_signs(rows, basis, V), atol=2e-5)


def test_a_sample_stands_for_more_rows_than_it_has(problem):
    """The error of M is that of a plain sample of at least twice the rows."""
    rows, basis, V = problem
    training, truth, rng = rows.project(basis), centered_signs(rows, basis, V), np.random.default_rng(1)
    square = {"plain": 0.0, "corrected": 0.0}
    for _ in range(20):
        sample = training.sample(np.sort(rng.choice(N, 1_000, replace=False)))
        for name, seen in (("plain", sample), ("corrected", BatchPasses(sample, basis.lam, xp=XP))):
            square[name] += float(np.sum((seen.statistics(V).M - truth) ** 2))
    assert square["corrected"] < 0.5 * square["plain"]


def test_a_column_without_variance_is_harmless():
    X = np.random.default_rng(0).standard_normal((500, 4)).astype(np.float32)
    rows = Rows(X)
    basis = compute_basis(rows.moments(), n_bits=2, n_components=4, eps=1.2e-7, xp=XP)
    found = BatchPasses(rows.project(basis), basis.lam, xp=XP).statistics(np.zeros((1, 4, 2)))
    assert np.isfinite(found.M).all()


def bunches(n, seed=0):
    """Rows in bunches along every axis, sorted by the first: neighboring rows are alike."""
    rng = np.random.default_rng(seed)
    X = (rng.choice([-2, 2], size=(n, 100)) + rng.standard_normal((n, 100))).astype(np.float32)
    return X[np.argsort(X[:, 0])]


@pytest.fixture
def seen(monkeypatch):
    """How many rows each pass over a batch went through, and which."""
    calls, statistics = [], BatchPasses.statistics

    def record(self, V):
        calls.append((self.n, id(self)))
        return statistics(self, V)

    monkeypatch.setattr(BatchPasses, "statistics", record)
    return calls


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(loop, "BATCH_ROWS", 500)


@pytest.mark.parametrize("n_bits", [8, 80])
def test_rows_of_files_that_are_not_kept_give_a_start_one_sample(monkeypatch, tmp_path, seen, n_bits):
    monkeypatch.setattr(starts, "START_ROWS", 1_200)
    monkeypatch.setattr("scq_gpu.rows.blocks.worth_keeping", lambda n_bytes: False)
    np.save(tmp_path / "x.npy", bunches(1_500))
    rows = scq.io.open_rows(tmp_path / "x.npy")
    scq.OgE(n_bits, preserve="classes", max_iter=3, tol=0, random_state=0).fit(rows)
    assert {n for n, _ in seen} == {600}


@pytest.mark.parametrize("n_bits", [8, 80])
def test_fits_of_many_rows_go_through_batches_in_turn(seen, small_batches, n_bits):
    encoder = scq.OgE(n_bits, preserve="classes", random_state=0).fit(bunches(2_001))
    assert {n for n, _ in seen} == {250, 251, 500, 501}  # halves of batches, then whole ones
    sizes = [n // 250 for n, _ in seen]
    assert sizes == sorted(sizes)
    order = [number for _, number in seen]
    assert all(a != b for a, b in itertools.pairwise(order))
    assert encoder.n_iter_ == 2
    assert encoder.converged_


def test_few_rows_are_all_gone_through_in_every_pass(seen):
    encoder = scq.OgE(8, preserve="classes", random_state=0).fit(bunches(2_001))
    assert not seen
    assert encoder.n_iter_ > 2


@pytest.mark.parametrize("parameters", [{"max_iter": 5}, {"tol": 0, "max_iter": 4}])
def test_who_asks_for_passes_gets_them_over_all_rows(small_batches, parameters):
    encoder = scq.OgE(8, preserve="classes", random_state=0, **parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        assert encoder.fit(bunches(2_000)).n_iter_ == parameters["max_iter"]


def batch_rows(n, number, count):
    """Row numbers of a batch, by the rule written out."""
    i = np.arange(n)
    return i[(i + i // (1024 * max(4, count))) % count == number]


@pytest.mark.parametrize("kept", [True, False], ids=["projected", "unprojected"])
@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("height", [700, 4096, 50_000])
def test_batches_are_all_rows_and_each_is_spread_over_them(problem, monkeypatch, kept, count, height):
    """However the rows are cut into blocks, a batch has the same ones."""
    rows, basis, V = problem
    monkeypatch.setattr(rows, "block_rows", height)
    training = rows.project(basis) if kept else UnprojectedRows(rows, basis)
    batches = training.batches(count)
    numbers = [batch_rows(N, number, count) for number in range(count)]
    assert [batch.n for batch in batches] == [len(x) for x in numbers]
    assert sorted(np.concatenate(numbers)) == list(range(N))
    M = sum(batch.n * batch.statistics(V).M for batch in batches) / N
    np.testing.assert_allclose(M, training.statistics(V).M, atol=1e-6)
    for batch, mine in zip(batches, numbers, strict=True):
        np.testing.assert_allclose(batch.statistics(V).M, training.sample(mine).statistics(V).M, atol=1e-6)
        assert batch.project(np.eye(D, 2)).n == len(mine)


@pytest.mark.parametrize("views", [True, False])
@pytest.mark.parametrize("start", [0, 1, 4095, 100_003])
def test_a_batch_of_some_rows_is_that_of_all(start, views):
    """As a chunk of a Dask array has it, whose first row is not the first of all."""
    X = np.arange(200_000, dtype=np.float64)[start : start + 9_000, None]
    for number in range(3):
        batch = Batch(number, 3, start)
        found = np.concatenate(list(batch.of([X[:1000], X[1000:1000], X[1000:]], views=views)))[:, 0]
        mine = batch_rows(200_000, number, 3)
        np.testing.assert_array_equal(found, mine[(mine >= start) & (mine < start + len(X))])
        assert batch.size(len(X)) == len(found)


@pytest.mark.parametrize("n_features", [8, 1300], ids=["projected", "unprojected"])
def test_rows_that_alternate_are_in_all_batches(n_features):
    """Questions and answers: a batch of every fourth row would have but one kind."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40_000, n_features), dtype=np.float32)
    X[::2, 0] += 4
    rows = Rows(X)
    basis = compute_basis(rows.moments(), n_bits=2, n_components=n_features, eps=1.2e-7, xp=XP)
    training = rows.project(basis)
    assert isinstance(training, UnprojectedRows) == (n_features == 1300)
    for part in training.batches(4):
        found = part.project(np.eye(len(basis.lam), 1)).kept
        assert np.mean(np.concatenate(found) > 0) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("encoder", [scq.OgE, scq.OnE])
def test_batches_end_where_all_rows_do(monkeypatch, encoder):
    """The loss over all rows after passes over batches, beside that of passes over all of them until it settles."""
    monkeypatch.setattr(loop, "BATCH_ROWS", 1_000)
    X = bunches(4_000)
    quick, patient = (encoder(16, preserve="classes", max_iter=m, random_state=0).fit(X) for m in ("auto", 100))
    assert quick.n_iter_ == 2 < patient.n_iter_
    assert quick.loss_curve_[-1] < 1.15 * patient.loss_curve_[-1]


@pytest.fixture
def steps_asked_for(monkeypatch):
    """The number of steps within each V step that is made, for codes of which length."""
    asked, make = [], starts.orthogonal_step

    def spy(ridge, *, steps=STEPS, xp):
        step = make(ridge, steps=steps, xp=xp)

        def run(lam, M, V, memory):
            asked.append((V.shape[-1], steps))
            return step.run(lam, M, V, memory)

        return step._replace(run=run)

    for module in (starts, joint):
        monkeypatch.setattr(module, "orthogonal_step", spy)
    return asked


@pytest.mark.parametrize(("decay", "wanted"), [(0.0, 2), (0.25, 4), (1.0, STEPS)])
@pytest.mark.parametrize("n_bits", [8, 80])
def test_codes_to_start_from_take_few_steps_where_variances_are_alike(
    monkeypatch, steps_asked_for, n_bits, decay, wanted
):
    monkeypatch.setattr(loop, "BATCH_ROWS", 1_000)
    K = 32 if n_bits == 8 else 40  # of the longer code, of each shorter one
    X = np.random.default_rng(0).standard_normal((4_000, 96)) * np.arange(1, 97) ** -decay
    scq.OgE(n_bits, preserve="classes", random_state=0).fit(X)
    found = {steps for length, steps in steps_asked_for if length == K}
    assert found == {wanted}


def test_whole_batches_take_more_steps_than_halves(monkeypatch, steps_asked_for):
    monkeypatch.setattr(loop, "BATCH_ROWS", 1_000)
    scq.OgE(8, preserve="classes", random_state=0).fit(bunches(4_000))
    own = [steps for length, steps in steps_asked_for if length == 8]
    assert own == sorted(own)
    assert set(own) == {STEPS, 2 * STEPS}
    steps_asked_for.clear()
    scq.OgE(8, preserve="classes", max_iter=3, tol=0, random_state=0).fit(bunches(4_000))
    scq.OgE(40, random_state=0).fit(bunches(4_000))
    assert {steps for length, steps in steps_asked_for if length in (8, 40)} == {STEPS}


def in_batches(X, n_bits, count=2):
    """Batches of rows, the variances of all, and a random start."""
    rows = Rows(X)
    basis = compute_basis(rows.moments(), n_bits=n_bits, n_components=X.shape[1], eps=1.2e-7, xp=XP)
    parts = [BatchPasses(part, basis.lam, xp=XP) for part in rows.project(basis).batches(count)]
    V = np.linalg.qr(np.random.default_rng(3).standard_normal((len(basis.lam), n_bits)))[0][None]
    return parts, basis.lam, V


def passes_until(X, tol, most=48):
    parts, lam, V = in_batches(X, 8)
    taken = []
    passes = (taken.append(number) or number for number in range(most))
    train_on_batches(parts, lam, V, step=orthogonal_step(0.02, xp=XP), passes=passes, tol=tol, xp=XP)
    return len(taken)


def test_passes_over_batches_end_when_signs_have_settled():
    """Signs of bunches settle, while the loss goes on falling; those of rows that fall into no groups do not settle."""
    normal = np.random.default_rng(0).standard_normal((4_000, 100)).astype(np.float32)
    assert passes_until(bunches(4_000), tol=1e-9) < 40
    assert passes_until(normal, tol=-1.0) == 48
    assert passes_until(bunches(4_000), tol=0.0) == 48  # who gives no tol asks for all passes


@pytest.mark.parametrize(("factor", "dtype"), [(1.0, np.float32), (2.0**-20, np.float64), (2.0**20, np.float64)])
@pytest.mark.parametrize("encoder", ["OgE", "OnE"])
def test_v_steps_over_batches_round_and_meet_the_constraint_in_the_end(encoder, factor, dtype):
    """They are in float32, unless that does not hold the variances; V is orthogonal to the rounding of float64."""
    parts, lam, V = in_batches(bunches(2_000), 8)
    parts = [BatchPasses(Scaled(part.rows, factor), lam * factor**2, xp=XP) for part in parts]
    step = orthogonal_step(0.0, xp=XP) if encoder == "OgE" else orthonormal_step(xp=XP)
    taken = []

    def run(lam, M, V, memory):
        taken.append({x.dtype for x in (lam, M, V)})
        return step.run(lam, M, V, memory)

    V = train_on_batches(parts, lam * factor**2, V, step=step._replace(run=run), passes=range(6), xp=XP)[0]
    assert taken == [{np.dtype(dtype)}] * 6
    assert V.dtype == np.float64
    gram = V.T @ V
    np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-13 * gram.max())
    if encoder == "OnE":
        np.testing.assert_allclose(np.diag(gram), 1, atol=1e-13)


class Scaled:
    """Rows times a factor."""

    def __init__(self, rows, factor):
        self.rows, self.factor, self.n = rows, factor, rows.n

    def statistics(self, V, *, slope):
        found = self.rows.statistics(V * self.factor, slope=slope)
        return found._replace(M=found.M * self.factor)
