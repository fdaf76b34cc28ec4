"""SIGINT at random moments: how long until the caller has its KeyboardInterrupt, and what is left behind."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from campaigns.attack import D, Figures, encoder, process

BUSY = """
import shutil, signal, sys, tempfile, time, warnings
import numpy as np, scq_gpu as scq
warnings.simplefilter("ignore")
signal.signal(signal.SIGINT, signal.default_int_handler)
n, rng = int(sys.argv[1]), np.random.default_rng(0)
codes = rng.integers(0, 256, size=(n, 8), dtype=np.uint8)
index = scq.HammingIndex(codes, 64)
X = rng.standard_normal((20_000, 256)).astype(np.float32)
encoder = scq.LSH(n_bits=64, random_state=0).fit(X[:500])
labels = rng.integers(0, 10, size=n)
folder = tempfile.mkdtemp()
np.save(f"{folder}/x.npy", np.tile(X, (8, 1)))
whole = np.concatenate([encoder.encode(X)] * 8)

def encode_file():
    scq.encode_file(encoder, f"{folder}/x.npy", f"{folder}/c.npy", overwrite=True, block_rows=1000, progress=False)
    if (np.load(f"{folder}/c.npy") != whole).any():
        raise SystemExit("the codes of a file are others")

WORK = {
    "search": lambda: index.search(codes[:30_000], 10),
    "range_search": lambda: index.range_search(codes[:30_000], 12),
    "asymmetric": lambda: index.search_asymmetric(encoder, X, 10),
    "evaluate": lambda: scq.metrics.mean_average_precision(codes[:3000], codes, labels[:3000], labels),
    "encode": lambda: encoder.encode(X),
    "encode_file": encode_file,
    "fit": lambda: scq.OgE(n_bits=32, random_state=0).fit(X),
    "save": lambda: index.save(f"{folder}/i.safetensors"),
}
small = slice(0, 100)  # compiled before anything is timed
index.search(codes[small], 10), index.range_search(codes[small], 3), index.search_asymmetric(encoder, X[small], 10)
scq.metrics.mean_average_precision(codes[small], codes, labels[small], labels), encoder.encode(X[small])
for what in sys.stdin:
    try:
        print("go", flush=True)
        while True:
            WORK[what.strip()]()
    except KeyboardInterrupt:
        stopped = time.monotonic(), time.process_time()
    print(*stopped, flush=True)
encode_file()
scq.HammingIndex.load(f"{folder}/i.safetensors", verify=True) if "save" in sys.argv else None
import os
left = set(os.listdir(folder)) - {"x.npy", "c.npy", "i.safetensors"}
shutil.rmtree(folder)
sys.exit(f"left behind: {sorted(left)}" if left else 0)
"""
WORK = ("search", "range_search", "asymmetric", "evaluate", "encode", "encode_file", "fit", "save")


def cpu_seconds(pid: int) -> float:
    """What a process has computed so far, of all its threads."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def interrupts(count: int, seed: int, n: int = 1_000_000, limit: float = 0.5) -> Figures:
    """Each kind of work, as often as asked.

    The limit is of time computed, which a busy machine does not change, per core; of time on the clock it is
    ``limit`` too on an idle machine, and more by as much as others use it.
    """
    figures, rng, cores = Figures(), np.random.default_rng(seed), os.cpu_count() or 1
    longest, computed = 0.0, 0.0
    command = [sys.executable, "-c", BUSY, str(n), *WORK]
    with process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as job:
        assert job.stdin is not None
        assert job.stdout is not None
        for what in WORK * count:
            job.stdin.write(f"{what}\n")
            job.stdin.flush()
            if job.stdout.readline() != "go\n":
                break
            time.sleep(float(rng.uniform(0.05, 1.0)))
            before = cpu_seconds(job.pid)
            sent = time.monotonic()
            job.send_signal(signal.SIGINT)
            figures.tried += 1
            said = job.stdout.readline().split()
            if len(said) != 2:
                break
            wall, cpu = float(said[0]) - sent, (float(said[1]) - before) / cores
            longest, computed = max(longest, wall), max(computed, cpu)
            allowed = limit * max(1.0, 2 * os.getloadavg()[0] / cores)
            if cpu > limit or wall > allowed:
                figures.failures.append(f"{what}: {wall:.2f} s ({cpu:.2f} s computed) until KeyboardInterrupt")
        _, said_last = job.communicate(timeout=600)
    if job.returncode or figures.tried < len(WORK) * count:
        figures.failures.append(f"it ended with {job.returncode}: {said_last[-300:]}")
    load = os.getloadavg()[0] / cores
    figures.notes = f"longest {longest:.2f} s, {computed:.2f} s of them computed, at a load of {load:.1f} per core"
    return figures


COMMANDS = {
    "encode": ["encode", "m.safetensors", "x.npy", "-o", "c.npy"],
    "search": ["search", "m.safetensors", "many.npy", "q.npy", "-o", "found.npz"],
    "fit": ["fit", "x.npy", "-o", "new.safetensors", "--bits", "8"],
}


def command_line(count: int, seed: int, only: tuple[str, ...] = tuple(COMMANDS)) -> Figures:
    """SIGINT to commands: exit code 130, one line, nothing half-written."""
    figures, rng = Figures(), np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        encoder().save(folder / "m.safetensors")
        for path, shape, dtype in (("x.npy", (60_000_000, D), np.float32), ("many.npy", (30_000_000, 2), np.uint8)):
            np.lib.format.open_memmap(folder / path, mode="w+", dtype=dtype, shape=shape).flush()  # holes: no disk
        np.save(folder / "q.npy", rng.standard_normal((3000, D)).astype(np.float32))
        before = sorted(p.name for p in folder.iterdir())
        for number in range(count):
            what = only[number % len(only)]
            command = [sys.executable, "-m", "scq_gpu.cli", *COMMANDS[what]]
            with process(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as job:
                assert job.stderr is not None
                if what != "search":
                    job.stderr.readline()  # it says what it begins
                else:  # it says nothing until it has found something
                    while job.poll() is None and cpu_seconds(job.pid) < 4:
                        time.sleep(0.01)
                time.sleep(float(rng.uniform(0, 0.5)))
                job.send_signal(signal.SIGINT)
                figures.tried += 1
                said = job.stderr.read()
            if job.returncode != 130 or said.replace("\r", "\n").strip().split("\n")[-1] != "scq-gpu: interrupted":
                figures.failures.append(f"{what}: exit {job.returncode}, {said[-300:]!r}")
            if sorted(p.name for p in folder.iterdir()) != before:
                figures.failures.append(f"{what} left {sorted({p.name for p in folder.iterdir()} - set(before))}")
    return figures
