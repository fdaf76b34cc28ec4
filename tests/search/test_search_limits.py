"""Nothing asked, nothing there, and far too much asked: an empty answer, or a sentence, at no cost."""

import time

import numpy as np
import pytest

import scq_gpu as scq

CODES = np.random.default_rng(0).integers(0, 256, size=(50, 2), dtype=np.uint8)


@pytest.mark.parametrize(("distance", "dtype"), [("hamming", np.int32), ("spherical", np.float32)])
def test_no_queries_and_no_codes(distance, dtype):
    full, empty = (scq.HammingIndex(codes, 16, distance=distance) for codes in (CODES, CODES[:0]))
    for index, queries in ((full, CODES[:0]), (empty, CODES), (empty, CODES[:0])):
        d, ids = index.search(queries, 3)
        assert d.shape == ids.shape == (len(queries), 3)
        assert (d.dtype, ids.dtype) == (dtype, np.int64)
        assert (ids == -1).all()
        assert (d == (17 if distance == "hamming" else np.inf)).all()
        offsets, ids, d = index.range_search(queries, 3)
        assert offsets.tolist() == [0] * (len(queries) + 1)
        assert (len(ids), len(d), d.dtype) == (0, 0, dtype)


@pytest.mark.parametrize("k", [10**9, 10**12, 10**18])
def test_k_far_above_the_codes_costs_nothing(k):
    encoder = scq.LSH(n_bits=16, random_state=0).fit(np.random.default_rng(0).standard_normal((50, 16)))
    index = scq.HammingIndex(CODES, 16)
    started = time.perf_counter()
    for call in (
        lambda: index.search(CODES, k),
        lambda: index.search_asymmetric(encoder, np.zeros((50, 16)), k),
    ):
        with pytest.raises(ValueError, match=rf"k={k} is far above the 50 codes there are.*pass k=50 or less"):
            call()
    assert time.perf_counter() - started < 1


def test_answers_that_no_memory_holds_are_refused(monkeypatch):
    from scq_gpu._core import machine as host_memory

    monkeypatch.setattr(host_memory, "_machine_bytes", lambda: 1000)
    monkeypatch.setattr(host_memory, "_container_bytes", lambda: None)
    with pytest.raises(MemoryError, match=r"answers to 5000 queries with k=40 would take .* GiB of memory, and"):
        scq.HammingIndex(CODES, 16).search(np.repeat(CODES, 100, axis=0), 40)


def test_a_little_above_is_padded():
    d, ids = scq.HammingIndex(CODES, 16).search(CODES[:2], 60)
    assert (ids[:, 50:] == -1).all()
    assert (d[:, 50:] == 17).all()


def test_ids_run_out():
    index = scq.HammingIndex(CODES[:1], 16, ids=np.array([2**63 - 1]))
    with pytest.raises(ValueError, match="no ids are left after the largest, 9223372036854775807"):
        index.add(CODES[:1])
    assert len(index) == 1
    assert len(index.add(CODES[:0])) == 1
    index = scq.HammingIndex(CODES[:1], 16, ids=np.array([2**63 - 3]))
    assert index.add(CODES[1:3]).ids.tolist() == [2**63 - 3, 2**63 - 2, 2**63 - 1]  # the last there is
    with pytest.raises(ValueError, match="no ids are left"):
        index.add(CODES[:1])


def test_float_queries_where_there_are_none_or_no_codes():
    X = np.random.default_rng(0).standard_normal((50, 16))
    encoder = scq.LSH(n_bits=16, random_state=0).fit(X)
    codes = encoder.encode(X)
    for index, queries in ((codes, X[:0]), (codes[:0], X[:3]), (codes[:0], X[:0])):
        d, ids = scq.HammingIndex(index, 16).search_asymmetric(encoder, queries, 4)
        assert d.shape == ids.shape == (len(queries), 4)
        assert (d.dtype, ids.dtype) == (np.float32, np.int64)
        assert (ids == -1).all()
        assert (d == np.inf).all()


@pytest.mark.parametrize("metric", ["l2", "ip"])
@pytest.mark.parametrize("power", [-500, -100, -40, 40, 100, 400, 1000])
def test_distances_that_float32_does_not_hold_are_refused(metric, power):
    """Not ranked by what rounding to 0 or inf leaves of them; a power of two changes no ranking."""
    X = np.random.default_rng(0).standard_normal((200, 16))

    def found(X):
        encoder = scq.LSH(n_bits=16, random_state=0).fit(X)
        index = scq.HammingIndex(encoder.encode(X), 16)
        return index.search_asymmetric(encoder, X[:20], 5, metric=metric)[1]

    if abs(power) == 40:
        np.testing.assert_array_equal(found(X * 2.0**power), found(X))
    else:
        with pytest.raises(ValueError, match=r"float32 holds|overflows"):
            found(X * 2.0**power)


def test_a_query_far_out_is_named():
    X = np.random.default_rng(0).standard_normal((200, 16))
    encoder = scq.LSH(n_bits=16, random_state=0).fit(X)
    queries = X[:3].copy()
    queries[1] *= 1e30
    with pytest.raises(ValueError, match=r"X_query: distances to row 1 reach .*scale"):
        scq.HammingIndex(encoder.encode(X), 16).search_asymmetric(encoder, queries, 5)
