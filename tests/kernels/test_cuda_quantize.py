"""The kernel of product codes, run on the CPU from the source that runs on a GPU, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import COMPILER, SimulatedDevice, fake_cupy, oracle
from cuda_on_cpu.cases import CASES, SEED, quantize_case

from scq_gpu._core import arrays as devices
from scq_gpu.kernels import quantize
from scq_gpu.kernels.cuda.quantize import WIDTHS, has_quantize_kernel, nearest

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the simulator needs g++")

DEVICE = SimulatedDevice() if COMPILER else None


@pytest.fixture
def cupy(monkeypatch):
    """A CuPy that runs on the simulator; its arrays are NumPy's, which the native core would take."""
    monkeypatch.setattr(quantize.native, "runs_native", lambda x: False)
    devices.cuda_device.cache_clear()
    with fake_cupy.installed() as fake:
        monkeypatch.setattr(quantize, "namespace", lambda *arrays: fake)
        yield fake
    devices.cuda_device.cache_clear()


@pytest.fixture
def problem():
    rng = np.random.default_rng(SEED)
    X, mean = rng.standard_normal((700, 40), dtype=np.float32), rng.standard_normal(40, dtype=np.float32)
    W, cells = rng.standard_normal((40, 24), dtype=np.float32), rng.standard_normal((4, 256, 6), dtype=np.float32)
    return X, quantize.Map.of(mean, W, cells)


@pytest.mark.parametrize("case", [name for name in CASES if name.startswith("quantize")])
def test_cases(case):
    CASES[case](DEVICE)


@pytest.mark.parametrize("w", [1, 5, *WIDTHS])
@pytest.mark.parametrize("n", [1, 31, 513, 1025])
def test_edge_shapes(n, w):
    quantize_case(DEVICE, n, 3, w)
    quantize_case(DEVICE, n, 1, w, 7, exact=True)


def test_thread_order_does_not_matter():
    quantize_case(SimulatedDevice(seeds=(0, 1, 2, 3)), 1030, 2, 9)


def test_rows_further_apart_than_they_are_long_and_no_rows():
    rng = np.random.default_rng(SEED)
    Y, cells = rng.standard_normal((99, 40), dtype=np.float32), rng.standard_normal((3, 256, 8), dtype=np.float32)
    halves = (cells * cells).sum(axis=2) / 2
    for part in (Y[:, 5:29], Y[::3, :24], Y[:0, :24]):
        codes, _ = nearest(DEVICE, part, cells, halves)
        oracle.check_cells(codes, np.ascontiguousarray(part), cells, halves)


@pytest.mark.skipif(not hasattr(np, "__array_namespace_info__"), reason="NumPy 2.0, the fake CuPy, lists no types")
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_rows_on_a_gpu_take_the_kernel(cupy, problem, dtype):
    X, by = problem
    X = np.round(4 * X).astype(dtype) if dtype == "uint8" else X.astype(dtype)
    codes, finite = quantize.encode_rows(fake_cupy.array(X), quantize.Map(*map(fake_cupy.array, by)))
    assert isinstance(codes, cupy.ndarray)
    assert len(cupy.RawModule.compiled) == 1
    assert finite.tolist() == [True]
    Y = (X.astype(np.float32) - by.mean) @ by.W
    oracle.check_cells(np.asarray(codes), Y, by.cells, (by.cells**2).sum(axis=2) / 2)
    bad = X.astype(np.float32)
    bad[3, 5] = np.nan
    assert quantize.encode_rows(fake_cupy.array(bad), quantize.Map(*map(fake_cupy.array, by)))[1].tolist() == [False]


def test_the_rounds_of_a_fit_take_the_kernel(cupy, problem):
    X, by = problem
    Y, squares = X[:, :24], np.ones((4, 256), dtype=np.float32)
    codes = quantize.nearest(*map(fake_cupy.array, (Y, by.cells, squares)), xp=cupy)
    assert len(cupy.RawModule.compiled) == 1
    oracle.check_cells(np.asarray(codes), Y, by.cells, squares / 2)


def test_what_has_no_kernel_goes_through_array_operations(cupy, monkeypatch, problem):
    X, by = problem
    Y, wide = fake_cupy.array(X[:, :33]), fake_cupy.array(np.ones((1, 256, 33), dtype=np.float32))
    assert not has_quantize_kernel(Y, wide)
    assert not has_quantize_kernel(X, by.cells)
    Y, cells = fake_cupy.array(X[:, :24]), fake_cupy.array(by.cells)
    assert has_quantize_kernel(Y, cells)
    assert not has_quantize_kernel(fake_cupy.array(np.asfortranarray(Y)), cells)
    assert not has_quantize_kernel(fake_cupy.array(Y.astype(float)), fake_cupy.array(cells.astype(float)))
    monkeypatch.setattr(fake_cupy.Device, "compute_capability", "70")
    devices.cuda_device.cache_clear()
    assert not has_quantize_kernel(Y, cells)
