"""The V step of ITQ (Gong and Lazebnik, 2011): as many axes as bits, rotated."""

from __future__ import annotations

from types import ModuleType

from scq_gpu._core.arrays import Array
from scq_gpu.training.linalg import polar, skew
from scq_gpu.training.loop import VStep

_ROUNDING = 1e-4  # in a polar factor: errors of its products of up to 1 %, which `orthonormalize` mends


def rotation_step(*, xp: ModuleType, ahead: bool = True) -> VStep:
    """The rotation (R, L, L) that brings rows nearest to their signs: an orthogonal Procrustes problem.

    It never raises the loss for the signs it is given, so that they may be taken ``ahead`` of it. Where two bits have
    the same signs in all rows, M is singular and its polar factor no rotation; V then stays what it was.
    """

    def run(lam: Array, M: Array, V: Array, memory: None) -> tuple[Array, None, None]:
        R = polar(M, xp=xp)
        return xp.where(skew(R, xp=xp) <= _ROUNDING, R, V), None, None

    return VStep(run, descends=ahead)
