"""Padding bits that are set: refused at the door, and harmless where nobody looked."""

import numpy as np
import pytest

import scq_gpu as scq
from scq_gpu.kernels import native
from scq_gpu.kernels.search import HAMMING, searcher


def codes(n, n_bits, seed):
    """Of random bytes: every padding bit may be set."""
    return np.random.default_rng(seed).integers(0, 256, size=(n, -(-n_bits // 8)), dtype=np.uint8)


@pytest.mark.parametrize("n_bits", [1, 3, 9, 12, 33, 65])
def test_the_door(n_bits):
    clean = np.zeros((5, -(-n_bits // 8)), dtype=np.uint8)
    dirty = clean.copy()
    dirty[3, -1] = 0x80
    index = scq.HammingIndex(clean, n_bits)
    for call in (
        lambda: scq.HammingIndex(dirty, n_bits),
        lambda: index.add(dirty),
        lambda: index.search(dirty, 1),
        lambda: index.range_search(dirty, 1),
    ):
        with pytest.raises(ValueError, match=f"bits set beyond n_bits={n_bits}"):
            call()


@pytest.mark.parametrize("n_bits", [1, 3, 9, 12, 33, 65])
@pytest.mark.parametrize(("n", "k"), [(20_000, 100), (20_000, 5), (50, 50), (50, 70)])
@pytest.mark.parametrize("q", [1, 40])
def test_native_loops_count_every_bit_and_write_nowhere_else(n_bits, n, k, q):
    """Codes behind the door's back: a bound guessed from a sample counted distances beyond its buffer."""
    database, queries = codes(n, n_bits, 0), codes(q, n_bits, 1)
    queries[0] = ~database[0]
    if native.core is None:
        pytest.skip("there is no native core")
    d, rows = searcher(database).of([database]).knn(queries, [database], k, n_bits=n_bits)
    wanted, wanted_rows = HAMMING.knn(queries, [database], k, n_bits=n_bits)
    np.testing.assert_array_equal(d, wanted)
    np.testing.assert_array_equal(rows, wanted_rows)
