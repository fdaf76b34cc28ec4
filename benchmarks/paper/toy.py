"""Figure "toy": 200 points of the plane, one bit, three scales: a larger scale turns the axis away from PCA's.

    python benchmarks/paper/toy.py

Writes docs/results/toy.csv, .md and .png.
"""

from __future__ import annotations

import numpy as np
from results import arguments, new_figure, origin, table, write_figure, write_page, write_rows

import scq_gpu as scq

FACTORS = (1, 4, 12)  # of the scale that puts the farthest point on the unit circle


def draw(seed: int) -> np.ndarray:
    """200 centred points of a long, slanting cloud: normal along its axis, uniform across."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.standard_normal(200), rng.uniform(-0.36, 0.36, 200)])
    turn = np.deg2rad(30)
    X = X @ [[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]]
    return X - X.mean(axis=0)


def measure(X: np.ndarray, v: np.ndarray) -> tuple[float, float]:
    """Variance and quantization loss of rows along v."""
    projected = X @ v
    return float(np.mean(projected**2)), float(np.mean((1 - np.abs(projected)) ** 2))


def main() -> None:
    parser = arguments(__doc__, data=False)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    X = draw(options.seed)
    X /= np.linalg.norm(X, axis=1).max()
    top = np.linalg.svd(X, full_matrices=False)[2][0]
    rows = []
    figure, axes = new_figure(1, 3, size=(12, 4.4))
    for axis, factor in zip(axes, FACTORS, strict=True):
        encoder = scq.OnE(
            1, scale=float(factor), n_components=None, n_init=10, tol=1e-9, random_state=options.seed
        ).fit(X)
        v = encoder.components_[0] / np.linalg.norm(encoder.components_[0])
        axis.scatter(*(factor * X).T, s=6, color="grey")
        for axis_name, direction, colour, line in (("PCA", top, "tab:red", "-"), ("least loss", v, "tab:green", "--")):
            variance, loss = measure(factor * X, direction)
            angle = float(np.rad2deg(np.arctan2(direction[1], direction[0]))) % 180
            rows.append({"scale": factor, "axis": axis_name, "angle": angle, "variance": variance, "loss": loss})
            ends = np.outer((-1.1 * factor, 1.1 * factor), direction)
            label = f"{axis_name}: variance {variance:.2f}, loss {loss:.2f}"
            axis.plot(*ends.T, line, color=colour, label=label)
        axis.set(title=f"scale {factor} x max_var", aspect="equal", xlim=(-1.2 * factor, 1.2 * factor),
                 ylim=(-1.2 * factor, 1.7 * factor))  # fmt: skip
        axis.legend(fontsize=8, loc="upper left")
    write_rows(options.output / "toy.csv", rows)
    write_figure(figure, options.output / "toy.png", pdf=options.pdf)
    write_page(
        options.output / "toy.md",
        "Toy example",
        "200 points, two dimensions, one bit: the axis of least quantization loss (OnE, best of ten starts) beside "
        "the first principal axis, at 1, 4 and 12 times the scale that puts all points inside the unit circle. The "
        "paper's points are not published; these are normal along one axis and uniform across.",
        origin(f"toy.py --seed {options.seed}", seeds=[options.seed], threads=options.threads),
        "![three scales](toy.png)",
        table(["scale, of max_var", "axis", "angle in degrees", "variance", "loss a bit"],
              [[r["scale"], r["axis"], f"{r['angle']:.0f}", f"{r['variance']:.2f}", f"{r['loss']:.2f}"] for r in rows]),
    )  # fmt: skip


if __name__ == "__main__":
    main()
