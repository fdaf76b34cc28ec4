"""Inner products of rows whose lengths vary: recall of `VectorIndex` with bits and with cells.

    python benchmarks/inner_product.py --data DIR

WordNet definitions, each row of length 1 times a lognormal number (sigma 0.4); 2,000 held-out definitions as queries.
Recall 10@10 of the largest inner products, of 200 candidates that are re-ranked exactly, and without vectors.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from neighbors import load

import scq_gpu as scq
from scq_gpu.metrics import exact_neighbors

SIGMA, CANDIDATES = 0.4, 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the feature files")
    parser.add_argument("--bits", type=int, default=256)
    options = parser.parse_args()
    features = load(options.data, "WordNet", neighbors=False)
    lengths = np.random.default_rng(0).lognormal(sigma=SIGMA, size=(len(features.X), 1)).astype(np.float32)
    X, Q = features.X * lengths, features.queries["definitions"].X
    true = exact_neighbors(Q, X, k=10, metric="ip")
    print("| encoder | bytes | recall 10@10, rescored 200 | without vectors | fit, processor seconds |")
    print("|---|---|---|---|---|")
    for name in ("OPQ", "OgE", "ITQ"):
        started = time.process_time()
        encoder = getattr(scq, name)(options.bits, random_state=0).fit(X)
        seconds = time.process_time() - started
        index = scq.VectorIndex(X, encoder=encoder, metric="ip")
        found = index.search(Q, 10, candidates=CANDIDATES)[1]
        plain = scq.HammingIndex(encoder.encode(X), options.bits).search_asymmetric(encoder, Q, 10, metric="ip")[1]
        shares = (f"{(ids[:, :, None] == true[:, None, :]).any(axis=1).mean():.3f}" for ids in (found, plain))
        print(f"| {name} | {options.bits // 8} | {' | '.join(shares)} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
