"""Table "DH / UH-BDNN": CIFAR-10 GIST, 100 random queries a class, five random splits, 16 and 32 bits.

    python benchmarks/paper/gist_table.py --data DIR

Writes docs/results/gist_table.csv, .md and .png. The seed draws both the split and the start. Rows are added to the CSV
file as they come, and what is there is not run again; ``--fresh`` begins anew.
"""

from __future__ import annotations

import argparse
import datetime
import warnings
from pathlib import Path

import numpy as np
from methods import METHODS, SCRIPT_SCALE, SETTINGS
from protocols import Split, cifar10_gist
from published import GIST
from results import (
    arguments,
    mean_and_spread,
    new_figure,
    origin,
    read_rows,
    table,
    write_figure,
    write_page,
    write_rows,
)
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

import scq_gpu as scq

BITS = (16, 32)
NAMES = ("LSH", "ITQ", "OnE, columnwise", "OgE, columnwise", SCRIPT_SCALE, "OnE, joint", "OgE, joint")
METRICS = {"mAP": "mean_average_precision", "prec@r2": "precision_at_radius"}


def measure(split: Split, method: str, bits: int, seed: int) -> dict:
    encoder = METHODS[method].make(bits, seed).fit(split.X_train)
    data = (split.X_query, split.X, split.y_query, split.y)
    figures = scq.evaluate(encoder, *data, ap="trapezoid", recall=False).as_dict()
    row = {"method": method, "bits": bits, "seed": seed}
    row |= {metric: 100 * figures[name] for metric, name in METRICS.items()}
    row |= {"date": str(datetime.date.today()), "version": scq.__version__}
    print("  ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()), flush=True)
    return row


def add_rows(path: Path, options: argparse.Namespace) -> None:
    """Run what the file does not hold; write after each fit."""
    for seed in range(options.runs):
        done = {(row["method"], int(row["bits"]), int(row["seed"])) for row in read_rows(path)}
        wanted = [(m, b) for b in options.bits for m in NAMES if (m, b, seed) not in done]
        split = cifar10_gist(options.data, seed) if wanted else None
        for method, bits in wanted:
            write_rows(path, [*read_rows(path), measure(split, method, bits, seed)])


def gather(rows: list[dict[str, str]]) -> dict[tuple[str, int, str], list[float]]:
    """(method, bits, metric) -> one figure a run."""
    found: dict[tuple[str, int, str], list[float]] = {}
    for row in rows:
        for metric in METRICS:
            found.setdefault((row["method"], int(row["bits"]), metric), []).append(float(row[metric]))
    return found


def page(rows: list[dict[str, str]], options: argparse.Namespace) -> list[str]:
    """The blocks of the page."""
    found = gather(rows)
    bits, seeds = sorted({b for _, b, _ in found}), {int(row["seed"]) for row in rows}
    columns = [(metric, b) for metric in METRICS for b in bits]
    lines = [
        [name, *(_published(name, metric, b) for metric, b in columns), "the paper's figures"]
        for name in ("DH", "UH-BDNN")
    ]
    for method in NAMES:
        cells = []
        for metric, b in columns:
            theirs = _published(METHODS[method].published, metric, b)
            cells.append(mean_and_spread(found[method, b, metric]) + (f" ({theirs})" if theirs else ""))
        lines.append([method, *cells, "ours" + (" (the paper's)" if METHODS[method].published in GIST else "")])
    command = f"gist_table.py --data DIR --bits {' '.join(map(str, bits))} --runs {max(seeds) + 1}"
    return [
        "CIFAR-10, GIST 512-D; 100 random images a class ask, the other 59,000 are trained on and searched. Mean ± "
        f"standard deviation of {max(seeds) + 1} splits, in percent; the paper's figures in brackets.",
        origin(command, seeds=seeds, threads=options.threads),
        SETTINGS,
        "![mAP and prec@r2](gist_table.png)",
        table(["method", *(f"{metric}, {b} bits" for metric, b in columns), "whose"], lines),
    ]


def _published(name: str, metric: str, bits: int) -> str:
    figures = GIST.get(name, {}).get(bits)
    return "" if figures is None else f"{figures[list(METRICS).index(metric)]:.2f}"


def plot(rows: list[dict[str, str]], path: Path, *, pdf: bool) -> None:
    found = gather(rows)
    bits = sorted({b for _, b, _ in found})
    figure, axes = new_figure(1, len(METRICS), size=(11, 4.2))
    for axis, metric in zip(axes, METRICS, strict=True):
        for k, b in enumerate(bits):
            ours = [found[m, b, metric] for m in NAMES]
            places = np.arange(len(NAMES)) + 0.38 * k
            axis.bar(places, [np.mean(v) for v in ours], 0.36, yerr=[np.std(v) for v in ours], label=f"{b} bits")
            for place, m in zip(places, NAMES, strict=True):
                theirs = _published(METHODS[m].published, metric, b)
                if theirs:
                    axis.plot(place, float(theirs), "k_", markersize=14, markeredgewidth=2)
        axis.plot([], [], "k_", markersize=14, markeredgewidth=2, label="the paper's")
        axis.set_xticks(np.arange(len(NAMES)) + 0.19, [m.replace(", ", "\n") for m in NAMES], fontsize=8)
        axis.set(title=f"{metric}, percent")
        axis.grid(alpha=0.3, axis="y")
    axes[0].legend(loc="lower right")
    figure.suptitle("CIFAR-10, GIST 512-D", fontsize=11)
    write_figure(figure, path, pdf=pdf)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--bits", type=int, nargs="+", default=BITS)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--fresh", action="store_true", help="forget the rows that the CSV file holds")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    path = options.output / "gist_table.csv"
    if options.fresh:
        path.unlink(missing_ok=True)
    with threadpool_limits(options.threads):
        add_rows(path, options)
    rows = read_rows(path)
    write_page(options.output / "gist_table.md", "CIFAR-10 GIST, beside DH and UH-BDNN", *page(rows, options))
    plot(rows, options.output / "gist_table.png", pdf=options.pdf)


if __name__ == "__main__":
    main()
