"""Dask arrays where all of an array has to be here: refused in a sentence, or worked with."""

import numpy as np
import pytest

import scq_gpu as scq

da = pytest.importorskip("dask.array", reason="dask is not installed")

X = np.random.default_rng(0).standard_normal((60, 8)).astype(np.float32)
Y = np.arange(60) % 3
IDS = np.zeros((60, 3), dtype=np.int64)


@pytest.fixture(scope="module")
def encoder():
    return scq.OgE(4, random_state=0).fit(X)


def lazy(x):
    return da.from_array(x, chunks=(20, *x.shape[1:]))


CALLS = {
    "evaluate, database": lambda e, path: scq.evaluate(e, X, lazy(X)),
    "evaluate, queries": lambda e, path: scq.evaluate(e, lazy(X), X),
    "evaluate, cosine": lambda e, path: scq.evaluate(e, X, lazy(X), metric="cosine"),
    "evaluate, labels": lambda e, path: scq.evaluate(e, X, X, lazy(Y), lazy(Y)),
    "encode_file": lambda e, path: scq.encode_file(e, lazy(X), path / "c.npy"),
    "codes of a metric": lambda e, path: scq.metrics.mean_average_precision(e.encode(lazy(X)), e.encode(lazy(X)), Y, Y),
    "labels of a metric": lambda e, path: scq.metrics.mean_average_precision(
        e.encode(X), e.encode(X), lazy(Y), lazy(Y)
    ),
    "precision at k": lambda e, path: scq.metrics.precision_at_k(e.encode(lazy(X)), e.encode(X), Y, Y, k=3),
    "curve": lambda e, path: scq.metrics.precision_recall_curve(e.encode(lazy(X)), e.encode(lazy(X)), Y, Y),
    "exact_neighbors": lambda e, path: scq.metrics.exact_neighbors(X, lazy(X)),
    "exact_neighbors, queries": lambda e, path: scq.metrics.exact_neighbors(lazy(X), X),
    "retained_variance": lambda e, path: scq.metrics.retained_variance(lazy(X), e.components_),
    "ranked": lambda e, path: scq.metrics.ranked_average_precision(lazy(IDS), Y, Y),
    "recall": lambda e, path: scq.metrics.recall_at_k(lazy(IDS), IDS, k=2),
    "rescore": lambda e, path: scq.rescore(lazy(X), X, IDS),
    "index": lambda e, path: scq.HammingIndex(e.encode(lazy(X)), 4),
    "vector index": lambda e, path: scq.VectorIndex(lazy(X), encoder=e),
    "float queries": lambda e, path: scq.HammingIndex(e.encode(X), 4).search_asymmetric(e, lazy(X), 2),
    "ITQ": lambda e, path: scq.ITQ(4).fit(lazy(X)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_refused_in_a_sentence(encoder, tmp_path, call):
    with pytest.raises(TypeError, match=r"Dask array|dask\.array"):
        call(encoder, tmp_path)


def test_a_sweep_over_lengths(encoder):
    found = scq.sweep_bits(lazy(X), bits=[3, 4], encoder=scq.OgE(random_state=0))
    assert found.bits == (3, 4)
    assert np.mean(found.encoders[1].encode(X) == encoder.encode(X)) > 0.9
    assert 0 < scq.metrics.quantization_loss(encoder.project(lazy(X))) < 1
