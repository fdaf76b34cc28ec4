"""The V step of ITQ (Gong and Lazebnik, 2011): as many axes as bits, rotated."""

from __future__ import annotations

from types import ModuleType

from scq_gpu._core.arrays import Array
from scq_gpu.training.linalg import polar
from scq_gpu.training.loop import VStep


def rotation_step(*, xp: ModuleType, ahead: bool = True) -> VStep:
    """The rotation (R, L, L) that brings rows nearest to their signs: an orthogonal Procrustes problem.

    It never raises the loss for the signs it is given, so that they may be taken ``ahead`` of it.
    """

    def run(lam: Array, M: Array, V: Array, memory: None) -> tuple[Array, None, None]:
        return polar(M, xp=xp), None, None

    return VStep(run, descends=ahead)
