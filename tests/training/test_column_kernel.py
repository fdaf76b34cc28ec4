"""The kernel that finds a column of OnE against the array operations it stands for."""

import numpy as np
import pytest

from scq_gpu._core.arrays import namespace
from scq_gpu.kernels import columns
from scq_gpu.training.orthonormal import _search, fit_orthonormal
from scq_gpu.training.secular import bracket

pytestmark = pytest.mark.gpu
XP = namespace(np.empty(0))


def problem(R, k, D, dtype, seed=0):
    rng = np.random.default_rng(seed)
    gap = np.sort(rng.exponential(size=(R, D)), axis=-1)[:, ::-1].copy()
    gap -= gap.min(axis=-1, keepdims=True)
    V = np.stack([np.linalg.qr(rng.standard_normal((D, max(k, 1))))[0].T[:k] for _ in range(R)])
    m = 3 * rng.standard_normal((R, 1, D))
    return [x.astype(dtype) for x in (gap[:, None, :], m, V)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("R", "k", "D"), [(1, 0, 1), (1, 0, 33), (3, 1, 40), (2, 31, 256), (1, 64, 257)])
def test_kernel_is_the_array_operations(dtype, R, k, D):
    import cupy

    gap, m, V = problem(R, k, D, dtype)
    free = m - (m @ np.swapaxes(V, -1, -2)) @ V
    lo, hi = bracket(gap, free, gap.max(axis=-1, keepdims=True), relative=1e-6, tiny=1e-9, xp=XP)
    tau, v = _search(gap, m, V, lo, hi, hi, steps=12, xp=XP)
    on_device = [cupy.asarray(x) for x in (gap, m, V, lo, hi, hi)]
    assert columns.in_one_launch(on_device[2])
    found_tau, found_v = columns.find_column(*on_device, steps=12, xp=namespace(on_device[0]))
    rtol = 1e-9 if dtype == np.float64 else 2e-3
    np.testing.assert_allclose(found_tau.get(), tau, rtol=rtol)
    np.testing.assert_allclose(found_v.get(), v, atol=rtol)


def test_rows_of_a_larger_array_and_a_shared_gap():
    import cupy

    gap, m, V = problem(2, 5, 30, np.float64)
    buffer = cupy.full((2, 9, 30), cupy.nan)
    buffer[:, :5] = cupy.asarray(V)
    xp, m, gap = namespace(buffer), cupy.asarray(m), cupy.asarray(gap[0])
    lo, hi = (cupy.full((2, 1, 1), x) for x in (0.1, 100.0))
    one = columns.find_column(gap, m, buffer[:, :5], lo, hi, hi, steps=9, xp=xp)
    for r in range(2):
        alone = columns.find_column(
            gap, m[r : r + 1], cupy.asarray(V[r : r + 1]), lo[:1], hi[:1], hi[:1], steps=9, xp=xp
        )
        for x, y in zip(one, alone, strict=True):
            np.testing.assert_array_equal(x[r].get(), y[0].get())


def test_a_missing_column_is_passed_over():
    """One whose search failed is 0; the others are found all the same."""
    import cupy

    gap, m, V = problem(1, 4, 20, np.float64)
    V[:, 2] = 0
    lo, hi = np.full((1, 1, 1), 0.01), np.full((1, 1, 1), 100.0)
    tau, v = _search(gap, m, V, lo, hi, hi, steps=12, xp=XP)
    found = columns.find_column(*map(cupy.asarray, (gap, m, V, lo, hi, hi)), steps=12, xp=namespace(cupy.asarray(m)))
    np.testing.assert_allclose(found[0].get(), tau, rtol=1e-9)
    np.testing.assert_allclose(found[1].get(), v, atol=1e-9)


def test_too_many_columns_are_left_to_array_operations():
    import cupy

    assert not columns.in_one_launch(cupy.zeros((1, 65, 100)))
    assert not columns.in_one_launch(cupy.zeros((1, 10, 3000)))
    assert not columns.in_one_launch(np.zeros((1, 3, 10)))


def test_a_v_step_of_both_lengths():
    """More columns than the kernel takes: the first by the kernel, the rest not, all as NumPy finds them."""
    import cupy

    rng = np.random.default_rng(0)
    lam, M = np.linspace(2, 0.1, 90), rng.standard_normal((1, 90, 70)) * 3
    V, tau, found = fit_orthonormal(lam, M, xp=XP)
    assert found.all()
    others = fit_orthonormal(cupy.asarray(lam), cupy.asarray(M), xp=namespace(cupy.asarray(M)))
    for one, other in zip((V, tau), others, strict=False):
        np.testing.assert_allclose(other.get(), one, atol=1e-8)
