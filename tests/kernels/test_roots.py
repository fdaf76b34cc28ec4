"""Inverse roots of small matrices: every engine, from well-conditioned to singular, against NumPy's SVD."""

import numpy as np
import pytest

from scq_gpu._core.arrays import namespace
from scq_gpu.kernels import linalg as roots

XP = namespace(np.empty(0))
ENGINES = [roots.by_eigendecomposition, roots.by_products]


def matrix(D, L, condition, seed=0):
    """A (D, L) with singular values from 1 down to 1 / condition, and its polar factor."""
    rng = np.random.default_rng(seed)
    U, V = (np.linalg.qr(rng.standard_normal((n, L)))[0] for n in (D, L))
    return (U * np.logspace(0, -np.log10(condition), L)) @ V.T, U @ V.T


def polar(A, engine, xp=XP):
    return A @ engine(xp.matrix_transpose(A) @ A, xp=xp)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("D", "L"), [(1, 1), (40, 7), (64, 32), (150, 100)])
@pytest.mark.parametrize("condition", [1, 10, 1e3, 1e5])
def test_polar_factor_to_the_rounding_of_the_gram_matrix(engine, D, L, condition):
    A, Q = matrix(D, L, condition)
    assert np.abs(polar(A, engine) - Q).max() <= 4e-15 * (1 + L) * condition**2


@pytest.mark.parametrize("engine", ENGINES)
def test_on_every_backend(backend, engine):
    """A batch of problems whose sizes differ by far."""
    A, Q = (np.stack(x) for x in zip(*(matrix(30, 12, 10, seed) for seed in range(3)), strict=True))
    A = A * np.array([1e-6, 1, 1e6])[:, None, None]
    found = polar(backend.array(A), engine, backend.namespace)
    assert backend.owns(found)
    np.testing.assert_allclose(backend.host(found), Q, atol=1e-12 if backend.has_float64 else 1e-4)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rank", [0, 1, 5, 20])
def test_without_full_rank_what_is_there_is_orthonormal_and_the_rest_short(engine, dtype, rank):
    """On the span of A the polar factor; beyond it nothing blows up, whatever the sign of what rounding left."""
    rng = np.random.default_rng(rank)
    for _ in range(20):
        A = (rng.standard_normal((50, rank)) @ rng.standard_normal((rank, 32))).astype(dtype)
        Q = polar(A, engine)
        lengths = np.linalg.svd(Q.astype(np.float64), compute_uv=False)
        tolerance = 1e-6 if dtype == np.float64 else 2e-2
        np.testing.assert_allclose(lengths[:rank], 1, atol=tolerance)
        assert (lengths[rank:] <= 1.5).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("L", [2, 32, 200])
def test_products_stand_eigenvalues_that_rounding_made_negative(dtype, L):
    """Newton-Schulz would take a negative eigenvalue to minus infinity."""
    E = np.linalg.qr(np.random.default_rng(0).standard_normal((L, L)))[0]
    w = np.ones(L)
    w[L // 2 :] = -2 * np.finfo(dtype).eps  # of what LAPACK finds in products of rank-deficient matrices
    G = ((E * w) @ E.T).astype(dtype)
    Z = roots.by_products(G, xp=XP).astype(np.float64)
    assert np.isfinite(Z).all()
    np.testing.assert_allclose(np.diag(E.T @ Z @ E)[: L // 2], 1, atol=1e-4)


def test_products_end_short_of_one_where_they_say():
    """Directions below 2 sqrt(L eps), relative to the largest, and not above."""
    L = 16
    edge = 2 * (L * np.finfo(np.float64).eps) ** 0.5
    for length, most in ((100 * edge, 1e-6), (edge / 100, 1.0)):
        s = np.ones(L)
        s[-1] = length
        z = np.diag(roots.by_products(np.diag(s**2), xp=XP)) * s
        assert abs(1 - z[-1]) <= most
    assert z[-1] < 0.1


def test_steps_reach_one_from_the_floor():
    """The whole range of eigenvalues, followed through the scalar recurrence."""
    for floor in (1e-14, 1e-5, 0.5):
        x = np.geomspace(floor**0.5, 1, 2000)
        for a in roots.steps(floor):
            x = a * x * (3 - (a * x) ** 2) / 2
        assert np.abs(x - 1).max() <= 1e-8
    assert len(roots.steps(4 * 32 * 2.0**-52)) <= 22


def test_lapack_where_it_runs():
    assert roots.engine(np.eye(3)) is roots.by_eigendecomposition


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("L", [1, 2, 31, 32, 33, 64])
def test_the_kernel_is_the_products(dtype, L):
    """To rounding, for a batch: well-conditioned, rank-deficient and zero."""
    import cupy

    A = np.stack([matrix(70, L, 10)[0], 1e3 * matrix(70, L, 3)[0], np.zeros((70, L))]).astype(dtype)
    A[1, :, L // 2] = A[1, :, 0]
    G = np.swapaxes(A, -1, -2) @ A
    assert roots.engine(cupy.asarray(G)) is roots.by_kernel
    found = roots.by_kernel(cupy.asarray(G), xp=namespace(cupy.asarray(G))).get()
    wanted = roots.by_products(G, xp=XP)
    tolerance = 200 * L * np.finfo(dtype).eps
    np.testing.assert_allclose(found[0], wanted[0], atol=tolerance * np.abs(wanted[0]).max())
    np.testing.assert_allclose(A[1] @ found[1], A[1] @ wanted[1], atol=1e-5 if dtype == np.float64 else 0.1)
    assert np.isfinite(found).all()


@pytest.mark.gpu
def test_long_codes_on_a_gpu_take_products():
    import cupy

    assert roots.engine(cupy.eye(65)) is roots.by_products
