"""A bar for steps of training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def progress(steps: range, encoder: Any, what: str = "") -> Iterable[int]:
    """The steps, behind a bar if ``encoder.verbose`` and a person is watching."""
    if not encoder.verbose:
        return steps
    from tqdm import tqdm

    bar: Iterable[int] = tqdm(steps, desc=f"{type(encoder).__name__} {encoder.n_bits} bits{what}", disable=None)
    return bar
