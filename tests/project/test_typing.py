"""What a type checker sees of the public names: a user's program under ``mypy --strict``."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytest.importorskip("mypy", reason="mypy, which checks the program, is not installed")

PROGRAM = """
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import scq_gpu as scq
from scq_gpu.encoders.base import Encoder
from scq_gpu.metrics.evaluation import Evaluation
from scq_gpu.encoders.imported import ImportedEncoder
from scq_gpu.encoders.sweeps import BitSweep, ScalePath

X = np.zeros((10, 4), dtype=np.float32)
labels = np.zeros(10, dtype=np.int64)
untyped: Any = X

encoder = scq.OgE(n_bits=8, ridge=0.1, random_state=0).fit(X)
assert_type(encoder, scq.OgE)
assert_type(scq.ITQ(16).fit(untyped), scq.ITQ)
assert_type(scq.SpH(16).fit([X, X]), scq.SpH)
assert_type(encoder.to("cpu"), scq.OgE)
assert_type(encoder.n_iter_, int)
assert_type(encoder.loss_curve_, list[float])

codes = encoder.encode(X)
assert_type(codes, NDArray[np.uint8])
assert_type(encoder.encode(X, precision="fast", out=codes), NDArray[np.uint8])
assert_type(scq.KMH(16).fit(X).encode(X), NDArray[np.uint8])
assert_type(scq.OPQ(16).fit(X).encode(X), NDArray[np.uint8])
assert_type(encoder.encode(scq.io.open_rows("x.npy")), Any)
encoder.project(X).mean()

assert_type(scq.load("model.safetensors", device="cpu"), Encoder)
assert_type(scq.load("model.safetensors").encode(X), NDArray[np.uint8])
assert_type(scq.from_faiss(untyped), ImportedEncoder)

index = scq.HammingIndex(codes, n_bits=8).add(codes)
assert_type(index, scq.HammingIndex)
distances, ids = index.search(codes, k=3)
assert_type(ids, NDArray[np.int64])
distances.mean()
offsets, found, _ = index.range_search(codes, radius=2)
assert_type(offsets, NDArray[np.int64])
assert_type(found, NDArray[np.int64])
assert_type(index.search(untyped, k=3)[1], Any)

name: str = "faiss"
assert_type(scq.convert(codes, 8, to="pgvector"), list[str])
assert_type(scq.convert(codes, 8, to="bits"), NDArray[np.str_])
assert_type(scq.convert(codes, 8, to="ubinary"), NDArray[np.uint8])
assert_type(scq.convert(codes, 8, to="binary"), NDArray[np.int8])
assert_type(scq.convert(codes, 8, to="qdrant"), NDArray[np.float32])
assert_type(scq.convert(codes, 8, to=name), Any)
assert_type(scq.pack(X), NDArray[np.uint8])
assert_type(scq.unpack(codes, 8), NDArray[np.int8])

assert_type(scq.evaluate(encoder, X, X, labels, labels), Evaluation)
assert_type(scq.metrics.mean_average_precision(codes, codes, labels, labels), float)
assert_type(scq.sweep_bits(X, (8, 16)), BitSweep)
assert_type(scq.scale_path(X, 8, [0.5, 1.0]), ScalePath)
"""

MISTAKES = """
import numpy as np

import scq_gpu as scq

X = np.zeros((10, 4), dtype=np.float32)
encoder = scq.OgE(8)
codes = encoder.encode(X)
index = scq.HammingIndex(codes, n_bits=8)

scq.OgE(n_bits="8")  # arg-type
scq.OgE(8, nbits=3)  # call-arg
scq.OnE(8, ridge=0.1)  # call-arg
scq.OgE(8, callback=3)  # arg-type
encoder.to(0)  # arg-type
encoder.save(0)  # arg-type
encoder.encode(X, precision=16)  # call-overload
encoder.n_iter_ + "passes"  # operator
scq.load(b"model")  # arg-type
index.search(codes, k="3")  # call-overload
index.nearest(codes)  # attr-defined
scq.convert(codes, "8", to="faiss")  # call-overload
scq.convert(codes, 8, to=8)  # call-overload
scq.io.open_rows(3)  # arg-type
scq.unknown  # attr-defined
text: str = scq.convert(codes, 8, to="hex")  # assignment
"""

# what we call inside is not looked into: it takes long, and shows nowhere in our types
CONFIG = """
[mypy]
strict = True
[mypy-torch.*,matplotlib.*,dask.*,pyarrow.*,pandas.*,scipy.*]
follow_imports = skip
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory) -> str:
    """What mypy says of both programs."""
    folder = tmp_path_factory.mktemp("typing")
    for name, text in {"program.py": PROGRAM, "mistakes.py": MISTAKES, "mypy.ini": CONFIG}.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "mypy", "--cache-dir=cache", "--no-error-summary", "program.py", "mistakes.py"]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stdout + run.stderr  # 0: nothing wrong; 2: it could not run
    return run.stdout


def test_types_are_what_a_user_expects(checked):
    assert [line for line in checked.splitlines() if line.startswith("program.py")] == []


def test_mistakes_are_found(checked):
    wanted = {
        (number, line.partition("  # ")[2])
        for number, line in enumerate(MISTAKES.splitlines(), start=1)
        if "  # " in line
    }
    found = {(int(n), code) for n, code in re.findall(r"^mistakes\.py:(\d+): error: .*\[([\w-]+)\]$", checked, re.M)}
    assert found == wanted
