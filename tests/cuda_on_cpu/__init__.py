"""Runs the CUDA kernels on the CPU: the sources unchanged, every CUDA thread a fiber.

`Module` offers what ``cupy.RawModule`` offers, and `SimulatedDevice` what launching asks of a
`scq_gpu._core.arrays.CudaDevice`, so that the launch code of the package drives them unchanged.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

HERE = pathlib.Path(__file__).parent
COMPILER = shutil.which("g++")
DEFAULT_SHARED = 48 << 10

_KERNEL = ["-std=c++17", "-g1", "-fPIC", "-w", "-fno-strict-aliasing", "-ffp-contract=off", "-march=native"]
_SCHEDULER = ["-std=c++17", "-O2", "-fPIC", "-Wall", "-Wextra", "-Werror", "-fno-tree-loop-distribute-patterns"]
# mode: flags of the kernel, flags of the scheduler, flags of the linker
_MODES: dict[str, tuple[list[str], list[str], list[str]]] = {
    "plain": (["-O2"], [], []),
    "asan": (
        ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"],
        ["-DSIM_ASAN"],
        ["-fsanitize=address,undefined"],
    ),
    "tsan": (["-O1", "-fsanitize=thread"], ["-DSIM_TSAN"], ["-fsanitize=thread"]),
    "count": (["-O1", "-fno-tree-vectorize", "-fsanitize=thread"], [], []),
}


def _run(command: Sequence[str]) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[:4000]}")


def _cached(output: str, inputs: list[pathlib.Path], command: list[str], text: str = "") -> pathlib.Path:
    """Return the file that ``command`` makes (it ends in ``-o``), made once for the same inputs."""
    key = hashlib.sha256(repr((command, text)).encode() + b"".join(path.read_bytes() for path in inputs)).hexdigest()[
        :20
    ]
    folder = pathlib.Path(tempfile.gettempdir()) / f"cuda_on_cpu-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    made = folder / f"{key}-{output}"
    if not made.exists():
        partial = made.with_suffix(f".{os.getpid()}{made.suffix}")
        if text:
            source = partial.with_suffix(".cpp")
            source.write_text(text)
            command = [str(source) if part == "SOURCE" else part for part in command]
        _run([*command, str(partial)])
        partial.replace(made)
    return made


def _object(name: str, flags: Sequence[str]) -> pathlib.Path:
    file = HERE / f"{name}.cpp"
    return _cached(f"{name}.o", [file], [_compiler(), *_SCHEDULER, *flags, "-c", str(file), "-o"])


def _compiler() -> str:
    if COMPILER is None:
        raise RuntimeError("the simulator needs g++, which is not on the PATH; install it, for example apt install g++")
    return COMPILER


@functools.cache
def _scheduler(mode: str) -> ctypes.CDLL:
    _, flags, link_flags = _MODES[mode]
    compiled = _object("fibers", flags)
    path = _cached("fibers.so", [compiled], [_compiler(), "-shared", *link_flags, str(compiled), "-o"])
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    library.sim_error.restype = ctypes.c_char_p
    return library


def build(source: str, options: Sequence[str], mode: str) -> pathlib.Path:
    """Compile a kernel source into a shared library, which needs the scheduler's."""
    kernel_flags, _, link_flags = _MODES[mode]
    kernels = re.findall(r"__global__ void __launch_bounds__\([^)]*\)\s+(\w+)\(", source)
    exports = "\n".join(f"SIM_EXPORT({name})" for name in kernels)
    text = f'#include "{HERE}/device.h"\n#line 1 "kernel.cu"\n{source}\n#line 1 "exports"\n{exports}\n'
    defines = [option for option in options if option.startswith("-D")]
    command = [_compiler(), *_KERNEL, *kernel_flags, *defines, "-c", "SOURCE", "-o"]
    headers = [HERE / "device.h", HERE.parent / "cupy_on_cpu" / "include" / "tensor_core.h"]
    objects = [_cached("kernel.o", headers, command, text)]
    if mode == "count":
        objects.append(_object("counters", []))
    return _cached("module.so", objects, [_compiler(), "-shared", *link_flags, *map(str, objects), "-o"])


class Module:
    """A compiled kernel source.

    Parameters
    ----------
    source, options
        As for ``cupy.RawModule(code=, options=)``.
    mode
        "plain"; "asan" (AddressSanitizer and UndefinedBehaviorSanitizer) and "tsan", which need the sanitizer's library
        preloaded; "count", which fills ``traffic``.
    seeds
        A launch runs once for each; the seed gives the order of blocks and threads, 0 the natural one. All but the
        first run on copies of the arrays and must give the same bytes.
    max_shared
        Largest shared memory of a block.
    """

    def __init__(
        self,
        source: str,
        options: Sequence[str] = (),
        *,
        mode: str = "plain",
        seeds: Sequence[int] = (1,),
        max_shared: int = 64 << 10,
    ) -> None:
        self.scheduler = _scheduler("plain" if mode == "count" else mode)
        self.library = ctypes.CDLL(str(build(source, options, mode)))
        self.counting = mode == "count"
        self.seeds = tuple(seeds)
        self.max_shared = max_shared

    def get_function(self, name: str) -> Kernel:
        """Return a kernel of the module."""
        return Kernel(self, name)


class Kernel:
    """``kernel(grid, block, args, shared_mem=)``, with the checks a driver makes and some it does not."""

    def __init__(self, module: Module, name: str) -> None:
        self.module = module
        self.name = name
        self.max_dynamic_shared_size_bytes = DEFAULT_SHARED
        self.traffic: list[tuple[int, int]] = []
        sizes = (ctypes.c_int * 32)()
        count = getattr(module.library, f"sim_sizes_{name}")(sizes)
        self.sizes = list(sizes)[:count]

    def __call__(self, grid: Sequence[int], block: Sequence[int], args: Sequence[Any], *, shared_mem: int = 0) -> None:
        self._check(grid, block, args, shared_mem)
        before = [arg.copy() if isinstance(arg, np.ndarray) and arg.flags.writeable else arg for arg in args]
        for i, seed in enumerate(self.module.seeds):
            again = [a.copy() if isinstance(a, np.ndarray) and a.flags.writeable else a for a in before] if i else args
            self._launch(grid, block, again, shared_mem, seed)
            for first, other in zip(args, again, strict=True):
                if isinstance(first, np.ndarray) and i and first.tobytes() != other.tobytes():
                    raise AssertionError(f"{self.name}: thread order {seed} changes an array of shape {first.shape}")

    def _check(self, grid: Sequence[int], block: Sequence[int], args: Sequence[Any], shared_mem: int) -> None:
        if shared_mem > min(self.max_dynamic_shared_size_bytes, self.module.max_shared):
            raise RuntimeError(f"{self.name}: {shared_mem} bytes of shared memory were not asked for or do not exist")
        threads = int(np.prod(block))
        if len(grid) != 1 or grid[0] < 1 or threads % 32 or not 32 <= threads <= 1024:
            raise RuntimeError(f"{self.name}: cannot launch grid {grid}, block {block}")
        given = [8 if isinstance(arg, np.ndarray) else np.asarray(arg).dtype.itemsize for arg in args]
        if given != self.sizes:
            raise TypeError(f"{self.name} takes arguments of {self.sizes} bytes, got {given}")

    def _launch(
        self, grid: Sequence[int], block: Sequence[int], args: Sequence[Any], shared_mem: int, seed: int
    ) -> None:
        library = self.module.library
        values = [
            ctypes.c_void_p(arg.__array_interface__["data"][0])
            if isinstance(arg, np.ndarray)
            else np.ctypeslib.as_ctypes_type(arg.dtype)(arg)
            for arg in args
        ]
        pointers = (ctypes.c_void_p * len(args))(*(ctypes.addressof(value) for value in values))
        arrays = [arg for arg in args if isinstance(arg, np.ndarray)]
        if self.module.counting:
            library.sim_count_clear()
            for array in arrays:
                low, high = np.lib.array_utils.byte_bounds(array)
                library.sim_count_watch(ctypes.c_size_t(low), ctypes.c_size_t(high - low))
        failed = getattr(library, f"sim_run_{self.name}")(
            (ctypes.c_uint * 3)(*grid, 1, 1),
            (ctypes.c_uint * 3)(*block, 1, 1),
            ctypes.c_size_t(shared_mem),
            ctypes.c_uint64(seed),
            pointers,
        )
        if failed:
            raise RuntimeError(f"{self.name}: {self.module.scheduler.sim_error().decode()}")
        if self.module.counting:
            library.sim_count_loaded.restype = library.sim_count_stored.restype = ctypes.c_uint64
            self.traffic = [(library.sim_count_loaded(i), library.sim_count_stored(i)) for i in range(len(arrays))]


class SimulatedDevice:
    """A CUDA device on the CPU: its arrays are NumPy's.

    Parameters
    ----------
    capability
        10 major + minor of the compute capability it claims to have.
    mode, seeds
        As for `Module`.
    change
        What to do to a source before it is compiled.
    truncate
        Whether tensor cores cut off their sums, as hardware does (cupy_on_cpu/include/tensor_core.h); else each
        instruction's is taken in double and rounded once.
    """

    xp = np

    def __init__(
        self,
        *,
        capability: int = 80,
        mode: str = "plain",
        seeds: Sequence[int] = (1,),
        change: Callable[[str], str] | None = None,
        truncate: bool = True,
    ) -> None:
        self.capability = capability
        self._mode, self._seeds, self._change = mode, seeds, change
        self.changed = False
        self._options = () if truncate else ("-DSIM_SUMS_IN_DOUBLE",)

    def current(self) -> contextlib.AbstractContextManager[None]:
        """Enter this device, the only one."""
        return contextlib.nullcontext()

    def build(self, source: str, options: Sequence[str]) -> Module:
        """Compile a kernel source."""
        # A case may run several kernels, and a change be one of the others
        with contextlib.suppress(LookupError):
            if self._change:
                source, self.changed = self._change(source), True
        return Module(source, (*options, *self._options), mode=self._mode, seeds=self._seeds)

    def address(self, x: np.ndarray) -> int:
        """Return the address of the first element."""
        return int(x.__array_interface__["data"][0])
