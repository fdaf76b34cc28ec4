"""Encoding beside Faiss, beside NumPy in one line, and beside the bare product (float32, two threads, one process).

SCQ_NUM_THREADS=2 pytest benchmarks/bench_encode.py -o addopts=--import-mode=importlib --benchmark-only -q -s

Faiss is `LinearTransform.apply` and `fvecs2bitvecs`. The share is that of the machine's own sgemm, 2,048 x 2,048 times
2,048 x 2,048, measured in turns with the rest: a slow moment lowers both.
"""

from __future__ import annotations

import faiss
import numpy as np
import pytest

import scq_gpu as scq

# features and bits, and how many times as fast as Faiss an encode should be
SHAPES = {(512, 32): 1.5, (784, 32): 1.5, (4096, 32): 1.5, (512, 64): 1.1, (768, 256): 1.1, (1024, 128): 1.1}
NUMBERS = 100_000_000  # n * d
SIDE = 2048
ROUNDS = 7


@pytest.fixture(scope="module", params=SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def problem(request):
    d, n_bits = request.param
    rng = np.random.default_rng(0)
    X = rng.standard_normal((NUMBERS // d, d), dtype=np.float32)
    return X, scq.LSH(n_bits, random_state=0).fit(X[:1000])


@pytest.fixture(scope="module")
def square():
    return np.random.default_rng(1).standard_normal((SIDE, SIDE), dtype=np.float32)


def faiss_encode(X, encoder):
    """Return a function without arguments that encodes X with Faiss."""
    (n, d), n_bits = X.shape, encoder.n_bits
    transform = faiss.LinearTransform(d, n_bits, True)
    faiss.copy_array_to_vector(np.ascontiguousarray(encoder.components_).ravel(), transform.A)
    faiss.copy_array_to_vector(-encoder.threshold_, transform.b)
    transform.is_trained = True

    def encode():
        Y = transform.apply(X)
        codes = np.empty((n, n_bits // 8), dtype=np.uint8)
        faiss.fvecs2bitvecs(faiss.swig_ptr(Y), faiss.swig_ptr(codes), n_bits, n)
        return codes

    return encode


def test_float32(benchmark, side_by_side, threads, problem, square):
    X, encoder = problem
    (n, d), n_bits = X.shape, encoder.n_bits
    W, t = np.ascontiguousarray(encoder.components_.T), encoder.threshold_
    faiss.omp_set_num_threads(threads)

    def ours():
        return encoder.encode(X)

    def plain():
        return np.packbits(X @ W >= t, axis=1, bitorder="little")

    in_faiss = faiss_encode(X, encoder)
    differ = np.unpackbits(ours() ^ in_faiss()).mean()
    assert differ < 1e-4, "the same bits, save where rounding decides"
    times = side_by_side(ours, in_faiss, plain, lambda: X @ W, lambda: square @ square, rounds=ROUNDS)
    own, theirs, line, bare, sgemm = times
    benchmark.pedantic(ours, rounds=1)
    speed, peak = 2e-9 * n * d * n_bits / own, 2e-9 * SIDE**3 / sgemm
    aim = SHAPES[d, n_bits]
    benchmark.extra_info |= {"Faiss / ours": theirs / own, "line / ours": line / own, "ours / product": own / bare}
    print(
        f"\n{d} -> {n_bits} bits: {n / own / 1e6:.2f} M rows/s, {speed:.0f} GFLOP/s = {speed / peak:.0%} of sgemm's "
        f"{peak:.0f}; {theirs / own:.2f} x Faiss (aim: {aim}), {line / own:.2f} x the line (aim: 1), "
        f"{own / bare:.2f} of the bare product's time (aim: 1.05 at most)"
    )


@pytest.mark.parametrize("dtype", ["uint8", "float16"])
def test_other_types(benchmark, side_by_side, problem, dtype):
    X, encoder = problem
    Y = (X * 20 + 128).astype(dtype)

    def ours():
        return encoder.encode(Y)

    ours()
    own, float32 = side_by_side(ours, lambda: encoder.encode(X), rounds=ROUNDS)
    benchmark.pedantic(ours, rounds=1)
    benchmark.extra_info["of float32's rows/s"] = float32 / own
    print(f"\n{dtype}, {X.shape[1]} -> {encoder.n_bits} bits: {float32 / own:.2f} of float32's rows/s (aim: 0.6)")
