"""Table "state of the art": mAP, prec@r2 and prec@1k of every method and length, by the paper's protocol.

    python benchmarks/paper/state_of_the_art.py --data DIR

CIFAR-10 unless ``--dataset`` names another of protocols.py. The whole takes hours, so results are added to
docs/results/state_of_the_art.csv as they come, and what is there is not run again, unless ``--again`` asks for it:
``--methods``, ``--bits`` and ``--runs`` choose a part (``--methods OgE ITQ``, or ``--methods my_method.py:MyMethod``
for your own). ``--fresh`` begins anew. The page and the figure show what the file holds.
"""

from __future__ import annotations

import argparse
import datetime
import time
import warnings
from pathlib import Path

import numpy as np
from methods import METHODS, SETTINGS, find_methods, line_style, look_up
from protocols import PROTOCOLS, Split
from results import (
    CAVEAT,
    arguments,
    mean_and_spread,
    new_figure,
    origin,
    put_row,
    read_rows,
    table,
    write_figure,
    write_page,
)
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

import scq_gpu as scq

BITS = (8, 16, 24, 32, 48, 64, 128)
METRICS = {"mAP": "mean_average_precision", "prec@r2": "precision_at_radius", "prec@1k": "precision_at_k"}
KEY = ("method", "bits", "seed", "rows")


def measure(split: Split, method: str, bits: int, seed: int) -> dict:
    """Fit, encode and score."""
    started = time.perf_counter()
    encoder = METHODS[method].make(bits, seed).fit(split.X_train)
    seconds = time.perf_counter() - started
    arrays = split.X_query, split.X, split.y_query, split.y
    found = scq.evaluate(encoder, *arrays, ap="trapezoid", distance=METHODS[method].distance).as_dict()
    row = {"method": method, "bits": bits, "seed": seed, "rows": len(split.X_train)}
    row |= {metric: 100 * found[name] for metric, name in METRICS.items()}
    row |= {"fit seconds": seconds, "date": str(datetime.date.today()), "version": scq.__version__}
    print("  ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()), flush=True)
    return row


def add_rows(path: Path, options: argparse.Namespace) -> None:
    """Run what is asked for and not in the file; write after each fit."""
    protocol, split, loaded = PROTOCOLS[options.dataset], None, None
    for seed in range(options.runs):
        for bits in options.bits:
            for method in options.methods:
                if seed and not METHODS[method].random and not protocol.random:
                    continue
                split_seed = seed if protocol.random else 0
                if split is None or loaded != split_seed:
                    split, loaded = _first(protocol.load(options.data, split_seed), options.rows), split_seed
                key = tuple(map(str, (method, bits, seed, len(split.X_train))))
                if options.again or key not in {tuple(row[k] for k in KEY) for row in read_rows(path)}:
                    put_row(path, measure(split, method, bits, seed), KEY)


def _first(split: Split, rows: int | None) -> Split:
    """Keep only the first rows to train on and search, for a quick look."""
    if rows is None:
        return split
    return Split(split.name, split.X_train[:rows], split.X[:rows], split.y[:rows], split.X_query, split.y_query)


def gather(rows: list[dict[str, str]]) -> dict[str, dict[tuple[str, int], list[float]]]:
    """Return metric -> (method, bits) -> one value per run."""
    found: dict[str, dict[tuple[str, int], list[float]]] = {metric: {} for metric in METRICS}
    for row in rows:
        for metric, runs in found.items():
            runs.setdefault((row["method"], int(row["bits"])), []).append(float(row[metric]))
    return found


def page(rows: list[dict[str, str]], options: argparse.Namespace, stem: str, name: str) -> list[str]:
    """Return the blocks of the page."""
    runs = gather(rows)
    methods = [m for m in METHODS if any(row["method"] == m for row in rows)]
    bits = sorted({int(row["bits"]) for row in rows})
    seeds = {int(row["seed"]) for row in rows}
    dataset = "" if options.dataset == "cifar10" else f" --dataset {options.dataset}"
    command = f"state_of_the_art.py --data DIR{dataset} --bits {' '.join(map(str, bits))} --runs {max(seeds) + 1}"
    dates = sorted({row["date"] for row in rows})
    blocks = [
        f"{name}: {int(rows[0]['rows']):,} rows to train on. Mean ± standard deviation of up to {max(seeds) + 1} "
        "runs, in percent; a value without a spread is of one run, like those of PCAH and SH, which draw nothing at "
        "random. The paper's values, in brackets, are for its own VGG fc7 features: compare the order of the methods, "
        "not the values.",
        origin(command, seeds=seeds, threads=options.threads) + f" Rows were measured on {', '.join(dates)}.",
        SETTINGS
        + " mAP is the authors': trapezoid rule over the whole ranking, ties in database order; prec@r2 counts "
        "a query with nothing within radius 2 as 0. The paper's KMH is the best of b = 2, 4, 8.",
        *([CAVEAT] if options.dataset == "cifar10" else []),
        f"![metrics against bits]({stem}.png)",
    ]
    for metric, found in runs.items():
        lines = [[m, *(_cell(found, options.dataset, metric, m, b) for b in bits)] for m in methods]
        blocks += [f"## {metric}", table(["method", *(f"{b} bits" for b in bits)], lines)]
    return blocks


def _cell(found: dict, dataset: str, metric: str, method: str, bits: int) -> str:
    """Return our value, and the paper's in brackets where it has one; nothing where we have none."""
    if (method, bits) not in found:
        return ""
    ours = mean_and_spread(found[method, bits])
    theirs = look_up(dataset, metric, METHODS[method].published, bits)
    return ours if theirs is None else f"{ours} ({theirs:.2f})"


def plot(rows: list[dict[str, str]], path: Path, name: str, *, pdf: bool) -> None:
    figure, axes = new_figure(1, 3, size=(13, 4.6))
    for axis, (metric, found) in zip(axes, gather(rows).items(), strict=True):
        for method in METHODS:
            points = [(bits, np.mean(runs)) for (m, bits), runs in sorted(found.items()) if m == method]
            if points:
                axis.plot(*zip(*points, strict=True), **line_style(method))
        bits = sorted({b for _, b in found})
        axis.set_xscale("log", base=2)
        axis.set_xticks(bits, map(str, bits))
        axis.minorticks_off()
        axis.set(xlabel="bits", title=f"{metric}, percent", ylim=(0, None))
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    figure.suptitle(name, fontsize=11)
    write_figure(figure, path, pdf=pdf)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--dataset", choices=PROTOCOLS, default="cifar10")
    parser.add_argument("--methods", nargs="+", type=find_methods, default=[list(METHODS)], metavar="METHOD")
    parser.add_argument("--bits", type=int, nargs="+", default=BITS)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rows", type=int, help="only so many rows to train on and search")
    parser.add_argument("--again", action="store_true", help="measure again what the CSV file holds")
    parser.add_argument("--fresh", action="store_true", help="forget the rows that the CSV file holds")
    options = parser.parse_args()
    options.methods = list(dict.fromkeys(name for names in options.methods for name in names))
    warnings.simplefilter("ignore", ConvergenceWarning)
    stem = "state_of_the_art" if options.dataset == "cifar10" else f"state_of_the_art_{options.dataset}"
    path = options.output / f"{stem}.csv"
    if options.fresh:
        path.unlink(missing_ok=True)
    with threadpool_limits(options.threads):
        add_rows(path, options)
    rows = read_rows(path)
    rows = [row for row in rows if row["rows"] == rows[-1]["rows"]]
    name = TITLES[options.dataset]
    write_page(options.output / f"{stem}.md", f"State of the art: {name}", *page(rows, options, stem, name))
    plot(rows, options.output / f"{stem}.png", name, pdf=options.pdf)


TITLES = {
    "cifar10": "CIFAR-10, EfficientNet-Lite0 features",
    "labelme": "LabelMe-12-50k",
    "sun397": "SUN397, 42 categories",
    "nuswide": "NUS-WIDE, 21 concepts",
}

if __name__ == "__main__":
    main()
