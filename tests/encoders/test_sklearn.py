"""The encoders are scikit-learn estimators."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn_failures import EXPECTED_FAILURES

import scq_gpu as scq


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    [scq.OgE(n_bits=1), scq.OnE(n_bits=1)], expected_failed_checks=lambda estimator: EXPECTED_FAILURES
)
def test_estimator_checks(estimator, check):
    check(estimator)


def test_clone_keeps_parameters_and_drops_the_fit(digits):
    encoder = scq.OgE(n_bits=8, ridge=0.1, random_state=0).fit(digits[0])
    copy = clone(encoder)
    assert copy.get_params() == encoder.get_params()
    assert not hasattr(copy, "components_")


def test_pipeline(digits):
    signs = make_pipeline(StandardScaler(), scq.OnE(n_bits=8, random_state=0)).fit_transform(digits[0])
    assert signs.shape == (1797, 8)


def test_pandas_in_and_out(digits):
    frame = pd.DataFrame(digits[0], columns=[f"pixel{k}" for k in range(64)])
    encoder = scq.OgE(n_bits=3, random_state=0).set_output(transform="pandas").fit(frame)
    out = encoder.transform(frame)
    assert list(out.columns) == ["oge0", "oge1", "oge2"]
    np.testing.assert_array_equal(out.to_numpy(), scq.OgE(n_bits=3, random_state=0).fit(digits[0]).transform(digits[0]))
    with pytest.raises(ValueError, match="feature names"):
        encoder.encode(frame.rename(columns={"pixel0": "other"}))
