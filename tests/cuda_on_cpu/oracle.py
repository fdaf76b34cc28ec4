"""What the kernels must give, in NumPy and float64; imports nothing of the package."""

from __future__ import annotations

import numpy as np

U32 = 2.0**-24  # unit roundoff of float32


def pack(bits: np.ndarray) -> np.ndarray:
    """Booleans (n, n_bits) to bytes, bit k in byte k // 8 at position k % 8."""
    return np.packbits(bits, axis=1, bitorder="little")


def unpack(codes: np.ndarray, n_bits: int) -> np.ndarray:
    """Bytes to booleans."""
    return np.unpackbits(codes, axis=1, count=n_bits, bitorder="little").astype(bool)


def error_band(X: np.ndarray, W: np.ndarray, *, element: str, precision: str) -> np.ndarray:
    """How far a computed x . w may be from the true one, (n, n_bits): a proven bound, not an estimate.

    Sums of d float32 products err by (d + 1) u times the sum of |x| |w|; rounding an operand to TF32, float16 or
    bfloat16 adds 2^-11, 2^-11 and 2^-8 of it; three TF32 passes leave out 2^-21.
    """
    magnitude = np.abs(X) @ np.abs(W)
    band = (X.shape[1] + 1) * U32 * magnitude
    if precision == "accurate" and element == "float32":
        band += 2.0**-21 * magnitude
    if precision == "fast":
        band += {"float32": 2.0**-10, "float16": 2.0**-11, "bfloat16": 2.0**-8}[element] * magnitude
        band += 2.0**-24 * np.abs(X).sum(axis=1, keepdims=True) * np.abs(W).max(axis=0)  # float16 underflow
    return band


def check_codes(
    codes: np.ndarray, X: np.ndarray, W: np.ndarray, t: np.ndarray, *, element: str, precision: str
) -> float:
    """Assert that all bits outside the band are right and padding bits 0; returns the share of bits that differ."""
    X, W, t = (a.astype(np.float64) for a in (X, W, t))
    n_bits = W.shape[1]
    products = X @ W
    assert codes.shape == (len(X), -(-n_bits // 8)), "wrong shape"
    wrong = unpack(codes, n_bits) != (products >= t)
    outside = wrong & (np.abs(products - t) > error_band(X, W, element=element, precision=precision))
    assert not outside.any(), f"{outside.sum()} bits outside the error band, first at {np.argwhere(outside)[0]}"
    assert np.array_equal(codes, pack(unpack(codes, n_bits))), "padding bits set"
    return float(wrong.mean()) if wrong.size else 0.0


def distances(queries: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """All Hamming distances."""
    return np.bitwise_count(queries[:, None] ^ codes[None]).sum(axis=2, dtype=np.int64)


def check_search(database: object, queries: np.ndarray, codes: np.ndarray, *, k: int, radius: int) -> None:
    """Assert that both searches of a kernel database are exactly right, ties included."""
    true = distances(queries, codes)
    nearest = np.argsort(true, axis=1, kind="stable")[:, :k]
    found, ids = database.top_k(queries, k)
    assert np.array_equal(found, np.take_along_axis(true, nearest, 1)), "top-k distances differ"
    assert np.array_equal(ids, nearest), "top-k ids differ"
    limits, found, ids = database.within(queries, radius)
    rows, columns = np.nonzero(true <= radius)
    assert np.array_equal(np.diff(limits), np.bincount(rows, minlength=len(true))), "range search counts differ"
    assert np.array_equal(ids, columns), "range search ids differ"
    assert np.array_equal(found, true[rows, columns]), "range search distances differ"
