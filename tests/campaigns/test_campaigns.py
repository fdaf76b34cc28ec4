"""A part of the campaigns that neither kill nor interrupt processes; ``make campaign`` runs all of them in full."""

import os

import pytest

from campaigns.campaigns import FORMATS, fuzz, soak, threads

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and locks are POSIX's")
for _module in ("zarr", "h5py", "pyarrow", "numba"):
    pytest.importorskip(_module, reason=f"{_module} is not installed")


def assert_clean(figures, at_least):
    assert figures.failures == []
    assert figures.tried >= at_least


@pytest.mark.parametrize("kind", FORMATS)
def test_fuzz(kind):
    assert_clean(fuzz(kind, 25, seed=1), 25)


def test_eight_threads_on_one_index():
    assert_clean(threads(5, seed=1), 50)


def test_soak():
    assert_clean(soak(2, seed=1), 1)
