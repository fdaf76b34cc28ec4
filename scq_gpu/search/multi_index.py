"""Multi-index hashing: exact search within a small radius without looking at most of the codes.

Cut a code into m chunks. If two codes differ in at most r bits, some chunk differs in few: with ``r = m r' + a``, one
of the first ``a + 1`` chunks differs in at most r' bits, or one of the others in at most ``r' - 1`` (else the codes
would differ in more than r bits). So it is enough to look, chunk by chunk, into the buckets of codes whose chunk lies
that near to the query's, and to check the codes found there in full.

Norouzi, Punjani, Fleet, "Fast exact search in Hamming space with multi-index hashing", TPAMI 2014.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from scq_gpu._core.arrays import row_slices
from scq_gpu._core.interrupt import interruptible
from scq_gpu.kernels.hamming import as_words

# Costs, in distances of a linear scan
_CANDIDATE = 128
_PROBE = 64
_BUILD = 256  # per code and chunk

_MIN_ROWS = 1 << 17  # below this a scan takes microseconds
_MAX_CHUNK = 24  # bits: a table of 2^24 buckets is 64 MB
_MAX_PROBES = 1 << 14
_BLOCK_CANDIDATES = 1 << 22
_SAMPLE = 1 << 13

Parts = list[np.ndarray]
Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Plan:
    """How to cut codes for a radius, and what that is expected to cost, in distances of a linear scan."""

    chunks: tuple[tuple[int, int], ...]  # first bit, number of bits
    radii: tuple[int, ...]  # how near a chunk must be; -1 for a chunk not looked up
    query_cost: float
    build_cost: float


def plan(parts: Parts, n_bits: int, radius: int) -> Plan | None:
    """The cheapest cut for this radius on these codes; None where a linear scan is expected to be cheaper.

    How full the buckets are is estimated from pairs of sampled codes, as real codes fill them unevenly.
    """
    n = sum(len(part) for part in parts)
    if not _MIN_ROWS <= n < 1 << 31:
        return None
    stride = max(1, n // _SAMPLE)
    sample = np.concatenate([part[::stride] for part in parts])
    plans = [_cost(sample, n, cut(n_bits, m), radius) for m in range(1, min(n_bits, radius + 4) + 1)]
    best = min((p for p in plans if p is not None), key=lambda p: p.query_cost, default=None)
    return best if best is not None and best.query_cost < n else None


def cut(n_bits: int, m: int) -> tuple[tuple[int, int], ...]:
    """Chunks (first bit, number of bits), m of them, as even as can be."""
    edges = [n_bits * j // m for j in range(m + 1)]
    return tuple((lo, hi - lo) for lo, hi in pairwise(edges))


def chunk_radii(m: int, radius: int) -> tuple[int, ...]:
    """How near each of m chunks must be looked up; -1 is not at all."""
    share, rest = divmod(radius, m)
    return tuple(share if j <= rest else share - 1 for j in range(m))


def _cost(sample: np.ndarray, n: int, chunks: tuple[tuple[int, int], ...], radius: int) -> Plan | None:
    radii = chunk_radii(len(chunks), radius)
    probes = sum(_ball(b, r) for (_, b), r in zip(chunks, radii, strict=True))
    if max(b for _, b in chunks) > _MAX_CHUNK or probes > _MAX_PROBES:
        return None
    candidates = 0.0
    for (lo, b), r in zip(chunks, radii, strict=True):
        if r >= 0:
            _, sizes = np.unique(keys(sample, lo, b), return_counts=True)
            same = (sizes * (sizes - 1.0)).sum() / max(1, len(sample) * (len(sample) - 1))
            candidates += n * max(same, 2.0**-b) * _ball(b, r)
    looked_up = sum(r >= 0 for r in radii)
    return Plan(chunks, radii, _PROBE * probes + _CANDIDATE * candidates, float(_BUILD * looked_up * n))


def _ball(b: int, r: int) -> int:
    """How many b-bit keys lie within distance r of one."""
    return sum(math.comb(b, i) for i in range(r + 1))


def _masks(b: int, r: int) -> np.ndarray:
    """All b-bit keys of at most r bits."""
    return np.array([sum(1 << i for i in bits) for size in range(r + 1) for bits in combinations(range(b), size)])


def keys(codes: np.ndarray, lo: int, b: int) -> np.ndarray:
    """Bits lo..lo+b of packed codes as numbers (n,)."""
    first, last = lo // 8, (lo + b - 1) // 8
    value = codes[:, first].astype(np.uint32)
    for i in range(1, last - first + 1):
        value |= codes[:, first + i].astype(np.uint32) << np.uint32(8 * i)
    return (value >> np.uint32(lo % 8)) & np.uint32((1 << b) - 1)


def tables(
    made: dict[str, Any], parts: Parts, n_bits: int, radius: int, *, queries: int = 0, build: bool = False
) -> MultiIndex | None:
    """The tables of codes for a radius, kept in ``made``; None where they do not help, or have not paid for themselves.

    They are built once the scans that they would have saved have cost as much, or at once if ``build`` says so.
    """
    plans = made.setdefault("plans", {})
    if radius not in plans:
        plans[radius] = plan(parts, n_bits, radius)
    chosen = plans[radius]
    if chosen is None:
        return None
    made["saved"] = made.get("saved", 0.0) + queries * (sum(map(len, parts)) - chosen.query_cost)
    built, found = made.get("tables", (-1, None))
    if built < radius and (build or made["saved"] > chosen.build_cost):
        made["tables"] = built, found = radius, interruptible(MultiIndex, parts, chosen)
    return found if radius <= built else None


class MultiIndex:
    """Buckets of rows by chunk, built for one plan."""

    def __init__(self, parts: Parts, plan: Plan) -> None:
        # rows are gathered as words where the codes are whole words: a view, and fewer elements to move
        whole = parts[0].shape[1] == 4 or parts[0].shape[1] % 8 == 0
        self._view = as_words if whole else np.asarray
        self._parts = [self._view(part) for part in parts]
        self._plan = plan
        self._firsts = np.cumsum([0, *(len(part) for part in parts)])
        self._tables = [
            _table(np.concatenate([keys(part, lo, b) for part in parts]), b) if r >= 0 else None
            for (lo, b), r in zip(plan.chunks, plan.radii, strict=True)
        ]

    def within(self, queries: np.ndarray, radius: int) -> Pairs | None:
        """All pairs within a radius as (query, distance, row); None if the buckets are so full that a scan is cheaper.

        ``radius`` is at most the one planned for.
        """
        masks = [_masks(b, r) for (_, b), r in zip(self._plan.chunks, self._plan.radii, strict=True)]
        step = max(1, _BLOCK_CANDIDATES // max(1, sum(len(m) for m in masks)))
        n, spent = int(self._firsts[-1]), 0.0
        found: list[Pairs] = []
        for block in row_slices(len(queries), step):
            for j, mask in enumerate(masks):
                starts, sizes = self._probe(queries[block], j, mask)
                spent += _PROBE * sizes.size + _CANDIDATE * float(sizes.sum())
                if spent > n * len(queries):
                    return None
                for query, row in self._candidates(starts, sizes, j):
                    query, d, row = self._check(queries, query + block.start, row, j, radius)
                    found.append((query, d, row))
        empty = np.empty(0, dtype=np.int64)
        found.append((empty, empty.astype(np.int32), empty))
        query, d, row = (np.concatenate(x) for x in zip(*found, strict=True))
        return query, d, row

    def _probe(self, queries: np.ndarray, j: int, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the buckets of chunk j near each query begin, and how full they are: (q, probes) twice."""
        table = self._tables[j]
        if table is None:
            none = np.zeros((len(queries), 0), dtype=np.int64)
            return none, none
        lo, b = self._plan.chunks[j]
        near = keys(queries, lo, b).astype(np.int64)[:, None] ^ mask
        starts = table[0][near].astype(np.int64)
        return starts, table[0][near + 1] - starts

    def _candidates(self, starts: np.ndarray, sizes: np.ndarray, j: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The rows in those buckets as (query, row), in blocks that fit in memory."""
        table = self._tables[j]
        filled = np.flatnonzero(sizes)
        if table is None or not filled.size:
            return
        query, start, size = filled // sizes.shape[1], starts.ravel()[filled], sizes.ravel()[filled]
        block = np.cumsum(size) // _BLOCK_CANDIDATES
        for part in np.split(np.arange(filled.size), np.flatnonzero(np.diff(block)) + 1):
            before = np.cumsum(size[part]) - size[part]
            place = np.arange(size[part].sum()) + np.repeat(start[part] - before, size[part])
            yield np.repeat(query[part], size[part]), table[1][place].astype(np.int64)

    def _check(self, queries: np.ndarray, query: np.ndarray, row: np.ndarray, j: int, radius: int) -> Pairs:
        """The candidates of chunk j that lie within the radius and that no earlier chunk has found."""
        differ = self._view(queries).take(query, axis=0)
        differ ^= self._gather(row)
        d = np.bitwise_count(differ[:, 0]).astype(np.int32)
        for w in range(1, differ.shape[1]):
            d += np.bitwise_count(differ[:, w])
        near = np.flatnonzero(d <= radius)
        query, d, row, differ = query[near], d[near], row[near], differ[near].view(np.uint8)
        new = np.ones(len(near), dtype=bool)
        for (lo, b), r in zip(self._plan.chunks[:j], self._plan.radii[:j], strict=True):
            new &= np.bitwise_count(keys(differ, lo, b)).astype(np.int64) > r
        return query[new], d[new], row[new]

    def _gather(self, row: np.ndarray) -> np.ndarray:
        if len(self._parts) == 1:
            return self._parts[0].take(row, axis=0)
        out = np.empty((len(row), self._parts[0].shape[1]), dtype=self._parts[0].dtype)
        part = np.searchsorted(self._firsts, row, side="right") - 1
        for i, codes in enumerate(self._parts):
            mine = part == i
            out[mine] = codes[row[mine] - self._firsts[i]]
        return out


def _table(key: np.ndarray, b: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each bucket begins (2^b + 1,), and the rows in the order of their buckets."""
    starts = np.zeros((1 << b) + 1, dtype=np.int32)
    np.cumsum(np.bincount(key, minlength=1 << b), out=starts[1:])
    # two passes over 16-bit digits: NumPy sorts those by counting
    order = np.argsort((key & np.uint32(0xFFFF)).astype(np.uint16), kind="stable")
    if b > 16:
        order = order[np.argsort((key[order] >> np.uint32(16)).astype(np.uint16), kind="stable")]
    return starts, order.astype(np.int32)
