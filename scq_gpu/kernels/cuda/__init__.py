"""CUDA kernels. Each operation has its source (.cu) and, beside it, its variants, tiles and launches (.py)."""
