"""Pictures of encoders and codes, drawn with matplotlib.

Every function draws on the axes it is given, or on new ones, and returns them. Color-blind readers can distinguish the
colors, and lines also differ in marker and dash. Text and colors are light on axes with a dark background
(``with plots.theme(dark=True):``, or matplotlib's own ``dark_background``).
"""

from scq_gpu.plots._figures import (
    bit_balance,
    bit_correlation,
    bits_curve,
    distance_histograms,
    gallery,
    loss_curve,
    precision_recall,
    scale_path,
)
from scq_gpu.plots._style import theme

__all__ = [
    "bit_balance",
    "bit_correlation",
    "bits_curve",
    "distance_histograms",
    "gallery",
    "loss_curve",
    "precision_recall",
    "scale_path",
    "theme",
]
