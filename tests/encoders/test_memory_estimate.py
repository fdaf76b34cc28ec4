"""The estimate against what a process of its own was seen to take."""

import json

import pytest
from measured_memory import measure, needs_peaks

import scq_gpu as scq

MEASURE = """
import json, sys
import numpy as np
import scq_gpu as scq

def rows(n, d, dtype):
    rng = np.random.default_rng(0)
    X, few = np.empty((n, d), dtype=dtype), (50 * rng.standard_normal((1000, d), dtype=np.float32)).astype(dtype)
    for start in range(0, n, 1000):
        X[start : start + 1000] = few[: n - start]
    return X

scq.OgE(n_bits=4, max_iter=2, tol=0, random_state=0).fit(rows(300, 20, "float32")).encode(rows(300, 20, "float32"))
n, d, n_bits, dtype, n_init = json.loads(sys.argv[1])
X = rows(n, d, dtype)
fit, encoder = peak(lambda: scq.OgE(n_bits, max_iter=2, tol=0, random_state=0, n_init=n_init).fit(X))
encode, _ = peak(lambda: encoder.encode(X))
print(fit, encode)
"""


@needs_peaks
@pytest.mark.parametrize(
    ("case", "at_least"),
    [
        pytest.param((200_000, 320, 16, "float32", 1), 200e6, id="projected copy"),
        pytest.param((400, 600, 64, "float32", 80), 100e6, id="starts"),
        pytest.param((2_000, 1900, 8, "float32", 1), 100e6, id="axes"),
    ],
)
def test_agrees_with_measurement(case, at_least):
    fit, encode = measure(MEASURE, json.dumps(case))
    n, d, n_bits, dtype, n_init = case
    estimate = scq.estimate_memory(n, d, n_bits, dtype=dtype, n_init=n_init)
    assert fit >= at_least  # the measure works
    assert abs(estimate.fit - fit) <= 0.25 * fit + 50e6
    assert abs(estimate.encode - encode) <= 0.25 * encode + 50e6


def test_what_it_is_made_of():
    estimate = scq.estimate_memory(10**6, 512, 32, dtype="float16")
    assert estimate.rows == 10**6 * 512 * 2
    assert estimate.parts["projected"] == 10**6 * 256 * 4  # float16 is worked on in float32
    assert estimate.parts["codes"] == 4 * 10**6
    assert estimate.fit > estimate.parts["projected"]
    assert scq.estimate_memory(10**6, 512, 32, dtype="float64").parts["projected"] == 10**6 * 256 * 8
    for n_components, kept in ((100, 100), (5000, 4096), (None, 4096), ("auto", 256)):
        wide = scq.estimate_memory(10**6, 4096, 16, n_components=n_components, dtype="float16")
        assert wide.parts["projected"] == 10**6 * kept * 4
    assert scq.estimate_memory(10**6, 4096, 16, n_components=None).parts["projected"] == 0  # goes through X itself
    assert "fit 1,104 MB" in str(estimate)


def test_from_files_it_does_not_grow_with_the_rows():
    small, large = (scq.estimate_memory(n, 512, 32, kind="file") for n in (10**6, 10**9))
    assert small.rows == large.rows == 0
    assert small.fit == large.fit < 200e6
    assert large.encode > 4e9  # the codes are in memory: encode_file writes them as they come
    assert scq.estimate_memory(10**5, 512, 32, kind="file").parts["projected"] == 10**5 * 256 * 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 0}, "n=0 must be an integer >= 1"),
        ({"d": 2.5}, "d=2.5 must be an integer"),
        ({"n_bits": 0}, "n_bits=0"),
        ({"n_init": -1}, "n_init=-1"),
        ({"n_components": "many"}, "n_components='many' must be an integer >= 1"),
        ({"preserve": "order"}, "preserve='order' is not one of 'neighbors', 'classes'"),
        ({"kind": "cloud"}, "kind='cloud' is not one of 'array', 'file'"),
        ({"dtype": "complex64"}, "dtype='complex64' is not one of real numbers"),
    ],
)
def test_bad_arguments(change, message):
    with pytest.raises(ValueError, match=message):
        scq.estimate_memory(**{"n": 100, "d": 10, "n_bits": 4} | change)
