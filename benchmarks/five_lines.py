"""Recall of `VectorIndex` on 60,000 text embeddings, 16 bytes each: the figures of docs/embeddings.md.

python benchmarks/five_lines.py --data DIR
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

import scq_gpu as scq


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with wordnet_minilm384.npz")
    with np.load(parser.parse_args().data / "wordnet_minilm384.npz") as file:
        X, queries = (file[name].astype(np.float32) for name in ("X_train", "X_test"))
    X = X[:60_000]  # scale does not matter to the cosine
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/vectors.npy", X)
        index = scq.VectorIndex(f"{folder}/vectors.npy", n_bits=128, metric="cosine", random_state=0)
        print(index)
        true = scq.metrics.exact_neighbors(queries, X, metric="cosine")
        for candidates in (50, 100, 200, 400):
            _, ids = index.search(queries, k=10, candidates=candidates)
            print(f"candidates {candidates:5}   recall@10 {scq.metrics.recall_at_k(ids, true):.3f}")


if __name__ == "__main__":
    main()
