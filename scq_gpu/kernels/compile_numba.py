"""Compiling loops with numba; imported only when numba is used."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from numba import njit, types
from numba.extending import intrinsic


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile with `numba.njit`, without the GIL, and keep the machine code on disk if it can be written.

    A read-only installation without a writable home, as in a hardened container, compiles anew in each process, and so
    does one with a full disk. There is no C wrapper, since these functions are not passed to C.
    """
    options = {"nogil": True, "no_cfunc_wrapper": True, **options}

    def compile_later(function: Callable[..., Any]) -> Any:
        try:
            dispatcher = njit(cache=True, **options)(function)
        # numba finds no folder to write to
        except RuntimeError:
            return njit(**options)(function)
        cache = dispatcher._cache
        save = cache.save_overload

        def save_if_possible(*arguments: Any) -> None:
            with contextlib.suppress(OSError):
                save(*arguments)

        cache.save_overload = save_if_possible
        return dispatcher

    return compile_later


def inner(function: Callable[..., Any]) -> Any:
    """Compile a function that only compiled loops call, without a wrapper for Python."""
    return njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)


@intrinsic
def popcount(typingctx: Any, x: Any) -> Any:
    """Count the bits set in an unsigned integer by one instruction."""
    if not isinstance(x, types.Integer):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return x(x), codegen
