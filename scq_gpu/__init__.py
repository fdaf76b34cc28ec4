"""scq_gpu: learned binary codes for similarity search."""

from scq_gpu._version import __version__
from scq_gpu.codes import pack, unpack

__all__ = ["__version__", "pack", "unpack"]
