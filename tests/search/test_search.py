"""Search against NumPy brute force and Faiss, on every engine; index files; bad input."""

import os
import threading

import array_api_strict
import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_engines import ENGINES as NATIVE_ENGINES
from native_engines import use_engine

from scq_gpu.kernels import native
from scq_gpu.kernels.search import HAMMING, SPHERICAL, searcher
from scq_gpu.search import store
from scq_gpu.search.index import HammingIndex


def _torch():
    return pytest.importorskip("torch").asarray


ENGINES = {
    **dict.fromkeys(NATIVE_ENGINES, lambda: np.asarray),
    "array_api_strict": lambda: array_api_strict.asarray,
    "torch": _torch,
}


@pytest.fixture(params=ENGINES)
def asarray(request, monkeypatch):
    """Array maker of each namespace; NumPy's with each engine."""
    if request.param in NATIVE_ENGINES:
        use_engine(request.param, monkeypatch)
    return ENGINES[request.param]()


@pytest.fixture(params=NATIVE_ENGINES[:-1])
def search_parts(request, monkeypatch):
    """The native search of codes in parts, in each instruction set, of codes in memory or in a memory map."""
    use_engine(request.param, monkeypatch)
    return lambda queries, parts, k, n_bits: native.CodeSearch.of(parts).knn(queries, parts, k, n_bits=n_bits)


def host(x):
    return x if isinstance(x, np.ndarray) else np.from_dlpack(x)


def random_codes(n, n_bits, seed=0, *, spread=1.0):
    """Codes around a few centres: many ties and duplicates where ``spread`` is small."""
    rng = np.random.default_rng(seed)
    centres = rng.random((5, n_bits)) < 0.5
    bits = centres[rng.integers(0, 5, n)] ^ (rng.random((n, n_bits)) < spread / 2)
    return np.packbits(bits, axis=1, bitorder="little")


def all_distances(queries, codes):
    return np.unpackbits(queries[:, None] ^ codes[None], axis=2).sum(axis=2, dtype=np.int32)


def brute_knn(queries, codes, k, n_bits):
    d = all_distances(queries, codes)
    order = np.argsort(d, axis=1, kind="stable")[:, :k]
    pad = ((0, 0), (0, k - order.shape[1]))
    return (
        np.pad(np.take_along_axis(d, order, axis=1), pad, constant_values=n_bits + 1),
        np.pad(order, pad, constant_values=-1),
    )


def brute_range(queries, codes, radius):
    offsets, ids, distances = [0], [], []
    for row in all_distances(queries, codes):
        inside = np.flatnonzero(row <= radius)
        inside = inside[np.argsort(row[inside], kind="stable")]
        ids += inside.tolist()
        distances += row[inside].tolist()
        offsets.append(len(ids))
    return offsets, ids, distances


# -- k nearest ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_bits", [1, 7, 8, 31, 32, 33, 64, 100, 128, 256, 1000])
@pytest.mark.parametrize("n_k", [(300, 1), (300, 10), (1100, 1000), (300, 300), (5, 9)])
def test_search_is_brute_force(asarray, n_bits, n_k):
    n, k = n_k
    codes, queries = random_codes(n, n_bits, spread=0.3), random_codes(6, n_bits, seed=1, spread=0.3)
    queries[0] = codes[-1]
    expected = brute_knn(queries, codes, k, n_bits)
    d, ids = HammingIndex(asarray(codes), n_bits).search(asarray(queries), k)
    assert type(d) is type(asarray(codes))
    np.testing.assert_array_equal(host(d), expected[0])
    np.testing.assert_array_equal(host(ids), expected[1])
    assert host(d).dtype == np.int32
    assert host(ids).dtype == np.int64


@pytest.mark.parametrize("n_bits", [8, 32, 64, 128, 256, 1000])
def test_search_is_faiss(n_bits):
    codes, queries = random_codes(5000, n_bits, spread=0.7), random_codes(40, n_bits, seed=1, spread=0.7)
    flat = faiss.IndexBinaryFlat(8 * codes.shape[1])
    flat.add(codes)
    for k in (1, 10, 1000, 5000):
        d, ids = HammingIndex(codes, n_bits).search(queries, k)
        theirs, _ = flat.search(queries, k)
        np.testing.assert_array_equal(d, theirs)
        np.testing.assert_array_equal(np.take_along_axis(all_distances(queries, codes), ids, axis=1), d)
        assert all(len(set(row)) == k for row in ids.tolist())


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 200),
    n_bits=st.integers(1, 80),
    k=st.integers(1, 250),
    spread=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)
def test_native_and_plain_agree(seed, n, n_bits, k, spread):
    if native.core is None:
        pytest.skip("there is no native core")
    codes, queries = random_codes(n, n_bits, seed, spread=spread), random_codes(3, n_bits, seed + 1, spread=spread)
    parts = [codes[: n // 3], codes[n // 3 :]]
    both = native.CodeSearch.of(parts), HAMMING
    a, b = (engine.knn(queries, parts, k, n_bits=n_bits) for engine in both)
    np.testing.assert_array_equal(a[0], b[0])
    np.testing.assert_array_equal(a[1], b[1])
    radius = k % (n_bits + 1)
    a, b = (sorted(zip(*engine.within(queries, parts, radius), strict=True)) for engine in both)
    assert a == b


@pytest.mark.parametrize("order", ["descending", "ascending", "equal"])
@pytest.mark.parametrize("k", [1, 7, 64, 900])
def test_adversarial_orders(search_parts, order, k):
    """Distances that fall row by row make every code a candidate and fill the buffers again and again."""
    ones = {"descending": np.arange(64, 0, -1), "ascending": np.arange(1, 65), "equal": np.full(64, 20)}[order]
    bits = np.arange(64) < np.repeat(ones, 40)[:, None]
    codes, query = np.packbits(bits, axis=1, bitorder="little"), np.zeros((5, 8), dtype=np.uint8)
    d, rows = search_parts(query, [codes], k, n_bits=64)
    expected = brute_knn(query, codes, k, 64)
    np.testing.assert_array_equal(d, expected[0])
    np.testing.assert_array_equal(rows, expected[1])


@pytest.mark.parametrize("n_queries", [1, 2, 3, 200])
@pytest.mark.parametrize("n_bits", [24, 40, 64])
@pytest.mark.parametrize("threads", ["1", "3", "16"])
def test_splitting_by_rows_or_by_queries(search_parts, monkeypatch, n_queries, n_bits, threads):
    monkeypatch.setenv("SCQ_NUM_THREADS", threads)
    codes, queries = random_codes(9001, n_bits, spread=0.8), random_codes(n_queries, n_bits, seed=1, spread=0.8)
    for k in (3, 100):
        expected = brute_knn(queries, codes, k, n_bits)
        d, rows = search_parts(queries, [codes[:2], codes[2:]], k, n_bits=n_bits)
        np.testing.assert_array_equal(d, expected[0])
        np.testing.assert_array_equal(rows, expected[1])


def test_wide_codes(search_parts):
    codes, queries = random_codes(50, 3000), random_codes(2, 3000, seed=1)
    expected = brute_knn(queries, codes, 5, 3000)
    np.testing.assert_array_equal(search_parts(queries, [codes], 5, n_bits=3000)[1], expected[1])


def test_codes_that_are_not_contiguous(asarray):
    codes, queries = random_codes(400, 64), random_codes(3, 64, seed=1)
    wide = asarray(np.concatenate([codes, codes], axis=1))
    d, ids = HammingIndex(wide[::2, 8:], 64).search(asarray(queries), 5)
    expected = brute_knn(queries, codes[::2], 5, 64)
    np.testing.assert_array_equal(host(d), expected[0])
    np.testing.assert_array_equal(host(ids), expected[1])


def test_searches_from_many_threads():
    codes, queries = random_codes(3000, 64), random_codes(30, 64, seed=1)
    index, expected = HammingIndex(codes, 64), brute_knn(queries, codes, 10, 64)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(index.search(queries, 10))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 6
    assert all((d == expected[0]).all() and (ids == expected[1]).all() for d, ids in answers)


# -- radius -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_bits", [1, 7, 32, 33, 64, 100, 256])
def test_range_search_is_brute_force(asarray, n_bits):
    codes, queries = random_codes(300, n_bits, spread=0.2), random_codes(5, n_bits, seed=0, spread=0.1)
    queries[-1] = ~codes[0] & np.packbits(np.ones(n_bits, dtype=bool), bitorder="little")
    for radius in (0, 1, 2, n_bits // 3, n_bits, 10 * n_bits):
        offsets, ids, d = HammingIndex(asarray(codes), n_bits).range_search(asarray(queries), radius)
        expected = brute_range(queries, codes, radius)
        assert [host(x).tolist() for x in (offsets, ids, d)] == list(expected)
    assert host(offsets)[-1] == 5 * 300


def test_nothing_within_the_radius(asarray):
    codes, query = np.full((20, 8), 255, dtype=np.uint8), np.zeros((2, 8), dtype=np.uint8)
    offsets, ids, d = HammingIndex(asarray(codes), 64).range_search(asarray(query), 3)
    assert host(offsets).tolist() == [0, 0, 0]
    assert host(ids).shape == host(d).shape == (0,)


# -- ids and add --------------------------------------------------------------------------------------------------


def test_ties_go_to_the_row_that_came_first(asarray):
    codes, query = np.zeros((6, 1), dtype=np.uint8), np.zeros((1, 1), dtype=np.uint8)
    index = HammingIndex(asarray(codes), 8, ids=asarray(np.array([50, 3, 99, 7, 0, 12])))
    assert host(index.search(asarray(query), 4)[1]).tolist() == [[50, 3, 99, 7]]
    index.add(asarray(codes[:2]), ids=[5, 1000])
    assert host(index.search(asarray(query), 9)[1]).tolist() == [[50, 3, 99, 7, 0, 12, 5, 1000, -1]]
    index.add(asarray(codes[:1]))
    assert host(index.range_search(asarray(query), 0)[1]).tolist() == [50, 3, 99, 7, 0, 12, 5, 1000, 1001]
    index.update([99], asarray(codes[:1]))
    assert host(index.search(asarray(query), 4)[1]).tolist() == [[50, 3, 99, 7]]


def test_ids_stay_with_their_codes():
    codes = random_codes(500, 40, spread=1.0)
    ids = np.random.default_rng(2).permutation(10_000)[:500]
    index = HammingIndex(codes[:200], 40, ids=ids[:200]).add(codes[200:], ids=ids[200:])
    d, found = index.search(codes, 1)
    assert (d == 0).all()
    same = (codes[:, None] == codes[None]).all(axis=2)
    np.testing.assert_array_equal(found[:, 0], [ids[row][0] for row in same])


def test_added_in_pieces_is_added_at_once(asarray):
    codes, queries = random_codes(700, 48), random_codes(4, 48, seed=1)
    index = HammingIndex(asarray(codes[:0]), 48)
    for start in range(0, 700, 100):
        index.add(asarray(codes[start : start + 100]))
    assert len(index) == 700
    expected = brute_knn(queries, codes, 20, 48)
    np.testing.assert_array_equal(host(index.search(asarray(queries), 20)[1]), expected[1])


def test_a_failed_add_changes_nothing():
    codes = random_codes(10, 16)
    index = HammingIndex(codes, 16, ids=np.arange(10) * 2)
    for bad in ([4, 5], [1, 1], [-1, 1], [1]):
        with pytest.raises(ValueError, match="id"):
            index.add(codes[:2], ids=bad)
    assert len(index) == 10
    np.testing.assert_array_equal(index.search(codes[:1], 10)[1][0] % 2, 0)


# -- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_bits", [12, 64, 100])
@pytest.mark.parametrize("with_ids", [False, True])
def test_save_and_load(tmp_path, n_bits, with_ids):
    codes, queries = random_codes(1000, n_bits), random_codes(5, n_bits, seed=1)
    index = HammingIndex(codes, n_bits, ids=np.arange(1000)[::-1] * 3 if with_ids else None).add(codes[:7])
    path = tmp_path / "codes.safetensors"
    index.save(path)
    assert os.listdir(tmp_path) == ["codes.safetensors"]
    loaded = HammingIndex.load(path)
    assert loaded.n_bits == n_bits
    for a, b in zip(index.search(queries, 30), loaded.search(queries, 30), strict=True):
        np.testing.assert_array_equal(a, b)
    loaded.add(codes[:3])
    index.add(codes[:3])
    for a, b in zip(index.range_search(queries, n_bits // 3), loaded.range_search(queries, n_bits // 3), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("n", [70_000, 32_768, 100])
def test_a_memory_map_stays_in_its_file_but_for_what_changes(tmp_path, monkeypatch, n):
    """As do the codes of an index file that are too many to read."""
    codes = random_codes(n, 64)
    HammingIndex(codes, 64, ids=np.arange(n) + 5).save(tmp_path / "index")
    np.save(tmp_path / "codes.npy", codes)
    monkeypatch.setattr(store, "worth_keeping", lambda n_bytes: False)
    before = codes.copy()
    for index in (
        HammingIndex.load(tmp_path / "index"),
        HammingIndex(np.load(tmp_path / "codes.npy", mmap_mode="r"), 64, ids=np.arange(n) + 5),
    ):
        codes = before.copy()
        index.update([5, n + 4], ~codes[[0, -1]])
        codes[[0, -1]] = ~codes[[0, -1]]
        index.add(codes[:3])
        codes = np.concatenate([codes, codes[:3]])
        expected = brute_knn(codes[:3], codes, 4, 64)
        d, ids = index.search(codes[:3], 4)
        np.testing.assert_array_equal(d, expected[0])
        np.testing.assert_array_equal(ids, expected[1] + 5)
        np.testing.assert_array_equal(index.get(index.ids), codes)
    np.testing.assert_array_equal(np.load(tmp_path / "codes.npy"), before)


def test_every_safetensors_reader_opens_the_file(tmp_path):
    from safetensors.numpy import load_file

    codes = random_codes(9, 20)
    HammingIndex(codes, 20, ids=np.arange(9) + 1).save(tmp_path / "index")
    tensors = load_file(tmp_path / "index")
    np.testing.assert_array_equal(tensors["codes"], codes)
    np.testing.assert_array_equal(tensors["ids"], np.arange(9) + 1)


def test_broken_files_are_refused(tmp_path):
    path = tmp_path / "index"
    HammingIndex(random_codes(50, 16), 16).save(path)
    whole = path.read_bytes()
    broken = {
        "no header": b"",
        "short": whole[:-1],
        "header only": whole[:100],
        "not json": whole[:8] + b"x" * 40 + whole[48:],
        "huge header": (1 << 60).to_bytes(8, "little") + whole[8:],
        "other format": whole.replace(b"HammingIndex v2", b"HammingIndex v9"),
        "other contract": whole.replace(b"LSB first", b"MSB first"),
        "other width": whole.replace(b'"n_bits": "16"', b'"n_bits": "99"'),
        "other dtype": whole.replace(b'"U8"', b'"F8"'),
    }
    for content in broken.values():
        path.write_bytes(content)
        with pytest.raises(ValueError, match="not a usable index file"):
            HammingIndex.load(path)


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "index"
    HammingIndex(random_codes(5, 16), 16).save(path)
    before = path.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        HammingIndex(random_codes(50, 16), 16).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["index"]


# -- bad input ----------------------------------------------------------------------------------------------------


def test_bad_input_is_named():
    codes = random_codes(10, 12)
    index = HammingIndex(codes, 12)
    bad = [
        (lambda: HammingIndex(codes, 0), ValueError, "n_bits=0"),
        (lambda: HammingIndex(codes, 17), ValueError, "2 bytes wide; n_bits=17 takes 3"),
        (lambda: HammingIndex(codes | 128, 12), ValueError, "bits set beyond n_bits=12"),
        (lambda: HammingIndex(codes.astype(np.int8), 12), TypeError, "dtype int8"),
        (lambda: HammingIndex(codes[0], 12), ValueError, "codes must have 2 dimensions"),
        (lambda: HammingIndex(codes, 12, ids=np.arange(9)), ValueError, r"shape \(9,\)"),
        (lambda: HammingIndex(codes, 12, ids=np.arange(10) * 0.5), ValueError, "dtype float64"),
        (lambda: HammingIndex(codes, 12, ids=np.arange(10) // 2), ValueError, "id 0 is given to more than one"),
        (lambda: HammingIndex(codes, 12, ids=np.arange(10) - 1), ValueError, "ids run from -1"),
        (lambda: index.search(codes, 0), ValueError, "k=0"),
        (lambda: index.search(codes, 1.5), ValueError, "k=1.5"),
        (lambda: index.search(codes[:, :1], 1), ValueError, "queries are 1 bytes wide"),
        (lambda: index.search(codes.astype(float), 1), TypeError, "queries has dtype float64"),
        (lambda: index.search(codes | 128, 1), ValueError, "queries have bits set beyond"),
        (lambda: index.search(array_api_strict.asarray(codes), 1), ValueError, "move one to the other"),
        (lambda: index.range_search(codes, -1), ValueError, "radius=-1"),
        (lambda: index.add(array_api_strict.asarray(codes)), ValueError, "move one to the other"),
        (lambda: HammingIndex.load("/nowhere/index"), FileNotFoundError, "nowhere"),
    ]
    for call, error, message in bad:
        with pytest.raises(error, match=message):
            call()


def test_where_an_array_lives_decides_the_engine(monkeypatch):
    codes = np.zeros((1, 8), dtype=np.uint8)
    assert searcher(array_api_strict.asarray(codes)) is HAMMING
    assert searcher(codes, distance="spherical") is SPHERICAL
    if native.core is not None:
        assert searcher(codes).__name__ == "CodeSearch"
    monkeypatch.setattr(native, "core", None)
    assert searcher(codes) is HAMMING
