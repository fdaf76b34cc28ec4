"""scq_gpu: learned binary codes for similarity search."""

from scq_gpu._version import __version__
from scq_gpu.codes import pack, unpack
from scq_gpu.encoders import OgE, OnE
from scq_gpu.io import ModelFileError
from scq_gpu.linear import load

__all__ = ["ModelFileError", "OgE", "OnE", "__version__", "load", "pack", "unpack"]
