"""What a user hands to ``fit`` and ``encode`` becomes rows: the one place that tells kinds of input apart."""

from __future__ import annotations

from typing import Any

from scq_gpu._validate import check_rows
from scq_gpu.rows import Rows


def as_rows(X: Any, *, device: str | None, min_rows: int = 1) -> Rows:
    """Rows of X, checked, with their passes running on ``device`` (None follows X)."""
    return Rows(check_rows(X, min_rows=min_rows), device=device)
