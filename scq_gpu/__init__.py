"""scq_gpu: learned binary codes for similarity search."""

from scq_gpu import metrics
from scq_gpu._version import __version__
from scq_gpu.asymmetric import asymmetric_search, rescore
from scq_gpu.codes import pack, unpack
from scq_gpu.encoders import OgE, OnE
from scq_gpu.evaluation import evaluate
from scq_gpu.io import ModelFileError
from scq_gpu.linear import load
from scq_gpu.search import HammingIndex

__all__ = [
    "HammingIndex",
    "ModelFileError",
    "OgE",
    "OnE",
    "__version__",
    "asymmetric_search",
    "evaluate",
    "load",
    "metrics",
    "pack",
    "rescore",
    "unpack",
]
