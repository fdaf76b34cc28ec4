"""scq_gpu: learned binary codes for similarity search."""

from scq_gpu import io, metrics, plots
from scq_gpu._core.codes import pack, unpack
from scq_gpu._version import __version__
from scq_gpu.encoders.base import load
from scq_gpu.encoders.baselines.ba import BA
from scq_gpu.encoders.baselines.base import ITQ, LSH, PCAH, PCARR
from scq_gpu.encoders.baselines.kmh import KMH
from scq_gpu.encoders.baselines.nonlinear import SH, SpH
from scq_gpu.encoders.imported import from_faiss
from scq_gpu.encoders.opq import OPQ
from scq_gpu.encoders.scq import OgE, OnE
from scq_gpu.encoders.sweeps import scale_path, sweep_bits
from scq_gpu.index.cluster import ClusterIndex
from scq_gpu.index.vector_index import VectorIndex
from scq_gpu.io.code_files import encode_file
from scq_gpu.io.formats import convert
from scq_gpu.io.models import ModelFileError
from scq_gpu.metrics.evaluation import evaluate
from scq_gpu.plots.report import write_report
from scq_gpu.search.index import HammingIndex
from scq_gpu.search.rescoring import rescore

__all__ = [
    "BA",
    "ITQ",
    "KMH",
    "LSH",
    "OPQ",
    "PCAH",
    "PCARR",
    "SH",
    "ClusterIndex",
    "HammingIndex",
    "ModelFileError",
    "OgE",
    "OnE",
    "SpH",
    "VectorIndex",
    "__version__",
    "convert",
    "encode_file",
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
    "write_report",
]
