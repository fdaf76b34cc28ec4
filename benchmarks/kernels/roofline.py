"""Arithmetic from data-sheet peaks: the tables of docs/roofline.md. Predictions, not measurements.

python benchmarks/kernels/roofline.py
"""

from __future__ import annotations

from traffic import memory_bound_bits

# GB/s; dense TFLOP/s of float32, TF32 and float16 with float32 sums; from the vendor's data sheets, not measured
DEVICES: dict[str, tuple[float, float, float | None, float]] = {
    "A100 80GB SXM": (2039, 19.5, 156, 312),
    "H100 SXM": (3350, 66.9, 494.7, 989.4),
    "L4": (300, 30.3, 60.5, 121),
    "T4": (320, 8.1, None, 65),
    "RTX 4090": (1008, 82.6, 82.6, 165.2),
}
FFMA_SHARE, TENSOR_SHARE = 0.8, 0.7  # of the peak, that a good kernel reaches

# rows streamed from the host: GB/s of 16 lanes, of the standard; what a block asks of the driver (3 launches and copies
# of encode, 4 events and waits of the ring, the download of codes), each taken to hold the host for LAUNCH seconds
BUSES = {"PCIe 3.0 x16": 15.75, "PCIe 4.0 x16": 31.5, "PCIe 5.0 x16": 63.0}
BLOCK_BYTES, BLOCK_CALLS, LAUNCH = 128 << 20, 8, 10e-6


def print_streaming() -> None:
    """The share of launches in the time of a streamed block, and the block at which it is 5 %."""
    print("| | copy of a block, ms | driver calls, ms | share | 5 % at a block of |")
    print("|---|---|---|---|---|")
    calls = BLOCK_CALLS * LAUNCH
    for name, rate in BUSES.items():
        copy = BLOCK_BYTES / (1e9 * rate)
        smallest = calls / 0.05 * 1e9 * rate / 2**20
        print(f"| {name} | {1e3 * copy:.1f} | {1e3 * calls:.2f} | {calls / copy:.1%} | {smallest:.0f} MiB |")


def print_memory_bound_bits() -> None:
    """Up to how many bits encoding is bound by memory."""
    print("| | exact, float32 | fast, float32 | accurate, float32 | fast, float16 |")
    print("|---|---|---|---|---|")
    for name, (bandwidth, single, tf32, half) in DEVICES.items():
        peaks = (
            (FFMA_SHARE * single, 4),
            (TENSOR_SHARE * tf32, 4) if tf32 else None,
            (TENSOR_SHARE * tf32 / 3, 4) if tf32 else None,
            (TENSOR_SHARE * half, 2),
        )
        cells = (str(memory_bound_bits(1e9 * bandwidth, 1e12 * peak[0], peak[1])) if peak else "-" for peak in peaks)
        print(f"| {name} |", " | ".join(cells), "|")


# A sign pass over ROWS x COLUMNS projected float32 rows. L2 (MB) and the shared memory of a block (KB) are from data
# sheets. Assumed, for no data sheet has them: L2 gives three times what memory gives; a driver call takes CALL seconds.
CACHES = {"A100 80GB SXM": (40, 163), "H100 SXM": (50, 227), "L4": (48, 99), "RTX 4090": (72, 99)}
ROWS, COLUMNS = 1_000_000, 512
L2_FACTOR, CALL = 3, 5e-6
ACCUMULATOR_BYTES = 192 << 10  # of the 256 KiB of registers of a multiprocessor


def training_times(name: str, n_bits: int, *, tensor: bool) -> tuple[float, float, float | None]:
    """Seconds of a sign pass: two products over tall blocks, over blocks that stay in L2, and both in one kernel."""
    bandwidth, single, tf32, _ = DEVICES[name]
    l2, shared = CACHES[name]
    rate, flops = 1e9 * bandwidth, 1e12 * (TENSOR_SHARE * (tf32 or 0) if tensor else FFMA_SHARE * single)
    product = 2 * ROWS * COLUMNS * n_bits / flops
    rows, bits = 4 * ROWS * COLUMNS, 4 * ROWS * n_bits  # bytes of X; of X V, and of its signs
    tall = 2 * max((rows + bits) / rate, product) + 2 * bits / rate
    second = max((rows + bits) / (L2_FACTOR * rate), product) + 2 * bits / (L2_FACTOR * rate)
    calls = 4 * CALL * rows / (l2 * 1e6 / 2)  # product, sign, product and sum for each block
    in_cache = max(max(rows / rate, product) + second, calls)
    # one kernel: two tiles of rows in shared memory, X'B in registers, V from L2 once for each tile
    tile = shared * 1024 // 2 // (4 * COLUMNS) // 16 * 16
    if not tile or 4 * COLUMNS * n_bits > ACCUMULATOR_BYTES:
        return tall, in_cache, None
    return tall, in_cache, max(rows / rate, rows * (1 + n_bits / tile) / (L2_FACTOR * rate), 2 * product)


def print_training() -> None:
    """Whether one kernel for both products of a sign pass would pay."""
    print("| | arithmetic | bits | tall blocks, ms | blocks in L2, ms | one kernel, ms |")
    print("|---|---|---|---|---|---|")
    for name in CACHES:
        for tensor in (False, True):
            for n_bits in (32, 64, 128):
                times = (f"{1e3 * t:.1f}" if t else "-" for t in training_times(name, n_bits, tensor=tensor))
                print(f"| {name} | {'TF32' if tensor else 'float32'} | {n_bits} |", " | ".join(times), "|")


def main() -> None:
    for table in (print_memory_bound_bits, print_streaming, print_training):
        table()
        print()


if __name__ == "__main__":
    main()
