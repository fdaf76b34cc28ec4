"""The encode kernels, run on the CPU from the sources that run on a GPU, against float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from cuda_on_cpu import COMPILER, SimulatedDevice, oracle
from cuda_on_cpu.cases import CASES, SEED, encode_case, features, finite_codes, linear_map, nonfinite_case
from hypothesis import given, settings
from hypothesis import strategies as st

from scq_gpu.kernels.cuda.encode import EncodeVariant, encode, encode_variant, encode_variants, round_map

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the simulator needs g++")

DEVICE = SimulatedDevice() if COMPILER else None
EDGES = (1, 31, 33, 127, 129)


@pytest.mark.parametrize("variant", encode_variants(), ids=lambda v: f"{v.element}-{v.precision}-{v.tile_bits}")
def test_every_variant_against_float64(variant: EncodeVariant):
    for n_bits in (variant.tile_bits - 3, variant.tile_bits):
        assert encode_variant(variant.element, n_bits, variant.precision, 80) == variant
        for n, d in ((variant.tile_rows + 1, 70), (33, 64)):
            flips = encode_case(DEVICE, n, d, n_bits, element=variant.element, precision=variant.precision)
            assert flips < {"exact": 1e-4, "accurate": 1e-4}.get(variant.precision, 5e-3)


@pytest.mark.parametrize(("n", "d"), list(itertools.product(EDGES, EDGES)))
def test_exact_on_edge_shapes(n, d):
    for n_bits in EDGES:
        encode_case(DEVICE, n, d, n_bits)


@pytest.mark.parametrize("element", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("d", [1, 31, 33, 127])
def test_tensor_cores_on_edge_shapes(element, d):
    for n, n_bits in ((1, 1), (31, 33), (129, 7), (33, 129)):
        encode_case(DEVICE, n, d, n_bits, element=element, precision="fast")
    encode_case(DEVICE, 33, d, 9, element=element, precision="accurate")


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 300),
    d=st.integers(1, 80),
    n_bits=st.integers(1, 300),
    element=st.sampled_from(["float32", "float16", "bfloat16"]),
)
def test_exact_on_random_shapes(n, d, n_bits, element):
    encode_case(DEVICE, n, d, n_bits, element=element)


@pytest.mark.parametrize("precision", ["exact", "accurate", "fast"])
def test_thread_order_does_not_matter(precision):
    device = SimulatedDevice(seeds=(0, 1, 2, 3))  # the module compares the results
    encode_case(device, 270, 40, 70, precision=precision)
    encode_case(device, 140, 40, 20, precision=precision)


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("element", ["float32", "float16"])
@pytest.mark.parametrize(
    "view",
    [
        lambda X: X[:, :36],  # rows further apart than they are long, aligned
        lambda X: X[:, 1:38],  # every row unaligned
        lambda X: X[::3],
        lambda X: X[::-1],
        lambda X: np.broadcast_to(X[:1], X.shape),
        lambda X: X[:, :1],
    ],
    ids=["columns", "unaligned", "every third row", "reversed", "one row repeated", "one column"],
)
def test_strided_rows(view, element, precision):
    rng = np.random.default_rng(SEED)
    X, _ = features(rng, 90, 48, element)
    X = view(X)
    W, t = linear_map(rng, X.shape[1], 40)
    codes = finite_codes(DEVICE, X, W, t, element=element, precision=precision)
    oracle.check_codes(codes, X, W, t, element=element, precision=precision)


def test_rows_beyond_32_bit_offsets():
    CASES["far-rows"](DEVICE)


@pytest.mark.parametrize("case", ["zero", "near-exact", "near-accurate"])
def test_bits_at_the_threshold(case):
    CASES[case](DEVICE)


def test_accurate_sums_are_as_good_as_float32():
    """One accumulator for all columns, cut off as tensor cores do, would have eight times the error."""
    CASES["sums"](DEVICE)


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_float16_map_of_any_scale(scale):
    rng = np.random.default_rng(SEED)
    X, _ = features(rng, 64, 48, "float16")
    W, t = linear_map(rng, 48, 32)
    W, t = W * np.float32(scale), t * np.float32(scale)
    codes = finite_codes(DEVICE, X, W, t, element="float16", precision="fast")
    assert oracle.check_codes(codes, X, W, t, element="float16", precision="fast") < 1e-2


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("d", "scale"), [(1, 1.0), (300, 1e-20), (300, 1e20), (2000, 1.0)])
def test_map_in_float16_is_scaled_and_rounded_to_nearest(d, scale, order):
    W, t = linear_map(np.random.default_rng(SEED), d, 5)
    W, t = np.asarray(W * np.float32(scale), order=order), t * np.float32(scale)
    W[:, 1] = 0.0
    exponent = np.frexp(np.abs(W).max(axis=0))[1]
    Wt, scaled = round_map(DEVICE, W, t, element="float16")
    np.testing.assert_array_equal(Wt, np.ldexp(W, -exponent).T.astype(np.float16))
    np.testing.assert_array_equal(scaled, np.ldexp(t, -exponent))
    assert (np.abs(Wt).max(axis=1)[[0, 2, 3, 4]] >= 0.5).all()


@pytest.mark.parametrize("case", ["map-half", "map-brain"])
def test_ties_of_a_map_in_16_bits_go_to_even(case):
    CASES[case](DEVICE)


def test_map_in_either_order_and_type():
    rng = np.random.default_rng(SEED)
    X, _ = features(rng, 20, 12, "float32")
    W, t = linear_map(rng, 12, 10)
    expected = finite_codes(DEVICE, X, W, t, element="float32", precision="exact")
    for other in (np.asfortranarray(W), W.astype(np.float64), np.repeat(W, 2, axis=1)[:, ::2]):
        assert np.array_equal(finite_codes(DEVICE, X, other, t, element="float32", precision="exact"), expected)


def test_no_rows():
    W, t = linear_map(np.random.default_rng(SEED), 5, 10)
    codes = finite_codes(DEVICE, np.empty((0, 5), np.float32), W, t, element="float32", precision="exact")
    assert codes.shape == (0, 2)
    assert codes.dtype == np.uint8


def test_nan_gives_zero_bits():
    X = np.full((1, 5), np.nan, dtype=np.float32)
    W, t = linear_map(np.random.default_rng(SEED), 5, 10)
    codes, flag = encode(DEVICE, X, W, t, element="float32", precision="exact")
    assert not codes.any()
    assert flag.tolist() == [1]


@pytest.mark.parametrize("variant", encode_variants(), ids=lambda v: f"{v.element}-{v.precision}-{v.tile_bits}")
def test_nan_and_inf_raise_the_flag(variant: EncodeVariant):
    kind = {"element": variant.element, "precision": variant.precision}
    nonfinite_case(DEVICE, variant.tile_rows + 1, 35, variant.tile_bits - 7, **kind)
    nonfinite_case(DEVICE, 3, 1, variant.tile_bits, **kind)


@pytest.mark.parametrize("precision", ["exact", "accurate", "fast"])
def test_a_sum_that_overflows_raises_the_flag(precision):
    X = np.full((2, 5), 3e38, dtype=np.float32)
    X[0] = 0.0
    W, t = np.ones((5, 10), dtype=np.float32), np.zeros(10, dtype=np.float32)
    assert encode(DEVICE, X, W, t, element="float32", precision=precision)[1].tolist() == [1]
    assert encode(DEVICE, X, W / 8, t, element="float32", precision=precision)[1].tolist() == [0]
