"""VectorIndex and HammingIndex over product codes: every distance is that of the decoded rows."""

import array_api_strict
import numpy as np
import pytest
from native_engines import ENGINES, use_engine

import scq_gpu as scq

METRICS = ["l2", "cosine", "ip"]
N_BITS = 32


def rows(n, seed):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((n, 12)) @ np.diag(np.logspace(0.5, -0.5, 12))).astype(np.float32) + 0.3


@pytest.fixture(scope="module")
def encoder():
    return scq.OPQ(N_BITS, random_state=0).fit(rows(3000, 0))


def distances(Q, X, metric):
    """Between all pairs, in float64."""
    Q, X = Q.astype(np.float64), X.astype(np.float64)
    if metric == "ip":
        return -(Q @ X.T)
    squares = ((Q[:, None] - X) ** 2).sum(axis=2)
    return squares / 2 if metric == "cosine" else squares


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("metric", METRICS)
def test_distances_are_those_of_decoded_rows(monkeypatch, encoder, engine, metric):
    use_engine(engine, monkeypatch)
    X, Q = rows(500, 1), rows(7, 2)
    codes = encoder.encode(X)
    index = scq.HammingIndex(codes, N_BITS, encoder=encoder)
    d, ids = index.search_asymmetric(encoder, Q, 500, metric=metric)  # k so large that all rows are scored
    exact = distances(Q, encoder.decode(codes), metric)
    np.testing.assert_allclose(d, np.take_along_axis(exact, ids, axis=1), rtol=1e-4, atol=1e-4)
    assert (np.sort(ids, axis=1) == np.arange(500)).all()
    assert (np.diff(d, axis=1) >= 0).all()


@pytest.mark.parametrize("metric", METRICS)
def test_engines_agree_on_a_full_scan(monkeypatch, encoder, metric):
    codes, Q = encoder.encode(rows(300, 1)), rows(4, 2)
    answers = []
    for engine in ("native", "numpy"):
        with pytest.MonkeyPatch.context() as patch:
            use_engine(engine, patch)
            answers.append(scq.HammingIndex(codes, N_BITS).search_asymmetric(encoder, Q, 300, metric=metric))
    strict = scq.HammingIndex(array_api_strict.asarray(codes), N_BITS)
    d, ids = strict.search_asymmetric(encoder, array_api_strict.asarray(Q), 300, metric=metric)
    answers.append((np.from_dlpack(d), np.from_dlpack(ids)))
    for d, ids in answers[1:]:
        np.testing.assert_array_equal(ids, answers[0][1])
        np.testing.assert_array_equal(d, answers[0][0])


@pytest.mark.parametrize("metric", METRICS)
def test_a_twentieth_of_the_rows_holds_nearly_all_neighbors(metric):
    X, Q = rows(20_000, 3), rows(50, 4)
    if metric == "cosine":
        X, Q = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (X, Q))
    index = scq.VectorIndex(X, encoder=scq.OPQ(N_BITS, random_state=0), metric=metric, keep_vectors=False)
    _, found = index.search(Q, 10)
    decoded = distances(Q, index.encoder.decode(index.encoder.encode(X)), metric)
    best = np.argsort(decoded, axis=1, kind="stable")[:, :10]
    shared = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found.tolist(), best.tolist(), strict=True)])
    assert shared > 0.95


def test_a_vector_index_adds_updates_removes_saves_and_loads(tmp_path, encoder):
    X = rows(400, 5)
    index = scq.VectorIndex(X[:300], encoder=encoder)
    index.add(X[300:])
    assert index.search(X[350:351], 1)[1].tolist() == [[350]]
    index.update([7], -X[:1] * 3)
    index.remove([350])
    index.save(tmp_path / "index.safetensors")
    loaded = scq.VectorIndex.load(tmp_path / "index.safetensors")
    assert type(loaded.encoder) is scq.OPQ
    for a, b in zip(index.search(X[:20], 5), loaded.search(X[:20], 5), strict=True):
        np.testing.assert_array_equal(a, b)
    assert loaded.search(-X[:1] * 3, 1)[1].tolist() == [[7]]
    assert loaded.bytes_per_row == 4 + 8  # a row was removed, so ids are no row numbers


def test_what_product_codes_do_not_do_is_said(encoder):
    X = rows(300, 1)
    other = scq.OPQ(N_BITS, random_state=1).fit(rows(400, 9))
    index = scq.HammingIndex(encoder.encode(X), N_BITS, encoder=encoder)
    with pytest.raises(ValueError, match="made by another encoder"):
        index.search_asymmetric(other, X[:2], 3)
    with pytest.raises(ValueError, match=r"n_bits=32 and the index holds n_bits=40|n_bits=32"):
        scq.HammingIndex(np.zeros((3, 5), np.uint8), 40).search_asymmetric(encoder, X[:2], 3)


def test_no_rows_and_no_queries(encoder):
    empty = scq.HammingIndex(np.zeros((0, 4), np.uint8), N_BITS)
    d, ids = empty.search_asymmetric(encoder, rows(2, 1), 3)
    assert np.isinf(d).all()
    assert (ids == -1).all()
    some = scq.HammingIndex(encoder.encode(rows(5, 1)), N_BITS)
    assert some.search_asymmetric(encoder, rows(2, 1)[:0], 3)[1].shape == (0, 3)


def test_inner_products_of_rows_whose_lengths_vary():
    """A cell knows how long its rows are, and a bit does not (benchmarks/inner_product.py has real rows)."""
    rng = np.random.default_rng(0)
    Y = rng.standard_normal((6020, 48)) * np.logspace(0.3, -0.5, 48) + rng.standard_normal((6020, 1))
    Y = (Y / np.linalg.norm(Y, axis=1, keepdims=True)).astype(np.float32)
    X, Q = Y[20:] * rng.lognormal(sigma=0.4, size=(6000, 1)).astype(np.float32), Y[:20]
    near = np.argsort(-(Q @ X.T), axis=1)[:, :10]

    def recall(encoder):
        found = scq.VectorIndex(X, encoder=encoder, metric="ip").search(Q, 10, candidates=100)[1]
        return (found[:, :, None] == near[:, None, :]).any(axis=1).mean()

    cells = recall(scq.OPQ(64, random_state=0))
    assert cells > 0.9
    assert cells > 0.1 + recall(scq.OgE(48, random_state=0))
