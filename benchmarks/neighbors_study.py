"""The rule behind ``preserve="neighbors"`` and its alternatives, on queries held out of the training rows.

    python benchmarks/neighbors_study.py --data DIR [--sets GIST] [--bits 64 128]

2,000 rows of ``X_train`` ask, the others are trained on and searched; test queries are not touched. Each setting is
compared with ITQ query by query, one seed. Writes docs/results/neighbors_study.csv as it goes, where what is there is
not run again, and docs/results/neighbors_study.md.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from neighbors import SETS, hits
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

import scq_gpu as scq
from scq_gpu.metrics import exact_neighbors, mean_average_precision
from scq_gpu.rows import basis
from scq_gpu.training.defaults import auto_ridge

sys.path.insert(0, str(Path(__file__).parent / "paper"))
from results import read_rows, table, write_page, write_rows

N_QUERIES = 2_000
KEY = ("set", "bits", "setting")
ABOUT = (
    "Recall of the float top-10 by Hamming distance, against ITQ with the same seed: relative difference in percent, "
    "in brackets the standard error over queries, among the first 10 and 100 results; mAP by class over ITQ's, in "
    "points (EfficientNet). Made by `python benchmarks/neighbors_study.py --data DIR`; queries are 2,000 rows taken "
    "out of the training rows.\n\n"
    "*1 class bit in 16*: that many bits are learned for classes and stand beside a code of the others, not orthogonal "
    "to them. *Unweighted*: the axes are not flattened. Multiples of the ridge are of the rule's."
)


def load(name: str, folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows and labels, queries and labels, and the true neighbors of the queries."""
    source = SETS[name]
    with np.load(folder / source.file) as file:
        scale = file["feature_scale"].astype(np.float32) if "feature_scale" in file else np.float32(1)
        X, y = file["X_train"].astype(np.float32) * scale, file["y_train"]
    if source.cosine:
        X /= np.linalg.norm(X, axis=1, keepdims=True)
    order = np.random.default_rng(7).permutation(len(X))
    query, rest = order[:N_QUERIES], np.sort(order[N_QUERIES:])
    return X[rest], y[rest], X[query], y[query], exact_neighbors(X[query], X[rest], k=10)


@contextmanager
def unweighted() -> Iterator[None]:
    flattening = basis.flattening
    basis.flattening = lambda variances, n_bits: np.ones(len(variances))
    try:
        yield
    finally:
        basis.flattening = flattening


Bits = Callable[[np.ndarray], np.ndarray]


def oge(X: np.ndarray, bits: int, *, ridge: float = 1.0, weighted: bool = True, group_bits: int = 0) -> Bits:
    """Signs by OgE with a multiple of the rule's ridge."""
    encoder = scq.OgE(bits - group_bits, ridge=ridge * auto_ridge(bits, "neighbors"), random_state=0)
    if weighted:
        encoder.fit(X)
    else:
        with unweighted():
            encoder.fit(X)
    if not group_bits:
        return encoder.transform
    groups = scq.OgE(group_bits, preserve="classes", random_state=0).fit(X)
    return lambda rows: np.hstack([encoder.transform(rows), groups.transform(rows)])


SETTINGS: dict[str, Callable[[np.ndarray, int], Bits]] = {
    "ITQ": lambda X, bits: scq.ITQ(bits, random_state=0).fit(X).transform,
    "the rule": lambda X, bits: oge(X, bits),
    "half its ridge": lambda X, bits: oge(X, bits, ridge=0.5),
    "4 times its ridge": lambda X, bits: oge(X, bits, ridge=4),
    "unweighted": lambda X, bits: oge(X, bits, weighted=False),
    "unweighted, half the ridge": lambda X, bits: oge(X, bits, weighted=False, ridge=0.5),
    "1 class bit in 16": lambda X, bits: oge(X, bits, group_bits=bits // 16),
    "OnE": lambda X, bits: scq.OnE(bits, random_state=0).fit(X).transform,
}


def measure(setting: str, data: tuple[np.ndarray, ...], bits: int, labels: bool) -> tuple[np.ndarray, float]:
    """Recall per query among 10 and 100 results (2, n), and mAP."""
    X, y, Q, y_query, true = data
    signs = SETTINGS[setting](X, bits)
    codes, query_codes = scq.pack(signs(X)), scq.pack(signs(Q))
    found = scq.HammingIndex(codes, bits).search(query_codes, 100)[1]
    recall = np.array([hits(found[:, :k], true) for k in (10, 100)])
    return recall, 100 * mean_average_precision(query_codes, codes, y_query, y) if labels else np.nan


def add_rows(name: str, options: argparse.Namespace, path: Path) -> None:
    """Run what the file does not hold of one set."""
    data = load(name, options.data)
    for bits in options.bits:
        done = {row["setting"] for row in read_rows(path) if (row["set"], row["bits"]) == (name, str(bits))}
        wanted = [setting for setting in SETTINGS if setting not in done]
        if not wanted:
            continue
        itq, itq_map = measure("ITQ", data, bits, SETS[name].labels)
        for setting in wanted:
            recall, score = measure(setting, data, bits, SETS[name].labels) if setting != "ITQ" else (itq, itq_map)
            row: dict[str, Any] = dict(zip(KEY, (name, bits, setting), strict=True))
            for k, mine, theirs in zip((10, 100), recall, itq, strict=True):
                difference = 100 * (mine - theirs) / theirs.mean()
                row |= {f"10@{k}": mine.mean(), f"over ITQ 10@{k}, %": difference.mean()}
                row[f"its error 10@{k}"] = difference.std(ddof=1) / np.sqrt(len(difference))
            row |= {"mAP": score, "mAP over ITQ": score - itq_map}
            print(*(f"{v:.4g}" if isinstance(v, float) else v for v in row.values()), flush=True)
            write_rows(path, [*read_rows(path), row])


def page(rows: list[dict[str, str]]) -> str:
    lines = []
    for row in rows:
        cells = []
        for k in (10, 100):
            over = f"{float(row[f'over ITQ 10@{k}, %']):+.1f} ({float(row[f'its error 10@{k}']):.1f})"
            cells.append(f"{float(row[f'10@{k}']):.3f}" if row["setting"] == "ITQ" else over)
        score = float(row["mAP over ITQ"])
        lines.append((row["set"], row["bits"], row["setting"], *cells, "" if np.isnan(score) else f"{score:+.1f}"))
    return table(("set", "bits", "setting", "10@10", "10@100", "mAP over ITQ"), lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the feature files")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--bits", type=int, nargs="+", default=(32, 64, 128, 256))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    path = options.output / "neighbors_study.csv"
    with threadpool_limits(options.threads):
        for name in options.sets:
            add_rows(name, options, path)
    write_page(options.output / "neighbors_study.md", "Neighbors: the study", ABOUT, page(read_rows(path)))


if __name__ == "__main__":
    main()
