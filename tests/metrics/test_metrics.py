"""Metrics against the authors' own figures, brute force in NumPy, and properties that any ranking metric must have."""

import subprocess
import sys
from pathlib import Path

import array_api_strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_engines import ENGINES, use_engine

from scq_gpu import metrics
from scq_gpu.metrics import ranking as _ranking

TIES = ["database", "average"]
AUTHORS = Path(__file__).parents[1] / "data" / "metrics.npz"


def _torch():
    return pytest.importorskip("torch").asarray


BACKENDS = {"numpy": lambda: np.asarray, "array_api_strict": lambda: array_api_strict.asarray, "torch": _torch}


@pytest.fixture(params=BACKENDS)
def asarray(request):
    return BACKENDS[request.param]()


@pytest.fixture(params=ENGINES)
def engine(request, monkeypatch):
    use_engine(request.param, monkeypatch)
    return request.param


@pytest.fixture(scope="module")
def authors():
    data = dict(np.load(AUTHORS))
    for name in ("query", "database"):
        data[f"{name}_codes"] = np.packbits(data[f"{name}_bits"], axis=1, bitorder="little")
    return data


def arguments(data, asarray=np.asarray):
    names = ("query_codes", "database_codes", "query_labels", "database_labels")
    return [asarray(data[name]) for name in names]


# -- an oracle that shares nothing with the package ---------------------------------------------------------------


def relevance(query_labels, database_labels):
    if query_labels.ndim == 1:
        return query_labels[:, None] == database_labels[None]
    return (query_labels[:, None] & database_labels[None]).any(axis=2)


def hamming(query_codes, database_codes):
    return np.unpackbits(query_codes[:, None] ^ database_codes[None], axis=2).sum(axis=2, dtype=int)


def ap_of_ranking(ranked, n_relevant, ap, at):
    """Average precision of one ranking, rank by rank."""
    total, found, before = 0.0, 0, 1.0
    for rank, hit in enumerate(ranked[:at], start=1):
        found += hit
        precision = found / rank
        if hit:
            total += precision if ap == "standard" else (precision + before) / 2
        before = precision
    return total / max(1, min(n_relevant, len(ranked[:at])))


def brute_ap(data, ap, at, shuffle=None):
    out = []
    d, relevant = hamming(data["query_codes"], data["database_codes"]), relevance(*arguments(data)[2:])
    for row, hits in zip(d, relevant, strict=True):
        tie_break = np.arange(row.size) if shuffle is None else shuffle.permutation(row.size)
        ranked = hits[np.lexsort((tie_break, row))]
        out.append(ap_of_ranking(ranked, hits.sum(), ap, at))
    return np.array(out)


def random_case(seed, *, q=7, n=60, n_bits=12, classes=4, multi=False):
    rng = np.random.default_rng(seed)
    bits = rng.random((q + n, n_bits)) < rng.random(n_bits)
    codes = np.packbits(bits, axis=1, bitorder="little")
    labels = rng.random((q + n, classes)) < 0.3 if multi else rng.integers(-2, classes, q + n)
    return {
        "query_codes": codes[:q],
        "database_codes": codes[q:],
        "query_labels": labels[:q],
        "database_labels": labels[q:],
    }


# -- the authors' figures -----------------------------------------------------------------------------------------


def test_authors_average_precision(authors, asarray):
    found = metrics.average_precision(*arguments(authors, asarray), ap="trapezoid")
    np.testing.assert_allclose(found, authors["ap_trapezoid"], rtol=0, atol=1e-9)


def test_authors_mean_average_precision(authors, engine):
    found = metrics.mean_average_precision(*arguments(authors), ap="trapezoid")
    assert isinstance(found, float)
    assert found == pytest.approx(float(authors["map_trapezoid"]), abs=1e-9)


def test_authors_radius_and_k(authors, asarray):
    four = arguments(authors, asarray)
    for i, radius in enumerate(authors["radii"]):
        assert metrics.precision_at_radius(*four, radius=int(radius)) == pytest.approx(
            authors["precision_at_radius"][i], abs=1e-9
        )
        assert metrics.recall_at_radius(*four, radius=int(radius)) == pytest.approx(
            authors["recall_at_radius"][i], abs=1e-9
        )
    for i, k in enumerate(authors["k"]):
        assert metrics.precision_at_k(*four, k=int(k)) == pytest.approx(authors["precision_at_k"][i], abs=1e-9)
        assert metrics.label_recall_at_k(*four, k=int(k)) == pytest.approx(authors["recall_at_k"][i], abs=1e-9)


def test_curve_is_the_figures_at_every_radius(authors, engine):
    precision, recall = metrics.precision_recall_curve(*arguments(authors))
    assert precision.shape == recall.shape == (17,)
    np.testing.assert_allclose(precision[:4], authors["precision_at_radius"], atol=1e-9)
    np.testing.assert_allclose(recall[:4], authors["recall_at_radius"], atol=1e-9)
    assert recall[-1] == 1.0


# -- brute force --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize("at", [None, 1, 5, 60, 1000])
@pytest.mark.parametrize("ap", ["standard", "trapezoid"])
def test_database_order_is_brute_force(ap, at, multi, engine):
    for seed in range(5):
        data = random_case(seed, multi=multi)
        found = metrics.average_precision(*arguments(data), ap=ap, at=at)
        np.testing.assert_allclose(found, brute_ap(data, ap, at), atol=1e-12)


@pytest.mark.parametrize("ap", ["standard", "trapezoid"])
def test_database_order_is_brute_force_in_any_namespace(ap, asarray):
    for seed, multi in ((0, False), (1, True)):
        data = random_case(seed, multi=multi)
        found = metrics.average_precision(*arguments(data, asarray), ap=ap, at=30)
        np.testing.assert_allclose(found, brute_ap(data, ap, 30), atol=1e-9)


@pytest.mark.parametrize("n_bits", [1, 7, 8, 16, 31, 32, 33, 64, 100, 256, 1000])
def test_engines_agree_at_every_width(n_bits, monkeypatch):
    data = random_case(n_bits, n_bits=n_bits, n=200, multi=n_bits % 2 == 0, classes=70 if n_bits == 64 else 3)
    four = arguments(data)
    scans = []
    for engine in ("native", "numpy"):
        use_engine(engine, monkeypatch)
        scans.append(_ranking.scan(*four, ap="trapezoid", at=150, k=11))
    for field in ("counts", "hits", "top_hits"):
        np.testing.assert_array_equal(getattr(scans[0], field), getattr(scans[1], field))
    np.testing.assert_allclose(scans[0].ap_sum, scans[1].ap_sum, atol=1e-10)
    d = hamming(*four[:2])
    assert (scans[0].counts == np.array([np.bincount(row, minlength=scans[0].counts.shape[1]) for row in d])).all()


def test_many_chunks_of_a_large_database():
    data = random_case(3, n=9001)
    four = arguments(data)
    np.testing.assert_allclose(metrics.average_precision(*four), brute_ap(data, "standard", None), atol=1e-12)
    ranked = np.take_along_axis(relevance(*four[2:]), np.argsort(hamming(*four[:2]), axis=1, kind="stable"), axis=1)
    for k in (1, 63, 64, 65, 500, 8191, 8193, 9001):
        assert metrics.precision_at_k(*four, k=k) == pytest.approx(ranked[:, :k].mean(), abs=1e-12)


def test_blocks_of_queries_do_not_matter(monkeypatch):
    data = random_case(4, q=23)
    whole = metrics.average_precision(*arguments(data))
    monkeypatch.setattr(_ranking, "_BLOCK_PAIRS", 1)
    np.testing.assert_array_equal(metrics.average_precision(*arguments(data)), whole)


def test_long_databases_are_unpacked_in_blocks(monkeypatch):
    data = random_case(5)
    expected = metrics.average_precision(*arguments(data))
    monkeypatch.setattr("scq_gpu.kernels.hamming._BLOCK_FLOATS", 100)
    found = metrics.average_precision(*arguments(data, array_api_strict.asarray))
    np.testing.assert_allclose(found, expected, atol=1e-12)


# -- ties ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [None, 1, 4, 17])
@pytest.mark.parametrize("ap", ["standard", "trapezoid"])
def test_average_ties_is_the_mean_over_random_orders(ap, at):
    data = random_case(6, q=4, n=24, n_bits=3)
    shuffle = np.random.default_rng(0)
    draws = np.array([brute_ap(data, ap, at, shuffle) for _ in range(3000)])
    error = draws.std(axis=0) / np.sqrt(len(draws))
    found = metrics.average_precision(*arguments(data), ap=ap, at=at, ties="average")
    assert (np.abs(found - draws.mean(axis=0)) <= 5 * error + 1e-12).all()


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 3), min_size=2, max_size=4).filter(lambda s: 0 < sum(s) <= 6),
    ap=st.sampled_from(["standard", "trapezoid"]),
    at=st.one_of(st.none(), st.integers(1, 7)),
    seed=st.integers(0, 99),
)
def test_average_ties_is_the_exact_mean_over_all_orders(sizes, ap, at, seed):
    """Every order of every tie, enumerated: no sampling error to hide behind."""
    from itertools import permutations

    distance = np.repeat(np.arange(len(sizes)), sizes)
    hits = np.random.default_rng(seed).random(distance.size) < 0.5
    values = []
    for order in permutations(range(distance.size)):
        if (np.diff(distance[list(order)]) >= 0).all():
            values.append(ap_of_ranking(hits[list(order)], hits.sum(), ap, at))
    codes = np.array([[(1 << d) - 1] for d in distance], dtype=np.uint8)
    found = metrics.average_precision(
        np.zeros((1, 1), dtype=np.uint8), codes, np.array([1]), hits.astype(int), ap=ap, at=at, ties="average"
    )
    assert found[0] == pytest.approx(np.mean(values), abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), n_bits=st.integers(1, 20), k=st.integers(1, 80), multi=st.booleans())
def test_average_ties_do_not_see_the_order_of_the_database(seed, n_bits, k, multi):
    data = random_case(seed, n_bits=n_bits, multi=multi)
    order = np.random.default_rng(seed).permutation(60)
    shuffled = data | {name: data[name][order] for name in ("database_codes", "database_labels")}
    for ap in ("standard", "trapezoid"):
        a, b = (metrics.average_precision(*arguments(x), ap=ap, ties="average", at=k) for x in (data, shuffled))
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-13)
    for metric in (metrics.precision_at_k, metrics.label_recall_at_k):
        assert metric(*arguments(data), k=k, ties="average") == pytest.approx(
            metric(*arguments(shuffled), k=k, ties="average"), abs=1e-13
        )


def test_without_ties_the_rules_agree():
    codes = np.array([[(1 << d) - 1] for d in range(8)], dtype=np.uint8)
    query, labels = np.zeros((1, 1), dtype=np.uint8), np.array([0, 1, 1, 0, 1, 0, 0, 1])
    for ap in ("standard", "trapezoid"):
        values = [
            metrics.mean_average_precision(query, codes, np.array([1]), labels, ap=ap, ties=ties)
            for ties in ("database", "average")
        ]
        assert values[0] == pytest.approx(values[1], abs=1e-14)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 40),
    n_bits=st.integers(1, 70),
    ties=st.sampled_from(["database", "average"]),
)
def test_figures_lie_between_0_and_1_and_perfect_is_1(seed, n, n_bits, ties):
    data = random_case(seed, n=n, n_bits=n_bits)
    four = arguments(data)
    for ap in ("standard", "trapezoid"):
        assert 0 <= metrics.mean_average_precision(*four, ap=ap, ties=ties) <= 1 + 1e-12
    everything = [*four[:2], np.zeros(7, dtype=int), np.zeros(n, dtype=int)]
    assert metrics.mean_average_precision(*everything, ties=ties) == pytest.approx(1.0)
    assert metrics.mean_average_precision(*everything, ties=ties, at=3) == pytest.approx(1.0)
    nothing = [*four[:2], np.ones(7, dtype=int), np.zeros(n, dtype=int)]
    assert metrics.mean_average_precision(*nothing, ties=ties) == 0.0


def test_nothing_within_the_radius_counts_as_zero(engine):
    query, far = np.array([[0], [255]], dtype=np.uint8), np.array([[255]], dtype=np.uint8)
    assert metrics.precision_at_radius(query, far, np.array([1, 1]), np.array([1])) == 0.5


def test_average_ties_stay_exact_for_a_long_database():
    """The closed form subtracts harmonic numbers: compare with exact sums where that loses most."""
    counts, hits = np.array([[900_000, 3, 100_000]]), np.array([[450_000, 2, 1]])
    found = _ranking.expected_ap_sums(counts, hits, ap="standard", at=1_000_003)[0]
    total, s, h = 0.0, 0, 0
    for c, r in zip(counts[0], hits[0], strict=True):
        j = np.arange(1, c + 1)
        total += (r / c * (h + 1 + (j - 1) * ((r - 1) / (c - 1))) / (s + j)).sum()
        s, h = s + c, h + r
    assert found == pytest.approx(total, rel=1e-12)


# -- from ids -----------------------------------------------------------------------------------------------------


def test_ranked_ids_give_what_codes_give(authors, asarray):
    order = np.argsort(hamming(*arguments(authors)[:2]), axis=1, kind="stable")
    labels = arguments(authors, asarray)[2:]
    found = metrics.ranked_average_precision(asarray(order), *labels, ap="trapezoid")
    np.testing.assert_allclose(found, authors["ap_trapezoid"], atol=1e-9)
    for k, expected in zip(authors["k"], authors["precision_at_k"], strict=True):
        assert metrics.ranked_precision_at_k(asarray(order), *labels, k=int(k)) == pytest.approx(expected, abs=1e-9)
    np.testing.assert_allclose(
        metrics.ranked_average_precision(order[:, :20], *arguments(authors)[2:]),
        metrics.average_precision(*arguments(authors), at=20),
        atol=1e-12,
    )


def test_padding_is_never_relevant():
    assert metrics.ranked_precision_at_k(np.array([[0, -1]]), np.array([1]), np.array([1, 1])) == 0.5
    assert metrics.recall_at_k(np.array([[-1, -1]]), np.array([[0, 1]])) == 0.0


def test_recall_against_neighbours(asarray):
    ids, true = asarray(np.array([[3, 1, 2], [0, 5, 6]])), asarray(np.array([[1, 9], [0, 5]]))
    assert metrics.recall_at_k(ids, true) == 0.75
    assert metrics.recall_at_k(ids, true, k=1) == 0.25


# -- training figures ---------------------------------------------------------------------------------------------


def test_quantization_loss_is_the_definition(asarray):
    P = np.random.default_rng(0).standard_normal((50, 9))
    P[0, 0] = 0.0
    B = np.where(P >= 0, 1.0, -1.0)
    assert metrics.quantization_loss(asarray(P)) == pytest.approx(((B - P) ** 2).mean(), rel=1e-12)


def test_retained_variance_of_pca_is_one_and_of_less_is_less(asarray):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 6)) * [5, 4, 3, 2, 1, 0.5] + 7
    centred = X - X.mean(axis=0)
    _, s, Vt = np.linalg.svd(centred, full_matrices=False)
    assert metrics.retained_variance(asarray(X), asarray(Vt[:3] * [[3], [-1], [0.1]])) == pytest.approx(1.0)
    expected = (s[3:] ** 2).sum() / (s[:3] ** 2).sum()
    assert metrics.retained_variance(asarray(X), asarray(Vt[3:])) == pytest.approx(expected)
    mixed = rng.standard_normal((2, 6))
    Q = np.linalg.qr(mixed.T)[0]
    expected = ((centred @ Q) ** 2).sum() / (s[:2] ** 2).sum()
    assert metrics.retained_variance(asarray(X), asarray(mixed)) == pytest.approx(expected)


# -- bad input ----------------------------------------------------------------------------------------------------


def test_bad_input_is_named():
    codes, labels = np.zeros((3, 2), dtype=np.uint8), np.arange(3)
    mean_ap = metrics.mean_average_precision
    bad = [
        (
            lambda: mean_ap(codes.astype(int), codes, labels, labels),
            TypeError,
            "query_codes has dtype",
        ),
        (lambda: mean_ap(codes, codes[:, :1], labels, labels), ValueError, "2 bytes wide"),
        (
            lambda: mean_ap(codes, codes[0], labels, labels),
            ValueError,
            "database_codes must have 2",
        ),
        (lambda: mean_ap(codes[:0], codes, labels[:0], labels), ValueError, "got 0 query codes"),
        (lambda: mean_ap(codes, codes[:0], labels, labels[:0]), ValueError, "0 database codes"),
        (
            lambda: mean_ap(codes, codes, labels[:2], labels),
            ValueError,
            "query_labels has shape",
        ),
        (lambda: mean_ap(codes, codes, labels * 1.0, labels), TypeError, "labels are integers"),
        (lambda: mean_ap(codes, codes, np.eye(3) * 2, np.eye(3)), ValueError, "only 0 and 1"),
        (lambda: mean_ap(codes, codes, np.eye(3), labels), ValueError, "both must be 1-D"),
        (lambda: mean_ap(codes, codes, np.array(["a"] * 3), labels), TypeError, "not numeric"),
        (lambda: mean_ap(codes, codes, labels, labels, ap="ap"), ValueError, "ap='ap'"),
        (lambda: mean_ap(codes, codes, labels, labels, ties="x"), ValueError, "ties='x'"),
        (lambda: mean_ap(codes, codes, labels, labels, at=0), ValueError, "at=0"),
        (lambda: metrics.precision_at_radius(codes, codes, labels, labels, radius=-1), ValueError, "radius=-1"),
        (lambda: metrics.precision_at_k(codes, codes, labels, labels, k=0), ValueError, "k=0"),
        (lambda: metrics.precision_at_k(codes, codes, labels, labels, k=2.0), ValueError, "k=2.0"),
        (lambda: metrics.recall_at_k(np.zeros((2, 3), int), np.zeros((3, 3), int)), ValueError, "2 rows"),
        (lambda: metrics.recall_at_k(np.zeros((2, 3), int), np.zeros((2, 3), int), k=4), ValueError, "k=4"),
        (lambda: metrics.recall_at_k(np.zeros((2, 3)), np.zeros((2, 3), int)), ValueError, "dtype float64"),
        (lambda: metrics.ranked_average_precision(np.array([[3]]), labels[:1], labels), ValueError, "rows of the 3"),
        (lambda: metrics.quantization_loss(np.zeros((2, 2), int)), ValueError, "floats"),
        (lambda: metrics.retained_variance(np.ones((3, 2)), np.ones((1, 2))), ValueError, "does not vary"),
        (lambda: metrics.retained_variance(np.ones((3, 2)), np.ones((1, 3))), ValueError, "components have shape"),
        (lambda: metrics.retained_variance(np.full((3, 2), np.nan), np.ones((1, 2))), ValueError, "NaN"),
    ]
    for call, error, message in bad:
        with pytest.raises(error, match=message):
            call()


def test_importing_metrics_is_light():
    script = (
        "import sys, scq_gpu.metrics; "
        "print(sorted({'cupy', 'torch', 'matplotlib', 'dask', 'faiss'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_many_queries_of_wide_codes_against_one_code(monkeypatch):
    """Histograms, not pairs, are what could outgrow memory here."""
    use_engine("numpy", monkeypatch)
    monkeypatch.setattr(_ranking, "_BLOCK_PAIRS", 1 << 14)
    sizes = []
    whole = _ranking._histograms
    monkeypatch.setattr(
        _ranking, "_histograms", lambda d, *a, **k: sizes.append(d.shape[0] * 2048) or whole(d, *a, **k)
    )
    queries = np.zeros((500, 128), dtype=np.uint8)
    labels = np.arange(500) % 2
    assert metrics.mean_average_precision(queries, queries[:1], labels, labels[:1]) == 0.5
    assert max(sizes) <= 1 << 14


def test_recall_of_string_ids():
    found = np.array([["a", "b", ""], ["c", "", ""]])
    true = np.array([["b", "x"], ["c", ""]])
    assert metrics.recall_at_k(found, true) == pytest.approx((1 / 2 + 1 / 2) / 2)  # padding is nobody's id
    assert metrics.recall_at_k(found, true, k=1) == pytest.approx((0 + 1 / 2) / 2)
    with pytest.raises(ValueError, match="pass both as strings or both as integers"):
        metrics.recall_at_k(found, np.zeros((2, 2), dtype=np.int64))
