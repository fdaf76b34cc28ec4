"""The paper's two training figures; public through `scq_gpu.metrics`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import ModuleType

import numpy as np

from scq_gpu._validate import check_array, check_rows
from scq_gpu._xp import Array, cache_bytes, device_of, namespace, row_slices, small_dtype, to_host


def quantization_loss(projections: Array) -> float:
    """Mean squared distance of projections to their signs: ``||sign(P) - P||^2 / (n n_bits)``.

    Parameters
    ----------
    projections : array (n, n_bits)
        What ``encoder.project`` returns; the sign of 0 is +1.

    Returns
    -------
    float
        The paper's quantization loss per bit.

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu import metrics
    >>> metrics.quantization_loss(np.array([[1.0, -0.5], [0.0, -1.0]]))
    0.3125
    """
    P = check_array(projections, name="projections", min_ndim=2)
    xp = namespace(P)
    if not xp.isdtype(P.dtype, "real floating") or math.prod(P.shape) == 0:
        raise ValueError(f"projections have shape {tuple(P.shape)} and dtype {P.dtype}; floats (n, n_bits) are wanted")
    # |sign(p) - p| is | |p| - 1 | for either sign and 1 for p = 0
    sums = [xp.sum((xp.abs(block) - 1) ** 2) for block in _blocks(P, xp=xp)]
    return math.fsum(float(s) for s in sums) / int(math.prod(P.shape))


def retained_variance(X: Array, components: Array) -> float:
    """Variance of X in the span of the components, as a share of what as many PCA components hold.

    Parameters
    ----------
    X : array (n, d)
    components : array (n_bits, d)
        ``encoder.components_``; only their span counts, not their lengths.

    Returns
    -------
    float
        1 for PCA itself; the paper's percentage of retained variance, as a fraction.

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu import metrics
    >>> X = np.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> metrics.retained_variance(X, np.array([[0.0, 3.0]]))
    0.25
    """
    X = check_rows(X, min_rows=2)
    xp = namespace(X)
    W = to_host(check_array(components, name="components", min_ndim=2)).astype(np.float64)
    if W.ndim != 2 or W.shape[1] != X.shape[1] or not 1 <= W.shape[0] <= X.shape[1]:
        raise ValueError(
            f"components have shape {W.shape}; (n_bits, n_features) with n_features={X.shape[1]} is wanted"
        )
    C = _scatter(X, xp=xp)
    if not np.isfinite(C).all():
        raise ValueError("X contains NaN or inf; drop such rows or fill them in")
    top = np.linalg.eigvalsh(C)[-W.shape[0] :].sum()
    if top <= 0:
        raise ValueError("X does not vary: all its rows are equal, and there is no variance to retain")
    U, s, _ = np.linalg.svd(W.T, full_matrices=False)
    span = U[:, s > s[0] * max(W.shape) * np.finfo(np.float64).eps]
    return float(np.sum(span * (C @ span)) / top)


def _scatter(X: Array, *, xp: ModuleType) -> np.ndarray:
    """``(X - mean)'(X - mean)`` in float64 on the host, summed over blocks of rows."""
    mean = sum(xp.sum(block, axis=0) for block in _blocks(X, xp=xp)) / X.shape[0]
    total = np.zeros((X.shape[1], X.shape[1]))
    for block in _blocks(X, xp=xp):
        centred = block - mean
        total += to_host(xp.matrix_transpose(centred) @ centred)
    return total


def _blocks(X: Array, *, xp: ModuleType) -> Iterator[Array]:
    """Blocks of rows of X in the float type of the small algebra."""
    dtype = small_dtype(xp=xp, device=device_of(X))
    step = max(1, 4 * cache_bytes(X) // (8 * X.shape[1]))
    return (xp.astype(X[part, :], dtype) for part in row_slices(X.shape[0], step))
