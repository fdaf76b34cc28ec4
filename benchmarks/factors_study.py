"""The rule behind ``encode(X, factors=True)`` and its alternatives, on queries held out of the training rows.

    python benchmarks/factors_study.py --data DIR [--sets GIST] [--bits 64 128] [--encoders OgE ITQ]

2,000 rows of ``X_train`` ask, the others are trained on and searched; test queries are not touched. One seed. Writes
docs/results/factors_study.csv as it goes, where what is there is not run again, and docs/results/factors_study.md.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from neighbors import SETS, faiss_index, hits
from neighbors_study import load
from results import read_rows, table, write_page, write_rows  # of benchmarks/paper, which neighbors_study finds
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

import scq_gpu as scq
from scq_gpu._core.factors import join_factors
from scq_gpu.search.scoring import UnitMap, unit_map

KEY = ("set", "bits", "encoder", "rule")
ENCODERS = {"OgE": scq.OgE, "OnE": scq.OnE, "ITQ": scq.ITQ, "LSH": scq.LSH}
NONE, KEPT, FAISS = "no factors", "**kept**", "Faiss PCAR,RaBitQ"
ABOUT = (
    "Recall of the float top-10 by float queries against codes with two float16 per row, among the first 10 and 100 "
    "results; in brackets the difference to the same codes without factors, query by query, with its error, in "
    "points. Made by `python benchmarks/factors_study.py --data DIR`; queries are 2,000 rows taken out of the training "
    "rows. The same queries served to choose: some hundred settings (powers between both f, shares of what is outside, "
    "other forms of its bound, tau by length) were tried on the first 700 or 1,000 of them and are not kept.\n\n"
    "Rules, in the symbols of `scq_gpu/search/scoring.py`: *as RaBitQ* is f = |o|^2 / S, with |o|^2 in r, *nearest "
    "multiple* f = S / L with S^2 / L in r, *between* f = |o| / sqrt(L), the geometric mean of both, with |o|^2 in r. "
    "*Outside by half* (a quarter) adds that share of the squared norm outside the span to r; all others add "
    "m |x|^2 / (m + |x|^2) of it. *Levels* puts the levels of each bit in the place of -1 and +1. *As RaBitQ, outside "
    "by half* is what the library did before. LSH, whose random columns hold little of a row, was run up to 128 bits "
    "(`--encoders LSH --bits 32 64 128`)."
)


class Sums(NamedTuple):
    """What a rule makes the two numbers of each row from, in the scale of the map."""

    inside: np.ndarray  # |o|^2
    along: np.ndarray  # S, the sum of o_k b_k
    outside: np.ndarray  # |x - mean|^2 - |o|^2
    length: float | np.ndarray  # |b|^2


def saturating(sums: Sums) -> np.ndarray:
    return np.pi / 2 * sums.outside / (np.pi / 2 + sums.outside)


def shrunk(sums: Sums, outside: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and scales between the nearest multiple of the code (noise = inf) and RaBitQ (noise = 0)."""
    told = sums.along**2 / sums.length
    lost = sums.inside - told
    tau = sums.along**2 / (sums.along**2 + noise * sums.inside)
    return told + tau * lost + outside, sums.along / sums.length + tau * lost / sums.along


def between(sums: Sums, outside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return sums.inside + outside, np.sqrt(sums.inside / sums.length)


RULES: dict[str, Callable[[Sums], tuple[np.ndarray, np.ndarray]]] = {
    "as RaBitQ, outside by half": lambda sums: shrunk(sums, sums.outside / 2, 0.0),
    "as RaBitQ": lambda sums: shrunk(sums, saturating(sums), 0.0),
    "nearest multiple": lambda sums: shrunk(sums, saturating(sums), np.inf),
    "between, outside by a quarter": lambda sums: between(sums, sums.outside / 4),
    "kept, outside by half": lambda sums: shrunk(sums, sums.outside / 2, 100.0),
    "kept, outside by a quarter": lambda sums: shrunk(sums, sums.outside / 4, 100.0),
    "kept, 50 for 100 in tau": lambda sums: shrunk(sums, saturating(sums), 50.0),
    "kept, 200 for 100 in tau": lambda sums: shrunk(sums, saturating(sums), 200.0),
}
LEVELS = "kept, levels"


def row_sums(known: UnitMap, X: np.ndarray, signs: np.ndarray) -> Sums:
    """Sums of rows, given what stands for each bit."""
    centered = (X - known.mean.astype(np.float32)) * np.float32(known.scale)
    o = centered @ known.frame.astype(np.float32)
    inside, along = (o**2).sum(axis=1, dtype=np.float64), (o * signs).sum(axis=1, dtype=np.float64)
    whole = (centered**2).sum(axis=1, dtype=np.float64)
    return Sums(inside, along, np.maximum(whole - inside, 0), (signs**2).sum(axis=1, dtype=np.float64))


def search(offset: np.ndarray, scale: np.ndarray, signs: np.ndarray, o: np.ndarray, k: int = 100) -> np.ndarray:
    """Ids of the k least of offset - 2 scale (o . signs)."""
    found = []
    for block in np.array_split(o, max(1, len(o) // 100)):
        distances = offset - 2 * scale * (block @ signs.T)
        best = np.argpartition(distances, k, axis=1)[:, :k]
        found.append(np.take_along_axis(best, np.take_along_axis(distances, best, axis=1).argsort(axis=1), axis=1))
    return np.concatenate(found)


def findings(
    encoder: Any, X: np.ndarray, Q: np.ndarray, metric: str, wanted: list[str]
) -> Iterator[tuple[str, np.ndarray]]:
    """Rules, and the ids that they find."""
    bits, codes, known = encoder.n_bits, encoder.encode(X), unit_map(encoder)
    b = encoder.transform(X).astype(np.float32)
    sums = row_sums(known, X, b)
    stored = {rule: np.stack(make(sums), axis=1).astype(np.float16) for rule, make in RULES.items() if rule in wanted}
    wide = {NONE: codes} | {rule: join_factors(codes, factors) for rule, factors in stored.items()}
    for rule, rows in (wide | {KEPT: encoder.encode(X, factors=True)}).items():
        yield rule, scq.HammingIndex(rows, bits).search_asymmetric(encoder, Q, 100, metric=metric)[1]
    if LEVELS in wanted:
        levels = np.where(b > 0, known.levels[:, 1], known.levels[:, 0]).astype(np.float32)
        levels *= np.float32(known.scale * np.sqrt(bits))  # as long as b on average
        sums = row_sums(known, X, levels)
        offset, scale = (x.astype(np.float32) for x in shrunk(sums, saturating(sums), 100.0))
        o = (Q - known.mean.astype(np.float32)) @ known.frame.astype(np.float32) * np.float32(known.scale)
        yield LEVELS, search(offset, scale, levels, o)


def add_rows(name: str, options: argparse.Namespace, path: Path) -> None:
    """Run what the file does not hold of one set."""
    X, _, Q, _, true = load(name, options.data)
    metric = "cosine" if SETS[name].cosine else "l2"

    def add(bits: int, encoder: str, rule: str, found: np.ndarray, base: np.ndarray | None) -> np.ndarray:
        recall = np.array([hits(found[:, :k], true) for k in (10, 100)])
        row: dict[str, Any] = dict(zip(KEY, (name, bits, encoder, rule), strict=True))
        difference = recall - (recall if base is None else base)
        for k, mine, over in zip((10, 100), recall, difference, strict=True):
            row |= {f"10@{k}": mine.mean(), f"over none 10@{k}": over.mean()}
            row[f"its error 10@{k}"] = over.std(ddof=1) / np.sqrt(len(over))
        print(*(f"{v:.4g}" if isinstance(v, float) else v for v in row.values()), flush=True)
        write_rows(path, [*read_rows(path), row])
        return recall

    for bits in options.bits:
        done = {
            (row["encoder"], row["rule"]) for row in read_rows(path) if row["set"] == name and row["bits"] == str(bits)
        }
        if ("", FAISS) not in done:
            index = faiss_index(f"PCAR{bits},RaBitQ", X)
            index.add(X)
            add(bits, "", FAISS, index.search(Q, 100)[1], None)
        for kind in options.encoders:
            wanted = [rule for rule in (NONE, KEPT, *RULES, LEVELS) if (kind, rule) not in done]
            if not wanted:
                continue
            base = None
            for rule, found in findings(ENCODERS[kind](bits, random_state=0).fit(X), X, Q, metric, wanted):
                if rule == NONE:
                    base = np.array([hits(found[:, :k], true) for k in (10, 100)])
                if rule in wanted:
                    add(bits, kind, rule, found, base)


def page(rows: list[dict[str, str]]) -> str:
    lines = []
    for row in rows:
        cells = []
        for k in (10, 100):
            cell = f"{float(row[f'10@{k}']):.3f}"
            if row["rule"] not in (NONE, FAISS):
                over, error = (100 * float(row[f"{field} 10@{k}"]) for field in ("over none", "its error"))
                cell += f" ({over:+.1f} ± {error:.1f})"
            cells.append(cell)
        lines.append((row["set"], row["bits"], row["encoder"], row["rule"], *cells))
    return table((*KEY, "10@10", "10@100"), lines)


def summary(rows: list[dict[str, str]]) -> str:
    """The rules side by side: mean relative difference to the rule kept, over sets and lengths, and the worst."""
    kept = {(r["set"], r["bits"], r["encoder"]): r for r in rows if r["rule"] == KEPT}
    lines = []
    for encoder in dict.fromkeys(row["encoder"] for row in rows if row["encoder"]):
        for rule in dict.fromkeys(row["rule"] for row in rows):
            cells = []
            for k in (10, 100):
                pairs = [
                    (float(row[f"10@{k}"]), float(kept[row["set"], row["bits"], encoder][f"10@{k}"]))
                    for row in rows
                    if row["rule"] == rule
                    and row["encoder"] in (encoder, "")
                    and (row["set"], row["bits"], encoder) in kept
                ]
                relative = [100 * (mine / best - 1) for mine, best in pairs]
                cells += [f"{np.mean(relative):+.1f}", f"{min(relative):+.1f}", f"{max(relative):+.1f}"]
            lines.append((encoder, rule, *cells))
    header = [f"10@{k}{what}" for k in (10, 100) for what in (", %", ", least", ", most")]
    return "## Against the rule kept\n\nOver sets and lengths, in percent.\n\n" + table(
        ("encoder", "rule", *header), lines
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the feature files")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--bits", type=int, nargs="+", default=(32, 64, 128, 256))
    parser.add_argument("--encoders", nargs="+", choices=ENCODERS, default=("OgE", "ITQ"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    path = options.output / "factors_study.csv"
    with threadpool_limits(options.threads):
        for name in options.sets:
            add_rows(name, options, path)
    rows = read_rows(path)
    write_page(
        options.output / "factors_study.md", "Factors: the study", ABOUT, summary(rows), "## All\n\n" + page(rows)
    )


if __name__ == "__main__":
    main()
