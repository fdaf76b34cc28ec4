"""The command line when something goes wrong: one line, an exit code, and no file that was not there before."""

import errno
import json
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer", reason="the command line needs typer")
pytest.importorskip("rich", reason="the command line needs rich")

from command_line import X, command, files, made, run, work

import scq_gpu as scq
from scq_gpu.cli import main
from scq_gpu.io import models

__all__ = ["made", "run", "work"]  # fixtures


def _newer(path):
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    import safetensors.numpy

    arrays = safetensors.numpy.load(content)
    header["format_version"] = "99"
    header["sha256"] = models.digest(arrays, header)
    path.write_bytes(safetensors.numpy.save(arrays, metadata=header))


BAD = {
    "missing rows": ("fit none.npy -o n.safetensors", 1, "none.npy does not exist"),
    "missing model": ("encode none.safetensors x.npy -o n.npy", 1, "none.safetensors"),
    "missing codes": ("search m.safetensors none.npy q.npy", 1, "none.npy"),
    "missing labels": ("evaluate m.safetensors --data x.npy --labels none.npy", 1, "none.npy"),
    "missing folder": ("fit x.npy -o none/n.safetensors", 1, "folder none does not exist"),
    "output is a folder": ("fit x.npy -o dir.safetensors", 1, "is a folder"),
    "wrong width": ("encode m.safetensors narrow.npy -o n.npy", 1, "5 features, but OgE is expecting 64"),
    "wrong width of codes": ("search m.safetensors narrowc.npy q.npy", 1, r"\(1500, 2\); codes of 20 bits are uint8"),
    "unknown format of rows": ("fit x.xyz -o n.safetensors", 1, "ending '.xyz'; those known are .npy"),
    "unknown format of codes": ("encode m.safetensors x.npy -o n.xyz", 1, ".npy .*or .bin"),
    "unknown format of answers": ("search m.safetensors c.npy q.npy -o n.xyz", 1, ".npz, .csv, .jsonl"),
    "unknown format of a model": ("fit x.npy -o n.xyz", 1, "what can be written is .safetensors"),
    "model of a newer version": (
        "encode newer.safetensors x.npy -o n.npy",
        1,
        "version 99.*load it with the scq_gpu that saved it",
    ),
    "damaged model": ("info damaged.safetensors", 1, "is not a whole safetensors file"),
    "damaged rows": ("fit damaged.npy -o n.safetensors", 1, "damaged.npy"),
    "NaN": ("fit nan.npy -o n.safetensors", 1, "NaN at row 7"),
    "too many bits": ("fit x.npy -o n.safetensors --bits 65", 1, "--bits 65 exceeds"),
    "an output that is there": ("fit x.npy -o m.safetensors", 1, "m.safetensors is there already; pass --overwrite"),
    "codes that are there": ("encode m.safetensors x.npy -o c.npy", 1, "c.npy is there already; pass --overwrite"),
    "labels too few": (
        "evaluate m.safetensors --data x.npy --labels yq.npy",
        1,
        "--labels yq.npy holds 297 labels, and the data 1,500 rows",
    ),
    "labels with a gap": ("evaluate m.safetensors --data x.npy --labels gap.txt", 1, "gap.txt has an empty line 2"),
    "labels of one side": (
        "evaluate m.safetensors --data x.npy --queries q.npy --labels y.npy",
        1,
        "--labels was given, but not --query-labels",
    ),
    "rescored by other rows": ("search m.safetensors c.npy q.npy --rescore q.npy", 1, "297 rows and c.npy 1,500 codes"),
    "raw codes of no length": ("export raw.bin --to pgvector -o n.txt", 1, "pass --bits"),
    "strings to an array file": ("export c.npy --to pgvector -o n.npy", 1, "what can be written is .txt"),
    "no images": ("report m.safetensors --data x.npy --images dir.safetensors -o n.html", 1, "without images"),
    "images too few": ("report m.safetensors --data x.npy --images img.npy -o n.html", 1, "3 images and 1500 rows"),
    "unknown command": ("fitt x.npy", 2, "fitt"),
    "no command": ("--quiet", 2, "--quiet"),
    "unknown option": ("fit x.npy -o n.safetensors --sped", 2, "--sped"),
    "missing option": ("fit x.npy", 2, "--output"),
    "a word for a number": ("fit x.npy -o n.safetensors --bits many", 2, "--bits"),
    "a number out of range": ("fit x.npy -o n.safetensors --bits 0", 2, "--bits"),
    "unknown encoder": ("fit x.npy -o n.safetensors --encoder XYZ", 2, "XYZ is not one of .*OgE"),
    "an option of another": ("fit x.npy -o n.safetensors --encoder LSH --ridge 1", 2, "LSH has no --ridge"),
    "ridge of a word": ("fit x.npy -o n.safetensors --ridge big", 2, "--ridge big is neither a number nor auto"),
    "bits of words": ("sweep x.npy --bits 8,x", 2, "--bits 8,x is not a list of lengths"),
    "unknown rule": ("evaluate m.safetensors --data x.npy --ties x", 2, "--ties x is not one of"),
    "unknown export": ("export m.safetensors --to pgvector -o n.txt", 2, "onnx, faiss, not to 'pgvector'"),
    "unknown layout": ("export c.npy --to onnx -o n.onnx", 2, "codes can be exported to .*faiss"),
    "bad device": ("fit x.npy -o n.safetensors --device tpu", 1, "--device 'tpu' is not one of"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_an_exit_code_and_no_file(work, run, case):
    np.save("narrow.npy", X[:50, :5])
    np.save("narrowc.npy", np.load("c.npy")[:, :2])
    np.save("nan.npy", np.where(np.arange(64) == 3, np.where(np.arange(50) == 7, np.nan, 0)[:, None], X[:50]))
    np.save("img.npy", X[:3].reshape(-1, 8, 8))
    for name, content in {
        "x.xyz": b"1",
        "damaged.npy": b"\x93NUMPY\x01",
        "gap.txt": b"1\n\n2\n",
        "raw.bin": b"123",
    }.items():
        Path(name).write_bytes(content)
    Path("damaged.safetensors").write_bytes(Path("m.safetensors").read_bytes()[:500])
    shutil.copy("m.safetensors", "newer.safetensors")
    _newer(Path("newer.safetensors"))
    Path("dir.safetensors").mkdir()
    before = files(work)
    line, wanted, message = BAD[case]
    code, out, err = run(line)
    last = err.splitlines()[-1]
    assert code == wanted
    assert out == ""
    assert re.fullmatch(f"scq-gpu: .*{message}.*", last), err
    notes = [
        note
        for note in err.splitlines()[:-1]
        if not re.match("scq-gpu: (fitting|encoding|measuring|[0-9,]+ que)", note)
    ]
    assert notes == []
    assert files(work) == before


def test_a_gpu_that_is_not_there_is_something_lacking(work, run):
    cupy = sys.modules.get("cupy")
    if cupy is not None and cupy.is_available():
        pytest.skip("there is a GPU")
    for line in ("fit x.npy -o n.safetensors", "encode m.safetensors x.npy -o n.npy", "bench --rows 10"):
        code, out, err = run(f"{line} --device cuda:0")
        assert (code, out) == (3, "")
        assert re.fullmatch(r"scq-gpu: --device 'cuda:0' is not usable: .*scq-gpu\[cuda12\].*--device cpu.*\n", err)


def test_overwrite_replaces(work, run):
    assert run("fit x.npy -o m.safetensors --bits 5 --overwrite -q")[0] == 0
    assert scq.load("m.safetensors").n_bits == 5


@pytest.mark.parametrize(
    "line",
    [
        "fit x.npy -o n.safetensors",
        "encode m.safetensors x.npy -o n.npy",
        "search m.safetensors c.npy q.npy -o n.csv",
        "export m.safetensors --to onnx -o n.onnx",
        "report m.safetensors --data x.npy --fast -o n.html",
    ],
)
def test_full_disk(work, run, line):
    """A limit on the size of files stands in for the disk: the write fails half-way, as it would there."""
    before = files(work)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        code, out, err = run(f"{line} -q")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (code, out) == (4, ""), err
    assert re.fullmatch(r"scq-gpu: .*File too large.*\n", err)
    assert files(work) == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_full_standard_output(work):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            **command("info m.safetensors", cwd=work, stdout=full, stderr=subprocess.PIPE), check=False
        )
    assert done.returncode == 4
    assert re.fullmatch(r"scq-gpu: .*No space left.*\n", done.stderr)


def test_a_reader_that_goes_away(work):
    line = "search m.safetensors c.npy q.npy -k 1000 --json"
    with subprocess.Popen(**command(line, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.PIPE)) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


def interrupt(line, folder, *, after):
    """Start a command, send it Ctrl-C once it says what it does, and return exit code and standard error.

    A job that a shell runs in the background ignores Ctrl-C, and so would commands that it starts: this one must not.
    """
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(**command(line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    finally:
        signal.signal(signal.SIGINT, heard)
    with process:
        try:
            first = process.stderr.readline()
            assert after in first
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=120)
        finally:
            process.kill()
    return process.returncode, err


def test_ctrl_c_in_a_fit(work):
    before = files(work)
    line = "fit x.npy -o n.safetensors --solver columnwise --max-iter 10000000 --tol 0"
    assert interrupt(line, work, after="fitting") == (130, "scq-gpu: interrupted\n")
    assert files(work) == before


def test_ctrl_c_in_an_encode(work):
    before = files(work)
    big = np.lib.format.open_memmap("big.npy", mode="w+", dtype=np.float32, shape=(40_000_000, 64))  # 10 GB of holes
    del big
    try:
        assert interrupt("encode m.safetensors big.npy -o n.npy", work, after="encoding") == (
            130,
            "scq-gpu: interrupted\n",
        )
    finally:
        Path("big.npy").unlink()
    assert files(work) == before


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_stopped_encode_leaves_nothing_unless_it_is_to_resume(work, run, monkeypatch, failure):
    monkeypatch.setattr("scq_gpu.io.code_files._BLOCK_BYTES", 64 * 4 * 100)  # 15 blocks
    encode, before = scq.OgE.encode, files(work)
    calls = []

    def stop(self, X, **options):
        calls.append(len(calls))
        if len(calls) == 6:
            raise failure
        return encode(self, X, **options)

    monkeypatch.setattr(scq.OgE, "encode", stop)
    code, _, err = run("encode m.safetensors x.npy -o n.npy")
    assert code == (130 if isinstance(failure, KeyboardInterrupt) else 4)
    assert len(err.splitlines()) == 2
    assert files(work) == before

    calls.clear()
    assert run("encode m.safetensors x.npy -o n.npy --resume")[0] == code
    assert Path("n.npy.partial").exists()
    assert not Path("n.npy").exists()
    first = len(calls)
    calls[:] = [0] * 100  # from now on nothing stops it
    assert run("encode m.safetensors x.npy -o n.npy --resume -q")[0] == 0
    assert len(calls) - 100 < 15 + 1, "it began again"
    assert first == 6
    np.testing.assert_array_equal(np.load("n.npy"), np.load("c.npy"))
    assert not list(work.glob("*.partial*"))


def test_a_run_that_fails_does_not_remove_what_another_left_to_resume(work, run):
    Path("n.npy.partial").write_bytes(b"x")
    Path("n.npy.partial.json").write_bytes(b"{}")
    np.save("narrow.npy", X[:50, :5])
    assert run("encode m.safetensors narrow.npy -o n.npy")[0] == 1
    assert Path("n.npy.partial").exists()


def test_what_nobody_foresaw_is_not_hidden(work, monkeypatch):
    def fail(*args, **options):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(scq, "load", fail)
    with pytest.raises(ZeroDivisionError):
        main(["info", "m.safetensors"])


def test_an_interrupted_command_ends_at_once():
    """It does not wait for finalization, in which another Ctrl-C would end it by the signal."""
    script = (
        "import atexit, os, signal, scq_gpu.cli as cli, scq_gpu.cli._run as _run\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGTERM)\n"
        "_run.run = lambda arguments: print('answers') or 130\n"
        "cli.end()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "answers\n")
