"""`ClusterIndex`: search of codes whose chunks stay with the workers of a cluster."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array, is_dask, like, on_device_of, to_host
from scq_gpu._core.bits import code_bytes
from scq_gpu._core.validate import check_index_codes, check_integer, check_padding_room, check_rows
from scq_gpu.rows.distributed import DaskRows, compute_sum, over_parts
from scq_gpu.search.answers import no_answers, search_floats
from scq_gpu.search.columns import make_codes

Answers = tuple[np.ndarray, np.ndarray]


class ClusterIndex:
    """Codes of a Dask array, searched where they are.

    Each chunk stays with the worker that holds it, laid out for searches. A search sends the queries to all chunks, and
    merges their answers. They are those of a `HammingIndex` of all codes, ties included. The chunks of a worker that
    dies are computed again elsewhere.

    Parameters
    ----------
    X : dask.array.Array (n, d)
        Packed codes (uint8), or with ``encoder`` vectors, which the workers encode. Chunks are of NumPy or CuPy.
    n_bits : int, optional
        Length of the codes.
    encoder : fitted encoder, optional
        A linear map, such as `OgE`. Pass either this or ``n_bits``.

    Examples
    --------
    >>> import dask.array as da, scq_gpu as scq
    >>> X = da.random.default_rng(0).standard_normal((4000, 16), chunks=(1000, 16))
    >>> encoder = scq.OgE(n_bits=16, max_iter=5, tol=0, random_state=0).fit(X)
    >>> index = scq.ClusterIndex(X, encoder=encoder)
    >>> index
    ClusterIndex(n=4000, n_bits=16, chunks=4)
    >>> distances, ids = index.search_asymmetric(encoder, X[:2].compute(), k=3)
    >>> ids.shape
    (2, 3)
    """

    def __init__(self, X: Any, n_bits: int | None = None, *, encoder: Any = None) -> None:
        if not is_dask(X):
            raise TypeError(
                f"X is a {type(X).__name__}, and ClusterIndex takes a Dask array; what is on one machine is for "
                "VectorIndex and HammingIndex"
            )
        if (n_bits is None) == (encoder is None):
            raise ValueError("pass n_bits with codes, or encoder with vectors")
        self.n_bits = check_integer(encoder.n_bits if n_bits is None else n_bits, name="n_bits", minimum=1)
        rows = DaskRows(X if encoder is None else encoder.encode(X), device=None)
        if rows.X.dtype != np.uint8 or rows.shape[1] != code_bytes(self.n_bits):
            raise ValueError(
                f"X holds {rows.X.dtype} of shape {rows.shape}; codes of n_bits={self.n_bits} are uint8 (n, "
                f"{code_bytes(self.n_bits)}). Pass vectors with encoder=..."
            )
        self._codes: Any = _ClusterCodes(rows, self.n_bits)

    def __len__(self) -> int:
        return int(self._codes.n)

    def __repr__(self) -> str:
        return f"ClusterIndex(n={len(self)}, n_bits={self.n_bits}, chunks={len(self._codes.chunks)})"

    def search(self, queries: Array, k: int) -> Answers:
        """Return distances and row numbers (q, k) of the codes nearest to each query, as `HammingIndex.search` does.

        Parameters
        ----------
        queries : array (q, ceil(n_bits / 8)) of uint8
        k : int
        """
        k = check_integer(k, name="k", minimum=1)
        Q = to_host(check_index_codes(queries, n_bits=self.n_bits, name="queries"))
        check_padding_room(k, queries=len(Q), n=len(self))
        if not len(Q):
            return no_answers((0, k), np.int32(self.n_bits + 1), beside=Q)
        found: Answers = self._codes.knn(Q, k, n_bits=self.n_bits)
        return found

    def search_asymmetric(self, encoder: Any, X_query: Array, k: int, *, metric: str = "l2") -> Answers:
        """Return distances and row numbers (q, k) of float queries, as `HammingIndex.search_asymmetric` does.

        Parameters
        ----------
        encoder : fitted encoder
            The encoder of the codes.
        X_query : array (q, d)
        k : int
        metric : {"l2", "cosine", "ip"}, default="l2"
        """
        k = check_integer(k, name="k", minimum=1)
        if encoder.n_bits != self.n_bits:
            raise ValueError(f"the encoder makes codes of n_bits={encoder.n_bits} and the index holds {self.n_bits}")
        X_query = check_rows(X_query, min_rows=0)
        check_padding_room(k, queries=X_query.shape[0], n=len(self))
        return search_floats(self._codes, encoder, X_query, k, metric=metric, allowed=None, n=len(self))


class _ClusterCodes:
    """A column (see `search.columns`) of codes that workers hold, for searches alone."""

    def __init__(self, rows: DaskRows, n_bits: int) -> None:
        import dask

        self.n, self._firsts = rows.shape[0], rows.firsts
        self.sample = np.empty((0, rows.shape[1]), dtype=np.uint8)
        self.chunks = dask.persist(*rows.over_chunks(_Chunk, n_bits))
        # Wait for all of them: an error is raised here, not by the first search
        compute_sum(over_parts(lambda chunk, first: chunk.codes.n, self.chunks, self._firsts), sum)

    def _search(self, method: str, queries: np.ndarray, k: int, allowed: None = None, **options: int) -> Answers:
        answers = over_parts(_search_chunk, self.chunks, self._firsts, method, queries, k, options)
        found: Answers = compute_sum(answers, functools.partial(_merge, k=k))
        return found

    knn = functools.partialmethod(_search, "knn")
    least = functools.partialmethod(_search, "least")
    cells = functools.partialmethod(_search, "cells")


class _Chunk:
    """Codes of a chunk, laid out for searches."""

    def __init__(self, codes: Array, first: int, n_bits: int) -> None:
        with on_device_of(codes):
            self.codes = make_codes(check_index_codes(codes, n_bits=n_bits, name="X"), "hamming")
        self._n_bits = n_bits

    def __sizeof__(self) -> int:
        # By which Dask decides what to spill to disk
        return self.codes.n * self.codes.width

    def __reduce__(self) -> tuple[Any, ...]:
        # Another worker lays the codes out for itself
        return _Chunk, (self.codes.take(np.arange(self.codes.n)), 0, self._n_bits)


def _search_chunk(
    chunk: _Chunk, first: int, method: str, queries: np.ndarray, k: int, options: dict[str, int]
) -> Answers | None:
    codes = chunk.codes
    if not codes.n:
        return None
    with on_device_of(codes.sample):
        given = like(queries, codes.sample) if method == "knn" else queries
        d, places = (to_host(x) for x in getattr(codes, method)(given, k, allowed=None, **options))
    return d, np.where(places >= 0, places + first, -1)


def _merge(answers: list[Answers], *, k: int) -> Answers:
    """Merge answers of chunks that follow one another; the sort is stable, so ties go to the lower row."""
    d, places = (np.concatenate(parts, axis=1) for parts in zip(*answers, strict=True))
    order = np.argsort(d, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(d, order, axis=1), np.take_along_axis(places, order, axis=1)
