"""Loops over rows and codes, in array operations, compiled for the CPU (llvmlite, numba) or as CUDA kernels.

`scq_gpu.kernels.engines` decides which of them runs; all give the same answers.
"""

from scq_gpu.kernels.encode import encode_linear

__all__ = ["encode_linear"]
