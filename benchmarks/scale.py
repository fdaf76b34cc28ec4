"""A plan beside the real thing: rates measured on little, extrapolated to ten million codes, and those codes made.

Usage: python benchmarks/scale.py [--rows 10000000] [--features 128] [--bits 128] [--output scale.json]

Rows are made block by block and not kept; the codes are. Everything runs on the threads that NUMBA_NUM_THREADS and
OMP_NUM_THREADS allow. On a busy machine both sides are slow, not always by the same factor: the load is printed, and
the figures of docs/scale.md say what it was.
"""

import argparse
import json
import os
import time

import numpy as np

import scq_gpu as scq

BLOCK = 100_000
QUERIES = 64


def clustered(rng, n, centers):
    """Rows around a thousand centers, as embeddings are, rather than one cloud."""
    X = rng.standard_normal((n, centers.shape[1]), dtype=np.float32)
    X += centers[rng.integers(0, len(centers), n)]
    return X


def timed(run, repeats=3):
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - started)
    return min(times), result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, default=10_000_000)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--bits", type=int, default=128)
    parser.add_argument("--output", help="JSON file")
    options = parser.parse_args()
    n, d, bits = int(options.rows), options.features, options.bits

    rates = scq.scale.measure_rates(d, bits)
    plan = scq.scale.plan(rates, n)
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((1000, d), dtype=np.float32)
    encoder = scq.OgE(bits, random_state=0).fit(clustered(rng, 20_000, centers))
    codes = np.empty((n, (bits + 7) // 8), dtype=np.uint8)
    encoding = 0.0
    for start in range(0, n, BLOCK):
        X = clustered(rng, min(BLOCK, n - start), centers)
        started = time.perf_counter()
        codes[start : start + len(X)] = encoder.encode(X)
        encoding += time.perf_counter() - started
    index = scq.HammingIndex(codes, bits)
    queries = clustered(rng, QUERIES, centers)
    packed = encoder.encode(queries)
    index.search(packed, 10)
    index.search_asymmetric(encoder, queries, 10)
    real = {
        "encode_hours": encoding / 3600,
        "bytes_codes": codes.nbytes,
        "hamming_ms_per_query": 1e3 * timed(lambda: index.search(packed[:1], 10))[0],
        "asymmetric_ms_per_query": 1e3 * timed(lambda: index.search_asymmetric(encoder, queries[:1], 10))[0],
        "asymmetric_ms_per_query_in_batches": 1e3
        * timed(lambda: index.search_asymmetric(encoder, queries, 10))[0]
        / QUERIES,
    }
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    print(f"{n:,} rows of {d} features, {bits} bits; load per core {rates.busy:.1f} before, {load:.1f} after")
    print(f"{'':<38}{'planned':>14}{'measured':>14}{'ratio':>8}")
    for name, value in real.items():
        print(f"{name:<38}{plan[name]:>14.4g}{value:>14.4g}{value / plan[name]:>8.2f}")
    if options.output:
        facts = {"rows": n, "rates": rates.as_dict(), "planned": plan, "measured": real, "load_after": load}
        with open(options.output, "w") as file:
            json.dump(facts, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
