"""Thirty messages that used to mislead, or would: each names what was typed or passed, and the cure."""

import re

import numpy as np
import pytest

pytest.importorskip("typer", reason="the command line needs typer")
pytest.importorskip("rich", reason="the command line needs rich")

from command_line import BASE, made, run, work

import scq_gpu as scq

__all__ = ["made", "run", "work"]  # fixtures

COMMANDS = {
    "swapped model and data": (
        "encode x.npy m.safetensors -o n.npy",
        "x.npy comes where the model is expected.* first",
    ),
    "swapped model and codes": ("search c.npy m.safetensors q.npy", "c.npy comes where the model is expected"),
    "a model for codes": (
        "search m.safetensors m.safetensors q.npy",
        "m.safetensors is a model, where codes are expected",
    ),
    "swapped codes and queries": ("search m.safetensors q.npy c.npy", "float32 .* codes .* come before the queries"),
    "a model for data": ("fit m.safetensors -o n.safetensors", "m.safetensors is a model or an index, where rows are"),
    "short labels": ("evaluate m.safetensors --data x.npy --labels yq.npy", "--labels yq.npy holds 297 labels"),
    "short labels of queries": (
        "evaluate m.safetensors --data x.npy --labels y.npy --queries q.npy --query-labels y.npy",
        "--query-labels y.npy holds 1,500 labels, and --queries 297 rows",
    ),
    "labels of one side": (
        "evaluate m.safetensors --data x.npy --labels y.npy --queries q.npy",
        "--labels was given, but not --query-labels",
    ),
    "labels of no queries": (
        "evaluate m.safetensors --data x.npy --labels y.npy --query-labels yq.npy",
        "--query-labels yq.npy was given, but not --queries",
    ),
    "short labels of a report": (
        "report m.safetensors --data x.npy --labels yq.npy -o n.html",
        "--labels yq.npy holds 297 labels, and the data 1,500 rows",
    ),
    "short labels of a sweep": ("sweep x.npy --labels yq.npy --bits 8", "--labels yq.npy holds 297 labels"),
    "too many bits": ("fit x.npy -o n.safetensors --bits 65", "--bits 65 exceeds"),
    "too few components": (
        "fit x.npy -o n.safetensors --components 9",
        "--bits 32 exceeds.* raise --components .now 9",
    ),
    "a negative ridge": (
        "fit x.npy -o n.safetensors --ridge -1",
        r"--ridge -1.0 must be a float in the range \[0.0, inf\)",
    ),
    "a scale of a word": ("fit x.npy -o n.safetensors --scale big", "--scale big is neither a number nor auto"),
    "an unknown aim": (
        "fit x.npy -o n.safetensors --preserve x",
        "--preserve 'x' must be a str among .'neighbors'",
    ),
    "an unknown start": (
        "fit x.npy -o n.safetensors --init x",
        "--init 'x' must be a str among .'auto', ",
    ),
    "an option of another encoder": (
        "fit x.npy -o n.safetensors --encoder ITQ --restarts 3",
        "--encoder ITQ has no --restarts",
    ),
    "an unknown choice": (
        "encode m.safetensors x.npy -o n.npy --on-invalid x",
        "--on-invalid 'x' is not one of 'raise'",
    ),
    "a name where there is none": ("fit x.npy -o n.safetensors --name a", "x.npy holds one array.*--name 'a' does not"),
    "an ending": ("encode m.safetensors x.npy -o n.txt", "--output 'n.txt' must end in .npy"),
    "ids without columns": ("encode m.safetensors x.npy -o n.parquet --id-column id", "x.npy has no columns.*'id'"),
    "ids without a place": ("encode m.safetensors x.npy -o n.npy --id-column id", "--id-column 'id' needs a table"),
    "other rows to rescore by": ("search m.safetensors c.npy q.npy --rescore q.npy", "--rescore q.npy holds 297 rows"),
    "a URL": ("encode m.safetensors s3://bucket/x.npy -o n.npy", "reading s3://bucket/x.npy needs .*pip install"),
    "a URL for a model": ("encode s3://bucket/m.safetensors x.npy -o n.npy", "s3://bucket/m.safetensors is a URL, and"),
    "a URL for output": (
        "encode m.safetensors x.npy -o s3://bucket/n.npy",
        "--output s3://bucket/n.npy is a URL; write to a local",
    ),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_commands_name_what_was_typed(work, run, monkeypatch, case):
    line, message = COMMANDS[case]
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    code, out, error = run(line)
    assert code in (1, 2, 3)
    assert out == ""
    last = error.splitlines()[-1]
    assert re.search(message, last), error
    assert not re.search(r"n_bits|n_components|on_invalid|id_column|query_labels|out=|device=", last)


def frame():
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"id": ["a", "b"], "embedding": list(BASE[:2])})


CALLS = {
    "a column of arrays": (lambda: scq.OgE(4).fit(frame()["embedding"]), r"vector of 64: pass numpy\.stack\(X\)"),
    "a frame with a column of arrays": (
        lambda: scq.OgE(4).fit(frame()[["embedding"]]),
        r"vector of 64: pass numpy\.stack\(X\), or numpy\.stack\(frame\['column'\]\)",
    ),
    "a column of arrays to encode": (lambda: scq.load("m.safetensors").encode(frame()["embedding"]), r"numpy\.stack"),
    "a generator to encode": (
        lambda: scq.load("m.safetensors").encode(x for x in BASE),
        r"X is a generator, which can be gone through once; .*numpy\.stack\(list\(X\)\)",
    ),
    "rows of unequal length": (lambda: scq.OgE(4).fit([[1.0, 2.0], [3.0]]), "rows of X are not of equal length"),
    "nothing": (lambda: scq.OgE(4).fit(None), "X is None; an array of numbers is expected"),
    "a dictionary": (lambda: scq.OgE(4).fit({"x": BASE}), "an array of numbers is expected"),
    "one query": (
        lambda: scq.HammingIndex(np.zeros((2, 1), dtype=np.uint8), 8).search(np.zeros(1, dtype=np.uint8), 1),
        r"queries must have 2 dimensions, got 1 .* queries\.reshape\(1, -1\) if it is a single row$",
    ),
    "one query in floats": (
        lambda: scq.rescore(BASE[0], BASE, np.zeros((1, 2), dtype=int)),
        r"X_query must have 2 dimensions, got 1 .* X_query\.reshape\(1, -1\) if it is a single row$",
    ),
    "one query of exact neighbors": (
        lambda: scq.metrics.exact_neighbors(BASE[0], BASE),
        r"X_query has shape \(64,\).* a single query is X_query\.reshape\(1, -1\)",
    ),
    "strings among numbers": (
        lambda: scq.HammingIndex(np.zeros((2, 1), dtype=np.uint8), 8).add(np.zeros((1, 1), dtype=np.uint8), ids=["a"]),
        "ids are strings, such as 'a', and those of the index are integers; use one kind",
    ),
    "ids that are no ids": (
        lambda: scq.HammingIndex(np.zeros((2, 1), dtype=np.uint8), 8, ids=np.array(["a", None])),
        r"ids\[1\] is None and others are strings",
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_calls_name_what_was_passed(work, case):
    call, message = CALLS[case]
    with pytest.raises((TypeError, ValueError), match=message):
        call()
