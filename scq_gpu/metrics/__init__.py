"""How good codes are: figures of rankings by labels, of found ids, of training, and evaluation of whole encoders.

A database code is relevant to a query if it has the same label or, with 2-D labels, a label in common. Codes are
ranked by Hamming distance, and Hamming distances tie: ``ties`` says what stands inside a tie. ``"database"`` takes the
order of the database (the paper authors' evaluation code does); ``"average"`` takes the expectation over all orders, so
that the figure does not depend on how the database happens to be shuffled. A query with no relevant code, or with
nothing within the radius, counts as 0.

Figures of a ranking take ``distance="spherical"`` too: the spherical Hamming distance ``|b1 xor b2| / |b1 and b2|``
that was made for `SpH`. Figures within a radius are by the Hamming distance.
"""

from scq_gpu.metrics.codes import (
    average_precision,
    label_recall_at_k,
    mean_average_precision,
    precision_at_k,
    precision_at_radius,
    precision_recall_curve,
    recall_at_radius,
)
from scq_gpu.metrics.ids import ranked_average_precision, ranked_precision_at_k, recall_at_k
from scq_gpu.metrics.neighbors import exact_neighbors
from scq_gpu.metrics.training import quantization_loss, retained_variance

__all__ = [
    "average_precision",
    "exact_neighbors",
    "label_recall_at_k",
    "mean_average_precision",
    "precision_at_k",
    "precision_at_radius",
    "precision_recall_curve",
    "quantization_loss",
    "ranked_average_precision",
    "ranked_precision_at_k",
    "recall_at_k",
    "recall_at_radius",
    "retained_variance",
]
