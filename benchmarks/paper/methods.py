"""The methods the paper compares, by the names of its tables: each makes an encoder for a length and a seed."""

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


def find_methods(text: str, known: Iterable[str] = METHODS) -> list[str]:
    """The names, out of ``known``, that an argument of ``--methods`` means.

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
    """How plots draw a method: a colour for each family, a line for each variant, ours thick."""
    family, _, variant = method.partition(", ")
    return {
        "color": COLOURS.get(family, "tab:cyan"),
        "linestyle": LINES.get(variant, "-"),
        "linewidth": 2.2 if family in ("OnE", "OgE") else 1.2,
        "marker": ".",
        "label": method,
    }
