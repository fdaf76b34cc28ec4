"""Rows with NaN or inf: found, filled in, and told of."""

from __future__ import annotations

from typing import Final

import numpy as np

from scq_gpu._core.arrays import Array, device_of, namespace, to_host

ON_INVALID: Final = ("raise", "skip", "zero")
_SHOWN = 5


class InvalidRowsWarning(UserWarning):
    """Rows with NaN or inf that were skipped, or got codes of zeros; ``rows`` are their numbers, ascending."""

    def __init__(self, rows: np.ndarray, *, n: int, on_invalid: str, where: str = "") -> None:
        first = ", ".join(map(str, rows[:_SHOWN].tolist())) + (", ..." if len(rows) > _SHOWN else "")
        done = "were skipped" if on_invalid == "skip" else "got codes of zeros"
        super().__init__(f"{len(rows):,} of {n:,} rows hold NaN or inf and {done}: {first}{where}")
        self.rows = rows


def fill_invalid(X: Array) -> tuple[Array, np.ndarray]:
    """Rows X (n, d) with zeros in the place of those that hold NaN or inf, and the numbers of these rows."""
    xp = namespace(X)
    if not xp.isdtype(X.dtype, "real floating"):
        return X, np.zeros(0, dtype=np.int64)
    valid = xp.all(xp.isfinite(X), axis=1)
    bad = np.flatnonzero(~to_host(valid))
    return (xp.where(valid[:, None], X, xp.zeros_like(X)) if bad.size else X), bad


def settle_codes(codes: Array, bad: np.ndarray, on_invalid: str) -> Array:
    """Codes of filled rows with those of invalid rows left out ("skip") or set to zeros ("zero")."""
    if not bad.size:
        return codes
    xp = namespace(codes)
    valid = np.ones(codes.shape[0], dtype=bool)
    valid[bad] = False
    if on_invalid == "skip":
        return xp.take(codes, xp.asarray(np.flatnonzero(valid), device=device_of(codes)), axis=0)
    return xp.where(xp.asarray(valid, device=device_of(codes))[:, None], codes, xp.zeros_like(codes))
