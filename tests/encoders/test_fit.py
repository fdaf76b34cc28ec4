"""How a fit starts, runs, stops and what it leaves."""

import io
import re
import sys
import time

import numpy as np
import pytest
import reference
from sklearn.exceptions import ConvergenceWarning

import scq_gpu as scq
from scq_gpu.metrics.codes import mean_average_precision
from scq_gpu.rows.basis import Moments
from scq_gpu.rows.blocks import Rows
from scq_gpu.training.loop import Run

ENCODERS = [scq.OgE, scq.OnE]


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(7)
    centres = rng.standard_normal((12, 40)) * 2
    return centres[rng.integers(12, size=900)] + rng.standard_normal((900, 40)) @ np.diag(np.logspace(0, -2, 40)) + 5


@pytest.mark.parametrize("Encoder", ENCODERS)
def test_the_map_is_the_one_described(X, Encoder):
    encoder = Encoder(n_bits=10, preserve="classes", n_components=20, tol=1e-3, random_state=0).fit(X)
    centred = X - X.mean(0)
    variances = np.linalg.eigvalsh(centred.T @ centred / len(X))[::-1]
    np.testing.assert_allclose(encoder.mean_, X.mean(0))
    np.testing.assert_allclose(encoder.eigenvalues_, variances[:20])
    assert encoder.scale_ == pytest.approx(np.sqrt(10 / variances[:10].sum()))
    np.testing.assert_allclose(encoder.threshold_, encoder.components_ @ X.mean(0))
    V = encoder.components_.T / encoder.scale_
    gram = V.T @ V
    assert np.abs(gram - np.diag(np.diag(gram))).max() < 1e-10
    if Encoder is scq.OnE:
        np.testing.assert_allclose(np.diag(gram), 1)
    np.testing.assert_array_equal(encoder.encode(X), reference.encode(X, encoder.components_.T, encoder.threshold_))
    np.testing.assert_allclose(encoder.project(X), centred @ encoder.components_.T, atol=1e-9)


@pytest.mark.parametrize("Encoder", ENCODERS)
def test_levels_are_the_means_of_either_side(X, Encoder):
    encoder = Encoder(n_bits=6, random_state=0).fit(X)
    scores = encoder.project(X)
    for k in range(6):
        ones = scores[:, k] >= 0
        np.testing.assert_allclose(encoder.levels_[k], [scores[~ones, k].mean(), scores[ones, k].mean()], rtol=1e-6)


@pytest.mark.parametrize("Encoder", ENCODERS)
def test_stopping_rule_is_the_papers(X, Encoder):
    parameters = {"n_bits": 10, "solver": "columnwise", "random_state": 0, "max_iter": 60}
    curve = np.array(Encoder(**parameters, tol=0).fit(X).loss_curve_)
    falls = (curve[:-1] - curve[1:]) / curve[1:]
    stop = int(np.argmax(falls < 1e-3)) + 2
    encoder = Encoder(**parameters, tol=1e-3).fit(X)
    assert encoder.converged_
    assert encoder.n_iter_ == stop == len(encoder.loss_curve_)
    np.testing.assert_allclose(encoder.loss_curve_, curve[:stop])


def test_one_small_fall_does_not_end_a_joint_fit():
    """Looking ahead makes falls uneven; the paper's solver keeps the paper's rule."""
    rule = {"tol": 0.01, "floor": 0.0}
    for descends, falls in ((True, [10, 9, 8.99, 8, 7.99, 7.98]), (False, [10, 9, 8.99])):
        run = Run(np.zeros((2, 1)))
        for value in falls:
            assert not run.converged
            assert run.offer(np.ones((2, 1)), value, descends=descends, **rule)
        assert run.converged


def test_a_rise_ends_the_fit_and_keeps_the_least_loss(case):
    """In the authors' own curves the loss rises here and there."""
    n_bits = case["V0"].shape[1]
    parameters = {"n_bits": n_bits, "n_components": None, "scale": 1.0, "solver": "columnwise", "init": case["V0"]}
    encoder = scq.OgE(**parameters, tol=1e-9, max_iter=60).fit(case["X"])
    curve = encoder.loss_curve_
    assert encoder.converged_
    assert min(curve) == curve[-1] or min(curve) == curve[-2]
    rounds = encoder.n_iter_ - (curve[-1] > curve[-2])
    kept = scq.OgE(**parameters, tol=0, max_iter=rounds).fit(case["X"])
    np.testing.assert_allclose(encoder.components_, kept.components_, atol=1e-12)


def test_max_iter_warns(X):
    with pytest.warns(ConvergenceWarning, match="OgE stopped at max_iter=2 before its loss was known to have settled"):
        encoder = scq.OgE(n_bits=10, max_iter=2, tol=1e-9, random_state=0).fit(X)
    assert not encoder.converged_
    assert encoder.n_iter_ == 2


@pytest.mark.parametrize("Encoder", ENCODERS)
def test_same_seed_same_codes(X, Encoder):
    first, second, other = (Encoder(n_bits=12, random_state=s).fit(X).encode(X) for s in (3, 3, 4))
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


@pytest.mark.parametrize("solver", ["joint", "columnwise"])
@pytest.mark.parametrize("Encoder", ENCODERS)
def test_restarts_are_separate_runs_side_by_side(X, Encoder, solver):
    parameters = {"n_bits": 8, "preserve": "classes", "n_components": 20, "solver": solver, "max_iter": 15, "tol": 0}
    together = Encoder(**parameters, init="random", n_init=3, random_state=11).fit(X)
    variances, axes = (x[..., ::-1][..., :20] for x in np.linalg.eigh(np.cov(X.T, ddof=0)))
    axes = axes * np.where(axes.max(0) >= -axes.min(0), 1, -1)
    losses, draws = [], np.random.default_rng(11)
    for _ in range(3):
        U, _, Vh = np.linalg.svd(draws.standard_normal((20, 8)) * variances[:, None] ** -0.25, full_matrices=False)
        alone = Encoder(**parameters, init=axes @ (U @ Vh)).fit(X)
        losses.append(alone.loss_curve_[-1])
    assert together.loss_curve_[-1] == pytest.approx(min(losses), rel=1e-9)
    assert len({round(loss, 6) for loss in losses}) == 3


@pytest.mark.parametrize("init", ["longer_code", "pca", "itq"])
def test_informed_starts_begin_lower(X, init):
    first = {
        name: scq.OnE(n_bits=10, init=name, max_iter=1, tol=0, random_state=0).fit(X).loss_curve_[0]
        for name in ("random", init)
    }
    assert first[init] < first["random"]


@pytest.mark.parametrize(
    ("preserve", "solver", "n_bits", "init"),
    [
        ("neighbors", "joint", 8, "itq"),
        ("neighbors", "joint", 70, "itq"),
        ("classes", "joint", 8, "longer_code"),
        ("classes", "joint", 64, "longer_code"),
        ("classes", "joint", 65, "shorter_codes"),
        ("classes", "columnwise", 70, "random"),
        ("neighbors", "columnwise", 70, "random"),
    ],
)
def test_auto_start_suits_aim_solver_and_length(preserve, solver, n_bits, init):
    X = np.random.default_rng(0).standard_normal((400, 80))
    parameters = {"n_bits": n_bits, "preserve": preserve, "solver": solver, "max_iter": 2, "tol": 0, "random_state": 5}
    starts = ("auto", "longer_code", "shorter_codes", "itq", "random")
    fits = {name: scq.OgE(init=name, **parameters).fit(X).components_ for name in starts}
    told_apart = {fits[name].tobytes() for name in ("longer_code" if n_bits < 65 else "shorter_codes", "itq", "random")}
    assert len(told_apart) == 3
    np.testing.assert_array_equal(fits["auto"], fits[init])


def test_there_is_no_longer_code_than_there_are_components(X):
    parameters = {"n_bits": 10, "n_components": 10, "max_iter": 3, "tol": 0, "random_state": 0}
    longer, random = (scq.OnE(init=init, **parameters).fit(X).components_ for init in ("longer_code", "random"))
    np.testing.assert_array_equal(longer, random)


def test_longer_start_tells_like_bunches_apart():
    """Three groups of four bunches: few bits from a random start tell the groups apart, and may miss bunches there."""
    rng = np.random.default_rng(0)
    labels = rng.integers(12, size=3000)
    centres = rng.standard_normal((3, 100))[np.arange(12) // 4] + 0.5 * rng.standard_normal((12, 100))
    X = centres[labels] + 0.8 * rng.standard_normal((3000, 100)) * np.linspace(1.5, 0.3, 100)
    scores = {
        init: [
            mean_average_precision(codes[:400], codes, labels[:400], labels)
            for codes in (
                scq.OgE(12, preserve="classes", init=init, random_state=seed).fit(X).encode(X) for seed in range(6)
            )
        ]
        for init in ("longer_code", "random")
    }
    assert np.mean(scores["longer_code"]) > 0.97, (
        scores
    )  # one start in seven joins two bunches, at any number of passes
    assert np.median(scores["longer_code"]) > 0.99, scores
    assert np.mean(scores["random"]) < 0.95, scores


def test_restarts_of_a_longer_start_differ_by_a_rotation(X):
    parameters = {"n_bits": 6, "init": "longer_code", "max_iter": 20, "tol": 0, "random_state": 0}
    one, four = (scq.OgE(n_init=n, **parameters).fit(X) for n in (1, 4))
    assert four.loss_curve_[-1] <= one.loss_curve_[-1]
    assert (one.components_ != four.components_).any()


def test_codes_of_64_bits_and_less_have_no_shorter_ones(X):
    parameters = {"n_bits": 10, "max_iter": 3, "tol": 0, "random_state": 0}
    shorter, random = (scq.OnE(init=init, **parameters).fit(X).components_ for init in ("shorter_codes", "random"))
    np.testing.assert_array_equal(shorter, random)


def test_shorter_start_begins_with_codes_that_have_learned():
    """Many bunches: the first loss and the first codes are far better than those of a random start."""
    rng = np.random.default_rng(0)
    labels = rng.integers(40, size=4000)
    X = rng.standard_normal((40, 160))[labels] + 1.5 * rng.standard_normal((4000, 160)) * np.linspace(1.5, 0.3, 160)
    starts = ("shorter_codes", "random")
    first = {
        init: scq.OgE(130, preserve="classes", init=init, max_iter=1, tol=0, random_state=0).fit(X) for init in starts
    }
    codes = {init: encoder.encode(X) for init, encoder in first.items()}
    scores = {init: mean_average_precision(c[:400], c, labels[:400], labels) for init, c in codes.items()}
    assert scores["shorter_codes"] > scores["random"] + 0.1, scores
    assert first["shorter_codes"].loss_curve_[0] < 0.9 * first["random"].loss_curve_[0]


@pytest.mark.parametrize("n_init", [1, 2])
def test_shorter_start_is_orthonormal_where_codes_share_columns(n_init):
    """As many bits as there are axes: the codes side by side are of full rank by chance alone."""
    X = np.sign(np.random.default_rng(0).standard_normal((500, 66)))
    encoder = scq.OnE(
        66, preserve="classes", init="shorter_codes", max_iter=2, tol=0, n_init=n_init, random_state=0
    ).fit(X)
    V = encoder.components_ / encoder.scale_
    np.testing.assert_allclose(V @ V.T, np.eye(66), atol=1e-6)


def test_scale_multiplies_the_rows(X):
    """A fit on s X with scale 1 is a fit on X with scale s."""
    parameters = {"n_bits": 5, "max_iter": 4, "tol": 0, "init": np.eye(40, 5)}
    scaled = scq.OnE(scale=0.3, **parameters).fit(X)
    plain = scq.OnE(scale=1.0, **parameters).fit(0.3 * X)
    np.testing.assert_allclose(scaled.components_, 0.3 * plain.components_, atol=1e-9)


def test_large_scale_leaves_the_pole_behind(X):
    """Here the root of Algorithm 1 lies below -lam_min, where the paper's search has none."""
    encoder = scq.OnE(n_bits=8, scale=20.0, solver="columnwise", max_iter=4, tol=0, random_state=0).fit(X)
    V = encoder.components_.T / 20.0
    assert np.abs(V.T @ V - np.eye(8)).max() < 1e-10


def test_callback_sees_a_fitted_copy(X):
    seen = []

    def watch(iteration, loss, encoder):
        seen.append((iteration, loss, encoder.encode(X[:3]).shape, encoder.n_iter_))
        assert encoder is not fitting
        assert not hasattr(fitting, "components_")

    fitting = scq.OgE(n_bits=9, max_iter=4, tol=0, random_state=0, callback=watch)
    fitting.fit(X)
    assert [s[0] for s in seen] == [1, 2, 3, 4] == [s[3] for s in seen]
    assert [s[1] for s in seen] == fitting.loss_curve_
    assert {s[2] for s in seen} == {(3, 2)}


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, RuntimeError])
def test_interrupted_fit_leaves_the_encoder_as_it_was(X, interruption):
    def interrupt(iteration, loss, encoder):
        if iteration == 2:
            raise interruption

    fresh = scq.OgE(n_bits=9, random_state=0, callback=interrupt)
    with pytest.raises(interruption):
        fresh.fit(X)
    assert not hasattr(fresh, "components_")
    assert not hasattr(fresh, "n_features_in_")

    fitted = scq.OgE(n_bits=9, random_state=0, tol=0, max_iter=3).fit(X)
    before = fitted.encode(X)
    with pytest.raises(interruption):
        fitted.set_params(callback=interrupt).fit(X[:, :20])
    assert fitted.n_features_in_ == 40
    np.testing.assert_array_equal(fitted.encode(X), before)


def test_dead_bits_are_said():
    """Two distinct rows: one direction; the other bits have nothing left to say."""
    X = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]] * 5)
    V0 = np.array([[1.0, 1, 0], [1, 1, 1e-3], [1, 1 + 1e-3, 0]])
    with pytest.warns(UserWarning, match="of 3 bits are constant"):
        scq.OgE(n_bits=3, init=V0, solver="columnwise", max_iter=1, tol=0, ridge=1e-6).fit(X)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("stream", "shown"), [(Terminal(), True), (io.StringIO(), False)])
def test_progress_bar_only_for_people(X, monkeypatch, stream, shown):
    monkeypatch.setattr(sys, "stderr", stream)
    scq.OgE(n_bits=4, max_iter=2, tol=0, random_state=0, verbose=True).fit(X)
    assert ("OgE 4 bits" in stream.getvalue()) == shown


@pytest.mark.parametrize(
    ("preserve", "n_bits", "passes"),
    [("neighbors", 8, 25), ("classes", 8, 16), ("classes", 70, 16), ("classes", 130, 31)],
)
def test_progress_of_a_start_goes_to_its_end(monkeypatch, preserve, n_bits, passes):
    X = np.random.default_rng(0).standard_normal((300, 140))
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    scq.OnE(n_bits, preserve=preserve, max_iter=1, tol=0, random_state=0, verbose=True).fit(X)
    assert f"OnE {n_bits} bits, start: 100%" in stream.getvalue()
    assert f" {passes}/{passes} " in stream.getvalue()


def test_progress_tells_speed_and_time_left(X, monkeypatch):
    """Passes and rows a second, whether all passes are needed or not."""

    def pause(iteration, loss, encoder):
        time.sleep(0.02)

    for options, passes in (({"tol": 0, "max_iter": 6}, "6/6"), ({"tol": 0.01, "max_iter": 90}, r"\d+/90")):
        monkeypatch.setattr(sys, "stderr", stream := Terminal())
        started = time.monotonic()
        encoder = scq.OgE(n_bits=4, random_state=0, verbose=True, callback=pause, **options).fit(X)
        seconds = time.monotonic() - started
        last = stream.getvalue().rstrip().rpartition("\r")[2]
        found = re.search(rf"\| {passes} \[\d\d:\d\d<\d\d:\d\d, .*pass/s, ([\d.]+)(k?) rows/s\]$", last)
        assert found, last
        rate = float(found[1]) * (1000 if found[2] else 1)
        assert 0.99 * len(X) * (encoder.n_iter_ - 1) / seconds < rate < len(X) / 0.02


def test_moments_add_up_however_the_rows_are_cut():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1000, 7)) * 3 + 1e6
    xp = Rows(X).xp
    for cuts in ([1000], [1, 999], [3, 500, 497], [250] * 4):
        blocks = np.split(X, np.cumsum(cuts)[:-1])
        total = Moments.of_block(blocks[0], dtype=np.float64, xp=xp)
        for block in blocks[1:]:
            total = total + Moments.of_block(block, dtype=np.float64, xp=xp)
        assert total.n == 1000
        np.testing.assert_allclose(total.mean, X.mean(0), rtol=1e-14)
        np.testing.assert_allclose(total.scatter / 1000, np.cov(X.T, ddof=0), atol=1e-8)


def test_float32_moments_survive_a_large_mean():
    """Naive sums of squares would lose everything: the mean is 10,000 standard deviations."""
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((5000, 6)) + 1e4).astype(np.float32)
    moments = Rows(X).moments()
    np.testing.assert_allclose(moments.scatter / 5000, np.cov(X.astype(np.float64).T, ddof=0), atol=1e-4)
