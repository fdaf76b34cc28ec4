"""The methods the paper compares, by the names of its tables: each makes an encoder for a length and a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import scq_gpu as scq

PAPER = {
    "solver": "columnwise",
    "n_components": 512,
}  # and tol 1e-4, at most 100 iterations, which are our defaults too


@dataclass(frozen=True)
class Method:
    """How to make an encoder, and what to rank its codes by."""

    make: Callable[[int, int], Any]  # (n_bits, seed) -> an encoder, not fitted
    random: bool = True  # whether the seed changes anything
    distance: str = "hamming"
    published: str = ""  # the name of the paper's row, where it has one
    iterates: bool = False  # whether max_iter and tol set how long it trains


SCRIPT_SCALE = "OgE, scale as in the authors' script"


class ScriptScale:
    """Columnwise OgE, scaled as in the authors' demonstration script for it; ``fit`` returns the fitted encoder.

    The script sums the first L entries of the eigenvalue *matrix* in MATLAB's linear order, where those of its diagonal
    are meant. Only one of them, lambda_1, is not zero, so the scale is sqrt(L / lambda_1) instead of Eq. (scale).
    """

    def __init__(self, bits: int, seed: int) -> None:
        self.bits, self.seed = bits, seed

    def fit(self, X: np.ndarray) -> scq.OgE:
        largest = np.linalg.eigvalsh(np.cov(X, rowvar=False, bias=True))[-1]
        scale = float(np.sqrt(self.bits / largest))
        return scq.OgE(self.bits, **PAPER, ridge=0.02, scale=scale, random_state=self.seed).fit(X)


METHODS = {
    "LSH": Method(lambda bits, seed: scq.LSH(bits, random_state=seed)),
    "PCAH": Method(lambda bits, seed: scq.PCAH(bits), random=False),
    "SH": Method(lambda bits, seed: scq.SH(bits), random=False),
    "PCARR": Method(lambda bits, seed: scq.PCARR(bits, random_state=seed)),
    "SpH": Method(lambda bits, seed: scq.SpH(bits, random_state=seed), published="SpH"),
    "SpH, spherical distance": Method(lambda bits, seed: scq.SpH(bits, random_state=seed), distance="spherical"),
    **{
        f"KMH, b = {b}": Method(
            lambda bits, seed, b=b: scq.KMH(bits, bits_per_subspace=b, random_state=seed), published="KMH"
        )
        for b in (2, 4, 8)
    },
    "BA": Method(lambda bits, seed: scq.BA(bits, random_state=seed), published="BA"),
    "ITQ": Method(lambda bits, seed: scq.ITQ(bits, random_state=seed), published="ITQ"),
    "OnE, columnwise": Method(
        lambda bits, seed: scq.OnE(bits, **PAPER, random_state=seed), published="OnE", iterates=True
    ),
    "OgE, columnwise": Method(
        lambda bits, seed: scq.OgE(bits, **PAPER, ridge=0.02, random_state=seed), published="OgE", iterates=True
    ),
    SCRIPT_SCALE: Method(ScriptScale, published="OgE"),
    "OnE, joint": Method(
        lambda bits, seed: scq.OnE(bits, preserve="classes", random_state=seed), published="OnE", iterates=True
    ),
    "OgE, joint": Method(
        lambda bits, seed: scq.OgE(bits, preserve="classes", random_state=seed), published="OgE", iterates=True
    ),
}
SETTINGS = (
    "Columnwise is the paper's algorithm with the paper's parameters (512 components, ridge 0.02, tol 1e-4, at most "
    '100 iterations); joint is this library\'s solver with `preserve="classes"`. The other methods run with their '
    "defaults."
)
COLOURS = {
    "LSH": "tab:gray",
    "PCAH": "tab:brown",
    "SH": "tab:pink",
    "PCARR": "tab:olive",
    "SpH": "tab:orange",
    "KMH": "tab:green",
    "BA": "tab:purple",
    "ITQ": "black",
    "OnE": "tab:blue",
    "OgE": "tab:red",
}
LINES = {"columnwise": "--", "spherical distance": "--", "b = 2": "-.", "b = 4": "--", "b = 8": ":"}
LINES["scale as in the authors' script"] = ":"


def line_style(method: str) -> dict[str, Any]:
    """How plots draw a method: a colour for each family, a line for each variant, ours thick."""
    family, _, variant = method.partition(", ")
    return {
        "color": COLOURS.get(family, "tab:cyan"),
        "linestyle": LINES.get(variant, "-"),
        "linewidth": 2.2 if family in ("OnE", "OgE") else 1.2,
        "marker": ".",
        "label": method,
    }
