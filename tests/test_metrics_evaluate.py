"""`evaluate` gives, in one pass, what the single metrics give."""

import math

import numpy as np
import pytest

from scq_gpu import metrics
from scq_gpu.evaluation import evaluate


class StandIn:
    """A linear encoder that was never fitted."""

    def __init__(self, n_bits, d, seed=0):
        self.n_bits = n_bits
        self.components_ = np.random.default_rng(seed).standard_normal((n_bits, d))

    def project(self, X):
        return X @ self.components_.T

    def encode(self, X):
        return np.packbits(self.project(X) >= 0, axis=1, bitorder="little")


@pytest.mark.parametrize("ties", ["database", "average"])
@pytest.mark.parametrize("ap", ["standard", "trapezoid"])
@pytest.mark.parametrize("multi", [False, True])
def test_evaluate_is_the_single_metrics(ap, ties, multi):
    rng = np.random.default_rng(0)
    X, Q = rng.standard_normal((500, 10)), rng.standard_normal((40, 10))
    y, z = (rng.random((n, 6)) < 0.2 if multi else rng.integers(0, 4, n) for n in (500, 40))
    encoder = StandIn(9, 10)
    four = encoder.encode(Q), encoder.encode(X), z, y
    figures = evaluate(encoder, X, y, Q, z, ap=ap, ties=ties, k=50, radius=1)
    assert figures.as_dict() == {
        "mean_average_precision": metrics.mean_average_precision(*four, ap=ap, ties=ties),
        "precision_at_radius": metrics.precision_at_radius(*four, radius=1),
        "precision_at_k": metrics.precision_at_k(*four, k=50, ties=ties),
        "quantization_loss": metrics.quantization_loss(encoder.project(X)),
        "retained_variance": metrics.retained_variance(X, encoder.components_),
        "n_bits": 9,
    }


def test_an_encoder_that_is_no_linear_map_has_no_retained_variance():
    encoder = StandIn(8, 3)
    encoder.project = lambda X, W=encoder.components_: X @ W.T
    del encoder.components_
    X, y = np.random.default_rng(0).standard_normal((20, 3)), np.arange(20) % 2
    assert math.isnan(evaluate(encoder, X, y, X, y).retained_variance)


def test_bad_input_is_named():
    encoder, X, y = StandIn(8, 3), np.ones((5, 3)), np.arange(5)
    for options, message in (
        ({"ap": "x"}, "ap='x'"),
        ({"ties": "x"}, "ties='x'"),
        ({"k": 0}, "k=0"),
        ({"radius": -1}, "radius=-1"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate(encoder, X, y, X, y, **options)
    with pytest.raises(ValueError, match="database_labels has shape"):
        evaluate(encoder, X, y[:4], X, y)
