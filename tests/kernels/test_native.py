"""The native core beside slow versions in NumPy, over every instruction set that runs here."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_engines import INSTRUCTION_SETS, use_engine

from scq_gpu.kernels import native

pytestmark = pytest.mark.skipif(native.core is None, reason=f"there is no native core: {native.missing}")
ANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
WIDTHS = st.one_of(st.integers(1, 40), st.integers(1, 128))


@pytest.fixture(autouse=True, params=INSTRUCTION_SETS or ["native"])
def core(request, monkeypatch):
    use_engine(request.param, monkeypatch)
    return native.core


# ---- oracles ----


def all_distances(queries, codes):
    return np.bitwise_count(queries[:, None] ^ codes).sum(axis=2, dtype=np.int64)


def least(values, k, allowed):
    """The k least of each row among allowed columns, lowest column first, with -1 for what is missing."""
    columns = np.flatnonzero(allowed)
    order = columns[np.argsort(values[:, columns], axis=1, kind="stable")[:, :k]]
    found = np.full((len(values), k), -1)
    found[:, : order.shape[1]] = order
    return found


def sums(entries, codes):
    """Both tables of a byte first, then byte after byte, in float32."""
    total = np.zeros((len(entries), len(codes)), dtype=np.float32)
    for byte in range(codes.shape[1]):
        low, high = codes[:, byte] & 15, codes[:, byte] >> 4
        total += entries[:, byte, 0][:, low] + entries[:, byte, 1][:, high]
    return total


# ---- codes in each layout ----


def bitset(allowed):
    words = np.zeros(-(-len(allowed) // 64), dtype=np.uint64)
    packed = np.packbits(allowed, bitorder="little")
    words.view(np.uint8)[: len(packed)] = packed
    return words


def off_alignment(x, offset):
    """The same array, some bytes after an aligned address."""
    memory = np.empty(x.nbytes + 128, dtype=np.uint8)
    start = -memory.ctypes.data % 64 + offset
    moved = memory[start : start + x.nbytes].reshape(x.shape)
    moved[...] = x
    return moved


def rows_of(core, codes, cuts, allowed, blocked, offset, firsts=()):
    """Parts of codes as the core takes them; every other part in the other layout."""
    parts = []
    for number, (some, may) in enumerate(zip(np.split(codes, cuts), np.split(allowed, cuts), strict=True)):
        n, width = some.shape
        if blocked ^ (number % 2 == 1):
            blocks = np.full((-(-n // 64), 64 * width), 0xA5, dtype=np.uint8)
            core.to_blocks(np.ascontiguousarray(some), blocks)
            stored = off_alignment(blocks, offset)
        else:
            stored = off_alignment(some, offset)
        first = firsts[number] if len(firsts) else None
        layout = bool(blocked ^ (number % 2 == 1))
        parts.append(core.Rows(stored, n, layout, None if may.all() else bitset(may), first))
    return parts


@st.composite
def problems(draw):
    """Codes with ties and duplicates, queries, parts, rows that may be found."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, width, q = draw(st.integers(0, 400)), draw(WIDTHS), draw(st.integers(1, 19))
    distinct = draw(st.sampled_from([1, 7, 400]))
    codes = rng.integers(0, 256, (distinct, width), dtype=np.uint8)[rng.integers(0, distinct, n)]
    if draw(st.booleans()):
        codes &= rng.integers(0, 2, width, dtype=np.uint8) * 255
    queries = rng.integers(0, 256, (q, width), dtype=np.uint8)
    if n and draw(st.booleans()):
        queries[0], queries[-1] = codes[-1], ~codes[0]
    cuts = sorted(rng.integers(0, n + 1, draw(st.integers(0, 3))).tolist())
    allowed = rng.random(n) < draw(st.sampled_from([0.0, 0.02, 0.5, 1.0]))
    for begin, end in zip([0, *cuts], [*cuts, n], strict=True):
        allowed[begin:end] &= rng.random() < 0.8  # no row of some parts
    return rng, codes, queries, cuts, allowed, draw(st.booleans()), draw(st.integers(0, 17))


@ANY
@given(problem=problems(), k=st.integers(1, 450), threads=st.integers(1, 5))
def test_nearest(core, problem, k, threads):
    _, codes, queries, cuts, allowed, blocked, offset = problem
    d, rows = np.full((len(queries), k), 9999, dtype=np.int32), np.full((len(queries), k), -1, dtype=np.int64)
    core.nearest(rows_of(core, codes, cuts, allowed, blocked, offset), queries, d, rows, threads)
    all_d = all_distances(queries, codes)
    np.testing.assert_array_equal(rows, least(all_d, k, allowed))
    wanted = np.where(rows >= 0, np.take_along_axis(np.pad(all_d, ((0, 0), (0, 1))), rows, axis=1), 9999)
    np.testing.assert_array_equal(d, wanted)


@ANY
@given(problem=problems(), radius=st.integers(0, 1100), threads=st.integers(1, 5))
def test_within(core, problem, radius, threads):
    _, codes, queries, cuts, allowed, blocked, offset = problem
    found = core.within(rows_of(core, codes, cuts, allowed, blocked, offset), queries, radius, threads)
    all_d = all_distances(queries, codes)
    query, row = np.nonzero((all_d <= radius) & allowed)
    wanted = sorted(zip(query.tolist(), all_d[query, row].tolist(), row.tolist(), strict=True))
    assert sorted(zip(*(x.tolist() for x in found), strict=True)) == wanted


@ANY
@given(
    problem=problems(),
    k=st.integers(1, 450),
    threads=st.integers(1, 5),
    kind=st.sampled_from(["normal", "whole", "steep", "equal", "tiny", "huge"]),
)
def test_least(core, problem, k, threads, kind):
    rng, codes, queries, cuts, allowed, blocked, offset = problem
    entries = rng.standard_normal((len(queries), codes.shape[1], 2, 16))
    if kind in ("steep", "tiny", "huge"):
        low, high = {"steep": (-12, 12), "tiny": (-44, -38), "huge": (30, 38)}[kind]
        entries *= 10.0 ** rng.integers(low, high, (1, codes.shape[1], 1, 1))
    with np.errstate(all="ignore"):
        entries = (np.round(entries) if kind == "whole" else entries * (kind != "equal")).astype(np.float32)
        all_scores = sums(entries, codes)
    all_scores = np.where(np.isnan(all_scores), np.float32(np.inf), all_scores)
    scores = np.full((len(queries), k), np.inf, dtype=np.float32)
    rows = np.full(scores.shape, -1, dtype=np.int64)
    core.least(rows_of(core, codes, cuts, allowed, blocked, offset), entries, scores, rows, threads)
    np.testing.assert_array_equal(rows, least(all_scores, k, allowed))
    wanted = np.where(rows >= 0, np.take_along_axis(np.pad(all_scores, ((0, 0), (0, 1))), rows, axis=1), np.inf)
    np.testing.assert_array_equal(scores, wanted)


@ANY
@given(problem=problems(), k=st.integers(1, 450), keep=st.sampled_from([1, 20, 10**9]), threads=st.integers(1, 5))
def test_cells(core, problem, k, keep, threads):
    """All rows scored: the k least. Some of them: rows in order, as many as there are, with their own scores."""
    rng, codes, queries, cuts, allowed, blocked, offset = problem
    tables = rng.standard_normal((len(queries), codes.shape[1], 256)).astype(np.float32)
    scores = np.full((len(queries), k), np.inf, dtype=np.float32)
    rows = np.full(scores.shape, -1, dtype=np.int64)
    core.cells(rows_of(core, codes, cuts, allowed, blocked, offset), tables, keep, scores, rows, threads)
    all_scores = np.zeros((len(queries), len(codes)), dtype=np.float32)
    for byte in range(codes.shape[1]):
        all_scores += tables[:, byte][:, codes[:, byte]]
    if keep == 10**9:
        np.testing.assert_array_equal(rows, least(all_scores, k, allowed))
    assert ((rows >= 0).sum(axis=1) == min(k, allowed.sum())).all()
    for found, score, wanted in zip(rows, scores, all_scores, strict=True):
        found = found[found >= 0]
        assert allowed[found].all()
        assert len(set(found.tolist())) == len(found)
        np.testing.assert_array_equal(score[: len(found)], wanted[found])
        np.testing.assert_array_equal(np.lexsort((found, wanted[found])), np.arange(len(found)))


@ANY
@given(problem=problems(), k=st.integers(1, 450), threads=st.integers(1, 3))
def test_parts_say_at_which_place_they_begin(core, problem, k, threads):
    """The answers are those of parts one after the other, with places for rows."""
    rng, codes, queries, cuts, allowed, blocked, offset = problem
    sizes = np.diff([0, *cuts, len(codes)])
    gaps = rng.choice([0, 1, 64, 1 << 40], len(sizes))
    firsts = (np.cumsum(sizes + gaps) - sizes).tolist()
    place = np.append(np.arange(len(codes)) + np.repeat(np.cumsum(gaps), sizes), -1)
    entries = np.round(rng.standard_normal((len(queries), codes.shape[1], 2, 16))).astype(np.float32)
    tables = rng.standard_normal((len(queries), codes.shape[1], 256)).astype(np.float32)

    def answers(firsts):
        parts = rows_of(core, codes, cuts, allowed, blocked, offset, firsts)
        found = []
        for search, dtype, *arguments in (
            (core.nearest, np.int32, queries),
            (core.least, np.float32, entries),
            (core.cells, np.float32, tables, 20),
        ):
            near = np.zeros((len(queries), k), dtype=dtype), np.full((len(queries), k), -1, dtype=np.int64)
            search(parts, *arguments, *near, threads)
            found.append(near)
        query, d, row = core.within(parts, queries, 3 * codes.shape[1], threads)
        order = np.lexsort((row, query))
        return [*found, (query[order], d[order], row[order])]

    for near, wanted in zip(answers(firsts), answers(()), strict=True):
        np.testing.assert_array_equal(near[-1], place[wanted[-1]])
        for values, same in zip(near[:-1], wanted[:-1], strict=True):
            np.testing.assert_array_equal(values, same)


@ANY
@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.integers(0, 40), max_size=70),
    width=st.sampled_from([0, 1, 8, 1500]),
    m=st.sampled_from([0, 1, 200, 2000]),
    threads=st.integers(1, 3),
)
def test_take(core, seed, sizes, width, m, threads):
    rng = np.random.default_rng(seed)
    parts = [rng.integers(0, 256, (n, width), dtype=np.uint8) for n in sizes]
    gaps = rng.integers(0, 3, len(sizes))
    firsts = np.cumsum(gaps + sizes).astype(np.int64) - np.array(sizes, dtype=np.int64)
    known = np.concatenate([[0][:0], *(first + np.arange(n) for first, n in zip(firsts, sizes, strict=True))])
    places = rng.choice(known, m if len(known) else 0).astype(np.int64)
    out = np.full((len(places), width), 0xA5, dtype=np.uint8)
    core.take(parts, firsts, places, out, threads)
    wanted = np.concatenate([np.zeros((0, width), np.uint8), *parts])[np.searchsorted(known, places)]
    np.testing.assert_array_equal(out, wanted)
    if len(places):
        unknown = rng.choice(np.setdiff1d([-1, *range(int(known[-1]) + 2), 1 << 62, -(1 << 63)], known))
        places[rng.integers(len(places))] = unknown
        with pytest.raises(ValueError, match=rf"place {unknown} is in none of the parts"):
            core.take(parts, firsts, places, out, threads)


def test_cells_of_near_groups_are_scored(core):
    """Rows that are near by their groups are found, whatever lies elsewhere; a sample that misleads costs no row."""
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((8, 16, 1)) * 3 + rng.standard_normal((8, 16, 16)) * 0.1
    codes = rng.integers(0, 256, (60_000, 8), dtype=np.uint8)
    tables = ((rng.standard_normal((5, 8, 1)) - centers.reshape(8, 256)) ** 2).astype(np.float32)
    all_scores = sum(tables[:, byte][:, codes[:, byte]] for byte in range(8))
    scores, rows = np.full((5, 10), np.inf, np.float32), np.full((5, 10), -1, np.int64)
    core.cells([core.Rows(codes, len(codes))], tables, 3000, scores, rows, 2)
    wanted = least(all_scores, 10, np.ones(len(codes), dtype=bool))
    assert np.mean([len(set(a) & set(b)) for a, b in zip(rows.tolist(), wanted.tolist(), strict=True)]) > 9.5
    codes[:] = 255
    codes[64 * 7 : 64 * 7 + 3] = 0
    core.cells([core.Rows(codes, len(codes))], tables, 12, scores, rows, 2)
    assert (rows >= 0).all()


@pytest.mark.parametrize("width", [1, 8, 21, 300])
def test_no_row_of_the_answer_is_passed_over(core, width):
    """Bounds hold for entries of any size and sign, all alike, or next to none in some bytes."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (20_000, width), dtype=np.uint8)
    codes[rng.integers(0, 20_000, 3000)] = codes[5]
    tables = rng.standard_normal((7, width, 256)).astype(np.float32)
    tables[1] = 3.0
    tables[2] *= 1e-30
    tables[3] *= 1e36
    tables[4, ::2] *= 1e-6
    tables[5] = 1e6 + tables[5]
    tables[6, 0, :50] = np.inf
    with np.errstate(all="ignore"):
        all_scores = np.zeros((7, 20_000), dtype=np.float32)
        for byte in range(width):
            all_scores += tables[:, byte][:, codes[:, byte]]
    scores, rows = np.full((7, 30), np.inf, np.float32), np.full((7, 30), -1, np.int64)
    core.cells([core.Rows(codes, len(codes))], tables, 10**9, scores, rows, 2)
    all_scores[np.isnan(all_scores)] = np.inf
    np.testing.assert_array_equal(rows, least(all_scores, 30, np.ones(len(codes), dtype=bool)))
    np.testing.assert_array_equal(scores, np.take_along_axis(all_scores, rows, axis=1))


@st.composite
def quantizers(draw):
    """Rows of each type, far from the origin or not, and cells, some of them equal."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, d, n_bytes, w = (draw(st.integers(1, most)) for most in (40, 40, 5, 20))
    X = rng.standard_normal((n, d)) * 5 + draw(st.sampled_from([0, 30]))
    name = draw(st.sampled_from(["float32", "float64", "float16", "uint8"]))
    X = X.clip(0, 255).round().astype(np.uint8) if name == "uint8" else X.astype(name)
    dtype = np.float64 if name == "float64" else np.float32
    mean, W = X.mean(axis=0).astype(dtype), (rng.standard_normal((d, n_bytes * w)) / d**0.5).astype(dtype)
    cells = rng.standard_normal((n_bytes, 256, w)).astype(dtype) * 4
    return X, mean, W, cells.take(rng.integers(0, draw(st.sampled_from([2, 256])), 256), axis=1)


@ANY
@given(problem=quantizers(), threads=st.integers(1, 3))
def test_quantize_finds_the_nearest_cells(core, problem, threads):
    X, mean, W, cells = problem
    n_bytes, _, w = cells.shape
    halves = np.ascontiguousarray((cells * cells).sum(axis=2) / 2)
    codes = np.full((len(X), n_bytes), 0xA5, dtype=np.uint8)
    assert core.quantize(X, mean, np.asfortranarray(W) if w % 2 else W, cells, halves, codes, threads)
    Y = ((X.astype(np.float64) - mean) @ W.astype(np.float64)).reshape(len(X), n_bytes, w)
    squares = ((Y[:, :, None] - cells.astype(np.float64)) ** 2).sum(axis=3)
    found = np.take_along_axis(squares, codes[:, :, None].astype(int), axis=2)[:, :, 0]
    size = (np.abs(X.astype(np.float64) - mean) @ np.abs(W)).max() + np.abs(cells).max()
    assert (found <= squares.min(axis=2) + 200 * np.finfo(cells.dtype).eps * size**2).all()
    # of equal cells, the first
    first = [
        [np.flatnonzero((book == book[c]).all(axis=1))[0] for book, c in zip(cells, row, strict=True)] for row in codes
    ]
    np.testing.assert_array_equal(codes, first)
    one = np.zeros((1, n_bytes), dtype=np.uint8)
    for i in (0, len(X) // 2, len(X) - 1):
        core.quantize(X[i : i + 1], mean, W, cells, halves, one, 1)
        np.testing.assert_array_equal(one[0], codes[i])


@ANY
@given(problem=quantizers(), threads=st.integers(1, 3))
def test_rotated_rows_are_quantized_and_added_up_by_cell(core, problem, threads):
    X, mean, W, cells = problem
    n_bytes, _, w = cells.shape
    Y, codes = np.ascontiguousarray((X - mean).astype(W.dtype) @ W), np.zeros((len(X), n_bytes), dtype=np.uint8)
    core.quantize(Y, None, None, cells, (cells * cells).sum(axis=2) / 2, codes, threads)
    squares = ((Y.reshape(len(X), n_bytes, 1, w).astype(np.float64) - cells) ** 2).sum(axis=3)
    found = np.take_along_axis(squares, codes[:, :, None].astype(int), axis=2)[:, :, 0]
    size = np.abs(Y).sum(axis=1).max() + np.abs(cells).max()
    assert (found <= squares.min(axis=2) + 200 * np.finfo(cells.dtype).eps * size**2).all()
    sums = np.ones((n_bytes, 256, w + 1))
    core.add_by_cell(codes, Y, sums, threads)
    for g in range(n_bytes):
        for cell in range(256):
            rows = Y.reshape(len(X), n_bytes, w)[codes[:, g] == cell, g].astype(np.float64)
            np.testing.assert_allclose(sums[g, cell, :w], 1 + rows.sum(axis=0), rtol=1e-9, atol=1e-9)
            assert sums[g, cell, w] == 1 + len(rows)


def test_quantize_reports_what_is_not_finite(core):
    X, W = np.ones((30, 7), np.float32), np.ones((7, 6), np.float32)
    cells, halves, codes = (
        np.zeros((2, 256, 3), np.float32),
        np.zeros((2, 256), np.float32),
        np.zeros((30, 2), np.uint8),
    )
    assert core.quantize(X, np.zeros(7, np.float32), W, cells, halves, codes, 2)
    for bad in (np.nan, np.inf, -np.inf):
        X[17, 5] = bad
        assert not core.quantize(X, np.zeros(7, np.float32), W, cells, halves, codes, 2)


def test_quantizers_that_do_not_fit_are_refused(core):
    f = np.float32
    right = {"X": np.zeros((5, 7), f), "mean": np.zeros(7, f), "W": np.zeros((7, 6), f)}
    right |= {"cells": np.zeros((2, 256, 3), f), "halves": np.zeros((2, 256), f), "codes": np.zeros((5, 2), np.uint8)}
    assert core.quantize(**right, threads=1)
    wrong = [
        ("X", np.zeros((5, 8), f)), ("X", np.zeros((5, 7))), ("X", np.zeros((4, 7), f)),
        ("X", np.zeros((5, 14), f)[:, ::2]), ("mean", np.zeros(6, f)), ("mean", np.zeros(7)), ("mean", None),
        ("W", np.zeros((7, 5), f)), ("W", None), ("cells", np.zeros((2, 255, 3), f)),
        ("cells", np.zeros((2, 256, 2), f)), ("cells", np.zeros((2, 256, 3), np.int32)),
        ("halves", np.zeros((2, 255), f)), ("halves", np.zeros((2, 256))), ("codes", np.zeros((5, 3), np.uint8)),
    ]  # fmt: skip
    for name, value in wrong:
        with pytest.raises((ValueError, TypeError)):
            core.quantize(**(right | {name: value}), threads=1)
    for sums in (np.zeros((2, 256, 3)), np.zeros((3, 256, 4)), np.zeros((2, 16, 4))):
        with pytest.raises(ValueError, match="sums"):
            core.add_by_cell(right["codes"], np.zeros((5, 6), f), sums, 1)


@ANY
@given(n=st.integers(0, 300), width=WIDTHS, seed=st.integers(0, 2**32))
def test_blocks_and_back(core, n, width, seed):
    codes = np.random.default_rng(seed).integers(0, 256, (n, width), dtype=np.uint8)
    blocks = np.full((-(-n // 64), 64 * width), 0xA5, dtype=np.uint8)
    core.to_blocks(codes, blocks)
    padded = np.zeros((len(blocks) * 64, width), dtype=np.uint8)
    padded[:n] = codes
    np.testing.assert_array_equal(blocks.reshape(-1, width, 64), padded.reshape(-1, 64, width).transpose(0, 2, 1))
    back = np.full_like(codes, 0xA5)
    core.to_rows(blocks, back)
    np.testing.assert_array_equal(back, codes)


def test_long_codes_and_many_rows(core):
    """Sums beyond 16 bits, chunks, more than one tile of queries, more rows than fit a chunk."""
    rng = np.random.default_rng(0)
    wide = rng.integers(0, 256, (130, 9000), dtype=np.uint8)
    entries = rng.standard_normal((3, 9000, 2, 16)).astype(np.float32)
    scores, rows = np.zeros((3, 7), dtype=np.float32), np.zeros((3, 7), dtype=np.int64)
    core.least([core.Rows(wide, 130)], entries, scores, rows, 2)
    np.testing.assert_array_equal(rows, least(sums(entries, wide), 7, np.ones(130, dtype=bool)))
    d, rows = np.zeros((3, 7), dtype=np.int32), np.zeros((3, 7), dtype=np.int64)
    core.nearest([core.Rows(wide, 130)], wide[:3] ^ np.uint8(1), d, rows, 2)
    np.testing.assert_array_equal(rows, least(all_distances(wide[:3] ^ np.uint8(1), wide), 7, np.ones(130, dtype=bool)))
    codes, queries = (rng.integers(0, 256, (m, 4), dtype=np.uint8) for m in (70_001, 131))
    for n in (1, 5, 131):
        d, rows = np.zeros((n, 30), dtype=np.int32), np.zeros((n, 30), dtype=np.int64)
        core.nearest([core.Rows(codes, 70_001)], queries[:n], d, rows, 2)
        np.testing.assert_array_equal(rows, least(all_distances(queries[:n], codes), 30, np.ones(70_001, dtype=bool)))


def test_distances_beyond_a_byte(core):
    """Codes of more than 31 bytes whose neighbors are far: sums in bytes would saturate."""
    codes = np.full((200, 64), 255, dtype=np.uint8)
    codes[100:, :30] = 0
    d, rows = np.zeros((1, 150), dtype=np.int32), np.zeros((1, 150), dtype=np.int64)
    core.nearest([core.Rows(codes, 200)], np.zeros((1, 64), dtype=np.uint8), d, rows, 1)
    assert rows[0].tolist() == [*range(100, 200), *range(50)]
    assert d[0].tolist() == [272] * 100 + [512] * 50


# ---- what is refused ----


def test_sizes_that_do_not_fit_are_refused(core):
    codes, d, rows = np.zeros((100, 4), np.uint8), np.zeros((2, 3), np.int32), np.zeros((2, 3), np.int64)
    queries, entries = np.zeros((2, 4), np.uint8), np.zeros((2, 4, 2, 16), np.float32)
    good, scores = core.Rows(codes, 100), np.zeros((2, 3), np.float32)
    refused = [
        (lambda: core.Rows(codes, 101), "fewer codes than rows"),
        (lambda: core.Rows(codes, -1), "at least 0"),
        (lambda: core.Rows(codes, 100, True), "fewer codes than rows"),
        (lambda: core.Rows(codes, 100, False, np.zeros(1, np.uint64)), "bitset is shorter"),
        (lambda: core.Rows(codes, 100, first=-1), "at least 0"),
        (lambda: core.Rows(codes, 100, first=2**63 - 50), "at least 0"),
        (lambda: core.nearest([good, core.Rows(codes, 1, first=99)], queries, d, rows, 1), "order of their places"),
        (lambda: core.take([codes], np.array([0, 9]), np.array([1]), codes[:1], 1), "one place for each part"),
        (lambda: core.take([codes], np.array([-1]), np.array([1]), codes[:1], 1), "order of their places"),
        (lambda: core.take([codes, codes], np.array([0, 99]), np.array([1]), codes[:1], 1), "order of their places"),
        (lambda: core.take([codes], np.array([0]), np.array([1]), codes[:2], 1), "one row for each place"),
        (lambda: core.take([codes], np.array([0]), np.array([1]), queries[:1, :3].copy(), 1), "the same width"),
        (lambda: core.nearest([good], queries[:, :3].copy(), d, rows, 1), "differ in width"),
        (lambda: core.nearest([good], queries, d, rows[:1], 1), "shape"),
        (lambda: core.nearest([good], queries, d, rows, 0), "threads"),
        (lambda: core.nearest([good], np.zeros((2, 0), np.uint8), d, rows, 1), "at least one byte"),
        (lambda: core.within([good], queries, -1, 1), "radius"),
        (lambda: core.least([good], entries[:, :, :, :8].copy(), scores, rows, 1), "entries"),
        (lambda: core.to_blocks(codes, np.zeros((1, 256), np.uint8)), "blocks must have the shape"),
        (lambda: core.to_rows(np.zeros((1, 256), np.uint8), codes), "blocks must have the shape"),
    ]
    for call, message in refused:
        with pytest.raises(ValueError, match=message):
            call()
    for wrong in (
        lambda: core.Rows(codes.astype(np.int8), 100),
        lambda: core.Rows(codes[:, ::2], 100),
        lambda: core.Rows(codes[0], 1),
        lambda: core.nearest([good], queries, d.astype(np.int64), rows, 1),
        lambda: core.nearest([None], queries, d, rows, 1),
        lambda: core.take([codes[:, ::2]], np.array([0]), np.array([1]), queries[:1, :2].copy(), 1),
        lambda: core.take([codes], np.array([0], np.int32), np.array([1]), queries[:1], 1),
        lambda: core.take(codes, np.array([0]), np.array([1]), queries[:1], 1),
        lambda: core.least([good], entries.astype(np.float64), scores, rows, 1),
    ):
        with pytest.raises((TypeError, ValueError)):
            wrong()


def test_no_rows_and_no_queries(core):
    d, rows = np.zeros((0, 3), np.int32), np.zeros((0, 3), np.int64)
    core.nearest([core.Rows(np.zeros((5, 2), np.uint8), 5)], np.zeros((0, 2), np.uint8), d, rows, 2)
    d, rows = np.full((2, 3), 7, np.int32), np.full((2, 3), -1, np.int64)
    core.nearest([core.Rows(np.zeros((0, 2), np.uint8), 0)], np.zeros((2, 2), np.uint8), d, rows, 2)
    core.nearest([], np.zeros((2, 2), np.uint8), d, rows, 2)
    assert (rows == -1).all()
    assert (d == 7).all()


# ---- threads, interrupts, children ----


def test_other_python_threads_run_meanwhile(core):
    codes, queries = np.zeros((200_000, 32), np.uint8), np.zeros((256, 32), np.uint8)
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    clock = threading.Thread(target=tick)
    clock.start()
    d, rows = np.zeros((256, 9), np.int32), np.zeros((256, 9), np.int64)
    begin = time.perf_counter()
    core.nearest([core.Rows(codes, len(codes))], queries, d, rows, 1)
    end = time.perf_counter()
    done.set()
    clock.join()
    assert len([tick for tick in ticks if begin < tick < end]) >= min(5, (end - begin) / 0.01)


INTERRUPTED = """
import conftest  # the build of the core that is under test
import os, signal, sys, threading, time
import numpy as np
from scq_gpu.kernels import native

codes, q = np.random.default_rng(0).integers(0, 256, (400_000, 128), dtype=np.uint8), int(sys.argv[1])
queries, d, rows = codes[:q].copy(), np.zeros((q, 9), np.int32), np.zeros((q, 9), np.int64)
parts = [native.core.Rows(codes, len(codes))] * 40
native.core.nearest(parts[:1], queries[:1], d[:1], rows[:1], 2)
sent = []
threading.Timer(0.2, lambda: (sent.append(time.perf_counter()), os.kill(os.getpid(), signal.SIGINT))).start()
try:
    native.core.nearest(parts, queries, d, rows, 2)
except KeyboardInterrupt:
    print(time.perf_counter() - sent[0])
"""


@pytest.mark.parametrize("queries", [1, 400])
def test_an_interrupt_ends_a_search(core, queries):
    command = [sys.executable, "-c", INTERRUPTED, str(queries)]
    # slow enough for the interrupt to come in the middle
    environment = os.environ | {"SCQ_CPU": "base", "PYTHONPATH": str(Path(__file__).parents[1])}
    restored = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    finally:
        signal.signal(signal.SIGINT, restored)
    assert done.returncode == 0, done.stderr
    # some 20 ms, and what a busy machine adds
    assert float(done.stdout) < 2


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_has_threads_of_its_own(core):
    """Forked while another thread searches: its pool and its locks are not the parent's."""
    codes, stop = np.random.default_rng(0).integers(0, 256, (50_000, 8), dtype=np.uint8), threading.Event()

    def search(n=4):
        d, rows = np.zeros((n, 3), np.int32), np.zeros((n, 3), np.int64)
        core.nearest([core.Rows(codes, len(codes))], codes[:n], d, rows, 3)
        return (d[:, 0] == 0).all()

    def go_on():
        while not stop.is_set():
            search()

    others = [threading.Thread(target=go_on) for _ in range(2)]
    for other in others:
        other.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                os._exit(0 if search() else 1)
            deadline = time.monotonic() + 60
            while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
                if time.monotonic() > deadline:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    pytest.fail("a forked child hangs in a search")
                time.sleep(0.005)
            assert ended[1] == 0
    finally:
        stop.set()
        for other in others:
            other.join()


FEW_THREADS = """
import conftest  # the build of the core that is under test
import resource
import numpy as np
from scq_gpu.kernels import native

codes = np.random.default_rng(0).integers(0, 256, (200_000, 8), dtype=np.uint8)
parts, d, rows = [native.core.Rows(codes, len(codes))], np.zeros((1, 3), np.int32), np.zeros((1, 3), np.int64)
used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize:")) << 10
resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20),) * 2)  # stacks of a few threads, not of a dozen
for _ in range(2):
    native.core.nearest(parts, codes[:1], d, rows, 400)
    assert (d[0, 0], rows[0, 0]) == (0, 0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process with Linux's /proc")
def test_a_search_does_with_the_threads_there_are(core):
    if os.environ.get("SCQ_NATIVE_BUILD"):
        pytest.skip("sanitizers take more addresses than the limit of this test leaves")
    environment = os.environ | {"SCQ_CPU": core.in_use(), "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", FEW_THREADS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
