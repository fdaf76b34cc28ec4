"""Methods of others behind the interface of the encoders: what to compare OnE and OgE with."""

from scq_gpu.encoders.baselines.ba import BA
from scq_gpu.encoders.baselines.kmh import KMH
from scq_gpu.encoders.baselines.linear import ITQ, LSH, PCAH, PCARR
from scq_gpu.encoders.baselines.nonlinear import SH, SpH

__all__ = ["BA", "ITQ", "KMH", "LSH", "PCAH", "PCARR", "SH", "SpH"]
