"""Any sequence of operations on an index; `make campaign` runs 2,000 more."""

import pytest
from index_machine import run_machine


@pytest.mark.parametrize("in_files", [False, True])
def test_any_sequence_of_operations(monkeypatch, in_files):
    run_machine(monkeypatch, examples=25, steps=12, in_files=in_files, derandomize=True)
