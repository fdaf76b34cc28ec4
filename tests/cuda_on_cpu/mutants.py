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
LEAST = "least rows differ"
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
    "cells: barrier removed": Mutant(
        "__syncthreads();  // the cells are complete", "// the cells are complete", "cells-12", "tsan", RACE
    ),
    "cells: row guard of codes removed": Mutant("if (row < n) codes", "codes", "cells-few", "asan", BEYOND),
    "cells: row guard of rows removed": Mutant("row < n && k < width", "k < width", "cells-32", "asan", BEYOND),
    "cells: last columns of rows not left out": Mutant("row < n && k < width", "row < n", "cells-12", "asan", OVERFLOW),
    "cells: last columns of cells not left out": Mutant("= k < width ?", "= true ?", "cells-12", "asan", OVERFLOW),
    "cells: ties by highest cell": Mutant("score[r] > best[r]", "score[r] >= best[r]", "cells-12", "plain", CELLS),
    "cells: lengths of cells forgotten": Mutant("= -s->half[c]", "= 0.f", "cells-12", "plain", CELLS),
    "cells: flag forgotten": Mutant("if (!finite) atomicOr(flag, 1);", "", "cells-few", "plain", UNFLAGGED),
    "search: barrier removed": Mutant(LANDED, "// ", "search-50", "tsan", RACE),
    "search: atomic add missing": Mutant(
        "atomicAdd(&bins[q * BINS + distance], 1u)", "bins[q * BINS + distance] += 1", "search-8", "tsan", RACE
    ),
    "search: warp barrier removed": Mutant(
        "__syncwarp();  // all have read", "// all have read", "search-8", "tsan", RACE
    ),
    "search: tile edge ignored": Mutant("if (item + c < codes.plane) COPY16", "COPY16", "search-8", "asan", OVERFLOW),
    "search: ties by highest id": Mutant(
        "rank = __popc(peers & ((1u << place.lane) - 1))",
        "rank = __popc(peers >> place.lane) - 1",
        "search-8",
        "plain",
        "top-k ids differ",
    ),
    "search: rank counts its own lane": Mutant(
        "next[q] + __popc(hits & ((1u << place.lane) - 1))",
        "next[q] + __popc(hits & ((2u << place.lane) - 1))",
        "search-50",
        "asan",
        OVERFLOW,
    ),
    "search: equal distances of chunks not added up": Mutant(
        "at = min(at + count, limit);", "", "search-8", "plain", "top-k ids differ"
    ),
    "scores: barrier removed": Mutant(
        "__syncthreads();  // the tables are complete", "// the tables are complete", "scored-64", "tsan", RACE
    ),
    "scores: row guard off by one": Mutant(
        "min(n, first + CHUNK_ITEMS)", "min(n + 1, first + CHUNK_ITEMS)", "scored-64", "asan", OVERFLOW
    ),
    "scores: query guard removed": Mutant("if (q >= queries) break;", "", "scored-64", "asan", OVERFLOW),
    "scores: bit guard off by one": Mutant(
        "4 * four + j < n_bits", "4 * four + j <= n_bits", "scored-20", "asan", OVERFLOW
    ),
    "scores: upper four bits of a byte forgotten": Mutant("[byte >> 4]", "[0]", "scored-64", "plain", BAND),
    "scores: code stride in 32 bits": Mutant(
        "codes + item * code_stride", "codes + int(item * code_stride)", "far-codes", "asan", "SEGV|overflow"
    ),
    "scores: negative scores the wrong way round": Mutant(
        "bits & 0x80000000u ? ~bits", "bits & 0x80000000u ? bits & 0x7fffffffu", "scored-20", "plain", LEAST
    ),
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
    "select: cut off one after k": Mutant("at < k)", "at <= k)", "scored-ties", "asan", OVERFLOW),
}
