"""The Hamming kernels, run on the CPU from the sources that run on a GPU: exactly right, ties included."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from cuda_on_cpu import COMPILER, SimulatedDevice, oracle
from cuda_on_cpu.cases import SEED, search_case
from hypothesis import given, settings
from hypothesis import strategies as st

from scq_gpu.kernels.cuda import hamming
from scq_gpu.kernels.cuda.hamming import Database, HammingVariant, hamming_variant

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the simulator needs g++")

DEVICE = SimulatedDevice() if COMPILER else None


@pytest.mark.parametrize("n_bytes", [1, 2, 3, 4, 5, 8, 9, 16, 25, 32, 33, 64, 65, 128])
def test_every_width(n_bytes):
    search_case(DEVICE, 333, n_bytes, 9, 20)


@pytest.mark.parametrize("n", [1, 31, 33, 127, 129, 4095, 4096, 4097])
def test_edge_sizes(n):
    search_case(DEVICE, n, 4, 2, min(n, 7))


@pytest.mark.parametrize("n_bytes", [1, 2, 3, 4, 5, 8, 9, 16, 25, 32, 33, 64, 65, 128])
def test_every_width_for_one_query(n_bytes):
    search_case(DEVICE, 1333, n_bytes, 1, 20)


@pytest.mark.parametrize("n_queries", [1, 8, 9, 31, 32, 33])
def test_edge_numbers_of_queries(n_queries):
    search_case(DEVICE, 130, 4, n_queries, 11)


@pytest.mark.parametrize("k", [1, 2048, 5000])
def test_many_neighbours(k):
    search_case(DEVICE, 5000, 2, 3, k)
    search_case(DEVICE, 5000, 2, 9, k)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 600), n_bytes=st.integers(1, 16), n_queries=st.integers(1, 40), data=st.data())
def test_random_sizes(n, n_bytes, n_queries, data):
    search_case(DEVICE, n, n_bytes, n_queries, data.draw(st.integers(1, n)))


def test_thread_order_does_not_matter():
    search_case(SimulatedDevice(seeds=(0, 1, 2)), 4500, 8, 33, 40)
    search_case(SimulatedDevice(seeds=(0, 1, 2)), 4500, 8, 2, 40)


@pytest.mark.parametrize("q", [1, 20])
def test_all_equal_codes_come_by_id(q):
    codes = np.full((9000, 4), 0xA5, dtype=np.uint8)
    distances, ids = Database(DEVICE, codes).top_k(codes[:q], 3000, 33)
    assert not distances.any()
    assert np.array_equal(ids, np.broadcast_to(np.arange(3000), (q, 3000)))


def test_queries_in_batches(monkeypatch):
    monkeypatch.setattr(HammingVariant, "workspace_bytes", 1)
    search_case(DEVICE, 100, 4, 70, 9)


def test_scratch_is_made_smaller_until_it_is_granted(monkeypatch):
    asked = []

    def refuse(xp, most, least):
        asked.append((most, least))
        return xp.empty(3 * least, dtype=xp.uint32)

    monkeypatch.setattr(hamming, "scratch", refuse)
    search_case(DEVICE, 100, 4, 70, 9)
    assert asked[0] == (70 * 33, 33)


def test_blocks_for_a_large_gpu():
    """A thousand blocks and more where there is work for them, for one query as for many."""
    for n, n_bytes, q in itertools.product((10**6, 10**8), (4, 8, 16, 128), (1, 8, 32, 1000)):
        variant = hamming_variant(n_bytes, q)
        blocks = variant.chunks(n, q) * -(-q // variant.queries)
        assert blocks >= min(1000, n // max(1024, 4 * variant.bins) // 2)
        assert variant.chunk_items(n, q) % 32 == 0


def test_one_query_does_not_take_the_work_of_a_tile_of_them():
    assert hamming_variant(8, 1).queries == hamming_variant(8, 8).queries == 1
    assert hamming_variant(8, 9).queries == 32
    assert hamming_variant(128, 2).few
    assert not hamming_variant(128, 3).few


def test_nothing_is_allowed():
    codes = np.zeros((100, 4), dtype=np.uint8)
    for q in (1, 20):
        oracle.check_search(Database(DEVICE, codes), codes[:q], codes, k=7, radius=3, allowed=np.zeros(100, dtype=bool))


def test_no_queries():
    codes = np.zeros((10, 4), dtype=np.uint8)
    database = Database(DEVICE, codes)
    oracle.check_search(database, codes[:0], codes, k=3, radius=1)


def test_empty_database():
    database = Database(DEVICE, np.zeros((0, 4), dtype=np.uint8))
    queries = np.zeros((3, 4), dtype=np.uint8)
    limits, distances, ids = database.within(queries, 5)
    assert limits.tolist() == [0, 0, 0, 0]
    assert len(distances) == len(ids) == 0


def test_bad_input():
    rng = np.random.default_rng(SEED)
    codes = rng.integers(0, 256, (20, 4), dtype=np.uint8)
    database = Database(DEVICE, codes)
    with pytest.raises(ValueError, match="k=0 must be an integer from 1 to 65536"):
        database.top_k(codes, 0, 33)
    assert database.top_k(codes[:1], hamming.MAX_K + 1, 33)[1][0, 20:].max() == -1
    with pytest.raises(ValueError, match="queries are 3 bytes wide and the database 4"):
        database.top_k(codes[:, :3], 1, 33)
    with pytest.raises(ValueError, match=r"129 bytes wide; the Hamming kernels take 1 to 128 bytes \(1024 bits\)"):
        Database(DEVICE, np.zeros((3, 129), dtype=np.uint8))
