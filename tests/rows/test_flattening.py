"""The basis: weights that flatten axes which stand out, and what they leave true."""

import numpy as np
import pytest

import scq_gpu as scq
from scq_gpu._core.arrays import namespace
from scq_gpu.rows.basis import Moments, compute_basis, flattening

XP = namespace(np.empty(0))


def rows(n=900, d=30, seed=0):
    """A few axes of far more variance than the others."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return rng.standard_normal((n, d)) * np.geomspace(30, 0.1, d) @ turn + 4


def spectrum(X):
    variances, axes = np.linalg.eigh(np.cov(X.T, ddof=0))
    return variances[::-1], axes[:, ::-1]


def weights_of(variances, n_bits):
    """The formula, one axis after the other."""
    average = sum(variances[:n_bits]) / n_bits
    return np.array([1 / (1 + v / average / 4) ** (1 / 8) for v in variances])


def basis_of(X, **options):
    moments = Moments.of_block(X, dtype=np.float64, xp=XP)
    return compute_basis(moments, eps=float(np.finfo(X.dtype).eps), xp=XP, **{"n_components": None} | options)


@pytest.mark.parametrize("n_bits", [1, 4, 30])
def test_weights_are_the_formula(n_bits):
    variances = np.geomspace(1000, 1e-6, 30)
    weights = flattening(variances, n_bits)
    np.testing.assert_allclose(weights, weights_of(variances, n_bits), rtol=1e-12)
    assert (np.diff(weights) > 0).all()
    assert (weights < 1).all()
    assert (np.diff(variances * weights**2) < 0).all()  # the order of axes stays
    assert weights[-1] == pytest.approx(1, abs=1e-6)  # the tail is left alone
    np.testing.assert_allclose(flattening(7 * variances, n_bits), weights, rtol=1e-12)  # whatever the unit


@pytest.mark.parametrize("n_components", [None, 12])
def test_basis_turns_rows_into_weighted_coordinates(n_components):
    X = rows()
    basis = basis_of(X, n_bits=6, n_components=n_components, flatten=True)
    D = n_components or 30
    variances, _ = spectrum(X)
    w = weights_of(variances[:D], 6)
    Y = basis.scale * (X - basis.mean) @ basis.P
    np.testing.assert_allclose(np.cov(Y.T, ddof=0), np.diag(basis.lam), atol=1e-9)
    np.testing.assert_allclose(np.linalg.norm(basis.P, axis=0), w, rtol=1e-9)
    np.testing.assert_allclose(basis.eigenvalues, variances[:D], rtol=1e-9)
    assert basis.scale == pytest.approx(np.sqrt(6 / (variances * weights_of(variances, 6) ** 2)[:6].sum()))
    assert basis.lam[:6].mean() == pytest.approx(1)


@pytest.mark.parametrize(("scale", "factor", "wanted"), [(None, 1.0, 1.0), (None, 0.6, 0.6), (0.25, 0.6, None)])
def test_scales(scale, factor, wanted):
    X = rows()
    basis = basis_of(X, n_bits=6, scale=scale, scale_factor=factor, flatten=True)
    if scale is not None:
        assert basis.scale == scale  # given: no factor on it
    else:
        assert np.sqrt(basis.lam[:6].mean()) == pytest.approx(wanted)


def test_plain_basis_has_no_weights():
    X = rows()
    basis = basis_of(X, n_bits=6)
    np.testing.assert_allclose(basis.P.T @ basis.P, np.eye(30), atol=1e-12)


@pytest.mark.parametrize("flatten", [False, True])
def test_coordinates_undo_the_fold(flatten):
    X = rows()
    basis = basis_of(X, n_bits=6, n_components=12, flatten=flatten)
    rng = np.random.default_rng(1)
    V = rng.standard_normal((12, 6))
    W_t, t = basis.fold(V)
    np.testing.assert_allclose(basis.coordinates(W_t.T) / basis.scale, V, atol=1e-10)
    np.testing.assert_allclose(t, W_t @ X.mean(0), atol=1e-9)
    W = rng.standard_normal((30, 6))  # not within the axes: the nearest that is
    axes = spectrum(X)[1][:, :12]
    np.testing.assert_allclose(basis.fold(basis.coordinates(W))[0].T / basis.scale, axes @ (axes.T @ W), atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("Encoder", [scq.OgE, scq.OnE])
def test_columns_are_orthogonal_in_weighted_coordinates(Encoder, dtype):
    X, n_bits = rows(), 8
    encoder = Encoder(n_bits, random_state=0).fit(X.astype(dtype))
    variances, axes = spectrum(X)
    w = weights_of(variances, n_bits)
    tolerance = 1e-8 if dtype == np.float64 else 2e-3
    assert encoder.eigenvalues_.dtype == dtype
    np.testing.assert_allclose(encoder.eigenvalues_, variances, rtol=tolerance)
    factor = 0.6 if Encoder is scq.OnE else 1.0
    flat = variances * w**2
    assert encoder.scale_ == pytest.approx(factor * np.sqrt(n_bits / flat[:n_bits].sum()), rel=tolerance)
    V = (axes.T @ encoder.components_.T.astype(np.float64)) / (w[:, None] * encoder.scale_)
    gram = V.T @ V
    lengths = np.sqrt(np.diag(gram))
    assert np.abs(gram / np.outer(lengths, lengths) - np.eye(n_bits)).max() < tolerance
    if Encoder is scq.OnE:
        np.testing.assert_allclose(lengths, 1, rtol=tolerance)
    plain = encoder.components_ @ encoder.components_.T
    assert np.abs(plain - np.diag(np.diag(plain))).max() > 1e-3 * plain.max()  # and not in the rows' own
    np.testing.assert_allclose(encoder.threshold_, encoder.components_ @ encoder.mean_, atol=10 * tolerance)


@pytest.mark.parametrize("preserve", ["neighbors", "classes"])
def test_a_given_start_is_one_in_the_rows_own_coordinates(preserve):
    """The first sign pass is at the start: the loss after it is least squares to the signs of X @ init."""
    X = rows()
    centred = X - X.mean(0)
    init = np.linalg.qr(np.random.default_rng(2).standard_normal((30, 5)))[0]
    encoder = scq.OnE(5, preserve=preserve, init=init, scale=0.05, n_components=None, max_iter=1, tol=0).fit(X)
    signs = np.where(centred @ init >= 0, 1.0, -1.0)
    expected = ((signs - centred @ encoder.components_.T) ** 2).sum() / len(X)
    assert encoder.loss_curve_[0] == pytest.approx(expected, rel=1e-9)
