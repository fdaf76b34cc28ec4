"""Kernels with one mistake each, and what must catch it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One mistake.

    Parameters
    ----------
    old, new
        Text in the source and what replaces it.
    case
        The case of `cuda_on_cpu.cases` that must fail.
    mode
        How the kernel is compiled.
    reason
        What the failed run must print.
    """

    old: str
    new: str
    case: str
    mode: str
    reason: str

    def apply(self, source: str) -> str:
        """Return the source with the mistake. An error is raised if the text is gone, so that no mutant goes stale."""
        if self.old not in source:
            raise LookupError(f"mutant text {self.old!r} is not in the source; update tests/cuda_on_cpu/mutants.py")
        return source.replace(self.old, self.new)


RACE = "ThreadSanitizer: data race"
OVERFLOW = "heap-buffer-overflow"
BEYOND = "heap-(buffer-overflow|use-after-free)|SEGV"
UNWAITED = "exited with asynchronous copies under way"
WRONG_BITS = "bits outside the error band"
UNFLAGGED = "not flagged"
LEAST = "least rows differ|a row that is not allowed"
DIFFER = "(top-k|range search) .* differ"
CELLS = "nearest cells differ"
BAND = "scores outside the error band"
LANDED = "        __syncthreads();  // this tile has landed"

MUTANTS: dict[str, Mutant] = {
    "encode: barrier removed": Mutant(LANDED, "// ", "exact-32", "tsan", RACE),
    "encode: wait off by one": Mutant(
        "COPY_WAIT(STAGES - 2);",
        "if (k_tile + 1 < k_tiles) COPY_WAIT(STAGES - 1); else COPY_WAIT(0);",
        "exact-64",
        "plain",
        WRONG_BITS,
    ),
    "encode: last wait missing": Mutant(
        "COPY_WAIT(STAGES - 2);",
        "COPY_WAIT(STAGES - 1);",
        "exact-64",
        "plain",
        UNWAITED,
    ),
    "encode: ring one stage short": Mutant("[k_tile % STAGES]", "[k_tile % (STAGES - 1)]", "exact-64", "tsan", RACE),
    "encode: row guard removed": Mutant("if (code_row < n)", "", "exact-32", "asan", OVERFLOW),
    "encode: byte guard removed": Mutant("if (byte >= n_bytes) return;", "", "exact-32", "plain", WRONG_BITS),
    "encode: column edge one too wide": Mutant(
        "A.columns - from_column, CHUNK", "A.columns - from_column + 1, CHUNK", "exact-32", "asan", OVERFLOW
    ),
    "encode: row edge one too wide": Mutant("from_row < A.rows", "from_row <= A.rows", "exact-32", "asan", OVERFLOW),
    "encode: padding bits not masked": Mutant(
        "8 * byte + j < n_bits && sum", "sum", "exact-32", "plain", "padding bits set"
    ),
    "encode: zero counts as negative": Mutant(
        "sum[i][j] >= threshold[j]", "sum[i][j] > threshold[j]", "zero", "plain", "sign of zero"
    ),
    "encode: alignment ignored": Mutant("A.vector && valid", "valid", "exact-32", "asan", "misaligned address"),
    "encode: threads leave before a barrier": Mutant(
        "    float sum[ROWS_PER_THREAD][8] = {};",
        "    if (row + down >= n) return;\n    float sum[ROWS_PER_THREAD][8] = {};",
        "exact-32",
        "plain",
        "after some threads have exited",
    ),
    "encode: row offset in 32 bits": Mutant(
        "A.data + from_row * A.stride", "A.data + int(from_row * A.stride)", "far-rows", "asan", "SEGV|overflow"
    ),
    "encode: flag forgotten": Mutant("if (!finite) atomicOr(flag, 1);", "", "nonfinite-exact", "plain", UNFLAGGED),
    "encode: flag of the last row only": Mutant(
        "finite &= is_finite(sum[i][j])", "finite = is_finite(sum[i][j])", "nonfinite-exact", "plain", UNFLAGGED
    ),
    "encode: flag raised without an atomic": Mutant("atomicOr(flag, 1)", "*flag = 1", "nonfinite-exact", "tsan", RACE),
    "mma: flag forgotten": Mutant("if (!finite) atomicOr(flag, 1);", "", "nonfinite-fast", "plain", UNFLAGGED),
    "mma: NaN of all ones rounded to zero": Mutant(
        "(FINITE || is_finite(__uint_as_float(x[i])) ? 0x1000u : 0u)",
        "0x1000u",
        "nonfinite-fast",
        "plain",
        "7fffffff at .* not flagged",
    ),
    "mma: wrong lane joins the bits": Mutant(
        "__shfl_xor_sync(0xffffffffu, word[r], 2)",
        "__shfl_xor_sync(0xffffffffu, word[r], 4)",
        "accurate",
        "plain",
        WRONG_BITS,
    ),
    "mma: fragment registers swapped": Mutant(
        "a_row(lane, r)][k + 8 * n + a_word(lane, r)]",
        "a_row(lane, r / 2 + r % 2 * 2)][k + 8 * n + a_word(lane, r / 2 + r % 2 * 2)]",
        "fast-half",
        "plain",
        WRONG_BITS,
    ),
    "mma: low half of X dropped": Mutant(
        "MMA_TF32(stage[i], a_low[n][i], b[n]);", "", "near-accurate", "plain", WRONG_BITS
    ),
    "mma: one accumulator for all columns": Mutant(
        "stage[i][e] = 0.f;",
        "stage[i][e] = sum[i][j][e], sum[i][j][e] = 0.f;",
        "sums",
        "plain",
        "worse than float32",
    ),
    "map: barrier removed": Mutant(
        "__syncthreads();  // every warp knows its largest", "// every warp", "map-half", "tsan", RACE
    ),
    "map: ties not to even": Mutant("+ (bits >> 16 & 1u)", "", "map-brain", "plain", "wrong map"),
    "quantize: barrier removed": Mutant(
        "__syncthreads();  // the cells are complete", "// the cells are complete", "quantize-12", "tsan", RACE
    ),
    "quantize: row guard of codes removed": Mutant("if (row < n) codes", "codes", "quantize-few", "asan", BEYOND),
    "quantize: row guard of rows removed": Mutant("row < n && k < width", "k < width", "quantize-32", "asan", BEYOND),
    "quantize: last columns of rows taken": Mutant("row < n && k < width", "row < n", "quantize-12", "asan", OVERFLOW),
    "quantize: last columns of cells taken": Mutant("= k < width ?", "= true ?", "quantize-12", "asan", OVERFLOW),
    "quantize: last of equal cells": Mutant("score[r] > best[r]", "score[r] >= best[r]", "quantize-12", "plain", CELLS),
    "quantize: lengths of cells left out": Mutant("= -s->half[c]", "= 0.f", "quantize-12", "plain", CELLS),
    "quantize: flag forgotten": Mutant("if (!finite) atomicOr(flag, 1);", "", "quantize-few", "plain", UNFLAGGED),
    "search: barrier removed": Mutant(LANDED, "// ", "search-50", "tsan", RACE),
    "search: atomic add missing": Mutant(
        "atomicAdd(&s->bin[place.slot + q][distance], 1u)",
        "++s->bin[place.slot + q][distance]",
        "search-8",
        "tsan",
        RACE,
    ),
    "search: histogram stored before all are counted": Mutant(
        "__syncthreads();  // all are counted\n    for (int i = threadIdx.x; i < QUERIES",
        "for (int i = threadIdx.x; i < QUERIES",
        "search-8",
        "tsan",
        RACE,
    ),
    "search: warp barrier removed": Mutant(
        "__syncwarp();  // all have read", "// all have read", "search-8", "tsan", RACE
    ),
    "search: tile edge ignored": Mutant("if (item + c < codes.plane) COPY16", "COPY16", "search-8", "asan", OVERFLOW),
    "search: query byte guard removed": Mutant(
        "query < codes.n_queries && byte < codes.n_bytes", "query < codes.n_queries", "search-50", "asan", OVERFLOW
    ),
    "search: ties by highest id": Mutant(
        "rank = __popc(peers & ((1u << lane) - 1))",
        "rank = __popc(peers >> lane) - 1",
        "search-8",
        "plain",
        DIFFER,
    ),
    "search: rank counts its own lane": Mutant(
        "before = (1u << place.lane) - 1", "before = (2u << place.lane) - 1", "search-50", "asan", OVERFLOW
    ),
    "search: equal distances of chunks not added up": Mutant(
        "at = min(at + count, limit);", "", "search-8", "plain", DIFFER
    ),
    "search: filter ignored": Mutant(
        "codes.allowed ? codes.allowed[item / 32] : ALL_LANES",
        "ALL_LANES",
        "search-8",
        "plain",
        DIFFER,
    ),
    "search: filter a word too far": Mutant(
        "codes.allowed[item / 32]", "codes.allowed[item / 32 + 1]", "search-8", "plain", DIFFER
    ),
    "search: items after the last are open": Mutant(
        "place.last - item < 32 ? open", "false ? open", "search-50", "plain", DIFFER
    ),
    "search: stretches of warps not added up": Mutant(
        "s->start[bin] + s->before[warp][bin]", "s->start[bin]", "search-8", "plain", DIFFER
    ),
    "search: results that are missing not filled in": Mutant(
        "int(min(s->found, limit)) + threadIdx.x", "k + threadIdx.x", "search-8", "plain", DIFFER
    ),
    "search: plan does not wait for the stretches": Mutant(
        "__syncthreads();  // the stretches are counted", "// counted", "search-8", "tsan", RACE
    ),
    "search: plan does not wait for their sums": Mutant(
        "__syncthreads();  // the stretches are added up", "// added up", "search-8", "tsan", RACE
    ),
    "search: plan does not wait for the prefix sums": Mutant(
        "__syncthreads();  // the prefix sums are there", "// prefix sums", "search-8", "tsan", RACE
    ),
    "few: query read before it is there": Mutant(
        "__syncthreads();  // the query is there\n", "\n", "search-few", "tsan", RACE
    ),
    "few: bins not empty in time": Mutant(
        "__syncthreads();  // the query is there, and the bins are empty", "// empty", "search-few", "tsan", RACE
    ),
    "few: hits of other warps not waited for": Mutant(
        "__syncthreads();  // every warp knows which have hits", "// which have hits", "search-few", "tsan", RACE
    ),
    "few: warps do not take turns": Mutant(
        "__syncthreads();  // the next warp goes on", "// the next warp goes on", "search-few", "tsan", RACE
    ),
    "few: one buffer of hits": Mutant("turn ^= 1;", "", "search-few-1024", "tsan", RACE),
    "few: counts of other warps not waited for": Mutant(
        "__syncthreads();  // every warp knows how many", "// how many", "search-few", "tsan", RACE
    ),
    "few: hits of later warps come first": Mutant(
        "w < place.warp ? s->hits", "w > place.warp ? s->hits", "search-few", "plain", "range search ids differ"
    ),
    "few: items after the last are read": Mutant(
        "open[j] >> place.lane & 1 ? words[32 * j] : 0", "words[32 * j]", "search-few", "asan", OVERFLOW
    ),
    "scores: barrier removed": Mutant(
        "__syncthreads();  // the tables are complete", "// the tables are complete", "scored-64", "tsan", RACE
    ),
    "scores: row guard off by one": Mutant(
        "min(n, first + chunk_items)", "min(n + 1, first + chunk_items)", "scored-64", "asan", OVERFLOW
    ),
    "scores: query guard removed": Mutant("if (q >= tile.queries) break;", "", "scored-64", "asan", OVERFLOW),
    "scores: bit guard off by one": Mutant(
        "4 * four + j < n_bits", "4 * four + j <= n_bits", "scored-20", "asan", OVERFLOW
    ),
    "scores: upper four bits of a byte forgotten": Mutant("[value >> 4]", "[0]", "scored-64", "plain", BAND),
    "scores: code stride in 32 bits": Mutant(
        "codes + item * code_stride", "codes + int(item * code_stride)", "far-codes", "asan", "SEGV|overflow"
    ),
    "scores: alignment ignored": Mutant(
        "(reinterpret_cast<size_t>(codes) | size_t(code_stride)) % 4 == 0",
        "true",
        "scored-unaligned",
        "asan",
        "misaligned address",
    ),
    "scores: negative scores the wrong way round": Mutant(
        "bits & 0x80000000u ? ~bits", "bits & 0x80000000u ? bits & 0x7fffffffu", "scored-20", "plain", LEAST
    ),
    "scores: filter ignored": Mutant(
        "allowed == nullptr ||", "true ||", "scored-20", "plain", "a row that is not allowed|padding is not"
    ),
    "cells: barrier removed": Mutant("__syncthreads();  // the tables are there", "// tables", "cells-8", "tsan", RACE),
    "cells: sums of the bytes before forgotten": Mutant("first_byte && q <", "false && q <", "cells-50", "plain", BAND),
    "cells: query guard removed": Mutant("q < tile.queries ? tables", "true ? tables", "cells-8", "asan", OVERFLOW),
    "select: bins not empty in time": Mutant(
        "__syncthreads();  // empty before the first is counted", "// empty", "scored-20", "tsan", RACE
    ),
    "select: bin looked for before all are counted": Mutant(
        "__syncthreads();  // all are counted", "// all are counted", "scored-20", "tsan", RACE
    ),
    "select: bin read before it is found": Mutant(
        "__syncthreads();  // the bin is found", "// the bin is found", "scored-20", "tsan", RACE
    ),
    "select: warps do not wait for one another's counts": Mutant(
        "__syncthreads();  // every warp knows", "// every warp knows", "scored-20", "tsan", RACE
    ),
    "select: atomic add missing": Mutant(
        "atomicAdd(&s->bin[(key & ~known) >> shift], 1u)",
        "s->bin[(key & ~known) >> shift] += 1",
        "scored-20",
        "tsan",
        RACE,
    ),
    "select: ties by highest row": Mutant(
        "equal + __popc(hits_equal & before)",
        "equal + __popc(hits_equal & ~before & ~mine)",
        "scored-ties",
        "plain",
        LEAST,
    ),
    "select: warps start at the same place": Mutant("equal += s->found[w][1];", "", "scored-20", "plain", LEAST),
    "select: cut off one after k": Mutant("at < wanted)", "at <= wanted)", "scored-ties", "asan", OVERFLOW),
    "select: rows of a piece counted from its start": Mutant(
        "first_row + start + item", "first_row + item", "scored-20", "plain", LEAST
    ),
    "select: rows of the pieces forgotten": Mutant("rows ? rows[from + item] :", "", "scored-20", "plain", LEAST),
    "select: missing results not filled in": Mutant(
        "for (int i = wanted + threadIdx.x; i < k;", "for (int i = k; i < k;", "scored-few", "plain", "padding is not"
    ),
    "order: tile read before it is complete": Mutant(
        "__syncthreads();  // the tile is complete", "// the tile is complete", "scored-64", "tsan", RACE
    ),
    "order: tile overwritten too early": Mutant(
        "__syncthreads();  // nobody still reads the last tile", "// the last tile", "scored-64", "tsan", RACE
    ),
    "order: ties by highest row": Mutant(
        "tile[i].row < own.row ||", "tile[i].row > own.row ||", "scored-ties", "plain", LEAST
    ),
    "order: k guard removed": Mutant("if (mine < k) {", "{", "scored-ties", "asan", OVERFLOW),
}
