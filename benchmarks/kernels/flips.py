"""Bits that differ from float64, per type and precision, on Gaussian data in the simulator: the table of docs/gpu.md.

python benchmarks/kernels/flips.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "tests")]

from cuda_on_cpu import SimulatedDevice  # noqa: E402
from cuda_on_cpu.cases import encode_case  # noqa: E402

N, D, N_BITS = 4096, 256, 128


def main() -> None:
    device = SimulatedDevice()
    print(f"n = {N}, d = {D}, {N_BITS} bits: {N * N_BITS} bits\n")
    print("| features | exact | accurate | fast |")
    print("|---|---|---|---|")
    for element in ("float32", "float16", "bfloat16"):
        flips = [
            encode_case(device, N, D, N_BITS, element=element, precision=precision) * N * N_BITS
            for precision in ("exact", "accurate", "fast")
        ]
        print(f"| {element} |", " | ".join(f"{count:.0f}" for count in flips), "|")


if __name__ == "__main__":
    main()
