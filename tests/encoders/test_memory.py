"""Peak memory, measured in a process of its own."""

import os
import subprocess
import sys

import pytest

FIT = """
import numpy as np
import scq_gpu as scq

def peak():  # MiB; ru_maxrss would begin with that of the process that started this one
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024

n, d = 120_000, 256
X = np.empty((n, d), dtype=np.{dtype})
rng = np.random.default_rng(0)
for part in np.split(X, 60):
    part[:] = rng.integers(0, 100, size=part.shape)
scq.OgE(n_bits=8, max_iter=2, tol=0, random_state=0).fit(X[:2000])  # imports and pools are warm
before = peak()
encoder = scq.{encoder}(n_bits=32, max_iter=3, tol=0, random_state=0).fit(X)
fitted = peak()
encoder.encode(X)
print(before, fitted, peak(), X.nbytes / 2**20, n * d * 4 / 2**20)
"""


@pytest.mark.skipif(not os.access("/proc/self/status", os.R_OK), reason="measures with Linux's /proc")
@pytest.mark.parametrize("encoder", ["OgE", "OnE"])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_fit_takes_one_projected_copy(encoder, dtype):
    out = subprocess.run(
        [sys.executable, "-c", FIT.format(encoder=encoder, dtype=dtype)], capture_output=True, text=True, check=True
    ).stdout
    before, fitted, encoded, X_size, projected = map(float, out.split())
    assert before > X_size  # the measure works: X is in it
    assert fitted - before <= projected + 200
    assert encoded - fitted <= 64
