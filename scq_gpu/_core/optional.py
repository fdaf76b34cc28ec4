"""Libraries that only some users have."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def need(module: str, *, caller: str, install: str) -> Any:
    """Import an optional library, or raise an error that says who needs it and how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"{caller} needs {module}, which cannot be imported ({error}): {install}") from error
