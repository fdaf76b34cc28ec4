"""The rule behind ``preserve="neighbors"`` and its alternatives, on queries held out of the training rows.

    python benchmarks/neighbors_study.py --data DIR [--sets GIST] [--bits 64 128]

2,000 rows of ``X_train`` ask, the others are trained on and searched; test queries are not touched. Each setting is
compared with ITQ query by query, one seed. Writes docs/results/neighbors_study.csv as it goes, where what is there is
not run again, docs/results/neighbors_study.md and docs/images/stretch.png.
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
from scq_gpu import plots
from scq_gpu.metrics import exact_neighbors, mean_average_precision
from scq_gpu.rows import basis
from scq_gpu.training import defaults
from scq_gpu.training.defaults import auto_ridge

sys.path.insert(0, str(Path(__file__).parent / "paper"))
from results import read_rows, table, write_figure, write_page, write_rows

N_QUERIES = 2_000
KEY = ("set", "bits", "setting")
ABOUT = (
    "Recall of the float top-10 by Hamming distance, against ITQ with the same seed: relative difference in percent, "
    "in brackets the standard error over queries, among the first 10 and 100 results; mAP by class over ITQ's, in "
    "points (EfficientNet). Made by `python benchmarks/neighbors_study.py --data DIR`; queries are 2,000 rows taken "
    "out of the training rows.\n\n![Recall against mAP](../images/stretch.png)\n\n"
    "*Stretch*: how far groups of rows are drawn apart ([theory](../theory.md)). *No stretch, ridge 0.3 sqrt(32 / "
    "bits)*: the rule before there was a stretch. *1 class bit in 16*: that rule, with so many bits learned for "
    "classes beside the others, not orthogonal to them. *Unweighted*: the axes are not flattened. *Spread thresholds*: "
    "the rule's map, each bit with a threshold of its own within 0.8 standard deviations of the mean. Multiples are of "
    "the rule's values."
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
def changed(module: Any, **values: Any) -> Iterator[None]:
    """A module with other values for some of its names."""
    before = {name: getattr(module, name) for name in values}
    vars(module).update(values)
    try:
        yield
    finally:
        vars(module).update(before)


Bits = Callable[[np.ndarray], np.ndarray]


def oge(X: np.ndarray, bits: int, *, ridge: float = 1.0, stretch: float = 1.0, weighted: bool = True) -> Any:
    """OgE with multiples of the rule's ridge and stretch."""
    flattening = basis.flattening if weighted else lambda variances, n_bits: np.ones(len(variances))
    encoder = scq.OgE(bits, ridge=ridge * auto_ridge(bits, "neighbors"), random_state=0)
    with changed(defaults, _STRETCH=stretch * defaults._STRETCH), changed(basis, flattening=flattening):
        return encoder.fit(X)


def dial_alone(X: np.ndarray, bits: int) -> Any:
    """OgE without stretch, its ridge falling with the length so that some mAP is left."""
    return oge(X, bits, stretch=0, ridge=0.3 * (32 / bits) ** 0.5 / auto_ridge(bits, "neighbors"))


def with_group_bits(X: np.ndarray, bits: int) -> Bits:
    """One bit in 16 learned for classes, the others without stretch."""
    groups = scq.OgE(bits // 16, preserve="classes", random_state=0).fit(X)
    others = dial_alone(X, bits - bits // 16)
    return lambda rows: np.hstack([others.transform(rows), groups.transform(rows)])


def spread_thresholds(X: np.ndarray, bits: int) -> Bits:
    """The rule's projections against thresholds within 0.8 standard deviations of their mean, all alike often."""
    encoder = oge(X, bits)
    places = np.random.default_rng(0).permutation(np.linspace(-0.8, 0.8, bits))
    thresholds = places * encoder.project(X).std(axis=0)
    return lambda rows: encoder.project(rows) >= thresholds


SETTINGS: dict[str, Callable[[np.ndarray, int], Bits]] = {
    "ITQ": lambda X, bits: scq.ITQ(bits, random_state=0).fit(X).transform,
    "the rule": lambda X, bits: oge(X, bits).transform,
    "half its stretch": lambda X, bits: oge(X, bits, stretch=0.5).transform,
    "twice its stretch": lambda X, bits: oge(X, bits, stretch=2).transform,
    "no stretch": lambda X, bits: oge(X, bits, stretch=0).transform,
    "no stretch, ridge 0.3 sqrt(32 / bits)": lambda X, bits: dial_alone(X, bits).transform,
    "half its ridge": lambda X, bits: oge(X, bits, ridge=0.5).transform,
    "4 times its ridge": lambda X, bits: oge(X, bits, ridge=4).transform,
    "unweighted": lambda X, bits: oge(X, bits, weighted=False).transform,
    "1 class bit in 16": with_group_bits,
    "spread thresholds": spread_thresholds,
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


PATHS = {
    "stretch: none, half, the rule, twice": ("no stretch", "half its stretch", "the rule", "twice its stretch"),
    "ridge: 4 times, the rule, half": ("4 times its ridge", "the rule", "half its ridge"),
}
POINTS = {"ITQ": "ITQ", "1 class bit in 16": "1 class bit in 16", "OnE": "OnE"}
POINTS |= {"ridge 0.3 sqrt(32 / bits), no stretch": "no stretch, ridge 0.3 sqrt(32 / bits)"}


def draw(rows: list[dict[str, str]], path: Path) -> None:
    """Recall against mAP on EfficientNet, both over ITQ, a panel for each length."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    mine = [row for row in rows if row["set"] == "EfficientNet"]
    lengths = sorted({int(row["bits"]) for row in mine})
    with plots.theme():
        figure, axes = plt.subplots(1, len(lengths), figsize=(3.4 * len(lengths), 3.6), sharey=True, squeeze=False)
        for axis, bits in zip(axes.flat, lengths, strict=True):
            at = {
                row["setting"]: (float(row["over ITQ 10@10, %"]), float(row["mAP over ITQ"]))
                for row in mine
                if row["bits"] == str(bits)
            }
            for label, settings in PATHS.items():
                axis.plot(*zip(*(at[setting] for setting in settings), strict=True), marker="o", label=label)
            for (label, setting), marker in zip(POINTS.items(), "s^vD", strict=True):
                axis.plot(*at[setting], marker, linestyle="", label=label)
            axis.axhline(3, linestyle=":", color="gray")
            axis.axvline(0, linestyle=":", color="gray")
            axis.set(title=f"{bits} bits", xlabel="recall 10@10 over ITQ, %")
        axes.flat[0].set_ylabel("mAP over ITQ, points")
        figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize="small")
        write_figure(figure, path)
        plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the feature files")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--bits", type=int, nargs="+", default=(64, 128, 256))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("docs"))
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    path = options.output / "results" / "neighbors_study.csv"
    with threadpool_limits(options.threads):
        for name in options.sets:
            add_rows(name, options, path)
    rows = read_rows(path)
    draw(rows, options.output / "images" / "stretch.png")
    write_page(options.output / "results" / "neighbors_study.md", "Neighbors: the study", ABOUT, page(rows))


if __name__ == "__main__":
    main()
