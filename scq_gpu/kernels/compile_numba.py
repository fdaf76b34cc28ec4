"""Compiling loops with numba; imported only when numba is used."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from numba import njit, types
from numba.extending import intrinsic


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` without the GIL, its machine code kept on disk where that can be written, and only there.

    A read-only installation without a writable home, as in a hardened container, compiles anew in each process; so
    does one whose disk is full. Nobody passes these functions to C, so no time goes into making that possible.
    """
    options = {"nogil": True, "no_cfunc_wrapper": True, **options}

    def compile_later(function: Callable[..., Any]) -> Any:
        try:
            dispatcher = njit(cache=True, **options)(function)
        except RuntimeError:  # numba finds no folder to write to
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
    """`numba.njit` of what only compiled loops call: part of their machine code, and none that Python could call."""
    return njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)


@intrinsic
def popcount(typingctx: Any, x: Any) -> Any:
    """Number of bits set in an unsigned integer: one instruction."""
    if not isinstance(x, types.Integer):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return x(x), codegen
