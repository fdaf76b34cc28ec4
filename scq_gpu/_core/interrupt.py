"""Ctrl-C during a call that no signal gets into, such as one of LAPACK."""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any


def interruptible(function: Callable[..., Any], *arguments: Any) -> Any:
    """``function(*arguments)``, which Ctrl-C leaves at once: a thread computes, and is left to itself if interrupted.

    For functions that change nothing but what they return. Off the main thread, which gets no signals, a plain call.
    """
    if threading.current_thread() is not threading.main_thread():
        return function(*arguments)
    answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((True, function(*arguments)))
        except BaseException as error:
            answers.put((False, error))

    context = contextvars.copy_context()  # NumPy's handling of floating-point errors, for one
    threading.Thread(target=context.run, args=(run,), daemon=True, name="scq-interruptible").start()
    good, answer = answers.get()
    if not good:
        raise answer
    return answer
