"""Deep peers of the paper: networks that are trained to give codes."""

from scq_gpu.encoders.deep.bgan import BGAN
from scq_gpu.encoders.deep.dh import DH
from scq_gpu.encoders.deep.uhbdnn import UHBDNN

__all__ = ["BGAN", "DH", "UHBDNN"]
