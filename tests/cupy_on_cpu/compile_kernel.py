"""What libraries/nvrtc.cpp starts in place of NVRTC: a CUDA C++ source to a shared library, by g++.

    python compile_kernel.py FOLDER

FOLDER holds ``source.cu``, ``options`` and ``expressions`` (names of template kernels), one a line. Leaves ``image``,
which names the library, and ``log``, what g++ said. Libraries are kept in STANDIN_CACHE, by default ``kernels`` beside
this file, under a hash of everything that goes into them.

Not NVRTC's compiler: no machine code, registers, or limits of an architecture; ``-arch`` only sets ``__CUDA_ARCH__``,
and ``-ftz`` is ignored. `make test-cuda` compiles our kernels with NVIDIA's own.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import rewrite_source as rewrite

HOME = Path(__file__).resolve().parent
HEADERS = HOME / "include"
CACHE = Path(os.environ.get("STANDIN_CACHE") or HOME / "kernels")
LANGUAGE = "-std=gnu++17"
FLAGS = [
    *(LANGUAGE, "-O2", "-ftree-vectorize", "-march=native", "-fPIC", "-w", "-fpermissive", "-fno-strict-aliasing"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-gnu-unique", "-fvisibility=hidden"),
]
_COLLECTIVE = re.compile(r"__sync(threads|warp)|__shfl|__ballot|__any|__all_|__match|__shared__|\basm\b|bar\.sync")


class Mode(enum.IntEnum):
    """How a kernel is run; SimMode of include/fibers.h."""

    THREADS = 0
    ONE_THREAD = 1
    FIBERS = 2
    BLOCKS = 3


def main(folder: Path) -> int:
    """Compile, or find, the library for a folder; 0 if that went well."""
    source = (folder / "source.cu").read_text(encoding="utf-8")
    options = (folder / "options").read_text().splitlines()
    expressions = (folder / "expressions").read_text().splitlines()
    arch = next((re.search(r"\d+", option)[0] for option in options if "arch" in option), "80")
    flags = [option for option in options if option.startswith("-I") and "nvidia" not in option]
    flags += [option for option in options if option.startswith("-D") and not option.startswith("-DCUPY_USE_JITIFY")]
    flags.append(f"-D__CUDA_ARCH__={arch}0")
    own = b"".join(path.read_bytes() for path in sorted([*HEADERS.iterdir(), *HOME.glob("*.py")]))
    key = hashlib.sha256(repr((source, flags, expressions)).encode() + own).hexdigest()[:24]
    library = CACHE / f"{key}.so"
    if not library.exists():
        try:
            with open(folder / "log", "a") as log:
                Build(log, precompiled=CACHE / f"headers-{hashlib.sha256(own).hexdigest()[:16]}").library(
                    library, source, flags, expressions
                )
        except (subprocess.CalledProcessError, ValueError) as error:
            with open(folder / "log", "a") as log:
                log.write(f"{error}\n")
            return 1
    (folder / "image").write_text(f"CUDASTANDIN {library}\n")
    return 0


class Build:
    """One compilation: where g++ says what, and where the headers are kept parsed."""

    def __init__(self, log: object, *, precompiled: Path) -> None:
        self._log = log
        self._precompiled = precompiled

    def library(self, target: Path, source: str, flags: list[str], expressions: list[str]) -> None:
        """The shared library of a source; under its name only when it is complete."""
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        cpp = partial.with_suffix(f"{partial.suffix}.cpp")
        try:
            text, mode = self._plain_cpp(source, flags, cpp)
            exports = [f"SIM_EXPORT({name}, {name})" for name in rewrite.kernel_names(text)]
            exports += [f"SIM_EXPORT(({expression}), expression_{i})" for i, expression in enumerate(expressions)]
            end = "\n".join([*dict.fromkeys(exports), f"SIM_MODE({int(mode)})", ""])
            cpp.write_text(f'#include "cuda_on_cpu.h"\n#line 1 "kernel.cu"\n{text}\n#line 1 "exports"\n{end}')
            self._precompile_headers()
            libraries = [f"-L{HOME}/lib", "-l:libcuda.so.1", f"-Wl,-rpath,{HOME}/lib"]
            self._run(*FLAGS, f"-I{self._precompiled}", *flags, "-shared", cpp, "-o", partial, *libraries)
            partial.replace(target)
        finally:
            cpp.unlink(missing_ok=True)

    def _plain_cpp(self, source: str, flags: list[str], scratch: Path) -> tuple[str, Mode]:
        """The source as C++, and how it is to be run."""
        code = re.sub(r"^\s*#include.*$", "", rewrite.without_comments(source), flags=re.M)
        text, mode = self._choose_mode(source, code)
        text = rewrite.without_integer_typedefs(text)
        if re.search(r"\basm\b", code):
            text = rewrite.call_for_ptx(rewrite.without_integer_typedefs(self._preprocess(text, flags, scratch)))
        text = rewrite.point_to_dynamic_shared(text)
        return (rewrite.serial_loops(text) if mode == Mode.ONE_THREAD else text), mode

    @staticmethod
    def _choose_mode(source: str, code: str) -> tuple[str, Mode]:
        if not _COLLECTIVE.search(code):
            in_a_loop = "CUPY_FOR" in code and not re.search(r"threadIdx|blockIdx", code)
            return source, Mode.ONE_THREAD if in_a_loop else Mode.THREADS
        if (serial := rewrite.serial_reduction(source)) is not None:
            return serial, Mode.BLOCKS
        if (serial := rewrite.serial_scan(source)) is not None:
            return serial, Mode.ONE_THREAD
        return source, Mode.FIBERS

    def _preprocess(self, text: str, flags: list[str], scratch: Path) -> str:
        """Macros expanded: PTX may stand in them."""
        done = scratch.with_suffix(".ii")
        scratch.write_text(text)
        self._run("-E", "-P", "-x", "c++", LANGUAGE, "-D__shared__=__shared__", *flags, scratch, "-o", done)
        text = done.read_text()
        done.unlink()
        return text

    def _precompile_headers(self) -> None:
        """The headers that stand before every kernel, parsed once."""
        if self._precompiled.exists():
            return
        partial = self._precompiled.with_suffix(f".{os.getpid()}")
        partial.mkdir()
        for header in HEADERS.iterdir():
            (partial / header.name).write_bytes(header.read_bytes())
        header = partial / "cuda_on_cpu.h"
        self._run(*FLAGS, "-x", "c++-header", header, "-o", header.with_suffix(".h.gch"))
        with contextlib.suppress(OSError):  # another process was quicker
            partial.rename(self._precompiled)

    def _run(self, *arguments: object) -> None:
        subprocess.run(["g++", *map(str, arguments)], check=True, stdout=self._log, stderr=self._log)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
