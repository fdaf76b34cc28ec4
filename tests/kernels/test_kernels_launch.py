"""Kernels called with arrays, the launch geometry and the messages."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from cuda_on_cpu import COMPILER, SimulatedDevice, fake_cupy, oracle
from cuda_on_cpu.cases import SEED, features, linear_map

from scq_gpu._core import arrays as devices
from scq_gpu.kernels import encode_linear
from scq_gpu.kernels.cuda import encode, hamming, launch
from scq_gpu.kernels.encode import PRECISIONS, has_encode_kernel

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
    assert encode.encode_variant("float32", n_bits, "exact", 75).tile_bits == tile_bits


def test_narrow_features_have_no_three_pass_form():
    assert encode.encode_variant("float16", 8, "accurate", 75).precision == "exact"


@pytest.mark.parametrize(("element", "capability"), [("float32", 75), ("bfloat16", 75), ("float16", 70)])
def test_device_too_old_for_fast(element, capability):
    with pytest.raises(RuntimeError, match=r"needs compute capability .* this device has 7.* Pass precision='exact'"):
        encode.encode_variant(element, 8, "fast", capability)


@pytest.mark.parametrize("arch", SHARED_LIMITS)
def test_shared_memory_fits_every_architecture(arch):
    sizes = [variant.shared for variant in encode.encode_variants() if variant.min_capability <= arch]
    sizes += [size for variant in hamming.hamming_variants() for size in variant.kernels.values()]
    assert max(sizes) <= SHARED_LIMITS[arch]


def test_grid_is_one_dimensional_and_covers_everything():
    variant = encode.EncodeVariant("float32", 128, "exact")
    assert variant.blocks(0, 128) == 0
    assert variant.blocks(129, 129) == 2 * 2
    assert variant.blocks(10**10, 128) == -(-(10**10) // 128) < 2**31


@pytest.mark.parametrize("n", [1, 4096, 4097, 10**6, 10**9, 3 * 10**9])
def test_chunks_cover_the_database(n):
    for variant in hamming.hamming_variants():
        for q in (1, 40, 10**4):
            size, chunks = variant.chunk_items(n, q), variant.chunks(n, q)
            assert size % variant.tile_items == 0
            assert (chunks - 1) * size < n <= chunks * size
            assert chunks * -(-q // variant.queries) <= launch.GRID + -(-q // variant.queries)


def test_sources_are_package_data_and_complete():
    for variant in [*encode.encode_variants(), *hamming.hamming_variants()]:
        source = launch.read_source(variant.source)
        assert '#include "' not in source
        names = [variant.kernel] if isinstance(variant, encode.EncodeVariant) else variant.kernels
        assert all(f"\n{name}(" in source for name in names)


def test_too_many_blocks_is_said():
    with pytest.raises(ValueError, match=r"would take 2147483648 blocks .* pass fewer rows"):
        launch.launch(None, None, "encode_exact", blocks=2**31, shared=0, args=())


@needs_compiler
def test_simulator_checks_a_launch_as_a_driver_does(problem):
    X, W, t = problem
    variant = encode.encode_variant("float32", 33, "exact", 80)
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
@pytest.mark.parametrize("precision", PRECISIONS)
def test_encode_linear(cupy, problem, precision):
    X, W, t = problem
    x, w, threshold = map(fake_cupy.array, problem)
    assert has_encode_kernel(x)
    codes = encode_linear(x, w, threshold, precision=precision)
    assert isinstance(codes, cupy.ndarray)
    oracle.check_codes(np.asarray(codes), X, W, t, element="float32", precision=precision)
    encode_linear(x, w, threshold, precision=precision)
    assert len(cupy.RawModule.compiled) == 1, "compiled once a variant"


@needs_compiler
def test_codes_are_made_on_the_device_of_x(cupy, problem):
    x, w, t = (fake_cupy.array(a, device=1) for a in problem)
    assert encode_linear(x, w, t).device.id == 1


@needs_compiler
def test_code_search(cupy):
    codes = np.random.default_rng(SEED).integers(0, 256, (300, 5), dtype=np.uint8)
    parts = [fake_cupy.array(codes)]
    engine = hamming.CodeSearch(parts)
    queries = fake_cupy.array(codes[:4])
    D = oracle.distances(codes[:4], codes)
    distances, rows = engine.knn(queries, parts, 7, n_bits=40)
    assert isinstance(distances, cupy.ndarray)
    assert np.array_equal(rows, np.argsort(D, axis=1, kind="stable")[:, :7])
    assert np.array_equal(distances, np.sort(D, axis=1)[:, :7])
    query, distances, rows = engine.within(queries, parts, 14)
    assert np.array_equal((query, rows), np.nonzero(D <= 14))
    assert np.array_equal(distances, D[query, rows])
    with pytest.raises(ValueError, match="k=0 must be an integer from 1 to 65536"):
        engine.knn(queries, parts, 0, n_bits=40)
    with pytest.raises(ValueError, match=r"queries are on .* and the codes on .*; move them to one device"):
        engine.knn(fake_cupy.array(codes[:4], device=1), parts, 1, n_bits=40)
    with pytest.raises(TypeError, match=r"queries of dtype float64 and shape \(4, 5\) are not packed codes"):
        engine.knn(fake_cupy.array(codes[:4].astype(float)), parts, 1, n_bits=40)
    with pytest.raises(TypeError, match=r"codes of dtype float64 and shape \(4, 5\) are not packed codes"):
        hamming.CodeSearch([fake_cupy.array(codes[:4].astype(float))])


def test_bad_input_is_named(cupy, problem):
    x, w, t = map(fake_cupy.array, problem)
    with pytest.raises(ValueError, match="precision='best' is not one of 'exact', 'accurate', 'fast'"):
        encode_linear(x, w, t, precision="best")
    with pytest.raises(ValueError, match=r"X \(40, 20\), W \(19, 33\) and t \(33,\) do not fit"):
        encode_linear(x, fake_cupy.array(w[:19]), t)
    with pytest.raises(ValueError, match=r"different devices \(X on cuda:0, W on cuda:1, t on cuda:0\)"):
        encode.encode_on_gpu(x, fake_cupy.array(w, device=1), t, precision="exact")
    with pytest.raises(TypeError, match=r"t is a numpy.ndarray in host memory"):
        encode.encode_on_gpu(x, w, np.asarray(problem[2]), precision="exact")
    assert not has_encode_kernel(fake_cupy.array(np.asfortranarray(x)))
    assert not has_encode_kernel(fake_cupy.array(x.astype(float)))


def test_host_arrays_are_rejected(problem):
    assert not has_encode_kernel(problem[0])
    with pytest.raises(TypeError, match=r"X is a numpy.ndarray in host memory; .* with cupy.asarray"):
        encode.encode_on_gpu(*problem, precision="exact")
    with pytest.raises(TypeError, match=r"codes is a numpy.ndarray in host memory"):
        hamming.CodeSearch([np.zeros((2, 2), dtype=np.uint8)])


def test_importing_compiles_and_loads_nothing():
    imports = "import sys; from scq_gpu.kernels.cuda import asymmetric, encode, hamming"
    script = f"{imports}; sys.exit(bool({{'cupy', 'torch'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
