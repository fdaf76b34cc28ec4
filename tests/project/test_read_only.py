"""A read-only installation and no writable home, as in a hardened container: native loops work all the same."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from scq_gpu.kernels import native

ROOT = Path(__file__).parents[2]
ENCODE = """
import numpy as np
import scq_gpu as scq

rng = np.random.default_rng(0)
encoder = scq.LSH(n_bits=8, random_state=0).fit(rng.standard_normal((50, 16)))
assert encoder.encode(rng.standard_normal((50, 16))).shape == (50, 1)
print(scq.__file__)
"""
SEARCH = """
import numpy as np
import scq_gpu as scq

codes = np.random.default_rng(0).integers(0, 256, size=(300, 4), dtype=np.uint8)
index = scq.HammingIndex(codes, 32)
assert (index.search(codes[:5], 1)[0] == 0).all()
print(scq.__file__)
"""


@pytest.fixture
def read_only():
    """A folder with the package in it, and a function that runs a script there: its home, where it may not write."""
    if os.name != "posix":
        pytest.skip("modes and users are POSIX's")
    folder = Path(tempfile.mkdtemp())

    def run(script):
        # an editable installation finds the package elsewhere, whatever PYTHONPATH says
        here = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'Redirecting' not in type(f).__name__]\n"
        command = [sys.executable, "-c", here + script]
        if os.geteuid() == 0:  # who may write anywhere, unless that right is taken away
            if shutil.which("setpriv") is None:
                pytest.skip("runs as root, and there is no setpriv to take root's rights away")
            command = ["setpriv", "--bounding-set=-dac_override", *command]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
        environment |= {"HOME": str(folder), "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    try:
        shutil.copytree(ROOT / "scq_gpu", folder / "scq_gpu", ignore=shutil.ignore_patterns("__pycache__"))
        if native.core is not None:
            shutil.copy(native.core.__file__, folder / "scq_gpu" / "kernels" / "native")
        for path in (folder, *folder.rglob("*")):
            path.chmod((path.stat().st_mode | stat.S_IRGRP | stat.S_IROTH) & ~0o222 | (0o555 if path.is_dir() else 0))
        yield folder, run
    finally:
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755)
        shutil.rmtree(folder)


def test_a_search_without_a_place_to_write_to(read_only):
    folder, run = read_only
    assert run(SEARCH) == [str(folder / "scq_gpu" / "__init__.py")]


def test_an_encode_without_a_place_to_write_to(read_only):
    folder, run = read_only
    assert run(ENCODE) == [str(folder / "scq_gpu" / "__init__.py")]


def test_an_encode_leaves_nothing_where_it_may_write(tmp_path):
    places = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME"), str(tmp_path))
    environment = os.environ | places | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", ENCODE], env=environment, cwd=tmp_path, check=True, capture_output=True)
    assert not list(tmp_path.iterdir())
