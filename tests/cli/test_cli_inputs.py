"""No command writes over what it reads, and none waits for a FIFO."""

import os
import shutil

import numpy as np
import pytest

pytest.importorskip("typer", reason="the command line needs typer")
pytest.importorskip("rich", reason="the command line needs rich")

from command_line import files, made, run, work
from strange_files import put, within

import scq_gpu as scq

__all__ = ["made", "run", "work"]  # fixtures

# Commands with an output, and their inputs; the output is put in the place of each.
OVER = {
    "fit": ("fit x.npy -o OUT.safetensors", ["x.npy"]),
    "sweep": (
        "sweep x.npy --bits 4 --labels y.npy --queries q.npy --query-labels yq.npy -o OUT.csv",
        ["x.npy", "y.npy"],
    ),
    "sweep, a plot": ("sweep x.npy --bits 4 --queries q.npy --plot OUT.png", ["x.npy", "q.npy"]),
    "encode": ("encode m.safetensors x.npy -o OUT.npy", ["m.safetensors", "x.npy"]),
    "search": ("search m.safetensors c.npy q.npy -o OUT.npz", ["m.safetensors", "c.npy", "q.npy"]),
    "search, rescored": ("search m.safetensors c.npy q.npy --rescore x.npy -o OUT.csv", ["x.npy"]),
    "search in an index": ("search m.safetensors i.safetensors q.npy -o OUT.npz", ["i.safetensors"]),
    "index": ("index build x.npy --ids y.npy -o OUT.safetensors", ["x.npy", "y.npy"]),
    "search in vectors": ("index search v.safetensors q.npy --allowed y.npy -o OUT.csv", ["v.safetensors", "q.npy"]),
    "export": ("export m.safetensors --to onnx -o OUT.onnx", ["m.safetensors"]),
    "export of codes": ("export c.npy --to cuvs -o OUT.npy", ["c.npy"]),
    "report": (
        "report m.safetensors --data x.npy --labels y.npy --fast -o OUT.html",
        ["m.safetensors", "x.npy", "y.npy"],
    ),
    "report of images": ("report m.safetensors --data x.npy --images img.npy --fast -o OUT.html", ["img.npy"]),
}
CASES = [(line, source) for line, sources in OVER.values() for source in sources]


@pytest.mark.parametrize("link", ["symbolic", "hard"])
@pytest.mark.parametrize(("line", "source"), CASES)
def test_an_output_that_is_an_input_by_another_name(work, run, line, source, link):
    np.save("img.npy", np.zeros((1500, 2, 2), dtype=np.uint8))
    scq.HammingIndex(np.load("c.npy"), 20).save("i.safetensors")
    scq.VectorIndex(np.load("x.npy"), encoder=scq.load("m.safetensors")).save("v.safetensors")
    output = next(word for word in line.split() if word.startswith("OUT"))
    (os.symlink if link == "symbolic" else os.link)(source, output)
    before = files(work)
    code, out, err = run(f"{line} --overwrite -q")
    assert (code, out) == (1, "")
    assert err.startswith(f"scq-gpu: {output} cannot be written, as ")
    assert err.endswith(f"{source} is read: choose another name\n")
    assert files(work) == before


@pytest.mark.parametrize(
    ("line", "source"),
    [
        ("export m.safetensors --to faiss -o m.safetensors", "m.safetensors"),
        ("export c.npy --to cuvs -o c.npy", "c.npy"),
    ],
)
def test_an_output_of_the_name_of_an_input(work, run, line, source):
    before = files(work)
    code, _, err = run(f"{line} --overwrite")
    assert code == 1
    assert f"{source} is read" in err
    assert files(work) == before


STRANGE = {
    "model": ("info S.safetensors", "S.safetensors"),
    "model to encode": ("encode S.safetensors x.npy -o n.npy", "S.safetensors"),
    "rows": ("encode m.safetensors S.npy -o n.npy", "S.npy"),
    "codes": ("search m.safetensors S.npy q.npy", "S.npy"),
    "raw codes": ("search m.safetensors S.bin q.npy", "S.bin"),
    "table of codes": ("search m.safetensors S.parquet q.npy", "S.parquet"),
    "index": ("search m.safetensors S.safetensors q.npy", "S.safetensors"),
    "index of vectors": ("index search S.safetensors q.npy", "S.safetensors"),
    "ids": ("index remove v.safetensors S.txt", "S.txt"),
    "labels": ("evaluate m.safetensors --data x.npy --labels S.txt", "S.txt"),
    "labels in an array": ("evaluate m.safetensors --data x.npy --labels S.npy", "S.npy"),
    "source of an export": ("export S.safetensors --to onnx -o n.onnx", "S.safetensors"),
    "images": ("report m.safetensors --data x.npy --images S.npy -o n.html", "S.npy"),
    "an image": ("report m.safetensors --data x.npy --images pictures -o n.html", "pictures/S.png"),
}


@pytest.mark.parametrize("kind", ["fifo", "socket", "device"])
@pytest.mark.parametrize(("line", "place"), STRANGE.values(), ids=STRANGE)
def test_what_is_no_file(work, run, line, place, kind):
    (work / "pictures").mkdir()
    scq.VectorIndex(np.load("x.npy"), encoder=scq.load("m.safetensors")).save("v.safetensors")
    put(kind, work / place)
    with within(60):
        code, out, err = run(line + " -q")
    assert (code, out) == (1, "")
    assert err.startswith("scq-gpu: ")
    assert f"{place} is a " in err
    assert "not a file" in err
    assert not list(work.glob("n.*"))
    shutil.rmtree(work / "pictures")
