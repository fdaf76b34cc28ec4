"""Trying encoders out: queries, a database, and what the right answers are; codes of any encoder are measured on it.

Right answers go by labels where there are some: a row is right if it has the query's label. Without labels they are
the query's nearest rows by Euclidean distance.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from scq_gpu import metrics
from scq_gpu._validate import check_integer, check_labels
from scq_gpu._xp import Array, device_of, from_host, is_array, to_host
from scq_gpu.intake import as_rows
from scq_gpu.search import HammingIndex

__all__ = ["Trial", "nearest_rows"]

NEIGHBOURS = 10
"""How many nearest rows are the right answers where there are no labels."""
LOOKED_AT = 10, 100
"""How many answers are looked at for them."""


class Trial:
    """Queries and a database with known right answers, on which encoders can be measured.

    Parameters
    ----------
    X : array (n, d), or what `scq_gpu.io.open_rows` gives
        The database. Without ``X_query``, some of its rows, drawn at random, are the queries, and taken out of it.
    labels : array (n,) or (n, classes), optional
        Integers, or 0/1 in one column a class.
    X_query : array (q, d), optional
    query_labels : array (q,) or (q, classes), optional
    n_queries : int, default 300
        How many rows to draw without ``X_query``; at most a fifth of them.
    device : str, optional
        Where nearest rows are looked for; None follows X.
    random_state : int, default 0
        Seed of the drawing.

    Examples
    --------
    >>> import scq_gpu as scq
    >>> from scq_gpu.trial import Trial
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> encoder = scq.OgE(n_bits=32, max_iter=20, tol=0, random_state=0).fit(X)
    >>> sorted(Trial(X, y).figures(encoder))
    ['mean_average_precision', 'precision_at_k', 'precision_at_radius']
    >>> sorted(Trial(X).figures(encoder))
    ['recall_10_at_10', 'recall_10_at_100']
    """

    def __init__(
        self,
        X: Any,
        labels: Array | None = None,
        *,
        X_query: Any = None,
        query_labels: Array | None = None,
        n_queries: int = 300,
        device: str | None = None,
        random_state: int = 0,
    ) -> None:
        self._rows = as_rows(X, device=device, min_rows=2)
        self.X: Any = X
        self.X_query: Any = X_query
        self.n: int = self._rows.shape[0]
        self.query_rows: np.ndarray = np.zeros(0, dtype=np.int64)
        if X_query is None:
            wanted = min(check_integer(n_queries, name="n_queries", minimum=1), max(1, self.n // 5))
            drawn = np.random.default_rng(random_state).choice(self.n, size=wanted, replace=False)
            self.query_rows = np.sort(drawn)
        self.database_rows: np.ndarray = np.delete(np.arange(self.n), self.query_rows)
        self.labels: tuple[np.ndarray, np.ndarray] | None = self._check_labels(labels, query_labels)

    @property
    def n_queries(self) -> int:
        """How many queries."""
        return len(self.query_rows) if self.X_query is None else int(self.X_query.shape[0])

    def codes(self, encoder: Any) -> tuple[np.ndarray, np.ndarray]:
        """Codes of the queries and of the database, on the host."""
        codes = to_host(encoder.encode(self.X))
        if self.X_query is not None:
            return to_host(encoder.encode(self.X_query)), codes
        return codes[self.query_rows], codes[self.database_rows]

    def figures(
        self, encoder: Any, *, k: int = 100, radius: int = 2, ap: str = "trapezoid", ties: str = "database"
    ) -> dict[str, float]:
        """How good the answers of an encoder's codes are.

        Parameters
        ----------
        encoder : fitted encoder
        k, radius, ap, ties
            As in `scq_gpu.evaluate`; only for answers that go by labels.

        Returns
        -------
        dict of str to float
            With labels the mean average precision, and the precision at a radius and at k; without, which share of the
            10 nearest rows is among the first 10 and the first 100 answers.
        """
        queries, database = self.codes(encoder)
        if self.labels is None:
            _, found = HammingIndex(database, encoder.n_bits).search(queries, min(max(LOOKED_AT), len(database)))
            wanted = self._neighbours
            return {
                f"recall_{wanted.shape[1]}_at_{m}": metrics.recall_at_k(found, wanted, k=min(m, found.shape[1]))
                for m in LOOKED_AT
            }
        pair = (queries, database, *self.labels)
        return {
            "mean_average_precision": metrics.mean_average_precision(*pair, ap=ap, ties=ties),
            "precision_at_radius": metrics.precision_at_radius(*pair, radius=radius),
            "precision_at_k": metrics.precision_at_k(*pair, k=k, ties=ties),
        }

    @functools.cached_property
    def _neighbours(self) -> np.ndarray:
        """The nearest rows of each query, counted in the database."""
        X_query = take_rows(self._rows, self.query_rows) if self.X_query is None else self.X_query
        ids = _nearest(X_query, self._rows, k=min(NEIGHBOURS, len(self.database_rows)), leave_out=self.query_rows)
        return np.searchsorted(self.database_rows, ids)

    def _check_labels(self, labels: Any, query_labels: Any) -> tuple[np.ndarray, np.ndarray] | None:
        if labels is None and query_labels is None:
            return None
        if labels is None or (self.X_query is not None and query_labels is None):
            missing, there = ("labels", "query_labels") if labels is None else ("query_labels", "labels")
            raise ValueError(f"{there} were given, but not {missing}; right answers need the labels of both")
        if self.X_query is not None:
            pair = check_labels(query_labels, labels, n_queries=self.n_queries, n=self.n)
            return to_host(pair[0]), to_host(pair[1])
        checked = to_host(check_labels(labels, labels, n_queries=self.n, n=self.n)[1])
        return checked[self.query_rows], checked[self.database_rows]


def nearest_rows(X_query: Any, X: Any, *, k: int, device: str | None = None) -> np.ndarray:
    """The rows nearest to each query by Euclidean distance, exactly, in one pass over the rows.

    Parameters
    ----------
    X_query : array (q, d)
    X : array (n, d), or what `scq_gpu.io.open_rows` gives
    k : int
    device : str, optional
        Where to work; None follows X.

    Returns
    -------
    numpy.ndarray (q, k) of int64
        Row numbers, nearest first.

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu.trial import nearest_rows
    >>> nearest_rows(np.array([[0.0]]), np.array([[3.0], [1.0], [2.0]]), k=2)
    array([[1, 2]])
    """
    rows = as_rows(X, device=device)
    k = check_integer(k, name="k", minimum=1)
    if k > rows.shape[0]:
        raise ValueError(f"k={k} exceeds the {rows.shape[0]} rows there are; lower k")
    return _nearest(X_query, rows, k=k)


def _nearest(X_query: Any, rows: Any, *, k: int, leave_out: np.ndarray | None = None) -> np.ndarray:
    xp = rows.xp
    queries = (to_host(X_query) if is_array(X_query) else np.asarray(X_query)).astype(np.float64)
    if queries.ndim != 2 or queries.shape[1] != rows.shape[1]:
        raise ValueError(f"X_query has shape {queries.shape}; (queries, {rows.shape[1]}) is wanted, as X has")
    centre = queries.mean(axis=0)  # distances stay, and large offsets no longer cost digits
    Q, mean = (xp.astype(from_host(x, xp=xp, device=rows.device), rows.dtype) for x in (queries - centre, centre))
    hidden = np.zeros(rows.shape[0], dtype=bool)
    hidden[[] if leave_out is None else leave_out] = True
    best = xp.zeros((len(queries), 0), dtype=rows.dtype, device=rows.device)
    ids = xp.zeros((len(queries), 0), dtype=xp.int64, device=rows.device)
    first = 0
    for block in rows.blocks():
        last = first + block.shape[0]
        centred = block - mean
        d = xp.sum(centred * centred, axis=1) - 2 * (Q @ xp.matrix_transpose(centred))
        out = from_host(hidden[first:last], xp=xp, device=device_of(d))
        d = xp.where(out[None, :], xp.asarray(xp.inf, dtype=d.dtype, device=device_of(d)), d)
        number = xp.broadcast_to(xp.arange(first, last, dtype=xp.int64, device=rows.device), d.shape)
        best, ids = xp.concat([best, d], axis=1), xp.concat([ids, number], axis=1)
        order = xp.argsort(best, axis=1, stable=True)[:, : min(k, last)]
        best, ids = (xp.take_along_axis(x, order, axis=1) for x in (best, ids))
        first = last
    return to_host(ids)


def take_rows(rows: Any, numbers: np.ndarray) -> np.ndarray:
    """Rows by ascending number, from one pass."""
    taken, first = [], 0
    for block in rows.blocks():
        here = numbers[(numbers >= first) & (numbers < first + block.shape[0])] - first
        taken.append(to_host(block)[here])
        first += block.shape[0]
    return np.concatenate(taken)
