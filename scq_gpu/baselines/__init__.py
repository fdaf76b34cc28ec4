"""Methods of others behind the interface of the encoders: what to compare OnE and OgE with."""

from scq_gpu.baselines.ba import BA
from scq_gpu.baselines.itq import ITQ
from scq_gpu.baselines.kmh import KMH
from scq_gpu.baselines.lsh import LSH
from scq_gpu.baselines.pcah import PCAH
from scq_gpu.baselines.pcarr import PCARR
from scq_gpu.baselines.sh import SH
from scq_gpu.baselines.sph import SpH

__all__ = ["BA", "ITQ", "KMH", "LSH", "PCAH", "PCARR", "SH", "SpH"]
