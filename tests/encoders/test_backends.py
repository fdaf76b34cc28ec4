"""One body over NumPy, array_api_strict (three devices), torch and CuPy."""

import importlib.util

import numpy as np
import pytest
import reference

import scq_gpu as scq
from scq_gpu._core.arrays import from_host, namespace, to_host
from scq_gpu.rows.basis import compute_basis
from scq_gpu.rows.blocks import Rows
from scq_gpu.rows.projected import UnprojectedRows
from scq_gpu.training import loop
from scq_gpu.training.loop import loss
from scq_gpu.training.orthogonal import fit_orthogonal
from scq_gpu.training.orthonormal import fit_orthonormal
from scq_gpu.training.secular import solve_secular

ENCODERS = [scq.OgE, scq.OnE]


@pytest.fixture(scope="module")
def features():
    rng = np.random.default_rng(5)
    return (rng.standard_normal((700, 30)) * np.logspace(0, -1.2, 30) + 3).astype(np.float32)


@pytest.mark.parametrize("Encoder", ENCODERS)
def test_fit_and_encode_follow_the_input(backend, features, Encoder):
    """Same start, same passes: after a few iterations the maps agree to rounding, and so do the codes."""
    parameters = {"n_bits": 12, "init": "random", "max_iter": 3, "tol": 0, "random_state": 0}
    X = backend.array(features)
    encoder = Encoder(**parameters).fit(X)
    codes, signs, scores = encoder.encode(X), encoder.transform(X), encoder.project(X)
    for x in (codes, signs, scores, encoder.components_, encoder.threshold_, encoder.mean_, encoder.levels_):
        assert backend.owns(x)
    xp = backend.namespace
    assert codes.dtype == xp.uint8
    assert signs.dtype == xp.int8
    assert scores.dtype == xp.float32

    expected = Encoder(**parameters).fit(features)
    W, t = backend.host(encoder.components_).T, backend.host(encoder.threshold_)
    np.testing.assert_allclose(W, expected.components_.T, atol=2e-4)
    reference.assert_same_codes(backend.host(codes), features, W, t, 12)
    np.testing.assert_array_equal(backend.host(scq.pack(signs)), backend.host(codes))
    np.testing.assert_array_equal(backend.host(scores) >= 0, backend.host(signs) > 0)


@pytest.mark.parametrize("Encoder", ENCODERS)
def test_one_encoder_encodes_every_backend_alike(backend, features, Encoder):
    encoder = Encoder(n_bits=19, max_iter=5, tol=0, random_state=1).fit(features)
    codes = encoder.encode(backend.array(features))
    assert backend.owns(codes)
    reference.assert_same_codes(backend.host(codes), features, encoder.components_.T, encoder.threshold_, 19)


def test_saved_model_loads_to_every_backend(backend, features, tmp_path):
    encoder = scq.OgE(n_bits=21, max_iter=5, tol=0, random_state=1).fit(features)
    encoder.save(tmp_path / "model.safetensors")
    codes = scq.load(tmp_path / "model.safetensors").encode(backend.array(features))
    np.testing.assert_array_equal(backend.host(codes), encoder.encode(features))


def test_starts_of_every_kind(backend, features):
    X = backend.array(features)
    given = np.linalg.qr(np.random.default_rng(0).standard_normal((30, 6)))[0]
    for init in ("longer_code", "random", "pca", "itq", backend.array(given)):
        encoder = scq.OnE(n_bits=6, init=init, max_iter=2, tol=0, n_init=2, random_state=0).fit(X)
        assert backend.owns(encoder.components_)


def test_start_from_shorter_codes(backend):
    spread = np.linspace(3, 0.5, 80, dtype="float32")
    host = np.random.default_rng(0).standard_normal((300, 80)).astype("float32") * spread
    parameters = {"n_bits": 70, "init": "shorter_codes", "max_iter": 2, "tol": 0, "n_init": 2, "random_state": 0}
    encoder = scq.OgE(**parameters).fit(backend.array(host))
    assert backend.owns(encoder.components_)
    assert encoder.loss_curve_[-1] == pytest.approx(scq.OgE(**parameters).fit(host).loss_curve_[-1], rel=0.05)


@pytest.mark.parametrize("kept", [True, False], ids=["projected", "unprojected"])
def test_batches_are_those_of_numpy(backend, features, kept):
    """Rows of a batch, its statistics and its residuals, on every namespace and device."""
    V = np.stack([np.linalg.qr(np.random.default_rng(seed).standard_normal((30, 4)))[0] for seed in (0, 1)])
    slope = np.full((2, 4), 0.3)
    found = []
    for X in (features, backend.array(features)):
        rows = Rows(X)
        basis = compute_basis(rows.moments(), n_bits=4, n_components=30, eps=1.2e-7, xp=rows.xp)
        training = rows.project(basis) if kept else UnprojectedRows(rows, basis)
        at = {"xp": rows.xp, "device": rows.device}
        passes = [batch.statistics(from_host(V, **at), slope=from_host(slope, **at)) for batch in training.batches(3)]
        found.append(
            [(batch.n, *map(to_host, means)) for batch, means in zip(training.batches(3), passes, strict=True)]
        )
    for expected, mine in zip(*found, strict=True):
        assert mine[0] == expected[0]
        np.testing.assert_allclose(mine[1], expected[1], atol=2e-3)
        np.testing.assert_allclose(mine[2], expected[2], atol=2e-2)


def test_fits_for_classes_learn_from_batches_on_every_backend(backend, monkeypatch):
    """The same passes as NumPy's over rows in groups, whose signs do not hang on rounding."""
    monkeypatch.setattr(loop, "BATCH_ROWS", 300)
    rng = np.random.default_rng(0)
    X = (rng.choice([-3, 3], size=(1200, 12)) + 0.3 * rng.standard_normal((1200, 12))).astype(np.float32)
    X *= np.linspace(2, 1, 12, dtype=np.float32)
    parameters = {"n_bits": 8, "preserve": "classes", "random_state": 0}
    expected, mine = (scq.OgE(**parameters).fit(rows) for rows in (X, backend.array(X)))
    assert mine.n_iter_ == expected.n_iter_ == 2
    assert mine.loss_curve_[-1] == pytest.approx(expected.loss_curve_[-1], rel=0.02)


@pytest.mark.parametrize("dtype", ["float16", "uint8", "int8", "int32", "float64", "bool"])
def test_dtypes(backend, dtype):
    if not backend.has_float64 and dtype == "float64":
        pytest.skip("this device has no float64")
    if backend.name == "array_api_strict" and dtype == "float16":
        pytest.skip("the array API has no float16")
    rng = np.random.default_rng(0)
    host = rng.integers(0, 2 if dtype == "bool" else 100, size=(300, 10)).astype(dtype)
    X = backend.array(host)
    encoder = scq.OgE(n_bits=7, max_iter=3, tol=0, random_state=0).fit(X)
    codes = encoder.encode(X)
    assert backend.owns(codes)
    wide = dtype in ("float64", "int32") and backend.has_float64
    assert encoder.components_.dtype == (backend.namespace.float64 if wide else backend.namespace.float32)
    W, t = backend.host(encoder.components_).T, backend.host(encoder.threshold_)
    reference.assert_same_codes(backend.host(codes), host, W, t, 7)


def test_secular_on_every_backend(backend):
    gap = np.linspace(2, 0, 9)
    m = np.random.default_rng(0).standard_normal((5, 9))
    m[4] = [0.1] * 8 + [0]
    tau = backend.host(solve_secular(backend.array(gap), backend.array(m), xp=backend.namespace))[:, 0]
    assert tau[4] == 0
    np.testing.assert_allclose(
        [np.sum((r / (gap + t)) ** 2) for r, t in zip(m[:4], tau[:4], strict=True)], 1, rtol=1e-4
    )


def test_moments_pass(backend, features):
    rows = Rows(backend.array(features))
    moments = rows.moments()
    assert backend.owns(moments.scatter)
    exact = features.astype(np.float64)
    np.testing.assert_allclose(backend.host(moments.mean), exact.mean(0), rtol=1e-6)
    np.testing.assert_allclose(backend.host(moments.scatter), np.cov(exact.T, ddof=0) * 700, rtol=1e-4, atol=1e-2)


def test_bfloat16_from_torch(features):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    X = torch.asarray(features).bfloat16()
    encoder = scq.OgE(n_bits=9, max_iter=3, tol=0, random_state=0).fit(X)
    codes = encoder.encode(X)
    assert encoder.components_.dtype == torch.float32
    W, t = encoder.components_.numpy().T, encoder.threshold_.numpy()
    reference.assert_same_codes(codes.numpy(), X.float().numpy(), W, t, 9)


def test_gradients_are_left_alone(features):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    X = torch.asarray(features).requires_grad_()
    encoder = scq.OnE(n_bits=4, max_iter=2, tol=0, random_state=0).fit(X)
    assert not encoder.components_.requires_grad
    assert X.grad is None


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("step", ["orthogonal", "orthonormal", "secular", "loss"])
def test_no_look_at_the_data_inside_a_step(step):
    """torch's meta device holds no data: float(x), bool(x) or a branch on a value would raise."""
    import torch

    lam = torch.empty(20, device="meta", dtype=torch.float64)
    M = torch.empty(3, 20, 5, device="meta", dtype=torch.float64)
    xp = namespace(M)
    if step == "orthogonal":
        assert fit_orthogonal(lam, M, ridge=0.02, xp=xp).shape == M.shape
    elif step == "orthonormal":
        V, tau, found = fit_orthonormal(lam, M, xp=xp)
        assert (V.shape, tau.shape, found.shape) == (M.shape, (3, 1, 5), (3,))
        with pytest.raises((RuntimeError, NotImplementedError)):  # this one is documented to look
            fit_orthonormal(lam, M, patient=True, xp=xp)
    elif step == "secular":
        assert solve_secular(lam, M[:, :, 0], xp=xp).shape == (3, 1)
    else:
        assert loss(lam, M, M, xp=xp).shape == (3,)


@pytest.mark.gpu
def test_device_cuda_takes_numpy_and_gives_numpy_back(features):
    import cupy

    encoder = scq.OgE(n_bits=16, max_iter=3, tol=0, random_state=0, device="cuda").fit(features)
    assert isinstance(encoder.components_, cupy.ndarray)
    codes = encoder.encode(features)
    assert isinstance(codes, np.ndarray)
    expected = scq.OgE(n_bits=16, max_iter=3, tol=0, random_state=0).fit(features)
    np.testing.assert_allclose(encoder.to("cpu").components_, expected.components_, atol=2e-4)
