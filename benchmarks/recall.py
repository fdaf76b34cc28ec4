"""How many true float neighbours a search over codes finds: Hamming, asymmetric, and Hamming rescored with floats.

    python benchmarks/recall.py --data DIR --solver joint --plot docs/images/recall.png

recall@k is the share of a query's k nearest rows (Euclidean, all floats) among the k results returned. Rescoring takes
4 k or 16 k Hamming results and keeps the best k by float distance. The table goes to standard output as Markdown.
"""

import argparse
import time
from pathlib import Path

import numpy as np

import scq_gpu as scq
from scq_gpu.asymmetric import asymmetric_search, rescore
from scq_gpu.metrics import recall_at_k
from scq_gpu.search import HammingIndex

FILES = {"GIST, 512-D": "cifar10_gist512.npz", "EfficientNet-Lite0, 1280-D": "cifar10_efflite0.npz"}
BITS = (32, 64, 128)
KS = (10, 100)
METHODS = ("Hamming", "asymmetric", "Hamming, 4x rescored", "Hamming, 16x rescored")


def load(path, n_queries):
    """Training rows, and the first queries, as float32."""
    with np.load(path) as data:
        scale = np.float32(data["feature_scale"]) if "feature_scale" in data else np.float32(1)
        return data["X_train"].astype(np.float32) * scale, data["X_test"][:n_queries].astype(np.float32) * scale


def true_neighbours(X, Q, k):
    """The k nearest rows of each query by Euclidean distance."""
    norms = np.einsum("nd,nd->n", X, X)
    ids = []
    for i in range(0, len(Q), 200):
        d = norms - 2 * (Q[i : i + 200] @ X.T)
        nearest = np.argpartition(d, k, axis=1)[:, :k]
        ids.append(np.take_along_axis(nearest, np.argsort(np.take_along_axis(d, nearest, axis=1), axis=1), axis=1))
    return np.concatenate(ids)


def recalls(encoder, X, Q, true):
    """Recall by method and k."""
    index, queries = HammingIndex(encoder.encode(X), encoder.n_bits), encoder.encode(Q)
    _, hamming = index.search(queries, 16 * max(KS))
    _, asymmetric = asymmetric_search(encoder, Q, index, max(KS))
    table = {}
    for k in KS:
        found = [hamming[:, :k], asymmetric[:, :k]]
        found += [rescore(Q, X, hamming[:, : times * k], k=k)[1] for times in (4, 16)]
        for method, ids in zip(METHODS, found, strict=True):
            table[method, k] = recall_at_k(ids, true[:, :k])
    return table


def markdown(results):
    """One row a data set, code length and k."""
    lines = ["| features | bits | k | " + " | ".join(METHODS) + " |", "|---|---|---|" + "---|" * len(METHODS)]
    for (name, n_bits), table in results.items():
        for k in KS:
            cells = " | ".join(f"{table[method, k]:.3f}" for method in METHODS)
            lines.append(f"| {name} | {n_bits} | {k} | {cells} |")
    return "\n".join(lines)


def plot(results, path):
    """Recall against code length, one panel a data set and k."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(name for name, _ in results))
    figure, axes = plt.subplots(len(KS), len(names), figsize=(5 * len(names), 3.4 * len(KS)), squeeze=False)
    for row, k in zip(axes, KS, strict=True):
        for axis, name in zip(row, names, strict=True):
            bits = [b for other, b in results if other == name]
            for method, marker in zip(METHODS, "os^v", strict=True):
                axis.plot(bits, [results[name, b][method, k] for b in bits], marker=marker, label=method)
            axis.set(title=f"{name}: recall@{k}", xlabel="bits", xticks=bits, ylim=(0, 1))
            axis.grid(alpha=0.3)
    axes[0, 0].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the CIFAR-10 feature files")
    parser.add_argument("--plot", type=Path, help="where to draw the figure")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--max-iter", type=int, default=50)
    parser.add_argument("--solver", choices=("joint", "columnwise"), default="joint")
    options = parser.parse_args()
    results = {}
    for name, file in FILES.items():
        if not (options.data / file).exists():
            print(f"skipped {name}: {options.data / file} is missing")
            continue
        X, Q = load(options.data / file, options.queries)
        true = true_neighbours(X, Q, max(KS))
        for n_bits in BITS:
            start = time.perf_counter()
            encoder = scq.OgE(n_bits=n_bits, solver=options.solver, max_iter=options.max_iter, tol=0, random_state=0)
            encoder.fit(X)
            results[name, n_bits] = recalls(encoder, X, Q, true)
            print(f"# {name}, {n_bits} bits: {time.perf_counter() - start:.0f} s", flush=True)
    print(markdown(results))
    if options.plot:
        plot(results, options.plot)


if __name__ == "__main__":
    main()
