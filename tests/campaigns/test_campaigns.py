"""A part of every campaign that takes a minute at most; ``make campaign`` runs all of them in full.

Limits of time are generous here, as the machine may be busy; the campaign holds to half a second.
"""

import os

import pytest
from strange_files import STRANGE

from campaigns.crowds import soak, threads
from campaigns.fuzzed_files import FORMATS, fuzz
from campaigns.indexes import cycles, hostile_headers, loads_beside_savers
from campaigns.interrupts import WORK, command_line, interrupts
from campaigns.kills import kill_encodes, kill_saves
from campaigns.surroundings import (
    COMMANDS,
    FILES,
    files_and_links,
    forks,
    full_disk,
    locales,
    outputs_over_inputs,
    strange_arrays,
    streams,
    widths,
)

for _module in ("zarr", "h5py", "pyarrow"):
    pytest.importorskip(_module, reason=f"{_module} is not installed")
pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and locks are POSIX's")


def assert_clean(figures, at_least):
    assert figures.failures == []
    assert figures.tried >= at_least


@pytest.mark.parametrize("kind", FORMATS)
def test_fuzz(kind):
    assert_clean(fuzz(kind, 25, seed=1), 25)


def test_eight_threads_on_one_index():
    assert_clean(threads(4, seed=1), 50)


def test_soak():
    assert_clean(soak(2, seed=1), 1)


def test_loads_beside_savers():
    assert_clean(loads_beside_savers(40, seed=1), 40)


def test_cycles_of_an_index():
    assert_clean(cycles(20, seed=1), 180)


def test_hostile_headers_of_indexes():
    assert_clean(hostile_headers(150, seed=1), 150)


def test_kills_of_an_encode_file():
    assert_clean(kill_encodes(4, seed=1, n=20_000), 3)


def test_kills_of_saves():
    assert_clean(kill_saves(4, seed=1), 4)


def test_interrupts():
    assert_clean(interrupts(1, seed=1, n=200_000, limit=3), len(WORK))


def test_interrupts_of_a_command():
    assert_clean(command_line(1, seed=1), 1)


def test_files_and_links():
    assert_clean(files_and_links(len(FILES) * len(STRANGE), seed=1), 45)


def test_outputs_over_inputs():
    assert_clean(outputs_over_inputs(seed=1), 3 * len(COMMANDS))


def test_streams():
    assert_clean(streams(3, seed=1), 3)


def test_widths():
    assert_clean(widths(53, seed=1), 12)


def test_a_locale_with_decimal_commas():
    assert_clean(locales(seed=1), 0)


def test_strange_arrays():
    assert_clean(strange_arrays(seed=1), 40)


def test_forks():
    assert_clean(forks(2, seed=1), 2)


@pytest.mark.filterwarnings("ignore:.*ZipFile.__del__:pytest.PytestUnraisableExceptionWarning")  # of NumPy 2.0
def test_a_full_disk():
    assert_clean(full_disk(seed=1), 0)
