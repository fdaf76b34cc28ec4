"""Kernels on this machine's GPU: achieved GB/s and FLOP/s, their share of what the device gives, and plain CuPy beside.

    python benchmarks/bench_gpu.py [--rows 1000000] [--features 512] [--items 10000000]

The roofs are measured on the same device: memory by a copy, arithmetic by cuBLAS products of the same type (TF32 counts
as half of float16, which is its rate on every tensor core). Prints "not run: ..." and nothing else without a GPU.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from scq_gpu._core.arrays import namespace
from scq_gpu._core.bits import pack_bits
from scq_gpu.kernels.cuda.calls import CodeSearch, encode_linear
from scq_gpu.kernels.cuda.geometry import encode_variant, hamming_variant

sys.path.insert(0, str(Path(__file__).parent / "kernels"))
from traffic import encode_traffic, scan_bytes


def load_cupy() -> tuple[ModuleType | None, str]:
    try:
        import cupy
    except ImportError:
        return None, "no CUDA device (CuPy is not installed)"
    return (cupy, "") if cupy.is_available() else (None, "no CUDA device")


def seconds(function: Any, *args: Any, **kwargs: Any) -> float:
    """Median time on the device, after a warm-up that also compiles."""
    from cupyx.profiler import benchmark

    return float(np.median(benchmark(function, args, kwargs, n_warmup=3, n_repeat=20).gpu_times))


def print_row(*cells: object) -> None:
    print("|", " | ".join(map(str, cells)), "|", flush=True)


def memory_roof(cp: ModuleType) -> float:
    """Bytes a second of a copy in device memory: one read and one write a byte."""
    source = cp.zeros(1 << 28, dtype=cp.float32)
    target = cp.empty_like(source)
    return 2 * source.nbytes / seconds(cp.copyto, target, source)


def product_roof(cp: ModuleType, dtype: str) -> float:
    """Operations a second of a large cuBLAS product."""
    A = cp.ones((8192, 8192), dtype=dtype)
    return 2 * 8192**3 / seconds(cp.matmul, A, A)


def plain_encode(X: Any, W: Any, t: Any) -> Any:
    products = X @ W.astype(X.dtype)
    return pack_bits(products >= t.astype(X.dtype), xp=namespace(X))


def bench_encode(cp: ModuleType, n: int, d: int, memory: float) -> None:
    capability = int(cp.cuda.Device().compute_capability)
    half = product_roof(cp, "float16")
    roofs = {
        ("float32", "exact"): product_roof(cp, "float32"),
        ("float32", "fast"): half / 2,
        ("float16", "fast"): half,
    }
    roofs["float32", "accurate"] = half / 6
    print(f"\nencode: n = {n}, d = {d}\n")
    print("| X | precision | bits | ms | GB/s | of memory roof | TFLOP/s | of product roof | plain CuPy, ms |")
    print("|---|---|---|---|---|---|---|---|---|")
    rng = np.random.default_rng(0)
    for element in ("float32", "float16"):
        X = cp.asarray(rng.standard_normal((n, d), dtype=np.float32)).astype(element)
        for n_bits in (16, 32, 64, 128, 256, 512):
            W = cp.asarray(rng.standard_normal((n_bits, d), dtype=np.float32)).T
            t = cp.zeros(n_bits, dtype=cp.float32)
            plain = seconds(plain_encode, X, W, t)
            for (kind, precision), roof in roofs.items():
                if kind != element or (precision != "exact" and capability < 80):
                    continue
                time = seconds(encode_linear, X, W, t, precision=precision)
                traffic = encode_traffic(encode_variant(element, n_bits, precision, capability), n, d, n_bits)
                rate, flops = (X.nbytes + traffic.codes) / time, traffic.flops / time
                cells = (element, precision, n_bits, f"{1e3 * time:.3f}", f"{rate / 1e9:.0f}", f"{rate / memory:.0%}")
                print_row(*cells, f"{flops / 1e12:.2f}", f"{flops / roof:.0%}", f"{1e3 * plain:.3f}")


def other_search(name: str, codes: Any, queries: Any, k: int) -> str:
    """Milliseconds of another library's exact Hamming search, or why there are none."""
    try:
        if name == "Faiss":
            import faiss

            index = faiss.GpuIndexBinaryFlat(faiss.StandardGpuResources(), 8 * codes.shape[1])
            index.add(codes.get())
            host = queries.get()
            return f"{1e3 * seconds(index.search, host, k):.3f}"
        from cuvs.neighbors import brute_force

        index = brute_force.build(codes, metric="bitwise_hamming")
        return f"{1e3 * seconds(brute_force.search, index, queries, k):.3f}"
    except (ImportError, AttributeError, ValueError, TypeError, RuntimeError) as error:
        return f"not run ({type(error).__name__})"


def bench_search(cp: ModuleType, n: int, memory: float) -> None:
    print(f"\nHamming top-k: n = {n}\n")
    print("| bits | queries | k | ms | queries/s | code GB/s (2 walks) | of memory roof | Faiss-GPU, ms | cuVS, ms |")
    print("|---|---|---|---|---|---|---|---|---|")
    rng = np.random.default_rng(0)
    for n_bytes in (4, 8, 16, 64):
        codes = cp.asarray(rng.integers(0, 256, (n, n_bytes), dtype=np.uint8))
        engine = CodeSearch([codes])
        for n_queries, k in ((1, 100), (32, 100), (1000, 100), (32, 2048)):
            queries = cp.asarray(rng.integers(0, 256, (n_queries, n_bytes), dtype=np.uint8))
            time = seconds(engine.knn, queries, [codes], k, n_bits=8 * n_bytes)
            rate = 2 * scan_bytes(hamming_variant(n_bytes), n, n_queries)[0] / time
            cells = (8 * n_bytes, n_queries, k, f"{1e3 * time:.3f}", f"{n_queries / time:.0f}", f"{rate / 1e9:.0f}")
            others = [other_search(name, codes, queries, k) for name in ("Faiss", "cuVS")]
            print_row(*cells, f"{rate / memory:.0%}", *others)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the CUDA kernels on this machine's GPU.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--items", type=int, default=10_000_000)
    options = parser.parse_args()
    cp, reason = load_cupy()
    if cp is None:
        print(f"not run: {reason}")
        return
    properties = cp.cuda.runtime.getDeviceProperties(cp.cuda.Device().id)
    memory = memory_roof(cp)
    print(f"{properties['name'].decode()}, CuPy {cp.__version__}, measured memory roof {memory / 1e9:.0f} GB/s")
    bench_encode(cp, options.rows, options.features, memory)
    bench_search(cp, options.items, memory)


if __name__ == "__main__":
    main()
