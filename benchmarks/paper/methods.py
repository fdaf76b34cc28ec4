"""The methods that the paper compares, by the names of its tables, and the values that it prints for them.

T. Hoang, T.-T. Do, H. Le, D.-K. Le-Tan, N.-M. Cheung, "Simultaneous compression and quantization: A joint approach for
efficient unsupervised hashing", 2019.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import scq_gpu as scq

# tol 1e-4 and at most 100 iterations are the paper's too, and our defaults
PAPER = {"solver": "columnwise", "n_components": 512}


@dataclass(frozen=True)
class Method:
    """A method: how to make its encoder, and what to rank its codes by."""

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
COLORS = {
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


def find_methods(text: str, known: Iterable[str] = METHODS) -> list[str]:
    """Return the names, out of ``known``, that an argument of ``--methods`` means.

    A name of the table ("OgE, joint"), a family ("OgE": all its variants), several of either with commas and no blanks
    ("OgE,ITQ"), or your own: ``my_method.py:MyMethod``, an encoder class in a file, which is added to METHODS.
    """
    if ".py:" in text:
        return [_own_method(text)]
    found = []
    for part in [text] if text in known else text.split(","):
        names = [name for name in known if part in (name, name.partition(", ")[0])]
        if not names:
            families = ", ".join(dict.fromkeys(name.partition(", ")[0] for name in known))
            raise argparse.ArgumentTypeError(
                f"{part!r} is no method; there are {', '.join(map(repr, known))}, the families {families}, and your "
                "own as file.py:ClassName"
            )
        found += names
    return list(dict.fromkeys(found))


def _own_method(text: str) -> str:
    """Add the class of a file to METHODS, under its name."""
    path, _, name = text.rpartition(":")
    if not Path(path).is_file():
        raise argparse.ArgumentTypeError(f"{path} is not a file; your own method is file.py:ClassName")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise argparse.ArgumentTypeError(f"{path} has no {name}")
    encoder = getattr(module, name)
    random = "random_state" in inspect.signature(encoder).parameters

    def make(n_bits: int, seed: int) -> Any:
        return encoder(n_bits=n_bits, random_state=seed) if random else encoder(n_bits=n_bits)

    METHODS[name] = Method(make, random=random)
    return name


def line_style(method: str) -> dict[str, Any]:
    """Return a method's style in plots: a color for each family, a line for each variant, ours thick."""
    family, _, variant = method.partition(", ")
    return {
        "color": COLORS.get(family, "tab:cyan"),
        "linestyle": LINES.get(variant, "-"),
        "linewidth": 2.2 if family in ("OnE", "OgE") else 1.2,
        "marker": ".",
        "label": method,
    }


# ---- printed in the paper, in percent ----
PAPER_BITS = (8, 16, 24, 32)

# Table "state of the art", VGG fc7 features: data set -> metric -> method -> one value for each of PAPER_BITS
STATE_OF_THE_ART = {
    "cifar10": {
        "mAP": {
            "SpH": (17.09, 18.77, 20.19, 20.96),
            "KMH": (22.22, 24.17, 24.71, 24.99),
            "BA": (23.24, 24.02, 24.77, 25.92),
            "ITQ": (24.75, 26.47, 26.86, 27.19),
            "OnE": (27.08, 29.64, 30.57, 30.82),
            "OgE": (26.98, 29.33, 30.65, 31.15),
        },
        "prec@r2": {
            "SpH": (18.04, 30.58, 37.28, 21.40),
            "KMH": (21.97, 36.64, 42.33, 27.46),
            "BA": (23.67, 38.05, 42.95, 23.49),
            "ITQ": (24.38, 38.41, 42.96, 28.63),
            "OnE": (24.48, 36.49, 41.53, 43.90),
            "OgE": (24.35, 38.30, 43.01, 44.01),
        },
        "prec@1k": {
            "SpH": (22.93, 26.99, 29.50, 31.98),
            "KMH": (32.30, 33.65, 35.52, 37.77),
            "BA": (31.73, 34.16, 35.67, 37.01),
            "ITQ": (32.40, 36.35, 37.25, 37.96),
            "OnE": (33.38, 37.82, 39.13, 40.40),
            "OgE": (33.41, 38.33, 39.54, 40.70),
        },
    },
    "labelme": {
        "mAP": {
            "SpH": (11.68, 13.24, 14.39, 14.97),
            "KMH": (16.09, 16.18, 16.99, 17.24),
            "BA": (17.48, 17.10, 17.91, 18.07),
            "ITQ": (17.56, 17.73, 18.52, 19.09),
            "OnE": (19.76, 21.96, 23.61, 24.25),
            "OgE": (20.63, 23.07, 23.54, 24.68),
        },
        "prec@r2": {
            "SpH": (11.72, 19.38, 25.14, 13.66),
            "KMH": (15.20, 26.17, 32.09, 18.62),
            "BA": (16.22, 25.75, 31.35, 13.14),
            "ITQ": (15.86, 25.46, 31.43, 17.66),
            "OnE": (16.69, 27.30, 34.63, 33.04),
            "OgE": (16.57, 27.80, 34.77, 34.64),
        },
        "prec@1k": {
            "SpH": (14.07, 16.78, 18.52, 19.27),
            "KMH": (21.07, 20.97, 21.41, 21.98),
            "BA": (21.14, 21.71, 22.64, 22.83),
            "ITQ": (21.01, 22.00, 22.98, 23.63),
            "OnE": (22.91, 25.39, 26.55, 27.16),
            "OgE": (23.94, 25.94, 26.99, 27.46),
        },
    },
    "sun397": {
        "mAP": {
            "SpH": (9.13, 13.53, 16.63, 19.07),
            "KMH": (21.91, 26.42, 28.99, 31.87),
            "BA": (20.73, 31.18, 35.36, 36.40),
            "ITQ": (20.16, 30.95, 35.92, 37.84),
            "OnE": (23.37, 34.09, 38.13, 40.54),
            "OgE": (23.44, 34.73, 39.47, 41.82),
        },
        "prec@r2": {
            "SpH": (6.88, 23.68, 37.21, 27.39),
            "KMH": (9.50, 36.14, 51.27, 39.29),
            "BA": (10.50, 37.75, 50.38, 41.11),
            "ITQ": (9.78, 35.15, 49.85, 46.34),
            "OnE": (8.68, 30.12, 43.54, 50.41),
            "OgE": (8.76, 29.31, 45.03, 51.88),
        },
        "prec@1k": {
            "SpH": (10.79, 15.36, 18.21, 20.07),
            "KMH": (18.94, 24.93, 25.74, 28.26),
            "BA": (19.22, 28.68, 31.31, 31.80),
            "ITQ": (18.86, 28.62, 31.56, 32.74),
            "OnE": (19.26, 29.95, 32.72, 34.08),
            "OgE": (20.10, 29.95, 33.43, 35.00),
        },
    },
}

# Table "BGAN", NUS-WIDE, features of BGAN's network: method -> bits -> mAP
NUS_WIDE = {
    "BGAN": {12: 67.5, 24: 69.0, 32: 71.4, 48: 72.8},
    "OnE": {12: 69.82, 24: 70.53, 32: 72.78, 48: 73.25},
    "OgE": {12: 70.17, 24: 71.31, 32: 72.49, 48: 72.95},
}

# Table "BGAN", CIFAR-10, features of BGAN's network: method -> bits -> mAP
BGAN_CIFAR10 = {
    "BGAN": {12: 40.1, 24: 51.2, 32: 53.1, 48: 55.8},
    "OnE": {12: 53.59, 24: 55.77, 32: 57.62, 48: 58.14},
    "OgE": {12: 53.83, 24: 55.65, 32: 57.74, 48: 58.44},
}

# Table "DH / UH-BDNN", CIFAR-10 GIST: method -> bits -> (mAP, prec@r2)
GIST = {
    "DH": {16: (16.17, 23.33), 32: (16.62, 15.77)},
    "UH-BDNN": {16: (17.83, 24.97), 32: (18.52, 18.85)},
    "OnE": {16: (17.97, 24.57), 32: (18.63, 23.72)},
    "OgE": {16: (18.00, 24.15), 32: (18.78, 25.69)},
}

# Table "summary", CIFAR-10: method -> (retained variance in percent, quantization loss a bit, validation mAP)
SUMMARY = {"ITQ": (100.0, 0.75, 27.01), "OnE": (59.6, 0.29, 30.68)}


def look_up(dataset: str, metric: str, method: str, bits: int) -> float | None:
    """Return a value of the table "state of the art", or of "BGAN" for NUS-WIDE; None where the paper has none."""
    if dataset == "nuswide":
        return NUS_WIDE.get(method, {}).get(bits) if metric == "mAP" else None
    values = STATE_OF_THE_ART[dataset][metric].get(method)
    return values[PAPER_BITS.index(bits)] if values and bits in PAPER_BITS else None
