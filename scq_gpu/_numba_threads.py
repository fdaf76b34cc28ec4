"""Running compiled loops over slices of queries on threads, without the GIL; imported only when numba is used."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from numba import config, types
from numba.extending import intrinsic


@intrinsic
def popcount(typingctx: Any, x: Any) -> Any:
    """Number of bits set in an unsigned integer: one instruction."""
    if not isinstance(x, types.Integer):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return x(x), codegen


def allowed_threads() -> int:
    """Threads numba may use: the cores this process may run on, or the environment's NUMBA_NUM_THREADS."""
    return int(vars(config)["NUMBA_NUM_THREADS"])


def over_tasks(tasks: Sequence[tuple[Any, ...]]) -> None:
    """Call every ``(function, *arguments)``, on as many threads as numba is allowed."""
    threads = min(allowed_threads(), len(tasks))
    if threads <= 1:
        for function, *arguments in tasks:
            function(*arguments)
        return
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(function, *arguments) for function, *arguments in tasks]:
            done.result()
