"""Loops over rows and codes.

Each operation has one module that decides which engine runs and holds the engine in array operations, for any namespace
and device: `encode`, `search`, `asymmetric`. Where an array lives decides: the native core (`native`, C++) takes NumPy
arrays, CUDA kernels (`cuda`) take arrays on a GPU, array operations take others. All engines give the same answers.
"""

from scq_gpu.kernels.encode import encode_linear

__all__ = ["encode_linear"]
