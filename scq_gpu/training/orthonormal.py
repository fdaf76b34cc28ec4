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
from types import ModuleType

from scq_gpu._core.arrays import Array
from scq_gpu.training.loop import VStep
from scq_gpu.training.secular import bracket, minimize_on_sphere, refine

_STEPS = 4  # of `refine` from the root of a neighboring column, or of the same one in the last iteration
_PATIENT_STEPS = 16  # from the upper end of the bracket


def columnwise_step(*, xp: ModuleType) -> VStep:
    """Algorithm 1's V step, for the training loop; its memory are the roots of the iteration before."""

    def run(lam: Array, M: Array, V: Array, tau: Array | None) -> tuple[Array, Array, Array]:
        return fit_orthonormal(lam, M, start=tau, xp=xp)

    def retry(lam: Array, M: Array, V: Array, tau: Array | None) -> tuple[Array, Array, None]:
        return *fit_orthonormal_patiently(lam, M, start=tau, xp=xp), None

    return VStep(run, retry=retry)


def fit_orthonormal(lam: Array, M: Array, *, start: Array | None = None, xp: ModuleType) -> tuple[Array, Array, Array]:
    """V step of OnE: ``V`` (R, D, L) with orthonormal columns.

    Parameters
    ----------
    start : array (R, 1, L), optional
        Where to look for the roots first: those of the iteration before.

    Returns
    -------
    V : array (R, D, L)
    tau : array (R, 1, L)
        The roots, a start for the next iteration.
    found : array (R,) of bool
        Whether every search succeeded. Where not, it was too short, or the root lies at or below the pole: ask
        `fit_orthonormal_patiently`.
    """
    targets = xp.matrix_transpose(M)
    V = xp.zeros_like(targets[..., :0, :])
    roots: list[Array] = []
    found: list[Array] = []
    for k in range(M.shape[-1]):
        first, steps = _first_guess(start, roots, k)
        v, tau, good = _column(lam, targets[..., k : k + 1, :], V, start=first, steps=steps, xp=xp)
        V = xp.concat([V, v], axis=-2)
        roots.append(tau)
        found.append(good)
    return xp.matrix_transpose(V), xp.concat(roots, axis=-1), xp.all(xp.stack(found), axis=0)


def fit_orthonormal_patiently(
    lam: Array, M: Array, *, start: Array | None = None, xp: ModuleType
) -> tuple[Array, Array]:
    """The same ``V`` and ``tau`` with longer searches, and the spectrum of H wherever they find no root.

    Each such column costs an eigendecomposition of order D. Looks at the host once per column.
    """
    targets = xp.matrix_transpose(M)
    V = xp.zeros_like(targets[..., :0, :])
    roots: list[Array] = []
    for k in range(M.shape[-1]):
        m = targets[..., k : k + 1, :]
        first, steps = _first_guess(start, roots, k)
        v, tau, good = _column(lam, m, V, start=first, steps=steps, xp=xp)
        if not bool(xp.all(good)):
            v, tau, good = _column(lam, m, V, start=None, steps=_PATIENT_STEPS, xp=xp)
        if not bool(xp.all(good)):
            lams = xp.broadcast_to(lam, (m.shape[0], m.shape[-1]))
            exact = xp.stack([_column_by_spectrum(lams[r, :], m[r, ...], V[r, ...], xp=xp) for r in range(m.shape[0])])
            v = xp.where(good[:, None, None], v, exact)
        V = xp.concat([V, v], axis=-2)
        roots.append(tau)
    return xp.matrix_transpose(V), xp.concat(roots, axis=-1)


def _first_guess(start: Array | None, roots: list[Array], k: int) -> tuple[Array | None, int]:
    """First guess and number of steps for column k: its last root, or that of the column before, or none."""
    if start is not None:
        return start[..., k : k + 1], _STEPS
    return (roots[-1], _STEPS) if roots else (None, _PATIENT_STEPS)


def _column(
    lam: Array, m: Array, V: Array, *, start: Array | None, steps: int, xp: ModuleType
) -> tuple[Array, Array, Array]:
    """The next column (R, 1, D) after the rows V (R, k, D), its tau, and whether it is the minimizer (R,)."""
    eps = float(xp.finfo(m.dtype).eps)
    gap = (lam - xp.min(lam, axis=-1, keepdims=True))[..., None, :]
    Vt = xp.matrix_transpose(V)

    free = m - (m @ Vt) @ V
    tiny = float(xp.finfo(m.dtype).smallest_normal) ** 0.5
    lowest = 16 * eps * (xp.max(gap, axis=-1, keepdims=True) + _norm(free, xp)) + tiny
    lo, hi = bracket(gap, free, lowest, xp=xp)

    # a column whose search failed may be 0: A stays regular, and the caller hears of the failure
    missing = xp.astype(xp.vecdot(V, V) == 0, V.dtype)[..., None] * xp.eye(V.shape[-2], dtype=V.dtype, device=V.device)

    def inverse(tau: Array) -> Callable[[Array], Array]:
        """``(H + nu)^-1`` in the complement of V: ``x -> Z (x - V phi)`` with ``A phi = V' Z x``."""
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

    start = hi if start is None else xp.minimum(xp.maximum(start, lo), hi)
    tau, _ = refine(moments, lo, hi, start, steps=steps, xp=xp)
    v = inverse(tau)(m)
    v = v - (v @ Vt) @ V
    good = xp.abs(xp.vecdot(v, v) - 1) <= 1e5 * eps  # of what is left: rounding, blown up, can look like a root
    length = _norm(v, xp)
    return v / xp.where(length > 0, length, 1.0), tau, good[..., 0]


def _column_by_spectrum(lam: Array, m: Array, V: Array, *, xp: ModuleType) -> Array:
    """The next column (1, D) after the rows V (k, D), from the eigendecomposition of H in their complement."""
    k = V.shape[0]
    if k:
        N = xp.linalg.qr(xp.matrix_transpose(V), mode="complete")[0][:, k:]
    else:
        N = xp.eye(V.shape[1], dtype=V.dtype, device=V.device)
    h, E = xp.linalg.eigh(xp.matrix_transpose(N) @ (lam[:, None] * N))
    N = N @ E
    v = minimize_on_sphere(h, m @ N, xp=xp) @ xp.matrix_transpose(N)
    v = v - (v @ xp.matrix_transpose(V)) @ V
    return v / _norm(v, xp)


def _norm(x: Array, xp: ModuleType) -> Array:
    return xp.linalg.vector_norm(x, axis=-1, keepdims=True)
