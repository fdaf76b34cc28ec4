"""The kernels of the small algebra compile for every architecture, without spills; no GPU, no driver."""

from __future__ import annotations

import cuda_toolchain as toolchain
import pytest

from scq_gpu.kernels import linalg
from scq_gpu.kernels.cuda.launch import RealVariant, build_options, read_source

pytestmark = [
    pytest.mark.cuda_toolchain,
    pytest.mark.skipif(
        not (toolchain.NVRTC and toolchain.CUOBJDUMP and toolchain.NVDISASM),
        reason=f"needs NVIDIA's compiler wheels: pip install {toolchain.WHEELS}",
    ),
]


@pytest.mark.parametrize("line", list(toolchain.NVRTC))
@pytest.mark.parametrize("arch", toolchain.ARCHITECTURES)
@pytest.mark.parametrize("element", ["float32", "float64"])
@pytest.mark.parametrize("kernel", ["inverse_roots", "find_column"])
def test_budget(kernel, element, arch, line):
    variant = linalg.variant(element) if kernel == "inverse_roots" else RealVariant("column.cu", element)
    cubin = toolchain.compile_cubin(read_source(variant.source), build_options(variant), arch, line)
    budgets = toolchain.read_budgets(cubin, arch)
    assert list(budgets) == [kernel]
    assert budgets[kernel].spills == 0
    assert budgets[kernel].registers <= 128  # two blocks of 256 threads on a multiprocessor
