"""The wheel, built: kernels and type marker are inside."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(
    importlib.util.find_spec("scikit_build_core") is None or importlib.util.find_spec("nanobind") is None,
    reason="scikit-build-core and nanobind, which build it, are not installed",
)
@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="pip is not installed")
def test_wheel_holds_kernels_and_type_marker(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--no-build-isolation", "--no-index"]
    run = subprocess.run([*build, "--wheel-dir", str(tmp_path)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    (wheel,) = tmp_path.glob("scq_gpu-*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    sources = [path for path in (ROOT / "scq_gpu" / "kernels" / "cuda").iterdir() if path.suffix in {".cu", ".cuh"}]
    assert {path.name for path in sources} >= {"asymmetric.cu", "encode.cu", "encode_mma.cu", "hamming.cu"}
    wanted = {path.relative_to(ROOT).as_posix() for path in sources} | {"scq_gpu/py.typed"}
    assert wanted <= inside
    assert not [name for name in inside if name.endswith((".cpp", ".h"))]
    assert not [name for name in inside if name.startswith(("tests/", "benchmarks/"))]
