"""Kernels called with arrays, the launch geometry and the messages."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from cuda_on_cpu import COMPILER, SimulatedDevice, fake_cupy, oracle
from cuda_on_cpu.cases import SEED, features, linear_map

from scq_gpu._core import devices
from scq_gpu.kernels import engines
from scq_gpu.kernels.cuda import calls, geometry, launch

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="the simulator needs g++")
SHARED_LIMITS = {75: 64 << 10, 80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}


@pytest.fixture
def cupy():
    """A CuPy that runs on the simulator."""
    devices.cuda_device.cache_clear()
    with fake_cupy.installed() as fake:
        yield fake
    devices.cuda_device.cache_clear()


@pytest.fixture
def problem():
    rng = np.random.default_rng(SEED)
    X, _ = features(rng, 40, 20, "float32")
    return X, *linear_map(rng, 20, 33)


# ---- geometry: pure functions ----


@pytest.mark.parametrize(
    ("n_bits", "tile_bits"),
    [(1, 32), (32, 32), (33, 64), (64, 64), (65, 128), (128, 128), (129, 64), (192, 64), (256, 128)],
)
def test_tile_width(n_bits, tile_bits):
    assert geometry.encode_variant("float32", n_bits, "exact", 75).tile_bits == tile_bits


def test_narrow_features_have_no_three_pass_form():
    assert geometry.encode_variant("float16", 8, "accurate", 75).precision == "exact"


@pytest.mark.parametrize(("element", "capability"), [("float32", 75), ("bfloat16", 75), ("float16", 70)])
def test_device_too_old_for_fast(element, capability):
    with pytest.raises(RuntimeError, match=r"needs compute capability .* this device has 7.* Pass precision='exact'"):
        geometry.encode_variant(element, 8, "fast", capability)


@pytest.mark.parametrize("arch", SHARED_LIMITS)
def test_shared_memory_fits_every_architecture(arch):
    encode = [variant.shared for variant in geometry.encode_variants() if variant.min_capability <= arch]
    hamming = [size for variant in geometry.hamming_variants() for size in variant.kernels.values()]
    assert max(encode + hamming) <= SHARED_LIMITS[arch]


def test_grid_is_one_dimensional_and_covers_everything():
    variant = geometry.EncodeVariant("float32", 128, "exact")
    assert variant.blocks(0, 128) == 0
    assert variant.blocks(129, 129) == 2 * 2
    assert variant.blocks(10**10, 128) == -(-(10**10) // 128) < launch.MAX_BLOCKS


@pytest.mark.parametrize("n", [1, 4096, 4097, 10**6, 10**9, 3 * 10**9])
def test_chunks_cover_the_database(n):
    for variant in geometry.hamming_variants():
        size = variant.chunk_items(n)
        assert size % variant.tile_items == 0
        assert (variant.chunks(n) - 1) * size < n <= variant.chunks(n) * size
        assert variant.chunks(n) <= geometry.MAX_CHUNKS


def test_sources_are_package_data_and_complete():
    for variant in [*geometry.encode_variants(), *geometry.hamming_variants()]:
        source = launch.read_source(variant.source)
        assert '#include "' not in source
        names = [variant.kernel] if isinstance(variant, geometry.EncodeVariant) else variant.kernels
        assert all(f"\n{name}(" in source for name in names)


def test_too_many_blocks_is_said():
    with pytest.raises(ValueError, match=r"would take 2147483648 blocks .* pass fewer rows"):
        launch.launch(None, None, "encode_exact", blocks=2**31, shared=0, args=())


@needs_compiler
def test_simulator_checks_a_launch_as_a_driver_does(problem):
    X, W, t = problem
    variant = geometry.encode_variant("float32", 33, "exact", 80)
    kernel = (
        SimulatedDevice()
        .build(launch.read_source(variant.source), launch.build_options(variant))
        .get_function(variant.kernel)
    )
    sizes = [np.int64(40), np.int64(20), np.int64(20), np.int32(20), np.int32(33), np.int32(1), np.int32(1)]
    with pytest.raises(TypeError, match="takes arguments of"):
        kernel((1,), (256,), (X, W, t, X, X, np.int32(40), *sizes[1:]), shared_mem=variant.shared)
    with pytest.raises(RuntimeError, match="shared memory"):
        kernel((1,), (256,), (X, W, t, X, X, *sizes), shared_mem=50 << 10)
    with pytest.raises(RuntimeError, match="cannot launch"):
        kernel((1,), (250,), (X, W, t, X, X, *sizes), shared_mem=0)


# ---- calls with arrays, with a CuPy that runs on the CPU ----


@needs_compiler
@pytest.mark.parametrize("precision", engines.PRECISIONS)
def test_encode_linear(cupy, problem, precision):
    X, W, t = problem
    x, w, threshold = map(fake_cupy.array, problem)
    assert engines.has_encode_kernel(x)
    codes = calls.encode_linear(x, w, threshold, precision=precision)
    assert isinstance(codes, cupy.ndarray)
    oracle.check_codes(np.asarray(codes), X, W, t, element="float32", precision=precision)
    calls.encode_linear(x, w, threshold, precision=precision)
    assert len(cupy.RawModule.compiled) == 1, "compiled once a variant"


@needs_compiler
def test_codes_are_made_on_the_device_of_x(cupy, problem):
    x, w, t = (fake_cupy.array(a, device=1) for a in problem)
    assert calls.encode_linear(x, w, t).device.id == 1


@needs_compiler
def test_code_search(cupy):
    codes = np.random.default_rng(SEED).integers(0, 256, (300, 5), dtype=np.uint8)
    parts = [fake_cupy.array(codes)]
    engine = calls.CodeSearch(parts)
    queries = fake_cupy.array(codes[:4])
    D = oracle.distances(codes[:4], codes)
    distances, rows = engine.knn(queries, parts, 7, n_bits=40)
    assert isinstance(distances, cupy.ndarray)
    assert np.array_equal(rows, np.argsort(D, axis=1, kind="stable")[:, :7])
    assert np.array_equal(distances, np.sort(D, axis=1)[:, :7])
    query, distances, rows = engine.within(queries, parts, 14)
    assert np.array_equal((query, rows), np.nonzero(D <= 14))
    assert np.array_equal(distances, D[query, rows])
    with pytest.raises(ValueError, match="k=0 must be an integer from 1 to 300"):
        engine.knn(queries, parts, 0, n_bits=40)
    with pytest.raises(ValueError, match=r"queries are on .* and the codes on .*; move them to one device"):
        engine.knn(fake_cupy.array(codes[:4], device=1), parts, 1, n_bits=40)
    with pytest.raises(TypeError, match=r"queries of dtype float64 and shape \(4, 5\) are not packed codes"):
        engine.knn(fake_cupy.array(codes[:4].astype(float)), parts, 1, n_bits=40)
    with pytest.raises(TypeError, match=r"codes of dtype float64 and shape \(4, 5\) are not packed codes"):
        calls.CodeSearch([fake_cupy.array(codes[:4].astype(float))])


def test_bad_input_is_named(cupy, problem):
    x, w, t = map(fake_cupy.array, problem)
    with pytest.raises(ValueError, match="precision='best' is not one of 'exact', 'accurate', 'fast'"):
        calls.encode_linear(x, w, t, precision="best")
    with pytest.raises(TypeError, match="X has dtype float64; the kernels take float32, float16, bfloat16: cast X"):
        calls.encode_linear(fake_cupy.array(x.astype(float)), w, t)
    with pytest.raises(ValueError, match=r"is not row-major; pass cupy.ascontiguousarray\(X\)"):
        calls.encode_linear(fake_cupy.array(np.asfortranarray(x)), w, t)
    with pytest.raises(ValueError, match=r"X \(40, 20\), W \(19, 33\) and t \(33,\) do not fit"):
        calls.encode_linear(x, fake_cupy.array(w[:19]), t)
    with pytest.raises(ValueError, match=r"different devices \(X on cuda:0, W on cuda:1, t on cuda:0\)"):
        calls.encode_linear(x, fake_cupy.array(w, device=1), t)
    with pytest.raises(TypeError, match=r"t is a numpy.ndarray in host memory"):
        calls.encode_linear(x, w, np.asarray(problem[2]))
    assert not engines.has_encode_kernel(fake_cupy.array(np.asfortranarray(x)))
    assert not engines.has_encode_kernel(fake_cupy.array(x.astype(float)))


def test_host_arrays_are_refused(problem):
    assert not engines.has_encode_kernel(problem[0])
    with pytest.raises(TypeError, match=r"X is a numpy.ndarray in host memory; .* with cupy.asarray"):
        calls.encode_linear(*problem)
    with pytest.raises(TypeError, match=r"codes is a numpy.ndarray in host memory"):
        calls.CodeSearch([np.zeros((2, 2), dtype=np.uint8)])


def test_importing_compiles_and_loads_nothing():
    script = "import sys, scq_gpu.kernels.cuda.calls; sys.exit(bool({'cupy', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
