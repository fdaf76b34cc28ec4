"""A read-only installation and no writable home, as in a hardened container: compiled loops work all the same."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("numba", reason="numba is not installed")

ROOT = Path(__file__).parents[2]
WORK = """
import numpy as np
import scq_gpu as scq
from scq_gpu.kernels import engines, hamming_numba

engines.PAIRS = 1
rng = np.random.default_rng(0)
codes = rng.integers(0, 256, size=(300, 4), dtype=np.uint8)
index = scq.HammingIndex(codes, 32)
assert (index.search(codes[:5], 1)[0] == 0).all()
encoder = scq.LSH(n_bits=8, random_state=0).fit(rng.standard_normal((50, 16)))
encoder.encode(rng.standard_normal((50, 16)))
print(scq.__file__, hamming_numba._scan.stats.cache_path)
"""


@pytest.mark.skipif(os.name != "posix", reason="modes and users are POSIX's")
def test_compiled_loops_without_a_place_for_their_cache():
    folder = Path(tempfile.mkdtemp())
    try:
        shutil.copytree(ROOT / "scq_gpu", folder / "scq_gpu", ignore=shutil.ignore_patterns("__pycache__"))
        for path in (folder, *folder.rglob("*")):
            path.chmod((path.stat().st_mode | stat.S_IRGRP | stat.S_IROTH) & ~0o222 | (0o555 if path.is_dir() else 0))
        command = [sys.executable, "-c", WORK]
        if os.geteuid() == 0:  # who may write anywhere, unless that right is taken away
            if shutil.which("setpriv") is None:
                pytest.skip("runs as root, and there is no setpriv to take root's rights away")
            command = ["setpriv", "--bounding-set=-dac_override", *command]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_CACHE", "XDG_"))}
        environment |= {"HOME": str(folder), "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        run = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        assert run.stdout.split() == [str(folder / "scq_gpu" / "__init__.py"), "None"]
    finally:
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755)
        shutil.rmtree(folder)


def test_a_full_disk_costs_the_cache_and_nothing_else(tmp_path, monkeypatch):
    from scq_gpu.kernels.threads import compiled

    @compiled()
    def add(x, y):
        return x + y

    def fail(*_):
        raise OSError(28, "No space left on device")

    from numba.core import caching

    monkeypatch.setattr(caching.IndexDataCacheFile, "save", fail)
    assert add(1, 2) == 3
