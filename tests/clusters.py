"""Rows in overlapping clusters, for tests of the baselines."""

import numpy as np


def clusters(n=600, d=24, classes=6, seed=0):
    """Rows in overlapping clusters, off the origin, and their labels."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    mixed = rng.standard_normal((n, d)) @ np.diag(np.linspace(1.5, 0.2, d))
    return mixed + 1.5 * rng.standard_normal((classes, d))[y] + rng.standard_normal(d), y


X, Y_LABELS = clusters()
