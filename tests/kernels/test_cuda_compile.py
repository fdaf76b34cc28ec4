"""Every kernel variant compiles for every architecture it is meant for, within its static budget; no GPU, no driver.

NVRTC is what CuPy compiles with. nvcc, with its own headers, is what people reach for to try or profile a kernel alone.
"""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path

import cuda_toolchain as toolchain
import pytest

from scq_gpu.kernels.cuda import asymmetric
from scq_gpu.kernels.cuda.asymmetric import AsymmetricVariant, asymmetric_variants
from scq_gpu.kernels.cuda.encode import EncodeVariant, MapVariant, encode_variants
from scq_gpu.kernels.cuda.hamming import HammingVariant, hamming_variants
from scq_gpu.kernels.cuda.launch import SHARED_BYTES, THREADS, build_options, read_source
from scq_gpu.kernels.cuda.quantize import WIDTHS, QuantizeVariant

pytestmark = pytest.mark.cuda_toolchain
needs_wheels = pytest.mark.skipif(
    not (toolchain.NVRTC and toolchain.CUOBJDUMP and toolchain.NVDISASM),
    reason=f"needs NVIDIA's compiler wheels: pip install {toolchain.WHEELS}",
)
NVCC = shutil.which("nvcc")
LINES = list(toolchain.NVRTC)
ENCODE = [(v, arch) for v in encode_variants() for arch in toolchain.ARCHITECTURES if arch >= v.min_capability]
HAMMING = [(v, arch) for v in hamming_variants() for arch in toolchain.ARCHITECTURES]
QUANTIZE = [(QuantizeVariant(width), arch) for width in WIDTHS for arch in toolchain.ARCHITECTURES]
MAP = [(MapVariant(element), arch) for element in ("float16", "bfloat16") for arch in toolchain.ARCHITECTURES]
ASYMMETRIC = [(v, arch) for v in asymmetric_variants() for arch in toolchain.ARCHITECTURES]


def label(value: object) -> str:
    if isinstance(value, EncodeVariant):
        return f"{value.element}-{value.precision}-{value.tile_bits}"
    if isinstance(value, AsymmetricVariant):
        return f"{value.queries}queries"
    if isinstance(value, MapVariant):
        return value.element
    if isinstance(value, QuantizeVariant):
        return f"{value.width}wide"
    if isinstance(value, HammingVariant):
        return f"{32 * value.n_words}bits{'-few' if value.few else ''}"
    return f"sm_{value}"


@pytest.fixture(scope="module", params=LINES)
def compiled(request):
    """Compile all variants that tests ask for side by side, by the NVRTC of one CUDA line, and return their budgets."""

    def compile_one(job):
        variant, arch = job
        cubin = toolchain.compile_cubin(read_source(variant.source), build_options(variant), arch, request.param)
        return toolchain.read_budgets(cubin, arch)

    wanted = [item.callspec.params for item in request.session.items if "compiled" in item.fixturenames]
    jobs = list(dict.fromkeys((params["variant"], params["arch"]) for params in wanted))
    with ThreadPoolExecutor() as pool:
        return dict(zip(jobs, pool.map(compile_one, jobs), strict=True))


@needs_wheels
@pytest.mark.parametrize(("variant", "arch"), ENCODE, ids=label)
def test_encode_budget(compiled, variant, arch):
    budgets = compiled[variant, arch]
    assert list(budgets) == [variant.kernel]
    budget = budgets[variant.kernel]
    assert budget.spills == budget.stack == 0
    assert budget.count(r"LDGSTS.*\.128" if arch >= 80 else r"LDG\..*\.128") >= 2, "X and W come in 16-byte pieces"
    if variant.precision == "exact":
        assert budget.registers <= 128
        assert budget.count("HMMA") == 0
        assert budget.count("FFMA") >= 4 * budget.count("LDS"), "register tiling"
        assert budget.blocks(THREADS, variant.shared) >= (2 if arch > 75 else 1)
    else:
        assert budget.registers <= 128
        assert budget.count("FFMA") == 0
        assert budget.count(r"HMMA.*TF32" if variant.element == "float32" else r"HMMA.*F32(?!\.TF32)") > 0
        assert budget.blocks(THREADS, variant.shared) >= 1


@needs_wheels
@pytest.mark.parametrize(("variant", "arch"), QUANTIZE, ids=label)
def test_quantize_budget(compiled, variant, arch):
    budget = compiled[variant, arch][variant.kernel]
    assert budget.spills == budget.stack == 0
    assert budget.registers <= 128
    assert budget.count("FFMA") >= 4 * budget.count(r"LDS.*\.128") > 0, "rows share the cells that are read"
    assert budget.blocks(THREADS, variant.shared) >= (2 if arch > 75 else 1)


@needs_wheels
@pytest.mark.parametrize(("variant", "arch"), MAP, ids=label)
def test_map_budget(compiled, variant, arch):
    budget = compiled[variant, arch]["round_map"]
    assert budget.spills == budget.stack == 0
    assert budget.registers <= 64


@needs_wheels
@pytest.mark.parametrize(("variant", "arch"), HAMMING, ids=label)
def test_hamming_budget(compiled, variant, arch):
    budgets = compiled[variant, arch]
    assert set(budgets) == set(variant.kernels)
    for name, budget in budgets.items():
        assert budget.spills == budget.stack == 0
        assert budget.registers <= 96
        assert budget.blocks(THREADS, variant.kernels[name]) >= (2 if arch > 75 else 1)
        if variant.few and name != "hamming_plan":
            assert budget.count("LDG") >= 4 * min(4, variant.n_words), "the words of four items are under way at a time"
        elif name != "hamming_plan":
            assert budget.count(r"LDGSTS.*\.128" if arch >= 80 else r"LDG\..*\.128") > 0
            assert budget.count("POPC") >= variant.n_words


@needs_wheels
@pytest.mark.parametrize(("variant", "arch"), ASYMMETRIC, ids=label)
def test_asymmetric_budget(compiled, variant, arch):
    budgets = compiled[variant, arch]
    assert set(budgets) == set(variant.kernels)
    shared = dict.fromkeys(variant.kernels, asymmetric.SELECT_SHARED)
    for name in ("asymmetric_scores", "cell_scores"):
        shared[name] = SHARED_BYTES
    for name, bytes_of_shared in shared.items():
        assert budgets[name].spills == budgets[name].stack == 0
        assert budgets[name].registers <= 64
        assert budgets[name].blocks(THREADS, bytes_of_shared) >= (2 if arch > 75 else 1)
    scores = budgets["asymmetric_scores"]
    assert scores.count("LDS") >= 2 * variant.queries, "sums come from tables in shared memory"
    assert budgets["cell_scores"].count("LDS") >= variant.queries
    if variant.queries > 1:
        assert scores.count("LDG") < scores.count("LDS"), "queries share the bytes of a code"


@needs_wheels
@pytest.mark.parametrize("line", LINES)
def test_tensor_cores_are_rejected_where_there_are_none(line):
    variant = EncodeVariant("float32", 32, "fast")
    with pytest.raises(RuntimeError, match="sm_75"):
        toolchain.compile_cubin(read_source(variant.source), build_options(variant), 75, line)


def nvcc(source: str, options: tuple[str, ...], arch: int, folder: Path) -> None:
    path = str(files("scq_gpu.kernels.cuda") / source)
    command = [NVCC, *options, f"-arch=sm_{arch}", "-Werror=all-warnings", "-cubin", "-o", folder / "k", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(NVCC is None, reason="nvcc is not on the PATH")
@pytest.mark.parametrize(
    "variant",
    [*encode_variants(), *hamming_variants(), *asymmetric_variants(), *map(QuantizeVariant, WIDTHS)],
    ids=label,
)
def test_nvcc_compiles_the_file_as_it_lies_there(variant, tmp_path):
    nvcc(variant.source, build_options(variant), max(80, variant.min_capability), tmp_path)


@pytest.mark.skipif(NVCC is None, reason="nvcc is not on the PATH")
@pytest.mark.parametrize("real", ["float", "double"])
def test_nvcc_compiles_roots(real, tmp_path):
    nvcc("roots.cu", ("--std=c++17", f"-DREAL={real}", "-DEPS=1e-7", "-DSTEEPEST=1.5"), 80, tmp_path)
