"""Where operands of the tensor cores lie in a warp: our kernels and simulators against NVIDIA's CuTe, on the host."""

from __future__ import annotations

import re
import subprocess
from importlib.resources import files
from pathlib import Path

import cuda_toolchain as toolchain
import pytest
from cuda_on_cpu import COMPILER, HERE

from scq_gpu.kernels.cuda.launch import read_source

pytestmark = [
    pytest.mark.cuda_toolchain,
    pytest.mark.skipif(
        toolchain.CUTE is None or toolchain.CUDA_HEADERS is None or COMPILER is None,
        reason=f"needs g++ and NVIDIA's headers: pip install {toolchain.HEADER_WHEELS}",
    ),
]
SIMULATOR = HERE.parent / "cupy_on_cpu" / "include" / "tensor_core.h"


def compare(folder: Path, *, kernel: str, simulator: str, ptx: str) -> str:
    """Compile and run fragments.cpp with our sources, and return what it says about differences."""
    (folder / "fragments.cuh").write_text(kernel)
    (folder / "tensor_core.h").write_text(simulator)
    [pair] = [line for line in ptx.splitlines() if line.startswith("#define MMA_F16") and "MMA_HALF" in line]
    (folder / "mma_f16_of_sm_75.h").write_text(pair + "\n")
    places = [folder, toolchain.CUTE, toolchain.CUDA_HEADERS, toolchain.CUDA_HEADERS / "cccl"]
    headers = ['-DKERNEL_HEADER="fragments.cuh"', '-DSIMULATOR_HEADER="tensor_core.h"']
    command = [COMPILER, "-std=c++17", "-w", *headers, *(f"-I{place}" for place in places)]
    program = folder / "fragments"
    subprocess.run([*command, HERE / "fragments.cpp", "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == bool(done.stdout)
    return done.stdout


def sources() -> dict[str, str]:
    ptx = (files("scq_gpu.kernels.cuda") / "ptx.cuh").read_text()
    return {"kernel": read_source("fragments.cuh"), "simulator": SIMULATOR.read_text(), "ptx": ptx}


def test_fragments_lie_where_cute_says(tmp_path):
    assert compare(tmp_path, **sources()) == ""


@pytest.mark.parametrize(
    ("where", "old", "new", "said"),
    [
        ("kernel", "8 * (i % 2)", "8 * (i / 2)", "kernel, row of A"),
        ("kernel", "4 * (i / 2); }", "4 * (i % 2); }", "kernel, number of A"),
        ("kernel", "lane % 4 + 4 * i;", "lane % 4 + 2 * i;", "kernel, number of B"),
        ("kernel", "2 * (lane % 4) + i % 2", "lane % 4 + 4 * (i % 2)", "kernel, column of C"),
        ("simulator", "row / 8 + k / 4 * 2", "row / 8 * 2 + k / 4", "simulator, register of A"),
        ("simulator", "column * 4 + k % 4", "column + k % 4 * 8", "simulator, lane of B"),
        (
            "simulator",
            "lane / 4 + 8 * unsigned(number / 2)",
            "lane / 4 * 2 + unsigned(number / 2)",
            "simulator, row of C",
        ),
        ("ptx", "a[0], a[1], b[0]", "a[0], a[2], b[0]", "ptx.cuh, second register of A"),
    ],
)
def test_a_wrong_index_is_noticed(tmp_path, where, old, new, said):
    changed = sources()
    assert len(re.findall(re.escape(old), changed[where])) == 1
    changed[where] = changed[where].replace(old, new)
    assert said in compare(tmp_path, **changed)
