"""Loops over rows and codes.

Each operation has one module that decides which engine runs and holds the engine in array operations, for any namespace
and device: `encode`, `search`, `asymmetric`. Compiled loops for NumPy arrays (extra ``cpu``: llvmlite to encode, numba
to search) stand beside it, and CUDA kernels in `cuda`. All engines give the same answers.
"""

from scq_gpu.kernels.encode import encode_linear

__all__ = ["encode_linear"]
