"""Which kernel runs, in which tiles, with how much shared memory: plain data, from pure functions.

The sizes here and the structs in the .cu files describe the same shared memory; the tests run the kernels under
AddressSanitizer with exactly these sizes.
"""

from __future__ import annotations

import dataclasses
from typing import Final, Literal

Precision = Literal["exact", "accurate", "fast"]

THREADS: Final = 256
ELEMENT_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
TILE_WIDTHS: Final = (32, 64, 128)
MAX_BITS: Final = 1024
"""Longest code the Hamming kernels take; encoding has no limit."""
MAX_K: Final = 65536
MAX_CHUNKS: Final = 256
WORKSPACE_BYTES: Final = 64 << 20
SCORE_BYTES: Final = 1 << 30
"""Most memory that the scores of an asymmetric search take at a time."""
TABLE_BYTES: Final = 48 << 10
"""Shared memory every device gives unasked."""
MAX_SCORED_BYTES: Final = TABLE_BYTES // 128
"""Longest code the asymmetric kernels take: the tables of one query fill shared memory."""


def ceil_div(a: int, b: int) -> int:
    """The quotient, rounded up."""
    return -(-a // b)


@dataclasses.dataclass(frozen=True)
class EncodeVariant:
    """One compiled form of encode.cu (exact) or encode_mma.cu (the others).

    Parameters
    ----------
    element : {"float32", "float16", "bfloat16"}
        Type of the features.
    tile_bits : int
        Bits a block computes: 32, 64 or 128.
    precision : {"exact", "accurate", "fast"}
        float32 multiply-adds; three TF32 passes; one pass of the tensor cores.
    """

    element: str
    tile_bits: int
    precision: Precision

    @property
    def source(self) -> str:
        """The kernel file."""
        return "encode.cu" if self.precision == "exact" else "encode_mma.cu"

    @property
    def kernel(self) -> str:
        """The kernel's name in that file."""
        return "encode_exact" if self.precision == "exact" else "encode_mma"

    @property
    def min_capability(self) -> int:
        """Oldest architecture, as 10 major + minor."""
        return 75 if self.precision == "exact" or self.element == "float16" else 80

    @property
    def tile_k(self) -> int:
        """Columns of X in a tile: 64 bytes of them, or 16 where W is float32 and X narrower."""
        return 16 if self.precision == "exact" else 64 // ELEMENT_BYTES[self.element]

    @property
    def rows_per_thread(self) -> int:
        """Rows a thread of the exact kernel owns: as many as its 128 registers hold."""
        if self.tile_bits < 128:
            return 4
        return 8 if self.element == "float32" else 6

    @property
    def tile_rows(self) -> int:
        """Rows a block computes."""
        return THREADS * 8 // self.tile_bits * self.rows_per_thread if self.precision == "exact" else 128

    @property
    def stages(self) -> int:
        """Tiles in the ring of copies; the exact kernel stays within the 48 KiB every device gives unasked."""
        return 2 if self.precision == "exact" and self.tile_bits != 64 else 3

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        x_bytes = ELEMENT_BYTES[self.element]
        w_bytes = 4 if self.precision == "exact" else x_bytes
        x_row, w_row = self.tile_k * x_bytes + 16, self.tile_k * w_bytes + 16
        return self.stages * (self.tile_rows * x_row + self.tile_bits * w_row)

    @property
    def defines(self) -> tuple[str, ...]:
        """Preprocessor definitions."""
        tile = (
            f"X_{self.element.upper()}",
            f"TILE_BITS={self.tile_bits}",
            f"TILE_K={self.tile_k}",
            f"STAGES={self.stages}",
        )
        if self.precision == "exact":
            return (f"X_{self.element.upper()}", *tile, f"ROWS_PER_THREAD={self.rows_per_thread}")
        return (f"X_{self.element.upper()}", *tile, f"PASSES={3 if self.precision == 'accurate' else 1}")

    def blocks(self, n: int, n_bits: int) -> int:
        """Blocks of the grid."""
        return ceil_div(n, self.tile_rows) * ceil_div(n_bits, self.tile_bits)


def encode_variant(element: str, n_bits: int, precision: Precision, capability: int) -> EncodeVariant:
    """The variant that encodes ``n_bits`` bits from features of type ``element``.

    Up to 128 bits one tile takes all of them, so that X is read once; beyond, of the two wider tiles the one that pads
    less. Narrow features have no three-pass form: "accurate" takes the exact kernel for them.
    """
    if precision == "accurate" and element != "float32":
        precision = "exact"
    single = [width for width in TILE_WIDTHS if width >= n_bits]
    width = single[0] if single else min(TILE_WIDTHS[1:], key=lambda width: (ceil_div(n_bits, width) * width, -width))
    variant = EncodeVariant(element, width, precision)
    if capability < variant.min_capability:
        raise RuntimeError(
            f"precision={precision!r} with {element} features needs compute capability "
            f"{variant.min_capability / 10} or newer; this device has {capability / 10}. Pass precision='exact'"
        )
    return variant


def encode_variants() -> list[EncodeVariant]:
    """Every variant that `encode_variant` can choose."""
    precisions: dict[str, tuple[Precision, ...]] = {
        "float32": ("exact", "accurate", "fast"),
        "float16": ("exact", "fast"),
        "bfloat16": ("exact", "fast"),
    }
    return [EncodeVariant(e, width, p) for e in precisions for p in precisions[e] for width in TILE_WIDTHS]


@dataclasses.dataclass(frozen=True)
class HammingVariant:
    """One compiled form of hamming.cu.

    Parameters
    ----------
    n_words : int
        32-bit words of a code: a power of two up to 32.
    """

    n_words: int
    source = "hamming.cu"
    min_capability = 75

    @property
    def queries_per_warp(self) -> int:
        """Queries a warp holds: as many as their histograms leave room for, besides the tiles, in 48 KiB."""
        return {1: 4, 2: 4, 4: 4, 8: 2}.get(self.n_words, 1)

    @property
    def queries(self) -> int:
        """Queries of a block."""
        return THREADS // 32 * self.queries_per_warp

    @property
    def tile_items(self) -> int:
        """Database items in a tile."""
        return min(256, 1024 // self.n_words)

    @property
    def bins(self) -> int:
        """Possible distances."""
        return 32 * self.n_words + 1

    @property
    def defines(self) -> tuple[str, ...]:
        """Preprocessor definitions."""
        return f"N_WORDS={self.n_words}", f"QUERIES_PER_WARP={self.queries_per_warp}", f"TILE_ITEMS={self.tile_items}"

    @property
    def kernels(self) -> dict[str, int]:
        """Kernel names and the bytes of shared memory they take."""
        scan = 4 * self.n_words * (2 * self.tile_items + self.queries)
        histograms = 4 * self.queries * self.bins
        return {
            "hamming_count": scan + histograms,
            "hamming_plan": 4 * self.bins,
            "hamming_collect": scan + histograms,
            "hamming_range_count": scan,
            "hamming_range_collect": scan,
        }

    def chunk_items(self, n: int) -> int:
        """Items of a chunk: whole tiles, at least 4096 items, at most `MAX_CHUNKS` chunks."""
        return max(4096, ceil_div(ceil_div(n, MAX_CHUNKS), self.tile_items) * self.tile_items)

    def chunks(self, n: int) -> int:
        """Chunks of a database of n items."""
        return ceil_div(n, self.chunk_items(n))

    def blocks(self, n: int, n_queries: int) -> int:
        """Blocks of the grid of every kernel but hamming_plan, which has one per query."""
        return self.chunks(n) * ceil_div(n_queries, self.queries)

    def query_batch(self, n: int, free: int) -> int:
        """Queries whose histograms fit into `WORKSPACE_BYTES` and a quarter of what is free: whole blocks of them."""
        per_query = 4 * self.chunks(n) * self.bins
        return max(1, min(WORKSPACE_BYTES, free // 4) // (per_query * self.queries)) * self.queries


def hamming_variant(n_bytes: int) -> HammingVariant:
    """The variant for codes of ``n_bytes`` bytes."""
    if not 1 <= n_bytes <= MAX_BITS // 8:
        raise ValueError(
            f"codes are {n_bytes} bytes wide; the Hamming kernels take 1 to {MAX_BITS // 8} bytes ({MAX_BITS} bits)"
        )
    return HammingVariant(1 << (ceil_div(n_bytes, 4) - 1).bit_length())


def hamming_variants() -> list[HammingVariant]:
    """Every variant that `hamming_variant` can choose."""
    return [HammingVariant(1 << i) for i in range(6)]


@dataclasses.dataclass(frozen=True)
class AsymmetricVariant:
    """One compiled form of asymmetric.cu.

    Parameters
    ----------
    queries : int
        Queries of a block of asymmetric_scores: 8, 4, 2 or 1.
    """

    queries: int
    source = "asymmetric.cu"
    min_capability = 75
    chunk_items = 4096
    kernels = ("asymmetric_scores", "asymmetric_select")

    @property
    def defines(self) -> tuple[str, ...]:
        """Preprocessor definitions."""
        return f"QUERIES={self.queries}", f"CHUNK_ITEMS={self.chunk_items}"

    def shared(self, n_bytes: int) -> tuple[int, int]:
        """Bytes of shared memory of both kernels: tables of 16 floats; a histogram, and counts of 8 warps."""
        return 2 * n_bytes * self.queries * 16 * 4, 4 * 2048 + 2 * 4 + 8 * 2 * 8

    def blocks(self, n: int, n_queries: int) -> int:
        """Blocks of the grid of asymmetric_scores; asymmetric_select has one per query."""
        return ceil_div(n, self.chunk_items) * ceil_div(n_queries, self.queries)

    def batches(self, n: int, n_queries: int, free: int) -> tuple[int, int]:
        """Queries and rows whose scores fit into `SCORE_BYTES` and a quarter of what is free.

        Whole blocks of queries; all rows, unless the scores of one block of queries then take too much.
        """
        scores = max(1, min(SCORE_BYTES, free // 4) // 4)
        rows = min(n, max(self.chunk_items, scores // min(self.queries, n_queries)))
        return max(1, scores // (rows * self.queries)) * self.queries, rows


def asymmetric_variant(n_bytes: int) -> AsymmetricVariant:
    """The variant for codes of ``n_bytes`` bytes: as many queries as have room for their tables, up to 8."""
    if not 1 <= n_bytes <= MAX_SCORED_BYTES:
        raise ValueError(f"codes are {n_bytes} bytes wide; the asymmetric kernels take 1 to {MAX_SCORED_BYTES} bytes")
    return next(v for v in asymmetric_variants() if v.shared(n_bytes)[0] <= TABLE_BYTES)


def asymmetric_variants() -> list[AsymmetricVariant]:
    """Every variant that `asymmetric_variant` can choose."""
    return [AsymmetricVariant(queries) for queries in (8, 4, 2, 1)]
