r"""V step of OnE, column by column (Algorithm 1).

Column k minimizes ``||b_k - X v||^2/n`` over unit vectors orthogonal to the earlier columns ``V_<k`` (Eq. vk):

    v_k(nu) = Z (m_k - V_<k phi),    A phi = c,    Z = diag(1 / (lam + nu)),    A = V_<k' Z V_<k,    c = V_<k' Z m_k,

with nu such that ``||v_k(nu)|| = 1``. The paper alternates between nu and phi, which converges linearly. Here phi is
eliminated: ``||v_k(nu)||`` with phi solved at that nu is the norm of ``(H + nu)^-1 m`` in the complement of V_<k, H
being diag(lam) seen from there, so it falls with nu like any secular function, and `refine` finds the root.

H's smallest eigenvalue is at least min(lam), so the root may lie a little below ``-min(lam)``, where Z has a pole
although ``v_k`` has none. That needs the spectrum of H itself; `_column_by_spectrum` computes it, and the true hard
case is settled there too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType

from scq_gpu._core.arrays import Array, elementwise
from scq_gpu.kernels.columns import find_column, in_one_launch
from scq_gpu.kernels.linalg import columns_as_rows, project_out
from scq_gpu.training.loop import VStep
from scq_gpu.training.secular import SQUARE, bracket, minimize_on_sphere, refine


def columnwise_step(*, xp: ModuleType) -> VStep:
    """Make the V step of Algorithm 1, whose memory are the roots of the iteration before."""

    def run(lam: Array, M: Array, V: Array, tau: Array | None, *, patient: bool = False) -> tuple[Array, Array, Array]:
        return fit_orthonormal(lam, M, start=tau, patient=patient, xp=xp)

    return VStep(run, retry=partial(run, patient=True))


def fit_orthonormal(
    lam: Array, M: Array, *, start: Array | None = None, patient: bool = False, xp: ModuleType
) -> tuple[Array, Array, Array]:
    """Solve for ``V`` (R, D, L) with orthonormal columns, one column after the other.

    Return V, the roots tau (R, 1, L), which are a ``start`` for the next iteration, and whether every search succeeded
    (R,). One fails if it is too short, or if the root lies at or below the pole. If ``patient``, a longer one follows
    then, and after that the spectrum of H, an eigendecomposition of order D. That takes a look at the host per column.
    """
    targets, columns = columns_as_rows(M, xp=xp)
    gap = lam - xp.min(lam, axis=-1, keepdims=True)
    roots: list[Array] = []
    squares: list[Array] = []
    for k in range(M.shape[-1]):
        m, V = targets[..., k : k + 1, :], columns[..., :k, :]
        # the search begins at the last root of this column, or at that of the column before
        first = start[..., k : k + 1] if start is not None else roots[-1] if roots else None
        v, tau, square = _column(gap, m, V, start=first, xp=xp)
        if patient and not bool(xp.all(_good(square, xp))):
            v, tau, square = _column(gap, m, V, start=None, xp=xp)
        if patient and not bool(xp.all(_good(square, xp))):
            lams = xp.broadcast_to(lam, (m.shape[0], m.shape[-1]))
            exact = xp.stack([_column_by_spectrum(lams[r, :], m[r, ...], V[r, ...], xp=xp) for r in range(m.shape[0])])
            v, square = xp.where(_good(square, xp), v, exact), xp.ones_like(square)
        columns[..., k : k + 1, :] = v
        roots.append(tau)
        squares.append(square)
    found = xp.all(_good(xp.concat(squares, axis=-1), xp), axis=(-2, -1))
    return xp.matrix_transpose(columns), xp.concat(roots, axis=-1), found


def _column(gap: Array, m: Array, V: Array, *, start: Array | None, xp: ModuleType) -> tuple[Array, Array, Array]:
    """Return the column (R, 1, D) after the rows V (R, k, D), its tau, and its squared length, which is 1 if found."""
    gap = gap[..., None, :]
    free = project_out(m, V, V, xp=xp) if V.shape[-2] else m
    eps, tiny = float(xp.finfo(m.dtype).eps), float(xp.finfo(m.dtype).smallest_normal) ** 0.5
    lo, hi = bracket(gap, free, xp.max(gap, axis=-1, keepdims=True), relative=16 * eps, tiny=tiny, xp=xp)
    first = hi if start is None else xp.minimum(xp.maximum(start, lo), hi)
    search = find_column if in_one_launch(V) else _search
    # from a neighboring root, few steps of `refine` are enough
    tau, v = search(gap, m, V, lo, hi, first, steps=16 if start is None else 4, xp=xp)
    v = project_out(v, V, V, xp=xp) if V.shape[-2] else v
    square = SQUARE(v, axis=-1, xp=xp)
    return _normalized(v, square, xp=xp), tau, square


def _search(
    gap: Array, m: Array, V: Array, lo: Array, hi: Array, start: Array, *, steps: int, xp: ModuleType
) -> tuple[Array, Array]:
    """Search for the root tau (R, 1, 1) in [lo, hi] from ``start``, and return it with v(tau) (R, 1, D)."""
    Vt = xp.matrix_transpose(V)
    # a column whose search failed may be 0: A stays regular, and the caller hears of the failure
    missing = xp.astype(xp.vecdot(V, V) == 0, V.dtype)[..., None] * xp.eye(V.shape[-2], dtype=V.dtype, device=V.device)

    def inverse(tau: Array) -> Callable[[Array], Array]:
        """Return ``(H + nu)^-1`` in the complement of V, ``x -> Z (x - V phi)`` with ``A phi = V' Z x``."""
        z = 1 / (gap + tau)
        if not V.shape[-2]:
            return lambda x: z * x
        A_inv = xp.linalg.inv((V * z) @ Vt + missing)
        return lambda x: z * (x - (((z * x) @ Vt) @ A_inv) @ V)

    def moments(tau: Array) -> tuple[Array, Array, Array]:
        apply = inverse(tau)
        v = apply(m)
        w = apply(v)
        return xp.vecdot(v, v)[..., None], xp.vecdot(v, w)[..., None], xp.vecdot(w, w)[..., None]

    tau, _ = refine(moments, lo, hi, start, steps=steps, xp=xp)
    return tau, inverse(tau)(m)


@elementwise
def _normalized(v: Array, square: Array, *, xp: ModuleType) -> Array:
    return v / xp.where(square > 0, xp.sqrt(square), 1.0)


def _good(square: Array, xp: ModuleType) -> Array:
    """Tell if columns of that squared length were found; magnified rounding can look like a root."""
    return xp.abs(square - 1) <= 1e5 * float(xp.finfo(square.dtype).eps)


def _column_by_spectrum(lam: Array, m: Array, V: Array, *, xp: ModuleType) -> Array:
    """Return the column (1, D) after the rows V (k, D), from the eigendecomposition of H in their complement."""
    k, D = V.shape
    if k:
        N = xp.linalg.qr(xp.matrix_transpose(V), mode="complete")[0][:, k:]
    else:
        N = xp.eye(D, dtype=V.dtype, device=V.device)
    h, E = xp.linalg.eigh(xp.matrix_transpose(N) @ (lam[:, None] * N))
    N = N @ E
    v = minimize_on_sphere(h, m @ N, xp=xp) @ xp.matrix_transpose(N)
    v = v - (v @ xp.matrix_transpose(V)) @ V
    return v / xp.linalg.vector_norm(v, axis=-1, keepdims=True)
