"""What makes the joint solver's codes good: one change at a time, scored on queries held out of the training images.

    python benchmarks/study.py --data DIR
    python benchmarks/study.py --data DIR --encoders OgE --bits 128 256 --changes start \\
        --output docs/results/study_long.md

The official test images are not touched: 200 training images a class are the queries, 1,800 others a class are trained
on and searched. Each line is the mean and spread over starts that run side by side. Writes docs/results/study.md, or
what ``--output`` says.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import time
from pathlib import Path

import numpy as np
from features import efficientnet
from threadpoolctl import threadpool_limits

import scq_gpu as scq
from scq_gpu._core.arrays import namespace
from scq_gpu.metrics import exact_neighbors, mean_average_precision, recall_at_k
from scq_gpu.rows.basis import Basis, compute_basis
from scq_gpu.rows.passes import ProjectedRows, Rows
from scq_gpu.search.index import HammingIndex
from scq_gpu.training.defaults import choose_start
from scq_gpu.training.joint import STEPS, fit_joint_orthogonal, fit_joint_orthonormal
from scq_gpu.training.loop import VStep, all_solved, train
from scq_gpu.training.starts import draw_starts

XP = namespace(np.empty(0))
STARTS = {8: 12, 16: 8, 32: 6, 64: 4, 128: 2, 256: 2}
DEFAULT = {"components": None, "steps": STEPS, "start": "auto", "passes": 40}
CHANGES = [
    {},
    *({"start": s} for s in ("random", "itq")),
    *({"steps": s} for s in (3, 10, 40)),
    *({"components": c} for c in (512, 1280)),
    *({"ridge_factor": f} for f in (0.25, 4.0)),
    *({"passes": p} for p in (20, 80)),
]
ASKED = {"OgE": {"start", "steps", "components", "ridge_factor", "passes"}, "OnE": {"start"}}


class Trial:
    """Rows to train on and search, and queries with their classes and nearest rows."""

    def __init__(self, folder: Path) -> None:
        split = efficientnet(folder)
        rng = np.random.default_rng(12345)
        order = [rng.permutation(np.flatnonzero(split.y == label)) for label in range(10)]
        queries, rows = (np.concatenate([o[part] for o in order]) for part in (slice(0, 200), slice(200, 2000)))
        self.X, self.y, self.X_query, self.y_query = split.X[rows], split.y[rows], split.X[queries], split.y[queries]
        self.neighbours = exact_neighbors(self.X_query, self.X, k=10)
        self.moments = Rows(self.X).moments()

    def project(self, n_bits: int, components: int) -> tuple[Basis, ProjectedRows, np.ndarray, np.ndarray]:
        basis = compute_basis(self.moments, n_bits=n_bits, n_components=components, eps=1.2e-7, xp=XP)
        P, mean = (basis.P * basis.scale).astype(np.float32), basis.mean.astype(np.float32)
        Y, Y_query = (self.X - mean) @ P, (self.X_query - mean) @ P
        blocks = [Y[i : i + 1024] for i in range(0, len(Y), 1024)]
        return basis, ProjectedRows(blocks, sum_dtype=np.float64, xp=XP), Y, Y_query

    def score(self, V: np.ndarray, Y: np.ndarray, Y_query: np.ndarray) -> tuple[float, float]:
        """mAP by class, and the share of the 10 nearest rows found."""
        V = V.astype(np.float32)
        codes, queries = scq.pack(Y @ V >= 0), scq.pack(Y_query @ V >= 0)
        _, ids = HammingIndex(codes, V.shape[1]).search(queries, 10)
        return 100 * mean_average_precision(queries, codes, self.y_query, self.y), recall_at_k(ids, self.neighbours)


def run(trial: Trial, name: str, n_bits: int, change: dict) -> dict:
    """Fit all starts with one change to the defaults."""
    options = DEFAULT | change
    defaults = getattr(scq, name)(n_bits, preserve="classes")._recipe()
    ridge = defaults.ridge * options.get("ridge_factor", 1.0)
    components = options["components"] or defaults.n_components
    basis, rows, Y, Y_query = trial.project(n_bits, components)
    start = choose_start(options["start"], solver="joint", preserve="classes", n_bits=n_bits)
    draws = [
        draw_starts(start, basis, rows, n_bits=n_bits, n_init=1, random_state=seed, xp=XP)
        for seed in range(STARTS[n_bits])
    ]

    def joint(lam, M, V, memory):
        if name == "OnE":
            V_new = fit_joint_orthonormal(lam, M, V, steps=options["steps"], xp=XP)
        else:
            V_new = fit_joint_orthogonal(lam, M, V, ridge=ridge, steps=options["steps"], xp=XP)
        return V_new, None, all_solved(M, xp=XP)

    started = time.perf_counter()
    runs = train(
        rows,
        basis.lam,
        np.concatenate(draws),
        step=VStep(joint, descends=True),
        ridge=ridge,
        tol=0,
        iterations=range(1, options["passes"] + 1),
        xp=XP,
    )
    seconds = time.perf_counter() - started
    scores = np.array([trial.score(r.V, Y, Y_query) for r in runs])
    row = {
        "encoder": name,
        "bits": n_bits,
        "change": ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in change.items()) or "(defaults)",
        "mAP": scores[:, 0].mean(),
        "spread": scores[:, 0].std(),
        "recall": scores[:, 1].mean(),
        "loss": np.mean([r.losses[-1] for r in runs]) / n_bits,
    }
    print(
        "  ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()), f"{seconds:.0f} s", flush=True
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the CIFAR-10 feature files")
    parser.add_argument("--bits", type=int, nargs="+", default=[8, 16, 32], choices=sorted(STARTS))
    parser.add_argument("--encoders", nargs="+", default=list(ASKED), choices=ASKED)
    parser.add_argument("--changes", nargs="+", default=sorted(ASKED["OgE"]), choices=sorted(ASKED["OgE"]))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("docs/results/study.md"))
    options = parser.parse_args()
    with threadpool_limits(options.threads):
        trial = Trial(options.data)
        rows = [
            run(trial, name, n_bits, change)
            for name in options.encoders
            for n_bits in options.bits
            for change in CHANGES
            if set(change) <= ASKED[name] & set(options.changes)
        ]
    lines = [
        f"# What makes the codes good: {', '.join(map(str, options.bits))} bits",
        "",
        "One change to the joint solver's defaults at a time, on CIFAR-10 EfficientNet-Lite0 features. Queries are 200 "
        "*training* images a class, the database 1,800 others a class: the official test images, on which "
        "[quality](quality.md) is reported, are not used. mAP by class (mean and spread over "
        f"{', '.join(f'{STARTS[b]} starts at {b} bits' for b in options.bits)}), recall of the 10 nearest rows by "
        "float distance, loss a bit; 40 passes but where it says otherwise. Made by "
        f"`python benchmarks/study.py --data DIR --encoders {' '.join(options.encoders)} "
        f"--bits {' '.join(map(str, options.bits))} --changes {' '.join(options.changes)}` on {datetime.date.today()} "
        f"with scq_gpu {scq.__version__}, NumPy {np.__version__}, Python {platform.python_version()}, "
        f"{options.threads} threads.",
        "",
        "| encoder | bits | change | mAP | recall@10 | loss a bit |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['encoder']} | {r['bits']} | {r['change']} | {r['mAP']:.2f} ± {r['spread']:.2f} | {r['recall']:.3f} "
        f"| {r['loss']:.4f} |"
        for r in rows
    ]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
