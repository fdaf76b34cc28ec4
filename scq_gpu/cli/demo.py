"""The main job on real data: ``scq-gpu demo`` (or ``make demo``).

Fits encoders on the 8 x 8 digits that ship with scikit-learn, searches with their codes, and shows how good the answers
are in a table and a picture.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import scq_gpu as scq
from scq_gpu._core.bits import code_bytes
from scq_gpu.plots._gallery import typical_queries

_QUERIES = 300
_K = 100
_SHOWN, _ANSWERS = 8, 10  # queries in the picture, and nearest images beside each


def main(output: Path = Path("demo_output")) -> None:
    """Print the table and save the picture."""
    X, y = load_digits(return_X_y=True)
    X = X.astype(np.float32)
    X_base, X_query, y_base, y_query = train_test_split(X, y, test_size=_QUERIES, stratify=y, random_state=0)
    print(f"{len(X_base)} handwritten digits as database, {_QUERIES} others as queries, {X.shape[1]} float32 features")
    print(f"\n{'method':<14}{'bits':>6}{'mAP':>8}{f'prec@{_K}':>10}{'bytes/vector':>14}{'fit seconds':>13}")
    print("-" * 65)
    encoder: Any = None
    for n_bits in (8, 16, 32):
        for Encoder in (scq.OnE, scq.OgE):
            started = time.perf_counter()
            encoder = Encoder(n_bits=n_bits, preserve="classes", random_state=0).fit(X_base)
            seconds = f"{time.perf_counter() - started:.3f}"
            found = scq.evaluate(encoder, X_query, X_base, y_query, y_base, k=_K).as_dict()
            figures = found["mean_average_precision"], found["precision_at_k"]
            _print_line(Encoder.__name__, n_bits, *figures, code_bytes(n_bits), seconds)
    ranked = scq.metrics.exact_neighbors(X_query, X_base, k=len(X_base))
    mean_ap = scq.metrics.ranked_average_precision(ranked, y_query, y_base).mean()
    precision = scq.metrics.ranked_precision_at_k(ranked, y_query, y_base, k=_K)
    _print_line("float vectors", "", mean_ap, precision, 4 * X.shape[1], "")

    output.mkdir(parents=True, exist_ok=True)
    path = output / "neighbors.png"
    codes, query_codes = encoder.encode(X_base), encoder.encode(X_query)
    chosen = typical_queries(scq.metrics.average_precision(query_codes, codes, y_query, y_base), _SHOWN, y_query)
    distances, ids = scq.HammingIndex(codes, n_bits).search(query_codes[chosen], _ANSWERS)
    queries, answers = X_query[chosen].reshape(-1, 8, 8), X_base[ids].reshape(*ids.shape, 8, 8)
    name = f"{type(encoder).__name__}, {n_bits} bits per digit ({code_bytes(n_bits)} bytes)"
    with scq.plots.theme():
        ax = scq.plots.gallery(queries, answers, right=y_base[ids] == y_query[chosen, None], distances=distances)
        ax.set_title(f"{name}: typical queries, and nearest by distance")
        ax.figure.savefig(path, dpi=110)
    print(f"\nTypical queries and their nearest images by Hamming distance ({n_bits} bits): {path}")


def _print_line(method: str, bits: object, mean_ap: float, precision: float, size: int, seconds: str) -> None:
    print(f"{method:<14}{bits:>6}{100 * mean_ap:>8.1f}{100 * precision:>10.1f}{size:>14}{seconds:>13}")
