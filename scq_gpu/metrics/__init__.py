"""Quality metrics: of rankings by labels, of found ids, of training, and of whole encoders.

`mean_average_precision` explains the arguments that metrics by labels share. A query with no relevant code, or with
nothing within the radius, counts as 0. Metrics within a radius use the Hamming distance.
"""

from scq_gpu.metrics.codes import (
    average_precision,
    label_recall_at_k,
    mean_average_precision,
    precision_at_k,
    precision_at_radius,
    precision_recall_curve,
    ranked_average_precision,
    ranked_precision_at_k,
    recall_at_k,
    recall_at_radius,
)
from scq_gpu.metrics.evaluation import exact_neighbors, quantization_loss, retained_variance

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
