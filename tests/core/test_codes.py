"""The bit contract."""

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st

import scq_gpu as scq
from scq_gpu.kernels import encode_linear

BITS = [1, 7, 8, 9, 31, 32, 33, 64, 100, 1000]


@pytest.mark.parametrize("n_bits", BITS)
def test_pack_is_numpys_little_endian_packbits(backend, n_bits):
    bits = np.random.default_rng(n_bits).random((5, n_bits)) < 0.5
    expected = reference.pack(bits)
    for B in (bits, np.where(bits, 1, -1).astype(np.int8), bits.astype(np.uint8), np.where(bits, 1.0, -1.0)):
        codes = scq.pack(backend.array(B))
        assert backend.owns(codes)
        np.testing.assert_array_equal(backend.host(codes), expected)
    signs = scq.unpack(codes, n_bits)
    assert backend.owns(signs)
    np.testing.assert_array_equal(backend.host(signs), np.where(bits, 1, -1))


@given(st.integers(1, 70), st.lists(st.integers(0, 3), max_size=3), st.integers(0, 2**32))
def test_round_trip_over_shapes(n_bits, leading, seed):
    B = np.where(np.random.default_rng(seed).random((*leading, n_bits)) < 0.5, 1, -1).astype(np.int8)
    codes = scq.pack(B)
    assert codes.shape == (*leading, -(-n_bits // 8))
    np.testing.assert_array_equal(scq.unpack(codes, n_bits), B)


def test_bit_k_lives_where_the_contract_says():
    for k in range(20):
        B = -np.ones((1, 20), dtype=np.int8)
        B[0, k] = 1
        code = scq.pack(B)
        assert code[0, k // 8] == 1 << (k % 8)
        assert code.sum() == 1 << (k % 8)


def test_zero_counts_as_one():
    assert encode_linear(np.zeros((1, 2)), np.ones((2, 3)), np.zeros(3)).tolist() == [[0b111]]
    assert encode_linear(np.array([[-0.0]]), np.ones((1, 1)), np.zeros(1)).tolist() == [[1]]


def test_encode_linear_is_the_formula(backend):
    rng = np.random.default_rng(0)
    X, W, t = rng.standard_normal((50, 6)), rng.standard_normal((6, 13)), rng.standard_normal(13)
    codes = encode_linear(backend.array(X), backend.array(W), backend.array(t))
    reference.assert_same_codes(backend.host(codes), X, W, t, 13)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: scq.pack(np.array([[1, 2]])), ValueError, "only 0 and 1, or only -1 and"),
        (lambda: scq.pack(np.array([[-1, 0]])), ValueError, "only 0 and 1, or only -1 and"),
        (lambda: scq.pack(np.float64(1)), ValueError, "must have 1 dimensions, got 0"),
        (lambda: scq.unpack(np.zeros((2, 2), np.uint8), 17), ValueError, "2 bytes wide; n_bits=17 takes 3"),
        (lambda: scq.unpack(np.zeros((2, 2), np.uint8), 8), ValueError, "2 bytes wide; n_bits=8 takes 1"),
        (lambda: scq.unpack(np.zeros((2, 2), np.int8), 16), TypeError, "dtype int8; packed codes are uint8"),
        (lambda: scq.unpack(np.zeros((2, 2), np.uint8), 0), ValueError, "n_bits=0 must be an integer >= 1"),
    ],
)
def test_bad_codes(call, error, message):
    with pytest.raises(error, match=message):
        call()
