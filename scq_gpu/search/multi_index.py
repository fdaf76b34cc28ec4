"""Multi-index hashing: exact search within a small radius that reads few of the codes.

Cut a code into m chunks. If two codes differ in at most r bits, some chunk differs in few: with ``r = m r' + a``, one
of the first ``a + 1`` chunks differs in at most r' bits, or one of the others in at most ``r' - 1`` (else the codes
would differ in more than r bits). For each chunk it therefore suffices to visit the buckets of codes whose chunk is
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
from scq_gpu._core.machine import interruptible
from scq_gpu.kernels.hamming import as_words
from scq_gpu.search.state import split_rows

# Measured costs of a candidate, of a probe, and of building a table per code and chunk, in distances of a linear scan
_CANDIDATE = 128
_PROBE = 64
_BUILD = 256

# Fewer codes are scanned in microseconds
_MIN_ROWS = 1 << 17
_BLOCK_CANDIDATES = 1 << 22

Parts = list[np.ndarray]
Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Plan:
    """Cut of codes for a radius, and its expected costs in distances of a linear scan."""

    chunks: tuple[tuple[int, int], ...]  # first bit and number of bits of each
    radii: tuple[int, ...]  # largest distance of each chunk; -1 for a chunk that is not looked up
    query_cost: float
    build_cost: float


def choose_plan(parts: Parts, n_bits: int, radius: int) -> Plan | None:
    """Return the cheapest plan for this radius, or None if a linear scan is expected to be cheaper.

    Real codes fill buckets unevenly, so the number of candidates is estimated from pairs of sampled codes.
    """
    n = sum(len(part) for part in parts)
    if not _MIN_ROWS <= n < 1 << 31:
        return None
    # About 8192 codes
    stride = max(1, n >> 13)
    sample = np.concatenate([part[::stride] for part in parts])
    plans = [_cost(sample, n, cut(n_bits, m), radius) for m in range(1, min(n_bits, radius + 4) + 1)]
    best = min((p for p in plans if p is not None), key=lambda p: p.query_cost, default=None)
    return best if best is not None and best.query_cost < n else None


def cut(n_bits: int, m: int) -> tuple[tuple[int, int], ...]:
    """Return m chunks (first bit, number of bits) of nearly equal size."""
    edges = [n_bits * j // m for j in range(m + 1)]
    return tuple((lo, hi - lo) for lo, hi in pairwise(edges))


def chunk_radii(m: int, radius: int) -> tuple[int, ...]:
    """Return the distance up to which each of m chunks is looked up, -1 for not at all."""
    share, rest = divmod(radius, m)
    return tuple(share if j <= rest else share - 1 for j in range(m))


def _cost(sample: np.ndarray, n: int, chunks: tuple[tuple[int, int], ...], radius: int) -> Plan | None:
    radii = chunk_radii(len(chunks), radius)
    probes = sum(_ball(b, r) for (_, b), r in zip(chunks, radii, strict=True))
    # A table of 2^24 buckets takes 64 MB; cuts that need more than 2^14 probes per query are not considered
    if max(b for _, b in chunks) > 24 or probes > 1 << 14:
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
    """Return the number of b-bit keys within distance r of one."""
    return sum(math.comb(b, i) for i in range(r + 1))


def _masks(b: int, r: int) -> np.ndarray:
    """Return all b-bit keys with at most r bits set."""
    return np.array([sum(1 << i for i in bits) for size in range(r + 1) for bits in combinations(range(b), size)])


def keys(codes: np.ndarray, lo: int, b: int) -> np.ndarray:
    """Return bits lo..lo+b of packed codes as numbers (n,)."""
    first, last = lo // 8, (lo + b - 1) // 8
    value = codes[:, first].astype(np.uint32)
    for i in range(1, last - first + 1):
        value |= codes[:, first + i].astype(np.uint32) << np.uint32(8 * i)
    return (value >> np.uint32(lo % 8)) & np.uint32((1 << b) - 1)


def tables(
    made: dict[str, Any], parts: Parts, n_bits: int, radius: int, *, queries: int = 0, build: bool = False
) -> MultiIndex | None:
    """Return the tables for a radius, kept in ``made``, or None if a scan is the better choice.

    Tables are built once the scans that they would have saved have cost as much, or at once if ``build`` is set.
    """
    plans = made.setdefault("plans", {})
    if radius not in plans:
        plans[radius] = choose_plan(parts, n_bits, radius)
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
        # Codes of whole words are gathered as words: a view, and fewer elements to move
        whole = parts[0].shape[1] == 4 or parts[0].shape[1] % 8 == 0
        self._view = as_words if whole else np.asarray
        self._parts = [self._view(part) for part in parts]
        self._n = sum(map(len, parts))
        # First bit, number of bits and radius of the chunks that are looked up
        self._chunks = [(lo, b, r) for (lo, b), r in zip(plan.chunks, plan.radii, strict=True) if r >= 0]
        self._tables = [_table(np.concatenate([keys(part, lo, b) for part in parts]), b) for lo, b, _ in self._chunks]

    def within(self, queries: np.ndarray, radius: int) -> Pairs | None:
        """Return all pairs within a radius as (query, distance, row), or None if full buckets make a scan cheaper.

        ``radius`` is at most that of the plan.
        """
        masks = [_masks(b, r) for _, b, r in self._chunks]
        step = max(1, _BLOCK_CANDIDATES // sum(map(len, masks)))
        spent, none = 0.0, np.empty(0, dtype=np.int64)
        found: list[Pairs] = [(none, none.astype(np.int32), none)]
        for block in row_slices(len(queries), step):
            for j, ((lo, b, _), (firsts, rows)) in enumerate(zip(self._chunks, self._tables, strict=True)):
                # Starts and sizes (q, probes) of the buckets near each query
                near = keys(queries[block], lo, b).astype(np.int64)[:, None] ^ masks[j]
                starts = firsts[near].astype(np.int64)
                sizes = firsts[near + 1] - starts
                spent += _PROBE * sizes.size + _CANDIDATE * float(sizes.sum())
                if spent > self._n * len(queries):
                    return None
                for query, place in _places(starts, sizes):
                    found.append(self._check(queries, query + block.start, rows[place].astype(np.int64), j, radius))
        query, d, row = (np.concatenate(x) for x in zip(*found, strict=True))
        return query, d, row

    def _check(self, queries: np.ndarray, query: np.ndarray, row: np.ndarray, j: int, radius: int) -> Pairs:
        """Return the candidates of chunk j that lie within the radius and that no earlier chunk has found."""
        differ = self._view(queries).take(query, axis=0)
        differ ^= self._gather(row)
        d = np.bitwise_count(differ[:, 0]).astype(np.int32)
        for w in range(1, differ.shape[1]):
            d += np.bitwise_count(differ[:, w])
        near = np.flatnonzero(d <= radius)
        query, d, row, differ = query[near], d[near], row[near], differ[near].view(np.uint8)
        new = np.ones(len(near), dtype=bool)
        for lo, b, r in self._chunks[:j]:
            new &= np.bitwise_count(keys(differ, lo, b)).astype(np.int64) > r
        return query[new], d[new], row[new]

    def _gather(self, row: np.ndarray) -> np.ndarray:
        if len(self._parts) == 1:
            return self._parts[0].take(row, axis=0)
        out = np.empty((len(row), self._parts[0].shape[1]), dtype=self._parts[0].dtype)
        for codes, mine, where in split_rows(self._parts, row):
            out[where] = codes[mine]
        return out


def _places(starts: np.ndarray, sizes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the places in buckets of these starts and sizes as (query, place), in blocks that fit in memory."""
    filled = np.flatnonzero(sizes)
    query, start, size = filled // sizes.shape[1], starts.ravel()[filled], sizes.ravel()[filled]
    block = np.cumsum(size) // _BLOCK_CANDIDATES
    for part in np.split(np.arange(filled.size), np.flatnonzero(np.diff(block)) + 1):
        before = np.cumsum(size[part]) - size[part]
        place = np.arange(size[part].sum()) + np.repeat(start[part] - before, size[part])
        yield np.repeat(query[part], size[part]), place


def _table(key: np.ndarray, b: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the start of each bucket (2^b + 1,), and the rows in the order of their buckets."""
    starts = np.zeros((1 << b) + 1, dtype=np.int32)
    np.cumsum(np.bincount(key, minlength=1 << b), out=starts[1:])
    # Two passes over 16-bit digits, which NumPy sorts by counting
    order = np.argsort((key & np.uint32(0xFFFF)).astype(np.uint16), kind="stable")
    if b > 16:
        order = order[np.argsort((key[order] >> np.uint32(16)).astype(np.uint16), kind="stable")]
    return starts, order.astype(np.int32)
