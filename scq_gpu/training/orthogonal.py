r"""V step of OgE, column by column (Algorithm 2).

With ``Z = diag(z)``, ``z = 1 / (lam + mu)``, column k minimizes ``||b_k - X v||^2/n + mu ||v||^2`` over the complement
of the earlier columns ``V_<k`` (Eq. vk1):

    v_k = Z (m_k - V_<k phi),    A phi = c,    A = V_<k' Z V_<k,    c = V_<k' Z m_k.

A gains a row and a column a step, so its Cholesky factor ``A = C C'`` only grows. We keep it as ``Q = V_<k C^-T``,
whose columns are orthonormal in the inner product of Z: then ``V_<k phi = Q Q' Z m_k``, and growing C by a row is one
step of Gram-Schmidt on Q.
"""

from __future__ import annotations

from types import ModuleType

from scq_gpu._core.arrays import Array
from scq_gpu.training.loop import VStep


def columnwise_step(ridge: float, *, xp: ModuleType) -> VStep:
    """Algorithm 2's V step, for the training loop."""

    def run(lam: Array, M: Array, V: Array, memory: None) -> tuple[Array, None, None]:
        return fit_orthogonal(lam, M, ridge=ridge, xp=xp), None, None

    return VStep(run)


def fit_orthogonal(lam: Array, M: Array, *, ridge: float, xp: ModuleType) -> Array:
    """V step of OgE: ``V`` (R, D, L) with pairwise orthogonal columns.

    A column whose target lies in the span of the earlier ones comes out as zero, the minimizer of its sub-problem.
    """
    z = xp.broadcast_to((1 / (lam + ridge))[..., None, :], (*M.shape[:-2], 1, M.shape[-2]))
    eps = float(xp.finfo(M.dtype).eps)
    targets = xp.matrix_transpose(M)  # columns as rows: each stays contiguous as the factor grows
    V = Q = xp.zeros_like(targets[..., :0, :])
    for k in range(M.shape[-1]):
        m = targets[..., k : k + 1, :]
        v = z * _project_out(_project_out(m, Q, z, xp), Q, z, xp)
        v = xp.where(_norm(v, xp) > 100 * eps * _norm(z * m, xp), v, 0.0)
        q = _project_out(_project_out(v, Q, z, xp), Q, z, xp)
        length = _norm(xp.sqrt(z) * q, xp)
        Q = xp.concat([Q, q / xp.where(length > 0, length, 1.0)], axis=-2)
        V = xp.concat([V, v], axis=-2)
    return xp.matrix_transpose(V)


def _project_out(x: Array, Q: Array, z: Array, xp: ModuleType) -> Array:
    """``x - Q Q' Z x`` for a row vector x: what is left of x outside the span of Q. Twice is enough."""
    return x - ((x * z) @ xp.matrix_transpose(Q)) @ Q


def _norm(x: Array, xp: ModuleType) -> Array:
    return xp.linalg.vector_norm(x, axis=-1, keepdims=True)
