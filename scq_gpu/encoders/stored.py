"""What a model file may hold: names, shapes, types and values are held to the encoder before anything is set.

A digest tells a damaged file from a whole one, not a file that fits from one that does not. Compiled loops trust the
shapes they are given, so nothing that does not fit gets that far.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from scq_gpu.io.models import ModelFileError

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
"""Axes of fitted arrays; those that no fact gives a length must agree with each other."""

_LATER = frozenset({"mean_", "levels_", "eigenvalues_"})  # linear maps encode without; not in every file of before
_MAX_SIZES = 100  # layers of a network
_MAX_NAME = 200  # characters of a name or value that a message shows


def check_stored(
    tensors: Mapping[str, np.ndarray],
    facts: Any,
    *,
    arrays: Collection[str],
    plain: Collection[str],
    params: Collection[str],
    shapes: Callable[[dict[str, Any], dict[str, Any]], Mapping[str, tuple[int, ...]]],
    path: str | os.PathLike[str],
) -> None:
    """Refuse arrays and facts that an encoder with these fitted arrays, plain facts and parameters cannot have.

    ``shapes(params, fitted)`` gives those of arrays that are the encoder's own.
    """
    parts = [facts.get(part) if isinstance(facts, dict) else None for part in ("params", "fitted")]
    if not all(isinstance(part, dict) for part in parts):
        raise _unfit(path, "its facts hold no 'params' and 'fitted'")
    given: dict[str, Any] = parts[0] or {}
    fitted: dict[str, Any] = parts[1] or {}
    for name, value in given.items():
        if name not in params or name == "device" or not (_is_plain(value) or _is_sizes(value)):
            raise _unfit(path, f"the parameter {_shown(name)}={_shown(value)} is none of this encoder's")
    for name, value in fitted.items():
        kind = _FACTS.get(name)
        if name not in (*plain, "feature_names_in_", "n_samples_kept_") or not (kind or _is_plain)(value):
            raise _unfit(path, f"the fact {_shown(name)}={_shown(value)} is none of this encoder's")
    lengths: dict[str | int, int] = {}
    counts: dict[str, Any] = {"n_bits": given.get("n_bits"), "n_features_in_": fitted.get("n_features_in_")}
    for name, value in counts.items():
        if not _is_count(value) or value < 1:
            raise _unfit(path, f"{name} is {_shown(value)}, where an integer above 0 is wanted")
        lengths[name] = value
    names = fitted.get("feature_names_in_")
    if names is not None and len(names) != lengths["n_features_in_"]:
        raise _unfit(path, f"it has {len(names)} names for {lengths['n_features_in_']} features")
    spare = _LATER if "components_" in arrays else frozenset({"levels_"})
    missing = [name for name in arrays if name not in tensors and name not in spare]
    if missing:
        raise _unfit(path, f"the array {missing[0]!r} is missing")
    try:
        own = shapes(given, fitted)
    except ValueError as error:
        raise _unfit(path, str(error)) from error
    for name, x in tensors.items():
        _check_array(name, x, lengths, arrays=arrays, params=params, own=own, path=path)
    _check_words(lengths, given, path=path)


def _check_array(
    name: str,
    x: np.ndarray,
    lengths: dict[str | int, int],
    *,
    arrays: Collection[str],
    params: Collection[str],
    own: Mapping[str, tuple[int, ...]],
    path: str | os.PathLike[str],
) -> None:
    parameter = name.removeprefix("param.")
    if name not in arrays and (parameter == name or parameter not in params):
        raise _unfit(path, f"the array {_shown(name)} is none of this encoder's, which are {', '.join(arrays)}")
    wanted = "iu" if name == "modes_" else "biuf" if parameter != name else "f"
    if x.dtype.kind not in wanted:
        raise _unfit(path, f"{name} is {x.dtype}, where {'integers' if name == 'modes_' else 'floats'} are wanted")
    axes = own.get(name, _SHAPES.get(name))
    if axes is not None:
        shape = tuple(axis if isinstance(axis, int) else lengths.get(axis) for axis in axes)
        fits = x.ndim == len(axes) and all(w is None or w == s for w, s in zip(shape, x.shape, strict=True))
        if not fits or 0 in x.shape:
            shown = ", ".join(str(axis) if w is None else str(w) for axis, w in zip(axes, shape, strict=True))
            raise _unfit(path, f"{name} has the shape {x.shape}, where ({shown}) is wanted")
        lengths.update({axis: s for axis, s in zip(axes, x.shape, strict=True) if isinstance(axis, str)})
    bad = x.size and x.dtype.kind == "f" and not math.isfinite(float(np.abs(x).max()))
    if bad:
        raise _unfit(path, f"{name} holds NaN or inf")


def _check_words(lengths: Mapping[str | int, int], given: Mapping[str, Any], *, path: str | os.PathLike[str]) -> None:
    """Words of subspaces: as many as bits name, and dimensions that make up the axes."""
    if "words" not in lengths:
        return
    bits: Any = given.get("bits_per_subspace")
    if not _is_count(bits) or not 1 <= bits <= 16 or lengths["words"] != 1 << bits:
        raise _unfit(path, f"it has {lengths['words']} words per subspace for bits_per_subspace={_shown(bits)}")
    if lengths["subspaces"] * bits != lengths["n_bits"]:
        raise _unfit(path, f"{lengths['subspaces']} subspaces of {bits} bits are not n_bits={lengths['n_bits']}")
    if lengths["subspaces"] * lengths["dimensions"] != lengths["axes"]:
        raise _unfit(
            path, f"{lengths['subspaces']} subspaces of {lengths['dimensions']} dimensions are not {lengths['axes']}"
        )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= _MAX_SIZES and all(map(_is_count, value))


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
    return repr(value)[:_MAX_NAME]


def _unfit(path: str | os.PathLike[str], why: str) -> ModelFileError:
    return ModelFileError(
        f"{os.fspath(path)} does not hold what its header says: {why}; save the encoder again, with this version"
    )
