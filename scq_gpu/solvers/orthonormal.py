r"""V step of OnE, column by column (Algorithm 1).

Column k minimises ``||b_k - X v||^2/n`` over unit vectors orthogonal to the earlier columns ``V_<k`` (Eq. vk):

    v_k(nu) = Z (m_k - V_<k phi),    A phi = c,    Z = diag(1 / (lam + nu)),    A = V_<k' Z V_<k,    c = V_<k' Z m_k,

with nu such that ``||v_k(nu)|| = 1``. The paper alternates between nu and phi, which converges linearly. Here phi is
eliminated: ``||v_k(nu)||`` with phi solved at that nu is the norm of ``(H + nu)^-1 m`` in the complement of V_<k, H being
diag(lam) seen from there, so it falls with nu like any secular function, and `refine` finds the root.

H's smallest eigenvalue is at least min(lam), so the root may lie a little below ``-min(lam)``, where Z has a pole
although ``v_k`` has none. That needs the spectrum of H itself; `_column_by_spectrum` computes it, and the true hard
case is settled there too.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from scq_gpu._xp import Array
from scq_gpu.solvers.secular import minimise_on_sphere, refine

_STEPS = 10  # of `refine`; real features take 4 to 7


def fit_orthonormal(lam: Array, M: Array, *, xp: ModuleType) -> tuple[Array, Array]:
    """V step of OnE: ``V`` (R, D, L) with orthonormal columns, and whether every column's search succeeded (R,).

    Where it did not, a root lies at or below the pole: `fit_orthonormal_spectral` finds it.
    """
    found = xp.ones(M.shape[:-2], dtype=xp.bool, device=M.device)
    targets = xp.matrix_transpose(M)
    V = xp.zeros_like(targets[..., :0, :])
    for k in range(M.shape[-1]):
        v, good = _column(lam, targets[..., k : k + 1, :], V, xp=xp)
        V = xp.concat([V, v], axis=-2)
        found = found & good
    return xp.matrix_transpose(V), found


def fit_orthonormal_spectral(lam: Array, M: Array, *, xp: ModuleType) -> Array:
    """The same V step, taking the spectrum of H wherever the fast search has no root.

    Each such column costs an eigendecomposition of order D. Asks the host once a column.
    """
    targets = xp.matrix_transpose(M)
    V = xp.zeros_like(targets[..., :0, :])
    for k in range(M.shape[-1]):
        m = targets[..., k : k + 1, :]
        v, good = _column(lam, m, V, xp=xp)
        if not bool(xp.all(good)):
            lams = xp.broadcast_to(lam, (m.shape[0], m.shape[-1]))
            exact = xp.stack([_column_by_spectrum(lams[r, :], m[r, ...], V[r, ...], xp=xp) for r in range(m.shape[0])])
            v = xp.where(good[:, None, None], v, exact)
        V = xp.concat([V, v], axis=-2)
    return xp.matrix_transpose(V)


def _column(lam: Array, m: Array, V: Array, *, xp: ModuleType) -> tuple[Array, Array]:
    """The next column (R, 1, D) after the rows V (R, k, D), and whether it is the minimiser (R,)."""
    eps = float(xp.finfo(m.dtype).eps)
    gap = (lam - xp.min(lam, axis=-1, keepdims=True))[..., None, :]

    free = m - (m @ xp.matrix_transpose(V)) @ V
    norm = _norm(free, xp)
    jensen = norm - xp.sum(gap * free * free, axis=-1, keepdims=True) / xp.where(norm > 0, norm * norm, 1.0)
    tiny = float(xp.finfo(m.dtype).smallest_normal) ** 0.5
    lowest = 16 * eps * (xp.max(gap, axis=-1, keepdims=True) + norm) + tiny
    hi = xp.maximum(norm, lowest)
    lo = xp.minimum(xp.maximum(jensen, lowest), hi)

    def moments(tau: Array) -> tuple[Array, Array, Array]:
        inverse = _inverse_in_complement(gap + tau, V, xp=xp)
        v = inverse(m)
        w = inverse(v)
        return _dot(v, v, xp), _dot(v, w, xp), _dot(w, w, xp)

    tau, _ = refine(moments, lo, hi, hi, steps=_STEPS, xp=xp)
    v = _inverse_in_complement(gap + tau, V, xp=xp)(m)
    found = xp.abs(_dot(v, v, xp) - 1) <= 1e5 * eps
    v = v - (v @ xp.matrix_transpose(V)) @ V
    length = _norm(v, xp)
    return v / xp.where(length > 0, length, 1.0), found[..., 0, 0]


def _inverse_in_complement(shifted: Array, V: Array, *, xp: ModuleType) -> Callable[[Array], Array]:
    """``(H + nu)^-1`` on the complement of V's rows: ``x -> Z (x - V_<k A^-1 V_<k' Z x)``, where shifted is lam + nu."""
    z = 1 / shifted
    ZV = V * z
    A_inv = xp.linalg.inv(ZV @ xp.matrix_transpose(V)) if V.shape[-2] else V[..., :0]

    def inverse(x: Array) -> Array:
        phi = (x @ xp.matrix_transpose(ZV)) @ A_inv
        return z * x - phi @ ZV

    return inverse


def _column_by_spectrum(lam: Array, m: Array, V: Array, *, xp: ModuleType) -> Array:
    """The next column (1, D) after the rows V (k, D), from the eigendecomposition of H in their complement."""
    k = V.shape[0]
    N = xp.linalg.qr(xp.matrix_transpose(V), mode="complete")[0][:, k:] if k else xp.eye(V.shape[1], dtype=V.dtype, device=V.device)
    h, E = xp.linalg.eigh(xp.matrix_transpose(N) @ (lam[:, None] * N))
    N = N @ E
    v = minimise_on_sphere(h, m @ N, xp=xp) @ xp.matrix_transpose(N)
    v = v - (v @ xp.matrix_transpose(V)) @ V
    return v / _norm(v, xp)


def _norm(x: Array, xp: ModuleType) -> Array:
    return xp.linalg.vector_norm(x, axis=-1, keepdims=True)


def _dot(x: Array, y: Array, xp: ModuleType) -> Array:
    return xp.vecdot(x, y)[..., None]
