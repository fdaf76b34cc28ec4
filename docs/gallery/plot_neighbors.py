"""
Find similar images
===================

Images of digits become codes of a few bytes, and a search over the codes returns images that look like the query.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors

import scq_gpu as scq

# %%
# Rows in
# -------
# An image is one row of pixels. The last rows are set aside as queries, and the encoder never sees them.

X, y = load_digits(return_X_y=True)
X = X.astype("float32")
X_base, X_query, y_base, y_query = X[:-300], X[-300:], y[:-300], y[-300:]
print(f"{len(X_base)} rows, {len(X_query)} queries, {X.shape[1]} pixels each")

# %%
# Codes out
# ---------
# `scq_gpu.OgE` learns from the rows alone. The labels are only used below, to count correct results.

encoder = scq.OgE(n_bits=32, preserve="classes", random_state=0).fit(X_base)
codes, query_codes = encoder.encode(X_base), encoder.encode(X_query)
print(f"bytes per row: {X_base[0].nbytes} as floats, {codes[0].nbytes} as code")

bits = scq.unpack(codes, encoder.n_bits) > 0
for label, row in zip(y_base[:3], bits, strict=False):
    print(f"a {label} in bits:", "".join(row.astype(int).astype(str)))

# %%
# Search
# ------
# The distance between two codes is the number of bits in which they differ. `scq_gpu.HammingIndex` finds the codes
# nearest to each query. The search is exact.

index = scq.HammingIndex(codes, n_bits=encoder.n_bits)
distances, ids = index.search(query_codes, k=10)
right = y_base[ids] == y_query[:, None]


def show(rows):
    """Draw queries on the left, each with its results and their distances."""
    images, answers = X_query[rows], X_base[ids[rows]]
    return scq.plots.gallery(
        images.reshape(-1, 8, 8),
        answers.reshape(len(rows), -1, 8, 8),
        right=right[rows],
        distances=distances[rows],
    )


show([int(np.argmax(y_query == digit)) for digit in (0, 2, 3, 6, 9)])

# %%
# How good is it?
# ---------------
# The share of results that show the query's digit, over all queries, beside that of a search over the pixels:

pixels = NearestNeighbors(n_neighbors=10).fit(X_base)
nearest = pixels.kneighbors(X_query, return_distance=False)
right_by_pixels = y_base[nearest] == y_query[:, None]
print(f"correct results by codes:  {100 * right.mean():.1f} %")
print(f"correct results by pixels: {100 * right_by_pixels.mean():.1f} %")

# %%
# Where it goes wrong
# -------------------
# These queries have the fewest correct results. Look at them before you blame the bits: some are hard to read.

ax = show(np.argsort(right.sum(axis=1), kind="stable")[:4])
with scq.plots.theme():
    ax.set_title("The queries with the fewest correct results")
