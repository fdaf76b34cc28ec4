"""Build the native core under sanitizers, with AVX-512 and NEON emulated, and run its tests: ``make test-native``.

Every test body runs in each instruction set: base, the machine's own, and those in plain C++ of `emulated.h`. Address
and undefined behavior first, then data races.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ["tests/kernels/test_native.py", "tests/kernels/test_ids.py"]
# the emulated instructions have no threads of their own; a child of several threads may start none under this sanitizer
RACES = ["-k", "(nearest or within or least or cells or take or interrupt or one_another) and not avx512 and not neon"]


def build(sanitizer):
    """Compile the core with a sanitizer; return the folder it is in."""
    folder = ROOT / "build" / f"native-{sanitizer.split(',')[0]}"
    bin_folder = Path(sys.executable).parent
    options = [f"-DPython_EXECUTABLE={sys.executable}", f"-DSCQ_SANITIZE={sanitizer}", "-DSCQ_EMULATE=ON"]
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={bin_folder / 'ninja'}"]
    subprocess.run([bin_folder / "cmake", "-S", ROOT, "-B", folder, *generator, *options], check=True)
    subprocess.run([bin_folder / "cmake", "--build", folder], check=True)
    return folder


def library(name):
    """Return the path of a library of the compiler."""
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def check(sanitizer, runtime, *arguments, **options):
    """Run the tests with the sanitizer's runtime loaded first."""
    environment = os.environ | {"SCQ_NATIVE_BUILD": str(build(sanitizer)), "SCQ_NUM_THREADS": "3"} | options
    environment["LD_PRELOAD"] = f"{library(runtime)} {library('libstdc++.so')}"
    # thread sanitizers want the addresses of a process where they expect them
    command = ["setarch", "-R", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS, *arguments]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


if __name__ == "__main__":
    check("address,undefined", "libasan.so", ASAN_OPTIONS="detect_leaks=0:halt_on_error=1")
    check("thread", "libtsan.so", *RACES, TSAN_OPTIONS="halt_on_error=1:report_signal_unsafe=0")
