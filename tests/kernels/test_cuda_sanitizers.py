"""The kernels under the address, undefined-behaviour and thread sanitizers, and kernels with mistakes in them.

Each run is a process of its own, with the sanitizer's library preloaded; each mutant's a child of such a process.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cuda_on_cpu import COMPILER
from cuda_on_cpu.mutants import MUTANTS

TESTS = Path(__file__).parents[1]
LIBRARIES = {"plain": [], "asan": ["libasan.so", "libubsan.so"], "tsan": ["libtsan.so"]}
TSAN_EXIT = 66

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the simulator needs g++")


def preload(mode: str) -> str:
    paths = [
        subprocess.run(
            [COMPILER, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in LIBRARIES[mode]
    ]
    missing = [path for path in paths if not Path(path).is_absolute()]
    if missing:
        pytest.skip(f"g++ comes without {', '.join(missing)}")
    return ":".join(paths)


def run(mode: str, libraries: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "LD_PRELOAD": libraries,
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "halt_on_error=1",
        "TSAN_OPTIONS": f"halt_on_error=1:exitcode={TSAN_EXIT}",
        "PYTHONMALLOC": "malloc",
        "OPENBLAS_NUM_THREADS": "1",
    }
    fixed_addresses = ["setarch", "-R"] if mode == "tsan" and shutil.which("setarch") else []  # TSan wants its ranges
    command = [*fixed_addresses, sys.executable, "-m", "cuda_on_cpu.cases", mode, *arguments]
    return subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def mutant_runs(tmp_path_factory):
    """Exit status and what was said, by mutant: a process for each way to compile them, started together."""
    folder = tmp_path_factory.mktemp("mutants")
    libraries = {mode: preload(mode) for mode in LIBRARIES}
    with ThreadPoolExecutor(max_workers=min(len(LIBRARIES), os.cpu_count() or 1)) as pool:
        done = list(pool.map(lambda mode: run(mode, libraries[mode], "mutants", str(folder)), LIBRARIES))
    assert [run.returncode for run in done] == [0] * len(done), "".join(run.stderr for run in done)[-4000:]
    return {
        name: (int((folder / f"{number}.status").read_text()), (folder / f"{number}.stderr").read_text())
        for number, name in enumerate(MUTANTS)
    }


@pytest.mark.parametrize("mode", ["asan", "tsan"])
def test_clean(mode):
    done = run(mode, preload(mode), "all")
    assert done.returncode == 0, done.stderr[-4000:]
    assert "runtime error" not in done.stderr


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught_for_its_reason(mutant_runs, name):
    mutant = MUTANTS[name]
    status, said = mutant_runs[name]
    assert status != 0, "the mistake went unnoticed"
    assert re.search(mutant.reason, said), said[-4000:]
    if mutant.mode == "tsan":
        assert status == TSAN_EXIT


def test_stale_mutant_is_rejected():
    with pytest.raises(LookupError, match="is not in the source"):
        next(iter(MUTANTS.values())).apply("int main() {}")
