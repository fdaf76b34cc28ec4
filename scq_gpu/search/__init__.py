"""Codes near a query: `HammingIndex`, asymmetric search with float queries, rescoring with the original floats."""

from scq_gpu.search.asymmetric import asymmetric_search, rescore
from scq_gpu.search.index import HammingIndex

__all__ = ["HammingIndex", "asymmetric_search", "rescore"]
