"""Did a change to the fits cost quality? Default fits of two checkouts of this repository, on test queries.

    git worktree add BEFORE COMMIT
    python benchmarks/fit_quality.py --data DIR --before BEFORE [--seeds 10] [--bits 32 64]

Each checkout fits, with nothing but n_bits, preserve and a seed, and encodes in a process of its own; this one scores
the codes. Writes docs/results/fit_quality.csv (a row per fit, as it goes; what is there is not run again) and .md.
``--bits`` with no number only writes the page.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from features import SETS, Split
from threadpoolctl import threadpool_limits

import scq_gpu as scq

# What only the scoring process needs is imported where it is used: in the other, scq_gpu is of another commit.
sys.path.insert(0, str(Path(__file__).parent / "paper"))

HERE = Path(__file__).resolve().parents[1]
KEY = ("set", "encoder", "preserve", "bits", "seed", "tree")
MEASURES = {"neighbors": ("10@10", "10@100", "mAP"), "classes": ("mAP",)}


class Fits(NamedTuple):
    """What one process fits: a set, an encoder and its aim, a length, and the seeds."""

    set: str
    encoder: str
    preserve: str
    bits: int
    seeds: tuple[int, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the feature files")
    parser.add_argument("--before", type=Path, required=True, help="the checkout to compare with")
    parser.add_argument("--now", type=Path, default=HERE, help="the checkout in question (this one)")
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--bits", type=int, nargs="*", default=(32, 64, 128, 256))
    parser.add_argument("--encoders", nargs="*", default=("OgE", "OnE"))
    parser.add_argument("--preserve", nargs="*", default=tuple(MEASURES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    for name in options.sets if options.bits else ():
        compare(name, options)
    write(options)


def compare(name: str, options: argparse.Namespace) -> None:
    """Fit and score what the file does not hold of one set."""
    from results import read_rows, write_rows

    from scq_gpu.metrics import exact_neighbors

    path = options.output / "fit_quality.csv"
    data, true = None, None
    for bits, encoder, preserve in itertools.product(options.bits, options.encoders, options.preserve):
        for tree in ("before", "now"):
            rows: list[dict[str, Any]] = list(read_rows(path))
            done = {tuple(row[k] for k in KEY) for row in rows}
            key = (name, encoder, preserve, str(bits))
            missing = tuple(seed for seed in range(options.seeds) if (*key, str(seed), tree) not in done)
            fits = Fits(name, encoder, preserve, bits, missing)
            if not fits.seeds:
                continue
            if data is None or true is None:
                data = SETS[name](options.data)
                true = exact_neighbors(data.X_query, data.X, k=10)
            checkout = getattr(options, tree).resolve()
            for seed, codes, query_codes in encoded(fits, checkout, options):
                row = dict(zip(KEY, (*fits[:-1], seed, tree), strict=True)) | {"commit": _commit(checkout)}
                rows.append(row | score(codes, query_codes, bits, data, true))
                print(*(f"{v:.4g}" if isinstance(v, float) else v for v in rows[-1].values()), flush=True)
            write_rows(path, rows)


def encoded(fits: Fits, tree: Path, options: argparse.Namespace) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Codes of rows and queries for each seed, by the package of ``tree`` in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (str(tree), options.data, folder, options.threads, *fits[:-1], *fits.seeds)
        command = [sys.executable, "-P", "-c", "import fit_quality; fit_quality.fit_and_encode()", *map(str, arguments)]
        paths = os.pathsep.join((str(tree), str(HERE / "benchmarks")))
        subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, check=True)
        for seed in fits.seeds:
            with np.load(Path(folder) / f"{seed}.npz") as file:
                yield seed, file["codes"], file["query_codes"]


def fit_and_encode() -> None:
    """What such a process does, told by its arguments."""
    tree, data, folder, threads, name, encoder, preserve, bits, *seeds = sys.argv[1:]
    if not Path(scq.__file__).is_relative_to(tree):
        raise SystemExit(f"scq_gpu came from {scq.__file__}, not from {tree}")
    warnings.simplefilter("ignore")
    rows = SETS[name](Path(data))
    with threadpool_limits(int(threads)):
        for seed in seeds:
            fitted = getattr(scq, encoder)(int(bits), preserve=preserve, random_state=int(seed)).fit(rows.X)
            codes = {"codes": fitted.encode(rows.X), "query_codes": fitted.encode(rows.X_query)}
            np.savez(Path(folder) / f"{seed}.npz", **codes)


def score(codes: np.ndarray, query_codes: np.ndarray, bits: int, data: Split, true: np.ndarray) -> dict[str, float]:
    """Percentages: mAP by label, and the share of the ten nearest rows by floats in the first 10 and 100 results."""
    from neighbors import hits

    from scq_gpu.metrics import mean_average_precision

    found = scq.HammingIndex(codes, bits).search(query_codes, 100)[1]
    recalls = {f"10@{k}": 100 * float(hits(found[:, :k], true).mean()) for k in (10, 100)}
    return {"mAP": 100 * float(mean_average_precision(query_codes, codes, data.y_query, data.y))} | recalls


def write(options: argparse.Namespace) -> None:
    """The page: means, their standard errors, and the difference over its own."""
    from results import read_rows, table, write_page

    rows = read_rows(options.output / "fit_quality.csv")
    lines, differences = [], []
    for key in dict.fromkeys(tuple(row[k] for k in KEY[:4]) for row in rows):
        group = [row for row in rows if tuple(row[k] for k in KEY[:4]) == key]
        for measure in MEASURES[key[2]]:
            by_tree = [np.array([float(r[measure]) for r in group if r["tree"] == tree]) for tree in ("before", "now")]
            if min(map(len, by_tree)) < 2:
                continue
            means = [values.mean() for values in by_tree]
            errors = [values.std(ddof=1) / np.sqrt(len(values)) for values in by_tree]
            gain, error = means[1] - means[0], np.hypot(*errors)
            differences.append((key[2], gain / error))
            cells = (f"{mean:.2f} ± {e:.2f}" for mean, e in zip(means, errors, strict=True))
            lines.append((*key[:4], len(by_tree[1]), measure, *cells, f"{gain:+.2f} ± {error:.2f}"))
    commits = (_commits(rows, tree) for tree in ("before", "now"))
    far = {k: [d for aim, d in differences if aim == k] for k in MEASURES}
    write_page(
        options.output / "fit_quality.md",
        "Quality of default fits, before and now",
        "Do fits that take no longer than Faiss's ITQ lose anything against fits run to convergence? `before` is "
        "commit {}, whose fits for classes pass over all rows until the loss stays; `now` is {} (of several, each row "
        "of the CSV file names its own: none changed fits that were measured before it). For neighbors, OgE beyond 32 "
        "bits has since been made to draw groups of rows apart, which gives mAP for recall "
        "([theory](../theory.md)). A first run showed that fits from parts lost up to 1.2 points of mAP on WordNet; "
        "what mended it was chosen on queries held out of the training rows.".format(*commits),
        "Test queries of CIFAR-10 features (EfficientNet-Lite0, 50,000 x 1280; mAP by class) and of WordNet "
        "definitions (115,648 x 384; mAP by lexicographer file). Per cent, mean ± standard error over seeds; 10@k is "
        "the share of the ten nearest rows by floats among the first k by Hamming distance. Made by `python "
        "benchmarks/fit_quality.py --data DIR --before CHECKOUT` (with `--seeds 10 --bits 32 64` for the shorter "
        f"codes) on {datetime.date.today()} with {options.threads} threads.",
        *(
            f"Of {len(values)} differences for {aim}, {sum(d < -1 for d in values)} are below minus one standard error "
            f"and {sum(d > 1 for d in values)} above plus one."
            for aim, values in far.items()
        ),
        table(("rows", "encoder", "preserve", "bits", "seeds", "measure", "before", "now", "difference"), lines),
    )


def _commits(rows: list[dict[str, str]], tree: str) -> str:
    return ", ".join(dict.fromkeys(row["commit"] for row in rows if row["tree"] == tree))


def _commit(tree: Path) -> str:
    command = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
