"""
The scale of the rows
=====================

OnE requires orthonormal directions, so the scale of the rows trades quantization loss against retained variance. This
example draws the paper's figure of that trade-off for real rows.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import scq_gpu as scq

X, y = load_digits(return_X_y=True)
X = X.astype("float32")
X_base, X_query, y_base, y_query = X[:-300], X[-300:], y[:-300], y[-300:]

# %%
# Many scales, one run
# --------------------
# Signs do not change when rows are multiplied by a positive number. So `scq_gpu.scale_path` takes one pass over the
# rows per iteration for all scales together. The scales here are spread around the paper's, which ``scale="auto"``
# takes with ``preserve="classes"``.

auto = scq.OnE(n_bits=16, preserve="classes", random_state=0).fit(X_base).scale_
scales = auto * 2.0 ** np.arange(-2, 2.5, 0.5)
path = scq.scale_path(X_base, 16, scales, encoder=scq.OnE(preserve="classes", random_state=0))

print("scale  loss/bit  variance kept")
for row in path.table:
    loss, variance = row["loss_per_bit"], row["retained_variance"]
    print(f"{row['scale']:.3f}  {loss:8.3f}  {variance:11.1f} %")

# %%
# The trade-off
# -------------
# At a small scale the directions stay near the principal axes. They keep nearly all the variance that as many axes can
# hold, but the projections lie far from the -1 and +1 that they are rounded to. At a large scale OnE prefers directions
# of small variance, whose projections lie near -1 and +1. Much of what distinguishes rows is lost. The dotted line is
# the scale that ``"auto"`` takes for classes, the paper's proposal. It gives the leading axes unit variance on average.

scq.plots.scale_path(path)

# %%
# What it means for search
# ------------------------
# Every scale has a fitted encoder, so we can measure how well each finds rows of the query's class. Each dot is a fit.
# Fits from different starts differ, so the line is the mean of several. Start with the proposed scale; which one is
# best depends on the rows.

mean_ap = scq.metrics.mean_average_precision
starts = []
for seed in range(4):
    encoder, found = scq.OnE(preserve="classes", random_state=seed), []
    fits = scq.scale_path(X_base, 16, scales, encoder=encoder)
    for fitted in fits.encoders:
        codes = fitted.encode(X_query), fitted.encode(X_base)
        found.append(mean_ap(*codes, y_query, y_base, ties="average"))
    starts.append(100 * np.array(found))

with scq.plots.theme():
    ax = plt.figure(figsize=(6, 3.8)).subplots()
    ax.plot(scales, np.transpose(starts), "o", color="C0", alpha=0.4)
    ax.plot(scales, np.mean(starts, axis=0), color="C0", linewidth=1.8)
    ax.axvline(auto, color="C1", linestyle=":", label="auto")
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set(title="mAP over the scale", xlabel="scale", ylabel="mAP (%)")
    ax.legend()
