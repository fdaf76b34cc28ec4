"""The public functions of scq_gpu.kernels, the launch geometry and the messages."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from cuda_on_cpu import COMPILER, fake_cupy, oracle
from cuda_on_cpu.cases import SEED, features, linear_map, simulator

from scq_gpu import kernels
from scq_gpu.kernels import _geometry, _launch

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="the simulator needs g++")
SHARED_LIMITS = {75: 64 << 10, 80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}


@pytest.fixture
def cupy():
    """A CuPy that runs on the simulator."""
    _launch.cupy_runtime.cache_clear()
    with fake_cupy.installed() as fake:
        yield fake
    _launch.cupy_runtime.cache_clear()


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
    assert _geometry.encode_variant("float32", n_bits, "exact", 75).tile_bits == tile_bits


def test_narrow_features_have_no_three_pass_form():
    assert _geometry.encode_variant("float16", 8, "accurate", 75).precision == "exact"


@pytest.mark.parametrize(("element", "capability"), [("float32", 75), ("bfloat16", 75), ("float16", 70)])
def test_device_too_old_for_fast(element, capability):
    with pytest.raises(RuntimeError, match=r"needs compute capability .* this device has 7.* Pass precision='exact'"):
        _geometry.encode_variant(element, 8, "fast", capability)


@pytest.mark.parametrize("arch", SHARED_LIMITS)
def test_shared_memory_fits_every_architecture(arch):
    encode = [variant.shared for variant in _geometry.encode_variants() if variant.min_capability <= arch]
    hamming = [size for variant in _geometry.hamming_variants() for size in variant.kernels.values()]
    assert max(encode + hamming) <= SHARED_LIMITS[arch]


def test_grid_is_one_dimensional_and_covers_everything():
    variant = _geometry.EncodeVariant("float32", 128, "exact")
    assert variant.blocks(0, 128) == 0
    assert variant.blocks(129, 129) == 2 * 2
    assert variant.blocks(10**10, 128) == -(-(10**10) // 128) < _launch.MAX_BLOCKS


@pytest.mark.parametrize("n", [1, 4096, 4097, 10**6, 10**9, 3 * 10**9])
def test_chunks_cover_the_database(n):
    for variant in _geometry.hamming_variants():
        size = variant.chunk_items(n)
        assert size % variant.tile_items == 0
        assert (variant.chunks(n) - 1) * size < n <= variant.chunks(n) * size
        assert variant.chunks(n) <= _geometry.MAX_CHUNKS


def test_sources_are_package_data_and_complete():
    for variant in [*_geometry.encode_variants(), *_geometry.hamming_variants()]:
        source = _launch.read_source(variant.source)
        assert "#include" not in source
        names = [variant.kernel] if isinstance(variant, _geometry.EncodeVariant) else variant.kernels
        assert all(f"\n{name}(" in source for name in names)


def test_too_many_blocks_is_said():
    with pytest.raises(ValueError, match=r"would take 2147483648 blocks .* pass fewer rows"):
        _launch.launch(None, None, "encode_exact", blocks=2**31, shared=0, args=())


@needs_compiler
def test_simulator_checks_a_launch_as_a_driver_does(problem):
    X, W, t = problem
    variant = _geometry.encode_variant("float32", 33, "exact", 80)
    kernel = (
        simulator()
        .build(_launch.read_source(variant.source), _launch.build_options(variant))
        .get_function(variant.kernel)
    )
    sizes = [np.int64(40), np.int64(20), np.int64(20), np.int32(20), np.int32(33), np.int32(1), np.int32(1)]
    with pytest.raises(TypeError, match="takes arguments of"):
        kernel((1,), (256,), (X, W, t, X, np.int32(40), *sizes[1:]), shared_mem=variant.shared)
    with pytest.raises(RuntimeError, match="shared memory"):
        kernel((1,), (256,), (X, W, t, X, *sizes), shared_mem=50 << 10)
    with pytest.raises(RuntimeError, match="cannot launch"):
        kernel((1,), (250,), (X, W, t, X, *sizes), shared_mem=0)


# ---- the public functions, with a CuPy that runs on the CPU ----


@needs_compiler
@pytest.mark.parametrize("precision", kernels.PRECISIONS)
def test_encode_linear(cupy, problem, precision):
    X, W, t = problem
    x, w, threshold = map(fake_cupy.array, problem)
    assert kernels.accepts(x)
    codes = kernels.encode_linear(x, w, threshold, precision=precision)
    assert isinstance(codes, cupy.ndarray)
    oracle.check_codes(np.asarray(codes), X, W, t, element="float32", precision=precision)
    kernels.encode_linear(x, w, threshold, precision=precision)
    assert len(cupy.RawModule.compiled) == 1, "compiled once a variant"


@needs_compiler
def test_codes_are_made_on_the_device_of_x(cupy, problem):
    x, w, t = (fake_cupy.array(a, device=1) for a in problem)
    assert kernels.encode_linear(x, w, t).device.id == 1


@needs_compiler
def test_hamming_database(cupy):
    codes = np.random.default_rng(SEED).integers(0, 256, (300, 5), dtype=np.uint8)
    database = kernels.HammingDatabase(fake_cupy.array(codes))
    queries = fake_cupy.array(codes[:4])
    D = oracle.distances(codes[:4], codes)
    assert len(database) == 300
    assert np.array_equal(database.distances(queries), D)
    distances, ids = database.search(queries, k=7)
    assert np.array_equal(ids, np.argsort(D, axis=1, kind="stable")[:, :7])
    assert np.array_equal(distances, np.sort(D, axis=1)[:, :7])
    limits, _, ids = database.range_search(queries, radius=14)
    assert np.array_equal(ids, np.nonzero(D <= 14)[1])
    assert limits[-1] == len(ids)
    with pytest.raises(ValueError, match="k=0 must be an integer >= 1"):
        database.search(queries, k=0)
    with pytest.raises(ValueError, match="queries are on cuda:1 and the codes on cuda:0"):
        database.search(fake_cupy.array(codes[:4], device=1), k=1)
    with pytest.raises(TypeError, match=r"queries of dtype float64 and shape \(4, 5\) are not packed codes"):
        database.search(fake_cupy.array(codes[:4].astype(float)), k=1)


def test_bad_input_is_named(cupy, problem):
    x, w, t = map(fake_cupy.array, problem)
    with pytest.raises(ValueError, match="precision='best' is not one of 'exact', 'accurate', 'fast'"):
        kernels.encode_linear(x, w, t, precision="best")
    with pytest.raises(TypeError, match="X has dtype float64; the kernels take float32, float16, bfloat16: cast X"):
        kernels.encode_linear(fake_cupy.array(x.astype(float)), w, t)
    with pytest.raises(ValueError, match=r"is not row-major; pass cupy.ascontiguousarray\(X\)"):
        kernels.encode_linear(fake_cupy.array(np.asfortranarray(x)), w, t)
    with pytest.raises(ValueError, match=r"X \(40, 20\), W \(19, 33\) and t \(33,\) do not fit"):
        kernels.encode_linear(x, fake_cupy.array(w[:19]), t)
    with pytest.raises(ValueError, match=r"different devices \(X on cuda:0, W on cuda:1, t on cuda:0\)"):
        kernels.encode_linear(x, fake_cupy.array(w, device=1), t)
    with pytest.raises(TypeError, match=r"t is a numpy.ndarray in host memory"):
        kernels.encode_linear(x, w, np.asarray(problem[2]))
    assert not kernels.accepts(fake_cupy.array(np.asfortranarray(x)))
    assert not kernels.accepts(fake_cupy.array(x.astype(float)))


def test_host_arrays_are_refused(problem):
    assert not kernels.accepts(problem[0])
    with pytest.raises(TypeError, match=r"X is a numpy.ndarray in host memory; .* with cupy.asarray"):
        kernels.encode_linear(*problem)
    with pytest.raises(TypeError, match=r"codes is a numpy.ndarray in host memory"):
        kernels.HammingDatabase(np.zeros((2, 2), dtype=np.uint8))


def test_importing_compiles_and_loads_nothing():
    script = "import sys, scq_gpu.kernels; sys.exit(bool({'cupy', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
