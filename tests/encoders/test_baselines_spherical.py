"""The spherical Hamming distance in search and metrics, against the ratio written out."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import scq_gpu as scq
from scq_gpu import metrics
from scq_gpu.kernels import hamming, search


def codes_of(n, n_bits, seed, ones=0.4):
    """Packed codes with some of zeros only, and some twice."""
    bits = np.random.default_rng(seed).random((n, n_bits)) < ones
    bits[::5] = False
    bits[1::7] = bits[1]
    return np.packbits(bits, axis=1, bitorder="little")


def slow_distances(queries, database):
    """``|b1 xor b2| / |b1 and b2|``; 0 between equal codes, else inf where the denominator is 0."""
    q, d = (np.unpackbits(codes, axis=1).astype(bool) for codes in (queries, database))
    out = np.empty((len(q), len(d)))
    for i, a in enumerate(q):
        for j, b in enumerate(d):
            different, shared = (a ^ b).sum(), (a & b).sum()
            out[i, j] = different / shared if shared else (np.inf if different else 0.0)
    return out


@pytest.mark.parametrize("n_bits", [1, 7, 8, 31, 64, 100])
def test_search(backend, n_bits, monkeypatch):
    monkeypatch.setattr(search, "_BLOCK_ROWS", 16)
    database, queries = codes_of(45, n_bits, seed=1), codes_of(9, n_bits, seed=2)
    expected = slow_distances(queries, database)
    index = scq.HammingIndex(backend.array(database), n_bits=n_bits, distance="spherical")
    for k in (1, 10, 50):
        d, ids = index.search(backend.array(queries), k=k)
        assert backend.owns(d)
        d, ids = backend.host(d), backend.host(ids)
        assert d.dtype == np.float32
        order = np.argsort(expected, axis=1, kind="stable")[:, :k]
        kept = order.shape[1]
        np.testing.assert_array_equal(ids[:, :kept], order)
        np.testing.assert_allclose(d[:, :kept], np.take_along_axis(expected, order, axis=1), rtol=1e-6)
        assert (ids[:, kept:] == -1).all()
        assert np.isinf(d[:, kept:]).all()
    for radius in (0, 0.5, 1.5, 1e9):
        offsets, ids, d = (backend.host(x) for x in index.range_search(backend.array(queries), radius))
        for i, row in enumerate(expected):
            inside = np.flatnonzero(row <= radius)
            inside = inside[np.argsort(row[inside], kind="stable")]
            np.testing.assert_array_equal(ids[offsets[i] : offsets[i + 1]], inside)
            np.testing.assert_allclose(d[offsets[i] : offsets[i + 1]], row[inside], rtol=1e-6)


def test_many_codes_take_the_same_way():
    """Enough pairs for the compiled loops of the Hamming distance, which must stay out of it."""
    database, queries = codes_of(60_000, 16, seed=1), codes_of(80, 16, seed=2)
    index = scq.HammingIndex(database, n_bits=16, distance="spherical")
    ids = index.search(queries, k=3)[1]
    expected = hamming.spherical_distances(queries, database, xp=np)
    np.testing.assert_array_equal(ids, np.argsort(expected, axis=1, kind="stable")[:, :3])
    by_hamming = scq.HammingIndex(database, n_bits=16).search(queries, k=3)[1]
    assert (ids != by_hamming).any()


def test_equal_ratios_tie():
    """4/8 and 3/6 are one distance, whatever the Hamming distance says: the lowest id comes first."""
    query = np.array([[0b11111111, 0]], dtype=np.uint8)
    database = np.array([[0b11111111, 0b11111], [0b11111111, 0b1111], [0b111111, 0b1]], dtype=np.uint8)
    d, ids = scq.HammingIndex(database, n_bits=16, distance="spherical").search(query, k=3)
    assert ids.tolist() == [[1, 2, 0]]
    assert d.tolist() == [[0.5, 0.5, 0.625]]
    assert scq.HammingIndex(database, n_bits=16).search(query, k=3)[1].tolist() == [[2, 1, 0]]
    ranks = hamming.spherical_ranks(query, database, xp=np)[0]
    assert ranks[1] == ranks[2] < ranks[0]


@given(n_bytes=st.integers(1, 6), seed=st.integers(0, 999), ones=st.floats(0, 1))
def test_ranks_order_as_distances_do(n_bytes, seed, ones):
    queries, database = codes_of(4, 8 * n_bytes, seed, ones), codes_of(12, 8 * n_bytes, seed + 1, ones)
    d = slow_distances(queries, database)
    ranks = hamming.spherical_ranks(queries, database, xp=np).astype(int)
    assert ((d[:, :, None] < d[:, None, :]) == (ranks[:, :, None] < ranks[:, None, :])).all()
    assert 0 <= ranks.min() <= ranks.max() < hamming.spherical_levels(n_bytes)


def slow_average_precision(d, relevant, ap, at):
    """For each query: the ranking, then precision where something relevant stands."""
    values = []
    for row, hit in zip(d, relevant, strict=True):
        ranked = hit[np.argsort(row, kind="stable")]
        precision = np.cumsum(ranked) / np.arange(1, len(ranked) + 1)
        if ap == "trapezoid":
            precision = (precision + np.concatenate([[1.0], precision[:-1]])) / 2
        limit = min(at or len(ranked), len(ranked))
        values.append((precision * ranked)[:limit].sum() / max(1, min(limit, hit.sum())))
    return np.array(values)


@pytest.mark.parametrize("ap", ["standard", "trapezoid"])
@pytest.mark.parametrize("at", [None, 7])
@pytest.mark.parametrize("multi", [False, True])
def test_average_precision(backend, ap, at, multi, monkeypatch):
    monkeypatch.setattr(metrics.codes, "_SPHERICAL_QUERIES", 5)
    queries, database = codes_of(13, 20, seed=3), codes_of(60, 20, seed=4)
    rng = np.random.default_rng(5)
    labels = [rng.integers(0, 2, (n, 4)) if multi else rng.integers(0, 4, n) for n in (13, 60)]
    relevant = labels[0] @ labels[1].T > 0 if multi else labels[0][:, None] == labels[1]
    d = slow_distances(queries, database)
    arguments = [backend.array(x) for x in (queries, database, *labels)]
    found = metrics.average_precision(*arguments, ap=ap, at=at, distance="spherical")
    np.testing.assert_allclose(found, slow_average_precision(d, relevant, ap, at))
    mean = metrics.mean_average_precision(*arguments, ap=ap, at=at, distance="spherical")
    np.testing.assert_allclose(mean, found.mean())

    k = 9
    top = np.take_along_axis(relevant, np.argsort(d, axis=1, kind="stable")[:, :k], axis=1).sum(axis=1)
    np.testing.assert_allclose(metrics.precision_at_k(*arguments, k=k, distance="spherical"), (top / k).mean())
    recall = metrics.label_recall_at_k(*arguments, k=k, distance="spherical")
    np.testing.assert_allclose(recall, (top / np.maximum(1, relevant.sum(axis=1))).mean())


def test_average_over_ties_is_the_mean_over_orders():
    queries, database = codes_of(6, 6, seed=3), codes_of(40, 6, seed=4)
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 3, 6), rng.integers(0, 3, 40)
    options = {"ap": "trapezoid", "distance": "spherical"}
    expected = metrics.average_precision(queries, database, *labels, ties="average", **options)
    top = metrics.precision_at_k(queries, database, *labels, k=9, ties="average", distance="spherical")
    shuffled, tops = [], []
    for _ in range(1000):
        order = rng.permutation(40)
        mixed = queries, database[order], labels[0], labels[1][order]
        shuffled.append(metrics.average_precision(*mixed, **options))
        tops.append(metrics.precision_at_k(*mixed, k=9, distance="spherical"))
    np.testing.assert_allclose(np.mean(shuffled, axis=0), expected, atol=0.02)
    np.testing.assert_allclose(np.mean(tops), top, atol=0.02)
    np.testing.assert_allclose(metrics.average_precision(*mixed, ties="average", **options), expected)


def test_files_keep_the_distance(tmp_path):
    database, queries = codes_of(45, 12, seed=1), codes_of(9, 12, seed=2)
    index = scq.HammingIndex(database, n_bits=12, distance="spherical")
    assert repr(index) == (
        "HammingIndex(n=45, n_bits=12, bytes_per_row=2, namespace=array_api_compat.numpy, distance='spherical')"
    )
    index.save(tmp_path / "i.safetensors")
    loaded = scq.HammingIndex.load(tmp_path / "i.safetensors")
    assert loaded.distance == "spherical"
    for ours, theirs in zip(index.search(queries, k=5), loaded.search(queries, k=5), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    plain = scq.HammingIndex(database, n_bits=12)
    plain.save(tmp_path / "p.safetensors")
    assert scq.HammingIndex.load(tmp_path / "p.safetensors").distance == "hamming"


def rewrite_header(path, change):
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    change(header["__metadata__"])
    path.write_bytes(content[:8] + json.dumps(header).encode().ljust(length) + content[8 + length :])


def test_files_of_other_versions(tmp_path):
    path = tmp_path / "i.safetensors"
    scq.HammingIndex(codes_of(45, 12, seed=1), n_bits=12).save(path)
    rewrite_header(path, lambda metadata: metadata.pop("distance"))
    with pytest.raises(ValueError, match="distance"):
        scq.HammingIndex.load(path)
    rewrite_header(path, lambda metadata: metadata.update(distance="cubic"))
    with pytest.raises(ValueError, match="its distance is 'cubic', not one of hamming, spherical"):
        scq.HammingIndex.load(path)


def test_bad_input():
    codes, labels = codes_of(10, 8, seed=0), np.arange(10) % 2
    wrong = "distance='cosine' is not one of 'hamming', 'spherical'"
    with pytest.raises(ValueError, match=wrong):
        scq.HammingIndex(codes, n_bits=8, distance="cosine")
    figures = (metrics.mean_average_precision, metrics.average_precision, metrics.precision_at_k)
    for figure in (*figures, metrics.label_recall_at_k):
        with pytest.raises(ValueError, match=wrong):
            figure(codes, codes, labels, labels, distance="cosine")
    with pytest.raises(ValueError, match=wrong):
        scq.evaluate(scq.LSH(8).fit(np.eye(10)), np.eye(10), np.eye(10), labels, labels, distance="cosine")
    index = scq.HammingIndex(codes, n_bits=8, distance="spherical")
    for radius in (-0.5, float("nan"), "1"):
        with pytest.raises(ValueError, match="must be a finite number >= 0"):
            index.range_search(codes, radius)
    with pytest.raises(ValueError, match=r"radius=0.5 must be an integer"):
        scq.HammingIndex(codes, n_bits=8).range_search(codes, 0.5)
