"""Arrays that the package hands to the encode kernels, and the engines it uses where there are none."""

from __future__ import annotations

import contextlib
import sys
import types

import numpy as np
import pytest
from cuda_on_cpu import COMPILER, fake_cupy, oracle

import scq_gpu as scq
from scq_gpu._core import arrays as devices
from scq_gpu._core.arrays import namespace
from scq_gpu.kernels import encode, encode_linear
from scq_gpu.kernels.cuda import encode as cuda
from scq_gpu.rows import blocks
from scq_gpu.training.loop import train

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="the simulator needs g++")


@pytest.fixture
def X():
    return np.random.default_rng(3).standard_normal((300, 20), dtype=np.float32)


@pytest.fixture
def encoder(X):
    return scq.OgE(n_bits=19, max_iter=3, tol=0, random_state=0).fit(X)


@pytest.fixture
def cupy(monkeypatch):
    """A CuPy that runs on the simulator, rows that are in several parts in blocks of 128."""
    for module in (blocks, encode):
        monkeypatch.setattr(module, "np", fake_cupy.HostNumpy("numpy"))
    monkeypatch.setattr(blocks, "block_bytes", lambda x: 0)
    monkeypatch.setattr(blocks.Rows, "encode_bytes", 0)
    devices.cuda_device.cache_clear()
    with fake_cupy.installed() as fake:
        yield fake
    devices.cuda_device.cache_clear()


@pytest.fixture
def calls(monkeypatch):
    """Shape, dtype and precision of what the kernels were given."""
    calls = []
    encode = cuda.encode_on_gpu

    def spy(X, W, t, *, precision):
        calls.append((X.shape, str(X.dtype), precision))
        return encode(X, W, t, precision=precision)

    monkeypatch.setattr(cuda, "encode_on_gpu", spy)
    return calls


def to_fake(encoder):
    encoder.components_, encoder.threshold_ = map(fake_cupy.array, (encoder.components_, encoder.threshold_))
    return encoder


@needs_compiler
@pytest.mark.parametrize("precision", encode.PRECISIONS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_encoder_hands_rows_to_the_kernel_as_they_are_stored(cupy, calls, encoder, X, dtype, precision):
    """An array in one piece, arrays in a list in blocks."""
    W, t = encoder.components_.T, encoder.threshold_
    X = X.astype(dtype)
    to_fake(encoder)
    blocks = [128, 128, 44]
    for like, heights in ((X, [300]), ((X[:256], X[256:]), blocks)):
        like = fake_cupy.array(like) if like is X else [fake_cupy.array(part) for part in like]
        codes = encoder.encode(like, precision=precision)
        assert calls == [((m, 20), dtype, precision) for m in heights]
        oracle.check_codes(np.asarray(codes), X, W, t, element=dtype, precision=precision)
        calls.clear()


@needs_compiler
def test_integer_features_are_cast_for_the_kernel_block_by_block(cupy, calls, encoder):
    W, t = encoder.components_.T, encoder.threshold_
    X = np.random.default_rng(0).integers(0, 9, (300, 20), dtype=np.uint8)
    codes = to_fake(encoder).encode(fake_cupy.array(X))
    assert calls == [((m, 20), "float32", "exact") for m in (128, 128, 44)]
    oracle.check_codes(np.asarray(codes), X.astype(np.float32), W, t, element="float32", precision="exact")


def test_what_has_no_kernel_goes_through_arrays(cupy, calls, encoder, X):
    expected = encoder.encode(X)
    for like in (X.astype(np.float64), np.asfortranarray(X)):
        np.testing.assert_array_equal(to_fake(encoder).encode(fake_cupy.array(like)), expected)
    assert calls == []


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("value", "name"), [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "inf")])
def test_the_kernel_path_rejects_nonfinite_rows(cupy, calls, encoder, X, value, name, dtype):
    X = X.astype(dtype)
    X[211, 7] = value
    with pytest.raises(ValueError, match=f"first {name} at row 211, column 7"):
        to_fake(encoder).encode(fake_cupy.array(X))
    assert calls


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_largest_numbers_are_not_mistaken_for_inf(cupy, encoder, dtype):
    X = np.full((200, 20), np.finfo(dtype).max, dtype=dtype)
    encoder.components_ = np.eye(19, 20, dtype=np.float32)
    assert (np.unpackbits(to_fake(encoder).encode(fake_cupy.array(X)), axis=1).sum(axis=1) == 19).all()


@needs_compiler
def test_encode_linear_takes_the_kernel(cupy, calls, encoder, X):
    W, t = encoder.components_.T, encoder.threshold_
    codes = encode_linear(*map(fake_cupy.array, (X, W, t)), precision="fast")
    assert calls == [((300, 20), "float32", "fast")]
    oracle.check_codes(np.asarray(codes), X, W, t, element="float32", precision="fast")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_gpu_older_than_the_kernels_encodes_by_array_operations(cupy, calls, monkeypatch, encoder, X, dtype):
    monkeypatch.setattr(fake_cupy.Device, "compute_capability", "70")
    X = X.astype(dtype)
    expected = encoder.encode(X)
    np.testing.assert_array_equal(to_fake(encoder).encode(fake_cupy.array(X)), expected)
    assert calls == []
    for precision in ("fast", "accurate"):
        message = rf"precision='{precision}' needs compute capability 7.5 or newer; .* has 7.0. Pass precision='exact'"
        with pytest.raises(RuntimeError, match=message):
            encoder.encode(fake_cupy.array(X), precision=precision)


@pytest.mark.parametrize("precision", ["fast", "accurate"])
def test_precision_without_a_gpu(encoder, X, precision):
    message = (
        rf"precision='{precision}' needs a CUDA array .*X is float32 of .*numpy on cpu.*"
        "precision='exact' \\(of 'exact', 'accurate', 'fast'\\)"
    )
    with pytest.raises(ValueError, match=message):
        encoder.encode(X, precision=precision)
    with pytest.raises(ValueError, match=message):
        encode_linear(X, encoder.components_.T, encoder.threshold_, precision=precision)


def test_unknown_precision(encoder, X):
    for call in (encoder.encode, lambda X, precision: encode_linear(X, X.T, X[:, 0], precision=precision)):
        with pytest.raises(ValueError, match="precision='best' is not one of 'exact', 'accurate', 'fast'"):
            call(X, precision="best")


def test_linear_algebra_raises_on_cupy_only(monkeypatch):
    asked = []
    cupyx = types.ModuleType("cupyx")
    cupyx.errstate = lambda **state: asked.append(state) or contextlib.nullcontext()
    monkeypatch.setitem(sys.modules, "cupyx", cupyx)
    with devices.linalg_errors(namespace(np.zeros(1))):
        assert asked == []
    with devices.linalg_errors(types.ModuleType("cupy")):
        assert asked == [{"linalg": "raise"}]


def replace_everywhere(monkeypatch, function, other):
    """Replace a function of the package in each of its modules that has imported it, wherever a call looks it up."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "scq_gpu":
            for key in [key for key, value in vars(module).items() if value is function]:
                monkeypatch.setattr(module, key, other)


def test_a_fit_runs_under_linalg_errors(monkeypatch, X):
    states, trained = ["none"], []

    @contextlib.contextmanager
    def state(xp, wanted="raise"):
        states.append(wanted)
        yield
        states.pop()

    def learn(*args, **kwargs):
        trained.append(states[-1])
        return train(*args, **kwargs)

    replace_everywhere(monkeypatch, devices.linalg_errors, state)
    replace_everywhere(monkeypatch, train, learn)
    for preserve in ("neighbors", "classes"):
        scq.OgE(n_bits=4, preserve=preserve, max_iter=2, tol=0, random_state=0).fit(X)
    assert set(trained) == {"raise"}
    assert states == ["none"]
