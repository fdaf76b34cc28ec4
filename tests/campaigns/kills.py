"""``kill -9`` at moments spread over whole runs of encode_file, and over saves."""

import contextlib
import os
import signal
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

import scq_gpu as scq
from campaigns.attack import D, Figures, Forks, encoder

ENCODE = """
import scq_gpu as scq
from scq_gpu.io import code_files
code_files._JOURNAL_SECONDS = 0.01

def work(model, source, out):
    scq.encode_file(scq.load(model), source, out, block_rows=200, on_invalid="skip", progress=False)
"""
SAVE = """
import numpy as np, scq_gpu as scq
from pathlib import Path
X = np.random.default_rng(0).standard_normal((20_000, 12)).astype(np.float32)

def work(model, folder):
    encoder = scq.load(model)
    index = scq.HammingIndex(np.zeros((200_000, 8), dtype=np.uint8), 64)
    vectors = scq.VectorIndex(X, encoder=encoder)
    Path(folder, "ready").touch()
    while True:
        encoder.save(f"{folder}/model.safetensors")
        index.save(f"{folder}/index.safetensors")
        vectors.save(f"{folder}/vectors.safetensors")
"""
LOAD = {
    "model": scq.load,
    "index": lambda path: scq.HammingIndex.load(path, verify=True),
    "vectors": lambda path: scq.VectorIndex.load(path, verify=True),
}


def wait_until(reached, seconds: float = 300) -> bool:
    """Whether something came true before the time was over; looked at every millisecond."""
    ends = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > ends:
            return False
        time.sleep(0.001)
    return True


def kill_encodes(count: int, seed: int, n: int = 50_000) -> Figures:
    """Each run is killed twice, the moments spread by what is written, and then goes on to its end."""
    figures, rng = Figures(), np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings(), Forks(ENCODE) as forks:
        warnings.simplefilter("ignore")
        folder = Path(name)
        X = rng.standard_normal((n, D)).astype(np.float32)
        X[::1777, 3] = np.nan
        np.save(folder / "x.npy", X)
        encoder().save(folder / "m.safetensors")
        inputs = [str(folder / "m.safetensors"), str(folder / "x.npy")]
        forks.start(*inputs, str(folder / "whole.npy"))
        if forks.result():
            return Figures(1, ["a run that nobody killed failed"])
        endings = ("", ".invalid.npy")
        wanted = [(folder / f"whole.npy{ending}").read_bytes() for ending in endings]
        before = {p.name for p in folder.iterdir()}
        out, partial = folder / "codes.npy", folder / "codes.npy.partial"
        runs, late = -(-count // 2), 0
        for run in range(runs):
            share = run / max(1, runs - 1)  # of the codes that are there when it is killed
            for moment in (share / 2, (1 + share) / 2):
                job = forks.start(*inputs, str(out))
                target = moment * len(wanted[0])
                reached = wait_until(
                    lambda target=target: out.exists() or (partial.exists() and partial.stat().st_size >= target)
                )
                with contextlib.suppress(ProcessLookupError):
                    os.kill(job, signal.SIGKILL)
                late += forks.result() == 0  # it had ended
                figures.tried += 1
                if not reached:
                    figures.failures.append(f"run {run}: nothing came of it in 300 s")
                if out.exists() and out.read_bytes() != wanted[0]:
                    figures.failures.append(f"run {run}, killed at {moment:.2f}: a file that is not whole")
                if out.exists():
                    break
            if not out.exists():
                forks.start(*inputs, str(out))
                if forks.result():
                    figures.failures.append(f"run {run}: it did not go on")
            found = [
                path.read_bytes() if (path := folder / f"codes.npy{ending}").exists() else b"" for ending in endings
            ]
            if found != wanted:
                figures.failures.append(f"run {run}: the file is another")
            left = {p.name for p in folder.iterdir()} - before - {f"codes.npy{ending}" for ending in endings}
            if left - {partial.name, f"{partial.name}.json", f"{partial.name}.invalid"} or (left and not late):
                figures.failures.append(f"run {run} left {sorted(left)}")
            for path in folder.glob("codes.npy*"):
                path.unlink()
            for path in folder.glob(".*.tmp"):
                path.unlink()
    figures.notes = f"{runs} files finished, byte-identical; {late} kills came after the end"
    return figures


def kill_saves(count: int, seed: int) -> Figures:
    """Models, indexes and vector indexes: each loads, and no more than one temporary file is left of each."""
    figures, rng = Figures(), np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as name, Forks(SAVE) as forks:
        folder = Path(name)
        model = encoder()
        model.save(folder / "m.safetensors")
        paths = {kind: folder / f"{kind}.safetensors" for kind in LOAD}
        for number in range(count):
            job = forks.start(str(folder / "m.safetensors"), name)
            figures.tried += 1
            if not wait_until((folder / "ready").exists):
                figures.failures.append(f"kill {number}: nothing came of it in 300 s")
            time.sleep(float(rng.uniform(0, 0.3)))
            os.kill(job, signal.SIGKILL)
            if forks.result() != -signal.SIGKILL:
                figures.failures.append(f"kill {number}: it had ended by itself")
            (folder / "ready").unlink(missing_ok=True)
            for kind, path in paths.items():
                try:
                    if path.exists():
                        LOAD[kind](path)
                except ValueError as error:
                    figures.failures.append(f"kill {number}: {error}")
                if len(list(folder.glob(f".{path.name}.*.tmp"))) > 1:
                    figures.failures.append(f"kill {number}: temporary files pile up")
        saved = sum(path.exists() for path in paths.values())
        model.save(paths["model"])
        scq.HammingIndex(np.zeros((1, 8), dtype=np.uint8), 64).save(paths["index"])
        scq.VectorIndex(np.ones((1, D), dtype=np.float32), encoder=model).save(paths["vectors"])
        if list(folder.glob("*.tmp")) or list(folder.glob(".*.tmp")):
            figures.failures.append("a save left temporary files of killed ones")
    figures.notes = f"{saved} of 3 kinds of files were there before the last"
    return figures
