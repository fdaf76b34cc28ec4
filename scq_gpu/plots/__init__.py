"""Pictures of encoders and codes, drawn with matplotlib: data in, axes out.

Every function draws on the axes it is given, or on new ones, and returns them. Colors can be told apart by
color-blind readers, and lines differ in marker or dash as well. Ink and colors follow the background of the axes: on
a dark one (``with plots.theme(dark=True):``, or matplotlib's own ``dark_background``) they are light.
"""

from scq_gpu.plots._codes import bit_balance, bit_correlation, distance_histograms
from scq_gpu.plots._curves import bits_curve, loss_curve, precision_recall, scale_path
from scq_gpu.plots._gallery import gallery
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
