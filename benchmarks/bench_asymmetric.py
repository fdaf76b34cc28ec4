"""Asymmetric search beside the Hamming scan and Faiss: RaBitQ without lists, and 4-bit product quantization.

    python benchmarks/bench_asymmetric.py            # one thread and two; 128 and 256 bits
    python benchmarks/bench_asymmetric.py --n 100000 --k 1000

Every method has codes of as many bits (RaBitQ adds 8 bytes per row) and the same float queries; ours are exact, with
and without two float16 factors per row, and so is the Hamming scan. ``VectorIndex`` is the whole search, with
``keep_vectors=False``: projection of the queries and scores included, on vectors of as many dimensions as bits, fitted
to 50,000 of them. The methods take turns, and the least of their times counts: by the clock, and of the processor, all
threads together, which a busy machine lengthens less (threads of Faiss that wait for each other count as busy).
``first`` is the first call in the process: compiling, or loading what an earlier process compiled.
"""

import argparse
import os
import subprocess
import sys
import time

import numpy as np


def methods(n, n_bits, n_queries, k):
    """Return name and function of every search."""
    import faiss

    import scq_gpu as scq
    from scq_gpu._core.factors import RowFactors
    from scq_gpu.kernels import asymmetric_numba, hamming_numba

    faiss.omp_set_num_threads(int(os.environ["NUMBA_NUM_THREADS"]))
    rng = np.random.default_rng(0)
    X, Q = (rng.standard_normal((m, n_bits), dtype=np.float32) for m in (n, n_queries))
    codes, query_codes = (np.packbits(x > 0, axis=1, bitorder="little") for x in (X, Q))
    norms = (X**2).sum(axis=1)
    scales = (2 * norms / np.abs(X).sum(axis=1)).astype(np.float16)
    gain = -2 * Q
    stored = RowFactors([norms.astype(np.float16)], [scales], Q.sum(axis=1))
    rabitq, fast = (faiss.index_factory(n_bits, name) for name in ("RaBitQ", f"PQ{n_bits // 4}x4fs"))
    for index in (rabitq, fast):
        index.train(X[:50_000])
        index.add(X)
    encoder = scq.OgE(n_bits, random_state=0).fit(X[:50_000])
    vectors, wider = (
        scq.VectorIndex(X, encoder=encoder, keep_vectors=False, factors=factors) for factors in (False, True)
    )
    return {
        "asymmetric": lambda: asymmetric_numba.knn(gain, [codes], k),
        "with factors": lambda: asymmetric_numba.knn(gain, [codes], k, factors=stored),
        "Hamming": lambda: hamming_numba.knn(query_codes, [codes], k, n_bits=n_bits),
        "VectorIndex": lambda: vectors.search(Q, k),
        "  with factors": lambda: wider.search(Q, k),
        "Faiss RaBitQ": lambda: rabitq.search(Q, k),
        f"Faiss PQ{n_bits // 4}x4fs": lambda: fast.search(Q, k),
    }


def least_times(searches, rounds):
    """Time each search's first call, and the least of some rounds in which they take turns: clock, processor."""
    first, least = {}, {name: np.array([np.inf, np.inf]) for name in searches}
    for turn in range(rounds + 1):
        for name, search in searches.items():
            start = np.array([time.perf_counter(), time.process_time()])
            search()
            taken = np.array([time.perf_counter(), time.process_time()]) - start
            if turn:
                least[name] = np.minimum(least[name], taken)
            else:
                first[name] = taken[0]
    return first, least


def run(args):
    """Measure in one process of a number of threads, which numba and Faiss read when they are loaded."""
    print(f"\n{os.environ['NUMBA_NUM_THREADS']} thread(s), {args.n} codes, {args.queries} queries, k={args.k}")
    print(f"{'bits':>4}  {'method':<16}{'first':>10}{'clock':>12}{'processor':>12}")
    for n_bits in args.bits:
        first, least = least_times(methods(args.n, n_bits, args.queries, args.k), args.rounds)
        for name, (clock, processor) in least.items():
            print(f"{n_bits:>4}  {name:<16}{first[name]:>8.3f} s{1e3 * clock:>9.1f} ms{1e3 * processor:>9.1f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=1_000_000)
    parser.add_argument("--bits", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--queries", type=int, default=32)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    if os.environ.get("BENCH_ASYMMETRIC"):
        return run(args)
    for threads in map(str, args.threads):
        counts = dict.fromkeys(("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
        env = os.environ | counts | {"BENCH_ASYMMETRIC": "1"}
        subprocess.run([sys.executable, *sys.argv], env=env, check=True)


if __name__ == "__main__":
    main()
