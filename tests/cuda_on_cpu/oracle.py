"""Expected results of the kernels, in NumPy and float64. Nothing of the package is imported."""

from __future__ import annotations

import numpy as np

U32 = 2.0**-24  # unit roundoff of float32


def pack(bits: np.ndarray) -> np.ndarray:
    """Pack booleans (n, n_bits) into bytes, bit k in byte k // 8 at position k % 8."""
    return np.packbits(bits, axis=1, bitorder="little")


def unpack(codes: np.ndarray, n_bits: int) -> np.ndarray:
    """Unpack bytes to booleans."""
    return np.unpackbits(codes, axis=1, count=n_bits, bitorder="little").astype(bool)


def error_band(X: np.ndarray, W: np.ndarray, *, element: str, precision: str) -> np.ndarray:
    """Bound the error of a computed x . w, (n, n_bits): a proven bound, not an estimate.

    Float32 sums of d products err by (d + 1) u times the sum of |x| |w|, u = 2^-24. A tensor core adds four products at
    once, and cuts off up to u of the largest from each of five terms and 2 u from their sum: 7 u for each four columns.
    Rounding an operand to TF32, float16 or bfloat16 adds 2^-11, 2^-11 and 2^-8.

    Three TF32 passes start anew for each 16 columns, so 28 u in all for the products of high halves, under 1 u for the
    small ones, and float32's error for d / 16 sums. They leave out low * low, 2^-22, and of each low half up to the 3
    of 2^-23 that TF32 has no room for, together 2^-20.
    """
    d = X.shape[1]
    magnitude = np.abs(X) @ np.abs(W)
    band = (d + 1) * U32 * magnitude
    if precision == "accurate" and element == "float32":
        band = ((d + 15) // 16 + 30) * U32 * magnitude + 2.0**-20 * magnitude
    if precision == "fast":
        band = 7 * ((d + 3) // 4) * U32 * magnitude
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


def bitset(allowed: np.ndarray | None) -> np.ndarray | None:
    """Pack a mask of rows into 64-bit words, row r in bit r % 64 of word r // 64."""
    if allowed is None:
        return None
    words = np.zeros(-(-len(allowed) // 64), dtype="<u8")
    words.view(np.uint8)[: -(-len(allowed) // 8)] = np.packbits(allowed, bitorder="little")
    return words


def check_least_scores(
    found: tuple[np.ndarray, np.ndarray],
    gains: np.ndarray,
    codes: np.ndarray,
    k: int,
    allowed: np.ndarray | None = None,
) -> None:
    """Assert that scores and rows (q, k) are those of least score, within the rounding error of float32.

    Sums that float32 holds exactly must come out exactly, ties by lowest row. Gains are those of bits (q, n_bits), or
    of cells (q, bytes, 256).
    """
    gains = gains.astype(np.float64)
    if gains.ndim == 2:
        bits = unpack(codes, gains.shape[1]).astype(np.float64)
        true, size = gains @ bits.T, np.abs(gains) @ bits.T
    else:
        terms = np.stack([gains[:, byte, codes[:, byte]] for byte in range(codes.shape[1])])
        true, size = terms.sum(axis=0), np.abs(terms).sum(axis=0)
    band = (gains.shape[1] + 4) * U32 * size
    exact = not (true % 2.0**-6).any() and size.max() < 2.0**17
    open_rows = np.arange(len(codes)) if allowed is None else np.flatnonzero(allowed)
    scores, rows = found
    kept = min(k, len(open_rows))
    assert scores.shape == rows.shape == (len(gains), k), "wrong shape"
    assert (rows[:, kept:] == -1).all(), "padding is not -1"
    assert (scores[:, kept:] == np.inf).all(), "padding is not inf"
    scores, rows = scores[:, :kept], rows[:, :kept]
    if not kept:
        return
    assert np.isin(rows, open_rows).all(), "a row that is not allowed"
    for q in range(len(gains)):
        if exact:
            order = open_rows[np.argsort(true[q, open_rows], kind="stable")[:kept]]
            assert np.array_equal(rows[q], order), "least rows differ"
            assert np.array_equal(scores[q], true[q, order]), "least scores differ"
        assert len(set(rows[q].tolist())) == kept, "a row twice"
        assert (np.abs(scores[q] - true[q, rows[q]]) <= band[q, rows[q]]).all(), "scores outside the error band"
        assert (np.diff(scores[q]) >= 0).all(), "scores not ascending"
        assert (np.diff(rows[q])[np.diff(scores[q]) == 0] > 0).all(), "ties not by lowest row"
        others = np.setdiff1d(open_rows, rows[q])
        assert (true[q, others] + band[q, others] >= scores[q, -1]).all(), "a lower score was left out"


def check_cells(codes: np.ndarray, Y: np.ndarray, cells: np.ndarray, halves: np.ndarray) -> None:
    """Assert that each byte names a cell of largest score y . c - half, within the rounding error of float32.

    Scores that float32 holds exactly must come out exactly, ties by lowest cell.
    """
    n_bytes, _, w = cells.shape
    assert codes.shape == (len(Y), n_bytes), "wrong shape"
    y, c = Y.reshape(len(Y), n_bytes, w).astype(np.float64), cells.astype(np.float64)
    scores = np.einsum("ngw,gcw->ngc", y, c) - halves
    if not (y % 1).any() and not (c % 1).any() and not (halves % 0.5).any():
        assert np.array_equal(codes, scores.argmax(axis=2)), "nearest cells differ"
    sizes = np.einsum("ngw,gcw->ngc", np.abs(y), np.abs(c)) + np.abs(halves)
    found = np.take_along_axis(scores, codes[:, :, None].astype(np.int64), 2)
    assert (scores - found <= 2 * (w + 1) * U32 * sizes.max(axis=2, keepdims=True)).all(), "cells outside the band"


def distances(queries: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Compute all Hamming distances."""
    return np.bitwise_count(queries[:, None] ^ codes[None]).sum(axis=2, dtype=np.int64)


def check_search(
    database: object, queries: np.ndarray, codes: np.ndarray, *, k: int, radius: int, allowed: np.ndarray | None = None
) -> None:
    """Assert that both searches of a kernel database are exactly right, ties and padding included."""
    true, none = distances(queries, codes), 8 * codes.shape[1] + 1
    if allowed is not None:
        true[:, ~allowed] = none
    nearest = np.argsort(true, axis=1, kind="stable")[:, :k]
    near = np.full((len(queries), k), none)
    near[:, : nearest.shape[1]] = np.take_along_axis(true, nearest, 1)
    rows = np.full(near.shape, -1)
    rows[:, : nearest.shape[1]] = nearest
    rows[near == none] = -1
    found, ids = database.top_k(queries, k, none, bitset(allowed))
    assert np.array_equal(found, near), "top-k distances differ"
    assert np.array_equal(ids, rows), "top-k ids differ"
    limits, found, ids = database.within(queries, radius, bitset(allowed))
    rows, columns = np.nonzero(true <= radius)
    assert np.array_equal(np.diff(limits), np.bincount(rows, minlength=len(true))), "range search counts differ"
    assert np.array_equal(ids, columns), "range search ids differ"
    assert np.array_equal(found, true[rows, columns]), "range search distances differ"
