"""
Two solvers
===========

The paper's solver finds one direction after another. The default solver here finds all of them together. This example
compares the loss, the bits and the results of both.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors

import scq_gpu as scq

X, y = load_digits(return_X_y=True)
X = X.astype("float32")
X_base, X_query, y_base, y_query = X[:-300], X[-300:], y[:-300], y[-300:]

# %%
# The loss
# --------
# With ``init="random"`` and the same seed, both start from the same directions. With ``tol=0`` exactly ``max_iter``
# iterations run. Both curves are the paper's loss. The joint loss never rises. The columnwise loss may, since each
# greedy sweep over the columns starts anew.

solvers = {}
same = {"init": "random", "random_state": 0, "max_iter": 60, "tol": 0}
for name in ("joint", "columnwise"):
    solvers[name] = scq.OgE(n_bits=32, preserve="classes", solver=name, **same).fit(X_base)

scq.plots.loss_curve(solvers)

# %%
# Balance of the bits
# -------------------
# A bit carries the most information if it is set in half of the codes.

codes = {name: solver.encode(X_base) for name, solver in solvers.items()}


def side_by_side(draw, height):
    """Draw the same plot of both solvers' codes."""
    with scq.plots.theme():
        axes = plt.figure(figsize=(8.4, height)).subplots(1, 2)
        for ax, name in zip(axes, codes, strict=True):
            draw(codes[name], 32, ax=ax)
            title = f"{name}\n{ax.get_title(loc='left')}"
            ax.set_title(title, fontsize="small")


side_by_side(scq.plots.bit_balance, 3.2)

# %%
# Correlation of the bits
# -----------------------
# Directions are orthogonal, but bits need not be independent. Two bits that nearly always agree, or nearly always
# differ, carry the same information twice. Each plot has its own color scale, and its title names the strongest
# correlation.

side_by_side(scq.plots.bit_correlation, 3.6)

# %%
# The results
# -----------
# Which solver to use depends on what counts as a correct result: a row of the same class (mAP), or one of the nearest
# by float distance (recall). The two need not favor the same solver, so measure the one that you need.

pixels = NearestNeighbors(n_neighbors=10).fit(X_base)
nearest = pixels.kneighbors(X_query, return_distance=False)
mean_ap = scq.metrics.mean_average_precision
for name, encoder in solvers.items():
    queries = encoder.encode(X_query)
    pair = queries, codes[name]
    by_class = 100 * mean_ap(*pair, y_query, y_base, ties="average")
    _, ids = scq.HammingIndex(codes[name], 32).search(queries, k=10)
    recall = 100 * scq.metrics.recall_at_k(ids, nearest)
    print(f"{name:<11} mAP {by_class:.1f} %, recall {recall:.1f} %")
