"""The dial between neighbors and classes: recall and mAP of OgE as its ridge moves.

    python benchmarks/ridge_dial.py --data DIR

EfficientNet features of CIFAR-10, 64 bits. Queries are 1,500 rows taken out of ``X_train``; test images are not used.
Draws docs/images/ridge_dial.png and prints the points as Markdown.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from features import efficientnet
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

import scq_gpu as scq
from scq_gpu import plots
from scq_gpu.metrics import exact_neighbors, mean_average_precision, recall_at_k

sys.path.insert(0, str(Path(__file__).parent / "paper"))
from results import table, write_figure

N_BITS, N_QUERIES = 64, 1500
RIDGES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.3, 0.6, 1.0, 3.0)
POINTS: dict[str, Callable[[], Any]] = {
    "ITQ": lambda: scq.ITQ(N_BITS, random_state=0),
    "the paper's OgE": lambda: scq.OgE(N_BITS, solver="columnwise", random_state=0),
    'preserve="neighbors"': lambda: scq.OgE(N_BITS, random_state=0),
    'preserve="classes"': lambda: scq.OgE(N_BITS, preserve="classes", random_state=0),
}
# where names and ridges are written beside their points: right or left, and by how many points up
NAMES = {
    "ITQ": ("left", -4),
    "the paper's OgE": ("left", -4),
    'preserve="neighbors"': ("left", -4),
    'preserve="classes"': ("right", -4),
}
NUMBERED = (0.005, 0.02, 0.05, 0.1, 0.3, 3.0)


class Rows(NamedTuple):
    """Database and queries with their labels, and the ten nearest rows of each query."""

    X: np.ndarray
    y: np.ndarray
    X_query: np.ndarray
    y_query: np.ndarray
    true: np.ndarray


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the CIFAR-10 feature files")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("docs/images/ridge_dial.png"))
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    with threadpool_limits(options.threads):
        rows = held_out(options.data)
        dial = {f"ridge {ridge:g}": measure(scq.OgE(N_BITS, ridge=ridge, random_state=0), rows) for ridge in RIDGES}
        points = {name: measure(make(), rows) for name, make in POINTS.items()}
    cells = ((name, f"{recall:.3f}", f"{mAP:.1f}") for name, (recall, mAP) in (dial | points).items())
    print(table(("OgE, 64 bits, unless named", "recall 10@10", "mAP"), cells))
    draw(list(dial.values()), points, options.output)


def held_out(folder: Path) -> Rows:
    """Training images alone: 1,500 to ask with, the others to train on and search in."""
    split = efficientnet(folder)
    order = np.random.default_rng(0).permutation(len(split.X))
    query, kept = order[:N_QUERIES], np.sort(order[N_QUERIES:])
    X, X_query = split.X[kept], split.X[query]
    return Rows(X, split.y[kept], X_query, split.y[query], exact_neighbors(X_query, X, k=10))


def measure(encoder: Any, rows: Rows) -> tuple[float, float]:
    """Recall of the float top-10 in 10 results by Hamming distance, and mAP in percent."""
    encoder.fit(rows.X)
    codes, queries = encoder.encode(rows.X), encoder.encode(rows.X_query)
    _, found = scq.HammingIndex(codes, N_BITS).search(queries, 10)
    result = recall_at_k(found, rows.true), 100 * mean_average_precision(queries, codes, rows.y_query, rows.y)
    print(f"# {encoder}: recall {result[0]:.4f}, mAP {result[1]:.2f}", flush=True)
    return result


def draw(dial: list[tuple[float, float]], points: dict[str, tuple[float, float]], path: Path) -> None:
    """mAP against recall: the line that the ridge moves along, and points beside it."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with plots.theme():
        figure, axis = plt.subplots(figsize=(7, 4.6))
        axis.plot(*zip(*dial, strict=True), marker="o", markersize=5, color="C0", zorder=1)
        for ridge, place in zip(RIDGES, dial, strict=True):
            if ridge in NUMBERED:
                write(axis, f"ridge {ridge:g}", place, "right", -2, color="C0", fontsize="small")
        for (name, place), color, marker in zip(points.items(), ("C1", "C3", "C2", "C4"), "s^*D", strict=True):
            size = 15 if marker == "*" else 8
            axis.plot(*place, marker=marker, markersize=size, color=color, linestyle="none", zorder=2)
            write(axis, name, place, *NAMES[name], color=color, weight="bold")
        axis.set(
            title="OgE's ridge: the dial between classes and neighbors",
            xlabel="neighbors: recall of the float top-10 in 10 results",
            ylabel="classes: mAP by label (%)",
        )
        axis.margins(x=0.15, y=0.1)
        write_figure(figure, path)
        plt.close(figure)


def write(axis: Any, text: str, place: tuple[float, float], side: str, up: int, **look: Any) -> None:
    """A text beside a point."""
    along, align = (10, "left") if side == "right" else (-10, "right")
    axis.annotate(text, place, xytext=(along, up), textcoords="offset points", ha=align, **look)


if __name__ == "__main__":
    main()
