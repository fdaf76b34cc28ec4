"""Evaluation of whole encoders, true neighbors of queries, and the paper's two metrics of training.

Codes should find the nearest rows of each query by the floats. With labels, rows with the label of the query also count
as right.
"""

import functools
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from scq_gpu._core.arrays import (
    Array,
    block_bytes,
    device_of,
    from_host,
    is_array,
    namespace,
    on_device_of,
    on_device_of_arguments,
    row_slices,
    small_dtype,
    to_host,
)
from scq_gpu._core.validate import METRICS, check_array, check_choice, check_integer, check_labels, check_rows
from scq_gpu.kernels.hamming import Nearest
from scq_gpu.metrics.codes import mean_average_precision, precision_at_k, precision_at_radius, recall_at_k
from scq_gpu.rows.blocks import Rows, as_rows
from scq_gpu.rows.changed import normalize_rows
from scq_gpu.rows.projected import take_rows
from scq_gpu.rows.sources.base import RowSource
from scq_gpu.search.index import HammingIndex
from scq_gpu.search.rescoring import rescore

_NEIGHBORS = 10  # nearest rows to find
_DEPTHS = 10, 100  # numbers of first answers that count
_RESCORED = 4, 16  # candidates per answer that are re-ranked by their floats
_RECALL_QUERIES = 1000  # maximum number of queries whose neighbors are computed


@dataclass(frozen=True)
class Evaluation:
    """Metrics of an encoder, as fractions (the paper prints retrieval metrics in percent).

    Attributes
    ----------
    n_bits : int
    recall_10_at_10, recall_10_at_100 : float
        Share of the 10 nearest rows by the floats among the first 10 and 100 answers by Hamming distance; None for
        `OPQ`, whose codes have none.
    asymmetric_10_at_10, asymmetric_10_at_100 : float
        The same for float queries against the codes; None for an encoder that is neither a linear map nor `OPQ`.
    rescored_4x, rescored_16x : float
        The same for 10 answers, chosen by their floats from 40 and 160 candidates.
    mean_average_precision, precision_at_radius, precision_at_k : float
        By labels; None without them. See the functions of these names in `scq_gpu.metrics`.
    radius, k : int
        Arguments of the call.
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
        """Return the metrics that were computed, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def evaluate(
    encoder: Any,
    X_query: Any,
    X_database: Any,
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
) -> Evaluation:
    """Measure a fitted encoder by the nearest rows of queries in a database and, if given, by labels.

    Parameters
    ----------
    encoder : fitted encoder
        With ``encode`` and ``n_bits``; ``project`` and ``components_`` where it is a linear map.
    X_query : array (q, d)
    X_database : array (n, d)
    query_labels, database_labels, ap, ties, distance
        As for `scq_gpu.metrics.mean_average_precision`; labels are optional, and rejected for `OPQ`, since metrics by
        labels rank by Hamming distance. The paper's tables use ``ap="trapezoid"``.
        ``distance="spherical"`` is meant for `SpH`.
    radius : int, default 2
    k : int, default 1000
        The paper's prec@1k.
    metric : {"l2", "cosine", "ip"}, default "l2"
        Metric that defines the nearest rows. For the cosine, rows and queries are normalized before they are encoded.
    recall : bool, default True
        Compute the nearest rows, of at most 1,000 queries, which takes a pass over the database. Without labels it must
        be True.

    Examples
    --------
    >>> import numpy as np, scq_gpu as scq
    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(300) % 3
    >>> X = rng.standard_normal((300, 8)) + 6 * np.eye(8)[labels]
    >>> encoder = scq.OgE(n_bits=4, n_components=None, random_state=0).fit(X[:250])
    >>> found = scq.evaluate(encoder, X[250:], X[:250], labels[250:], labels[:250])
    >>> found.mean_average_precision > 0.6
    True
    """
    task = RetrievalTask(
        X_database, database_labels, X_query=X_query, query_labels=query_labels, metric=metric, recall=recall
    )
    values = task.measure(encoder, k=k, radius=radius, ap=ap, ties=ties, distance=distance)
    components = getattr(encoder, "components_", None)
    if components is not None:
        values["quantization_loss"] = quantization_loss(encoder.project(task.X))
        if components.shape[0] <= components.shape[1]:
            values["retained_variance"] = retained_variance(task.X, components)
    return Evaluation(n_bits=encoder.n_bits, **values)


class RetrievalTask:
    """Queries and a database ``X`` with known right answers, on which encoders are measured.

    Rows, labels, ``metric`` and ``recall`` are those of `evaluate`. Without ``X_query``, ``n_queries`` rows, at most a
    fifth of them, are drawn at random and taken out of the database. ``device`` computes the nearest rows; None
    follows X.
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
        self.X: Any = _prepared(X, metric)
        self.X_query: Any = None if X_query is None else _prepared(X_query, metric)
        self._rows = as_rows(self.X, device=device)
        self._rng = np.random.default_rng(random_state)
        self.n: int = self._rows.shape[0]
        self.query_rows: np.ndarray = np.zeros(0, dtype=np.int64)
        if X_query is None:
            if self.n < 2:
                raise ValueError(f"X has {self.n} row; to take queries out of it, at least 2 are needed")
            count = min(check_integer(n_queries, name="n_queries", minimum=1), max(1, self.n // 5))
            self.query_rows = np.sort(self._rng.choice(self.n, size=count, replace=False))
        self.database_rows: np.ndarray = np.delete(np.arange(self.n), self.query_rows)
        self.labels: tuple[np.ndarray, np.ndarray] | None = self._check_labels(labels, query_labels)
        self.recall = recall
        if not recall and self.labels is None:
            raise ValueError("recall=False without labels leaves nothing to measure; pass labels, or recall=True")

    @property
    def n_queries(self) -> int:
        """Return the number of queries."""
        return len(self.query_rows) if self.X_query is None else int(self.X_query.shape[0])

    def codes(self, encoder: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the codes of the queries and of the database, on the host."""
        if _names_cells(encoder):
            raise TypeError(
                f"codes of {type(encoder).__name__} have no Hamming distance, by which encoders are measured here; "
                "measure recall with float queries alone: evaluate and sweep_bits do so without labels"
            )
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
        """Return the metrics of `Evaluation` that apply, by name; arguments as in `evaluate`.

        All but ``distance`` affect the metrics by labels only.
        """
        if _names_cells(encoder) and self.labels is None and self.recall:
            codes = to_host(encoder.encode(self.X))
            queries, database = None, codes if self.X_query is not None else codes[self.database_rows]
        else:
            queries, database = self.codes(encoder)
        values: dict[str, Any] = self._recalls(encoder, queries, database, distance) if self.recall else {}
        if self.labels is None:
            return values
        pair = (queries, database, *self.labels)
        return values | {
            "mean_average_precision": mean_average_precision(*pair, ap=ap, ties=ties, distance=distance),
            "precision_at_radius": precision_at_radius(*pair, radius=radius),
            "radius": radius,
            "precision_at_k": precision_at_k(*pair, k=k, ties=ties, distance=distance),
            "k": k,
        }

    def _recalls(
        self, encoder: Any, queries: np.ndarray | None, database: np.ndarray, distance: str
    ) -> dict[str, float]:
        """Compute the share of nearest rows found by codes, if queries have any, by floats, and after rescoring."""
        chosen, X_query, nearest = self._neighbors
        index = HammingIndex(database, encoder.n_bits, distance=distance)
        m = min(max(_RESCORED) * _NEIGHBORS, len(database))
        values = {}
        if queries is not None:
            found = to_host(index.search(queries[chosen], m)[1])
            values = {f"recall_{_NEIGHBORS}_at_{depth}": _recall(found, nearest, depth) for depth in _DEPTHS}
        # Float queries need a linear map, and inner products its mean.
        needed = ("project", "components_", *(["mean_"] if self.metric == "ip" else []))
        if queries is None or all(hasattr(encoder, name) for name in needed):
            found = to_host(index.search_asymmetric(encoder, X_query, m, metric=self.metric)[1])
            values |= {f"asymmetric_{_NEIGHBORS}_at_{depth}": _recall(found, nearest, depth) for depth in _DEPTHS}
        rows, numbers = np.unique(found, return_inverse=True)
        floats = _read_rows(self._rows, self.database_rows[rows])
        for times in _RESCORED:
            candidates = numbers.reshape(found.shape)[:, : times * _NEIGHBORS]
            kept = min(_NEIGHBORS, candidates.shape[1])
            _, best = rescore(X_query, floats, candidates, k=kept, metric=self.metric)
            values[f"rescored_{times}x"] = _recall(rows[best], nearest, _NEIGHBORS)
        return values

    @functools.cached_property
    def _neighbors(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the numbers of the queries used, their floats, and their nearest rows within the database."""
        chosen = np.arange(self.n_queries)
        if len(chosen) > _RECALL_QUERIES:
            chosen = np.sort(self._rng.choice(len(chosen), _RECALL_QUERIES, replace=False))
        own = self.X_query is None
        rows = self._rows if own else as_rows(self.X_query, device=None)
        X_query = _read_rows(rows, self.query_rows[chosen] if own else chosen)
        k = min(_NEIGHBORS, len(self.database_rows))
        ids = _nearest_rows(X_query, self._rows, k=k, metric=self.metric, leave_out=self.query_rows)
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


def _names_cells(encoder: Any) -> bool:
    """Return whether codes name cells, as those of OPQ, and are searched with float queries alone."""
    return hasattr(encoder, "query_tables")


def _recall(found: np.ndarray, nearest: np.ndarray, depth: int) -> float:
    return recall_at_k(found, nearest, k=min(depth, found.shape[1]))


@on_device_of_arguments
def quantization_loss(projections: Array) -> float:
    """Compute the mean squared distance of projections to their signs: ``||sign(P) - P||^2 / (n n_bits)``.

    Parameters
    ----------
    projections : array (n, n_bits)
        Result of ``encoder.project``; the sign of 0 is +1.

    Returns
    -------
    float
        The paper's quantization loss per bit.

    Examples
    --------
    >>> import numpy as np, scq_gpu as scq
    >>> scq.metrics.quantization_loss(np.array([[1.0, -0.5], [0.0, -1.0]]))
    0.3125
    """
    P = check_array(projections, name="projections", min_ndim=2)
    xp = namespace(P)
    if not xp.isdtype(P.dtype, "real floating") or math.prod(P.shape) == 0:
        raise ValueError(
            f"projections have shape {tuple(P.shape)} and dtype {P.dtype}; floats (n, n_bits) are expected"
        )
    sum_dtype = small_dtype(xp=xp, device=device_of(P))
    parts = row_slices(P.shape[0], max(1, block_bytes(P) // (2 * P.shape[1])))
    # |sign(p) - p| is | |p| - 1 | for either sign, and 1 for p = 0.
    sums = [xp.sum((xp.abs(xp.astype(P[part, :], sum_dtype)) - 1) ** 2) for part in parts]
    return math.fsum(map(float, sums)) / int(math.prod(P.shape))


@on_device_of_arguments
def retained_variance(X: Array, components: Array) -> float:
    """Compute the variance of X in the span of the components, relative to as many PCA components.

    Parameters
    ----------
    X : rows (n, d)
        Anything that ``fit`` takes.
    components : array (n_bits, d)
        ``encoder.components_``; only their span matters, not their lengths.

    Returns
    -------
    float
        1 for PCA itself; the paper's percentage of retained variance, as a fraction.

    Examples
    --------
    >>> import numpy as np, scq_gpu as scq
    >>> X = np.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> scq.metrics.retained_variance(X, np.array([[0.0, 3.0]]))
    0.25
    """
    rows = as_rows(X, device=None, min_rows=2)
    d = rows.shape[1]
    W = to_host(check_array(components, name="components", min_ndim=2)).astype(np.float64)
    if W.ndim != 2 or W.shape[1] != d or not 1 <= W.shape[0] <= d:
        raise ValueError(f"components have shape {W.shape}; (n_bits, n_features) with n_features={d} is expected")
    C = to_host(rows.moments().scatter).astype(np.float64)
    top = np.linalg.eigvalsh(C)[-W.shape[0] :].sum()
    if top <= 0:
        raise ValueError("X does not vary: all its rows are equal, and there is no variance to retain")
    U, s, _ = np.linalg.svd(W.T, full_matrices=False)
    span = U[:, s > s[0] * max(W.shape) * np.finfo(np.float64).eps]
    return float(np.sum(span * (C @ span)) / top)


def exact_neighbors(
    X_query: Any, X_database: Any, *, k: int = 10, metric: str = "l2", device: str | None = None
) -> np.ndarray:
    """Find the rows nearest to each query by the floats, exactly, in one pass over the database.

    Parameters
    ----------
    X_query : array (q, d)
    X_database : array (n, d), or result of `scq_gpu.io.open_rows`
    k : int, default 10
    metric : {"l2", "cosine", "ip"}, default "l2"
        Least Euclidean distance, largest cosine, or largest inner product.
    device : str, optional
        Device to work on; None follows X_database.

    Returns
    -------
    numpy.ndarray (q, k) of int64
        Row numbers, nearest first; the lowest first inside a tie.

    Examples
    --------
    >>> import numpy as np, scq_gpu as scq
    >>> scq.metrics.exact_neighbors(np.array([[0.0]]), np.array([[3.0], [1.0], [2.0]]), k=2)
    array([[1, 2]])
    """
    check_choice(metric, name="metric", choices=METRICS)
    rows = as_rows(_prepared(X_database, metric), device=device)
    k = check_integer(k, name="k", minimum=1)
    if k > rows.shape[0]:
        raise ValueError(f"k={k} exceeds the {rows.shape[0]} rows there are; lower k")
    return _nearest_rows(X_query, rows, k=k, metric=metric)


def _prepared(X: Any, metric: str) -> Any:
    """Prepare rows for a metric: normalize them for the cosine."""
    if metric != "cosine":
        return X
    return normalize_rows(X if isinstance(X, RowSource) else check_rows(X))


def _nearest_rows(X_query: Any, rows: Rows, *, k: int, metric: str, leave_out: Any = ()) -> np.ndarray:
    """Return the numbers (q, k) of the rows nearest to each query, without those in ``leave_out``.

    For the cosine the rows must be `_prepared`: the least Euclidean distance is then the largest cosine.
    """
    xp = rows.xp
    queries = (to_host(X_query) if is_array(X_query) else np.asarray(X_query)).astype(np.float64)
    if queries.ndim != 2 or queries.shape[1] != rows.shape[1]:
        one = "; a single query is X_query.reshape(1, -1)" if queries.ndim == 1 else ""
        raise ValueError(f"X_query has shape {queries.shape}; (queries, {rows.shape[1]}) is expected, as X has{one}")
    if not len(queries):
        return np.empty((0, k), dtype=np.int64)
    if metric == "cosine":
        queries = np.asarray(normalize_rows(queries, label="X_query"))
    # A shift does not change distances, and without large offsets no digits are lost.
    center = np.zeros(queries.shape[1]) if metric == "ip" else queries.mean(axis=0)
    with on_device_of(rows.place):
        Q, mean = (xp.astype(from_host(x, xp=xp, device=rows.device), rows.dtype) for x in (queries - center, center))
        hidden = np.zeros(rows.shape[0], dtype=bool)
        hidden[np.asarray(leave_out, dtype=np.int64)] = True
        nearest, first = Nearest(k, xp=xp), 0
        for block in rows.blocks():
            last = first + block.shape[0]
            centered = block - mean
            d = -2 * (Q @ xp.matrix_transpose(centered))
            if metric != "ip":
                d = d + xp.sum(centered * centered, axis=1)
            if not bool(xp.isfinite(xp.sum(d))):
                raise rows.nonfinite("distances from X_query")
            out = from_host(hidden[first:last], xp=xp, device=device_of(d))
            nearest.offer(xp.where(out[None, :], xp.asarray(xp.inf, dtype=d.dtype, device=device_of(d)), d), first)
            first = last
        return to_host(nearest.best(dtype=rows.dtype, padding=np.inf)[1])


def _read_rows(rows: Rows, numbers: np.ndarray) -> np.ndarray:
    """Read rows of ascending numbers in one pass, to the host."""
    with on_device_of(rows.place):
        return np.concatenate([to_host(X) for X in take_rows(rows.blocks(), numbers, xp=rows.xp)])
