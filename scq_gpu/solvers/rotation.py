"""The V step of ITQ (Gong and Lazebnik, 2011): the leading axes, rotated."""

from __future__ import annotations

from types import ModuleType

from scq_gpu._xp import Array, device_of
from scq_gpu.solvers.joint import polar


def fit_rotation(M: Array, *, xp: ModuleType) -> Array:
    """``V = (R; 0)`` (..., D, L), R being the rotation of the L leading axes that brings them nearest to their signs.

    ``M = X'B / n`` (..., D, L) with ``B = sign(XV)``: R is the orthogonal matrix that maximises ``tr(R'M)`` over the
    first L rows of M, an orthogonal Procrustes problem.
    """
    D, L = M.shape[-2:]
    R = polar(M[..., :L, :], xp=xp)
    return xp.concat([R, xp.zeros((*M.shape[:-2], D - L, L), dtype=M.dtype, device=device_of(M))], axis=-2)
