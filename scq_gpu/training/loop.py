r"""The training loop: sign passes and V steps in turn, for all starts side by side, over all rows or batches of them.

**Batches** (`train_on_batches`) serve fits of many rows: a pass over one costs a fraction of a pass over all. ``M = X'B
/ n`` of a batch is mostly noise along axes of little variance. But ``B = c XV + (B - c XV)``, and ``X'XV / n = lam V``
of all rows is known, so only the rest has to be estimated (`BatchPasses`). The noise that remains differs from batch to
batch: passes over batches in turn follow what the batches have in common, where passes over one batch alone would
overfit it (docs/theory.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np

from scq_gpu._core.arrays import Array, device_of, elementwise, from_host, linalg_errors, to_host, total
from scq_gpu.rows.projected import SignStatistics, TrainingRows

BATCH_ROWS = 24_000
"""Rows of a batch, at least. With 10,500 text embeddings in a batch, codes lost three points of mAP."""


class VStep(NamedTuple):
    """A V step: ``run(lam, M, V, memory)`` gives new V's, what to remember for the next step, and which are solved.

    The last is None for a step that always solves its problems. ``run`` never looks at the data on the host. If an
    inverse does not exist, the problem is marked unsolved, and ``retry``, of the same form, is called. A step that
    ``descends`` never raises the loss for the signs it is given; the loop then takes its sign passes ahead of V.
    ``nearest`` projects V's that rounding moved off the constraint back onto it. ``ridge`` is the mu of the loss.
    """

    run: Callable[[Array, Array, Array, Any], tuple[Array, Any, Array | None]]
    retry: Callable[[Array, Array, Array, Any], tuple[Array, Any, Array | None]] | None = None
    descends: bool = False
    nearest: Callable[[Array], Array] | None = None
    ridge: float = 0.0


@dataclass
class Run:
    """One start of a fit: its V, and its losses so far."""

    V: Array
    losses: list[float] = field(default_factory=list)
    converged: bool = False
    ahead: bool = False  # whether the last sign pass was taken ahead of V
    calm: int = 0  # iterations in a row that hardly lowered the loss

    def offer(self, V: Array, value: float, *, tol: float, floor: float, descends: bool) -> bool:
        """Take or leave V with its loss, decide whether to stop, and tell if V was taken.

        The paper's rule is to stop once ``(Q_old - Q) / Q < tol``. Columnwise steps may raise the loss; that stops the
        run too, and V stays what it was. Where a step that descends raises it, looking ahead is to blame, and the next
        pass does not. Looking ahead also makes falls uneven, so that it takes two small ones in a row to stop.
        """
        previous = self.losses[-1] if self.losses else np.inf
        rises = value > previous
        taken = not rises or (tol == 0 and not descends)
        self.losses.append(value if taken or not descends else previous)
        if descends and rises:
            self.converged = tol > 0 and not self.ahead
        else:
            self.calm = self.calm + 1 if previous - value < tol * max(value, floor) else 0
            self.converged = tol > 0 and self.calm >= (2 if descends else 1)
        self.ahead = taken
        if taken:
            self.V = V
        return taken


class Passes(Protocol):
    """Rows to train on, or a batch that stands for them."""

    def statistics(self, V: Array) -> SignStatistics:
        """Run one sign pass at V (R, D, L), for every problem side by side."""


def train(
    rows: Passes,
    lam: Array,
    V: Array,
    *,
    step: VStep,
    tol: float,
    iterations: Iterable[int],
    watch: Callable[[int, Run], object] | None = None,
    scale: Array | None = None,
    xp: ModuleType,
) -> list[Run]:
    """Run every start V (R, D, L) until its loss settles, or for all iterations.

    ``lam`` is (D,), or (R, D) for problems that differ in it; ``scale`` (R,) multiplies the rows of each: their signs
    are the same at any scale, so one pass serves all.

    A step that descends gets its signs at ``V + (V - V_previous)``: the loss falls as far in half the passes. Where it
    rises instead, V is kept and the next pass is taken at V itself, after which it cannot rise.
    """
    runs = [Run(V[r, ...]) for r in range(V.shape[0])]
    # a loss below the rounding error of float32 has settled, whatever its relative fall
    floor = float(np.finfo(np.float32).eps) * V.shape[-1]
    active, memory, V_previous = list(range(len(runs))), None, V
    for iteration in iterations:
        M = rows.statistics(look_ahead(V, V_previous, xp=xp) if step.descends else V).M  # M = X'B / n
        if scale is not None:
            M = M * scale[:, None, None]
        values, V_new, memory = solve(lam, M, V, memory, step=step, xp=xp)
        taken = [
            runs[index].offer(V_new[r, ...], value, tol=tol, floor=floor, descends=step.descends)
            for r, (index, value) in enumerate(zip(active, values, strict=True))
        ]
        if not all(taken):
            V_new = xp.where(from_host(np.asarray(taken)[:, None, None], xp=xp, device=device_of(V)), V_new, V)
        V_previous, V = V, V_new
        if watch is not None:
            watch(iteration, min(runs, key=lambda run: run.losses[-1]))
        going = [r for r, index in enumerate(active) if not runs[index].converged]
        if not going:
            break
        if len(going) < len(active):
            active = [active[r] for r in going]
            V, V_previous = (_subset(x, going, xp=xp) for x in (V, V_previous))
            memory, scale = (None if x is None else _subset(x, going, xp=xp) for x in (memory, scale))
            lam = lam if lam.ndim == 1 else _subset(lam, going, xp=xp)
    return runs


def loss(lam: Array, M: Array, V: Array, *, ridge: float = 0.0, xp: ModuleType) -> Array:
    """Compute the paper's Q (R,) of every problem without touching a row.

    ``||B - XV||^2/n + mu ||V||^2 = L + sum((lam + mu) V^2) - 2 sum(M V)``.
    """
    return V.shape[-1] + _LOSS((lam + ridge)[..., None], M, V, axis=(-2, -1), xp=xp)[..., 0, 0]


_LOSS = total(lambda lam, m, v: (lam * v - 2 * m) * v, "(a * c - 2 * b) * c")


@elementwise
def look_ahead(V: Array, V_previous: Array, *, xp: ModuleType) -> Array:
    """Extrapolate V from the step before."""
    return 2 * V - V_previous


def solve(
    lam: Array, M: Array, V: Array, memory: Any, *, step: VStep, xp: ModuleType
) -> tuple[list[float], Array, Any]:
    """Run a V step and read its losses: the iteration's one wait for the device, unless the step must be retried."""
    with linalg_errors(xp, "ignore"):
        V_new, remembered, solved = step.run(lam, M, V, memory)
    losses = loss(lam, M, V_new, ridge=step.ridge, xp=xp)
    if solved is None:
        return to_host(losses).tolist(), V_new, remembered
    values, done = to_host(xp.stack([losses, xp.astype(solved, losses.dtype)]))
    if step.retry is not None and not done.all():
        V_new, remembered, _ = step.retry(lam, M, V, memory)
        values = to_host(loss(lam, M, V_new, ridge=step.ridge, xp=xp))
    return values.tolist(), V_new, remembered


def _subset(x: Array, indices: list[int], *, xp: ModuleType) -> Array:
    """Select the problems that go on."""
    return xp.stack([x[i, ...] for i in indices])


class BatchPasses:
    """Sign passes over a batch of rows that stand for passes over all rows, whose variances ``lam`` are known.

    The rest ``B - c XV`` is small where projections are near their signs. The best c is ``sqrt(2 / pi)`` over the
    standard deviation for a normal distribution and 1 over it for two points; 0.9 is close to the best for both, and
    leaves 0.01 to 0.37 of the variance.
    """

    def __init__(self, rows: TrainingRows, lam: Array, *, xp: ModuleType) -> None:
        self.rows, self.n, self._lam, self._xp = rows, rows.n, lam[:, None], xp

    def statistics(self, V: Array) -> SignStatistics:
        """Run one sign pass at V (R, D, L), for every problem side by side."""
        square = self._xp.sum(self._lam * V * V, axis=-2)
        slope = 0.9 / self._xp.sqrt(self._xp.where(square > 0, square, 1.0))
        found = self.rows.statistics(V, slope=slope)
        return SignStatistics(found.M + slope[:, None, :] * self._lam * V, found.balance)


def split_rows(rows: TrainingRows, lam: Array, *, halved: bool = False, xp: ModuleType) -> list[BatchPasses]:
    """Split rows into batches of `BATCH_ROWS` or more, or into halves of these, which are enough for a start.

    The list is empty where rows are too few, or are read from files in each pass.
    """
    count = rows.n // BATCH_ROWS
    batches = rows.batches(2 * count if halved else count) if count > 1 else []
    return [BatchPasses(batch, lam, xp=xp) for batch in batches]


def train_on_batches(
    batches: Sequence[BatchPasses],
    lam: Array,
    V: Array,
    *,
    step: VStep,
    passes: Iterable[int],
    tol: float = 0.0,
    xp: ModuleType,
) -> Array:
    """Return V (R, D, L) after passes over the batches in turn, each followed by a V step.

    Losses of different batches differ by chance, so no step is taken back. With a ``tol``, passes end early once for
    every problem the mean loss of a round, four passes or one over each batch, falls by less than that, relatively; or
    once signs have settled, so that a batch gives nearly the M that it gave the last time. The loss may still gain from
    the lengths of columns then, but no bit depends on those.

    V steps run in float32 where it holds the variances with room to spare, as it does at the automatic scale. Its
    rounding is far below the noise of a batch, and its effect on the constraint is removed at the end.
    """
    exact = lam.dtype
    dtype = xp.float32 if 1e-9 < float(lam[0]) < 1e9 else exact
    lam, V = (xp.astype(x, dtype, copy=False) for x in (lam, V))
    V_previous, losses, before = V, [], None
    length = min(4, len(batches))
    last: dict[int, Array] = {}  # M of each batch
    for number, _ in enumerate(passes):
        turn = number % len(batches)
        M = xp.astype(batches[turn].statistics(look_ahead(V, V_previous, xp=xp)).M, dtype, copy=False)
        V_previous, (values, V, _) = V, solve(lam, M, V, None, step=step, xp=xp)
        losses.append(values)
        if len(losses) == length:
            now, losses = np.mean(losses, axis=0), []
            slow = before is not None and bool(np.all(before - now < tol * now))
            if tol and (slow or (turn in last and _settled(last[turn], M, xp=xp))):
                break
            before = now
        # the M of many batches would take much memory, and they do not come round again
        if tol and len(batches) <= 8:
            last[turn] = M
    V = xp.astype(V, exact, copy=False)
    return V if step.nearest is None else step.nearest(V)


def _settled(before: Array, now: Array, *, xp: ModuleType) -> bool:
    """Tell if the M (R, D, L) of a batch hardly differs from the one before, for every problem.

    Neither depends on the lengths of columns, which the control variate leaves out: they change as signs do.
    """
    change, size = (xp.sum(x * x, axis=(-2, -1)) for x in (now - before, now))
    return bool(xp.all(change <= 0.005 * size))
