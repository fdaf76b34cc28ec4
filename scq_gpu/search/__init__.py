"""Search over codes: `HammingIndex`, float queries against codes, and rescoring with the original floats."""

from scq_gpu.search.index import HammingIndex
from scq_gpu.search.rescoring import rescore

__all__ = ["HammingIndex", "rescore"]
