"""HammingIndex on CUDA codes: the kernels in the simulator, behind a CuPy that runs on the CPU, against NumPy."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from cuda_on_cpu import COMPILER, fake_cupy, oracle
from cuda_on_cpu.cases import SEED

from scq_gpu._core import arrays as devices
from scq_gpu.kernels.cuda import hamming
from scq_gpu.kernels.search import HAMMING, searcher
from scq_gpu.search import columns
from scq_gpu.search.index import HammingIndex

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the simulator needs g++")


@pytest.fixture(autouse=True)
def cupy():
    devices.cuda_device.cache_clear()
    with fake_cupy.installed() as fake:
        yield fake
    devices.cuda_device.cache_clear()


def codes_of(n, n_bits, seed=SEED):
    """Random codes of which a fifth are alike, so that there are ties."""
    rng = np.random.default_rng([seed, n, n_bits])
    bits = rng.random((n, n_bits)) < 0.5
    bits[rng.random(n) < 0.2] = bits[0]
    return np.packbits(bits, axis=1, bitorder="little")


def by_pair(found):
    return sorted(zip(*(x.tolist() for x in found), strict=True))


@pytest.mark.parametrize(("n", "n_bits", "k"), [(300, 20, 7), (50, 64, 50), (9, 8, 12), (1, 1000, 3)])
def test_engine_agrees_with_numpy(n, n_bits, k):
    codes, queries = codes_of(n, n_bits), codes_of(5, n_bits, seed=1)
    engine = hamming.CodeSearch([fake_cupy.array(codes)])
    on_device = fake_cupy.array(queries)
    found = engine.knn(on_device, [codes], k, n_bits=n_bits)
    for result, expected in zip(found, HAMMING.knn(queries, [codes], k, n_bits=n_bits), strict=True):
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)
    radius = n_bits // 2
    within = engine.within(on_device, [codes], radius)
    expected = HAMMING.within(queries, [codes], radius)
    assert len(expected[0])
    assert by_pair(within) == by_pair(expected)


@pytest.mark.parametrize("q", [2, 30])
def test_engine_finds_allowed_rows_only(q):
    codes, queries = codes_of(400, 30), codes_of(q, 30, seed=1)
    allowed = np.arange(400) % 3 == 0
    engine, on_device = hamming.CodeSearch([fake_cupy.array(codes)]), fake_cupy.array(queries)
    words = fake_cupy.array(oracle.bitset(allowed))
    d, rows = engine.knn(on_device, [codes], 200, n_bits=30, allowed=words)
    some = np.flatnonzero(allowed)
    expected, places = HAMMING.knn(queries, [codes[some]], 200, n_bits=30)
    np.testing.assert_array_equal(d, expected)
    np.testing.assert_array_equal(rows, np.where(places < 0, -1, some[places]))
    query, d, rows = HAMMING.within(queries, [codes[some]], 12)
    assert by_pair(engine.within(on_device, [codes], 12, words)) == by_pair((query, d, some[rows]))


def test_range_search_in_blocks_of_queries(monkeypatch):
    monkeypatch.setattr(hamming.Database, "range_queries", 3)
    codes, queries = codes_of(200, 16), codes_of(8, 16, seed=1)
    within = hamming.CodeSearch([fake_cupy.array(codes)]).within(fake_cupy.array(queries), [codes], 5)
    assert by_pair(within) == by_pair(HAMMING.within(queries, [codes], 5))


def test_one_place_decides():
    codes = fake_cupy.array(codes_of(4, 1024))
    assert searcher(codes, k=hamming.MAX_K) is hamming.CodeSearch
    assert searcher(codes, k=hamming.MAX_K + 1) is not hamming.CodeSearch
    assert searcher(fake_cupy.array(codes_of(4, 1032))) is not hamming.CodeSearch
    assert searcher(np.asarray(codes)) is not hamming.CodeSearch


def test_index_builds_its_database_once_and_again_after_add(monkeypatch):
    built = []

    class Noted(hamming.CodeSearch):
        def __init__(self, parts):
            built.append(len(parts[0]))
            super().__init__([fake_cupy.array(parts[0])])  # NumPy forgets whose arrays it joins

    codes, queries = codes_of(120, 24), codes_of(6, 24, seed=1)
    expected = HammingIndex(codes, n_bits=24)
    monkeypatch.setattr(hamming, "CodeSearch", Noted)
    monkeypatch.setattr(columns, "_copied", fake_cupy.array)
    monkeypatch.setattr(columns, "searcher", lambda codes, **options: Noted)  # of joined arrays, too
    index = HammingIndex(fake_cupy.array(codes), n_bits=24)

    def check():
        for k in (1, 200):
            for x, y in zip(index.search(fake_cupy.array(queries), k), expected.search(queries, k), strict=True):
                np.testing.assert_array_equal(x, y)
        found = index.range_search(fake_cupy.array(queries), 8)
        for x, y in zip(found, expected.range_search(queries, 8), strict=True):
            np.testing.assert_array_equal(x, y)

    check()
    check()
    assert built == [120]
    more, ids = codes_of(30, 24, seed=2), np.arange(30)[::-1] + 500
    index.add(fake_cupy.array(more), ids=ids)
    expected.add(more, ids=ids)
    check()
    assert built == [120, 150]


def test_an_index_that_has_searched_can_be_pickled(monkeypatch):
    monkeypatch.setattr(columns, "_copied", fake_cupy.array)
    codes = codes_of(40, 16)
    index = HammingIndex(fake_cupy.array(codes), n_bits=16)
    first = index.search(fake_cupy.array(codes[:2]), 3)
    again = pickle.loads(pickle.dumps(index))
    for x, y in zip(again.search(fake_cupy.array(codes[:2]), 3), first, strict=True):
        np.testing.assert_array_equal(x, y)
