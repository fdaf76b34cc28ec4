"""Problems that V steps are tested on: eigenvalues and targets, from well-behaved to degenerate."""

import numpy as np
from hypothesis import strategies as st


def spectrum(kind, D, rng):
    if kind == "flat":
        lam = np.ones(D)
    elif kind == "steep":
        lam = np.logspace(1, -6, D)
    elif kind == "singular":
        lam = np.where(np.arange(D) < max(1, D // 2), 1.0 + rng.random(D), 0.0)
    else:
        lam = rng.exponential(size=D)
    return np.sort(lam)[::-1].copy()


@st.composite
def problems(draw):
    """(lam, M): eigenvalues and targets."""
    D = draw(st.integers(1, 24))
    L = draw(st.integers(1, D))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    lam = spectrum(draw(st.sampled_from(["flat", "steep", "singular", "exponential"])), D, rng)
    scale = 10.0 ** draw(st.integers(-3, 3))
    M = rng.standard_normal((D, L)) * np.sqrt(lam + 1e-12)[:, None] * scale
    if draw(st.booleans()):
        M[:, rng.integers(L)] = M[:, 0]  # two bits that agree on every row
    if draw(st.booleans()):
        M[-1] = 0  # nothing along the lowest axis: the hard case
    return lam, M
