"""Text of files and users on its way to a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """A text whose control characters are spelled out: names in files must not command a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
