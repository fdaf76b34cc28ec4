"""Several processes, one file: the same bytes, the same errors, and nobody left behind."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

import scq_gpu as scq
from scq_gpu.io import block_codes

N, D, BLOCK = 4000, 24, 100
X = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)
BAD = [0, 399, 400, 2222, 3999]


@pytest.fixture(scope="module")
def encoder():
    return scq.OgE(n_bits=20, max_iter=5, tol=0, random_state=0).fit(X)


def test_the_same_bytes_from_two_processes(encoder, tmp_path):
    """Shards in two formats, rows with NaN left out, stopped in the middle and gone on with another number."""
    Y = X.copy()
    Y[BAD, 5] = np.nan
    np.save(tmp_path / "part-1.npy", Y[:1750])
    np.savez_compressed(tmp_path / "part-2.npz", Y[1750:])
    source = [tmp_path / "part-1.npy", tmp_path / "part-2.npz"]
    options = {"block_rows": BLOCK, "on_invalid": "skip", "progress": False}
    with pytest.warns(UserWarning, match="5 of 4,?000 rows"):
        one = scq.encode_file(encoder, source, tmp_path / "one.npy", **options)
    blocks = block_codes.encoded_blocks
    with pytest.MonkeyPatch.context() as patch:

        def some(work, *, first, workers):
            for number, block in enumerate(blocks(work, first=first, workers=workers)):
                if number == 9:
                    raise KeyboardInterrupt
                yield block

        patch.setattr("scq_gpu.io.code_files.encoded_blocks", some)
        with pytest.raises(KeyboardInterrupt):
            scq.encode_file(encoder, source, tmp_path / "two.npy", **options)
    with pytest.warns(UserWarning, match="5 of 4,?000 rows"):
        two = scq.encode_file(encoder, source, tmp_path / "two.npy", workers=2, **options)
    assert one.read_bytes() == two.read_bytes()
    np.testing.assert_array_equal(np.load(two), np.delete(encoder.encode(X), BAD, axis=0))
    assert np.load(tmp_path / "two.npy.invalid.npy").tolist() == BAD


def test_an_error_of_a_process_is_the_error(encoder, tmp_path):
    """By file and row, as from one process; what is before it is kept for the next call."""
    Y = X.copy()
    Y[2222, 7] = np.inf
    np.save(tmp_path / "x.npy", Y)
    with pytest.raises(ValueError, match=r"inf at row 2222 of .*x\.npy, column 7"):
        scq.encode_file(encoder, tmp_path / "x.npy", tmp_path / "c.npy", workers=2, block_rows=BLOCK, progress=False)
    assert (tmp_path / "c.npy.partial.json").exists()
    assert not (tmp_path / "c.npy").exists()


SCRIPT = """
    import os, signal, sys, time
    import numpy as np
    import scq_gpu as scq
    from scq_gpu.io import block_codes

    class Slow:
        n_bits = 8
        def encode(self, X):
            if X.shape[0] > 1:
                print(os.getpid(), flush=True)
                if sys.argv[1] == "worker":
                    os._exit(9)
                time.sleep(60)
            return np.zeros((X.shape[0], 1), dtype=np.uint8)

    if __name__ == "__main__":
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell may have had it ignore
        scq.encode_file(Slow(), sys.argv[2], sys.argv[3], workers=2, block_rows=100, progress=False)
"""


def start(tmp_path, what):
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "job.py").write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, tmp_path / "job.py", what, tmp_path / "x.npy", tmp_path / "c.npy"]
    return subprocess.Popen(command, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.skipif(not os.path.exists("/proc"), reason="looks for processes in /proc")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_processes_end_with_their_parent(tmp_path, end):
    job = start(tmp_path, "parent")
    worker = int(job.stdout.readline())
    job.send_signal(end)
    job.communicate(timeout=60)
    deadline = time.monotonic() + 30
    while not gone(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert gone(worker)


def test_a_process_that_dies_is_said(tmp_path):
    error = start(tmp_path, "worker").communicate(timeout=120)[1]
    assert "one of 2 worker processes died" in error
    assert "fewer workers" in error


@pytest.mark.parametrize("workers", [0, -1, 1.5, True])
def test_impossible_numbers_are_refused(encoder, tmp_path, workers):
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(ValueError, match=f"workers={workers} must be an integer >= 1"):
        scq.encode_file(encoder, tmp_path / "x.npy", tmp_path / "c.npy", workers=workers)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda options, path: None, "going on from row 1,000 of 4,000"),
        (lambda options, path: options.update(on_invalid="zero"), "starting over, because on_invalid changed"),
        (lambda options, path: options.update(block_rows=50), "starting over, because block_rows changed"),
        (lambda options, path: np.save(path, X[::-1]), r"starting over, because the source changed: .*x\.npy is not"),
    ],
)
def test_what_becomes_of_an_earlier_call_is_said(encoder, tmp_path, change, said, capsys, monkeypatch):
    path, options = tmp_path / "x.npy", {"block_rows": BLOCK, "on_invalid": "raise"}
    np.save(path, X)

    def some(work, *, first, workers):
        blocks = block_codes.encoded_blocks(work, first=first, workers=workers)
        yield from (block for block, _ in zip(blocks, range(10), strict=False))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("scq_gpu.io.code_files.encoded_blocks", some)
        with pytest.raises(KeyboardInterrupt):
            scq.encode_file(encoder, path, tmp_path / "c.npy", **options)
    assert capsys.readouterr().err == ""
    change(options, path)
    scq.encode_file(encoder, path, tmp_path / "c.npy", **options)
    error = capsys.readouterr().err
    assert re.search(said, error)
    assert error.count("\n") == 1
