"""What you fit: OnE and OgE, the baselines, sweeps over many fits, and encoders learned elsewhere."""

from scq_gpu.encoders.scq import OgE, OnE

__all__ = ["OgE", "OnE"]
