"""Files to run commands on, and ways to run them."""

import os
import shutil
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

import scq_gpu as scq
from scq_gpu.cli import main

X, Y = load_digits(return_X_y=True)
X = X.astype(np.float32)
BASE, QUERIES = X[:1500], X[1500:]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "200"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with rows, labels, a model and codes."""
    folder = tmp_path_factory.mktemp("made")
    np.save(folder / "x.npy", BASE)
    np.save(folder / "q.npy", QUERIES)
    np.save(folder / "y.npy", Y[:1500])
    np.save(folder / "yq.npy", Y[1500:])
    encoder = scq.OgE(n_bits=20, max_iter=20, tol=0, random_state=0).fit(BASE)
    encoder.save(folder / "m.safetensors")
    np.save(folder / "c.npy", encoder.encode(BASE))
    return folder


@pytest.fixture
def work(made, tmp_path, monkeypatch):
    """A copy of it to work in."""
    for path in made.iterdir():
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.fixture
def run(capsys):
    """Run a command line in this process: exit code, standard output, standard error."""

    def run(line, *more):
        capsys.readouterr()
        code = main([*line.split(), *map(str, more)])
        return code, *capsys.readouterr()

    return run


def command(line, **options):
    """A command line for a process of its own."""
    return {"args": [sys.executable, "-m", "scq_gpu.cli", *line.split()], "env": ENVIRONMENT, "text": True, **options}


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
