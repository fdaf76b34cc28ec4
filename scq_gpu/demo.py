"""The main job on real data: ``python -m scq_gpu.demo`` (or ``make demo``).

Fits encoders on the 8 x 8 digits that ship with scikit-learn, searches with their codes, and shows how good the answers
are in a table and a picture.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import scq_gpu as scq
from scq_gpu.codes import code_bytes
from scq_gpu.metrics import mean_average_precision, precision_at_k

QUERIES = 300
SHOWN = 8  # queries in the picture
ANSWERS = 10  # nearest images beside each


def main(arguments: list[str] | None = None) -> None:
    """Print the table and save the picture."""
    parser = argparse.ArgumentParser(prog="python -m scq_gpu.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("demo_output"), help="folder for the picture")
    options = parser.parse_args(arguments)

    X, y = load_digits(return_X_y=True)
    X = X.astype(np.float32)
    X_base, X_query, y_base, y_query = train_test_split(X, y, test_size=QUERIES, stratify=y, random_state=0)
    print(f"{len(X_base)} handwritten digits as database, {QUERIES} others as queries, {X.shape[1]} float32 features\n")
    print(f"{'method':<14}{'bits':>6}{'mAP':>8}{'prec@100':>10}{'bytes/vector':>14}{'fit seconds':>13}")
    print("-" * 65)
    shown: Any = None
    for n_bits in (8, 16, 32):
        for Encoder in (scq.OnE, scq.OgE):
            started = time.perf_counter()
            encoder = Encoder(n_bits=n_bits, random_state=0).fit(X_base)
            seconds = time.perf_counter() - started
            codes = encoder.encode(X_query), encoder.encode(X_base)
            figures = (
                mean_average_precision(*codes, y_query, y_base),
                precision_at_k(*codes, y_query, y_base, k=100),
            )
            print(f"{Encoder.__name__:<14}{n_bits:>6}{_figures(*figures)}{code_bytes(n_bits):>14}{seconds:>13.3f}")
            shown = encoder
    exact = _float_ranking(X_query, X_base, y_query, y_base)
    print(f"{'float vectors':<14}{'':>6}{_figures(*exact)}{X.shape[1] * 4:>14}{'':>13}")

    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "neighbours.png"
    _draw_neighbours(path, shown, X_base, X_query, y_base, y_query)
    print(f"\nQueries and their nearest images by Hamming distance ({shown.n_bits} bits): {path}")


def _figures(mean_ap: float, precision: float) -> str:
    return f"{100 * mean_ap:>8.1f}{100 * precision:>10.1f}"


def _float_ranking(
    X_query: np.ndarray, X_base: np.ndarray, y_query: np.ndarray, y_base: np.ndarray
) -> tuple[float, float]:
    """MAP and precision at 100 of the ranking by Euclidean distance, which codes are to come close to."""
    order = np.argsort(((X_query[:, None] - X_base) ** 2).sum(-1), axis=1, kind="stable")
    relevant = y_base[order] == y_query[:, None]
    precision = relevant.cumsum(1) / np.arange(1, len(X_base) + 1)
    return float(((precision * relevant).sum(1) / relevant.sum(1)).mean()), float(relevant[:, :100].mean())


def _draw_neighbours(
    path: Path, encoder: Any, X_base: np.ndarray, X_query: np.ndarray, y_base: np.ndarray, y_query: np.ndarray
) -> None:
    """One row a query, each digit once: the query, then the nearest images, red where the digit is another."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    queries = [int(np.flatnonzero(y_query == digit)[0]) for digit in range(SHOWN)]
    bits_query, bits_base = encoder.transform(X_query[queries]), encoder.transform(X_base)
    distances = (bits_query[:, None] != bits_base).sum(-1)
    figure, axes = plt.subplots(SHOWN, ANSWERS + 1, figsize=(ANSWERS + 1, SHOWN + 0.6), layout="constrained")
    for row, query, distance in zip(axes, queries, distances, strict=True):
        nearest = np.argsort(distance, kind="stable")[:ANSWERS]
        row[0].imshow(X_query[query].reshape(8, 8), cmap="Blues")
        row[0].set_ylabel("query", fontsize=8)
        for axis, image in zip(row[1:], nearest, strict=True):
            right = y_base[image] == y_query[query]
            axis.imshow(X_base[image].reshape(8, 8), cmap="Greys" if right else "Reds")
            axis.set_xlabel(f"{distance[image]}", fontsize=8, labelpad=1)
        for axis in row:
            axis.set_xticks([])
            axis.set_yticks([])
    name, n_bits = type(encoder).__name__, encoder.n_bits
    figure.suptitle(
        f"{name}, {n_bits} bits a digit ({code_bytes(n_bits)} bytes): queries (blue), nearest by Hamming distance, "
        "wrong ones red",
        fontsize=10,
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
