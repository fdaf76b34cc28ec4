"""The paper's two training figures."""

from __future__ import annotations

import math

import numpy as np

from scq_gpu._core.arrays import Array, device_of, namespace, row_slices, small_dtype, to_host
from scq_gpu._core.devices import block_bytes, on_device_of_arguments
from scq_gpu._core.validate import check_array
from scq_gpu.rows.inputs import as_rows


@on_device_of_arguments
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
    sum_dtype = small_dtype(xp=xp, device=device_of(P))
    parts = row_slices(P.shape[0], max(1, block_bytes(P) // (2 * P.shape[1])))
    # |sign(p) - p| is | |p| - 1 | for either sign and 1 for p = 0
    sums = [xp.sum((xp.abs(xp.astype(P[part, :], sum_dtype)) - 1) ** 2) for part in parts]
    return math.fsum(map(float, sums)) / int(math.prod(P.shape))


@on_device_of_arguments
def retained_variance(X: Array, components: Array) -> float:
    """Variance of X in the span of the components, as a share of what as many PCA components hold.

    Parameters
    ----------
    X : rows (n, d)
        Whatever ``fit`` takes.
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
    rows = as_rows(X, device=None, min_rows=2)
    d = rows.shape[1]
    W = to_host(check_array(components, name="components", min_ndim=2)).astype(np.float64)
    if W.ndim != 2 or W.shape[1] != d or not 1 <= W.shape[0] <= d:
        raise ValueError(f"components have shape {W.shape}; (n_bits, n_features) with n_features={d} is wanted")
    C = to_host(rows.moments().scatter).astype(np.float64)
    top = np.linalg.eigvalsh(C)[-W.shape[0] :].sum()
    if top <= 0:
        raise ValueError("X does not vary: all its rows are equal, and there is no variance to retain")
    U, s, _ = np.linalg.svd(W.T, full_matrices=False)
    span = U[:, s > s[0] * max(W.shape) * np.finfo(np.float64).eps]
    return float(np.sum(span * (C @ span)) / top)
