"""NVRTC, cuobjdump and nvdisasm from NVIDIA's wheels: compile kernels and read what came out, without a GPU or driver.

``python tests/cuda_toolchain.py`` prints the table of static budgets, with ``--issue`` the instructions that the loops
of the tensor-core kernels issue.
"""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import functools
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")  # what CuPy adds to ours
WHEELS = "nvidia-cuda-nvrtc nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
HEADER_WHEELS = "nvidia-cutlass nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl"


def _find(pattern: str) -> Path | None:
    spec = importlib.util.find_spec("nvidia")
    places = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    return next((path for place in places for path in sorted(place.glob(pattern))), None)


def _find_cute() -> Path | None:
    spec = importlib.util.find_spec("cutlass_library")
    places = [Path(place) / "source" / "include" for place in (spec.submodule_search_locations or [])] if spec else []
    return next((place for place in places if (place / "cute").exists()), None)


NVRTC = {line: path for line in ("12", "13") if (path := _find(f"*/lib/libnvrtc.so.{line}"))}
CUOBJDUMP = _find("*/bin/cuobjdump")
NVDISASM = _find("*/bin/nvdisasm")
CUTE = _find_cute()
CUDA_HEADERS = path.parent if (path := _find("*/include/cuda_fp16.h")) else None


@functools.cache
def _nvrtc(line: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(NVRTC[line]))


def _text(read_size: object, read: object, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    read_size(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    read(program, buffer)
    return buffer.raw


def compile_cubin(source: str, options: tuple[str, ...], arch: int, line: str) -> Path:
    """Compile with the NVRTC of a CUDA line ("12" or "13"); the result is kept for equal sources and options."""
    options = (*options, *CUPY_OPTIONS, f"-arch=sm_{arch}")
    key = hashlib.sha256(repr((source, options, str(NVRTC[line]), NVRTC[line].stat().st_size)).encode()).hexdigest()[
        :20
    ]
    folder = Path(tempfile.gettempdir()) / f"cuda_toolchain-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{key}.cubin"
    if path.exists():
        return path
    nvrtc, program = _nvrtc(line), ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    if nvrtc.nvrtcCompileProgram(program, len(options), arguments):
        log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        raise RuntimeError(f"NVRTC {line}, sm_{arch}:\n{log.decode()}")
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_bytes(_text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program))
    partial.replace(path)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return path


@dataclasses.dataclass(frozen=True)
class Machine:
    """Limits of an architecture: per multiprocessor, and of a block's shared memory."""

    threads: int
    blocks: int
    shared: int
    block_shared: int
    registers: int = 65536


MACHINES = {
    75: Machine(1024, 16, 64 << 10, 64 << 10),
    80: Machine(2048, 32, 164 << 10, 163 << 10),
    86: Machine(1536, 16, 100 << 10, 99 << 10),
    89: Machine(1536, 24, 100 << 10, 99 << 10),
    90: Machine(2048, 32, 228 << 10, 227 << 10),
    100: Machine(2048, 32, 228 << 10, 227 << 10),
    120: Machine(1536, 24, 100 << 10, 99 << 10),
}


@dataclasses.dataclass(frozen=True)
class Budget:
    """What a compiled kernel takes."""

    arch: int
    registers: int
    stack: int
    opcodes: collections.Counter[str]

    def count(self, pattern: str) -> int:
        """Instructions whose opcode matches a pattern."""
        return sum(n for opcode, n in self.opcodes.items() if re.match(pattern, opcode))

    @property
    def spills(self) -> int:
        """Loads from and stores to local memory."""
        return self.count(r"STL|LDL")

    def blocks(self, threads: int, shared: int) -> int:
        """Blocks that fit a multiprocessor."""
        machine = MACHINES[self.arch]
        if shared > machine.block_shared:
            return 0
        reserved = 1024 if self.arch >= 80 else 0
        by_shared = machine.shared // (-(-(shared + reserved) // 128) * 128)
        warp_registers = -(-self.registers * 32 // 256) * 256
        by_registers = machine.registers // warp_registers // (threads // 32)
        return min(machine.blocks, machine.threads // threads, by_registers, by_shared)


def read_budgets(cubin: Path, arch: int) -> dict[str, Budget]:
    """The budget of every kernel of a cubin. Instructions that never execute (``@!PT``) do not count."""
    usage = subprocess.check_output([CUOBJDUMP, "-res-usage", cubin], text=True, stderr=subprocess.STDOUT)
    resources = re.findall(r"Function (\w+):\s+REG:(\d+) STACK:(\d+)", usage)
    sass = subprocess.check_output([NVDISASM, "-c", cubin], text=True, stderr=subprocess.DEVNULL)
    bodies = dict(re.findall(r"\.section\s+\.text\.(\w+),.*?\n(.*?)(?=\n\s*\.section\s|\Z)", sass, flags=re.DOTALL))
    opcode = re.compile(r"/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\d+\s+)?([A-Z][A-Z0-9_.]*)")
    return {
        name: Budget(arch, int(registers), int(stack), collections.Counter(opcode.findall(bodies[name])))
        for name, registers, stack in resources
    }


# cycles of a warp's product of 16 x 8 x 32 bytes on a quarter of a multiprocessor, by the peaks of the data sheets
PRODUCT_CYCLES = {80: 8, 90: 4}


def read_loop(cubin: Path) -> tuple[int, int]:
    """Return the products of a tensor-core kernel's main loop, and at most how many instructions one turn issues.

    The loops within it copy 16 bytes a thread, and turn twice for tiles of 128 rows and 64 bytes. Loops within those
    copy what is not aligned, and are left out.
    """
    sass = subprocess.check_output([NVDISASM, "-c", cubin], text=True, stderr=subprocess.DEVNULL)
    code: list[str] = []
    labels: dict[str, int] = {}
    loops: list[range] = []
    for line in sass.splitlines():
        if label := re.match(r"(\.L_\w+):", line.strip()):
            labels[label[1]] = len(code)
        elif instruction := re.search(r"/\*[0-9a-f]{4,5}\*/\s+(.*?);", line):
            code.append(instruction[1])
            to = re.search(r"BRA(?:\.\w+)*\s.*`\((\.L\w+)\)", code[-1])
            if to and to[1] in labels:
                loops.append(range(labels[to[1]], len(code)))

    def count(loop: range, opcode: str) -> int:
        return sum(opcode in code[i] for i in loop)

    main = min((loop for loop in loops if count(loop, "HMMA")), key=len)
    inner = [loop for loop in loops if loop != main and loop.start in main and loop[-1] in main]
    copies = [loop for loop in inner if count(loop, "LDGSTS")]
    edges = [loop for loop in inner if not count(loop, "LDGSTS")]
    return count(main, "HMMA"), len(main) + sum(map(len, copies)) - 2 * sum(map(len, edges))


def print_issue() -> None:
    """Print, for tiles of 128 bits, what share of the tensor cores' peak the issue of instructions leaves."""
    from scq_gpu.kernels.cuda.encode import EncodeVariant
    from scq_gpu.kernels.cuda.launch import build_options, read_source

    print("| kernel | architecture | products | instructions, at most | cycles of the products | share of the peak |")
    print("|---|---|---|---|---|---|")
    for element, precision in (("float32", "fast"), ("float32", "accurate"), ("float16", "fast")):
        variant = EncodeVariant(element, 128, precision)
        for arch, cycles in PRODUCT_CYCLES.items():
            source, options = read_source(variant.source), build_options(variant)
            products, issued = read_loop(compile_cubin(source, options, arch, max(NVRTC)))
            share = min(1.0, cycles * products / issued)
            print(f"| {element} {precision} | sm_{arch} | {products} | {issued} | {cycles * products} | {share:.0%} |")


def print_budgets() -> None:
    """Print a line for every kernel: what it takes on each architecture; ratios and counts are the smallest of them."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from scq_gpu.kernels.cuda.asymmetric import SELECT_SHARED, AsymmetricVariant, asymmetric_variants
    from scq_gpu.kernels.cuda.encode import EncodeVariant, encode_variants
    from scq_gpu.kernels.cuda.hamming import hamming_variants
    from scq_gpu.kernels.cuda.launch import SHARED_BYTES, THREADS, build_options, read_source
    from scq_gpu.kernels.cuda.quantize import WIDTHS, QuantizeVariant

    line = max(NVRTC)
    archs = " ".join(map(str, ARCHITECTURES))
    print(f"| kernel | shared, bytes | registers (sm {archs}) | blocks an SM (the same) | spills | FFMA : LDS | HMMA |")
    print("|---|---|---|---|---|---|---|")
    quantize = map(QuantizeVariant, WIDTHS)
    for variant in [*encode_variants(), *quantize, *hamming_variants(), *asymmetric_variants()]:
        budgets: dict[str, list[Budget]] = collections.defaultdict(list)
        for arch in ARCHITECTURES:
            if arch >= variant.min_capability:
                cubin = compile_cubin(read_source(variant.source), build_options(variant), arch, line)
                for name, budget in read_budgets(cubin, arch).items():
                    budgets[name].append(budget)
        for name, found in sorted(budgets.items()):
            if isinstance(variant, EncodeVariant):
                label, shared = f"{variant.element} {variant.precision}, {variant.tile_bits} bits", variant.shared
            elif isinstance(variant, QuantizeVariant):
                label, shared = f"nearest_cells, cells of {variant.width}", variant.shared
            elif isinstance(variant, AsymmetricVariant):
                label, shared = name, SHARED_BYTES if name.endswith("scores") else SELECT_SHARED
                label += f", {variant.queries} queries" if name.endswith("scores") else ""
            else:
                few = ", few queries" if variant.few else ""
                label, shared = f"{name}, {32 * variant.n_words} bits{few}", variant.kernels[name]
            missing = ["-"] * (len(ARCHITECTURES) - len(found))
            registers = " ".join([*missing, *(str(b.registers) for b in found)])
            blocks = " ".join([*missing, *(str(b.blocks(THREADS, shared)) for b in found)])
            ratio = min(b.count("FFMA") / b.count("LDS") for b in found) if "encode" in variant.source else 0
            tensor = min(b.count("HMMA") for b in found)
            spills = max(b.spills for b in found)
            cells = (label, shared, registers, blocks, spills, f"{ratio:.1f}" if ratio else "-", tensor or "-")
            print("|", " | ".join(map(str, cells)), "|")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    print_issue() if "--issue" in sys.argv else print_budgets()
