"""What "auto" stands for: the rules for everything about a fit that was not given, by solver, aim and code length."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

STARTS = ("auto", "longer_code", "shorter_codes", "random", "pca", "itq")
AIMS = ("neighbors", "classes")
SHORT = 64
"""Most bits of a code that starts from a longer one; longer codes grow from shorter ones of at most this length."""

_PAPER_RIDGE, _PAPER_COMPONENTS, _PAPER_ITERATIONS = 0.02, 512, 100
_PAPER_BITS = 32  # for about which the paper's ridge is at its best
_FEW_COMPONENTS = 256
_COMPONENTS_PER_BIT = {"neighbors": 2, "classes": 40}
_NEIGHBOR_RIDGE = 0.35  # at 32 bits, more for shorter codes
_STRETCHED_RIDGE = 0.4  # where groups of rows are drawn apart, the ridge need not see to them
_NEIGHBOR_SCALE = 0.6  # of OnE, times that of the paper
_NEIGHBOR_ITERATIONS = 12  # more trade neighbors for classes
_STRETCH, _DOUBLINGS = 0.15, 3  # for each doubling of the code beyond 32 bits, the first three
_RENAMED = {"longer": "longer_code", "shorter": "shorter_codes"}


class Recipe(NamedTuple):
    """Everything that a fit needs to be told beside its rows, with no "auto" left."""

    n_components: int | None
    ridge: float
    scale: float | None
    """Factor on the centered rows; None for that of the paper's Eq. (scale), times ``scale_factor``."""
    scale_factor: float
    flatten: bool
    """Whether axes of much more variance than the average are flattened (`scq_gpu.rows.basis.flattening`)."""
    stretch: float
    """How far groups of rows are drawn apart first, per unit of how distinct they are (docs/theory.md)."""
    start: Any
    max_iter: int
    fixed: bool
    """Whether exactly ``max_iter`` iterations are run, whatever the loss does."""
    in_parts: bool
    """Whether a fit of many rows may learn from parts of them, and end with few passes over all."""
    few_passes: bool
    """Whether a fit takes few passes over all rows, however many those are."""


def make_recipe(
    *,
    n_bits: int,
    preserve: str,
    solver: str,
    n_components: int | str | None,
    ridge: float | str | None,
    scale: float | str,
    init: Any,
    max_iter: int | str,
    tol: float,
) -> Recipe:
    """The recipe for the parameters of an encoder; ``ridge`` is None for OnE, which has none."""
    columnwise, neighbors = solver == "columnwise", solver != "columnwise" and preserve == "neighbors"
    rules = {
        "n_components": _PAPER_COMPONENTS if columnwise else auto_components(n_bits, preserve),
        "ridge": _PAPER_RIDGE if columnwise else auto_ridge(n_bits, preserve),
        "max_iter": _NEIGHBOR_ITERATIONS if neighbors else _PAPER_ITERATIONS,
    }
    given = {"n_components": n_components, "ridge": 0.0 if ridge is None else ridge, "max_iter": max_iter}
    chosen: dict[str, Any] = {name: rules[name] if value == "auto" else value for name, value in given.items()}
    return Recipe(
        n_components=chosen["n_components"],
        ridge=float(chosen["ridge"]),
        scale=None if scale == "auto" else float(scale),
        scale_factor=_NEIGHBOR_SCALE if neighbors and ridge is None else 1.0,
        flatten=neighbors,
        stretch=auto_stretch(n_bits) if neighbors and ridge is not None else 0.0,
        start=choose_start(init, solver=solver, preserve=preserve, n_bits=n_bits),
        max_iter=chosen["max_iter"],
        fixed=tol == 0 or (neighbors and max_iter == "auto"),
        in_parts=not columnwise and not neighbors and max_iter == "auto" and tol > 0,
        few_passes=neighbors and max_iter == "auto",
    )


def auto_ridge(n_bits: int, preserve: str) -> float:
    """The mu of the joint solver that suits an aim and a code length, on rows scaled for it.

    A small ridge rewards directions in which rows fall into two groups, a large one those of much variance. Long codes
    need axes of little variance, too.
    """
    share = _PAPER_BITS / n_bits
    if preserve == "neighbors":
        return float(_NEIGHBOR_RIDGE * share**0.5) if share >= 1 else _STRETCHED_RIDGE
    return float(_PAPER_RIDGE * min(share**1.3, share**2))


def auto_stretch(n_bits: int) -> float:
    """How far OgE for neighbors draws groups of rows apart: the longer the code, the less its ridge does for them."""
    return _STRETCH * min(max(math.log2(n_bits / _PAPER_BITS), 0.0), _DOUBLINGS)


def choose_start(init: Any, *, solver: str, preserve: str, n_bits: int) -> Any:
    """The start that ``init`` names, or the array that it is."""
    if not isinstance(init, str):
        return init
    if init != "auto":
        return _RENAMED.get(init, init)
    if solver == "columnwise":
        return "random"
    if preserve == "neighbors":
        return "itq"
    return "longer_code" if n_bits <= SHORT else "shorter_codes"


def auto_components(n_bits: int, preserve: str) -> int:
    """Principal components that the joint solver keeps, at most."""
    if preserve == "neighbors" and n_bits <= _PAPER_BITS:
        return _FEW_COMPONENTS
    return max(_PAPER_COMPONENTS, _COMPONENTS_PER_BIT[preserve] * n_bits)
