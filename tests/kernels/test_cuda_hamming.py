"""The Hamming kernels, run on the CPU from the sources that run on a GPU: exactly right, ties included."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import COMPILER, SimulatedDevice, oracle
from cuda_on_cpu.cases import SEED, search_case
from hypothesis import given, settings
from hypothesis import strategies as st

from scq_gpu.kernels.cuda.hamming import Database, HammingVariant, hamming_variant

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the simulator needs g++")

DEVICE = SimulatedDevice() if COMPILER else None


@pytest.mark.parametrize("n_bytes", [1, 2, 3, 4, 5, 8, 9, 16, 25, 32, 33, 64, 65, 128])
def test_every_width(n_bytes):
    search_case(DEVICE, 333, n_bytes, 9, 20)


@pytest.mark.parametrize("n", [1, 31, 33, 127, 129, 4095, 4096, 4097])
def test_edge_sizes(n):
    search_case(DEVICE, n, 4, 2, min(n, 7))


@pytest.mark.parametrize("n_queries", [1, 31, 32, 33])
def test_edge_numbers_of_queries(n_queries):
    search_case(DEVICE, 130, 4, n_queries, 11)


@pytest.mark.parametrize("k", [1, 2048, 5000])
def test_many_neighbours(k):
    search_case(DEVICE, 5000, 2, 3, k)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 600), n_bytes=st.integers(1, 16), n_queries=st.integers(1, 40), data=st.data())
def test_random_sizes(n, n_bytes, n_queries, data):
    search_case(DEVICE, n, n_bytes, n_queries, data.draw(st.integers(1, n)))


def test_thread_order_does_not_matter():
    search_case(SimulatedDevice(seeds=(0, 1, 2)), 4500, 8, 33, 40)


def test_all_equal_codes_come_by_id():
    codes = np.full((9000, 4), 0xA5, dtype=np.uint8)
    distances, ids = Database(DEVICE, codes).top_k(codes[:1], 3000)
    assert not distances.any()
    assert np.array_equal(ids[0], np.arange(3000))


def test_queries_in_batches(monkeypatch):
    monkeypatch.setattr(HammingVariant, "workspace_bytes", 1)
    assert hamming_variant(4).query_batch(100, 1 << 30) == 32
    search_case(DEVICE, 100, 4, 70, 9)


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
    with pytest.raises(ValueError, match=r"k=21 must be an integer from 1 to 20 \(the database holds 20 codes\)"):
        database.top_k(codes, 21)
    with pytest.raises(ValueError, match="queries are 3 bytes wide and the database 4"):
        database.top_k(codes[:, :3], 1)
    with pytest.raises(ValueError, match=r"129 bytes wide; the Hamming kernels take 1 to 128 bytes \(1024 bits\)"):
        Database(DEVICE, np.zeros((3, 129), dtype=np.uint8))
