"""Codes and encoders to and from other software."""

from scq_gpu.interchange.formats import convert
from scq_gpu.interchange.imported import ImportedEncoder, from_faiss

__all__ = ["ImportedEncoder", "convert", "from_faiss"]
