"""
The scale of the rows
=====================

OnE asks for orthonormal directions, so the scale of the rows decides what it trades: little rounding loss against much
variance kept. Here is the paper's figure of it, for real rows.
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
# Signs do not change when rows are multiplied by a number, so `scq_gpu.scale_path` takes one pass over the rows an
# iteration for all scales together. The scales here are spread around the one that ``scale="auto"`` takes.

auto = scq.OnE(n_bits=16, preserve="classes", random_state=0).fit(X_base).scale_
scales = auto * 2.0 ** np.arange(-2, 2.5, 0.5)
path = scq.scale_path(X_base, 16, scales, encoder=scq.OnE(preserve="classes", random_state=0))

print("scale  loss a bit  variance kept")
for row in path.table:
    loss, variance = row["loss_per_bit"], row["retained_variance"]
    print(f"{row['scale']:.3f}  {loss:10.3f}  {variance:11.1f} %")

# %%
# What is traded
# --------------
# At a small scale the directions stay near the principal axes: they keep nearly all the variance that as many axes
# can hold, and the projections lie far from the -1 and +1 that they are rounded to. At a large scale OnE prefers
# directions of small variance, whose projections lie near -1 and +1, and much of what tells rows apart is lost. The
# dotted line is the scale that ``"auto"`` takes, the paper's proposal: it gives the leading axes unit variance on
# average.

scq.plots.scale_path(path)

# %%
# What it means for search
# ------------------------
# Every scale leaves a fitted encoder, so the trade can be seen from the side that counts: how well rows of the
# query's class are found. Each dot is a fit; fits from different starts differ, so several are run and their mean is
# drawn. The proposal is a place to begin; where the mean is highest is for the rows to say.

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
