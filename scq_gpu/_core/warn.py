"""Warnings that point at the user's own line."""

from __future__ import annotations

import sys
import warnings


def warn_caller(message: str | Warning, category: type[Warning] = UserWarning) -> None:
    """Warn where this package was called from, however deep inside it the reason was found."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("scq_gpu."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level + 1)
