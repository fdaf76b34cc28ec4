"""Slow, obvious versions of what the package computes. Imports NumPy and SciPy only, never scq_gpu."""

from __future__ import annotations

import numpy as np
from scipy.linalg import null_space
from scipy.optimize import brentq


def sign(U):
    return np.where(U >= 0, 1.0, -1.0)


def quantization_loss(X, V):
    U = X @ V
    return np.sum((sign(U) - U) ** 2) / len(X)


def orthogonal_column(lam, m, V, ridge):
    """argmin v'diag(lam)v - 2 m'v + ridge v'v over v orthogonal to the columns of V."""
    N = null_space(V.T) if V.shape[1] else np.eye(len(lam))
    return N @ np.linalg.solve(N.T @ ((lam + ridge)[:, None] * N), N.T @ m)


def orthonormal_column_value(lam, m, V):
    """min v'diag(lam)v - 2 m'v over unit v orthogonal to the columns of V, through the spectrum of the complement."""
    N = null_space(V.T) if V.shape[1] else np.eye(len(lam))
    h, E = np.linalg.eigh(N.T @ (lam[:, None] * N))
    c = E.T @ (N.T @ m)
    size = max(np.linalg.norm(c), 1e-300)

    def excess(tau):
        return np.sum((c / (h - h[0] + tau)) ** 2) - 1

    low = 1e-14 * size
    if excess(low) <= 0:  # the hard case: fill up along the lowest eigenvector
        y = np.where(h - h[0] > low, c / np.where(h - h[0] > low, h - h[0], 1), 0)
        y[0] = np.sqrt(max(0.0, 1 - y @ y)) * (1 if c[0] >= 0 else -1)
    else:
        y = c / (h - h[0] + brentq(excess, low, size * (1 + 1e-12), xtol=1e-300, rtol=1e-14, maxiter=1000))
    y /= np.linalg.norm(y)
    return y @ (h * y) - 2 * c @ y


def column_value(lam, m, v):
    return v @ (lam * v) - 2 * m @ v


def pack(bits):
    return np.packbits(bits, axis=-1, bitorder="little")


def encode(X, W, t):
    return pack(X.astype(np.float64) @ W.astype(np.float64) >= t.astype(np.float64))


def error_band(X, W, t):
    """How far x . w - t computed in float32 may be from its true value."""
    X, W, t = (np.abs(x).astype(np.float64) for x in (X, W, t))
    return (X.shape[1] + 2) * np.finfo(np.float32).eps * (X @ W + t)


def assert_same_codes(codes, X, W, t, n_bits, slack=1.0):
    """codes are the bits of X W >= t, save where the score is within the error band."""
    scores = X.astype(np.float64) @ W.astype(np.float64) - t.astype(np.float64)
    bits = np.unpackbits(codes, axis=-1, bitorder="little")[:, :n_bits].astype(bool)
    wrong = (bits != (scores >= 0)) & (np.abs(scores) > slack * error_band(X, W, t))
    assert not wrong.any(), f"{wrong.sum()} bits differ outside the error band"
