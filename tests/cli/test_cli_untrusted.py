"""Files of strangers on the command line: names must not command a terminal, and what headers claim is checked."""

import contextlib
import os
import pty
import subprocess
import termios
import zipfile

import numpy as np
import pandas as pd
import pytest
from command_line import BASE, command, made, run, work  # noqa: F401 - fixtures

import scq_gpu as scq

EVIL = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m"


def harmless(text):
    return all(c.isprintable() or c in "\n\r" for c in text)


def test_names_of_files(work, run):  # noqa: F811
    os.rename("x.npy", f"{EVIL}.npy")
    os.rename("m.safetensors", f"{EVIL}.safetensors")
    for arguments in (
        ["info", f"{EVIL}.npy"],
        ["info", f"{EVIL}.safetensors"],
        ["info", f"no{EVIL}.npy"],
        ["encode", f"{EVIL}.safetensors", f"{EVIL}.npy", "-o", f"c{EVIL}.npy"],
        ["encode", f"{EVIL}.safetensors", f"{EVIL}.npy", "-o", f"c{EVIL}.txt"],
        ["fit", f"{EVIL}.npy", "-o", f"m{EVIL}.safetensors", "--bits", "4", f"--encoder={EVIL}"],
        ["info", f"{EVIL}.npy", f"--{EVIL}"],
    ):
        _, out, err = run("", *arguments)
        assert out + err
        assert harmless(out + err), repr(out + err)


def test_names_inside_files(work, run):  # noqa: F811
    frame = pd.DataFrame(BASE[:200, 10:20], columns=[f"{EVIL}{i}" for i in range(10)])
    scq.LSH(n_bits=4, random_state=0).fit(frame).save("named.safetensors")
    np.savez("two.npz", **{f"a{EVIL}": BASE, f"b{EVIL}": BASE})
    frame.to_parquet("named.parquet")
    frame.assign(text=EVIL).to_parquet("text.parquet")
    for line in (
        "info named.safetensors",
        "info two.npz",
        "info text.parquet",
        "encode named.safetensors named.parquet -o c.npy",
        "encode named.safetensors x.npy -o c.npy",
    ):
        _, out, err = run(line)
        assert out + err
        assert harmless(out + err), repr(out + err)


def test_the_progress_bar(work):  # noqa: F811
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (50, 200))
    line = command("encode m.safetensors x.npy -o", cwd=work, stderr=follower, stdout=subprocess.DEVNULL)
    line["args"] += [f"c{EVIL}.npy"]
    assert subprocess.run(**line, timeout=120).returncode == 0
    os.close(follower)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal that nobody writes to any more
        while piece := os.read(leader, 1 << 16):
            shown += piece
    os.close(leader)
    shown = shown.decode()
    assert "rows" in shown
    assert "owned" in shown
    assert harmless(shown.replace("\x1b[A", "")), repr(shown)


def member(dtype="<i8", shape=(1500,), content=b""):
    header = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


@pytest.mark.parametrize("ending", ["npy", "npz"])
@pytest.mark.parametrize(
    "content",
    [
        member(shape=(10**12,)),
        member(dtype="|O", content=bytes(8 * 1500)),
        member(shape=(1500,), content=bytes(100)),
        member(shape=(-5,)),
        b"\x93NUMPY\x01\x00" + (9000).to_bytes(2, "little") + b"-" * 9000,
        b"",
        b"PK\x03\x04",
    ],
)
def test_labels_that_are_not_what_they_claim(work, run, ending, content):  # noqa: F811
    if ending == "npz":
        with zipfile.ZipFile("labels.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("y.npy", content)
    else:
        (work / "labels.npy").write_bytes(content)
    code, _, err = run("sweep x.npy --bits 8 --encoder PCAH --n-queries 50 --labels", f"labels.{ending}")
    assert code == 1
    assert err.count("\n") <= 2
    assert f"labels.{ending}" in err


def test_an_archive_that_is_none(work, run):  # noqa: F811
    (work / "labels.npz").write_bytes(b"PK\x05\x06" + bytes(40))
    code, _, err = run("sweep x.npy --bits 8 --encoder PCAH --n-queries 50 --labels labels.npz")
    assert code == 1
    assert "labels.npz" in err
