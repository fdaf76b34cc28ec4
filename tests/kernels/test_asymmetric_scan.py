"""The native scan for float queries beside a slow one in NumPy: every score and every row must be the same."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_engines import INSTRUCTION_SETS, use_engine

from scq_gpu.kernels import asymmetric, native

SPECIAL = np.array([0, -1, 1, 0.5, -3, 1e30, -1e30, 3e38, -3e38, 1e-30, 1e-42, -1e-42, 1e-45], dtype=np.float32)


@pytest.fixture(autouse=True, params=INSTRUCTION_SETS or ["native"])
def instruction_set(request, monkeypatch):
    use_engine(request.param, monkeypatch)


def tables_of(gain, width):
    """Sums of gains for every value of every byte, bit after bit."""
    padded = np.zeros((len(gain), width, 8), dtype=np.float32)
    padded.reshape(len(gain), -1)[:, : gain.shape[1]] = gain
    tables = np.zeros((len(gain), width, 256), dtype=np.float32)
    for bit in range(8):
        tables += padded[:, :, bit, None] * (np.arange(256) >> bit & 1).astype(np.float32)
    return tables


def rounded_tables(gain):
    """Sums of four gains, then of two such sums: the order in which the search adds them."""
    width = -(-gain.shape[1] // 8)
    padded = np.zeros((len(gain), width, 2, 4), dtype=np.float32)
    padded.reshape(len(gain), -1)[:, : gain.shape[1]] = gain
    halves = np.zeros((len(gain), width, 2, 16), dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for bit in range(4):
            halves += padded[..., bit, None] * (np.arange(16) >> bit & 1).astype(np.float32)
        values = np.arange(256)
        return halves[:, :, 0, values & 15] + halves[:, :, 1, values >> 4]


def brute_force(tables, codes, k):
    """Score everything, sort everything."""
    q, n = len(tables), len(codes)
    scores = np.zeros((q, n), dtype=np.float32)
    with np.errstate(all="ignore"):
        for b in range(codes.shape[1]):
            scores += tables[:, b, codes[:, b]]
    scores = np.where(np.isnan(scores), np.float32(np.inf), scores)
    best, rows = np.full((q, k), np.inf, dtype=np.float32), np.full((q, k), -1)
    order = np.argsort(scores, axis=1, kind="stable")[:, :k]
    best[:, : min(k, n)], rows[:, : min(k, n)] = np.take_along_axis(scores, order, axis=1), order
    return best, rows


def check(gain, codes, k, cuts=(), tables=None):
    """Check that codes in one piece and in parts give the same answer."""
    parts = np.split(codes, cuts)
    expected = brute_force(tables_of(gain, codes.shape[1]) if tables is None else tables, codes, k)
    with np.errstate(over="ignore", invalid="ignore"):
        found = asymmetric.knn(gain, parts, k)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])
    assert found[0].dtype == np.float32
    assert found[1].dtype == np.int64


def random_codes(rng, n, n_bits, *, distinct=None):
    """Codes whose padding bits are 0; some of them, each many times, if ``distinct`` says how many."""
    bits = rng.random((distinct or n, n_bits)) < rng.uniform(0.2, 0.8)
    codes = np.packbits(bits, axis=1, bitorder="little")
    return codes[rng.integers(distinct, size=n)] if distinct else codes


def whole_gains(rng, q, n_bits):
    """Multiples of 1/8, whose sums are exact."""
    return (rng.integers(-400, 400, (q, n_bits)) / 8).astype(np.float32)


@pytest.mark.parametrize("n_bits", [1, 3, 8, 9, 31, 64, 65, 128, 200, 256, 300, 1024])
def test_lengths(n_bits):
    rng = np.random.default_rng(n_bits)
    codes, gain = random_codes(rng, 20_011, n_bits), whole_gains(rng, 5, n_bits)
    check(gain, codes, 7)


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 127, 1000, 8192, 8193])
@pytest.mark.parametrize("k", [1, 10, 1000, 9000])
def test_numbers_of_rows_and_results(n, k):
    rng = np.random.default_rng(n + k)
    codes, gain = random_codes(rng, n, 44), whole_gains(rng, 3, 44)
    check(gain, codes, k)


@pytest.mark.parametrize("q", [1, 2, 3, 31, 33, 70])
def test_numbers_of_queries(q):
    rng = np.random.default_rng(q)
    codes, gain = random_codes(rng, 30_000, 100), whole_gains(rng, q, 100)
    cuts = [0, 1, 77, 77, 20_000, 30_000]  # empty parts among them
    check(gain, codes, 12, cuts=cuts)


@pytest.mark.parametrize("k", [1, 50, 3000])
def test_duplicates_come_lowest_row_first(k):
    rng = np.random.default_rng(k)
    codes = random_codes(rng, 40_000, 70, distinct=30)
    gain = rng.standard_normal((4, 70)).astype(np.float32)
    check(gain, codes, k, tables=rounded_tables(gain), cuts=[12_345])


@pytest.mark.parametrize("value", [0, 1, -1, 1e-42, 1e30, -1e30, 3e38])
def test_equal_gains(value):
    rng = np.random.default_rng(0)
    codes = random_codes(rng, 10_000, 40)
    gain = np.full((3, 40), value, dtype=np.float32)
    gain[1, ::2] = 0
    tables = rounded_tables(gain)
    check(gain, codes, 20, tables=tables)


def test_sums_are_those_of_the_byte_tables_to_the_last_bit():
    """Scores a rounding apart, which a bound must not mix up."""
    rng = np.random.default_rng(0)
    codes = random_codes(rng, 50_000, 256, distinct=5000)
    gain = (1 + rng.standard_normal((6, 256)) * 1e-7).astype(np.float32)
    tables = rounded_tables(gain)
    check(gain, codes, 300, tables=tables)


@pytest.mark.parametrize("scale", [1e-44, 1e-38, 1e-20, 1, 1e20, 1e37])
def test_scales_of_any_size(scale):
    rng = np.random.default_rng(0)
    codes = random_codes(rng, 20_000, 64)
    with np.errstate(over="ignore"):
        gain = (rng.standard_normal((4, 64)) * scale * 10.0 ** rng.integers(-3, 2, 64)).astype(np.float32)
    check(gain, codes, 30, tables=rounded_tables(gain))


def test_a_few_gains_outweigh_the_others():
    rng = np.random.default_rng(0)
    codes = random_codes(rng, 30_000, 128)
    gain = whole_gains(rng, 8, 128)
    gain[:, ::50] *= 1024
    check(gain, codes, 25)


@pytest.mark.parametrize("large", [-1e6, 1e6])
def test_rounding_larger_than_what_tells_rows_apart(large):
    """A large gain first: what the others add to it is rounded off, most of it downwards."""
    rng = np.random.default_rng(0)
    codes = random_codes(rng, 30_000, 128)
    gain = rng.uniform(0, 0.02, (6, 128)).astype(np.float32)
    gain[:, 0] = large
    gain[3:, 64] = -large
    check(gain, codes, 40, tables=rounded_tables(gain))


def test_overflow_on_the_way():
    """A sum of -inf from gains that add up to less than others: its byte of two large ones overflows."""
    codes = np.full((5000, 2), [1, 0], dtype=np.uint8)
    codes[4000] = 3, 1
    gain = np.zeros((2, 16), dtype=np.float32)
    gain[:, :2], gain[:, 8] = -2e38, 3e38
    assert (brute_force(rounded_tables(gain), codes, 3)[1][:, 0] == 4000).all()
    check(gain, codes, 3, tables=rounded_tables(gain))


def test_few_rows_far_nearer_than_the_others():
    rng = np.random.default_rng(0)
    codes = random_codes(rng, 1 << 14, 48) | np.uint8(1)
    codes[::16] &= np.uint8(0xFE)
    gain = np.abs(whole_gains(rng, 5, 48)) + 1
    gain[:, 0] = 10_000
    check(gain, codes, 2000)


def test_the_native_core_was_searched():
    assert native.runs_native(np.zeros(1))


def test_memory_maps(tmp_path):
    rng = np.random.default_rng(0)
    codes, gain = random_codes(rng, 20_000, 91), whole_gains(rng, 3, 91)
    np.save(tmp_path / "codes.npy", codes)
    mapped = np.load(tmp_path / "codes.npy", mmap_mode="r")
    check(gain, mapped, 9)
    check(gain, mapped, 9, cuts=[7])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 700),
    n_bits=st.integers(1, 300),
    q=st.integers(1, 5),
    k=st.integers(1, 800),
    gains=st.sampled_from(["whole", "normal", "special", "steep"]),
    distinct=st.sampled_from([None, 1, 5]),
)
def test_anything(seed, n, n_bits, q, k, gains, distinct):
    rng = np.random.default_rng(seed)
    codes = random_codes(rng, n, n_bits, distinct=distinct)
    gain = {
        "whole": lambda: whole_gains(rng, q, n_bits),
        "normal": lambda: rng.standard_normal((q, n_bits)),
        "special": lambda: rng.choice(SPECIAL, (q, n_bits)),
        "steep": lambda: rng.standard_normal((q, n_bits)) * 10.0 ** rng.integers(-12, 12, n_bits),
    }[gains]()
    gain = gain.astype(np.float32)
    check(gain, codes, k, sorted(rng.integers(0, n + 1, 2)), tables=rounded_tables(gain))
