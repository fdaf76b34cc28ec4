"""Evaluating encoders: queries, a database and the right answers; the figures of any encoder's codes on them.

The nearest rows of each query by the floats themselves are what codes should find; where there are labels, a row is
also right if it has the query's label.
"""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array, to_host
from scq_gpu._core.devices import on_device_of_arguments
from scq_gpu._core.validate import METRICS, check_choice, check_integer, check_labels
from scq_gpu.metrics.codes import mean_average_precision, precision_at_k, precision_at_radius
from scq_gpu.metrics.ids import recall_at_k
from scq_gpu.metrics.neighbors import nearest_rows, prepared, take_rows
from scq_gpu.metrics.training import quantization_loss, retained_variance
from scq_gpu.rows.inputs import as_rows
from scq_gpu.search.index import HammingIndex
from scq_gpu.search.rescoring import rescore

__all__ = ["Evaluation", "RetrievalTask", "evaluate"]

_NEIGHBORS = 10  # nearest rows that are to be found,
_DEPTHS = 10, 100  # and among how many first answers
_RESCORED = 4, 16  # times as many candidates, ordered by their floats
_RECALL_QUERIES = 1000  # most queries whose neighbors are looked for, drawn at random from more
_RENAMED = {
    "X_train": "X_database",
    "y_train": "database_labels",
    "y_query": "query_labels",
}


@dataclass(frozen=True)
class Evaluation:
    """Figures of an encoder, as fractions (the paper prints retrieval figures in percent).

    Attributes
    ----------
    n_bits : int
    recall_10_at_10, recall_10_at_100 : float
        Share of the 10 nearest rows by the floats among the first 10 and 100 answers by Hamming distance.
    asymmetric_10_at_10, asymmetric_10_at_100 : float
        The same by float queries against the codes; None for an encoder that is not a linear map.
    rescored_4x, rescored_16x : float
        The same among 10 answers, chosen by their floats from 40 and 160.
    mean_average_precision : float
        mAP; None without labels, like the next two.
    precision_at_radius : float
        Within ``radius``, 0 for a query with nothing inside; by the Hamming distance.
    precision_at_k : float
        Of the first ``k`` answers.
    radius, k : int
    quantization_loss : float
        Per bit, on the database; NaN for an encoder that is not a linear map.
    retained_variance : float
        Of the database, relative to as many PCA components; NaN for an encoder that is not a linear map, or has more
        bits than there are features.
    """

    n_bits: int
    recall_10_at_10: float | None = None
    recall_10_at_100: float | None = None
    asymmetric_10_at_10: float | None = None
    asymmetric_10_at_100: float | None = None
    rescored_4x: float | None = None
    rescored_16x: float | None = None
    mean_average_precision: float | None = None
    precision_at_radius: float | None = None
    radius: int | None = None
    precision_at_k: float | None = None
    k: int | None = None
    quantization_loss: float = float("nan")
    retained_variance: float = float("nan")

    def as_dict(self) -> dict[str, float]:
        """The figures that there are, by name, ready for a row of a table."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def evaluate(
    encoder: Any,
    X_query: Any = None,
    X_database: Any = None,
    query_labels: Array | None = None,
    database_labels: Array | None = None,
    *,
    radius: int = 2,
    k: int = 1000,
    ap: str = "standard",
    ties: str = "database",
    distance: str = "hamming",
    metric: str = "l2",
    recall: bool = True,
    **renamed: Any,
) -> Evaluation:
    """Figures of a fitted encoder: queries searched in a database, nearest rows and labels saying what is right.

    Parameters
    ----------
    encoder : fitted encoder
        With ``encode`` and ``n_bits``; ``project`` and ``components_`` where it is a linear map.
    X_query : array (q, d)
    X_database : array (n, d)
    query_labels : array (q,) or (q, classes), optional
        Integer labels, or 0/1 in one column per class.
    database_labels : array (n,) or (n, classes), optional
    radius : int, default 2
    k : int, default 1000
        The paper's prec@1k.
    ap : {"standard", "trapezoid"}
        Rule of average precision; the paper's tables take "trapezoid". See
        `scq_gpu.metrics.mean_average_precision`.
    ties : {"database", "average"}
        Order inside a tie.
    distance : {"hamming", "spherical"}
        What codes are ranked by; "spherical" is meant for `SpH`.
    metric : {"l2", "cosine", "ip"}, default "l2"
        What the nearest rows are; for the cosine, rows and queries are normalized before they are encoded.
    recall : bool, default True
        Whether to look for the nearest rows, of at most 1,000 queries, which takes a pass over the database. Without
        labels it must be True.

    Returns
    -------
    Evaluation

    Examples
    --------
    >>> import numpy as np
    >>> import scq_gpu as scq
    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(300) % 3
    >>> X = rng.standard_normal((300, 8)) + 6 * np.eye(8)[labels]
    >>> encoder = scq.OgE(n_bits=4, n_components=None, random_state=0).fit(X[:250])
    >>> figures = scq.evaluate(encoder, X[250:], X[:250], labels[250:], labels[:250])
    >>> figures.mean_average_precision > 0.6
    True
    """
    _refuse_old_arguments(renamed, X_query, X_database)
    task = RetrievalTask(
        X_database, database_labels, X_query=X_query, query_labels=query_labels, metric=metric, recall=recall
    )
    figures = task.measure(encoder, k=k, radius=radius, ap=ap, ties=ties, distance=distance)
    components = getattr(encoder, "components_", None)
    if components is not None:
        figures["quantization_loss"] = quantization_loss(encoder.project(task.X))
        if components.shape[0] <= components.shape[1]:
            figures["retained_variance"] = retained_variance(task.X, components)
    return Evaluation(n_bits=encoder.n_bits, **figures)


def _refuse_old_arguments(renamed: dict[str, Any], X_query: Any, X_database: Any) -> None:
    """Calls in the order of before, (X_train, y_train, X_query, y_query), would give other figures: refuse them."""
    order = "evaluate(encoder, X_query, X_database, query_labels, database_labels)"
    for name in renamed:
        if name in _RENAMED:
            raise TypeError(f"evaluate() got {name}=..., which is now {_RENAMED[name]}: call {order}")
        raise TypeError(f"evaluate() has no argument {name!r}; call {order}")
    if X_query is None or X_database is None:
        raise TypeError(f"evaluate() needs queries and a database: call {order}")
    if getattr(X_database, "ndim", 2) == 1 and getattr(X_query, "ndim", 2) == 2:
        raise TypeError(f"X_database has one dimension, as labels have: the order of arguments is now {order}")


class RetrievalTask:
    """Queries and a database with known right answers, on which any number of encoders can be measured.

    Parameters
    ----------
    X : array (n, d), or what `scq_gpu.io.open_rows` gives
        The database. Without ``X_query``, some of its rows, drawn at random, are the queries, and taken out of it.
    labels : array (n,) or (n, classes), optional
        Integers, or 0/1 in one column per class.
    X_query : array (q, d), optional
    query_labels : array (q,) or (q, classes), optional
    metric : {"l2", "cosine", "ip"}, default "l2"
        As in `scq_gpu.evaluate`, like ``recall``.
    recall : bool, default True
    n_queries : int, default 300
        How many rows to draw without ``X_query``; at most a fifth of them.
    device : str, optional
        Where nearest rows are looked for; None follows X.
    random_state : int, default 0
        Seed of the drawing.

    Examples
    --------
    >>> import scq_gpu as scq
    >>> from scq_gpu.metrics.evaluation import RetrievalTask
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> encoder = scq.OgE(n_bits=32, random_state=0).fit(X)
    >>> list(RetrievalTask(X).measure(encoder))
    ['recall_10_at_10', 'recall_10_at_100', 'asymmetric_10_at_10', 'asymmetric_10_at_100', 'rescored_4x',
     'rescored_16x']
    >>> list(RetrievalTask(X, y, recall=False).measure(encoder, k=100))
    ['mean_average_precision', 'precision_at_radius', 'radius', 'precision_at_k', 'k']
    """

    def __init__(
        self,
        X: Any,
        labels: Array | None = None,
        *,
        X_query: Any = None,
        query_labels: Array | None = None,
        metric: str = "l2",
        recall: bool = True,
        n_queries: int = 300,
        device: str | None = None,
        random_state: int = 0,
    ) -> None:
        self.metric: str = check_choice(metric, name="metric", choices=METRICS)
        self.X: Any = prepared(X, metric)
        self.X_query: Any = None if X_query is None else prepared(X_query, metric)
        self._rows = as_rows(self.X, device=device)
        self._rng = np.random.default_rng(random_state)
        self.n: int = self._rows.shape[0]
        self.query_rows: np.ndarray = np.zeros(0, dtype=np.int64)
        if X_query is None:
            if self.n < 2:
                raise ValueError(f"X has {self.n} row; to take queries out of it, at least 2 are needed")
            wanted = min(check_integer(n_queries, name="n_queries", minimum=1), max(1, self.n // 5))
            self.query_rows = np.sort(self._rng.choice(self.n, size=wanted, replace=False))
        self.database_rows: np.ndarray = np.delete(np.arange(self.n), self.query_rows)
        self.labels: tuple[np.ndarray, np.ndarray] | None = self._check_labels(labels, query_labels)
        self.recall = recall
        if not recall and self.labels is None:
            raise ValueError("recall=False without labels leaves nothing to measure; pass labels, or recall=True")

    @property
    def n_queries(self) -> int:
        """Number of queries."""
        return len(self.query_rows) if self.X_query is None else int(self.X_query.shape[0])

    @property
    def norm_spread(self) -> float:
        """Standard deviation over mean of the queries' distances from their mean: where it is large, factors help."""
        X_query = self._neighbors[1]
        norms = np.linalg.norm(X_query - X_query.mean(axis=0), axis=1)
        return float(norms.std() / norms.mean()) if norms.mean() > 0 else 0.0

    def codes(self, encoder: Any) -> tuple[np.ndarray, np.ndarray]:
        """Codes of the queries and of the database, on the host."""
        codes = to_host(encoder.encode(self.X))
        if self.X_query is not None:
            return to_host(encoder.encode(self.X_query)), codes
        return codes[self.query_rows], codes[self.database_rows]

    def measure(
        self,
        encoder: Any,
        *,
        k: int = 1000,
        radius: int = 2,
        ap: str = "standard",
        ties: str = "database",
        distance: str = "hamming",
    ) -> dict[str, Any]:
        """Measure how good the answers of an encoder's codes are.

        Parameters
        ----------
        encoder : fitted encoder
        k, radius, ap, ties, distance
            As in `scq_gpu.evaluate`; all but the last only for answers that go by labels.

        Returns
        -------
        dict
            The figures of `scq_gpu.metrics.evaluation.Evaluation` that apply, by name.
        """
        queries, database = self.codes(encoder)
        figures: dict[str, Any] = self._recalls(encoder, queries, database, distance) if self.recall else {}
        if self.labels is None:
            return figures
        pair = (queries, database, *self.labels)
        return figures | {
            "mean_average_precision": mean_average_precision(*pair, ap=ap, ties=ties, distance=distance),
            "precision_at_radius": precision_at_radius(*pair, radius=radius),
            "radius": radius,
            "precision_at_k": precision_at_k(*pair, k=k, ties=ties, distance=distance),
            "k": k,
        }

    def _recalls(self, encoder: Any, queries: np.ndarray, database: np.ndarray, distance: str) -> dict[str, float]:
        """How many of the nearest rows are found by codes, by float queries, and after rescoring."""
        chosen, X_query, wanted = self._neighbors
        index = HammingIndex(database, encoder.n_bits, distance=distance)
        m = min(max(_RESCORED) * _NEIGHBORS, len(database))
        found = to_host(index.search(queries[chosen], m)[1])
        figures = {f"recall_{_NEIGHBORS}_at_{depth}": _recall(found, wanted, depth) for depth in _DEPTHS}
        wants = ("project", "components_", *(["mean_"] if self.metric == "ip" else []))
        if all(hasattr(encoder, name) for name in wants):
            found = to_host(index.search_asymmetric(encoder, X_query, m, metric=self.metric)[1])
            figures |= {f"asymmetric_{_NEIGHBORS}_at_{depth}": _recall(found, wanted, depth) for depth in _DEPTHS}
        rows, numbers = np.unique(found, return_inverse=True)
        floats = take_rows(self._rows, self.database_rows[rows])
        for times in _RESCORED:
            candidates = numbers.reshape(found.shape)[:, : times * _NEIGHBORS]
            kept = min(_NEIGHBORS, candidates.shape[1])
            _, best = rescore(X_query, floats, candidates, k=kept, metric=self.metric)
            figures[f"rescored_{times}x"] = _recall(rows[best], wanted, _NEIGHBORS)
        return figures

    @functools.cached_property
    def _neighbors(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Which queries are looked at, their floats, and their nearest rows, numbered within the database."""
        chosen = np.arange(self.n_queries)
        if len(chosen) > _RECALL_QUERIES:
            chosen = np.sort(self._rng.choice(len(chosen), _RECALL_QUERIES, replace=False))
        if self.X_query is None:
            X_query = take_rows(self._rows, self.query_rows[chosen])
        else:
            X_query = take_rows(as_rows(self.X_query, device=None), chosen)
        k = min(_NEIGHBORS, len(self.database_rows))
        ids = nearest_rows(X_query, self._rows, k=k, metric=self.metric, leave_out=self.query_rows)
        return chosen, X_query, np.searchsorted(self.database_rows, ids)

    @on_device_of_arguments
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


def _recall(found: np.ndarray, wanted: np.ndarray, depth: int) -> float:
    return recall_at_k(found, wanted, k=min(depth, found.shape[1]))
