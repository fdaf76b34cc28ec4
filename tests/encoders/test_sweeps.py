"""Fits that share passes must equal fits made one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import scq_gpu as scq
from scq_gpu.rows.blocks import Rows
from scq_gpu.rows.projected import ProjectedRows

SCALES = (0.02, 0.06, 0.2)


def _count(monkeypatch, cls, method):
    calls = []
    original = getattr(cls, method)
    monkeypatch.setattr(cls, method, lambda self, *a, **k: calls.append(a) or original(self, *a, **k))
    return calls


@pytest.mark.parametrize("solver", ["joint", "columnwise"])
def test_scale_path_equals_single_fits(digits, backend, solver):
    X = backend.array(digits[0][:150].astype(np.float64))
    template = scq.OnE(solver=solver, max_iter=4, tol=0, random_state=3)
    path = scq.scale_path(X, 6, SCALES, encoder=template)
    atol = 1e-6 if backend.has_float64 else 1e-3
    assert path.scales == SCALES
    for scale, encoder in zip(SCALES, path.encoders, strict=True):
        single = scq.OnE(6, preserve="classes", scale=scale, solver=solver, max_iter=4, tol=0, random_state=3).fit(X)
        assert encoder.get_params() == single.get_params()
        assert backend.owns(encoder.components_)
        np.testing.assert_allclose(backend.host(encoder.components_), backend.host(single.components_), atol=atol)
        np.testing.assert_allclose(backend.host(encoder.levels_), backend.host(single.levels_), atol=10 * atol)
        np.testing.assert_allclose(encoder.loss_curve_, single.loss_curve_, rtol=10 * atol)
    assert template.n_bits == 32
    assert not hasattr(template, "components_")


def test_scales_without_a_list_are_around_that_of_the_paper(backend):
    X = backend.array(np.random.default_rng(0).standard_normal((300, 12)) * np.geomspace(3, 0.1, 12) + 5)
    path = scq.scale_path(X, 4, encoder=scq.OnE(max_iter=2, tol=0, random_state=0))
    np.testing.assert_allclose(path.scales, path.auto * np.geomspace(0.25, 4, 9), rtol=1e-3)
    with pytest.raises(ValueError, match="equal rows"):
        scq.scale_path(np.ones((9, 4)), 2)
    with pytest.raises(ValueError, match="n_bits=13 exceeds"):
        scq.scale_path(X, 13)


@given(st.integers(1, 10), st.lists(st.floats(0.01, 2), min_size=1, max_size=5), st.integers(0, 99))
def test_scale_path_figures_are_those_of_its_encoders(n_bits, scales, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((120, 12)) * np.geomspace(1, 0.1, 12) + rng.standard_normal(12)
    path = scq.scale_path(X, n_bits, scales, encoder=scq.OnE(max_iter=30, tol=1e-3, random_state=seed))
    for row, encoder in zip(path.table, path.encoders, strict=True):
        assert row["loss_per_bit"] == pytest.approx(scq.metrics.quantization_loss(encoder.project(X)), rel=1e-6)
        kept = 100 * scq.metrics.retained_variance(X, encoder.components_)
        assert row["retained_variance"] == pytest.approx(kept, rel=1e-6)
        assert kept <= 100 + 1e-6
        assert np.diff(encoder.loss_curve_).max(initial=0) <= 0  # the joint loss never rises, at any scale


def test_scales_share_their_passes_until_each_is_done(digits, monkeypatch):
    X = digits[0][:600]
    passes = _count(monkeypatch, ProjectedRows, "statistics")
    encoder = scq.OnE(n_components=50, init="random", tol=1e-3, random_state=0)
    path = scq.scale_path(X, 8, (0.005, 0.05, 0.5), encoder=encoder)
    lengths = [encoder.n_iter_ for encoder in path.encoders]
    assert len(set(lengths)) > 1, "the scales were to end at different iterations"
    assert all(encoder.converged_ for encoder in path.encoders)
    assert len(passes) == max(lengths) + 1  # one a round, and one for the figures
    assert [V.shape[0] for (V,) in passes[:-1]] == [sum(n >= i for n in lengths) for i in range(1, max(lengths) + 1)]


def test_scale_path_knows_the_auto_scale(digits):
    path = scq.scale_path(digits[0], 8, [0.1], encoder=scq.OnE(max_iter=1, tol=0))
    assert path.auto == pytest.approx(scq.OnE(8, preserve="classes", max_iter=1, tol=0).fit(digits[0]).scale_)


@pytest.mark.parametrize("Encoder", [scq.OgE, scq.OnE])
def test_sweep_bits_equals_single_fits_after_one_moments_pass(digits, monkeypatch, Encoder):
    X = digits[0]
    blocks = _count(monkeypatch, Rows, "_stored_blocks")
    sweep = scq.sweep_bits(X, (16, 8, 16), encoder=Encoder(max_iter=5, tol=0, random_state=1))
    # the moments pass, and the projection of each length
    assert len(blocks) == 1 + 2
    assert sweep.bits == (8, 16)
    for encoder in sweep.encoders:
        single = Encoder(encoder.n_bits, max_iter=5, tol=0, random_state=1).fit(X)
        np.testing.assert_array_equal(encoder.encode(X), single.encode(X))
        assert encoder.loss_curve_ == single.loss_curve_


def test_sweep_table_and_evaluation(digits):
    X, y = digits
    sweep = scq.sweep_bits(X[:1200], (4, 9), encoder=scq.OnE(max_iter=3, tol=0, random_state=0))
    assert [(row["n_bits"], row["bytes"], row["n_iter"]) for row in sweep.table] == [(4, 1, 3), (9, 2, 3)]
    rows = sweep.evaluate(X[1200:], X[:1200], y[1200:], y[:1200], k=50)
    for row, encoder in zip(rows, sweep.encoders, strict=True):
        direct = scq.evaluate(encoder, X[1200:], X[:1200], y[1200:], y[:1200], k=50)
        assert row["mean_average_precision"] == direct.mean_average_precision
        assert row["loss_per_bit"] == min(encoder.loss_curve_) / encoder.n_bits


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda X: scq.scale_path(X, 8, []), ValueError, "scales is empty"),
        (lambda X: scq.scale_path(X, 8, [1.0, 0.0]), ValueError, r"scales\[1\]=0.0 must be a finite number > 0"),
        (lambda X: scq.scale_path(X, 8, [-1.0]), ValueError, r"scales\[0\]=-1.0 must be a finite number > 0"),
        (lambda X: scq.scale_path(X, 8, [np.nan]), ValueError, r"scales\[0\]=nan must be a finite number > 0"),
        (lambda X: scq.scale_path(X, 8, 0.5), TypeError, r"scales=0.5 is not a list.*scales=\[0.5\]"),
        (lambda X: scq.scale_path(X, 0, [1.0]), ValueError, "n_bits=0 must be an integer >= 1"),
        (lambda X: scq.scale_path(X, 8, [1.0], encoder=scq.OgE()), TypeError, "is not an OnE"),
        (lambda X: scq.scale_path(X, 8, [1.0], encoder=scq.OnE(init=X[:8].T)), ValueError, "init has rank 7"),
        (lambda X: scq.sweep_bits(X, []), ValueError, "bits is empty"),
        (lambda X: scq.sweep_bits(X, [8, 0]), ValueError, r"bits\[1\]=0 must be an integer >= 1"),
        (lambda X: scq.sweep_bits(X, [8.5]), ValueError, r"bits\[0\]=8.5 must be an integer >= 1"),
        (lambda X: scq.sweep_bits(X, 8), TypeError, r"bits=8 is not a list.*bits=\[8\]"),
        (lambda X: scq.sweep_bits(X, [8], encoder="OgE"), TypeError, "encoder='OgE' is not an estimator with fit"),
        (
            lambda X: scq.sweep_bits(X, [8], encoder=scq.OgE(tol=-1)),
            ValueError,
            r"'tol' parameter .* Got -1",
        ),
    ],
)
def test_refusals(call, error, message):
    X = np.random.default_rng(0).standard_normal((50, 16))
    X[7] = X[6]  # the first eight rows are no start of full rank
    with pytest.raises(error, match=message):
        call(X)
