"""CUDA kernels: their sources (.cu), which variant runs in which tiles, how they are launched, calls with arrays."""
