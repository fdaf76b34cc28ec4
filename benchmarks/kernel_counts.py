"""Bytes and operations of the CUDA kernels as functions of the sizes, and tables of the docs that need no GPU.

    python benchmarks/kernel_counts.py          # the tables of docs/results/maintainers/kernels.md
    python benchmarks/kernel_counts.py --flips  # the bits that differ from float64, by the simulator: needs g++
    python benchmarks/kernel_counts.py --sums   # the errors of accurate sums, by the simulator: about two minutes

The byte counts are those of the instructions, exact and tested against the simulator's counters; they leave out what
caches save. No number here was measured on a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from scq_gpu.kernels.cuda.asymmetric import AsymmetricVariant
from scq_gpu.kernels.cuda.encode import ELEMENT_BYTES, EncodeVariant
from scq_gpu.kernels.cuda.hamming import HammingVariant
from scq_gpu.kernels.cuda.launch import THREADS, ceil_div
from scq_gpu.kernels.cuda.quantize import QuantizeVariant

# GB/s; dense TFLOP/s of float32, TF32 and float16 with float32 sums; from the vendor's data sheets
DEVICES: dict[str, tuple[float, float, float | None, float]] = {
    "A100 80GB SXM": (2039, 19.5, 156, 312),
    "H100 SXM": (3350, 66.9, 494.7, 989.4),
    "L4": (300, 30.3, 60.5, 121),
    "T4": (320, 8.1, None, 65),
    "RTX 4090": (1008, 82.6, 82.6, 165.2),
}
FFMA_SHARE, TENSOR_SHARE = 0.8, 0.7  # of the peak, that a good kernel reaches
# less where the other instructions of a loop take longer to issue than its products take: `tests/cuda_toolchain.py
# --issue` reads these shares of fast float32, accurate float32 and fast float16 from the machine code
ISSUE_SHARES = {"H100 SXM": (0.32, 0.59, 0.42)}

# Rows streamed from the host: GB/s of 16 lanes, of the standard. A block asks the driver for 3 launches and copies of
# encode, 4 events and waits of the ring, and the download of codes, each taken to hold the host for LAUNCH seconds.
BUSES = {"PCIe 3.0 x16": 15.75, "PCIe 4.0 x16": 31.5, "PCIe 5.0 x16": 63.0}
BLOCK_BYTES, BLOCK_CALLS, LAUNCH = 128 << 20, 8, 10e-6


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
    """Count one launch: X once for each tile of bits, W once for each tile of rows."""
    bit_tiles, row_tiles = ceil_div(n_bits, variant.tile_bits), ceil_div(n, variant.tile_rows)
    x_bytes = ELEMENT_BYTES[variant.element]
    exact = variant.precision == "exact"
    # threads of a block that read one threshold
    readers = variant.tile_rows // variant.rows_per_thread if exact else 32
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
    """Count the bytes that one walk over the database loads: from the database, and from queries of whole words."""
    # tiles are copied 16 bytes at a time; the variant for a few queries reads its items alone
    plane = n if variant.few else ceil_div(n, 4) * 4
    database = 4 * variant.n_words * plane * ceil_div(n_queries, variant.queries)
    return database, 4 * variant.n_words * n_queries * variant.chunks(n, n_queries)


@dataclasses.dataclass(frozen=True)
class AsymmetricTraffic:
    """What scoring n codes for some queries moves, and selecting the k least scores of each from one piece.

    Parameters
    ----------
    codes, gains : int
        Bytes asymmetric_scores loads.
    keys : int
        Bytes of all scores: stored once, loaded five times by asymmetric_select.
    lookups : int
        Words read from tables in shared memory.
    """

    codes: int
    gains: int
    keys: int
    lookups: int


def asymmetric_traffic(
    variant: AsymmetricVariant, n: int, n_bytes: int, n_bits: int, n_queries: int
) -> AsymmetricTraffic:
    """Count one block of rows and queries: codes once for each tile of queries."""
    tiles, chunks = ceil_div(n_queries, variant.queries), ceil_div(n, variant.chunk_items(n, n_queries))
    return AsymmetricTraffic(
        codes=n * n_bytes * tiles,
        gains=4 * n_bits * n_queries * chunks,
        keys=4 * n * n_queries,
        lookups=2 * n_bytes * n * tiles * variant.queries,
    )


@dataclasses.dataclass(frozen=True)
class QuantizeTraffic:
    """What finding the nearest of K cells for each byte of n rotated rows moves and computes.

    Parameters
    ----------
    rows, cells, halves : int
        Bytes loaded.
    codes : int
        Bytes stored.
    computed : int
        Operations, those with the zeros that fill cells up included.
    """

    rows: int
    cells: int
    halves: int
    codes: int
    computed: int


def quantize_traffic(variant: QuantizeVariant, n: int, n_bytes: int, K: int, w: int) -> QuantizeTraffic:
    """Count one launch: rows once, all cells once for each tile of rows."""
    tiles = variant.blocks(n, 1)
    rows = tiles * THREADS * variant.rows_per_thread
    return QuantizeTraffic(
        rows=4 * n * n_bytes * w,
        cells=4 * n_bytes * K * w * tiles,
        halves=4 * n_bytes * K * tiles,
        codes=n * n_bytes,
        computed=2 * rows * n_bytes * K * variant.width,
    )


def memory_bound_bits(bandwidth: float, flops: float, element_bytes: int) -> int:
    """Return the largest n_bits computed in the time to read X: 2 n d n_bits / flops <= n d bytes / bandwidth."""
    return int(flops * element_bytes / (2 * bandwidth))


def print_memory_bound_bits() -> None:
    """Print up to how many bits encoding is bound by memory."""
    print("| | exact, float32 | fast, float32 | accurate, float32 | fast, float16 |")
    print("|---|---|---|---|---|")
    for name, (bandwidth, single, tf32, half) in DEVICES.items():
        fast, accurate, fast_half = ISSUE_SHARES.get(name, (TENSOR_SHARE,) * 3)
        peaks = (
            (FFMA_SHARE * single, 4),
            (fast * tf32, 4) if tf32 else None,
            (accurate * tf32 / 3, 4) if tf32 else None,
            (fast_half * half, 2),
        )
        cells = (str(memory_bound_bits(1e9 * bandwidth, 1e12 * peak[0], peak[1])) if peak else "-" for peak in peaks)
        print(f"| {name} |", " | ".join(cells), "|")


def print_streaming() -> None:
    """Print the share of driver calls in the time of a streamed block, and the block at which it is 5 %."""
    print("| | copy of a block, ms | driver calls, ms | share | 5 % at a block of |")
    print("|---|---|---|---|---|")
    calls = BLOCK_CALLS * LAUNCH
    for name, rate in BUSES.items():
        copy = BLOCK_BYTES / (1e9 * rate)
        smallest = calls / 0.05 * 1e9 * rate / 2**20
        print(f"| {name} | {1e3 * copy:.1f} | {1e3 * calls:.2f} | {calls / copy:.1%} | {smallest:.0f} MiB |")


def print_flips(n: int = 4096, d: int = 256, n_bits: int = 128) -> None:
    """Print how many bits differ from float64, per type and precision, on Gaussian data in the simulator."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from cuda_on_cpu import SimulatedDevice
    from cuda_on_cpu.cases import encode_case

    device = SimulatedDevice()
    print(f"n = {n}, d = {d}, {n_bits} bits: {n * n_bits} bits\n")
    print("| features | exact | accurate | fast |")
    print("|---|---|---|---|")
    for element in ("float32", "float16", "bfloat16"):
        flips = [
            encode_case(device, n, d, n_bits, element=element, precision=precision) * n * n_bits
            for precision in ("exact", "accurate", "fast")
        ]
        print(f"| {element} |", " | ".join(f"{count:.0f}" for count in flips), "|")


def print_sums() -> None:
    """Print the errors of three TF32 passes, with the sums of tensor cores cut off, beside float32's."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from cuda_on_cpu import SimulatedDevice
    from cuda_on_cpu.mutants import MUTANTS
    from cuda_on_cpu.sums import sum_errors

    staged = SimulatedDevice()
    whole = SimulatedDevice(change=MUTANTS["mma: one accumulator for all columns"].apply)
    print("| d | float32, rms error | one accumulator: rms error | bias | one for 16 columns: rms error | bias |")
    print("|---|---|---|---|---|---|")
    for d in (256, 1024, 4096):
        plain, _ = sum_errors(None, d)
        cells = [f"{plain:.1e}"]
        for device in (whole, staged):
            error, bias = sum_errors(device, d, precision="accurate")
            cells += [f"{error:.1e}, {error / plain:.2f} x", f"{bias:.1e}"]
        print(f"| {d} |", " | ".join(cells), "|", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--flips", action="store_true", help="bits that differ from float64, in the simulator")
    parser.add_argument("--sums", action="store_true", help="errors of accurate sums, in the simulator")
    options = parser.parse_args()
    if options.flips or options.sums:
        print_flips() if options.flips else print_sums()
        return
    print_memory_bound_bits()
    print()
    print_streaming()


if __name__ == "__main__":
    main()
