"""Messages to users: warnings at their own line, missing optional libraries, text that is safe to print."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from typing import Any


def warn_caller(message: str | Warning, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called this package, however deep inside it the reason was found."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("scq_gpu."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level + 1)


def need(module: str, *, caller: str, install: str) -> Any:
    """Import an optional library, or raise an error that says who needs it and how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"{caller} needs {module}, which cannot be imported ({error}): {install}") from error


def printable(text: str) -> str:
    """Spell out control characters: names in files must not command a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def show(value: Any) -> str:
    """Format a value for people."""
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        size = abs(value)
        return f"{value:,.0f}" if size >= 1000 else f"{value:.4f}" if 1e-3 <= size < 10 else f"{value:.4g}"
    return str(value)
