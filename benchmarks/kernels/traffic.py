"""Bytes and operations of the kernels as functions of the sizes, and the time a device needs at best.

The byte counts are those of the instructions, exact and tested against the simulator's counters; what caches save is
not in them. `docs/roofline.md` shows them.
"""

from __future__ import annotations

import dataclasses

from scq_gpu.kernels.cuda.geometry import ELEMENT_BYTES, AsymmetricVariant, EncodeVariant, HammingVariant, ceil_div


@dataclasses.dataclass(frozen=True)
class EncodeTraffic:
    """What encoding n rows of d features into n_bits bits moves and computes.

    Parameters
    ----------
    x, w, t : int
        Bytes loaded from X, W and t.
    codes : int
        Bytes stored.
    flops : int
        Useful operations, 2 n d n_bits.
    computed : int
        Operations the tiles compute: padding and, with "accurate", all three passes included.
    """

    x: int
    w: int
    t: int
    codes: int
    flops: int
    computed: int


def encode_traffic(variant: EncodeVariant, n: int, d: int, n_bits: int) -> EncodeTraffic:
    """Traffic of one launch: X once for each tile of bits, W once for each tile of rows."""
    bit_tiles, row_tiles = ceil_div(n_bits, variant.tile_bits), ceil_div(n, variant.tile_rows)
    x_bytes = ELEMENT_BYTES[variant.element]
    exact = variant.precision == "exact"
    readers = (
        variant.tile_rows // variant.rows_per_thread if exact else 32
    )  # threads of a block that read one threshold
    padded = (
        row_tiles * variant.tile_rows * ceil_div(d, variant.tile_k) * variant.tile_k * bit_tiles * variant.tile_bits
    )
    return EncodeTraffic(
        x=n * d * x_bytes * bit_tiles,
        w=n_bits * d * (4 if exact else x_bytes) * row_tiles,
        t=4 * n_bits * readers * row_tiles,
        codes=n * ceil_div(n_bits, 8),
        flops=2 * n * d * n_bits,
        computed=2 * padded * (3 if variant.precision == "accurate" else 1),
    )


def scan_bytes(variant: HammingVariant, n: int, n_queries: int) -> tuple[int, int]:
    """Bytes one walk over the database loads: from the database, once a tile of queries, and from the queries."""
    plane = ceil_div(n, 4) * 4
    database = 4 * variant.n_words * plane * ceil_div(n_queries, variant.queries)
    return database, 4 * variant.n_words * n_queries * variant.chunks(n)


@dataclasses.dataclass(frozen=True)
class AsymmetricTraffic:
    """What scoring n codes for some queries, and selecting the k least scores of each, moves.

    Parameters
    ----------
    codes, gains, factors, constants : int
        Bytes asymmetric_scores loads; ``factors`` those of offsets and of scales each.
    keys : int
        Bytes of all scores: stored once, loaded five times by asymmetric_select.
    lookups : int
        Words read from tables in shared memory.
    """

    codes: int
    gains: int
    factors: int
    constants: int
    keys: int
    lookups: int


def asymmetric_traffic(
    variant: AsymmetricVariant, n: int, n_bytes: int, n_bits: int, n_queries: int
) -> AsymmetricTraffic:
    """Traffic of one block of rows and queries: codes and factors once for each tile of queries."""
    tiles, chunks = ceil_div(n_queries, variant.queries), ceil_div(n, variant.chunk_items)
    return AsymmetricTraffic(
        codes=n * n_bytes * tiles,
        gains=4 * n_bits * n_queries * chunks,
        factors=4 * n * tiles,
        constants=4 * n * n_queries,
        keys=4 * n * n_queries,
        lookups=2 * n_bytes * n * tiles * variant.queries,
    )


def memory_bound_bits(bandwidth: float, flops: float, element_bytes: int) -> int:
    """Largest n_bits computed in the time it takes to read X: 2 n d n_bits / flops <= n d bytes / bandwidth."""
    return int(flops * element_bytes / (2 * bandwidth))
