"""`ClusterIndex`: the answers of an index on one machine, from chunks on workers that may die."""

import os
import signal
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import scq_gpu as scq

dask = pytest.importorskip("dask", reason="Dask is not installed (extra dask)")
cluster = pytest.importorskip("distributed", reason="distributed is not installed (extra dask)")
import dask.array as da  # noqa: E402

# older versions of Dask say this of every result that a test works out beside its cluster
pytestmark = pytest.mark.filterwarnings("ignore:Running on a single-machine scheduler:UserWarning")

D, N_BITS = 16, 12
X = np.random.default_rng(0).standard_normal((3000, D)).astype(np.float32)
QUERIES = np.random.default_rng(1).standard_normal((7, D)).astype(np.float32)


@pytest.fixture(scope="module")
def encoder():
    return scq.OgE(N_BITS, max_iter=5, tol=0, random_state=0).fit(X)


def assert_same(found, expected):
    for mine, other in zip(found, expected, strict=True):
        assert mine.dtype == other.dtype
        np.testing.assert_array_equal(mine, other)


def nearest(queries, codes, k):
    """Distances and rows by a stable sort of all pairs, padded."""
    d = np.bitwise_count(queries[:, None] ^ codes[None]).sum(axis=2)
    rows = np.argsort(d, axis=1, kind="stable")[:, :k]
    found = np.full((2, len(queries), k), [[[N_BITS + 1]], [[-1]]])
    found[:, :, : rows.shape[1]] = np.take_along_axis(d, rows, axis=1), rows
    return found


@settings(max_examples=15)
@given(st.lists(st.integers(0, 120), min_size=1, max_size=11).filter(any), st.sampled_from([1, 9, 300]))
def test_any_chunks_answer_like_one_index(encoder, sizes, k):
    """Codes of 12 bits have many ties; some chunks are empty, and some have fewer than k rows."""
    rows = X[: sum(sizes)]
    codes, Q = encoder.encode(rows), encoder.encode(QUERIES)
    with dask.config.set(scheduler="synchronous"):
        index = scq.ClusterIndex(da.from_array(rows, chunks=(tuple(sizes), 5)), encoder=encoder)
        assert len(index) == len(rows)
        d, ids = index.search(Q, k)
        np.testing.assert_array_equal(np.stack([d, ids]), nearest(Q, codes, k))
        one = scq.HammingIndex(codes, N_BITS)
        assert_same((d, ids), one.search(Q, k))
        for metric in ("l2", "cosine", "ip"):
            found = index.search_asymmetric(encoder, QUERIES, k, metric=metric)
            assert_same(found, one.search_asymmetric(encoder, QUERIES, k, metric=metric))


def test_codes_and_no_queries(encoder):
    codes = encoder.encode(X)
    with dask.config.set(scheduler="synchronous"):
        index = scq.ClusterIndex(da.from_array(codes, chunks=(700, 2)), N_BITS)
        assert repr(index) == "ClusterIndex(n=3000, n_bits=12, chunks=5)"
        one = scq.HammingIndex(codes, N_BITS)
        for n in (0, 3):
            assert_same(index.search(codes[:n], 4), one.search(codes[:n], 4))
            assert_same(index.search_asymmetric(encoder, X[:n], 4), one.search_asymmetric(encoder, X[:n], 4))


def test_product_codes():
    """The native core scores some of the rows, and no fewer of a chunk than of all: no answer is worse."""
    encoder = scq.OPQ(n_bits=16, random_state=0).fit(X)
    codes = encoder.encode(X)
    with dask.config.set(scheduler="synchronous"):
        index = scq.ClusterIndex(da.from_array(codes, chunks=(700, 2)), 16)
        d, _ = index.search_asymmetric(encoder, QUERIES, 5)
    assert (d <= scq.HammingIndex(codes, 16).search_asymmetric(encoder, QUERIES, 5)[0]).all()


def test_chunks_of_other_namespaces(encoder):
    strict = pytest.importorskip("array_api_strict")
    codes = encoder.encode(X)
    with dask.config.set(scheduler="synchronous"):
        lazy = da.from_array(codes, chunks=(900, 2)).map_blocks(strict.asarray, dtype=codes.dtype, meta=codes[:0])
        index = scq.ClusterIndex(lazy, N_BITS)
        one = scq.HammingIndex(codes, N_BITS)
        assert_same(index.search(codes[:5], 6), one.search(codes[:5], 6))
        found, expected = (i.search_asymmetric(encoder, QUERIES, 6) for i in (index, one))
        np.testing.assert_array_equal(found[1], expected[1])


def test_workers_die_and_nothing_changes(encoder):
    """One is killed before a search, the other in the middle of searches."""
    codes, Q = encoder.encode(X), encoder.encode(QUERIES)
    expected = scq.HammingIndex(codes, N_BITS).search(Q, 10)
    with (
        cluster.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as workers,
        cluster.Client(workers) as client,
    ):
        index = scq.ClusterIndex(da.from_array(X, chunks=(300, D)), encoder=encoder)
        assert_same(index.search(Q, 10), expected)
        first, second = client.run(os.getpid).values()
        os.kill(first, signal.SIGKILL)
        assert_same(index.search(Q, 10), expected)
        client.wait_for_workers(2)
        killer = threading.Timer(0.1, os.kill, (second, signal.SIGKILL))
        killer.start()
        while killer.is_alive():
            assert_same(index.search(Q, 10), expected)
        assert_same(index.search(Q, 10), expected)


def test_chunks_are_made_once(encoder):
    computed = []

    def note(block):
        computed.append(len(block))
        return block

    with dask.config.set(scheduler="synchronous"):
        lazy = da.from_array(X, chunks=(500, D)).map_blocks(note, dtype=X.dtype, meta=X[:0])
        index = scq.ClusterIndex(lazy, encoder=encoder)
        for _ in range(3):
            index.search(encoder.encode(QUERIES), 2)
    assert computed == [500] * 6


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e: scq.ClusterIndex(X, encoder=e), "X is a ndarray, and ClusterIndex takes a Dask array"),
        (lambda e: scq.ClusterIndex(da.from_array(X)), "pass n_bits with codes, or encoder with vectors"),
        (lambda e: scq.ClusterIndex(da.from_array(X), 12, encoder=e), "pass n_bits with codes, or encoder with"),
        (lambda e: scq.ClusterIndex(da.from_array(X), 12), r"X holds float32 .* Pass vectors with encoder"),
        (lambda e: scq.ClusterIndex(da.from_array(np.full((3, 2), 255, np.uint8)), 12), "padding bits must be 0"),
        (lambda e: scq.ClusterIndex(da.from_array(np.full((3, 3), 255, np.uint8)), 12), r"uint8 \(n, 2\)"),
        (lambda e: scq.VectorIndex(da.from_array(X)), r"where they are, use scq_gpu\.ClusterIndex"),
        (lambda e: scq.HammingIndex(e.encode(da.from_array(X)), 12), r"where they are, use scq_gpu\.ClusterIndex"),
        (lambda e: scq.ClusterIndex(da.from_array(X), encoder=e).search(e.encode(X), 0), "k=0"),
        (
            lambda e: scq.ClusterIndex(da.from_array(X), encoder=e).search_asymmetric(scq.LSH(5).fit(X), X, 1),
            "n_bits=5 and the index holds 12",
        ),
    ],
)
def test_refused_in_a_sentence(encoder, call, message):
    with dask.config.set(scheduler="synchronous"), pytest.raises((TypeError, ValueError), match=message):
        call(encoder)
