"""Checks of a model file: its names, shapes, types and values must fit the encoder before anything is set.

A digest distinguishes a damaged file from a whole one, but not a file that fits from one that does not. Compiled loops
trust the shapes they get.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

_SHAPES: dict[str, tuple[str | int, ...]] = {
    **dict.fromkeys(("components_", "pivots_", "frequencies_"), ("n_bits", "n_features_in_")),
    **dict.fromkeys(("threshold_", "radii_", "phases_"), ("n_bits",)),
    **dict.fromkeys(("levels_", "modes_"), ("n_bits", 2)),
    "mean_": ("n_features_in_",),
    "eigenvalues_": ("axes",),
    "words_": ("subspaces", "words", "dimensions"),
    "axes_": ("axes", "n_features_in_"),
    "offset_": ("axes",),
}
"""Axes of fitted arrays; axes of one name have one length."""


def check_stored(tensors: Mapping[str, np.ndarray], facts: Any, kind: Any) -> None:
    """Raise a ValueError about arrays and facts of a file that an encoder of this class cannot have."""
    given, fitted = (facts.get(part) if isinstance(facts, dict) else None for part in ("params", "fitted"))
    if not isinstance(given, dict) or not isinstance(fitted, dict):
        raise ValueError("its facts hold no 'params' and 'fitted'")
    params = kind._get_param_names()
    for name, value in given.items():
        if name not in params or name == "device" or not (_is_plain(value) or _is_sizes(value)):
            raise ValueError(f"the parameter {_shown(name)}={_shown(value)} is none of this encoder's")
    for name, value in fitted.items():
        fits = _FACTS.get(name, _is_plain)
        if name not in (*kind._fitted_facts, "feature_names_in_", "n_samples_kept_") or not fits(value):
            raise ValueError(f"the fact {_shown(name)}={_shown(value)} is none of this encoder's")
    for name in kind._fitted_facts:
        if name not in fitted:
            raise ValueError(f"the fact {name!r} is missing")
    lengths: dict[str | int, Any] = {"n_bits": given.get("n_bits"), "n_features_in_": fitted.get("n_features_in_")}
    for axis, value in lengths.items():
        if not _is_count(value) or value < 1:
            raise ValueError(f"{axis} is {_shown(value)}, where an integer above 0 is expected")
    names = fitted.get("feature_names_in_")
    if names is not None and len(names) != lengths["n_features_in_"]:
        raise ValueError(f"it has {len(names)} names for {lengths['n_features_in_']} features")
    for name in kind._fitted_arrays:
        if name not in tensors:
            raise ValueError(f"the array {name!r} is missing")
    shapes = _SHAPES | kind._array_shapes(given, fitted)
    for name, x in tensors.items():
        parameter = name.removeprefix("param.")
        if name not in kind._fitted_arrays and (parameter == name or parameter not in params):
            known = ", ".join(kind._fitted_arrays)
            raise ValueError(f"the array {_shown(name)} is none of this encoder's, which are {known}")
        _check_array(name, x, shapes.get(name), lengths)
    if "words" in lengths:
        _check_words(lengths, given.get("bits_per_subspace"))


def _check_array(name: str, x: np.ndarray, axes: tuple[str | int, ...] | None, lengths: dict[str | int, Any]) -> None:
    """Check the type, the shape and the values of an array, and add the lengths of its axes to the known ones."""
    # A parameter may be an array of any numbers; fitted arrays are floats, but for the numbers of waves.
    expected = "iu" if name == "modes_" else "biuf" if name.startswith("param.") else "f"
    if x.dtype.kind not in expected:
        raise ValueError(f"{name} is {x.dtype}, where {'integers' if name == 'modes_' else 'floats'} are expected")
    if axes is not None:
        shape = tuple(axis if isinstance(axis, int) else lengths.get(axis) for axis in axes)
        fits = x.ndim == len(axes) and all(w is None or w == s for w, s in zip(shape, x.shape, strict=True))
        if not fits or 0 in x.shape:
            shown = ", ".join(str(axis) if w is None else str(w) for axis, w in zip(axes, shape, strict=True))
            raise ValueError(f"{name} has the shape {x.shape}, where ({shown}) is expected")
        lengths.update({axis: s for axis, s in zip(axes, x.shape, strict=True) if isinstance(axis, str)})
    if x.size and x.dtype.kind == "f" and not math.isfinite(float(np.abs(x).max())):
        raise ValueError(f"{name} holds NaN or inf")


def _check_words(lengths: Mapping[str | int, int], bits: Any) -> None:
    """Check that there are as many words as bits can name, and that their dimensions make up the axes."""
    subspaces, words, dimensions, axes = (lengths[axis] for axis in ("subspaces", "words", "dimensions", "axes"))
    if not _is_count(bits) or not 1 <= bits <= 16 or words != 1 << bits:
        raise ValueError(f"it has {words} words per subspace for bits_per_subspace={_shown(bits)}")
    if subspaces * bits != lengths["n_bits"]:
        raise ValueError(f"{subspaces} subspaces of {bits} bits are not n_bits={lengths['n_bits']}")
    if subspaces * dimensions != axes:
        raise ValueError(f"{subspaces} subspaces of {dimensions} dimensions are not {axes}")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_sizes(value: Any) -> bool:
    # No network has more than a hundred layers.
    return isinstance(value, list) and len(value) <= 100 and all(map(_is_count, value))


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str | None)


_FACTS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("n_features_in_", "n_samples_", "n_samples_kept_", "n_iter_"), _is_count),
    **dict.fromkeys(("layers_", "image_shape_"), _is_sizes),
    "scale_": _is_number,
    "converged_": lambda value: isinstance(value, bool),
    "loss_curve_": lambda value: isinstance(value, list) and all(map(_is_number, value)),
    "feature_names_in_": lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
}


def _shown(value: Any) -> str:
    return repr(value)[:200]
