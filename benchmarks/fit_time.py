"""Whole fits with nothing but n_bits and a seed, beside Faiss's ITQ on the same rows: seconds and their ratio.

    python benchmarks/fit_time.py --data DIR [--rounds 3] [--threads 2]

Both sides go from raw rows to an encoder, in one process, in turns; the least of the rounds counts. Faiss's
``ITQTransform`` runs its 50 iterations on all rows.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
from features import efficientnet
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

import scq_gpu as scq


def rows_of(name: str, folder: Path) -> np.ndarray:
    if name == "EfficientNet":
        return np.ascontiguousarray(efficientnet(folder).X, dtype=np.float32)
    with np.load(folder / "wordnet_minilm384.npz") as file:
        X = file["X_train"].astype(np.float32) * file["feature_scale"].astype(np.float32)
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def faiss_itq(X: np.ndarray, bits: int) -> None:
    transform = faiss.ITQTransform(X.shape[1], bits, True)
    transform.max_train_per_dim = len(X)  # all rows
    transform.itq.max_iter = 50
    transform.train(X)


def seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the feature files")
    parser.add_argument("--sets", nargs="*", default=("EfficientNet", "WordNet"))
    parser.add_argument("--bits", type=int, nargs="*", default=(32, 64, 128, 256))
    parser.add_argument("--preserve", nargs="*", default=("neighbors", "classes"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    faiss.omp_set_num_threads(options.threads)
    contenders = {f"{name} {aim}": (name, aim) for name in ("OgE", "OnE") for aim in options.preserve}
    print("| rows | bits | Faiss ITQ |", " | ".join(contenders), "|")
    print("|---|---|---|" + "---|" * len(contenders))
    with threadpool_limits(options.threads):
        for name in options.sets:
            X = rows_of(name, options.data)
            for bits in options.bits:
                runs: dict[str, Callable[[], object]] = {"Faiss": lambda bits=bits, X=X: faiss_itq(X, bits)}
                for title, (encoder, aim) in contenders.items():
                    runs[title] = lambda e=encoder, a=aim, b=bits, X=X: getattr(scq, e)(
                        b, preserve=a, random_state=0
                    ).fit(X)
                least = dict.fromkeys(runs, np.inf)
                for _ in range(options.rounds):
                    for title, run in runs.items():
                        least[title] = min(least[title], seconds(run))
                cells = (f"{least[t]:.1f} s, {least[t] / least['Faiss']:.2f} x" for t in contenders)
                print(f"| {name} {X.shape[0]:,} x {X.shape[1]:,} | {bits} | {least['Faiss']:.1f} s |", end=" ")
                print(" | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
