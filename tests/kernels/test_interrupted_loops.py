"""Interrupts in the middle of compiled loops, as callers see them."""

import pytest

from scq_gpu._core import machine as threads


def chained():
    error = SystemError("inner")
    error.__cause__ = KeyboardInterrupt()
    return error


@pytest.mark.parametrize(
    ("cause", "wanted"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt),
        (chained(), KeyboardInterrupt),
        (None, SystemError),
        (ValueError("other"), SystemError),
    ],
)
def test_an_interrupt_while_results_are_handed_over(monkeypatch, cause, wanted):
    """On one thread the caller's own thread runs the loops, and Python turns what comes in between into SystemError."""
    monkeypatch.setattr(threads, "allowed_threads", lambda: 1)

    def task():
        raise SystemError("returned a result with an exception set") from cause

    with pytest.raises(wanted):
        threads.over_tasks([(task,)])
