"""Multi-index hashing gives what a scan gives, and is chosen only where it pays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scq_gpu.kernels.search import HAMMING
from scq_gpu.search import multi_index
from scq_gpu.search.index import HammingIndex


def random_codes(n, n_bits, seed, spread):
    rng = np.random.default_rng(seed)
    centres = rng.random((8, n_bits)) < 0.5
    bits = centres[rng.integers(0, 8, n)] ^ (rng.random((n, n_bits)) < spread / 2)
    return np.packbits(bits, axis=1, bitorder="little")


def pairs(found):
    return sorted(zip(*(x.tolist() for x in found), strict=True))


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n_bits=st.integers(1, 90),
    m=st.integers(1, 8),
    radius=st.integers(0, 6),
    spread=st.sampled_from([0.0, 0.05, 0.2, 1.0]),
    split=st.integers(0, 150),
)
def test_tables_find_what_a_scan_finds(seed, n_bits, m, radius, spread, split):
    m = min(max(m, -(-n_bits // 20)), n_bits)
    codes, queries = random_codes(150, n_bits, seed, spread), random_codes(6, n_bits, seed, spread / 2)
    parts = [part for part in (codes[:split], codes[split:]) if len(part)]
    plan = multi_index.Plan(multi_index.cut(n_bits, m), multi_index.chunk_radii(m, radius), 0.0, 0.0)
    lookup = multi_index.MultiIndex(parts, plan)
    for smaller in {radius, radius // 2}:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(multi_index, "_PROBE", 0)
            patch.setattr(multi_index, "_CANDIDATE", 0)
            found = lookup.within(queries, smaller)
        assert pairs(found) == pairs(HAMMING.within(queries, [codes], smaller))


@pytest.mark.parametrize(("m", "radius"), [(m, r) for m in range(1, 7) for r in range(9)])
def test_pigeonhole(m, radius):
    """No way of spreading ``radius`` differing bits over chunks escapes every chunk's own radius."""
    radii = multi_index.chunk_radii(m, radius)
    assert sum(r + 1 for r in radii) > radius
    assert sum(r + 1 for r in radii) == radius + 1


def test_blocks_of_candidates_and_queries(monkeypatch):
    monkeypatch.setattr(multi_index, "_BLOCK_CANDIDATES", 50)
    monkeypatch.setattr(multi_index, "_CANDIDATE", 0)
    monkeypatch.setattr(multi_index, "_PROBE", 0)
    codes = random_codes(400, 24, 0, 0.3)
    plan = multi_index.Plan(multi_index.cut(24, 2), multi_index.chunk_radii(2, 3), 0.0, 0.0)
    found = multi_index.MultiIndex([codes], plan).within(codes[:40], 3)
    assert pairs(found) == pairs(HAMMING.within(codes[:40], [codes], 3))


def test_index_switches_to_tables_when_they_have_paid_and_answers_the_same(monkeypatch):
    monkeypatch.setattr(multi_index, "_MIN_ROWS", 1000)
    monkeypatch.setattr(multi_index, "_BUILD", 2)
    codes = random_codes(60_000, 48, 0, 1.0)
    index, fresh = HammingIndex(codes, 48), HammingIndex(codes, 48)
    assert fresh.prepare(2)
    used = []
    for _ in range(8):
        answer = index.range_search(codes[:1], 2)
        used.append("tables" in index._state.made)
        for a, b in zip(answer, fresh.range_search(codes[:1], 2), strict=True):
            np.testing.assert_array_equal(a, b)
    assert not used[0]
    assert used[-1]
    index.add(codes[:5])
    assert "tables" not in index._state.made
    assert index.range_search(codes[:1], 0)[1].tolist() == [0, 60_000]


def test_full_buckets_fall_back_to_the_scan(monkeypatch):
    """All codes equal: tables would return the whole database, and say so instead."""
    monkeypatch.setattr(multi_index, "_MIN_ROWS", 1000)
    codes = np.zeros((5000, 8), dtype=np.uint8)
    assert multi_index.choose_plan([codes], 64, 2) is None
    plan = multi_index.Plan(multi_index.cut(64, 4), multi_index.chunk_radii(4, 2), 0.0, 0.0)
    assert multi_index.MultiIndex([codes], plan).within(codes[:3], 2) is None
    index = HammingIndex(codes, 64)
    assert not index.prepare(2)
    index._state.made.update(tables=(2, multi_index.MultiIndex([codes], plan)), plans={2: plan})
    assert index.range_search(codes[:1], 2)[0].tolist() == [0, 5000]


def test_plans_only_where_tables_can_win():
    uniform = random_codes(200_000, 64, 0, 1.0)
    plan = multi_index.choose_plan([uniform], 64, 2)
    assert plan is not None
    assert plan.query_cost < 200_000 / 20
    assert multi_index.choose_plan([uniform[:1000]], 64, 2) is None  # too few codes
    assert multi_index.choose_plan([uniform], 64, 32) is None  # too large a radius
    few_bits = np.packbits(np.arange(200_000)[:, None] % 4 == np.arange(4), axis=1, bitorder="little")
    assert multi_index.choose_plan([few_bits], 4, 1) is None  # four different codes
