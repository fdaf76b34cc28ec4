"""Up to how many bits encoding is bound by memory, from data-sheet peaks: the table of docs/roofline.md.

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


def main() -> None:
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


if __name__ == "__main__":
    main()
