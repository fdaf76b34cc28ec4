"""The sums that an encode kernel compares with its thresholds, found from the bits alone.

``python benchmarks/kernel_counts.py --sums`` prints their errors.
"""

from __future__ import annotations

import numpy as np

from cuda_on_cpu import SimulatedDevice
from scq_gpu.kernels.cuda.encode import encode

PAIRS = 32  # of a row and a column: the bits of a tile


def find_sums(device: SimulatedDevice, X: np.ndarray, W: np.ndarray, *, precision: str) -> np.ndarray:
    """Bisect the thresholds at which bit k of row k changes, from 2^-11 on either side of the product."""
    products = np.einsum("kd,dk->k", X, W, dtype=np.float64)
    low, high = products - 2.0**-11, products + 2.0**-11
    for _ in range(19):
        t = ((low + high) / 2).astype(np.float32)
        codes, _ = encode(device, X, W, t, element="float32", precision=precision)
        one = np.diagonal(np.unpackbits(codes, axis=1, bitorder="little")).astype(bool)
        low, high = np.where(one, np.maximum(low, t), low), np.where(one, high, np.minimum(high, t))
    assert (low > products - 2.0**-11).all(), "sums further off than looked for"
    assert (high < products + 2.0**-11).all(), "sums further off than looked for"
    return low


def sum_errors(device: SimulatedDevice | None, d: int, *, precision: str = "exact") -> tuple[float, float]:
    """Return the rms error of products of Gaussian rows and columns that are N(0, 1), and their bias away from zero.

    Without a device they are those of float32 multiply-adds, one column after the other, in NumPy.
    """
    rng = np.random.default_rng(d)
    X = rng.standard_normal((PAIRS, d), dtype=np.float32)
    W = rng.standard_normal((d, PAIRS), dtype=np.float32) / np.float32(np.sqrt(d))
    products = np.einsum("kd,dk->k", X, W, dtype=np.float64)
    if device is None:
        sums = np.zeros(PAIRS, dtype=np.float32)
        for x, w in zip(X.T.astype(np.float64), W.astype(np.float64), strict=True):
            sums = (sums + x * w).astype(np.float32)
    else:
        sums = find_sums(device, X, W, precision=precision)
    errors = sums - products
    return float(np.sqrt(np.mean(errors**2))), float(np.mean(errors * np.sign(products)))
