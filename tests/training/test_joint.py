"""The joint solver: never up, always feasible, the same in a batch."""

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from v_step_problems import problems

import scq_gpu as scq
from scq_gpu._core.arrays import namespace
from scq_gpu.kernels.linalg import orthonormalize, polar
from scq_gpu.rows.basis import compute_basis
from scq_gpu.rows.blocks import Rows
from scq_gpu.rows.projected import ProjectedRows
from scq_gpu.training.joint import fit_joint_orthogonal, fit_joint_orthonormal, orthonormal_step
from scq_gpu.training.loop import loss, train

XP = namespace(np.empty(0))


def random_start(D, L, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((D, L)))[0][None]


@given(problems(), st.integers(1, 12))
def test_orthonormal_step_never_raises_the_loss(problem, steps):
    lam, M = problem
    V = random_start(*M.shape)
    V_new = fit_joint_orthonormal(lam, M[None], V, steps=steps, xp=XP)
    before, after = (loss(lam, M[None], v, xp=XP)[0] for v in (V, V_new))
    assert after <= before + 1e-9 * (1 + abs(before))
    assert np.abs(V_new[0].T @ V_new[0] - np.eye(M.shape[1])).max() <= 1e-6


@given(problems(), st.integers(1, 12), st.sampled_from([0.0, 0.02, 1.0]))
def test_orthogonal_step_never_raises_the_loss(problem, steps, ridge):
    lam, M = problem
    lam = lam + 1e-9  # rows of full rank: what the basis leaves
    V = random_start(*M.shape)
    V_new = fit_joint_orthogonal(lam, M[None], V, ridge=ridge, steps=steps, xp=XP)
    before, after = (loss(lam, M[None], v, ridge=ridge, xp=XP)[0] for v in (V, V_new))
    assert after <= before + 1e-9 * (1 + abs(before))
    lengths = np.linalg.norm(V_new[0], axis=0)
    gram = (V_new[0].T @ V_new[0]) / np.outer(lengths, lengths)
    assert np.abs(gram - np.eye(len(lengths))).max() <= 1e-6


@given(problems(), st.integers(1, 12))
def test_another_step_never_raises_the_loss(problem, steps):
    """Momentum may overshoot; such a step is taken back."""
    lam, M = problem
    lam, V = lam + 1e-9, random_start(*M.shape)
    for fit, ridge in ((fit_joint_orthonormal, {}), (fit_joint_orthogonal, {"ridge": 0.02})):
        less, more = (
            loss(lam, M[None], fit(lam, M[None], V, steps=count, xp=XP, **ridge), xp=XP, **ridge)[0]
            for count in (steps, steps + 1)
        )
        assert more <= less + 1e-9 * (1 + abs(less))


def test_seven_steps_with_momentum_go_as_far_as_twenty_without():
    """On a spectrum and targets like those of features; the twenty are written out."""
    rng = np.random.default_rng(0)
    lam = 8.0 * np.arange(1, 201) ** -0.9
    V = random_start(200, 16)
    rows = rng.standard_normal((3000, 200)) * np.sqrt(lam)
    M = (rows.T @ np.sign(rows @ V[0]))[None] / 3000
    plain = V
    for _ in range(20):
        plain = polar((1.01 * lam[0] - lam)[:, None] * plain + M, xp=XP)
    slow, fast = (loss(lam, M, v, xp=XP)[0] for v in (plain, fit_joint_orthonormal(lam, M, V, xp=XP)))
    assert fast <= slow


def test_many_steps_reach_a_stationary_point():
    rng = np.random.default_rng(0)
    lam, M = np.linspace(2, 0.1, 12), rng.standard_normal((12, 4)) * 0.3
    V = fit_joint_orthonormal(lam, M[None], random_start(12, 4), steps=3000, xp=XP)[0]
    S = V.T @ (M - lam[:, None] * V)
    np.testing.assert_allclose(S, S.T, atol=1e-8)  # the multiplier of V'V = I is symmetric
    np.testing.assert_allclose(lam[:, None] * V + V @ S, M, atol=1e-8)


def test_polar_is_the_nearest_orthonormal_matrix(backend):
    A = np.random.default_rng(0).standard_normal((2, 9, 4))
    U, _, Vh = np.linalg.svd(A, full_matrices=False)
    Q = polar(backend.array(A), xp=backend.namespace)
    assert backend.owns(Q)
    np.testing.assert_allclose(backend.host(Q), U @ Vh, atol=1e-9 if backend.has_float64 else 1e-4)


def test_orthonormalize_squares_the_error():
    Q = random_start(20, 6)[0]
    nearly = Q + 1e-3 * np.random.default_rng(1).standard_normal(Q.shape)
    V = orthonormalize(nearly, xp=XP)
    assert np.abs(V.T @ V - np.eye(6)).max() < 1e-8


def test_batch_is_the_problems_one_by_one():
    rng = np.random.default_rng(3)
    lam = np.sort(rng.exponential(size=(3, 15)))[:, ::-1]
    M = rng.standard_normal((3, 15, 5))
    V = np.concatenate([random_start(15, 5, seed) for seed in range(3)])
    for r in range(3):
        part = slice(r, r + 1)
        for fit, more in ((fit_joint_orthonormal, {}), (fit_joint_orthogonal, {"ridge": 0.1})):
            together = fit(lam, M, V, **more, xp=XP)[r]
            np.testing.assert_allclose(together, fit(lam[r], M[part], V[part], **more, xp=XP)[0], atol=1e-10)


def test_no_look_at_the_data():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    lam = torch.empty(20, device="meta", dtype=torch.float64)
    M = torch.empty(3, 20, 5, device="meta", dtype=torch.float64)
    xp = namespace(M)
    assert fit_joint_orthonormal(lam, M, M, xp=xp).shape == M.shape
    assert fit_joint_orthogonal(lam, M, M, ridge=0.02, xp=xp).shape == M.shape


@st.composite
def data_sets(draw):
    n, d = draw(st.integers(12, 120)), draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    X = rng.standard_normal((n, d)) * 10 ** rng.uniform(-draw(st.integers(0, 3)), 0, d)
    if draw(st.booleans()):
        X = np.sign(X) + 0.1 * X
    return X.astype(draw(st.sampled_from([np.float32, np.float64]))), draw(st.integers(1, d))


@pytest.mark.parametrize("Encoder", [scq.OgE, scq.OnE])
@pytest.mark.parametrize("preserve", ["neighbors", "classes"])
@given(data=data_sets())
def test_loss_of_a_fit_never_rises(Encoder, preserve, data):
    X, n_bits = data
    try:
        encoder = Encoder(n_bits=n_bits, preserve=preserve, max_iter=25, tol=0, random_state=0).fit(X)
    except ValueError as error:
        if "exceeds the" not in str(error):  # numerical rank below n_bits
            raise
        return
    curve = np.array(encoder.loss_curve_)
    assert (np.diff(curve) <= 0).all()
    if preserve == "neighbors":  # axes are weighted: see test_flattening.py for what is orthogonal then
        return
    V = encoder.components_.T.astype(np.float64) / encoder.scale_
    gram = V.T @ V
    lengths = np.sqrt(np.diag(gram))
    off = np.abs(gram / np.outer(lengths, lengths) - np.eye(n_bits)).max()
    assert off <= (1e-6 if X.dtype == np.float64 else 1e-4)


@pytest.mark.parametrize("Encoder", [scq.OgE, scq.OnE])
@pytest.mark.parametrize("seed", [32, 67, 105, 121])
def test_columns_stay_orthogonal_where_few_rows_make_them_depend(Encoder, seed):
    """Seeds with which columns of the longer code, and so of the start, were copies of each other."""
    rng = np.random.default_rng(seed)
    X = (rng.standard_normal((12, 6)) * 10 ** rng.uniform(-1, 0, 6)).astype(np.float32)
    encoder = Encoder(n_bits=3, preserve="classes", max_iter=25, tol=0, random_state=0).fit(X)
    V = encoder.components_.T.astype(np.float64)
    lengths = np.linalg.norm(V, axis=0)
    assert np.abs(V.T @ V / np.outer(lengths, lengths) - np.eye(3)).max() < 1e-5


def test_joint_ends_below_columnwise_from_the_same_start(digits):
    X = digits[0]
    for Encoder in (scq.OgE, scq.OnE):
        for seed in range(3):
            parameters = {"n_bits": 24, "preserve": "classes", "random_state": seed}
            joint = Encoder(**parameters, max_iter=100, tol=0).fit(X)
            columnwise = Encoder(**parameters, solver="columnwise", max_iter=100, tol=1e-4).fit(X)
            assert joint.loss_curve_[-1] <= min(columnwise.loss_curve_)


def test_first_loss_is_that_of_the_rows(digits):
    """loss_curve_ is ||B - XV||^2 / n for the signs of the pass, here of the start."""
    X = digits[0].astype(np.float64)
    V0 = np.linalg.qr(np.random.default_rng(0).standard_normal((64, 6)))[0]
    encoder = scq.OnE(n_bits=6, init=V0, scale=0.05, n_components=None, max_iter=1, tol=0).fit(X)
    centred = X - X.mean(0)
    U = centred @ encoder.components_.T
    expected = np.sum((reference.sign(centred @ V0) - U) ** 2) / len(X)
    assert encoder.loss_curve_[0] == pytest.approx(expected, rel=1e-9)


def test_problems_side_by_side_in_one_pass(backend):
    rng = np.random.default_rng(5)
    Y, V = rng.standard_normal((300, 7)), rng.standard_normal((3, 7, 2))
    V[:, :, 0] = 0.0  # projections of exactly 0, whose sign is +1
    blocks = [backend.array(Y[i : i + 77]) for i in range(0, 300, 77)]
    rows = ProjectedRows(blocks, sum_dtype=blocks[0].dtype, xp=backend.namespace)
    found = rows.statistics(backend.array(V))
    for r in range(3):
        B = np.where(Y @ V[r] >= 0, 1.0, -1.0)
        for x, wanted in zip(found, (Y.T @ B / 300, B.mean(axis=0)), strict=True):
            np.testing.assert_allclose(backend.host(x)[r], wanted, atol=1e-12 if backend.has_float64 else 1e-5)


@pytest.mark.parametrize("Encoder", [scq.OgE, scq.OnE])
@pytest.mark.parametrize("tol", [0, 1e-3])
def test_the_last_loss_is_that_of_the_encoder(digits, Encoder, tol):
    """The paper's loss for the last signs, which may have been taken a little ahead of V."""
    X = digits[0].astype(np.float64)
    encoder = Encoder(n_bits=12, preserve="classes", n_components=40, tol=tol, random_state=0).fit(X)
    V = encoder.components_.T / encoder.scale_
    ridge = 0.0 if Encoder is scq.OnE else 0.02 * (32 / 12) ** 1.3 * np.sum(V**2)
    final = 12 * scq.metrics.quantization_loss(encoder.project(X)) + ridge
    assert final * (1 - 1e-9) <= encoder.loss_curve_[-1] <= final * 1.02


def test_starts_side_by_side_end_each_in_its_own_time(digits):
    """A batch is what its starts are alone, though one may have settled and the other not."""
    X = digits[0].astype(np.float64)[:500]
    starts = [np.linalg.qr(np.random.default_rng(seed).standard_normal((20, 6)))[0] for seed in range(3)]
    rows = Rows(X)
    basis = compute_basis(rows.moments(), n_bits=6, n_components=20, eps=2e-16, xp=XP)
    step = orthonormal_step(xp=XP)

    def run(V):
        return train(rows.project(basis), basis.lam, V, step=step, tol=1e-3, iterations=range(1, 101),
                     xp=XP)  # fmt: skip

    together = run(np.stack(starts))
    alone = [run(V[None])[0] for V in starts]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.losses, other.losses, rtol=1e-9)
    assert len({len(one.losses) for one in together}) > 1, "the starts were to end at different passes"
