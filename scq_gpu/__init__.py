"""scq_gpu: learned binary codes for similarity search."""

from typing import TYPE_CHECKING

from scq_gpu import _moved, io, metrics, plots
from scq_gpu._core.codes import pack, unpack
from scq_gpu._version import __version__
from scq_gpu.encoders.base import load
from scq_gpu.encoders.baselines import BA, ITQ, KMH, LSH, PCAH, PCARR, SH, SpH
from scq_gpu.encoders.deep import BGAN, DH, UHBDNN
from scq_gpu.encoders.imported import from_faiss
from scq_gpu.encoders.memory import estimate_memory
from scq_gpu.encoders.scq import OgE, OnE
from scq_gpu.encoders.sweeps import scale_path, sweep_bits
from scq_gpu.encoders.vector_index import VectorIndex
from scq_gpu.io.code_files import encode_file
from scq_gpu.io.formats import convert
from scq_gpu.io.models import ModelFileError
from scq_gpu.metrics.evaluation import evaluate
from scq_gpu.search.asymmetric import asymmetric_search
from scq_gpu.search.index import HammingIndex
from scq_gpu.search.rescoring import rescore

__all__ = [
    "BA",
    "BGAN",
    "DH",
    "ITQ",
    "KMH",
    "LSH",
    "PCAH",
    "PCARR",
    "SH",
    "UHBDNN",
    "HammingIndex",
    "ModelFileError",
    "OgE",
    "OnE",
    "SpH",
    "VectorIndex",
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

if TYPE_CHECKING:
    from scq_gpu.encoders import baselines as baselines
    from scq_gpu.encoders import memory as memory
    from scq_gpu.encoders import scale as scale
    from scq_gpu.encoders import sweeps as sweeps
    from scq_gpu.metrics import evaluation as evaluation
    from scq_gpu.plots import report as report
    from scq_gpu.search import asymmetric as asymmetric
else:
    __getattr__ = _moved.find
