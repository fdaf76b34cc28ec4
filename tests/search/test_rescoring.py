"""Rescoring by three metrics, against NumPy; and its warning."""

import warnings

import array_api_strict
import numpy as np
import pytest

from scq_gpu.search import rescore, rescoring


def rows(n, d=6, seed=0, spread=0.5):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return X / np.linalg.norm(X, axis=1, keepdims=True) * (1 + spread * rng.uniform(-1, 1, (n, 1)))


def brute(Q, X, metric):
    Q, X = Q.astype(np.float64), X.astype(np.float64)
    if metric == "cosine":
        Q, X = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (Q, X))
        return 1 - Q @ X.T
    return ((Q[:, None] - X[None]) ** 2).sum(2) if metric == "l2" else -Q @ X.T


@pytest.mark.parametrize("asarray", [np.asarray, array_api_strict.asarray])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int16])
@pytest.mark.parametrize("metric", ["l2", "cosine", "ip"])
def test_rescored_by_metric(metric, dtype, asarray, monkeypatch):
    monkeypatch.setattr(rescoring, "_BLOCK_FLOATS", 500)  # several blocks of queries
    X, Q = ((100 * rows(n, seed=n)).astype(dtype) for n in (90, 13))
    rng = np.random.default_rng(0)
    ids = np.array([rng.permutation(90)[:40] for _ in range(13)])
    ids[2, 7:] = -1
    ids[5] = -1
    d, found = (np.from_dlpack(x) if asarray is not np.asarray else x for x in rescore(
        asarray(Q), asarray(X), asarray(ids), k=10, metric=metric
    ))  # fmt: skip
    full = brute(Q, X, metric)
    for row in range(13):
        real = np.sort(ids[row][ids[row] >= 0])
        order = real[np.argsort(full[row, real], kind="stable")][:10]
        np.testing.assert_allclose(d[row, : len(order)], full[row, order], rtol=2e-5, atol=2e-5 * np.abs(full).max())
        if dtype is np.float64:
            np.testing.assert_array_equal(found[row, : len(order)], order)
        assert (found[row, len(order) :] == -1).all()
        assert np.isposinf(d[row, len(order) :]).all()


@pytest.mark.parametrize("metric", ["l2", "cosine", "ip"])
def test_equal_rows_come_lowest_number_first(metric):
    X = np.repeat(rows(1), 9, axis=0)
    d, found = rescore(rows(2, seed=1), X, np.array([[8, 3, 5, 0], [1, 7, 2, 4]]), metric=metric)
    assert found.tolist() == [[0, 3, 5, 8], [1, 2, 4, 7]]
    assert np.ptp(d, axis=1).max() == 0


def test_zero_rows_have_no_cosine():
    X, Q = rows(20), rows(3, seed=1)
    X[7] = 0
    Q[1] = 0
    ids = np.array([[1, 2, 7]] * 3)
    with pytest.raises(ValueError, match=r"row 7 of X_database is zero.*metric='l2'"):
        rescore(Q, X, ids, metric="cosine")
    with pytest.raises(ValueError, match=r"row 1 of X_query is zero.*metric='l2'"):
        rescore(Q, X, ids - 1, metric="cosine")
    for metric in ("l2", "ip"):
        assert rescore(Q, X, ids, metric=metric)[1].shape == (3, 3)
    assert rescore(Q[[0, 2]], X, np.array([[1, 2]] * 2), metric="cosine")[1].shape == (2, 2)  # row 7 was not asked for


def test_zero_query_is_named_by_its_own_number_in_a_later_block(monkeypatch):
    monkeypatch.setattr(rescoring, "_BLOCK_FLOATS", 1)
    Q = rows(9, seed=1)
    Q[6] = 0
    with pytest.raises(ValueError, match="row 6 of X_query is zero"):
        rescore(Q, rows(20), np.zeros((9, 2), dtype=int), metric="cosine")


def test_padding_is_no_row():
    """-1 stands for nothing: not for row 0, which may be zero or unreadable."""
    X, Q = rows(20), rows(2, seed=1)
    X[0] = 0
    d, ids = rescore(Q, X, np.array([[4, -1, -1], [-1, -1, -1]]), metric="cosine")
    assert ids.tolist() == [[4, -1, -1], [-1, -1, -1]]
    assert np.isposinf(d[0, 1:]).all()
    assert np.isposinf(d[1]).all()

    class Source:
        shape = (20, 6)

        def __getitem__(self, numbers):
            assert 0 not in numbers
            return X[numbers]

    assert rescore(Q, Source(), np.array([[4, -1], [3, 5]]), metric="l2")[1].tolist()[0] == [4, -1]


def test_warning_where_metrics_differ_points_at_the_caller():
    X, Q = rows(50), rows(3, seed=1)
    with pytest.warns(UserWarning, match=r"norms of X_database vary by \d+%.*metric='l2' \(taken now\)") as caught:
        d, ids = rescore(Q, X, np.tile(np.arange(50), (3, 1)), k=5)
    assert [warning.filename for warning in caught] == [__file__]
    expected = brute(Q, X, "l2")
    np.testing.assert_array_equal(ids, np.argsort(expected, axis=1)[:, :5])
    np.testing.assert_allclose(d, np.sort(expected, axis=1)[:, :5])


def test_one_warning_however_many_blocks(monkeypatch):
    monkeypatch.setattr(rescoring, "_BLOCK_FLOATS", 1)
    with pytest.warns(UserWarning, match="vary") as caught:
        rescore(rows(8, seed=1), rows(50), np.tile(np.arange(50), (8, 1)))
    assert len(caught) == 1


@pytest.mark.parametrize("metric", ["l2", "cosine", "ip"])
def test_no_warning_where_a_metric_is_named(metric):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rescore(rows(3, seed=1), rows(50), np.tile(np.arange(50), (3, 1)), metric=metric)


def test_no_warning_where_norms_hardly_vary():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rescore(rows(3, seed=1), rows(50, spread=0.05), np.tile(np.arange(50), (3, 1)))


def test_unknown_metric():
    with pytest.raises(ValueError, match="metric='dot' is not one of 'l2', 'cosine', 'ip'"):
        rescore(rows(3), rows(50), np.zeros((3, 1), dtype=int), metric="dot")


@pytest.mark.parametrize("size", [1e-40, 1e-25, 1e19, 1e25, 1e37])
def test_cosine_of_rows_of_any_length(size):
    X, Q = rows(50), rows(4, seed=1)
    ids = np.tile(np.arange(50), (4, 1))
    d, found = rescore((Q * size).astype(np.float32), (X * size).astype(np.float32), ids, k=50, metric="cosine")
    loss = 1e-4 if size < 1e-38 else 1e-6  # numbers of few digits
    np.testing.assert_allclose(d, np.take_along_axis(brute(Q, X, "cosine"), found, axis=1), atol=loss)
    assert (np.diff(d, axis=1) >= 0).all()


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_the_spread_of_norms_is_that_of_rows_of_any_length(size):
    X, ids = (rows(50) * size).astype(np.float32), np.tile(np.arange(50), (4, 1))
    with pytest.warns(UserWarning, match="norms of X_database vary by"), np.errstate(all="ignore"):
        rescore(X[:4], X, ids)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("error")
        rescore(X[:4], (rows(50, spread=0) * size).astype(np.float32), ids)
