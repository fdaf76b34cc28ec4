"""
What distances show
===================

Good codes put rows of one class near each other and other rows far away. This example shows it in two ways, and what a
query gains if it keeps its floats.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import scq_gpu as scq

X, y = load_digits(return_X_y=True)
X = X.astype("float32")
X_base, X_query, y_base, y_query = X[:-300], X[-300:], y[:-300], y[-300:]

encoders, pairs = {}, {}
for Encoder in (scq.OgE, scq.ITQ, scq.LSH):
    encoder = Encoder(n_bits=32, random_state=0).fit(X_base)
    codes = encoder.encode(X_query), encoder.encode(X_base)
    encoders[Encoder.__name__] = encoder
    pairs[Encoder.__name__] = (*codes, y_query, y_base)

# %%
# Same class, other class
# -----------------------
# The histograms show Hamming distances between queries and rows. The less they overlap, the better a distance
# distinguishes rows of one class from others. `OgE <scq_gpu.OgE>` learned its directions, `LSH <scq_gpu.LSH>` drew them
# at random.

with scq.plots.theme():
    axes = plt.figure(figsize=(8.4, 3.4)).subplots(1, 2, sharey=True)
    for ax, name in zip(axes, ("OgE", "LSH"), strict=True):
        scq.plots.distance_histograms(*pairs[name], n_bits=32, ax=ax)
        ax.set_title(f"{name}: distances of pairs")
    axes[1].set_ylabel("")

# %%
# Precision and recall
# --------------------
# Each point is a Hamming radius. A wider radius finds more rows of the query's class, so recall rises. It also finds
# more of the others, so precision falls. A query with nothing inside a radius counts as precision 0, so a curve may
# begin low.

curve = scq.metrics.precision_recall_curve
curves = {name: curve(*pair) for name, pair in pairs.items()}
scq.plots.precision_recall(curves)

# %%
# Queries that keep their floats
# ------------------------------
# The database is bits, but a query need not be. `scq_gpu.HammingIndex.search_asymmetric` compares the query's
# projections with what each code stands for. It needs no floats of the database. Here both searches rank all rows for
# each query. Hamming distances are integers and tie often. Asymmetric distances tie, except for rounding, only where
# codes are equal.

encoder, (query_codes, codes, *_) = encoders["OgE"], pairs["OgE"]
index = scq.HammingIndex(codes, n_bits=32)
k = len(index)
searches = {
    "Hamming": index.search(query_codes, k),
    "asymmetric": index.search_asymmetric(encoder, X_query, k),
}
print(f"{k} rows, {len(np.unique(codes, axis=0))} different codes")
for name, (distances, ids) in searches.items():
    steps = np.mean([len(np.unique(row.round(3))) for row in distances])
    found = scq.metrics.ranked_average_precision(ids, y_query, y_base)
    print(f"{name:<11}{steps:5.0f} distances, mAP {100 * found.mean():.1f} %")

# %%
# The share of relevant rows among the first k of each ranking:

with scq.plots.theme():
    ax = plt.figure(figsize=(6, 3.8)).subplots()
    ranks = np.arange(1, 151)
    for name, line in (("Hamming", "-"), ("asymmetric", "--")):
        _, ids = searches[name]
        right = y_base[ids[:, : len(ranks)]] == y_query[:, None]
        share = 100 * (right.cumsum(axis=1) / ranks).mean(axis=0)
        ax.plot(ranks, share, line, label=name, linewidth=1.8)
    ax.set(title="Relevant among the first k", xlabel="k", ylabel="share (%)")
    ax.legend()
