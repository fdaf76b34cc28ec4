"""Draw the pictures of docs/plots.md:  python docs/make_plots.py

The data are the handwritten digits that come with scikit-learn, the last 300 kept aside as queries.
"""

import warnings
from pathlib import Path

import matplotlib
from sklearn.datasets import load_digits

matplotlib.use("agg")

import matplotlib.pyplot as plt

import scq_gpu as scq

FOLDER = Path(__file__).parent / "images" / "plots"
METHODS = {"OgE": scq.OgE, "OnE": scq.OnE, "ITQ": scq.ITQ, "LSH": scq.LSH}
BITS = (4, 8, 16, 32)


def save(name, ax, dpi=90):
    """One picture, small enough for a page."""
    ax.figure.savefig(FOLDER / f"{name}.png", dpi=dpi)
    plt.close(ax.figure)


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    X, y = load_digits(return_X_y=True)
    X = X.astype("float32")
    X_base, X_query, y_base, y_query = X[:-300], X[-300:], y[:-300], y[-300:]
    warnings.simplefilter("ignore", UserWarning)  # some fits stop at max_iter
    encoder = scq.OgE(n_bits=32, preserve="classes", random_state=0).fit(X_base)
    columnwise = scq.OgE(n_bits=32, solver="columnwise", random_state=0).fit(X_base)
    codes, queries = encoder.encode(X_base), encoder.encode(X_query)

    save("loss_curve", scq.plots.loss_curve({"joint": encoder, "columnwise": columnwise}))
    figures, curves = {}, {}
    for name, Encoder in METHODS.items():
        fitted = [Encoder(n_bits=bits, random_state=0).fit(X_base) for bits in BITS]
        pairs = [(e.encode(X_query), e.encode(X_base), y_query, y_base) for e in fitted]
        figures[name] = {e.n_bits: scq.metrics.mean_average_precision(*p) for e, p in zip(fitted, pairs, strict=True)}
        curves[name] = scq.metrics.precision_recall_curve(*pairs[-1])
    save("bits_curve", scq.plots.bits_curve(figures))
    save("precision_recall", scq.plots.precision_recall(curves))
    scales = [encoder.scale_ * 2 ** (k / 2) for k in range(-4, 5)]
    path = scq.scale_path(X_base, 32, scales, encoder=scq.OnE(preserve="classes", random_state=0))
    save("scale_path", scq.plots.scale_path(path))
    save("distance_histograms", scq.plots.distance_histograms(queries, codes, y_query, y_base, n_bits=32))
    save("bit_balance", scq.plots.bit_balance(codes, 32))
    save("bit_correlation", scq.plots.bit_correlation(codes, 32))
    first = [int((y_query == digit).argmax()) for digit in (2, 3, 5, 8)]
    distances, ids = scq.HammingIndex(codes, 32).search(queries[first], k=8)
    images, answers = X_query[first].reshape(-1, 8, 8), X_base[ids].reshape(4, 8, 8, 8)
    right = y_base[ids] == y_query[first][:, None]
    save("gallery", scq.plots.gallery(images, answers, right=right, distances=distances))
    with scq.plots.theme(dark=True):
        save("dark", scq.plots.bits_curve(figures))
    with scq.plots.theme(paper=True):
        save("paper", scq.plots.bits_curve(figures), dpi=180)


if __name__ == "__main__":
    main()
