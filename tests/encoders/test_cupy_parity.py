"""NumPy and CuPy learn the same codes; where rounding lets joint fits part, their losses stay near each other."""

import numpy as np
import pytest

import scq_gpu as scq

pytestmark = pytest.mark.gpu

COLUMNWISE = [(scq.OgE, {"solver": "columnwise", "max_iter": 10}), (scq.OnE, {"solver": "columnwise", "max_iter": 10})]
BASELINES = [(scq.ITQ, {}), (scq.LSH, {}), (scq.PCAH, {}), (scq.SpH, {}), (scq.KMH, {}), (scq.BA, {})]
JOINT = [(scq.OgE, {}), (scq.OnE, {}), (scq.OgE, {"init": "random"})]


def rows(n=1500, d=24, *, separated=False, dtype=np.float32):
    """Gaussian rows of a decaying spectrum, or in groups far apart."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d)) * np.logspace(0, -1, d)
    return (X + 8 * rng.standard_normal((20, d))[rng.integers(20, size=n)] if separated else X).astype(dtype)


def fit_both(Encoder, parameters, X, **more):
    import cupy

    seed = {} if Encoder is scq.PCAH else {"random_state": 0}
    return [Encoder(8, **parameters, **seed, **more).fit(rows) for rows in (X, cupy.asarray(X))]


def codes(fitted, X):
    import cupy

    return fitted[0].encode(X), fitted[1].encode(cupy.asarray(X)).get()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("Encoder", "parameters"), COLUMNWISE + BASELINES)
def test_columnwise_and_baselines_bit_for_bit(Encoder, parameters):
    X = rows()
    np.testing.assert_array_equal(*codes(fit_both(Encoder, parameters, X), X))


@pytest.mark.parametrize(("Encoder", "parameters"), JOINT)
def test_joint_bit_for_bit_on_rows_well_apart(Encoder, parameters):
    X = rows(separated=True, dtype=np.float64)
    np.testing.assert_array_equal(*codes(fit_both(Encoder, parameters, X), X))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("preserve", ["neighbors", "classes"])
@pytest.mark.parametrize("Encoder", [scq.OgE, scq.OnE])
def test_joint_fits_end_at_nearly_equal_losses(Encoder, preserve):
    """On rows without groups, where a row on the other side of a boundary changes what comes after it."""
    losses = [fitted.loss_curve_[-1] for fitted in fit_both(Encoder, {"preserve": preserve}, rows())]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
