"""Kernels and fits on this machine's GPU: their speed, and its share of what the device gives.

    python benchmarks/bench_gpu.py [--rows 1000000] [--features 768] [--items 10000000]

The roofs are measured on the same device: memory by a copy, arithmetic by cuBLAS products of the same type (TF32 counts
as half of float16, which is its rate on every tensor core). Without a GPU, and on the stand-in of tests/cupy_on_cpu, it
prints "not run: ..." and nothing else: every number it prints comes from a GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from time import perf_counter
from types import ModuleType
from typing import Any

import numpy as np
from kernel_counts import encode_traffic, quantize_traffic, scan_bytes

import scq_gpu as scq
from scq_gpu._core.arrays import namespace
from scq_gpu._core.bits import pack_bits
from scq_gpu.kernels import encode_linear
from scq_gpu.kernels.cuda import asymmetric
from scq_gpu.kernels.cuda.encode import encode_variant
from scq_gpu.kernels.cuda.hamming import CodeSearch, hamming_variant
from scq_gpu.kernels.cuda.quantize import QuantizeVariant, nearest_on_gpu

N, FEATURES, N_BITS = 1_000_000, 768, (64, 256)


def load_cupy() -> tuple[ModuleType | None, str]:
    try:
        import cupy
    except ImportError:
        return None, "no CUDA device (CuPy is not installed)"
    if importlib.util.find_spec("standin") is not None:
        return None, "CuPy runs on a CPU here, on the stand-in for CUDA; its times say nothing about a GPU"
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
            rate = 2 * scan_bytes(hamming_variant(n_bytes, n_queries), n, n_queries)[0] / time
            cells = (8 * n_bytes, n_queries, k, f"{1e3 * time:.3f}", f"{n_queries / time:.0f}", f"{rate / 1e9:.0f}")
            others = [other_search(name, codes, queries, k) for name in ("Faiss", "cuVS")]
            print_row(*cells, f"{rate / memory:.0%}", *others)


def bench_asymmetric(cp: ModuleType, n: int) -> None:
    print(f"\nfloat queries against codes, tables on the device: n = {n}\n")
    print("| codes | bits | queries | k | ms | queries/s | scores/s, billions |")
    print("|---|---|---|---|---|---|---|")
    rng = np.random.default_rng(0)
    for n_bytes in (8, 16, 32):
        codes = cp.asarray(rng.integers(0, 256, (n, n_bytes), dtype=np.uint8))
        for n_queries, k in ((1, 100), (32, 100), (256, 100)):
            for kind, search, width in (
                ("bits", asymmetric.knn, (8 * n_bytes,)),
                ("cells", asymmetric.cells, (n_bytes, 256)),
            ):
                terms = cp.asarray(rng.standard_normal((n_queries, *width), dtype=np.float32))
                took = seconds(search, terms, [codes], k)
                rates = f"{n_queries / took:.0f}", f"{n * n_queries / took / 1e9:.1f}"
                print_row(kind, 8 * n_bytes, n_queries, k, f"{1e3 * took:.3f}", *rates)


def bench_cells(cp: ModuleType, n: int) -> None:
    print(f"\nnearest of 256 cells per byte (product codes): n = {n}\n")
    print("| bytes | axes per byte | ms | TFLOP/s | of product roof |")
    print("|---|---|---|---|---|")
    rng, roof = np.random.default_rng(0), product_roof(cp, "float32")
    for n_bytes, w in ((8, 16), (8, 32), (32, 16)):
        Y = cp.asarray(rng.standard_normal((n, n_bytes * w), dtype=np.float32))
        cells = cp.asarray(rng.standard_normal((n_bytes, 256, w), dtype=np.float32))
        time = seconds(nearest_on_gpu, Y, cells, cp.zeros((n_bytes, 256), dtype=cp.float32))
        flops = quantize_traffic(QuantizeVariant(w), n, n_bytes, 256, w).computed / time
        print_row(n_bytes, w, f"{1e3 * time:.3f}", f"{flops / 1e12:.2f}", f"{flops / roof:.0%}")


def wall_seconds(cp: ModuleType, work: Callable[[], object], repeats: int = 3) -> float:
    """Median time on the host's clock until the device is done, after a warm-up that also compiles."""
    times = []
    for _ in range(1 + repeats):
        cp.cuda.Device().synchronize()
        start = perf_counter()
        work()
        cp.cuda.Device().synchronize()
        times.append(perf_counter() - start)
    return float(np.median(times[1:]))


def bench_fits(cp: ModuleType, n: int, d: int) -> None:
    """Time default fits and encodes of rows on the device and of rows in host memory."""
    print(f"\nfit and encode: n = {n}, d = {d}, float32\n")
    print("| bits | what | rows | ms |")
    print("|---|---|---|---|")
    host = np.random.default_rng(0).standard_normal((n, d), dtype=np.float32) * np.logspace(0, -1, d, dtype=np.float32)
    for n_bits in N_BITS:
        for on_device in (True, False):
            X = cp.asarray(host) if on_device else host
            encoder = scq.OgE(n_bits, random_state=0, device=None if on_device else "cuda")
            works = {"fit": lambda e=encoder, X=X: e.fit(X)}
            for precision in ("exact", "fast"):
                works[f"encode, {precision}"] = lambda e=encoder, X=X, p=precision: e.encode(X, precision=p)
            place = "on the device" if on_device else "from the host"
            for what, work in works.items():
                print_row(n_bits, what, place, f"{1e3 * wall_seconds(cp, work):,.1f}")
            del X


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the CUDA kernels on this machine's GPU.")
    parser.add_argument("--rows", type=int, default=N)
    parser.add_argument("--features", type=int, default=FEATURES)
    parser.add_argument("--items", type=int, default=10_000_000)
    options = parser.parse_args()
    cp, reason = load_cupy()
    if cp is None:
        print(f"not run: {reason}")
        return
    name = cp.cuda.runtime.getDeviceProperties(cp.cuda.Device().id)["name"].decode()
    memory = memory_roof(cp)
    print(f"{name}, CuPy {cp.__version__}, measured memory roof {memory / 1e9:.0f} GB/s")
    bench_fits(cp, options.rows, options.features)
    bench_encode(cp, options.rows, options.features, memory)
    bench_cells(cp, options.rows)
    bench_search(cp, options.items, memory)
    bench_asymmetric(cp, options.items)


if __name__ == "__main__":
    main()
