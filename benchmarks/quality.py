"""Quality of the codes on real features: mAP by class, the aim of ``preserve="classes"``.

    python benchmarks/quality.py --data DIR
    python benchmarks/quality.py --data DIR --solvers joint --no-gist                # "classes" on EfficientNet alone
    python benchmarks/quality.py --data DIR --solvers joint --before quality.csv     # and what changed since
    python benchmarks/quality.py --data DIR --try ridge=0.02,0.1 --bits 64           # other settings, held-out queries

Writes docs/results/quality.csv (a row per fit) and docs/results/quality.md (mean and spread over seeds); with
``--bits``, ``--encoders`` and ``--solvers`` a part is run, and put into the file. ``joint`` is ``preserve="classes"``;
``paper`` is the columnwise solver with the paper's parameters.

``--before`` prints the differences to the CSV file of another commit (``git show COMMIT:docs/results/quality.csv``).
``--try`` holds a default: it fits with other values of a parameter on training rows without 2,000 that are the queries,
so that test queries choose nothing, and prints mAP and the recall of the ten nearest rows by floats.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import itertools
import platform
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from features import SETS, Split, efficientnet, gist, official_gist
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

import scq_gpu as scq
from scq_gpu.metrics import exact_neighbors, mean_average_precision, precision_at_k, precision_at_radius, recall_at_k

sys.path.insert(0, str(Path(__file__).parent / "paper"))
from results import differences, put_row, read_rows, table, write_page

BITS = (16, 32, 64, 128, 256)
HELD_OUT = SETS | {"GIST": official_gist}  # of their training rows, some are the queries of --try
PAPER_BITS = (16, 32, 64)  # longer codes take the columnwise solver minutes, and fall further behind
SOLVERS: dict[str, dict[str, Any]] = {"joint": {"preserve": "classes"}, "paper": {"solver": "columnwise"}}
KEY = ("features", "encoder", "solver", "bits", "seed")
CAVEAT = (
    "How the defaults were chosen. On queries held out of the training images: the number of axes, the starts from a "
    "longer code and from shorter ones, momentum in the V step, batches of rows. In earlier trials scored on these "
    "EfficientNet test queries: the ridge rule and the weights of the random start. The number of polar steps was "
    "chosen with a look at GIST, these splits and others. How shorter codes are joined was settled on held-out queries "
    "after a first version had been scored on these."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the feature files")
    parser.add_argument("--bits", type=int, nargs="*", default=BITS)
    parser.add_argument("--encoders", nargs="*", default=("OgE", "OnE"))
    parser.add_argument("--solvers", nargs="*", choices=SOLVERS, default=list(SOLVERS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--gist", action=argparse.BooleanOptionalAction, default=True, help="GIST features too")
    parser.add_argument("--before", type=Path, help="quality.csv of another commit, to print what changed")
    parser.add_argument("--try", dest="tried", metavar="NAME=V1,V2", help="values of a parameter, on held-out queries")
    parser.add_argument("--preserve", default="classes", help="with --try: classes or neighbors")
    parser.add_argument("--sets", nargs="+", choices=HELD_OUT, default=["EfficientNet"], help="with --try")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    with threadpool_limits(options.threads):
        if options.tried:
            try_values(options)
            return
        run(options)
    write(options)
    if options.before:
        mine = read_rows(options.output / "quality.csv")
        print(differences(read_rows(options.before), mine, KEY[:-1], ("mAP", "prec@r2", "prec@1k")))


def run(options: argparse.Namespace) -> None:
    """Measure, and write after each fit: a run that is cut short leaves what it measured."""
    path = options.output / "quality.csv"
    split = efficientnet(options.data) if options.bits else None
    for bits in options.bits:
        for encoder in options.encoders:
            for solver in options.solvers:
                for seed in range(options.seeds if solver == "joint" or bits in PAPER_BITS else 0):
                    put_row(path, measure(split, encoder, solver, bits, seed), KEY)
    for seed in range(options.seeds if options.gist and options.bits else 0):
        split = gist(options.data, seed)
        for encoder in options.encoders:
            for solver in options.solvers:
                put_row(path, measure(split, encoder, solver, 32, seed), KEY)


def measure(split: Split, name: str, solver: str, bits: int, seed: int) -> dict[str, Any]:
    """Fit, encode, score, and check what the solver promises."""
    started = time.perf_counter()
    encoder = getattr(scq, name)(bits, random_state=seed, **SOLVERS[solver]).fit(split.X)
    seconds = time.perf_counter() - started
    codes = encoder.encode(split.X_query), encoder.encode(split.X)
    labels = split.y_query, split.y
    V = encoder.components_.T.astype(np.float64) / encoder.scale_
    gram = V.T @ V
    lengths = np.sqrt(np.diag(gram))
    target = np.eye(bits) if name == "OnE" else np.diag(np.diag(gram))
    curve = np.array(encoder.loss_curve_)
    row = dict(zip(KEY, (split.name, name, solver, bits, seed), strict=True)) | {
        "mAP": 100 * mean_average_precision(*codes, *labels),
        "prec@r2": 100 * precision_at_radius(*codes, *labels, radius=2),
        "prec@1k": 100 * precision_at_k(*codes, *labels, k=1000),
        "loss": float(curve.min()),
        "passes": encoder.n_iter_,
        "seconds": seconds,
        "largest rise": float(np.diff(curve).max(initial=0.0)),
        "constraint": float(np.abs((gram - target) / np.outer(lengths, lengths)).max()),
    }
    print("  ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()), flush=True)
    return row


class HeldOut:
    """Training rows of a set without 2,000, which are the queries."""

    def __init__(self, rows: Split) -> None:
        order = np.random.default_rng(7).permutation(len(rows.X))
        query, rest = order[:2000], np.sort(order[2000:])
        self.X, self.Q, self.labels = rows.X[rest], rows.X[query], (rows.y[query], rows.y[rest])
        self.true = exact_neighbors(self.Q, self.X, k=10)

    def score(self, encoder: Any) -> np.ndarray:
        """Fit, and return mAP and recall among 10 and 100 results, in percent."""
        encoder.fit(self.X)
        codes = encoder.encode(self.Q), encoder.encode(self.X)
        ids = scq.HammingIndex(codes[1], encoder.n_bits).search(codes[0], 100)[1]
        recalls = (recall_at_k(ids[:, :k], self.true) for k in (10, 100))
        return 100 * np.array([mean_average_precision(*codes, *self.labels), *recalls])


def try_values(options: argparse.Namespace) -> None:
    """Print a line for each value of a parameter."""
    parameter, _, values = options.tried.partition("=")
    lines = []
    for name in options.sets:
        rows = HeldOut(HELD_OUT[name](options.data))
        for bits, encoder, value in itertools.product(options.bits, options.encoders, map(_literal, values.split(","))):
            chosen = {"preserve": options.preserve, parameter: value}
            found = [rows.score(getattr(scq, encoder)(bits, random_state=s, **chosen)) for s in range(options.seeds)]
            spread = np.std(found, axis=0, ddof=min(1, len(found) - 1)) / np.sqrt(len(found))
            cells = (f"{m:.2f} ± {e:.2f}" for m, e in zip(np.mean(found, axis=0), spread, strict=True))
            lines.append((name, bits, encoder, f"{parameter}={value}", *cells))
            print(*lines[-1], flush=True)
    print(table(("set", "bits", "encoder", "setting", "mAP", "10@10", "10@100"), lines))


def _literal(text: str) -> Any:
    """Return a number or None for its text, else the text itself ("auto")."""
    try:
        return ast.literal_eval(text)
    except ValueError:
        return text


def write(options: argparse.Namespace) -> None:
    """Write the page from the CSV file."""
    rows = sorted(
        read_rows(options.output / "quality.csv"),
        key=lambda row: (row["features"], int(row["bits"]), row["encoder"] == "OnE", row["solver"]),
    )
    lines = []
    for key in dict.fromkeys(tuple(row[k] for k in KEY[:-1]) for row in rows):
        group = [row for row in rows if tuple(row[k] for k in KEY[:-1]) == key]
        values = {k: [float(row[k]) for row in group] for k in ("mAP", "prec@r2", "prec@1k", "loss", "passes")}
        mean = {k: np.mean(v) for k, v in values.items()}
        cells = (f"{mean['prec@r2']:.2f}", f"{mean['prec@1k']:.2f}", f"{mean['loss'] / int(key[3]):.4f}")
        spread = f"{mean['mAP']:.2f} ± {np.std(values['mAP']):.2f}"
        lines.append((*key, len(group), spread, *cells, f"{mean['passes']:.0f}"))
    header = (*KEY[:-1], "seeds", "mAP", "prec@r2", "prec@1k", "loss a bit", "passes")
    rises = max((float(row["largest rise"]) for row in rows if row["solver"] == "joint"), default=0.0)
    write_page(
        options.output / "quality.md",
        "Quality of the codes",
        "CIFAR-10, mean and standard deviation over seeds, in percent. Made by `python benchmarks/quality.py --data "
        f"DIR` (in parts, by `--bits` and `--seeds`), finished on {datetime.date.today()} with scq_gpu "
        f"{scq.__version__}, NumPy {np.__version__}, Python {platform.python_version()}, {options.threads} threads. "
        "mAP is the standard average precision over the whole ranking, ties in database order. *Joint* is this "
        "library's solver with `preserve=\"classes\"`, *paper* the columnwise solver with the paper's parameters. "
        "*Passes* are those over all rows, after those over batches. [Benchmarks](../benchmarks.md) has the times of "
        "fits.",
        CAVEAT,
        table(header, lines),
        f"Largest rise of a joint loss in any run: {rises:g}. Largest violation of a constraint: "
        f"{max(float(row['constraint']) for row in rows):.1e}.",
    )


if __name__ == "__main__":
    main()
