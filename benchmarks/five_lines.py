"""Memory and recall on 60,000 text embeddings: the tables of docs/embeddings.md and docs/databases/faiss.md.

python benchmarks/five_lines.py --data DIR [--bits 64,128,256] [--faiss]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import scq_gpu as scq

SEED = 0
K = 10
CANDIDATES = (50, 100, 200, 400)
FOUND = 100  # answers per query of a search by codes alone, in the table of Faiss's indexes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with wordnet_minilm384.npz")
    parser.add_argument("--bits", default="64,128,256", help="lengths, separated by commas")
    parser.add_argument("--faiss", action="store_true", help="compare Faiss's indexes of the same codes instead")
    arguments = parser.parse_args()
    with np.load(arguments.data / "wordnet_minilm384.npz") as file:
        X, queries = (file[name].astype(np.float32) for name in ("X_train", "X_test"))
    X = X[:60_000]
    true = scq.metrics.exact_neighbors(queries, X, metric="cosine", k=K)
    if arguments.faiss:
        normalized, normalized_queries = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (X, queries))
        print_table(["index", "queries", f"recall {K}@{FOUND}"], faiss_rows(normalized, normalized_queries, true))
        return
    head = ["bits", "bytes per vector", "a million vectors", "codes alone"]
    lengths = [int(bits) for bits in arguments.bits.split(",")]
    print_table(
        [*head, *(f"{candidates} rescored" for candidates in CANDIDATES)],
        (memory_row(X, queries, true, n_bits) for n_bits in lengths),
    )


def memory_row(X: np.ndarray, queries: np.ndarray, true: np.ndarray, n_bits: int) -> list[Any]:
    """Return memory of an index of n_bits, and its recall: by codes alone, and rescored."""
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/vectors.npy", X)
        index = scq.VectorIndex(f"{folder}/vectors.npy", n_bits=n_bits, metric="cosine", random_state=SEED)
        found = [index.search(queries, k=K, candidates=candidates)[1] for candidates in (K, *CANDIDATES)]
    recalls = [f"{scq.metrics.recall_at_k(ids, true):.3f}" for ids in found]
    return [n_bits, n_bits // 8, f"{n_bits // 8} MB", *recalls]


def faiss_rows(X: np.ndarray, queries: np.ndarray, true: np.ndarray) -> Iterator[list[str]]:
    """List the recall of true neighbors among the first answers of each kind of index, and of ours, at 128 bits."""
    encoder = scq.OgE(128, random_state=SEED).fit(X)
    codes, query_codes = encoder.encode(X), encoder.encode(queries)

    def row(name: str, kind: str, ids: np.ndarray) -> list[str]:
        return [name, kind, f"{scq.metrics.recall_at_k(ids, true):.3f}"]

    ours = scq.HammingIndex(codes, 128)
    yield row("`HammingIndex.search`", "codes", ours.search(query_codes, k=FOUND)[1])
    flat = encoder.to_faiss("flat")
    flat.add(X)
    yield row('`to_faiss("flat")`', "codes", flat.search(queries, FOUND)[1])
    inverted = encoder.to_faiss("ivf", n_lists=1024)
    inverted.train(codes)
    inverted.add(codes)
    for probes in (16, 64):
        inverted.nprobe = probes
        name = f'`to_faiss("ivf", n_lists=1024)`, `nprobe = {probes}`'
        yield row(name, "codes", inverted.search(query_codes, FOUND)[1])
    graph = encoder.to_faiss("hnsw")
    graph.add(codes)
    graph.hnsw.efSearch = 200
    yield row('`to_faiss("hnsw")`, `hnsw.efSearch = 200`', "codes", graph.search(query_codes, FOUND)[1])
    yield row("`HammingIndex.search_asymmetric`", "floats", ours.search_asymmetric(encoder, queries, k=FOUND)[1])
    scan = encoder.to_faiss("asymmetric")
    scan.add(X)
    yield row('`to_faiss("asymmetric")`', "floats", scan.search(queries, FOUND)[1])


def print_table(head: list[str], rows: Iterator[list[Any]]) -> None:
    print("| " + " | ".join(head) + " |")
    print("| " + " | ".join("---" for _ in head) + " |")
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |", flush=True)


if __name__ == "__main__":
    main()
