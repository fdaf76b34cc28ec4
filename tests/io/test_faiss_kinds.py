"""Faiss indexes of every kind from an encoder: the same bits, and the neighbors that our own search finds."""

import numpy as np
import pytest
import reference
from sklearn.exceptions import NotFittedError

import scq_gpu as scq

faiss = pytest.importorskip("faiss")

N, QUERIES, D = 3000, 40, 48
BITS = [1, 4, 7, 8, 12, 31, 40]


@pytest.fixture(scope="module")
def X():
    """Rows in bunches, skewed along every axis: the two levels of a bit are not symmetric about its threshold."""
    rng = np.random.default_rng(0)
    centers = 2 * rng.standard_normal((30, D))
    rows = centers[rng.integers(0, 30, N + QUERIES)] + rng.exponential(1.5, (N + QUERIES, D))
    return (0.01 * rows).astype(np.float32)  # small numbers: no constant in the index may drown them


@pytest.fixture(scope="module", params=BITS)
def encoder(request, X):
    return scq.OgE(n_bits=request.param, max_iter=5, tol=0, random_state=0).fit(X[:N])


def parts(index):
    """The transform and the scan inside an index of kind "asymmetric"."""
    return faiss.downcast_VectorTransform(index.chain.at(0)), faiss.downcast_index(index.index)


def distances_to_codes(encoder, queries, codes):
    """Squared distances of float queries to what codes stand for, bit by bit in float64."""
    lengths = np.linalg.norm(encoder.components_.astype(np.float64), axis=1)
    o = (queries.astype(np.float64) @ encoder.components_.T - encoder.threshold_) / lengths
    levels = np.asarray(encoder.levels_, dtype=np.float64) / lengths[:, None]
    bits = np.unpackbits(codes, axis=1, count=encoder.n_bits, bitorder="little")
    return ((o[:, None, :] - levels[np.arange(encoder.n_bits), bits][None]) ** 2).sum(axis=2)


def test_levels_of_these_rows_are_not_symmetric(encoder):
    """Else the axis that tells rows from queries would have nothing to do, and the next tests could not fail."""
    zero, one = encoder.levels_.T
    if encoder.n_bits == 1:
        pytest.skip("one bit of these rows happens to be nearly symmetric")
    assert (np.abs(zero + one) > 0.03 * (one - zero)).any()


def test_asymmetric_index_gives_rows_our_bits(encoder, X):
    index = encoder.to_faiss("asymmetric")
    transform, scan = parts(index)
    codes = scan.pq.compute_codes(transform.apply(X))
    ours = encoder.encode(X)
    assert codes.shape == ours.shape
    assert np.bitwise_count(codes ^ ours).sum() <= 1e-4 * len(X) * encoder.n_bits
    if encoder.n_bits % 8:
        assert not (codes[:, -1] >> encoder.n_bits % 8).any()  # padding


def test_asymmetric_index_finds_what_we_find_up_to_its_tables(encoder, X):
    """Its tables have 8 bits per entry, so an answer may be farther than ours by that rounding, and no more."""
    k, queries = 10, X[N:]
    index = encoder.to_faiss("asymmetric")
    index.add(X[:N])
    scores, ids = index.search(queries, k)
    assert (np.diff(scores, axis=1) <= 0).all()  # a larger score is nearer
    distances = distances_to_codes(encoder, queries, encoder.encode(X[:N]))
    found, nearest = np.take_along_axis(distances, ids, axis=1), np.sort(distances, axis=1)[:, :k]
    groups = -(-encoder.n_bits // 4)
    widest = np.ptp(distances, axis=1, keepdims=True)  # no table spans more, and half a step of each may be lost, twice
    assert (found - nearest <= (groups / 255 + 1e-6) * widest).all()


def test_asymmetric_index_keeps_the_recall_of_our_search(X):
    queries, rows = X[N:], X[:N]
    encoder = scq.OgE(n_bits=32, random_state=0, max_iter=20, tol=0).fit(rows)
    index = encoder.to_faiss("asymmetric")
    index.add(rows)
    _, theirs = index.search(queries, 50)
    _, ours = scq.HammingIndex(encoder.encode(rows), 32).search_asymmetric(encoder, queries, k=50)
    true = np.argsort(((queries[:, None] - rows[None]) ** 2).sum(axis=2), axis=1)[:, :10]
    recalls = [np.mean([len(set(a) & set(b)) / 10 for a, b in zip(ids, true, strict=True)]) for ids in (theirs, ours)]
    assert recalls[1] > 0.5
    assert abs(recalls[0] - recalls[1]) <= 0.01


def test_asymmetric_index_is_written_and_read_by_faiss(encoder, X):
    index = encoder.to_faiss("asymmetric")
    index.add(X[:500])
    again = faiss.deserialize_index(faiss.serialize_index(index))
    np.testing.assert_array_equal(again.search(X[N:], 5)[1], index.search(X[N:], 5)[1])
    again.add(X[500:600])
    assert again.ntotal == 600


def test_asymmetric_index_of_an_encoder_without_levels(X):
    lsh = faiss.IndexLSH(D, 16, True)
    encoder = scq.from_faiss(lsh)
    index = encoder.to_faiss("asymmetric")
    transform, scan = parts(index)
    np.testing.assert_array_equal(scan.pq.compute_codes(transform.apply(X)), lsh.sa_encode(X))


def test_inverted_index_and_graph_take_our_codes(encoder, X):
    codes, queries = encoder.encode(X[:N]), encoder.encode(X[N:])
    wanted, _ = scq.HammingIndex(codes, encoder.n_bits).search(queries, k=5)
    inverted = encoder.to_faiss("ivf", n_lists=8)
    assert not inverted.is_trained
    inverted.cp.niter, inverted.cp.min_points_per_centroid = 4, 1
    inverted.train(codes)
    inverted.nprobe = 8  # all lists: exact
    graph = encoder.to_faiss("hnsw")
    for index in (inverted, graph):
        index.add(codes)
        distances, ids = index.search(queries, 5)
        found = np.bitwise_count(codes[ids] ^ queries[:, None, :]).sum(axis=2)
        np.testing.assert_array_equal(found, distances)  # the distances are those of the ids
        if index is inverted:
            np.testing.assert_array_equal(distances, wanted)
        elif encoder.n_bits >= 12:  # among codes that are mostly equal a graph finds its way badly
            assert (distances == wanted).mean() > 0.8


def test_flat_is_the_default(encoder, X):
    assert type(encoder.to_faiss()) is type(encoder.to_faiss("flat")) is faiss.IndexLSH
    reference.assert_same_codes(
        encoder.to_faiss("flat").sa_encode(X), X, encoder.components_.T, encoder.threshold_, encoder.n_bits
    )


def test_refusals():
    encoder = scq.OgE(n_bits=8)
    with pytest.raises(ValueError, match="kind='IVF' is not one of 'flat', 'ivf', 'hnsw', 'asymmetric'"):
        encoder.to_faiss("IVF")
    with pytest.raises(NotFittedError):
        encoder.to_faiss("hnsw")
    encoder.fit(np.random.default_rng(0).standard_normal((50, 8)))
    with pytest.raises(ValueError, match="n_lists=0 must be an integer >= 1"):
        encoder.to_faiss("ivf", n_lists=0)
