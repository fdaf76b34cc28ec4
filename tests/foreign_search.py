"""Codes searched by other software: what to search, and what must be found."""

import doctest
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

import scq_gpu as scq

DOCS = Path(__file__).parents[1] / "docs"
BITS = [1, 8, 31, 64, 100]
K = 10


def random_bits(n, n_bits, seed=0):
    """Bits in loose bunches, so that near neighbours are near."""
    rng = np.random.default_rng(seed)
    centres = rng.random((8, n_bits)) < 0.5
    return centres[rng.integers(0, 8, n)] ^ (rng.random((n, n_bits)) < 0.15)


def make_case(n_bits):
    """Codes and queries, and the distance of every query to every code, counted bit by bit."""
    bits, queries = random_bits(400, n_bits), random_bits(7, n_bits, seed=1)
    return {
        "n_bits": n_bits,
        "codes": scq.pack(bits),
        "queries": scq.pack(queries),
        "distances": (queries[:, None, :] != bits[None, :, :]).sum(axis=2),
    }


def assert_same_neighbours(case, ids, distances=None):
    """ids are K nearest codes of each query: the distances of HammingIndex, and its ids but for ties at the end."""
    expected, expected_ids = scq.HammingIndex(case["codes"], case["n_bits"]).search(case["queries"], k=K)
    ids = np.asarray(ids)
    found = np.take_along_axis(case["distances"], ids, axis=1)
    np.testing.assert_array_equal(found, expected)
    if distances is not None:
        np.testing.assert_array_equal(np.asarray(distances), expected)
    for row, wanted, d in zip(ids, expected_ids, expected, strict=True):
        assert len(set(row.tolist())) == K
        assert set(wanted[d < d[-1]]) <= set(row)


def converted(case, to):
    return (scq.convert(case[name], case["n_bits"], to=to) for name in ("codes", "queries"))


def run_page(page):
    """Run the examples of a page of the documentation."""
    with threadpool_limits(1):  # BLAS threads that spin on a busy machine take far longer than one
        result = doctest.testfile(str(DOCS / page), module_relative=False, encoding="utf-8")
    assert result.attempted > 5
    assert result.failed == 0
