"""The README's picture, from docs/results/state_of_the_art.csv: mAP against bits.

python docs/make_bits.py
"""

import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import scq_gpu as scq

DOCS = Path(__file__).parent
METHODS = ("OgE, joint", "ITQ", "LSH")


def main() -> None:
    with (DOCS / "results" / "state_of_the_art.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["method"] in METHODS and row["seed"] == "0"]
    points = {
        method: {int(row["bits"]): float(row["mAP"]) / 100 for row in rows if row["method"] == method}
        for method in METHODS
    }
    bits = sorted(set.intersection(*(set(found) for found in points.values())))
    figure, axis = plt.subplots(figsize=(6.4, 3.6))
    for method, marker in zip(METHODS, "osv", strict=True):
        axis.plot(bits, [100 * points[method][b] for b in bits], marker=marker, label=method.removesuffix(", joint"))
    axis.set(xscale="log", xticks=bits, xticklabels=bits, xlabel="bits a vector", ylabel="mAP", ylim=(0, 75))
    axis.minorticks_off()
    axis.set_title(f"CIFAR-10, 1280-D CNN features (scq_gpu {scq.__version__})", fontsize="medium")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.tight_layout()
    figure.savefig(DOCS / "images" / "bits.png", dpi=120)


if __name__ == "__main__":
    main()
