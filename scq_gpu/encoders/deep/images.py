"""Images as BGAN takes them, and which of them are neighbors. No torch here."""

from __future__ import annotations

from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array, namespace, to_host
from scq_gpu._core.validate import check_array
from scq_gpu.metrics.neighbors import exact_neighbors

CHANNELS = (1, 3)


def check_images(X: Any, *, step: int, shape: tuple[int, ...] | None = None, min_images: int = 1) -> Array:
    """X as images (n, height, width, channels) of 0 to 255 in integers, or 0 to 1 in floats.

    Height and width are multiples of ``step``, by which the network makes images smaller; ``shape`` is that of images
    it was trained on.
    """
    X = check_array(X, name="X", min_ndim=1)
    if X.ndim != 4 or X.shape[3] not in CHANNELS:
        raise ValueError(
            f"X has shape {tuple(X.shape)}; images are (n, height, width, channels) with 1 or 3 channels. Move "
            "channels to the end, and give a single image as X[None]"
        )
    if shape is not None and tuple(X.shape[1:]) != tuple(shape):
        raise ValueError(f"X has images of {tuple(X.shape[1:])}; this BGAN was fitted on {tuple(shape)}: resize them")
    if shape is None and (X.shape[1] % step or X.shape[2] % step or 0 in X.shape[1:3]):
        raise ValueError(
            f"X has images of {X.shape[1]} x {X.shape[2]}; height and width must be multiples of {step}: resize or pad"
        )
    if X.shape[0] < min_images:
        raise ValueError(f"Found array with n_samples={X.shape[0]} while a minimum of {min_images} is required.")
    _check_range(X)
    return X


def _check_range(X: Array) -> None:
    xp = namespace(X)
    floats = xp.isdtype(X.dtype, "real floating")
    low, high = float(xp.min(X)), float(xp.max(X))  # NaN, if there is one
    if not (np.isfinite(low) and np.isfinite(high)):
        host = to_host(X)
        bad = np.argwhere(~np.isfinite(host))[0]
        raise ValueError(
            f"Input X contains NaN or inf: first {host[tuple(bad)]} in image {bad[0]}, at row {bad[1]}, column "
            f"{bad[2]}, channel {bad[3]}. Drop such images or fill them in"
        )
    top = 1 if floats else 255
    if low < 0 or high > top:
        kind = "floats are 0 to 1" if floats else "integers are 0 to 255"
        cure = "divide by 255" if floats and high <= 255 and low >= 0 else "scale them"
        raise ValueError(f"X has values from {low:g} to {high:g}; images of {kind}: {cure}")


def scaled(X: Array) -> Array:
    """Checked images in float32, from 0 to 1."""
    xp = namespace(X)
    if xp.isdtype(X.dtype, "real floating"):
        return xp.astype(X, xp.float32)
    return xp.astype(X, xp.float32) / 255


def pixels(X: Array) -> np.ndarray:
    """Images as centered rows (n, height * width * channels): the features that there always are."""
    rows: np.ndarray = to_host(scaled(X)).reshape(X.shape[0], -1)
    centered: np.ndarray = rows - rows.mean(axis=0)
    return centered


def neighborhood(features: np.ndarray, *, nearest: int, lists: int) -> Any:
    """Which images are neighbors: a symmetric sparse matrix (n, n) of booleans, true on its diagonal.

    Each image has a list of itself and the ``nearest`` most alike by cosine. The neighbors of an image are all images
    on the ``lists`` lists that have most in common with its own; of equally good ones the first images' are taken.
    """
    from scipy import sparse  # takes longer to import than this package

    n = len(features)

    def incidence(ids: np.ndarray) -> Any:
        """1 where ids (n, k) name a column."""
        rows = np.repeat(np.arange(n), ids.shape[1])
        found = sparse.csr_array((np.ones(ids.size, dtype=np.int32), (rows, ids.ravel())), shape=(n, n))
        found.data[:] = 1  # where a row names a column twice
        return found

    own = incidence(exact_neighbors(features, features, k=min(nearest + 1, n), metric="cosine"))
    own.setdiag(1)
    common = (own @ own.T).tocsr()  # how many images two lists share
    best = incidence(np.stack([_largest(common, i, min(lists, n)) for i in range(n)]))
    reached = (best @ own).tocsr()
    return (reached + reached.T) > 0


def _largest(common: Any, i: int, k: int) -> np.ndarray:
    """Columns of the k largest entries of row i; repeated, where it has fewer."""
    part = slice(common.indptr[i], common.indptr[i + 1])
    columns, values = common.indices[part], common.data[part]
    found: np.ndarray = np.resize(columns[np.lexsort((columns, -values))][:k], k)
    return found
