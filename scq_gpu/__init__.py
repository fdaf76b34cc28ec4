"""scq_gpu: learned binary codes for similarity search."""

from scq_gpu import io, metrics, plots
from scq_gpu._version import __version__
from scq_gpu.asymmetric import asymmetric_search, rescore
from scq_gpu.baselines import BA, ITQ, KMH, LSH, PCAH, PCARR, SH, SpH
from scq_gpu.code_files import encode_file
from scq_gpu.codes import pack, unpack
from scq_gpu.encoders import OgE, OnE
from scq_gpu.estimator import load
from scq_gpu.evaluation import evaluate
from scq_gpu.interchange import convert, from_faiss
from scq_gpu.io import ModelFileError
from scq_gpu.memory import estimate_memory
from scq_gpu.search import HammingIndex
from scq_gpu.sweeps import scale_path, sweep_bits

__all__ = [
    "BA",
    "ITQ",
    "KMH",
    "LSH",
    "PCAH",
    "PCARR",
    "SH",
    "HammingIndex",
    "ModelFileError",
    "OgE",
    "OnE",
    "SpH",
    "__version__",
    "asymmetric_search",
    "convert",
    "encode_file",
    "estimate_memory",
    "evaluate",
    "from_faiss",
    "io",
    "load",
    "metrics",
    "pack",
    "plots",
    "rescore",
    "scale_path",
    "sweep_bits",
    "unpack",
]
