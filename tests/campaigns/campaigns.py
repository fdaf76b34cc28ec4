"""The campaigns. Each takes a budget and a seed, and returns what was tried and what failed.

python tests/campaigns/campaigns.py --scale 1      in full, as ``make campaign`` does
"""

import argparse
import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import scq_gpu as scq
from scq_gpu.kernels import engines

ROOT = Path(__file__).parents[2]
N, D, BITS = 400, 12, 10
ENV = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass
class Figures:
    tried: int = 0
    failures: list[str] = field(default_factory=list)
    notes: str = ""

    def __str__(self) -> str:
        return f"tried {self.tried:,}, failed {len(self.failures)}{'; ' if self.notes else ''}{self.notes}"


# ---- fuzzed files ----


def rows() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)


def encoder():
    return scq.OgE(n_bits=BITS, max_iter=2, tol=0, random_state=0).fit(rows())


def make_zarr(path: Path, version: int) -> Path:
    import zarr

    array = zarr.create_array(str(path), shape=(N, D), chunks=(150, D), dtype="f4", zarr_format=version)
    array[:] = rows()
    return path


def make_parquet(path: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    values = pa.FixedSizeListArray.from_arrays(pa.array(rows().reshape(-1)), D)
    pq.write_table(pa.table({"x": values}), path, row_group_size=150)
    return path


def make_hdf5(path: Path) -> Path:
    import h5py

    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=rows(), chunks=(150, D), compression="gzip")
    return path


def make_vecs(path: Path) -> Path:
    path.write_bytes(b"".join(struct.pack("<i", D) + x.tobytes() for x in rows()))
    return path


def make_bin(path: Path) -> Path:
    path.write_bytes(struct.pack("<II", N, D) + rows().tobytes())
    return path


def saved(path: Path, save: Callable[[Path], object]) -> Path:
    save(path)
    return path


def seeds(folder: Path) -> dict[str, Path]:
    """A good file of every format."""
    model, X = encoder(), rows()
    codes = model.encode(X)
    ids = np.random.default_rng(1).permutation(10 * N)[:N]
    return {
        "npy": saved(folder / "x.npy", lambda p: np.save(p, X)),
        "npz": saved(folder / "x.npz", lambda p: np.savez_compressed(p, x=X)),
        "fbin": make_bin(folder / "x.fbin"),
        "fvecs": make_vecs(folder / "x.fvecs"),
        "parquet": make_parquet(folder / "x.parquet"),
        "hdf5": make_hdf5(folder / "x.h5"),
        "zarr2": make_zarr(folder / "x2.zarr", 2),
        "zarr3": make_zarr(folder / "x3.zarr", 3),
        "model": saved(folder / "m.safetensors", model.save),
        "index": saved(folder / "i.safetensors", scq.HammingIndex(codes, BITS, ids, encoder=model).save),
        "vectors": saved(folder / "v.safetensors", scq.VectorIndex(X, encoder=model).save),
        "journal": saved(folder / "codes.npy.partial.json", lambda p: p.write_text(journal(folder, model))),
    }


def journal(folder: Path, model) -> str:
    """The journal of an encode that was stopped half-way."""

    class Stop(Exception):
        pass

    class Half:
        def __init__(self) -> None:
            self.__dict__ |= vars(model)
            self._calls = 0

        def encode(self, X):
            self._calls += 1
            if self._calls > 3:
                raise Stop
            return model.encode(X)

    Half.__name__ = "OgE"
    np.save(folder / "x.npy", rows())
    with contextlib.suppress(Stop):
        scq.encode_file(Half(), folder / "x.npy", folder / "codes.npy", block_rows=100, progress=False)
    return (folder / "codes.npy.partial.json").read_text()


def mutate(content: bytes, rng: np.random.Generator) -> bytes:
    """One of: bits flipped, bytes replaced, a piece cut out, doubled or zeroed, the end cut, numbers made extreme."""
    data = bytearray(content)
    head = min(len(data), 400)  # headers are where most can go wrong
    for _ in range(int(rng.integers(1, 4))):
        if not data:
            break
        at = int(rng.integers(0, head if rng.random() < 0.6 else len(data)) % len(data))
        size = int(rng.integers(1, 32))
        kind = int(rng.integers(0, 8))
        if kind == 0:
            data[at] ^= 1 << int(rng.integers(0, 8))
        elif kind == 1:
            data[at : at + size] = rng.bytes(len(data[at : at + size]))
        elif kind == 2:
            del data[at : at + size]
        elif kind == 3:
            data[at:at] = data[at : at + size]
        elif kind == 4:
            data[at : at + size] = bytes(len(data[at : at + size]))
        elif kind == 5:
            del data[at + 1 :]
        elif kind == 6:
            extreme = [0, -1, 1, 2**31 - 1, 2**63 - 1, -(2**63)][int(rng.integers(0, 6))]
            data[at : at + 8] = struct.pack("<q", extreme)[: len(data[at : at + 8])]
        else:
            digits = [i for i, c in enumerate(data[:head]) if 48 <= c <= 57]
            if digits:
                data[digits[int(rng.integers(0, len(digits)))]] = 48 + int(rng.integers(0, 10))
    return bytes(data)


def use(kind: str, path: Path, model) -> None:
    """What a user would do with the file; whatever it is, only ValueError and OSError may come of it."""
    X = rows()
    if kind == "model":
        loaded = scq.load(path)
        width = int(loaded.n_features_in_)
        codes = loaded.encode(np.zeros((3, width), dtype=np.float32))
        assert codes.shape == (3, -(-loaded.n_bits // 8))
    elif kind == "index":
        index = scq.HammingIndex.load(path)
        queries = np.zeros((4, -(-index.n_bits // 8)), dtype=np.uint8)
        d, ids = index.search(queries, 5)
        assert d.shape == ids.shape == (4, 5)
        index.range_search(queries, 2)
        with contextlib.suppress(ValueError):
            scq.HammingIndex.load(path, verify=True)
    elif kind == "vectors":
        scq.VectorIndex.load(path).search(X[:3], 4)
    elif kind == "journal":
        scq.encode_file(model, path.parent / "x.npy", path.parent / "codes.npy", block_rows=100, progress=False)
        np.testing.assert_array_equal(np.load(path.parent / "codes.npy"), model.encode(X))
    else:
        source = scq.io.open_rows(path)
        assert source.shape[0] >= 1
        if source.shape[0] * source.shape[1] < 10**7:
            np.asarray(source)


def targets(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]


def fuzz(kind: str, count: int, seed: int) -> Figures:
    """Files of one format, each with a few changes, fixed by the seed."""
    figures, rng = Figures(), np.random.default_rng([seed, *kind.encode()])
    model = encoder()
    refused = 0
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        good = seeds(folder)[kind]
        before = {p: p.read_bytes() for p in targets(good)}
        partial = (folder / "codes.npy.partial").read_bytes() if kind == "journal" else b""
        engines.PAIRS, pairs = 1, engines.PAIRS  # compiled loops, which trust what they are given
        try:
            for number in range(count):
                victim = list(before)[int(rng.integers(0, len(before)))]
                victim.write_bytes(mutate(before[victim], rng))
                if kind == "journal":
                    (folder / "codes.npy.partial").write_bytes(partial)
                    (folder / "codes.npy").unlink(missing_ok=True)
                figures.tried += 1
                started = time.monotonic()
                try:
                    use(kind, good, model)
                except (ValueError, OSError) as error:
                    refused += 1
                    named = isinstance(error, OSError) or any(p in str(error) for p in (folder.name, "k=", "X_query"))
                    if not named and "NaN or inf" not in str(error):
                        figures.failures.append(f"{kind} {number}: no file named: {error!r}")
                except Exception as error:
                    figures.failures.append(f"{kind} {number}: {error!r}")
                if time.monotonic() - started > 10:
                    figures.failures.append(f"{kind} {number}: took {time.monotonic() - started:.0f} s")
                for path, content in before.items():
                    path.write_bytes(content)
        finally:
            engines.PAIRS = pairs
    figures.notes = f"{refused} refused"
    return figures


# ---- kills ----

ENCODE = """
import sys, scq_gpu as scq
from scq_gpu.io import code_files
code_files._JOURNAL_SECONDS = 0.02
print("go", flush=True)
scq.encode_file(scq.load(sys.argv[1]), sys.argv[2], sys.argv[3], block_rows=200, on_invalid="skip", progress=False)
"""
SAVE = """
import sys, numpy as np, scq_gpu as scq
model, index = scq.load(sys.argv[1]), scq.HammingIndex(np.zeros((200_000, 8), dtype=np.uint8), 64)
print("go", flush=True)
while True:
    model.save(sys.argv[2])
    index.save(sys.argv[3])
"""


def killed_after(code: str, arguments: list[str], delay: float, sign: int = signal.SIGKILL) -> int:
    job = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=ENV,
    )
    assert job.stdout is not None
    job.stdout.readline()
    with contextlib.suppress(subprocess.TimeoutExpired):
        return job.wait(delay)
    job.send_signal(sign)
    return job.wait()


def kill_encodes(count: int, seed: int) -> Figures:
    """``kill -9`` at moments spread over a whole encode_file; what is there at the end is what one run gives."""
    figures, rng = Figures(), np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        X = rng.standard_normal((400_000, D)).astype(np.float32)
        X[::1777, 3] = np.nan
        np.save(folder / "x.npy", X)
        encoder().save(folder / "m.safetensors")
        arguments = [str(folder / "m.safetensors"), str(folder / "x.npy")]
        started = time.monotonic()
        killed_after(ENCODE, [*arguments, str(folder / "whole.npy")], 600)
        lasts = time.monotonic() - started
        wanted = [(folder / f"whole.npy{ending}").read_bytes() for ending in ("", ".invalid.npy")]
        out = folder / "codes.npy"
        finished = 0
        while figures.tried < count:
            figures.tried += 1
            delay = float(rng.uniform(0, lasts / 4))
            killed_after(ENCODE, [*arguments, str(out)], delay)
            if out.exists() and not (folder / "codes.npy.partial").exists():
                finished += 1
                found = [(folder / f"codes.npy{ending}").read_bytes() for ending in ("", ".invalid.npy")]
                if found != wanted:
                    figures.failures.append(f"kill {figures.tried}: the file is another")
                out.unlink()
                (folder / "codes.npy.invalid.npy").unlink()
        if killed_after(ENCODE, [*arguments, str(out)], 600) or out.read_bytes() != wanted[0]:
            figures.failures.append("the last run did not finish, or gave another file")
        left = {p.name for p in folder.iterdir()} - {"codes.npy", "codes.npy.invalid.npy", "m.safetensors", "x.npy"}
        left -= {"whole.npy", "whole.npy.invalid.npy"}
        if left:
            figures.failures.append(f"left behind: {sorted(left)}")
    figures.notes = f"{finished + 1} files finished, byte-identical"
    return figures


def kill_saves(count: int, seed: int) -> Figures:
    """``kill -9`` while models and indexes are saved: both load, and the next save leaves no temporary file."""
    figures, rng = Figures(), np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = encoder()
        model.save(folder / "m.safetensors")
        paths = [folder / "model.safetensors", folder / "index.safetensors"]
        for number in range(count):
            figures.tried += 1
            killed_after(SAVE, [str(folder / "m.safetensors"), *map(str, paths)], float(rng.uniform(0, 0.4)))
            try:
                if paths[0].exists():
                    scq.load(paths[0])
                if paths[1].exists():
                    scq.HammingIndex.load(paths[1], verify=True)
            except ValueError as error:
                figures.failures.append(f"kill {number}: {error}")
            if sum(p.name.endswith(".tmp") for p in folder.iterdir()) > 2:
                figures.failures.append(f"kill {number}: temporary files pile up")
        model.save(paths[0])
        scq.HammingIndex(np.zeros((1, 8), dtype=np.uint8), 64).save(paths[1])
        if any(p.name.endswith(".tmp") for p in folder.iterdir()):
            figures.failures.append("a save left temporary files of killed ones")
    return figures


# ---- threads ----


def threads(seconds: float, seed: int) -> Figures:
    """Eight threads on one index: four add and remove codes of their own, four search, all with an oracle.

    A thread knows which of its codes are in the index, and that nobody else has the like: each must be found, at
    distance 0 and by its own id, by every kind of search, and never after it was removed.
    """
    figures, lock = Figures(), threading.Lock()
    index = scq.HammingIndex(np.random.default_rng(seed).integers(0, 256, size=(3000, 8), dtype=np.uint8), 64)
    base = index.search(np.zeros((1, 8), dtype=np.uint8), 1)[1][0, 0]
    assert base >= 0
    ends = time.monotonic() + seconds
    engines.PAIRS, pairs = 1 << 14, engines.PAIRS

    def fail(message: str) -> None:
        with lock:
            figures.failures.append(message)

    def code_of(owner: int, number: int) -> np.ndarray:
        rng = np.random.default_rng([seed, owner + 1, number + 1])  # zeros at the end of a seed count for nothing
        return rng.integers(0, 256, size=8, dtype=np.uint8)

    def owner(me: int) -> None:
        rng = np.random.default_rng([seed, me])
        mine: dict[int, np.ndarray] = {}
        number = 0
        while time.monotonic() < ends:
            more = {(me + 1) * 10**9 + number + i: code_of(me, number + i) for i in range(int(rng.integers(1, 20)))}
            number += len(more)
            index.add(np.stack(list(more.values())), np.array(list(more)))
            mine |= more
            some = [int(i) for i in rng.choice(list(mine), size=min(8, len(mine)), replace=False)]
            queries = np.stack([mine[i] for i in some])
            d, ids = index.search(queries, 1)
            if (d[:, 0] != 0).any() or ids[:, 0].tolist() != some:
                fail(f"owner {me}: search lost {some}")
            offsets, found, _ = index.range_search(queries, 0)
            if any(i not in found[offsets[j] : offsets[j + 1]] for j, i in enumerate(some)):
                fail(f"owner {me}: range_search lost {some}")
            gone = some[: len(some) // 2]
            if gone:
                index.remove(np.array(gone))
                for i in gone:
                    code = mine.pop(i)
                    if index.search(code[None], 1)[1][0, 0] == i:
                        fail(f"owner {me}: {i} found after it was removed")
            with lock:
                figures.tried += 3

    def searcher(me: int) -> None:
        rng = np.random.default_rng([seed, me, 7])
        while time.monotonic() < ends:
            queries = rng.integers(0, 256, size=(20, 8), dtype=np.uint8)
            if me % 2:
                index.prepare(int(rng.integers(0, 6)))
            d, ids = index.search(queries, 5)
            if (np.diff(d, axis=1) < 0).any() or any(len(set(row)) != 5 for row in ids.tolist()):
                fail(f"searcher {me}: answers out of order, or an id twice")
            offsets, found, d = index.range_search(queries, 12)
            if len(found) != offsets[-1] or (d > 12).any():
                fail(f"searcher {me}: range_search inconsistent")
            with lock:
                figures.tried += 2

    def guarded(work: Callable[[int], None], me: int) -> None:
        try:
            work(me)
        except Exception as error:
            fail(f"{work.__name__} {me}: {error!r}")

    try:
        crew = [threading.Thread(target=guarded, args=(w, k)) for k in range(4) for w in (owner, searcher)]
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join()
    finally:
        engines.PAIRS = pairs
    figures.notes = f"{len(index):,} codes at the end"
    return figures


# ---- interrupts ----

BUSY = """
import sys, time, tempfile, numpy as np, scq_gpu as scq, warnings
warnings.simplefilter("ignore")
what, rng = sys.argv[1], np.random.default_rng(0)
n = 1_000_000
codes = rng.integers(0, 256, size=(n, 8), dtype=np.uint8)
index = scq.HammingIndex(codes, 64)
X = rng.standard_normal((20_000, 256)).astype(np.float32)
encoder = scq.LSH(n_bits=64, random_state=0).fit(X[:500])
labels = rng.integers(0, 10, size=n)
folder = tempfile.mkdtemp()
np.save(f"{folder}/x.npy", np.tile(X, (8, 1)))
WORK = {
    "search": lambda: index.search(codes[:30_000], 10),
    "range_search": lambda: index.range_search(codes[:30_000], 12),
    "asymmetric": lambda: index.search_asymmetric(encoder, X, 10),
    "evaluate": lambda: scq.metrics.mean_average_precision(codes[:3000], codes, labels[:3000], labels),
    "encode": lambda: encoder.encode(X),
    "encode_file": lambda: scq.encode_file(
        encoder, f"{folder}/x.npy", f"{folder}/c.npy", overwrite=True, progress=False
    ),
    "fit": lambda: scq.OgE(n_bits=32, random_state=0).fit(X),
}
small = slice(0, 100)
index.search(codes[small], 10), index.range_search(codes[small], 3), index.search_asymmetric(encoder, X[small], 10)
scq.metrics.mean_average_precision(codes[small], codes, labels[small], labels), encoder.encode(X[small])
for _ in range(int(sys.argv[2])):
    print("go", flush=True)
    try:
        while True:
            WORK[what]()
    except KeyboardInterrupt:
        print("stopped", flush=True)
import shutil; shutil.rmtree(folder)
"""
WORK = ("search", "range_search", "asymmetric", "evaluate", "encode", "encode_file", "fit")


def interrupts(what: str, count: int, seed: int, limit: float = 0.5) -> Figures:
    """SIGINT at random moments of one kind of work: how long until the caller has its KeyboardInterrupt."""
    figures, rng, longest = Figures(), np.random.default_rng([seed, *what.encode()]), 0.0
    job = subprocess.Popen(
        [sys.executable, "-c", BUSY, what, str(count)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENV,
    )
    assert job.stdout is not None
    assert job.stderr is not None
    for _ in range(count):
        if job.stdout.readline() != "go\n":
            break
        time.sleep(float(rng.uniform(0.05, 1.5)))
        started = time.monotonic()
        job.send_signal(signal.SIGINT)
        figures.tried += 1
        if job.stdout.readline() != "stopped\n":
            break
        took = time.monotonic() - started
        longest = max(longest, took)
        if took > limit:
            figures.failures.append(f"{what}: {took:.2f} s until KeyboardInterrupt")
    said = job.stderr.read()
    if job.wait() or figures.tried < count:
        figures.failures.append(f"{what}: ended with {job.returncode}: {said[-300:]}")
    figures.notes = f"longest {longest:.2f} s"
    return figures


def command_line(count: int, seed: int) -> Figures:
    """SIGINT to ``scq-gpu encode``: exit code 130, one line, nothing half-written."""
    figures, rng = Figures(), np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        encoder().save(folder / "m.safetensors")
        np.lib.format.open_memmap(folder / "x.npy", mode="w+", dtype=np.float32, shape=(60_000_000, D)).flush()
        before = sorted(p.name for p in folder.iterdir())
        for number in range(count):
            figures.tried += 1
            command = [sys.executable, "-m", "scq_gpu.cli", "encode", "m.safetensors", "x.npy", "-o", "c.npy"]
            job = subprocess.Popen(command, cwd=folder, env=ENV, stderr=subprocess.PIPE, text=True)
            assert job.stderr is not None
            job.stderr.readline()  # it says what it begins
            time.sleep(float(rng.uniform(0, 0.5)))
            job.send_signal(signal.SIGINT)
            said = job.stderr.read()
            if job.wait() != 130 or said != "scq-gpu: interrupted\n":
                figures.failures.append(f"{number}: exit {job.returncode}, {said!r}")
            if sorted(p.name for p in folder.iterdir()) != before:
                figures.failures.append(f"{number}: left {sorted(p.name for p in folder.iterdir())}")
    return figures


# ---- soak ----


def soak(seconds: float, seed: int) -> Figures:
    """Everything, again and again: memory and open files must not grow."""
    figures, rng = Figures(), np.random.default_rng(seed)
    ends, first = time.monotonic() + seconds, None
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        while time.monotonic() < ends:
            X = rng.standard_normal((3000, 24)).astype(np.float32)
            np.save(folder / "x.npy", X)
            model = scq.OgE(n_bits=16, max_iter=2, tol=0, random_state=0).fit(X)
            model.save(folder / "m.safetensors")
            codes = np.load(scq.encode_file(model, folder / "x.npy", folder / "c.npy", overwrite=True, progress=False))
            index = scq.HammingIndex(codes, 16, encoder=model).add(codes[:10])
            index.save(folder / "i.safetensors")
            same = scq.HammingIndex.load(folder / "i.safetensors", verify=True)
            if (same.search(codes[:50], 5)[1] != index.search(codes[:50], 5)[1]).any():
                figures.failures.append("an index is not what it was after a round trip")
            if (scq.load(folder / "m.safetensors").encode(X) != codes).any():
                figures.failures.append("codes are not what they were after a round trip")
            figures.tried += 1
            now = resident(), len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
            if figures.tried == 20:
                first = now
    last = resident()
    if first is not None:
        figures.notes = f"memory {first[0] / 2**20:.0f} to {last / 2**20:.0f} MiB, files open {first[1]} to {now[1]}"
        if last > first[0] * 1.2 + (32 << 20) or now[1] > first[1] + 4:
            figures.failures.append(figures.notes)
    return figures


def resident() -> int:
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if status.exists() else 0


FORMATS = (
    *("npy", "npz", "fbin", "fvecs", "parquet", "hdf5", "zarr2", "zarr3"),
    *("model", "index", "vectors", "journal"),
)


def everything(scale: float, seed: int) -> dict[str, Callable[[], Figures]]:
    """The campaigns by name; ``scale`` 1 is in full."""

    def many(full: int) -> int:
        return max(2, int(full * scale))

    return {
        **{f"fuzz {kind}": lambda kind=kind: fuzz(kind, many(500), seed) for kind in FORMATS},
        "kill encode_file": lambda: kill_encodes(many(50), seed),
        "kill saves": lambda: kill_saves(many(50), seed),
        "threads": lambda: threads(60 * scale, seed),
        **{f"interrupt {what}": lambda what=what: interrupts(what, many(10), seed) for what in WORK},
        "interrupt command line": lambda: command_line(many(10), seed),
        "soak": lambda: soak(60 * scale, seed),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="campaigns whose names contain this")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {}
    for name, run in everything(options.scale, options.seed).items():
        if options.only in name:
            started = time.monotonic()
            figures = run()
            results[name] = {"tried": figures.tried, "failed": len(figures.failures), "notes": figures.notes}
            print(f"{name:24} {figures} ({time.monotonic() - started:.0f} s)", flush=True)
            for failure in figures.failures[:5]:
                print(f"    {failure[:400]}", flush=True)
    tried, failed = (sum(result[key] for result in results.values()) for key in ("tried", "failed"))
    print(f"{'all':24} tried {tried:,}, failed {failed}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
