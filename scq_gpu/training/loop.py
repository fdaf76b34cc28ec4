"""The training loop: sign passes and V steps in turn, for all starts side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np

from scq_gpu._core.arrays import Array, device_of, from_host, to_host
from scq_gpu._core.devices import unchecked_linalg
from scq_gpu.kernels.fused import elementwise, total
from scq_gpu.rows.passes import SignStatistics

_CALM = 2  # small falls of the loss in a row that end a joint fit


class VStep(NamedTuple):
    """A V step: ``run(lam, M, V, memory)`` gives new V's, what to remember for the next step, and which are solved.

    The last is None for a step that always solves its problems. ``run`` never looks at the data, nor whether inverses
    exist: a problem whose do not is unsolved. ``retry``, of the same form, is called where there are such. A step that
    ``descends`` never raises the loss for the signs it is given; the loop then takes its sign passes ahead of V, and
    ``nearest`` gives the nearest V's that meet its constraint, for those that rounding took away from it.
    """

    run: Callable[[Array, Array, Array, Any], tuple[Array, Any, Array | None]]
    retry: Callable[[Array, Array, Array, Any], tuple[Array, Any, Array | None]] | None = None
    descends: bool = False
    nearest: Callable[[Array], Array] | None = None


@dataclass
class Run:
    """One start of a fit: its V, and how the loss went."""

    V: Array
    losses: list[float] = field(default_factory=list)
    converged: bool = False
    ahead: bool = False  # whether the last sign pass was taken ahead of V
    calm: int = 0  # iterations in a row that hardly lowered the loss

    def offer(self, V: Array, value: float, *, tol: float, floor: float, descends: bool) -> bool:
        """Take or leave V with its loss, and decide whether to stop; True if it was taken.

        The paper's rule: stop once ``(Q_old - Q) / Q < tol``. Columnwise steps may raise the loss; that stops the run
        too, and V stays what it was. Where a step that descends raises it, looking ahead is to blame: try again
        without. Looking ahead also makes falls uneven, so that it takes two small ones in a row to stop.
        """
        previous = self.losses[-1] if self.losses else np.inf
        rises = value > previous
        taken = not rises or (tol == 0 and not descends)
        self.losses.append(value if taken or not descends else previous)
        if descends and rises:
            self.converged = tol > 0 and not self.ahead
        else:
            self.calm = self.calm + 1 if previous - value < tol * max(value, floor) else 0
            self.converged = tol > 0 and self.calm >= (_CALM if descends else 1)
        self.ahead = taken
        if taken:
            self.V = V
        return taken


class Passes(Protocol):
    """What training asks of rows, or of those that stand for them."""

    def statistics(self, V: Array) -> SignStatistics:
        """One sign pass at V (R, D, L), for every problem of the batch."""


def train(
    rows: Passes,
    lam: Array,
    V: Array,
    *,
    step: VStep,
    ridge: float,
    tol: float,
    iterations: Iterable[int],
    watch: Callable[[int, Run], object] | None = None,
    scale: Array | None = None,
    xp: ModuleType,
) -> list[Run]:
    """Run every start V (R, D, L) to its end.

    ``lam`` is (D,), or (R, D) for problems that differ in it; ``scale`` (R,) multiplies the rows of each: their signs
    are the same at any scale, so one pass serves all.

    A step that descends gets its signs at ``V + (V - V_previous)``: the loss falls as far in half the passes. Where it
    rises instead, V is kept and the next pass is taken at V itself, after which it cannot rise.
    """
    runs = [Run(V[r, ...]) for r in range(V.shape[0])]
    floor = float(np.finfo(np.float32).eps) * V.shape[-1]  # a loss of 0 is as good as it gets
    active, memory, V_previous = list(range(len(runs))), None, V
    for iteration in iterations:
        M = rows.statistics(look_ahead(V, V_previous, xp=xp) if step.descends else V).M  # M = X'B / n
        if scale is not None:
            M = M * scale[:, None, None]
        values, V_new, memory = solve(lam, M, V, memory, step=step, ridge=ridge, xp=xp)
        taken = [
            runs[index].offer(V_new[r, ...], value, tol=tol, floor=floor, descends=step.descends)
            for r, (index, value) in enumerate(zip(active, values, strict=True))
        ]
        V_previous, V = V, _taken(V, V_new, taken, xp=xp)
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
    r"""The paper's Q without touching a row: ``||B - XV||^2/n + mu ||V||^2 = L + sum((lam + mu) V^2) - 2 sum(M V)``.

    Returns
    -------
    array (R,)
        One value for each problem of the batch.
    """
    found = _LOSS((lam + ridge)[..., None], M, V, axis=(-2, -1), xp=xp)
    return V.shape[-1] + found[..., 0, 0]


_LOSS = total(lambda lam, m, v: (lam * v - 2 * m) * v, "(a * c - 2 * b) * c")


@elementwise
def look_ahead(V: Array, V_previous: Array, *, xp: ModuleType) -> Array:
    """Where V is heading."""
    return 2 * V - V_previous


def _taken(V: Array, V_new: Array, taken: list[bool], *, xp: ModuleType) -> Array:
    """The new V's where they are taken."""
    if all(taken):
        return V_new
    return xp.where(from_host(np.asarray(taken)[:, None, None], xp=xp, device=device_of(V)), V_new, V)


def solve(
    lam: Array, M: Array, V: Array, memory: Any, *, step: VStep, ridge: float, xp: ModuleType
) -> tuple[list[float], Array, Any]:
    """A V step and its losses on the host: the iteration's one look at the device, unless the step must be retried."""
    with unchecked_linalg(xp):
        V_new, remembered, solved = step.run(lam, M, V, memory)
    losses = loss(lam, M, V_new, ridge=ridge, xp=xp)
    if solved is None:
        return to_host(losses).tolist(), V_new, remembered
    values, done = to_host(xp.stack([losses, xp.astype(solved, losses.dtype)]))
    if step.retry is not None and not done.all():
        V_new, remembered, _ = step.retry(lam, M, V, memory)
        values = to_host(loss(lam, M, V_new, ridge=ridge, xp=xp))
    return values.tolist(), V_new, remembered


def _subset(x: Array, indices: list[int], *, xp: ModuleType) -> Array:
    """The problems of a batch that go on."""
    return xp.stack([x[i, ...] for i in indices])
