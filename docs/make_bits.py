"""The README's picture, from docs/results/state_of_the_art.csv: mean and spread of mAP against bits.

python docs/make_bits.py
"""

import csv
import statistics
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import scq_gpu as scq

DOCS = Path(__file__).parent
METHODS = {"OgE, joint": "OgE", "OgE, columnwise": "OgE, the paper's solver", "ITQ": "ITQ", "LSH": "LSH"}


def main() -> None:
    runs: dict[tuple[str, int], list[float]] = {}
    with (DOCS / "results" / "state_of_the_art.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            runs.setdefault((row["method"], int(row["bits"])), []).append(float(row["mAP"]))
    bits = sorted(set.intersection(*({b for m, b in runs if m == method} for method in METHODS)))
    figure, axis = plt.subplots(figsize=(6.4, 3.6))
    for (method, label), marker in zip(METHODS.items(), "oDsv", strict=True):
        found = [runs[method, b] for b in bits]
        spreads = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in found]
        axis.errorbar(
            bits, [statistics.fmean(values) for values in found], spreads, marker=marker, capsize=2, label=label
        )
    axis.set(xscale="log", xticks=bits, xticklabels=bits, xlabel="bits a vector", ylabel="mAP", ylim=(0, 85))
    axis.minorticks_off()
    axis.set_title(f"CIFAR-10, 1280-D CNN features (scq_gpu {scq.__version__})", fontsize="medium")
    axis.grid(alpha=0.3)
    axis.legend(loc="upper center", ncols=4, fontsize="small", frameon=False)
    figure.tight_layout()
    figure.savefig(DOCS / "images" / "bits.png", dpi=120)


if __name__ == "__main__":
    main()
