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

from scq_gpu._core.arrays import Array, elementwise, total
from scq_gpu.kernels.linalg import columns_as_rows, project_out
from scq_gpu.training.loop import VStep


def columnwise_step(ridge: float, *, xp: ModuleType) -> VStep:
    """Make the V step of Algorithm 2."""

    def run(lam: Array, M: Array, V: Array, memory: None) -> tuple[Array, None, None]:
        return fit_orthogonal(lam, M, ridge=ridge, xp=xp), None, None

    return VStep(run, ridge=ridge)


def fit_orthogonal(lam: Array, M: Array, *, ridge: float, xp: ModuleType) -> Array:
    """Solve for ``V`` (R, D, L) with pairwise orthogonal columns, one column after the other.

    A column whose target lies in the span of the earlier ones comes out as zero, the minimizer of its sub-problem.
    """
    z = (1 / (lam + ridge))[..., None, :]
    smallest = 100 * float(xp.finfo(M.dtype).eps)
    targets, V = columns_as_rows(M, xp=xp)
    Q, QZ = xp.empty_like(V), xp.empty_like(V)  # QZ = Q Z; of both, and of V, the rows before k are filled
    square = z * z
    lengths = _WEIGHTED_SQUARE(square, targets, axis=-1, xp=xp)
    for k in range(M.shape[-1]):
        m, done = targets[..., k : k + 1, :], (Q[..., :k, :], QZ[..., :k, :])
        v = project_out(project_out(m, *done, xp=xp), *done, xp=xp) if k else m
        size = _WEIGHTED_SQUARE(square, v, axis=-1, xp=xp)
        v = _unless_rounding(v, z, size, lengths[..., k : k + 1, :], smallest, xp=xp)
        q = project_out(project_out(v, *done, xp=xp), *done, xp=xp) if k else v
        q, qz = _normalized(q, z, _WEIGHTED_SQUARE(z, q, axis=-1, xp=xp), xp=xp)
        V[..., k : k + 1, :], Q[..., k : k + 1, :], QZ[..., k : k + 1, :] = v, q, qz
    return xp.matrix_transpose(V)


_WEIGHTED_SQUARE = total(lambda z, x: z * x * x, "a * b * b")


@elementwise
def _unless_rounding(v: Array, z: Array, size: Array, target: Array, smallest: float, *, xp: ModuleType) -> Array:
    """Return ``Z v``, or 0 where only rounding is left of the target."""
    return xp.where(xp.sqrt(size) > smallest * xp.sqrt(target), z * v, 0.0)


@elementwise
def _normalized(q: Array, z: Array, square: Array, *, xp: ModuleType) -> tuple[Array, Array]:
    """Scale q to length 1 in the inner product of Z, and return it with ``Z q``."""
    q = q / xp.where(square > 0, xp.sqrt(square), 1.0)
    return q, q * z
