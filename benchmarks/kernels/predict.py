"""Times of a fit and an encode by arithmetic, from counts, bytes and data-sheet rates: predictions, not measurements.

    python benchmarks/kernels/predict.py

prints the assumptions and the tables of docs/gpu.md. No GPU took part: `make bench-gpu` prints what one measures beside
what is predicted for it.
"""

from __future__ import annotations

import dataclasses

from roofline import DEVICES, FFMA_SHARE, TENSOR_SHARE

N, FEATURES, N_BITS = 1_000_000, 768, (64, 256)

# ---- assumed: no data sheet has these ----
MEMORY_SHARE = 0.85  # of the data sheet's memory rate, that long reads and writes reach
BUS_SHARE = 0.8  # of the rate of the bus, that copies from page-locked memory reach
HOST_COPY = 10e9  # bytes a second at which one thread of the host fills page-locked memory
CALL = 10e-6  # seconds of the host for a launch or a cuBLAS call through CuPy
WAIT = 20e-6  # seconds until the host goes on after a wait for the device
EIGH_FLOPS, EIGH_RATE = 9, 50e9  # operations of a float64 eigendecomposition over d^3, and their rate, on any device

# ---- counted, on the stand-in: `count_default_fit` of tests/cupy_on_cpu/counts.py, held by tests/kernels ----
FIT_CALLS = {64: 4340, 256: 15009}  # launches and cuBLAS calls of a default fit,
FIT_CALLS_PER_BLOCK = 132  # and more of them for each block of rows
FIT_WAITS, FIT_WAITS_PER_BLOCK = 74, 1  # the latter for rows in host memory
ENCODE_CALLS = 2
BLOCK_BYTES = 128 << 20  # of a block of rows (scq_gpu._core.devices.block_bytes)

# ---- of the default fit (scq_gpu.training.defaults, starts) ----
PASSES = 12 + 1  # iterations, and the pass for levels_
ROTATIONS, START_ROWS = 25, 50_000
GROUP_PASSES, GROUP_BITS = 24 + 1, 32  # over every other row of those of the start

# GB/s in one direction over 16 lanes, half of what the data sheets give for both
BUSES = {"A100 80GB SXM": 32, "H100 SXM": 64, "L4": 32, "RTX 4090": 32}
SHEETS = {
    "A100 80GB SXM": "NVIDIA A100 Tensor Core GPU data sheet",
    "H100 SXM": "NVIDIA H100 Tensor Core GPU data sheet; TF32 half of the rate with sparsity",
    "L4": "NVIDIA L4 Tensor Core GPU data sheet; TF32 half of the rate with sparsity",
    "RTX 4090": "NVIDIA Ada GPU Architecture white paper",
}


@dataclasses.dataclass(frozen=True)
class Rates:
    """What a device reaches: bytes a second of memory and bus, operations a second of float32 and TF32 products."""

    memory: float
    bus: float
    single: float
    tf32: float


@dataclasses.dataclass(frozen=True)
class FitTime:
    """Seconds of a fit, added up as if the host's calls never overlapped the device's work."""

    rows: float
    """Passes over all rows: moments, projection, sign passes; with the copy to the device where it takes longer."""
    start: float
    eigendecomposition: float
    calls: float

    @property
    def total(self) -> float:
        return self.rows + self.start + self.eigendecomposition + self.calls


def data_sheet_rates(name: str) -> Rates:
    """A device's rates by its data sheet, times the shares assumed above."""
    memory, single, tf32, _ = DEVICES[name]
    assert tf32 is not None
    bus = min(BUS_SHARE * 1e9 * BUSES[name], HOST_COPY)
    return Rates(1e9 * MEMORY_SHARE * memory, bus, 1e12 * FFMA_SHARE * single, 1e12 * TENSOR_SHARE * tf32)


def sign_pass(rates: Rates, n: int, d: int, n_bits: int) -> float:
    """Two products over the rows; signs are written and read, and summed."""
    rows, signs = 4 * n * d, 4 * n * n_bits
    product = max((rows + signs) / rates.memory, 2 * n * d * n_bits / rates.single)
    return 2 * product + 3 * signs / rates.memory


def predict_fit(rates: Rates, n: int, d: int, n_bits: int, *, on_device: bool) -> FitTime:
    """A default fit (OgE, preserve="neighbors") of float32 rows that fit on the device beside projected ones."""
    D = min(d, max(512, 2 * n_bits))
    X, Y = 4 * n * d, 4 * n * D
    # mean, difference (read and written) and its sum, then the product
    moments = 4 * X / rates.memory + max(X / rates.memory, 2 * n * d * d / rates.single)
    moments = moments if on_device else max(moments, X / rates.bus)
    projection = max((X + Y) / rates.memory, 2 * n * d * D / rates.single) + 2 * Y / rates.memory
    m = min(n, START_ROWS)
    start = (2 * 4 * m * D + 4 * m * (D + n_bits)) / rates.memory + ROTATIONS * sign_pass(rates, m, n_bits, n_bits)
    start += 2 * 4 * m * D / rates.memory + GROUP_PASSES * sign_pass(rates, m // 2, D, GROUP_BITS)
    blocks = -(-X // BLOCK_BYTES)
    waits = FIT_WAITS + (0 if on_device else FIT_WAITS_PER_BLOCK * blocks)
    return FitTime(
        rows=moments + projection + PASSES * sign_pass(rates, n, D, n_bits),
        start=start,
        eigendecomposition=EIGH_FLOPS * (d**3 + D**3) / EIGH_RATE,  # of the covariance, and of that drawn apart
        calls=CALL * (FIT_CALLS[n_bits] + FIT_CALLS_PER_BLOCK * blocks) + WAIT * waits,
    )


def predict_encode(rates: Rates, n: int, d: int, n_bits: int, *, on_device: bool, fast: bool = False) -> float:
    """Seconds of an encode of float32 rows: X read once (a second tile of bits finds it in L2), codes written."""
    X = 4 * n * d
    kernel = max((X + n * n_bits / 8) / rates.memory, 2 * n * d * n_bits / (rates.tf32 if fast else rates.single))
    return (kernel if on_device else max(kernel, X / rates.bus)) + ENCODE_CALLS * CALL + WAIT


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f}" if seconds >= 0.01 else f"{1e3 * seconds:.1f}"


def print_assumptions() -> None:
    print(f"Assumed: {MEMORY_SHARE:.0%} of the data sheet's memory rate, {FFMA_SHARE:.0%} of float32's and ", end="")
    print(
        f"{TENSOR_SHARE:.0%} of TF32's peak, {BUS_SHARE:.0%} of the bus; the host fills page-locked memory at ", end=""
    )
    print(f"{HOST_COPY / 1e9:.0f} GB/s; {1e6 * CALL:.0f} us per call, {1e6 * WAIT:.0f} us per wait; ", end="")
    print(f"an eigendecomposition takes {EIGH_FLOPS} d^3 operations at {EIGH_RATE / 1e9:.0f} GFLOP/s.\n")
    print("| | memory, GB/s | float32, TFLOP/s | TF32, TFLOP/s | bus, GB/s | from |\n|---|---|---|---|---|---|")
    for name, sheet in SHEETS.items():
        memory, single, tf32, _ = DEVICES[name]
        print(f"| {name} | {memory:.0f} | {single} | {tf32} | {BUSES[name]} | {sheet} |")


def print_times() -> None:
    print(f"Predicted ms, {N:,} x {FEATURES} float32 rows:\n")
    print("| | bits | fit, rows on the device | fit, rows from the host | encode on the device, exact | fast ", end="")
    print("| encode from the host |\n|---|---|---|---|---|---|---|")
    for name in SHEETS:
        rates = data_sheet_rates(name)
        for n_bits in N_BITS:
            fits = [predict_fit(rates, N, FEATURES, n_bits, on_device=here).total for here in (True, False)]
            kinds = ({"on_device": True}, {"on_device": True, "fast": True}, {"on_device": False})
            encodes = [predict_encode(rates, N, FEATURES, n_bits, **kind) for kind in kinds]
            print(f"| {name} | {n_bits} |", " | ".join(map(ms, fits + encodes)), "|")


def print_parts() -> None:
    print("Parts of the predicted fit, rows on the device, ms:\n")
    print("| | bits | passes over rows | start | eigendecomposition | calls and waits |\n|---|---|---|---|---|---|")
    for name in SHEETS:
        for n_bits in N_BITS:
            time = predict_fit(data_sheet_rates(name), N, FEATURES, n_bits, on_device=True)
            print(f"| {name} | {n_bits} |", " | ".join(map(ms, dataclasses.astuple(time))), "|")


def main() -> None:
    print("Predictions, by arithmetic; nothing here was measured on a GPU.\n")
    for part in (print_assumptions, print_times, print_parts):
        part()
        print()


if __name__ == "__main__":
    main()
