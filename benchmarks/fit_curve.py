"""mAP against seconds of training: OgE and OnE beside Faiss's ITQTransform, raw 1280-D float32 rows to 32-bit codes.

    python benchmarks/fit_curve.py --data DIR

Every point is a whole fit, stopped after so many iterations; all rows are used (Faiss's ``max_train_per_dim`` is raised
so that it does not subsample). Fits take turns in one process, with the same number of threads. Writes
docs/results/fit_curve.csv, .md and docs/images/fit_curve.png.
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

import faiss
import numpy as np
from features import Split, efficientnet
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

import scq_gpu as scq
from scq_gpu.metrics import mean_average_precision

FAST = "random start"  # instead of one from a longer code
ITERATIONS = {
    f"OgE, {FAST}": (5, 10, 16, 22, 28),
    "OgE": (5, 20, 50),
    f"OnE, {FAST}": (10, 20, 30),
    "OnE": (10, 50),
    "Faiss ITQ": (1, 10, 50),
}
FAISS_ITERATIONS = 50  # its default
Encode = Callable[[np.ndarray], np.ndarray]


def fit_ours(method: str, X: np.ndarray, bits: int, iterations: int, seed: int) -> Encode:
    name, _, start = method.partition(", ")
    init = "random" if start == FAST else "auto"
    parameters = {"preserve": "classes", "init": init, "max_iter": iterations, "tol": 0, "random_state": seed}
    return getattr(scq, name)(n_bits=bits, **parameters).fit(X).encode


def fit_faiss(method: str, X: np.ndarray, bits: int, iterations: int, seed: int) -> Encode:
    itq = faiss.ITQTransform(X.shape[1], bits, True)
    itq.max_train_per_dim = len(X)  # all rows, instead of 10 a dimension
    itq.itq.max_iter = iterations
    itq.itq.seed = seed
    itq.train(X)
    return lambda rows: scq.pack(itq.apply(rows) >= 0)


def measure(split: Split, bits: int, seeds: int) -> list[dict]:
    """One row a method and number of iterations: mean mAP, and the least seconds, over seeds."""
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for seed in range(seeds):
        for method, counts in ITERATIONS.items():
            for iterations in counts:
                started = time.perf_counter()
                fit = fit_faiss if method == "Faiss ITQ" else fit_ours
                encode = fit(method, split.X, bits, iterations, seed)
                seconds = time.perf_counter() - started
                codes = encode(split.X_query), encode(split.X)
                score = 100 * mean_average_precision(*codes, split.y_query, split.y)
                found.setdefault((method, iterations), []).append((seconds, score))
                print(
                    f"{method:18s} {iterations:4d} iterations, seed {seed}: {seconds:6.2f} s, mAP {score:.2f}",
                    flush=True,
                )
    return [
        {
            "method": method,
            "iterations": iterations,
            "seconds": min(seconds for seconds, _ in runs),
            "mAP": float(np.mean([score for _, score in runs])),
            "spread": float(np.std([score for _, score in runs])),
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
        "# mAP against seconds of training",
        "",
        f"CIFAR-10 EfficientNet-Lite0 features, 50,000 x 1280 float32, {options.bits} bits: mean mAP and least seconds "
        f"of {options.seeds} seeds. Made by `python benchmarks/fit_curve.py --data DIR` on {datetime.date.today()} "
        f"with scq_gpu {scq.__version__}, Faiss {faiss.__version__}, NumPy {np.__version__}, "
        f"Python {platform.python_version()}, {options.threads} threads.",
        "",
        "![mAP against seconds](../images/fit_curve.png)",
        "",
        f"| method | iterations | seconds | of Faiss's {FAISS_ITERATIONS} iterations | mAP |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['method']} | {r['iterations']} | {r['seconds']:.2f} | {r['seconds'] / rival:.2f} "
        f"| {r['mAP']:.2f} ± {r['spread']:.2f} |"
        for r in rows
    ]
    (folder / "fit_curve.md").write_text("\n".join(lines) + "\n")
    plot(rows, options.output / "images" / "fit_curve.png", options.bits)


def plot(rows: list[dict], path: Path, bits: int) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.4, 4))
    for method, marker in zip(ITERATIONS, "osv^D", strict=True):
        points = [(r["seconds"], r["mAP"]) for r in rows if r["method"] == method]
        axis.plot(*zip(*points, strict=True), marker=marker, label=method)
    axis.set(xlabel="seconds of training, raw rows to encoder", ylabel="mAP", ylim=(0, None), xlim=(0, None))
    axis.set_title(f"CIFAR-10 EfficientNet features, {bits} bits, two threads")
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
