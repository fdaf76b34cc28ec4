"""`evaluate` gives what the single metrics give, by labels or by nearest rows, and rejects half-given labels."""

import math

import numpy as np
import pytest

import scq_gpu as scq
from scq_gpu import metrics
from scq_gpu.metrics.evaluation import evaluate


class StandIn:
    """A linear encoder that was never fitted."""

    def __init__(self, n_bits, d, seed=0):
        self.n_bits = n_bits
        self.components_ = np.random.default_rng(seed).standard_normal((n_bits, d))

    def project(self, X):
        return X @ self.components_.T

    def encode(self, X):
        return np.packbits(self.project(X) >= 0, axis=1, bitorder="little")


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    return rng.standard_normal((40, 10)), rng.standard_normal((500, 10))


@pytest.mark.parametrize("ties", ["database", "average"])
@pytest.mark.parametrize("ap", ["standard", "trapezoid"])
@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize("distance", ["hamming", "spherical"])
def test_evaluate_is_the_single_metrics(rows, ap, ties, multi, distance):
    rng = np.random.default_rng(1)
    labels = [rng.random((len(X), 6)) < 0.2 if multi else rng.integers(0, 4, len(X)) for X in rows]
    encoder = StandIn(9, 10)
    four = (*map(encoder.encode, rows), *labels)
    figures = evaluate(encoder, *rows, *labels, ap=ap, ties=ties, k=50, radius=1, distance=distance, recall=False)
    assert figures.as_dict() == {
        "n_bits": 9,
        "mean_average_precision": metrics.mean_average_precision(*four, ap=ap, ties=ties, distance=distance),
        "precision_at_radius": metrics.precision_at_radius(*four, radius=1),
        "radius": 1,
        "precision_at_k": metrics.precision_at_k(*four, k=50, ties=ties, distance=distance),
        "k": 50,
        "quantization_loss": metrics.quantization_loss(encoder.project(rows[1])),
        "retained_variance": metrics.retained_variance(rows[1], encoder.components_),
    }
    assert figures.recall_10_at_10 is figures.recall_10_at_100 is None


def test_defaults_are_those_of_the_single_metrics(rows):
    y = [np.arange(len(X)) % 3 for X in rows]
    encoder = StandIn(9, 10)
    four = (*map(encoder.encode, rows), *y)
    figures = evaluate(encoder, *rows, *y)
    assert figures.mean_average_precision == metrics.mean_average_precision(*four)
    assert figures.precision_at_radius == metrics.precision_at_radius(*four)
    assert figures.precision_at_k == metrics.precision_at_k(*four)
    assert (figures.radius, figures.k) == (2, 1000)


def test_without_labels_nearest_rows_are_right(rows):
    encoder = StandIn(9, 10)
    index = scq.HammingIndex(encoder.encode(rows[1]), 9)
    ids = index.search(encoder.encode(rows[0]), 100)[1]
    distances = ((rows[0][:, None, :] - rows[1]) ** 2).sum(axis=2)
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :10]
    np.testing.assert_array_equal(metrics.exact_neighbors(*rows, k=10), nearest)
    figures = evaluate(encoder, *rows)
    assert figures.recall_10_at_10 == metrics.recall_at_k(ids, nearest, k=10)
    assert figures.recall_10_at_100 == metrics.recall_at_k(ids, nearest, k=100)
    by_labels = ("mean_average_precision", "precision_at_radius", "radius", "precision_at_k", "k")
    assert [getattr(figures, name) for name in by_labels] == [None] * 5
    assert math.isfinite(figures.quantization_loss)
    assert set(figures.as_dict()).isdisjoint(by_labels)


@pytest.mark.parametrize("metric", ["l2", "cosine", "ip"])
def test_recalls_by_hand(rows, metric):
    """Hamming, asymmetric and rescored answers against nearest rows, all written out in NumPy."""
    encoder = StandIn(9, 10)
    Q, X = rows
    if metric == "cosine":
        Q, X = (Z / np.linalg.norm(Z, axis=1, keepdims=True) for Z in rows)
    products = Q @ X.T
    distances = -products if metric == "ip" else (X**2).sum(1) - 2 * products
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :10]
    np.testing.assert_array_equal(metrics.exact_neighbors(*rows, k=10, metric=metric), nearest)
    figures = evaluate(encoder, *rows, metric=metric)
    bits_q, bits_x = (Z @ encoder.components_.T >= 0 for Z in (Q, X))
    hamming = (bits_q[:, None, :] != bits_x).sum(2)
    found = np.argsort(hamming, axis=1, kind="stable")
    assert figures.recall_10_at_10 == metrics.recall_at_k(found[:, :10], nearest)
    assert figures.recall_10_at_100 == metrics.recall_at_k(found[:, :100], nearest)
    if metric == "ip":
        return
    lengths = np.linalg.norm(encoder.components_, axis=1)
    o, signs = Q @ encoder.components_.T / lengths, np.where(bits_x, 1.0, -1.0) / lengths
    found = np.argsort(((o[:, None, :] - signs) ** 2).sum(2).astype(np.float32), axis=1, kind="stable")
    assert figures.asymmetric_10_at_100 == pytest.approx(metrics.recall_at_k(found[:, :100], nearest), abs=0.01)
    for times, value in ((4, figures.rescored_4x), (16, figures.rescored_16x)):
        among = [np.isin(nearest[i], found[i, : 10 * times]).mean() for i in range(len(Q))]
        assert value == pytest.approx(np.mean(among), abs=0.01)


def test_of_many_queries_a_sample_is_looked_at(monkeypatch, rows):
    monkeypatch.setattr("scq_gpu.metrics.evaluation._RECALL_QUERIES", 7)
    encoder = StandIn(9, 10)
    assert evaluate(encoder, *rows).recall_10_at_10 == evaluate(encoder, *rows).recall_10_at_10
    assert 0 < evaluate(encoder, *rows).rescored_16x <= 1


def test_nothing_to_measure_is_refused(rows):
    with pytest.raises(ValueError, match="recall=False without labels leaves nothing to measure"):
        evaluate(StandIn(9, 10), *rows, recall=False)
    with pytest.raises(ValueError, match="metric='dot' is not one of 'l2', 'cosine', 'ip'"):
        evaluate(StandIn(9, 10), *rows, metric="dot")


def test_an_encoder_that_is_no_linear_map_has_no_training_figures():
    encoder = StandIn(8, 3)
    encoder.project = lambda X, W=encoder.components_: X @ W.T
    del encoder.components_
    X, y = np.random.default_rng(0).standard_normal((20, 3)), np.arange(20) % 2
    figures = evaluate(encoder, X, X, y, y)
    assert math.isnan(figures.quantization_loss)
    assert math.isnan(figures.retained_variance)


def test_bad_input_is_named():
    encoder, X, y = StandIn(8, 3), np.ones((5, 3)), np.arange(5)
    for options, message in (
        ({"ap": "x"}, "ap='x'"),
        ({"ties": "x"}, "ties='x'"),
        ({"k": 0}, "k=0"),
        ({"radius": -1}, "radius=-1"),
        ({"distance": "x"}, "distance='x'"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate(encoder, X, X, y, y, **options)
    with pytest.raises(ValueError, match="database_labels has shape"):
        evaluate(encoder, X, X, y, y[:4])
    with pytest.raises(ValueError, match="query_labels were given, but not"):
        evaluate(encoder, X, X, y)


@pytest.mark.parametrize("metric", ["l2", "cosine", "ip"])
def test_exact_neighbors_rejects_rows_with_nan(metric):
    X = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    X[33, 2] = np.nan
    with pytest.raises(ValueError, match="first NaN at row 33"):
        metrics.exact_neighbors(X[:3], X, k=2, metric=metric)
