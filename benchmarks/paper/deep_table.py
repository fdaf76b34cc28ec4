"""Tables "DH / UH-BDNN" and "BGAN": CIFAR-10's GIST and images, with the processor time that training takes.

    python benchmarks/paper/deep_table.py --data DIR                       # GIST, five splits
    python benchmarks/paper/deep_table.py --data DIR --images FILE --part images

Writes docs/results/deep_table.csv and .md. Rows are added to the CSV file as they come, and what is there is not run
again, unless ``--again`` asks for it; ``--fresh`` begins anew.

GIST: 100 random queries per class; the seed draws both the split and the start. Images are an .npz file with X_train
and X_test (n, 32, 32, 3) of uint8, y_train and y_test, or a folder of CIFAR-10's binary version; BGAN needs torch
(``pip install torch``). 1,000 images per class, or the first 10,000, are trained on; queries are 100 per class, drawn
from the images that are not trained on; all others are searched. Neighbors are found by EfficientNet-Lite0 features of
the same images from ``--data``, which stand in for those of VGG; OnE and OgE are fitted on BGAN's own last feature
layer.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from methods import BGAN_CIFAR10, GIST, METHODS, SCRIPT_SCALE, SETTINGS
from protocols import Split, cifar10_gist, features
from results import arguments, mean_and_spread, origin, put_row, read_rows, table, write_page
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

import scq_gpu as scq

sys.path.append(str(Path(__file__).parents[1]))
from peers import BGAN, DH, UHBDNN

GIST_BITS, IMAGE_BITS = (16, 32), (12, 24, 32, 48)
OURS = ("OnE, columnwise", "OgE, columnwise", "OnE, joint", "OgE, joint")
GIST_METHODS = ("LSH", "ITQ", "DH", "UH-BDNN", *OURS[:2], SCRIPT_SCALE, *OURS[2:])
IMAGE_METHODS = ("BGAN", *OURS)
METRICS = {"mAP": "mean_average_precision", "prec@r2": "precision_at_radius"}
KEY = ("part", "method", "bits", "seed", "settings")


def make(method: str, bits: int, seed: int, options: argparse.Namespace) -> Any:
    """Return an encoder of features, not fitted."""
    if method == "DH":
        return DH(bits, random_state=seed)
    if method == "UH-BDNN":
        return UHBDNN(bits, max_iter=options.rounds, lbfgs_iter=options.lbfgs_iter, random_state=seed)
    return METHODS[method].make(bits, seed)


def settings_of(method: str, options: argparse.Namespace) -> str:
    """Return what the command chose for a method and is neither its default nor the paper's."""
    if method != "UH-BDNN":
        return ""
    return f"{options.rounds} x {options.lbfgs_iter} L-BFGS iterations"


def row_of(part: str, method: str, bits: int, seed: int, settings: str, seconds: float, values: dict) -> dict:
    row = {"part": part, "method": method, "bits": bits, "seed": seed, "settings": settings}
    row |= {metric: 100 * values[name] for metric, name in METRICS.items()}
    row |= {"fit CPU seconds": seconds, "date": str(datetime.date.today()), "version": scq.__version__}
    print("  ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()), flush=True)
    return row


def timed_fit(encoder: Any, *arrays: Any, **named: Any) -> tuple[Any, float]:
    """Return the fitted encoder and its processor seconds, which depend little on what else is running."""
    started = time.process_time()
    fitted = encoder.fit(*arrays, **named)
    return fitted, time.process_time() - started


def judge(encoder: Any, split: Split) -> dict:
    data = (split.X_query, split.X, split.y_query, split.y)
    return scq.evaluate(encoder, *data, ap="trapezoid", recall=False).as_dict()


def done(path: Path, *key: object) -> bool:
    """Tell if the file holds the row of this key."""
    return tuple(map(str, key)) in {tuple(row[k] for k in KEY) for row in read_rows(path)}


def add_gist_rows(path: Path, options: argparse.Namespace) -> None:
    """Run what the file does not hold; write after each fit."""
    for seed in range(options.runs):
        jobs = [(m, b) for b in options.bits or GIST_BITS for m in options.methods or GIST_METHODS]
        if not options.again:
            jobs = [(m, b) for m, b in jobs if not done(path, "GIST", m, b, seed, settings_of(m, options))]
        split = cifar10_gist(options.data, seed) if jobs else None
        for method, bits in jobs:
            encoder, seconds = timed_fit(make(method, bits, seed, options), split.X_train)
            settings = settings_of(method, options)
            row = row_of("GIST", method, bits, seed, settings, seconds, judge(encoder, split))
            put_row(path, row, KEY)


def image_split(options: argparse.Namespace, seed: int) -> tuple[Split, np.ndarray]:
    """Return images to train on, to search and as queries, and the features that find neighbors of the first."""
    known = features.efficientnet(options.data)
    if options.images.is_dir():
        names = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
        X, y = (np.concatenate(x) for x in zip(*(features.read_images(options.images / n) for n in names), strict=True))
        F = np.concatenate([known.X, known.X_query])
    else:
        with np.load(options.images) as file:
            parts = [(file["X_train"], file["y_train"], known.X), (file["X_test"], file["y_test"], known.X_query)]
        X, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        F = np.concatenate([all_[: len(images)] for images, _, all_ in parts])
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(y))
    query = np.concatenate([shuffled[y[shuffled] == label][:100] for label in range(10)])
    rest = np.setdiff1d(np.arange(len(y)), query)
    train = np.concatenate([rng.permutation(rest[y[rest] == label])[:1000] for label in range(10)])
    train = rng.permutation(train)[: options.rows]
    return Split("CIFAR-10 images", X[train], X[rest], y[rest], X[query], y[query]), F[train]


def add_image_rows(path: Path, options: argparse.Namespace) -> None:
    """Fit one BGAN for each length, and OnE and OgE on its features."""
    for seed in range(options.runs):
        split = None
        for bits in options.bits or IMAGE_BITS:
            settings = f"{options.epochs} epochs" + (f", {options.rows} images" if options.rows else "")
            settings += ", as in the original" if options.original else ""
            if not options.again and all(
                done(path, "images", m, bits, seed, settings) for m in options.methods or IMAGE_METHODS
            ):
                continue
            if split is None:
                split, F = image_split(options, seed)
            network = BGAN(
                bits, original=options.original, max_iter=options.epochs, tol=0, verbose=True, random_state=seed
            )
            network, seconds = timed_fit(network, split.X_train, features=F)
            codes = network.encode(split.X_query), network.encode(split.X)
            values = {
                METRICS["mAP"]: scq.metrics.mean_average_precision(*codes, split.y_query, split.y, ap="trapezoid"),
                METRICS["prec@r2"]: scq.metrics.precision_at_radius(*codes, split.y_query, split.y, radius=2),
            }
            rows = [row_of("images", "BGAN", bits, seed, settings, seconds, values)]
            mapped = Split(
                split.name,
                network.features(split.X_train),
                network.features(split.X),
                split.y,
                network.features(split.X_query),
                split.y_query,
            )
            for method in IMAGE_METHODS[1:]:
                encoder, seconds = timed_fit(METHODS[method].make(bits, seed), mapped.X_train)
                rows.append(row_of("images", method, bits, seed, settings, seconds, judge(encoder, mapped)))
            for row in rows:
                put_row(path, row, KEY)


def gather(rows: list[dict[str, str]], column: str) -> dict[tuple[str, str, str, int], list[float]]:
    """Return (part, settings, method, bits) -> one value per run; rows without the column are left out."""
    found: dict[tuple[str, str, str, int], list[float]] = {}
    for row in rows:
        if row[column]:
            key = (row["part"], row["settings"], row["method"], int(row["bits"]))
            found.setdefault(key, []).append(float(row[column]))
    return found


def part_table(rows: list[dict[str, str]], part: str, published: dict[str, dict[int, Any]], metrics: list[str]) -> str:
    """Return the table of a part: ours, the number of runs, the paper's in brackets."""
    rows = [row for row in rows if row["part"] == part]
    found = {column: gather(rows, column) for column in (*metrics, "fit CPU seconds")}
    bits = sorted({int(row["bits"]) for row in rows})
    lines = []
    order = {name: place for place, name in enumerate(GIST_METHODS)}
    pairs = dict.fromkeys((row["method"], row["settings"]) for row in rows)
    # images keep the order of the file, where OnE and OgE follow the BGAN that made their features
    for method, settings in sorted(pairs, key=lambda pair: order[pair[0]]) if part == "GIST" else pairs:
        cells = []
        for column in (*metrics, "fit CPU seconds"):
            for b in bits:
                values = found[column].get((part, settings, method, b))
                if values is None:
                    cells.append("")
                    continue
                digits = 2 if column in METRICS else 0
                text = mean_and_spread(values, digits)
                theirs = published.get(method.partition(",")[0], {}).get(b)
                if column in METRICS and theirs is not None:
                    text += f" ({theirs[metrics.index(column)]:.2f})"
                cells.append(text)
        runs = max(len(v) for (_, s, m, _), v in found["mAP"].items() if (s, m) == (settings, method))
        lines.append([method, settings, runs, *cells])
    header = ["method", "settings", "runs", *(f"{m}, {b} bits" for m in (*metrics, "fit CPU seconds") for b in bits)]
    return table(header, lines)


def page(rows: list[dict[str, str]], options: argparse.Namespace) -> list[str]:
    """Return the blocks of the page."""
    seeds = {int(row["seed"]) for row in rows}
    blocks = [
        "The paper's tables on GIST and on images of CIFAR-10, with its deep peers, trained here "
        "(`benchmarks/peers/`). Mean ± standard deviation over splits, in percent; the paper's values in brackets. Fit "
        "seconds are those of processors, added up over threads, on a machine that was busy with other work: compare "
        "them with each other, not with clocks.",
        origin("deep_table.py --data DIR", seeds=seeds, threads=options.threads)
        + f" Rows were measured on {', '.join(sorted({row['date'] for row in rows}))}.",
        SETTINGS,
    ]
    if any(row["part"] == "GIST" for row in rows):
        about = (
            "GIST 512-D; 100 random images per class are the queries, the other 59,000 are trained on and searched. "
            "UH-BDNN runs so many rounds x iterations of L-BFGS in each, its default being 10 x 400."
        )
        blocks += ["## GIST", about, part_table(rows, "GIST", GIST, ["mAP", "prec@r2"])]
    if any(row["part"] == "images" for row in rows):
        theirs = {name: {b: (value,) for b, value in values.items()} for name, values in BGAN_CIFAR10.items()}
        about = (
            "CIFAR-10's first 10,000 training and 2,000 test images: 100 per class are the queries, the rest are "
            "searched, 1,000 per class of them, as far as there are, trained on. BGAN is the small network, from "
            "random weights; the paper's starts from VGG-19 trained with labels of ImageNet, and searches 59,000 "
            'images. Chance is 10. OnE and OgE are fitted on BGAN\'s features. "As in the original" is '
            "`original=True`."
        )
        blocks += ["## Images", about, part_table(rows, "images", theirs, ["mAP"])]
    return blocks


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--part", choices=("gist", "images"), default="gist")
    parser.add_argument("--images", type=Path, help="an .npz file of images, or a folder of CIFAR-10's binary version")
    parser.add_argument("--methods", nargs="+", choices=GIST_METHODS, metavar="METHOD", help="of the part gist")
    parser.add_argument("--bits", type=int, nargs="+")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=10, help="of UH-BDNN")
    parser.add_argument("--lbfgs-iter", type=int, default=400, help="of UH-BDNN, in each round")
    parser.add_argument("--epochs", type=int, default=20, help="of BGAN")
    parser.add_argument("--rows", type=int, help="only so many images to train on")
    parser.add_argument("--original", action="store_true", help="BGAN's pairs and gradients as published")
    parser.add_argument("--again", action="store_true", help="measure again what the CSV file holds")
    parser.add_argument("--fresh", action="store_true", help="forget the rows that the CSV file holds")
    options = parser.parse_args()
    if options.part == "images" and (options.images is None or options.methods):
        parser.error("--part images needs --images FILE, and runs all its methods")
    warnings.simplefilter("ignore", ConvergenceWarning)
    path = options.output / "deep_table.csv"
    if options.fresh:
        path.unlink(missing_ok=True)
    with threadpool_limits(options.threads):
        (add_gist_rows if options.part == "gist" else add_image_rows)(path, options)
    write_page(options.output / "deep_table.md", "GIST and deep peers", *page(read_rows(path), options))


if __name__ == "__main__":
    main()
