"""Encoding NumPy rows: the native core and array operations, over shapes, types, layouts and threads."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from native_engines import ENGINES, INSTRUCTION_SETS, use_engine

import scq_gpu as scq
from scq_gpu._core.machine import allowed_threads, available_cores
from scq_gpu.kernels import encode as kernel_encode
from scq_gpu.kernels import encode_linear, native
from scq_gpu.rows import blocks
from scq_gpu.rows.sources import ArrayRows, JoinedRows

DTYPES = ["float32", "float64", "float16", "uint8", "int8", "int16", "uint16", "int32", "int64", "uint64", "bool"]
LAYOUTS = {
    "rows": lambda X: X,
    "columns": np.asfortranarray,
    "every other row": lambda X: np.repeat(X, 2, axis=0)[::2],
    "every other column": lambda X: np.repeat(X, 2, axis=1)[:, ::2],
    "upside down": lambda X: X[::-1].copy()[::-1],
    "mirrored": lambda X: X[:, ::-1].copy()[:, ::-1],
    "swapped bytes": lambda X: X.astype(X.dtype.newbyteorder()),
    "unaligned": lambda X: _unaligned(X),
    "read-only": lambda X: _read_only(X),
}


def _unaligned(X):
    raw = np.empty(X.nbytes + 1, dtype=np.uint8)
    view = raw[1:].view(X.dtype).reshape(X.shape)
    view[...] = X
    return view


def _read_only(X):
    X = X.copy()
    X.flags.writeable = False
    return X


@pytest.fixture(params=ENGINES)
def engine(request, monkeypatch):
    use_engine(request.param, monkeypatch)
    return request.param


@pytest.fixture(params=INSTRUCTION_SETS or ["native"])
def calls(request, monkeypatch):
    use_engine(request.param, monkeypatch)
    return native


def problem(n, d, n_bits, dtype, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * 10
    if dtype == "bool":
        X = X > 0
    elif np.dtype(dtype).kind in "iu":
        X = np.abs(X) if np.dtype(dtype).kind == "u" else X
    X = X.astype(dtype)
    W = rng.standard_normal((d, n_bits))
    return X, W, X.mean(axis=0, dtype=np.float64) @ W if n else np.zeros(n_bits)


def check(codes, X, W, t):
    """Within the error band of the type that X is multiplied in."""
    assert codes.dtype == np.uint8
    assert codes.shape == (X.shape[0], -(-len(t) // 8))
    wide = X.dtype.name in ("float64", "int32", "int64", "uint64")
    W, t = (x.astype(np.float64 if wide else np.float32) for x in (W, t))
    reference.assert_same_codes(
        codes, X.astype(X.dtype.newbyteorder("=")), W, t, len(t), slack=4 * 2.0**-29 if wide else 1
    )
    padding = np.unpackbits(codes, axis=1, bitorder="little")[:, len(t) :]
    assert not padding.any()


@pytest.mark.parametrize("engine", ENGINES)
@given(
    n=st.integers(0, 230),
    d=st.integers(1, 40),
    n_bits=st.integers(1, 70),
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(list(LAYOUTS)),
    seed=st.integers(0, 2**32),
)
def test_any_shape_type_and_layout(engine, n, d, n_bits, dtype, layout, seed):
    X, W, t = problem(n, d, n_bits, dtype, seed)
    like = LAYOUTS[layout](X)
    np.testing.assert_array_equal(like, X)
    with pytest.MonkeyPatch.context() as patch:
        use_engine(engine, patch)
        out = np.full((n, -(-n_bits // 8)), 255, dtype=np.uint8)
        assert encode_linear(like, W, t, out=out) is out
    check(out, X, W, t)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_and_threads(engine, monkeypatch, dtype, layout):
    """Shapes that take several blocks and several tasks, none of them even."""
    if engine == "numpy":
        monkeypatch.setattr(kernel_encode, "block_bytes", lambda x: 1)
    else:
        monkeypatch.setattr(native, "_BUFFER_BYTES", 1 << 12)
        monkeypatch.setenv("SCQ_NUM_THREADS", "3")
    X, W, t = problem(4033, 37, 41, dtype, 5)
    check(encode_linear(LAYOUTS[layout](X), W, t), X, W, t)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8"])
def test_scores_on_the_threshold_count_as_one(engine, dtype):
    """Small integers: every sum is exact, and many of them are equal to the threshold."""
    rng = np.random.default_rng(0)
    X, W, t = rng.integers(-2, 3, (500, 9)), rng.integers(-1, 2, (9, 50)), rng.integers(-2, 3, 50)
    scores = X @ W
    assert (scores == t).mean() > 0.05
    codes = encode_linear(X.astype(dtype), W.astype(np.float32), t.astype(np.float32))
    np.testing.assert_array_equal(codes, np.packbits(scores >= t, axis=1, bitorder="little"))


def test_a_row_has_the_same_code_in_every_company(calls, monkeypatch):
    """Thresholds are scores of the rows themselves, so rounding in another order would show."""
    rng = np.random.default_rng(1)
    X, W = rng.standard_normal((400, 300), dtype=np.float32), rng.standard_normal((300, 40), dtype=np.float32)
    t = (X @ W)[np.arange(40) * 7, np.arange(40)]
    codes = encode_linear(X, W, t)
    np.testing.assert_array_equal(np.concatenate([encode_linear(X[i : i + 1], W, t) for i in range(400)]), codes)
    np.testing.assert_array_equal(encode_linear(X[::-1], W, t)[::-1], codes)
    np.testing.assert_array_equal(encode_linear(np.asfortranarray(X), W, t), codes)
    order = rng.permutation(40)
    shuffled = np.packbits(np.unpackbits(codes, axis=1, bitorder="little")[:, order], axis=1, bitorder="little")
    np.testing.assert_array_equal(encode_linear(X, W[:, order], t[order]), shuffled)
    monkeypatch.setenv("SCQ_NUM_THREADS", "7")
    np.testing.assert_array_equal(encode_linear(X, W, t), codes)
    for name in INSTRUCTION_SETS:
        use_engine(name, monkeypatch)
        np.testing.assert_array_equal(encode_linear(X, W, t), codes)


def test_every_float16(calls):
    """A score of one factor 1 is the widened number; each is compared with itself and with the next larger one."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = halves[np.isfinite(halves)]
    one = np.ones((1, 1), dtype=np.float32)
    for value in np.random.default_rng(0).choice(finite, 300):
        t = np.array([value], dtype=np.float32)
        codes = encode_linear(finite[:, None], one, t)
        np.testing.assert_array_equal(codes[:, 0], finite.astype(np.float32) >= t)
    for value in (np.inf, -np.inf, np.nan):
        _, is_finite = kernel_encode.encode_rows(np.array([[value]], dtype=np.float16), one, np.zeros(1, np.float32))
        assert not is_finite


def test_no_byte_outside_rows_and_codes_is_touched(calls):
    """Every width and number of rows, the codes between guards, the rows at the end of what may be read."""
    mmap = pytest.importorskip("mmap")
    if sys.platform != "linux":
        pytest.skip("forbids a page with Linux's mprotect")
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + mmap.PAGESIZE
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, 0) == 0
    readable = np.frombuffer(memory, dtype=np.uint8)[: mmap.PAGESIZE]
    rng = np.random.default_rng(0)
    try:
        for n, n_bits, dtype in itertools.product((1, 5, 6, 7, 97), (1, 8, 9, 16, 17, 31, 33), ("float32", "float64")):
            X = readable[-n * 3 * np.dtype(dtype).itemsize :].view(dtype).reshape(n, 3)
            X[...] = rng.integers(-9, 10, (n, 3))
            W = rng.integers(-9, 10, (3, n_bits)).astype(dtype)
            width = -(-n_bits // 8)
            guarded = np.full((n + 2, width), 0xA5, dtype=np.uint8)
            assert calls.encode_into(guarded[1:-1], X, W, np.zeros(n_bits, dtype=dtype))
            np.testing.assert_array_equal(guarded[1:-1], np.packbits(X @ W >= 0, axis=1, bitorder="little"))
            assert (guarded[[0, -1]] == 0xA5).all()
    finally:
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE)


# ---- in a new process ----

FIRST = """
import sys, threading
import numpy as np
from scq_gpu.kernels import encode_linear, native
rng = np.random.default_rng(0)
X, W = rng.integers(-9, 10, (700, 33)), rng.integers(-9, 10, (33, 41))
expected = np.packbits(X @ W >= 5, axis=1, bitorder="little")
found, together = {}, threading.Barrier(8)

def encode(number):
    dtype = ("float16", "float32", "float64", "int8")[number % 4]
    rows, t = X.astype(dtype), np.full(41, 5.0)
    together.wait()
    found[number] = encode_linear(rows, W.astype(np.float64), t)

threads = [threading.Thread(target=encode, args=[number]) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(found) == 8 and all(np.array_equal(codes, expected) for codes in found.values())
"""


def run(script, **environment):
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", [*INSTRUCTION_SETS, "arrays"])
def test_first_encodes_on_many_threads(name):
    run(FIRST, SCQ_CPU=name)


def test_an_instruction_set_that_is_not_there_is_named():
    if not INSTRUCTION_SETS:
        pytest.skip("there is no native core")
    command = [sys.executable, "-c", "import scq_gpu.kernels.native"]
    done = subprocess.run(command, env=os.environ | {"SCQ_CPU": "z80"}, capture_output=True, text=True, check=False)
    assert "SCQ_CPU=z80 has no kernels on this processor; it has " + ", ".join(INSTRUCTION_SETS) in done.stderr


def test_threads_are_those_of_the_environment(monkeypatch):
    monkeypatch.setenv("SCQ_NUM_THREADS", "3")
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert allowed_threads() == 3
    monkeypatch.setenv("SCQ_NUM_THREADS", "0")
    assert allowed_threads() == 1
    monkeypatch.delenv("SCQ_NUM_THREADS")
    assert allowed_threads() == 5
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert allowed_threads() == available_cores()


# ---- NaN and inf ----


@pytest.mark.parametrize(("value", "name"), [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "inf")])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_nonfinite_rows_are_rejected_and_named(engine, dtype, value, name, order):
    X = np.random.default_rng(0).standard_normal((3000, 7)).astype(dtype, order=order)
    encoder = scq.OgE(n_bits=5, max_iter=2, tol=0, random_state=0).fit(X)
    encoder.encode(X)
    X[2711, 4] = value
    X[2990, 1] = value
    with pytest.raises(ValueError, match=f"first {name} at row 2711, column 4"):
        encoder.encode(X)


def test_nonfinite_rows_of_a_source_are_named_by_their_place(engine, monkeypatch):
    monkeypatch.setattr(blocks.Rows, "encode_bytes", 1)
    monkeypatch.setattr(blocks, "block_bytes", lambda x: 0)  # blocks of 128 rows
    X = np.random.default_rng(0).standard_normal((1000, 6)).astype(np.float32)
    encoder = scq.OgE(n_bits=6, max_iter=2, tol=0, random_state=0).fit(X)
    parts = [X[:333], X[333:]]
    np.testing.assert_array_equal(encoder.encode(parts), encoder.encode(X))
    source = JoinedRows([ArrayRows(part, label=f"part {place}") for place, part in enumerate(parts)])
    X[700, 2] = np.inf
    with pytest.raises(ValueError, match=r"first inf at row 367 of part 1 \(row 700 of all\), column 2"):
        encoder.encode(source)


def test_a_nonfinite_row_does_not_spoil_its_neighbours(engine):
    X, W, t = problem(100, 8, 20, "float32", 0)
    expected = encode_linear(X, W, t)
    X[50] = np.nan
    codes = encode_linear(X, W, t)
    assert not codes[50].any()
    np.testing.assert_array_equal(np.delete(codes, 50, axis=0), np.delete(expected, 50, axis=0))


def test_the_largest_numbers_are_not_mistaken_for_inf(engine):
    X = np.full((300, 20), np.finfo(np.float32).max, dtype=np.float32)
    out = np.empty((300, 3), dtype=np.uint8)
    t = np.zeros(19, dtype=np.float32)
    codes, finite = kernel_encode.encode_rows(X, np.eye(20, 19, dtype=np.float32), t, out=out)
    assert finite
    assert codes is out
    assert (np.unpackbits(out, axis=1).sum(axis=1) == 19).all()
    assert not kernel_encode.encode_rows(X, np.ones((20, 19), dtype=np.float32), t)[1]


# ---- out ----


@pytest.fixture
def encoder():
    X = np.random.default_rng(0).standard_normal((500, 12)).astype(np.float32)
    return scq.OgE(n_bits=11, max_iter=2, tol=0, random_state=0).fit(X), X


def test_out_of_any_layout(engine, encoder, tmp_path):
    encoder, X = encoder
    expected = encoder.encode(X)
    mapped = np.memmap(tmp_path / "codes", dtype=np.uint8, mode="w+", shape=expected.shape)
    wide = np.zeros((1000, 6), dtype=np.uint8)
    for out in (np.empty_like(expected), mapped, np.asfortranarray(expected * 0), wide[::2, 1::3]):
        assert encoder.encode(X, out=out) is out
        np.testing.assert_array_equal(out, expected)
    mapped.flush()
    assert (tmp_path / "codes").read_bytes() == expected.tobytes()
    assert not wide[1::2].any()
    assert not wide[:, ::3].any()


def test_out_with_a_device_and_on_other_backends(backend, encoder):
    encoder, X = encoder
    out = backend.array(np.zeros((500, 2), dtype=np.uint8))
    assert encoder.encode(backend.array(X), out=out) is out
    reference.assert_same_codes(backend.host(out), X, encoder.components_.T, encoder.threshold_, 11)
    W, t = encoder.components_.T, encoder.threshold_
    again = backend.array(np.zeros((500, 2), dtype=np.uint8))
    assert encode_linear(*map(backend.array, (X, W, t)), out=again) is again
    np.testing.assert_array_equal(backend.host(again), backend.host(out))
    if backend.name == "numpy":
        again[...] = 0
        assert encoder.to("cpu").encode(X, out=again) is again
        np.testing.assert_array_equal(again, out)


def test_bad_out(encoder):
    encoder, X = encoder
    read_only = np.zeros((500, 2), dtype=np.uint8)
    read_only.flags.writeable = False
    for out, error, message in (
        (
            np.zeros((500, 3), np.uint8),
            ValueError,
            r"shape \(500, 3\) and dtype uint8; expected are \(500, 2\)",
        ),
        (np.zeros((499, 2), np.uint8), ValueError, r"out has shape \(499, 2\)"),
        (np.zeros((500, 2), np.int8), ValueError, r"dtype int8; expected are \(500, 2\) and uint8"),
        (read_only, ValueError, "out is read-only; open a memory map with mode 'r[+]'"),
        ([[0, 0]] * 500, TypeError, "out is a list; expected is an array of .*numpy on cpu"),
    ):
        with pytest.raises(error, match=message):
            encoder.encode(X, out=out)
        with pytest.raises(error, match=message):
            encode_linear(X, encoder.components_.T, encoder.threshold_, out=out)


@pytest.mark.parametrize(
    ("X", "W", "t", "message"),
    [
        ((5, 3), (4, 2), (2,), r"X \(5, 3\), W \(4, 2\) and t \(2,\) do not fit; \(n, d\), \(d, n_bits\)"),
        ((5, 3), (3, 2), (3,), "do not fit"),
        ((5, 3), (3, 2), (2, 1), "do not fit"),
        ((3,), (3, 2), (2,), "do not fit"),
        ((5, 0), (0, 2), (2,), r"W has shape \(0, 2\); at least one feature and one bit"),
        ((5, 2), (2, 0), (0,), r"W has shape \(2, 0\); at least one feature and one bit"),
    ],
)
def test_shapes_that_do_not_fit(backend, X, W, t, message):
    with pytest.raises(ValueError, match=message):
        encode_linear(*(backend.array(np.zeros(shape)) for shape in (X, W, t)))


# ---- memory ----

ENCODE = """
import numpy as np
from scq_gpu.kernels import native
import scq_gpu as scq

def peak():  # MiB; ru_maxrss would begin with that of the process that started this one, and hide what is less
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024

if "{engine}" == "numpy":
    native.core = None
n, d, n_bits = {n}, 32, 256
rng = np.random.default_rng(0)
X = np.empty((n, d), dtype="{dtype}", order="{order}")
for start in range(0, n, 1000):
    X[start : start + 1000] = rng.integers(0, 100, (1000, d))
encoder = scq.LSH(n_bits=n_bits, random_state=0).fit(X[:2000])
encoder.encode(X[:2000])  # imports, compiled code and pools are warm
before = peak()
codes = encoder.encode(X)
print(before, peak(), X.nbytes / 2**20, codes.nbytes / 2**20)
"""


@pytest.mark.skipif(not os.access("/proc/self/status", os.R_OK), reason="measures with Linux's /proc")
@pytest.mark.parametrize(
    ("engine", "n", "dtype", "order"),
    [
        ("native", 100_000, "uint8", "C"),
        ("native", 1_000_000, "uint8", "C"),
        ("native", 1_000_000, "float16", "F"),
        ("numpy", 1_000_000, "uint8", "C"),
    ],
)
def test_an_encode_takes_its_output_and_little_more(engine, n, dtype, order):
    """The scores would be 1 GB at a million rows, and the rows in float32 128 MB."""
    script = ENCODE.format(engine=engine, n=n, dtype=dtype, order=order)
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    before, after, size, codes = map(float, out.split())
    assert before > size  # the measure works: X is in it
    assert after - before <= codes + 64
