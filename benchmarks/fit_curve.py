"""Quality against seconds of training: OgE and OnE, for neighbors and for classes, beside Faiss's ITQTransform.

    python benchmarks/fit_curve.py --data DIR

Every point is a whole fit of raw 1280-D float32 rows, as it comes ("auto") or stopped after so many passes over all
rows; all rows are used (Faiss's ``max_train_per_dim`` is raised so that it does not subsample). Fits take turns in one
process, with the same number of threads. Quality is mAP by class, and the share of the 10 nearest rows by floats among
the first 100 results. Writes docs/results/fit_curve.csv, .md and docs/images/fit_curve.png.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import platform
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from features import Split, efficientnet
from neighbors import hits
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

import scq_gpu as scq
from scq_gpu.metrics import exact_neighbors, mean_average_precision

ITERATIONS: dict[str, tuple[int | str, ...]] = {
    "OgE, classes": ("auto", 5, 20, 60),
    "OnE, classes": ("auto", 20),
    "OgE, neighbors": (1, 4, "auto", 40),
    "OnE, neighbors": (1, 4, "auto"),
    "Faiss ITQ": (1, 10, 50),
}
FAISS_ITERATIONS = 50  # its default
Encode = Callable[[np.ndarray], np.ndarray]


def fit_ours(method: str, X: np.ndarray, bits: int, iterations: int | str, seed: int) -> Encode:
    name, _, aim = method.partition(", ")
    stop = {} if iterations == "auto" else {"max_iter": iterations, "tol": 0}
    return getattr(scq, name)(n_bits=bits, preserve=aim, random_state=seed, **stop).fit(X).encode


def fit_faiss(method: str, X: np.ndarray, bits: int, iterations: Any, seed: int) -> Encode:
    itq = faiss.ITQTransform(X.shape[1], bits, True)
    itq.max_train_per_dim = len(X)  # all rows, instead of 10 a dimension
    itq.itq.max_iter = iterations
    itq.itq.seed = seed
    itq.train(X)
    return lambda rows: scq.pack(itq.apply(rows) >= 0)


def measure(split: Split, bits: int, seeds: int) -> list[dict]:
    """One row a method and number of iterations: mean quality, and the least seconds, over seeds."""
    found: dict[tuple[str, Any], list[tuple[float, float, float]]] = {}
    true = exact_neighbors(split.X_query, split.X, k=10)
    for seed in range(seeds):
        for method, counts in ITERATIONS.items():
            for iterations in counts:
                started = time.perf_counter()
                fit = fit_faiss if method == "Faiss ITQ" else fit_ours
                encode = fit(method, split.X, bits, iterations, seed)
                seconds = time.perf_counter() - started
                codes = encode(split.X_query), encode(split.X)
                score = 100 * mean_average_precision(*codes, split.y_query, split.y)
                recall = hits(scq.HammingIndex(codes[1], bits).search(codes[0], 100)[1], true).mean()
                found.setdefault((method, iterations), []).append((seconds, score, 100 * recall))
                print(
                    f"{method} {iterations} {seed}: {seconds:.2f} s, mAP {score:.2f}, recall {recall:.3f}", flush=True
                )
    return [
        {"method": method, "iterations": iterations, "seconds": min(seconds for seconds, *_ in runs)}
        | {
            name: function([run[1 + i] for run in runs])
            for i, measure in enumerate(("mAP", "recall"))
            for name, function in ((measure, np.mean), (f"{measure} spread", np.std))
        }
        for (method, iterations), runs in found.items()
    ]


def write(rows: list[dict], options: argparse.Namespace) -> None:
    folder = options.output / "results"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "fit_curve.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    (rival,) = (r["seconds"] for r in rows if (r["method"], r["iterations"]) == ("Faiss ITQ", FAISS_ITERATIONS))
    lines = [
        "# Quality against seconds of training",
        "",
        f"CIFAR-10 EfficientNet-Lite0 features, 50,000 x 1280 float32, {options.bits} bits: mean mAP by class, mean "
        "recall (of the 10 nearest rows by floats, among the first 100 results by Hamming distance), and least seconds "
        f"of {options.seeds} seeds. Made by `python benchmarks/fit_curve.py --data DIR` on {datetime.date.today()} "
        f"with scq_gpu {scq.__version__}, Faiss {faiss.__version__}, NumPy {np.__version__}, "
        f"Python {platform.python_version()}, {options.threads} threads.",
        "",
        "![Quality against seconds](../images/fit_curve.png)",
        "",
        f"| method | iterations | seconds | of Faiss's {FAISS_ITERATIONS} iterations | mAP | recall, % |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['method']} | {r['iterations']} | {r['seconds']:.2f} | {r['seconds'] / rival:.2f} "
        f"| {r['mAP']:.2f} ± {r['mAP spread']:.2f} | {r['recall']:.1f} ± {r['recall spread']:.1f} |"
        for r in rows
    ]
    (folder / "fit_curve.md").write_text("\n".join(lines) + "\n")
    plot(rows, options.output / "images" / "fit_curve.png", options.bits)


def plot(rows: list[dict], path: Path, bits: int) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9.6, 4))
    for axis, (measured, aim) in zip(axes, (("mAP", "classes"), ("recall", "neighbors")), strict=True):
        for method, marker in zip(ITERATIONS, "osv^D", strict=True):
            points = [(r["seconds"], r[measured], r["iterations"]) for r in rows if r["method"] == method]
            if aim in method or method == "Faiss ITQ":
                x, y, names = zip(*sorted(points, key=lambda point: point[0]), strict=True)
                (line,) = axis.plot(x, y, marker=marker, label=method)
                for point in zip(x, y, names, strict=True):
                    if point[2] == "auto":
                        axis.plot(*point[:2], marker=marker, markersize=12, color=line.get_color())
        axis.set(xlabel="seconds of training, raw rows to encoder", ylabel=measured, xlim=(0, None))
        axis.set_ylim(0, 1.15 * max(r[measured] for r in rows if aim in r["method"]))
        axis.set_title(f"{aim}, {bits} bits; large: as it comes", fontsize=10)
        axis.grid(alpha=0.3)
        axis.legend(loc="lower right")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the CIFAR-10 feature files")
    parser.add_argument("--bits", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("docs"))
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    faiss.omp_set_num_threads(options.threads)
    with threadpool_limits(options.threads):
        write(measure(efficientnet(options.data), options.bits, options.seeds), options)


if __name__ == "__main__":
    main()
