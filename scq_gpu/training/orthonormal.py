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
from scq_gpu.kernels.columns import find_column, in_one_launch
from scq_gpu.kernels.fused import elementwise, total
from scq_gpu.training.linalg import columns_as_rows, project_out
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
    targets, V = columns_as_rows(M, xp=xp)
    gap = lam - xp.min(lam, axis=-1, keepdims=True)
    roots: list[Array] = []
    found: list[Array] = []
    for k in range(M.shape[-1]):
        first, steps = _first_guess(start, roots, k)
        column = slice(k, k + 1)
        V[..., column, :], tau, square = _column(
            gap, targets[..., column, :], V[..., :k, :], start=first, steps=steps, xp=xp
        )
        roots.append(tau)
        found.append(square)
    return (
        xp.matrix_transpose(V),
        xp.concat(roots, axis=-1),
        xp.all(_good(xp.concat(found, axis=-1), xp), axis=(-2, -1)),
    )


def fit_orthonormal_patiently(
    lam: Array, M: Array, *, start: Array | None = None, xp: ModuleType
) -> tuple[Array, Array]:
    """The same ``V`` and ``tau`` with longer searches, and the spectrum of H wherever they find no root.

    Each such column costs an eigendecomposition of order D. Looks at the host once per column.
    """
    targets, columns = columns_as_rows(M, xp=xp)
    gap = lam - xp.min(lam, axis=-1, keepdims=True)
    roots: list[Array] = []
    for k in range(M.shape[-1]):
        m, V = targets[..., k : k + 1, :], columns[..., :k, :]
        first, steps = _first_guess(start, roots, k)
        v, tau, square = _column(gap, m, V, start=first, steps=steps, xp=xp)
        if not bool(xp.all(_good(square, xp))):
            v, tau, square = _column(gap, m, V, start=None, steps=_PATIENT_STEPS, xp=xp)
        if not bool(xp.all(_good(square, xp))):
            lams = xp.broadcast_to(lam, (m.shape[0], m.shape[-1]))
            exact = xp.stack([_column_by_spectrum(lams[r, :], m[r, ...], V[r, ...], xp=xp) for r in range(m.shape[0])])
            v = xp.where(_good(square, xp), v, exact)
        columns[..., k : k + 1, :] = v
        roots.append(tau)
    return xp.matrix_transpose(columns), xp.concat(roots, axis=-1)


def _first_guess(start: Array | None, roots: list[Array], k: int) -> tuple[Array | None, int]:
    """First guess and number of steps for column k: its last root, or that of the column before, or none."""
    if start is not None:
        return start[..., k : k + 1], _STEPS
    return (roots[-1], _STEPS) if roots else (None, _PATIENT_STEPS)


def _column(
    gap: Array, m: Array, V: Array, *, start: Array | None, steps: int, xp: ModuleType
) -> tuple[Array, Array, Array]:
    """The next column (R, 1, D) after the rows V (R, k, D), its tau, and what its squared length was: 1, if found."""
    gap = gap[..., None, :]
    free = project_out(m, V, V, xp=xp) if V.shape[-2] else m
    eps, tiny = float(xp.finfo(m.dtype).eps), float(xp.finfo(m.dtype).smallest_normal) ** 0.5
    lo, hi = bracket(gap, free, xp.max(gap, axis=-1, keepdims=True), relative=16 * eps, tiny=tiny, xp=xp)
    start = hi if start is None else xp.minimum(xp.maximum(start, lo), hi)
    search = find_column if in_one_launch(V) else _search
    tau, v = search(gap, m, V, lo, hi, start, steps=steps, xp=xp)
    v = project_out(v, V, V, xp=xp) if V.shape[-2] else v
    square = _SQUARE(v, axis=-1, xp=xp)
    return _normalized(v, square, xp=xp), tau, square


def _search(
    gap: Array, m: Array, V: Array, lo: Array, hi: Array, start: Array, *, steps: int, xp: ModuleType
) -> tuple[Array, Array]:
    """The root tau (R, 1, 1) in [lo, hi], from ``start`` in a number of steps, and v(tau) (R, 1, D)."""
    Vt = xp.matrix_transpose(V)
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

    tau, _ = refine(moments, lo, hi, start, steps=steps, xp=xp)
    return tau, inverse(tau)(m)


_SQUARE = total(lambda v: v * v, "a * a")


@elementwise
def _normalized(v: Array, square: Array, *, xp: ModuleType) -> Array:
    return v / xp.where(square > 0, xp.sqrt(square), 1.0)


def _good(square: Array, xp: ModuleType) -> Array:
    """Whether columns of that squared length were found: rounding, blown up, can look like a root."""
    return xp.abs(square - 1) <= 1e5 * float(xp.finfo(square.dtype).eps)


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
