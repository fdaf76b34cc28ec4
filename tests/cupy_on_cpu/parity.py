"""How far the codes of NumPy and CuPy agree after fits of the same rows, and how good either are: a Markdown table.

    .venv-cupy/bin/python tests/cupy_on_cpu/parity.py [FEATURES.npy] [--rows 2000]

Without a file, rows are Gaussian with a decaying spectrum. CuPy runs on the stand-in: agreement depends on the order in
which a device adds up, and on a GPU it may be another.
"""

from __future__ import annotations

import argparse

import cupy
import numpy as np

import scq_gpu as scq
from scq_gpu import metrics

K, QUERIES = 10, 200


def load(path: str | None, n: int) -> np.ndarray:
    """n rows, drawn at random from a file."""
    rng = np.random.default_rng(0)
    if path is None:
        return (rng.standard_normal((n, 64)) * np.logspace(0, -1, 64)).astype(np.float32)
    X = np.load(path, mmap_mode="r")
    X = X.reshape(len(X), -1)
    return np.asarray(X[np.sort(rng.choice(len(X), min(n, len(X)), replace=False))], dtype=np.float32)


def recall(codes: np.ndarray, n_bits: int, nearest: np.ndarray) -> float:
    """Share of the true neighbors of the first rows among the nearest codes, ties by lowest id."""
    _, found = scq.HammingIndex(codes[QUERIES:], n_bits).search(codes[:QUERIES], K)
    return float(np.mean(metrics.recall_at_k(found, nearest, k=K)))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("features", nargs="?")
    parser.add_argument("--rows", type=int, default=2000)
    options = parser.parse_args()
    X = load(options.features, options.rows)
    nearest = metrics.exact_neighbors(X[:QUERIES], X[QUERIES:], k=K)
    print(f"{X.shape[0]:,} x {X.shape[1]} rows, {QUERIES} of them queries; recall is of {K} in {K}\n")
    print("| | bits | bits that agree | loss, NumPy | loss, CuPy | recall, NumPy | recall, CuPy |")
    print("|---|---|---|---|---|---|---|")
    for preserve in ("neighbors", "classes"):
        for n_bits in (16, 32, 64):
            one, other = (scq.OgE(n_bits, preserve=preserve, random_state=0).fit(x) for x in (X, cupy.asarray(X)))
            codes = one.encode(X), other.encode(cupy.asarray(X)).get()
            bits = np.mean(scq.unpack(codes[0], n_bits) == scq.unpack(codes[1], n_bits))
            losses = f"{one.loss_curve_[-1]:.3f} | {other.loss_curve_[-1]:.3f}"
            recalls = " | ".join(f"{recall(c, n_bits, nearest):.3f}" for c in codes)
            print(f"| {preserve} | {n_bits} | {bits:.1%} | {losses} | {recalls} |", flush=True)


if __name__ == "__main__":
    main()
