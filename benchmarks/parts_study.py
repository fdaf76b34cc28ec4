"""Passes over parts of the rows, on queries held out of the training rows: the study behind `training/partial.py`.

    python benchmarks/parts_study.py --data DIR

mAP of OgE for classes on EfficientNet features of CIFAR-10 and on WordNet's embeddings (45 lexicographer files), whose
test rows are not used: 2,000 training rows ask, the others are trained on and searched. Four ways: parts in turn,
which is the default; the same with seven polar steps in every V step; one part that stays; all rows until the loss
settles. Mean ± standard error over seeds, as Markdown.
"""

from __future__ import annotations

import argparse
import contextlib
import time
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
from features import SETS
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

import scq_gpu as scq
from scq_gpu.encoders import scq as scq_estimators
from scq_gpu.metrics import mean_average_precision
from scq_gpu.training import partial, starts
from scq_gpu.training.joint import STEPS

N_QUERIES = 2_000


def split(name: str, folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows, labels, queries and their labels."""
    rows = SETS[name](folder)
    order = np.random.default_rng(7).permutation(len(rows.X))
    query, rest = order[:N_QUERIES], np.sort(order[N_QUERIES:])
    return rows.X[rest], rows.y[rest], rows.X[query], rows.y[query]


WAYS: dict[str, dict[tuple[ModuleType, str], Any]] = {
    "parts in turn": {},
    "seven steps in every V step": {
        (scq_estimators, "_PARTIAL_STEPS"): {True: STEPS, False: STEPS},
        (starts, "_ROUGHLY"): 1e6,
    },
    "one part": {(partial, "cut"): lambda *args, cut=partial.cut, **named: cut(*args, **named)[:1] * 2},
    "all rows": {},
}


def fit(way: str, X: np.ndarray, bits: int, seed: int) -> scq.OgE:
    with contextlib.ExitStack() as stack:
        for (module, name), value in WAYS[way].items():
            stack.enter_context(mock.patch.object(module, name, value))
        max_iter = 100 if way == "all rows" else "auto"
        return scq.OgE(bits, preserve="classes", max_iter=max_iter, random_state=seed).fit(X)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the feature files")
    parser.add_argument("--sets", nargs="*", default=("EfficientNet", "WordNet"))
    parser.add_argument("--bits", type=int, nargs="*", default=(32, 64, 128))
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    print("| rows | bits | way | mAP | CPU seconds per fit |")
    print("|---|---|---|---|---|")
    with threadpool_limits(options.threads):
        for name in options.sets:
            X, y, Q, labels = split(name, options.data)
            for bits in options.bits:
                for way in options.ways:
                    started, scores = time.process_time(), []
                    encoders = [fit(way, X, bits, seed) for seed in range(options.seeds)]
                    seconds = (time.process_time() - started) / options.seeds
                    for encoder in encoders:
                        codes = encoder.encode(Q), encoder.encode(X)
                        scores.append(100 * mean_average_precision(*codes, labels, y))
                    error = np.std(scores, ddof=1) / np.sqrt(len(scores))
                    score = f"{np.mean(scores):.2f} ± {error:.2f}"
                    print(f"| {name} | {bits} | {way} | {score} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
