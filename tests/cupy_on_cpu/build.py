"""Makes an environment in which PyPI's own CuPy wheel runs without a GPU, over CPU stand-ins for the CUDA libraries.

    python tests/cupy_on_cpu/build.py VENV

CuPy's modules load libcuda, libnvrtc, libcublas, libcusolver, libcurand, libcusparse and libcufft at run time, from
``nvidia/cu13/lib`` of site-packages: the stand-ins are put there. NVIDIA's CUDA *runtime* is linked statically into a
few modules of the wheel. The two of these that matter, ``runtime`` and ``thrust``, are compiled anew from CuPy's
unchanged source; the other sixty-odd extension modules are the wheel's own binaries. Needs g++ and x86-64.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
LIBRARIES = HERE / "libraries"
CUPY = "14.2.0"
CYTHON = "3.2.4"  # what the wheel was made with: its modules import functions of one another by C signature
CUDA = "13.0.*"  # headers
CXX = ["g++", "-std=c++17", "-O2", "-fPIC", "-shared", "-Wall", "-Wno-unused-function", "-Wl,-rpath,$ORIGIN"]
CYTHON_DIRECTIVES = {
    "embedsignature": True,
    "c_api_binop_methods": True,
    "binding": False,
    "warn.deprecated.IF": False,
    "freethreading_compatible": True,
}
CYTHON_CONSTANTS = {
    "CUPY_USE_CUDA_PYTHON": False,
    "CUPY_CUFFT_STATIC": False,
    "CUPY_CYTHON_VERSION": CYTHON,
    "CUPY_CUDA_VERSION": 13000,
    "CUPY_HIP_VERSION": 0,
}
# file name of each library that CuPy asks for functions by prefix; the last two it only looks for
SONAMES = {
    "cublas": "libcublas.so.13",
    "cusolver": "libcusolver.so.12",
    "curand": "libcurand.so.10",
    "cusparse": "libcusparse.so.12",
    "cufft": "libcufft.so.12",
    "cublasLt": "libcublasLt.so.13",
    "nvJitLink": "libnvJitLink.so.13",
}
NEEDS_LAPACK = ("cublas", "cusolver")


def main() -> None:
    """Build everything into the environment named on the command line; make it first if it is not there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("venv", type=Path)
    venv = parser.parse_args().venv.resolve()
    if not (venv / "bin" / "python").exists():
        run(sys.executable, "-m", "venv", venv)
    place = Place.of(venv)
    for folder in (place.lib, place.work):
        folder.mkdir(parents=True, exist_ok=True)
    install_packages(place)
    copy_kernel_compiler(place)
    build_libraries(place)
    show_to_cupy(place)
    source = cupy_source(place)
    build_module("cupy_backends/cuda/api/runtime", place, source)
    build_module("cupy/cuda/thrust", place, source, LIBRARIES / "thrust.cpp")
    run(place.python, "-c", "import cupy; assert cupy.arange(10).sum() == 45")


class Place(NamedTuple):
    """Where things are, and go to."""

    python: Path
    site: Path
    home: Path

    @classmethod
    def of(cls, venv: Path) -> Place:
        python = venv / "bin" / "python"
        return cls(
            python, Path(ask(python, "import sysconfig; print(sysconfig.get_path('purelib'))")), venv / "standin"
        )

    @property
    def lib(self) -> Path:
        return self.home / "lib"

    @property
    def work(self) -> Path:
        """Nothing in here is needed once everything is built."""
        return self.home / "work"

    @property
    def cuda_headers(self) -> Path:
        return self.work / "headers" / "nvidia" / "cu13" / "include"

    @property
    def openblas(self) -> Path:
        return self.site / "scipy_openblas32" / "lib"


def run(*command: object, environment: dict[str, str] | None = None, folder: Path | None = None) -> None:
    """Run a command; its failure is ours."""
    subprocess.run(list(map(str, command)), check=True, env={**os.environ, **(environment or {})}, cwd=folder)


def read_output(*command: object) -> str:
    """What a command prints."""
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout.strip()


def ask(python: Path, script: str) -> str:
    """What a script prints in the environment."""
    return read_output(python, "-c", script)


def pip(place: Place, *arguments: object, environment: dict[str, str] | None = None) -> None:
    """Run pip in the environment."""
    run(place.python, "-m", "pip", "--disable-pip-version-check", *arguments, environment=environment)


def install_packages(place: Place) -> None:
    """CuPy's wheel, what builds two of its modules, OpenBLAS; and CUDA's headers, apart from site-packages."""
    needed = [f"cupy-cuda13x=={CUPY}", f"cython=={CYTHON}", "scipy-openblas32", "setuptools>=77", "wheel"]
    pip(place, "install", "--quiet", *needed)
    headers = [f"nvidia-cuda-{name}=={CUDA}" for name in ("runtime", "crt", "profiler-api")]
    pip(place, "install", "--quiet", "--target", place.work / "headers", "--upgrade", "--no-deps", *headers)


def copy_kernel_compiler(place: Place) -> None:
    """What the stand-in for NVRTC starts, and the headers it gives to kernels; none compiled with others are kept."""
    for folder in ("include", "kernels", "cupy_cache"):
        shutil.rmtree(place.home / folder, ignore_errors=True)
    shutil.copytree(HERE / "include", place.home / "include")
    for name in ("compile_kernel.py", "rewrite_source.py"):
        shutil.copy(HERE / name, place.home)


def build_libraries(place: Place) -> None:
    """Every library in libraries/, and stubs for the functions that CuPy's modules want and these do not have."""
    compiler = [*CXX, f"-I{LIBRARIES}", f"-I{HERE}/include", f"-I{place.cuda_headers}", f"-L{place.lib}"]

    def build(soname: str, *arguments: object) -> None:
        run(*compiler, *arguments, f"-Wl,-soname,{soname}", "-o", place.lib / soname)

    parts = [LIBRARIES / f"{name}.cpp" for name in ("device", "fibers", "driver")]
    build("libcuda.so.1", *parts, "-ldl")
    cuda = "-l:libcuda.so.1"
    build("libcudart.so.13", LIBRARIES / "cudart.cpp", cuda)
    paths = [f'-DSTANDIN_PYTHON="{place.python.resolve()}"', f'-DSTANDIN_HOME="{place.home}"']
    build("libnvrtc.so.13", *paths, LIBRARIES / "nvrtc.cpp", cuda)
    lapack = [f"-L{place.openblas}", "-lscipy_openblas", f"-Wl,-rpath,{place.openblas}"]
    wanted = wanted_functions(place.site)
    for name, soname in SONAMES.items():
        objects = []
        if (LIBRARIES / f"{name}.cpp").exists():
            objects = [place.work / f"{name}.o"]
            run(*(flag for flag in compiler if flag != "-shared"), "-c", LIBRARIES / f"{name}.cpp", "-o", objects[0])
        stubs = place.work / f"{name}_stubs.cpp"
        stubs.write_text(stub_source(wanted[name] - defined_functions(objects)))
        build(soname, *objects, stubs, cuda, *(lapack if name in NEEDS_LAPACK else []))


def wanted_functions(site: Path) -> dict[str, set[str]]:
    """The functions that CuPy's modules want of each library."""
    wanted: dict[str, set[str]] = {prefix: set() for prefix in SONAMES}
    for package in ("cupy", "cupy_backends"):
        for module in (site / package).rglob("*.so"):
            for name in re.findall(r" UND (\w+)", read_output("readelf", "--dyn-syms", "-W", module)):
                for prefix, names in wanted.items():
                    if name.startswith(prefix):
                        names.add(name)
    return wanted


def defined_functions(objects: Iterable[Path]) -> set[str]:
    """The functions that object files hold."""
    return {name for path in objects for name in re.findall(r" T (\w+)", read_output("nm", path))}


def stub_source(names: Iterable[str]) -> str:
    """Functions that say that they are not there and return an error; those that name an error return text."""
    lines = [
        "#include <cstdio>",
        'static int not_there(const char* name) { fprintf(stderr, "stand-in: %s is not there\\n", name); return 15; }',
    ]
    for name in sorted(names):
        if re.search(r"GetError(Name|String)$", name):
            lines.append(f'extern "C" const char* {name}() {{ return "not there, in the stand-in"; }}')
        else:
            lines.append(f'extern "C" int {name}() {{ return not_there("{name}"); }}')
    return "\n".join([*lines, ""])


def show_to_cupy(place: Place) -> None:
    """Put the libraries where pip's CUDA wheels would be, and `standin` where Python finds it.

    CuPy keeps what NVRTC gave it in a cache of its own. Here that is the path of a library in this environment, so the
    cache belongs to the environment too.
    """
    nvidia = place.site / "nvidia" / "cu13"
    for folder in ("lib", "include"):
        (nvidia / folder).mkdir(parents=True, exist_ok=True)
    for library in place.lib.iterdir():
        link = nvidia / "lib" / library.name
        link.unlink(missing_ok=True)
        link.symlink_to(library)
    for header in ("cuda_runtime.h", "cuda.h"):  # CuPy only looks whether they are there
        (nvidia / "include" / header).touch()
    driver = str(place.lib / "libcuda.so.1")
    variables = {"CUPY_ACCELERATORS": "", "CUPY_CACHE_DIR": str(place.home / "cupy_cache")}  # no cub
    statements = [f"os.environ.setdefault({name!r}, {value!r})" for name, value in variables.items()]
    (place.site / "standin.pth").write_text(f"import os, ctypes; {'; '.join(statements)}; ctypes.CDLL({driver!r})\n")
    text = (HERE / "standin.py").read_text()
    (place.site / "standin.py").write_text(text.replace('"libcuda.so.1"', repr(driver)))


def cupy_source(place: Place) -> Path:
    """CuPy's source distribution. pip configures what it downloads; as a stub, that asks for no CUDA."""
    folder = place.work / f"cupy-{CUPY}"
    if not folder.exists():
        options = ["--no-deps", "--no-binary", "cupy", "--no-build-isolation", "-d", place.work]
        pip(place, "download", "--quiet", *options, f"cupy=={CUPY}", environment={"CUPY_INSTALL_USE_STUB": "1"})
        with tarfile.open(place.work / f"cupy-{CUPY}.tar.gz") as archive:
            archive.extractall(place.work, filter="data")
    return folder


def build_module(module: str, place: Place, source: Path, *more_sources: Path) -> None:
    """Compile one of CuPy's modules from its source, against our runtime, in place of the wheel's."""
    pyx, cpp = source / f"{module}.pyx", source / f"{module}.cpp"
    options = [x for name, value in CYTHON_DIRECTIVES.items() for x in ("-X", f"{name}={value}")]
    options += [x for name, value in CYTHON_CONSTANTS.items() for x in ("-E", f"{name}={value}")]
    run(place.python, "-m", "cython", "--cplus", "-3", *options, pyx, "-o", cpp, folder=source)
    headers = source / "cupy" / "_core" / "include"
    includes = [
        ask(place.python, "import sysconfig; print(sysconfig.get_path('include'))"),
        ask(place.python, "import numpy; print(numpy.get_include())"),
        LIBRARIES,
        headers / "cupy" / "_cccl" / "thrust",
        headers / "cupy" / "_cccl" / "libcudacxx",
        headers,
        place.cuda_headers,
    ]
    flags = ["-std=c++17", "-O1", "-fPIC", "-w", "-shared", "-D_FORCE_INLINES=1", '-DCYTHON_EXTERN_C=extern "C"']
    libraries = [f"-L{place.lib}", "-l:libcudart.so.13", "-l:libcuda.so.1", f"-Wl,-rpath,{place.lib}"]
    target = place.site / (
        module + ask(place.python, "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))")
    )
    built = place.work / target.name
    run("g++", *flags, *(f"-I{folder}" for folder in includes), cpp, *more_sources, "-o", built, *libraries)
    target.unlink(missing_ok=True)  # pip may have linked it to a file of its cache
    shutil.copy(built, target)


if __name__ == "__main__":
    main()
