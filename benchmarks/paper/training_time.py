"""Figure "training time": seconds of a fit against the number of rows, every method at 32 bits, and of encoding.

    python benchmarks/paper/training_time.py --data DIR

Fits start from raw float32 rows of 1280-D features, PCA included. OnE and OgE run 50 iterations of the columnwise
solver, as in the paper; whole fits of the joint solver are in bench_fit.py. Faiss's ITQ trains on all rows, as ours
does. Then the columnwise solver at a task the authors' MATLAB was timed at
(60,000 x 784 rows, PCA to 512, 32 bits, 50 iterations). Least of ``--repeats`` runs; needs an idle machine. Writes
docs/results/training_time.csv, authors_task.csv, training_time.md and .png.
"""

from __future__ import annotations

import argparse
import functools
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from methods import METHODS, SCRIPT_SCALE, find_methods, line_style
from protocols import cifar10
from results import arguments, new_figure, origin, table, write_figure, write_page, write_rows
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

import scq_gpu as scq

BITS, ITERATIONS = 32, 50
ROWS = (5000, 10000, 20000, 50000)
FAISS = "Faiss ITQ"
NAMES = (*(m for m in METHODS if METHODS[m].distance == "hamming" and m != SCRIPT_SCALE and "joint" not in m), FAISS)
# Seconds of the authors' MATLAB code in Octave at their task on two cores: PCA, then 50 iterations
AUTHORS = {"PCA": 6.6, "OgE": 8.7, "OnE": 97.0}
Encode = Callable[[np.ndarray], np.ndarray]


def fit(method: str, X: np.ndarray) -> Encode:
    """Fit, and return the encode function."""
    if method == FAISS:
        itq = faiss.ITQTransform(X.shape[1], BITS, True)
        itq.max_train_per_dim = len(X)  # all rows, instead of 10 a dimension
        itq.itq.max_iter = ITERATIONS
        itq.train(X)
        return lambda rows: scq.pack(itq.apply(rows) >= 0)
    encoder = METHODS[method].make(BITS, 0)
    if METHODS[method].iterates:
        encoder.set_params(max_iter=ITERATIONS, tol=0)
    return encoder.fit(X).encode


def least_seconds(work: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Return the least time of several calls, and the result of the last."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - started)
    return min(times), result


def measure(options: argparse.Namespace) -> list[dict]:
    """Measure a row per method and number of rows."""
    split = cifar10(options.data, 0)
    rows = []
    # compiled loops are compiled and threads started before anything is timed
    for method in options.methods:
        fit(method, split.X_train[:1500])(split.X_query[:10])
    for n in options.rows:
        X = np.ascontiguousarray(split.X_train[:n])
        for method in options.methods:
            seconds, encode = least_seconds(lambda X=X, method=method: fit(method, X), options.repeats)
            encoding, _ = least_seconds(lambda encode=encode: encode(split.X_query), max(options.repeats, 3))
            row = {"method": method, "rows": n, "fit seconds": seconds}
            rows.append(row | {"encode microseconds a row": 1e6 * encoding / len(split.X_query)})
            print("  ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in rows[-1].values()), flush=True)
    return rows


def authors_task(repeats: int) -> list[dict]:
    """Time whole columnwise fits at the authors' task: random rows with a spectrum that falls like that of images."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60000, 784), dtype=np.float32) / np.arange(1, 785, dtype=np.float32)
    X = X @ np.linalg.qr(rng.standard_normal((784, 784)))[0].astype(np.float32)
    rows = []
    for Encoder, ridge in ((scq.OgE, {"ridge": 0.02}), (scq.OnE, {})):
        encoder = Encoder(
            BITS, solver="columnwise", n_components=512, max_iter=ITERATIONS, tol=0, random_state=0, **ridge
        )
        ours, _ = least_seconds(lambda encoder=encoder: encoder.fit(X), repeats)
        theirs = AUTHORS["PCA"] + AUTHORS[Encoder.__name__]
        rows.append({"encoder": Encoder.__name__, "ours": ours, "authors": theirs, "ratio": theirs / ours})
        print(rows[-1], flush=True)
    return rows


def page(rows: list[dict], task: list[dict], options: argparse.Namespace) -> list[str]:
    by = {(r["method"], r["rows"]): r for r in rows}
    largest = max(options.rows)
    lines = []
    for method in options.methods:
        seconds = [f"{by[method, n]['fit seconds']:.2f}" for n in options.rows]
        ratio = (
            by[method, largest]["fit seconds"] / by[FAISS, largest]["fit seconds"]
            if FAISS in options.methods
            else np.nan
        )
        lines.append([method, *seconds, f"{ratio:.2f}", f"{by[method, largest]['encode microseconds a row']:.2f}"])
    names = f" --methods {' '.join(repr(m) for m in options.methods)}" if list(options.methods) != list(NAMES) else ""
    command = (
        f"training_time.py --data DIR --rows {' '.join(map(str, options.rows))} --repeats {options.repeats}{names}"
    )
    return [
        f"CIFAR-10, EfficientNet-Lite0 features, 1280-D float32, {BITS} bits: seconds of a fit from raw rows, PCA "
        f"included, and microseconds to encode a row. OnE and OgE run {ITERATIONS} iterations of the columnwise "
        f"solver, the others as long as they do by default; Faiss's ITQ runs {ITERATIONS} iterations on all rows. "
        f"Least of {options.repeats} runs. Fits of the joint solver are in [benchmarks](../benchmarks.md). "
        "The paper's figure prints no values; its text says that OgE is slightly slower than ITQ, and OnE takes over "
        "a minute for 100,000 rows.",
        origin(command, seeds=[0], threads=options.threads) + f" Faiss {faiss.__version__}.",
        "![seconds against rows](training_time.png)",
        table(["method", *(f"{n:,} rows" for n in options.rows), f"of Faiss at {largest:,}", "µs to encode"], lines),
        "## The authors' task",
        f"60,000 x 784 rows, PCA to 512, {BITS} bits, {ITERATIONS} iterations, columnwise solver: whole fits. The rows "
        "are random with a spectrum that falls as 1/k^2, since MNIST is not at hand. The authors' times are those of "
        f"their MATLAB code in Octave on two cores, measured once and not by this script: PCA {AUTHORS['PCA']} s, OgE "
        f"{AUTHORS['OgE']} s, OnE {AUTHORS['OnE']} s.",
        table(["encoder", "ours, seconds", "theirs, seconds", "times faster"],
              [[r["encoder"], f"{r['ours']:.2f}", f"{r['authors']:.1f}", f"{r['ratio']:.1f}"] for r in task]),
    ]  # fmt: skip


def plot(rows: list[dict], path: Path, *, pdf: bool) -> None:
    figure, axis = new_figure(size=(8.2, 4.8))
    for method in dict.fromkeys(r["method"] for r in rows):
        points = [(r["rows"], r["fit seconds"]) for r in rows if r["method"] == method]
        axis.loglog(*zip(*points, strict=True), **line_style(method))
    counts = sorted({r["rows"] for r in rows})
    axis.set_xticks(counts, [f"{n:,}" for n in counts])
    axis.set_xticks([], minor=True)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set(xlabel="rows", ylabel="seconds of a fit", title=f"Training time, {BITS} bits, 1280-D features")
    axis.grid(alpha=0.3, which="both")
    figure.legend(loc="outside right center", fontsize=8)
    write_figure(figure, path, pdf=pdf)


def main() -> None:
    parser = arguments(__doc__)
    known = functools.partial(find_methods, known=NAMES)
    parser.add_argument("--methods", nargs="+", type=known, default=[NAMES], metavar="METHOD")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    options.methods = list(dict.fromkeys(name for names in options.methods for name in names))
    warnings.simplefilter("ignore", ConvergenceWarning)
    faiss.omp_set_num_threads(options.threads)
    with threadpool_limits(options.threads):
        task = authors_task(options.repeats)
        rows = measure(options)
    write_rows(options.output / "training_time.csv", rows)
    write_rows(options.output / "authors_task.csv", task)
    plot(rows, options.output / "training_time.png", pdf=options.pdf)
    write_page(options.output / "training_time.md", "Training time", *page(rows, task, options))


if __name__ == "__main__":
    main()
