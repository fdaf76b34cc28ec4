"""NVRTC, cuobjdump and nvdisasm from NVIDIA's wheels: compile kernels and read what came out, without a GPU or driver.

``python tests/cuda_toolchain.py`` prints the table of static budgets.
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


def _find(pattern: str) -> Path | None:
    spec = importlib.util.find_spec("nvidia")
    places = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    return next((path for place in places for path in sorted(place.glob(pattern))), None)


NVRTC = {line: path for line in ("12", "13") if (path := _find(f"*/lib/libnvrtc.so.{line}"))}
CUOBJDUMP = _find("*/bin/cuobjdump")
NVDISASM = _find("*/bin/nvdisasm")


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


def main() -> None:
    """Print a line for every kernel: what it takes on each architecture; ratios and counts are the smallest of them."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from scq_gpu.kernels.cuda.asymmetric import SELECT_SHARED, AsymmetricVariant, asymmetric_variants
    from scq_gpu.kernels.cuda.encode import EncodeVariant, encode_variants
    from scq_gpu.kernels.cuda.hamming import hamming_variants
    from scq_gpu.kernels.cuda.launch import SHARED_BYTES, THREADS, build_options, read_source

    line = max(NVRTC)
    archs = " ".join(map(str, ARCHITECTURES))
    print(f"| kernel | shared, bytes | registers (sm {archs}) | blocks an SM (the same) | spills | FFMA : LDS | HMMA |")
    print("|---|---|---|---|---|---|---|")
    for variant in [*encode_variants(), *hamming_variants(), *asymmetric_variants()]:
        budgets: dict[str, list[Budget]] = collections.defaultdict(list)
        for arch in ARCHITECTURES:
            if arch >= variant.min_capability:
                cubin = compile_cubin(read_source(variant.source), build_options(variant), arch, line)
                for name, budget in read_budgets(cubin, arch).items():
                    budgets[name].append(budget)
        for name, found in sorted(budgets.items()):
            if isinstance(variant, EncodeVariant):
                label, shared = f"{variant.element} {variant.precision}, {variant.tile_bits} bits", variant.shared
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
    main()
