"""Figure "convergence": the loss against iterations, columnwise and joint, OnE and OgE, from the same start.

    python benchmarks/paper/convergence.py --data DIR

Writes docs/results/convergence.csv, .md and .png. The loss is ``||sign(XV) - XV||^2 / (n L)``, with OgE's ridge term,
of the V after each iteration, by a pass of its own: what a fit reports on the way is by the signs before the V step.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import numpy as np
from protocols import cifar10
from results import arguments, new_figure, origin, table, write_figure, write_page, write_rows
from threadpoolctl import threadpool_limits

import scq_gpu as scq

RIDGE = 0.02
SHOWN = (1, 2, 5, 10, 20, 50, 100)


def curve(Encoder: type, solver: str, X: np.ndarray, options: argparse.Namespace) -> list[float]:
    """The loss a bit after each iteration."""
    losses: list[float] = []
    ridge = {"ridge": RIDGE} if Encoder is scq.OgE else {}

    def watch(iteration: int, loss: float, encoder) -> None:
        error = (1 - np.abs(encoder.project(X))) ** 2
        penalty = ridge.get("ridge", 0.0) * np.sum(np.square(encoder.components_ / encoder.scale_), dtype=np.float64)
        losses.append((np.sum(error, dtype=np.float64) / len(X) + penalty) / options.bits)

    Encoder(
        options.bits, solver=solver, n_components=512, init="random", max_iter=options.iterations, tol=0,
        random_state=options.seed,
        callback=watch, **ridge,
    ).fit(X)  # fmt: skip
    return losses


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--bits", type=int, default=32)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    curves = {}
    with threadpool_limits(options.threads):
        X = cifar10(options.data, 0).X_train
        for Encoder in (scq.OnE, scq.OgE):
            for solver in ("columnwise", "joint"):
                name = f"{Encoder.__name__}, {solver}"
                curves[name] = curve(Encoder, solver, X, options)
                print(f"{name}: {curves[name][-1]:.4f}", flush=True)
    rows = [{"iteration": i + 1} | {name: c[i] for name, c in curves.items()} for i in range(options.iterations)]
    write_rows(options.output / "convergence.csv", rows)
    plot(curves, options)
    shown = [i for i in SHOWN if i <= options.iterations]
    lines = [[name, *(f"{c[i - 1]:.4f}" for i in shown), sum(b > a for a, b in pairwise(c))]
             for name, c in curves.items()]  # fmt: skip
    command = f"convergence.py --data DIR --bits {options.bits} --iterations {options.iterations} --seed {options.seed}"
    write_page(
        options.output / "convergence.md",
        "Convergence",
        "Quantization loss a bit after each iteration, with OgE's ridge term: CIFAR-10, EfficientNet-Lite0 features, "
        f"{options.bits} bits, 512 components, ridge {RIDGE}, the same start for all. The paper's figure is for VGG "
        "features and prints no values.",
        origin(command, seeds=[options.seed], threads=options.threads),
        "![loss against iterations](convergence.png)",
        table(["encoder", *(f"after {i}" for i in shown), "rises"], lines),
    )


def plot(curves: dict[str, list[float]], options: argparse.Namespace) -> None:
    figure, axis = new_figure(size=(6.8, 4.2))
    for name, losses in curves.items():
        axis.plot(
            range(1, len(losses) + 1),
            losses,
            "--" if "columnwise" in name else "-",
            color="tab:blue" if "OnE" in name else "tab:red",
            label=name,
        )
    axis.set(xlabel="iteration", ylabel="loss a bit", title=f"CIFAR-10, {options.bits} bits, one start for all")
    axis.grid(alpha=0.3)
    axis.legend()
    write_figure(figure, options.output / "convergence.png", pdf=options.pdf)


if __name__ == "__main__":
    main()
