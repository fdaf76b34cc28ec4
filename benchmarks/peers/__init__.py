"""Deep peers of the paper, for its tables: encoders whose bits are the signs of a network.

They are fitted, saved and loaded like the encoders of `scq_gpu`; `scq_gpu.load` knows them once this package is
imported. BGAN needs torch (2.2 or later), which no extra of the package installs: ``pip install torch``.
"""

from peers.bgan import BGAN
from peers.dh import DH
from peers.uhbdnn import UHBDNN

__all__ = ["BGAN", "DH", "UHBDNN"]
