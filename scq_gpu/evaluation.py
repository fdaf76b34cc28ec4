"""All of the paper's figures for one encoder, in one pass over the pairs of codes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from scq_gpu import _ranking
from scq_gpu._validate import (
    AP_RULES,
    DISTANCES,
    TIE_RULES,
    check_choice,
    check_code_pair,
    check_integer,
    check_labels,
)
from scq_gpu._xp import Array
from scq_gpu.metrics import (
    average_precision_of,
    mean_average_precision,
    precision_at_k,
    precision_within,
    quantization_loss,
    retained_variance,
    top_precision_of,
)

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True)
class Evaluation:
    """The paper's figures, as fractions (the paper prints retrieval figures in percent).

    Attributes
    ----------
    mean_average_precision : float
        mAP.
    precision_at_radius : float
        prec@r2, 0 for a query with nothing inside; by the Hamming distance.
    precision_at_k : float
        prec@1k.
    quantization_loss : float
        Per bit, on the training rows; NaN for an encoder that is not a linear map.
    retained_variance : float
        Of the training rows, relative to as many PCA components; NaN for an encoder that is not a linear map, or has
        more bits than there are features.
    n_bits : int
    """

    mean_average_precision: float
    precision_at_radius: float
    precision_at_k: float
    quantization_loss: float
    retained_variance: float
    n_bits: int

    def as_dict(self) -> dict[str, float]:
        """The figures by name, ready for a row of a table."""
        return asdict(self)


def evaluate(
    encoder: Any,
    X_train: Array,
    y_train: Array,
    X_query: Array,
    y_query: Array,
    *,
    radius: int = 2,
    k: int = 1000,
    ap: str = "trapezoid",
    ties: str = "database",
    distance: str = "hamming",
) -> Evaluation:
    """Figures of a fitted encoder by the paper's protocol: queries searched among the training rows, labels decide.

    Parameters
    ----------
    encoder : fitted encoder
        With ``encode`` and ``n_bits``; ``project`` and ``components_`` where it is a linear map.
    X_train : array (n, d)
    y_train : array (n,) or (n, classes)
        Integer labels, or 0/1 in one column a class.
    X_query : array (q, d)
    y_query : array (q,) or (q, classes)
    radius : int, default 2
    k : int, default 1000
    ap : {"trapezoid", "standard"}
        The authors' rule by default; see `scq_gpu.metrics.mean_average_precision`.
    ties : {"database", "average"}
        Order inside a tie: the authors' rule by default.
    distance : {"hamming", "spherical"}
        What codes are ranked by; "spherical" is meant for `SpH`.

    Returns
    -------
    Evaluation

    Examples
    --------
    >>> import numpy as np
    >>> import scq_gpu as scq
    >>> from scq_gpu.evaluation import evaluate
    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(300) % 3
    >>> X = rng.standard_normal((300, 8)) + 6 * np.eye(8)[labels]
    >>> encoder = scq.OgE(n_bits=4, n_components=None, random_state=0).fit(X[:250])
    >>> figures = evaluate(encoder, X[:250], labels[:250], X[250:], labels[250:])
    >>> figures.mean_average_precision > 0.6
    True
    """
    check_choice(ap, name="ap", choices=AP_RULES)
    check_choice(ties, name="ties", choices=TIE_RULES)
    check_choice(distance, name="distance", choices=DISTANCES)
    radius = check_integer(radius, name="radius", minimum=0)
    k = check_integer(k, name="k", minimum=1)
    queries, database = check_code_pair(encoder.encode(X_query), encoder.encode(X_train))
    labels = check_labels(y_query, y_train, n_queries=queries.shape[0], n=database.shape[0])
    ordered = ties == "database" and distance == "hamming"
    found = _ranking.scan(queries, database, *labels, ap=ap if ordered else None, k=k if ordered else 0)
    if distance == "hamming":
        mAP = float(average_precision_of(found, ap=ap, ties=ties, at=None).mean())
        top = top_precision_of(found, k=k, ties=ties)
    else:
        mAP = mean_average_precision(queries, database, *labels, ap=ap, ties=ties, distance=distance)
        top = precision_at_k(queries, database, *labels, k=k, ties=ties, distance=distance)
    components = getattr(encoder, "components_", None)
    spans = components is not None and components.shape[0] <= components.shape[1]
    return Evaluation(
        mean_average_precision=mAP,
        precision_at_radius=precision_within(found, radius),
        precision_at_k=top,
        quantization_loss=float("nan") if components is None else quantization_loss(encoder.project(X_train)),
        retained_variance=retained_variance(X_train, components) if spans else float("nan"),
        n_bits=encoder.n_bits,
    )
