"""Standard streams that are closed, full or left by their reader, and terminals of any width."""

import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer", reason="the command line needs typer")
pytest.importorskip("rich", reason="the command line needs rich")

from command_line import ENVIRONMENT, made, run, work

import scq_gpu as scq

__all__ = ["made", "run", "work"]  # fixtures


def shell(line, redirection, folder):
    command = f"{shlex.quote(sys.executable)} -m scq_gpu.cli {line} {redirection}"
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        cwd=folder,
        env=ENVIRONMENT | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


PRINTING = ["info m.safetensors", "search m.safetensors c.npy q.npy -k 300", "--version", "fit --help"]


@pytest.mark.parametrize("line", PRINTING)
def test_closed_standard_output(work, line):
    done = shell(line, ">&-", work)
    assert (done.returncode, done.stdout) == (4, "")
    assert re.fullmatch(r"scq-gpu: .*Bad file descriptor\n", done.stderr)


@pytest.mark.skipif(not hasattr(np, "__array_namespace_info__"), reason="NumPy 2.0 cannot be imported without stderr")
def test_a_command_that_prints_nothing_works_with_closed_streams(work):
    done = shell("export c.npy --to cuvs -o n.npy --quiet", "<&- >&- 2>&-", work)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    np.testing.assert_array_equal(np.load(work / "n.npy"), np.load(work / "c.npy"))


def test_closed_standard_error(work):
    done = shell("fit none.npy -o n.safetensors", "2>&-", work)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


@pytest.mark.parametrize("line", [*PRINTING[:2], "--help"])
def test_a_reader_that_takes_one_line(work, line):
    done = shell(line, "| head -n 1", work)
    assert done.stderr == ""
    assert done.returncode in (0, 141)
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("k", [1, 60])
def test_every_answer_is_printed_at_any_width(work, run, monkeypatch, columns, k):
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, err = run(f"search m.safetensors c.npy q.npy -k {k}")
    assert (code, err) == (0, "")
    d, ids = scq.HammingIndex(np.load("c.npy"), 20).search(scq.load("m.safetensors").encode(np.load("q.npy")[:10]), k)
    expected = [[q, r + 1, ids[q, r], d[q, r]] for q in range(10) for r in range(k)]
    printed = [[int(word) for word in line.split()] for line in out.splitlines() if re.fullmatch(r"[\d ]+", line)]
    assert printed == expected
    assert "and 287 queries more" in out


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_no_column_is_dropped_at_any_width(work, run, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code, out, _ = run("sweep x.npy --bits 4,8 --methods LSH,PCAH --labels y.npy --n-queries 20 -q")
    assert code == 0
    parts = re.findall(r"(?:^ *(?:LSH|PCAH) .*\n){4}", out, re.MULTILINE)
    assert len({tuple(tuple(line.split()[:3]) for line in part.splitlines()) for part in parts}) == 1
    assert len(parts) == {40: 4, 80: 3, 200: 1}[columns] or columns == 40
    assert sum(len(part.split()) // 4 - 3 for part in parts) >= 12
    words = {"recall", "asymmetric", "rescored", "precision", "average", "radius", "seconds"}
    assert words <= set(out.split())
    assert max(map(len, out.splitlines())) <= max(columns, 80)


def test_k_beyond_the_codes_is_said(work, run):
    np.save("few.npy", np.load("c.npy")[:7])
    code, out, err = run("search m.safetensors few.npy q.npy -k 60")
    assert code == 0
    assert re.fullmatch(r"scq-gpu: warning: -k 60 exceeds the 7 codes of few\.npy: .*\n", err)
    assert len(re.findall(r"^[\d ]+$", out, re.MULTILINE)) == 70
    assert run("search m.safetensors few.npy q.npy -k 7")[2] == ""
    assert run("search m.safetensors few.npy q.npy -k 0")[0] == 2


def test_no_queries(work, run):
    np.save("none.npy", np.zeros((0, 64), dtype=np.float32))
    code, out, err = run("search m.safetensors c.npy none.npy")
    assert code in (0, 1)
    assert "Traceback" not in out + err
    assert Path("none.npy").exists()
