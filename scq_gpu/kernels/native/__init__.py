"""The native core: loops over NumPy arrays in C++, compiled when the package is installed.

`core` is the compiled module. It is None where the package was installed without a compiler; array operations then do
the work, with the same answers. The environment variable ``SCQ_CPU`` names the instruction set to use instead of the
best one of the processor ("avx512", "avx2", "neon" or "base"), or "arrays" for array operations.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from scq_gpu._core.arrays import row_slices
from scq_gpu._core.machine import allowed_threads

_READ_AS_THEY_ARE = {"f": "feB", "d": "d"}  # types of rows, by the type to multiply in
_BUFFER_BYTES = 1 << 20  # of rows that are converted at a time
_AVERAGES = {None: 0, "standard": 1, "trapezoid": 2}

core: Any = None
missing = "SCQ_CPU=arrays is set"
"""Why there is no core, if there is none."""

if (_wanted := os.environ.get("SCQ_CPU", "")) != "arrays":
    missing = "it was not built; install again where there is a C++17 compiler"
    with contextlib.suppress(ModuleNotFoundError):
        core = importlib.import_module("scq_gpu.kernels.native._core")
    if core is not None and _wanted:
        core.use(_wanted)


def runs_native(x: object) -> bool:
    """Return whether the native loops take an array: a NumPy array, with the core built."""
    return core is not None and isinstance(x, np.ndarray)


class CodeSearch:
    """Search over ``core.Rows``: parts of codes, in order, each row by row or in blocks of 64 rows side by side."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    @classmethod
    def of(cls, parts: list[np.ndarray]) -> CodeSearch:
        """Search codes (n, bytes) as they are."""
        return cls([core.Rows(np.ascontiguousarray(part), len(part)) for part in parts])

    def knn(
        self, queries: np.ndarray, parts: list[np.ndarray], k: int, *, n_bits: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find the k nearest rows: distances (q, k) int32 and rows (q, k) int64, padded with n_bits + 1 and -1."""
        d = np.full((len(queries), k), n_bits + 1, dtype=np.int32)
        rows = np.full(d.shape, -1, dtype=np.int64)
        core.nearest(self._rows, np.ascontiguousarray(queries), d, rows, allowed_threads())
        return d, rows

    def within(
        self, queries: np.ndarray, parts: list[np.ndarray], radius: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Find all pairs within a radius: (query, distance, row), in no particular order."""
        query, d, row = core.within(self._rows, np.ascontiguousarray(queries), int(radius), allowed_threads())
        # the core's integers of 64 bits are C's long long, which NumPy tells from long
        return query.view(np.int64), d, row.view(np.int64)

    def least(self, entries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Find the rows of least score from tables (q, bytes, 2, 16): scores (q, k) float32 and rows (q, k) int64."""
        scores = np.full((len(entries), k), np.inf, dtype=np.float32)
        rows = np.full(scores.shape, -1, dtype=np.int64)
        core.least(self._rows, np.ascontiguousarray(entries), scores, rows, allowed_threads())
        return scores, rows

    def cells(self, tables: np.ndarray, k: int, *, keep: int) -> tuple[np.ndarray, np.ndarray]:
        """Find the rows of least score from tables (q, bytes, 256), about ``keep`` of which are scored.

        Return scores (q, k) float32 and rows (q, k) int64, padded with inf and -1.
        """
        scores = np.full((len(tables), k), np.inf, dtype=np.float32)
        rows = np.full(scores.shape, -1, dtype=np.int64)
        core.cells(self._rows, np.ascontiguousarray(tables, dtype=np.float32), keep, scores, rows, allowed_threads())
        return scores, rows


def to_blocks(codes: np.ndarray) -> np.ndarray:
    """Lay out codes (n, bytes) as blocks (ceil(n / 64), 64 * bytes)."""
    n, width = codes.shape
    blocks = np.empty((-(-n // 64), 64 * width), dtype=np.uint8)
    core.to_blocks(np.ascontiguousarray(codes), blocks)
    return blocks


def read_rows(file: int, offset: int, numbers: np.ndarray, out: np.ndarray) -> int:
    """Read rows of an open file by number into ``out``; return the place of one that is not there whole, or -1."""
    content = out.reshape(len(out), -1).view(np.uint8)
    if core is not None:
        # One thread for few rows: to wake another takes longer
        threads = allowed_threads() if len(out) > 64 else 1
        return int(core.read_rows(file, offset, np.ascontiguousarray(numbers, dtype=np.int64), content, threads))
    for i, row in enumerate(numbers.tolist()):
        if os.preadv(file, [content[i].data], offset + row * content.shape[1]) != content.shape[1]:
            return i
    return -1


def encode_into(out: np.ndarray, X: np.ndarray, W: np.ndarray, t: np.ndarray) -> bool:
    """Write the codes of rows X (n, d) of any type and layout, and return whether all scores were finite.

    W (d, n_bits) and t (n_bits,) have the type to multiply in; out (n, bytes) may have any layout.
    """
    t = np.ascontiguousarray(t)
    return _fill(out, X, W.dtype, lambda rows, codes: core.encode(rows, W, t, codes, allowed_threads()))


def quantize_into(
    out: np.ndarray,
    X: np.ndarray,
    mean: np.ndarray | None,
    W: np.ndarray | None,
    cells: np.ndarray,
    halves: np.ndarray,
    *,
    threads: int | None = None,
) -> bool:
    """Write the product codes of rows X, or of rotated rows if W is None, as `encode_into` does.

    ``halves`` (bytes, 256) are taken off the products with the cells (bytes, 256, w).
    """
    mean = None if mean is None else np.ascontiguousarray(mean)
    cells, halves = np.ascontiguousarray(cells), np.ascontiguousarray(halves)
    count = allowed_threads() if threads is None else threads
    return _fill(out, X, cells.dtype, lambda rows, codes: core.quantize(rows, mean, W, cells, halves, codes, count))


def _fill(out: np.ndarray, X: np.ndarray, dtype: Any, encode: Callable[[np.ndarray, np.ndarray], bool]) -> bool:
    """Call ``encode(rows, codes)`` with rows that the core reads and codes in row order, all at once if possible."""
    n, d = X.shape
    readable = X.dtype.char in _READ_AS_THEY_ARE[dtype.char] and X.dtype.isnative and X.flags.aligned
    readable = readable and (d == 1 or X.strides[1] == X.itemsize) and X.strides[0] % X.itemsize == 0
    if readable and out.flags.c_contiguous:
        return bool(encode(X, out))
    # Other types and layouts go through a buffer, some rows at a time
    finite = True
    for part in row_slices(n, max(1, _BUFFER_BYTES // (d * dtype.itemsize))):
        rows = X[part] if readable else X[part].astype(dtype, order="C")
        codes = np.empty((rows.shape[0], out.shape[1]), dtype=np.uint8)
        finite &= bool(encode(rows, codes))
        out[part] = codes
    return finite


def rank(
    queries: np.ndarray,
    database: np.ndarray,
    query_labels: np.ndarray,
    database_labels: np.ndarray,
    *,
    ap: str | None,
    at: int,
    k: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the fields of `metrics.ranking.Scan`."""
    shared = query_labels.ndim == 2
    labels, database_words = (_label_words if shared else _label_numbers)(query_labels, database_labels)
    q, levels = len(queries), 8 * queries.shape[1] + 1
    counts, hits = np.zeros((q, levels), dtype=np.int64), np.zeros((q, levels), dtype=np.int64)
    ap_sum, top = np.zeros(q), np.zeros(q, dtype=np.int64)
    codes = np.ascontiguousarray(database), np.ascontiguousarray(queries)
    answers = counts, hits, ap_sum, top
    core.rank(*codes, database_words, labels, shared, _AVERAGES[ap], at, k, *answers, allowed_threads())
    return answers


def _label_numbers(query_labels: np.ndarray, database_labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Replace labels by numbers from 1, as (n, 1) uint64; 0 is a query label that the database does not have."""
    classes, numbers = np.unique(database_labels, return_inverse=True)
    place = np.minimum(np.searchsorted(classes, query_labels), len(classes) - 1)
    found = np.where(classes[place] == query_labels, place + 1, 0)
    return found.astype(np.uint64)[:, None], numbers.astype(np.uint64)[:, None] + np.uint64(1)


def _label_words(query_labels: np.ndarray, database_labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pack sets of labels into words (n, words), one bit per class."""

    def words(labels: np.ndarray) -> np.ndarray:
        packed = np.packbits(labels, axis=1, bitorder="little")
        padded = np.zeros((len(packed), -(-packed.shape[1] // 8) * 8), dtype=np.uint8)
        padded[:, : packed.shape[1]] = packed
        return padded.view(np.uint64)

    return words(query_labels), words(database_labels)
