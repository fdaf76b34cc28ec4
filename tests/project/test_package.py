"""What importing costs, what is exported, and that every public name is documented by example."""

import inspect
import json
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import scq_gpu as scq

ROOT = Path(__file__).parents[2]
HEAVY = ["cupy", "torch", "dask", "matplotlib", "pyarrow", "h5py", "zarr", "typer", "faiss"]


def test_import_is_light():
    # scikit-learn may bring some of these itself, where pandas is installed
    code = f"""import sys, sklearn.base, sklearn.utils.validation
before = set(sys.modules)
import scq_gpu
print([m for m in {HEAVY} if m in sys.modules and m not in before])"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_public_names_exist_and_carry_an_example():
    for name in scq.__all__:
        thing = getattr(scq, name)
        if callable(thing) and not (inspect.isclass(thing) and issubclass(thing, Exception)):
            assert ">>>" in inspect.getdoc(thing), name


def test_version_is_the_installed_one():
    from importlib.metadata import version

    assert version("scq-gpu") == scq.__version__


def single_version(requirement: Requirement, operator: str) -> Version:
    (only,) = requirement.specifier
    assert only.operator == operator, requirement
    return Version(only.version)


def test_oldest_versions_allowed_are_those_tested():
    """`make test-minimum` runs what pyproject.toml promises: each lowest version, no other, and nothing left out."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, build = settings["project"], settings["build-system"]["requires"]
    extras = project["optional-dependencies"]
    # wants a GPU or its compilers; our own tools
    not_run = {"cuda12", "cuda13", "cuda-toolchain", "docs", "lint", "native"}
    assert not_run < set(extras)
    tested = (requirements for extra, requirements in extras.items() if extra not in not_run)
    lowest: dict[str, Version] = {}
    for requirement in map(Requirement, chain(build, project["dependencies"], *tested)):
        version = single_version(requirement, ">=")
        assert lowest.setdefault(canonicalize_name(requirement.name), version) == version, requirement
    lines = (ROOT / "tests" / "minimum.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pinned = {canonicalize_name(pin.name): single_version(pin, "==") for pin in pins}
    assert pinned == lowest
    assert len(pins) == len(pinned)


@pytest.mark.parametrize("extra", ["plots", "export", "cli", "dask", "io", "remote"])
def test_tests_bring_every_extra_that_runs_here(extra):
    """Else a fresh environment would skip its tests."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras[extra]) <= set(extras["test"])


PUBLIC_MODULES = {
    "encoders": ["OgE", "OnE"],
    "encoders.imported": ["ImportedEncoder", "from_faiss"],
    "encoders.sweeps": ["BitSweep", "ScalePath", "scale_path", "sweep_bits"],
    "io.formats": ["convert"],
    "io": ["ModelFileError", "RowFileError", "RowSource", "open_rows"],
    "kernels": ["encode_linear"],
    "metrics.evaluation": ["Evaluation", "evaluate"],
    "metrics": ["mean_average_precision", "precision_at_k", "precision_at_radius", "recall_at_k", "quantization_loss"],
    "plots": ["bits_curve", "gallery", "loss_curve", "theme"],
    "plots.report": ["write_report"],
    "index.cluster": ["ClusterIndex"],
    "index.vector_index": ["VectorIndex"],
    "search": ["HammingIndex", "rescore"],
}
PUBLIC_NAMES = [
    "BA",
    "ITQ",
    "KMH",
    "LSH",
    "OPQ",
    "PCAH",
    "PCARR",
    "SH",
    "ClusterIndex",
    "HammingIndex",
    "ModelFileError",
    "OgE",
    "OnE",
    "SpH",
    "VectorIndex",
    "__version__",
    "convert",
    "encode_file",
    "evaluate",
    "from_faiss",
    "io",
    "load",
    "metrics",
    "pack",
    "plots",
    "rescore",
    "scale_path",
    "sweep_bits",
    "unpack",
    "write_report",
]


def test_public_names_are_these():
    assert PUBLIC_NAMES == scq.__all__


FORGETFUL = """import json, sys, traceback

def is_ours(name):
    return name.partition(".")[0] == "scq_gpu"

failures = {}
for module, code in json.loads(sys.argv[1]).items():
    for name in filter(is_ours, list(sys.modules)):
        del sys.modules[name]
    try:
        exec(code, {})
    except BaseException:
        failures[module] = traceback.format_exc()
print(json.dumps(failures))"""


@pytest.fixture(scope="module")
def failed_imports():
    """By module, in one process that keeps our dependencies and forgets all of the package before each."""
    codes = {
        module: f"""import sys
assert not [name for name in sys.modules if name.startswith("scq_gpu")]
import scq_gpu, importlib
from scq_gpu.{module} import {", ".join(names)}
assert importlib.import_module("scq_gpu.{module}") is scq_gpu.{module}
import scq_gpu.{module} as again
assert again is scq_gpu.{module} and again.{names[0]} is {names[0]}"""
        for module, names in {**PUBLIC_MODULES, "nonsense": ["nothing"]}.items()
    }
    command = [sys.executable, "-c", FORGETFUL, json.dumps(codes)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_public_modules_can_be_imported_first(failed_imports, module):
    """Where nothing of the package is loaded, as another test may have done: by attribute, and by an import."""
    assert "No module named 'scq_gpu.nonsense'" in failed_imports["nonsense"]
    assert module not in failed_imports, failed_imports[module]


def test_names_that_never_were_are_no_attributes():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        scq.nonsense  # noqa: B018
    with pytest.raises(ModuleNotFoundError):
        __import__("scq_gpu.nonsense")


def test_layout_holds():
    """Few doors: entries of the package, layers of the contract, length of the longest chain of imports."""
    grimp = pytest.importorskip("grimp", reason="grimp comes with import-linter (make lint)")
    assert grimp
    import importlib.util

    spec = importlib.util.spec_from_file_location("make_architecture", ROOT / "docs" / "make_architecture.py")
    layout = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(layout)
    entries = [path for path in (ROOT / "scq_gpu").iterdir() if path.name != "__pycache__"]
    assert len(entries) <= 14
    assert len(layout.layers()) <= 8
    assert len(layout.longest_chain(grimp.build_graph("scq_gpu", cache_dir=None))) <= 9
