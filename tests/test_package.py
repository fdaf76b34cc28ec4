"""What importing costs, what is exported, and that every public name is documented by example."""

import inspect
import subprocess
import sys

import scq_gpu as scq

HEAVY = ["cupy", "torch", "dask", "numba", "matplotlib", "pyarrow", "h5py", "zarr", "typer", "faiss"]


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
