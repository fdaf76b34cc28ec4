r"""Passes over parts of the rows, for fits whose rows are many: each costs a fraction of a pass over all.

``M = X'B / n`` of a part is mostly chance along axes of little variance, and a code that follows it goes astray. But
``B = c XV + (B - c XV)``, and ``X'XV / n = lam V`` of all rows is known, so only the rest has to be estimated (`Part`).
What chance remains differs from part to part: passes over parts in turn follow what the parts have in common, where
passes over one part alone would learn its chance by heart (docs/theory.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array
from scq_gpu.rows.passes import KeptRows, SignStatistics, TrainingRows
from scq_gpu.training.loop import VStep, look_ahead, solve

_PART_ROWS = 24_000  # in a part, or more: from parts of 10,500 text embeddings codes lost three points of mAP
LEAST_ROWS = 2 * _PART_ROWS
"""Rows of which there are parts."""
_ROUND = 4  # passes, or one over each part if these are fewer, whose mean loss is compared with that of as many before
_SETTLED, _REMEMBERED = 0.005, 8  # squared change of M over its square; of so many parts, at most
_SINGLE = 1e-9, 1e9  # largest variances between which V steps are in float32
_SLOPE = 0.9  # of signs against projections of unit variance: sqrt(2 / pi) for a normal distribution, 1 for two points


class Part:
    """Sign passes over a part of the rows that stand for those over all rows, whose variances ``lam`` are known.

    The rest ``B - c XV`` is small where projections are near their signs; ``c = 0.9 / sqrt(v' diag(lam) v)`` is close
    to the best for bell-shaped and for two-humped projections alike, and leaves 0.01 to 0.37 of the variance.
    """

    def __init__(self, rows: KeptRows, lam: Array, *, xp: ModuleType) -> None:
        self.rows, self._lam, self._xp = rows, lam[:, None], xp
        self.n = rows.n

    def statistics(self, V: Array) -> SignStatistics:
        """One sign pass at V (R, D, L), for every problem of the batch."""
        square = self._xp.sum(self._lam * V * V, axis=-2)
        slope = _SLOPE / self._xp.sqrt(self._xp.where(square > 0, square, 1.0))
        found = self.rows.statistics(V, slope=slope)
        return SignStatistics(found.M + slope[:, None, :] * self._lam * V, found.balance)


def cut(rows: TrainingRows, lam: Array, *, halved: bool = False, xp: ModuleType) -> list[Part]:
    """Parts of 24,000 rows and more, spread evenly over all rows; none where rows are too few, or not at hand.

    Halves of these parts are enough for a start, which need not converge.
    """
    count = rows.n // _PART_ROWS
    return [Part(part, lam, xp=xp) for part in rows.parts(2 * count if halved else count)] if count > 1 else []


def learn(
    parts: Sequence[Part],
    lam: Array,
    V: Array,
    *,
    step: VStep,
    ridge: float,
    passes: Iterable[int],
    tol: float = 0.0,
    xp: ModuleType,
) -> Array:
    """V (R, D, L) after passes over the parts in turn, each followed by a V step.

    Losses of different parts differ by chance, so no step is taken back. With a ``tol``, passes end early once for
    every problem of the batch the mean loss of a round, four passes or as many as there are parts, falls by less than
    that, relatively; or once signs have settled, so that a part gives nearly the M that it gave the last time: what
    the loss still gains is in lengths of columns, which no bit depends on. V steps are in float32, whose rounding is
    far below that chance; what it does to the constraint is mended at the end.
    """
    exact, dtype = lam.dtype, _step_type(lam, xp=xp)
    lam, V = (xp.astype(x, dtype, copy=False) for x in (lam, V))
    V_previous, round_, before = V, [], None
    length = min(_ROUND, len(parts))
    last: dict[int, Array] = {}  # the M of each part
    for number, _ in enumerate(passes):
        part = number % len(parts)
        M = xp.astype(parts[part].statistics(look_ahead(V, V_previous, xp=xp)).M, dtype, copy=False)
        V_previous, (losses, V, _) = V, solve(lam, M, V, None, step=step, ridge=ridge, xp=xp)
        round_.append(losses)
        if len(round_) == length:
            now, round_ = np.mean(round_, axis=0), []
            slow = before is not None and bool(np.all(before - now < tol * now))
            if tol and (slow or (part in last and _settled(last[part], M, xp=xp))):
                break
            before = now
        if tol and len(parts) <= _REMEMBERED:
            last[part] = M
    V = xp.astype(V, exact, copy=False)
    return V if step.nearest is None else step.nearest(V)


def _settled(before: Array, now: Array, *, xp: ModuleType) -> bool:
    """Whether the M (R, D, L) of a part hardly differs from the one before, for every problem of the batch.

    Both are invariant to the lengths of columns, which the control variate leaves out: they change as signs do.
    """
    change, size = (xp.sum(x * x, axis=(-2, -1)) for x in (now - before, now))
    return bool(xp.all(change <= _SETTLED * size))


def _step_type(lam: Array, *, xp: ModuleType) -> Any:
    """float32 where it holds the variances with room to spare, as it does at the automatic scale."""
    smallest, largest = _SINGLE
    return xp.float32 if smallest < float(lam[0]) < largest else lam.dtype
