"""Eight threads on one index, and everything again and again."""

import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

import scq_gpu as scq
from campaigns.attack import Figures


def threads(seconds: float, seed: int) -> Figures:
    """Eight threads on one index: four add and remove codes of their own, four search, all with an oracle.

    A thread knows which of its codes are in the index, and that nobody else has the like: each must be found, at
    distance 0 and by its own id, by every kind of search, and never after it was removed.
    """
    figures, lock = Figures(), threading.Lock()
    index = scq.HammingIndex(np.random.default_rng(seed).integers(0, 256, size=(3000, 8), dtype=np.uint8), 64)
    nearest = index.search(np.zeros((8, 8), dtype=np.uint8), 1)[1]
    index.range_search(np.zeros((8, 8), dtype=np.uint8), 0)
    assert nearest[0, 0] >= 0
    ends = time.process_time() + seconds  # of computed time: other processes' work does not shorten the attack

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
        while time.process_time() < ends:
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
        while time.process_time() < ends:
            queries = rng.integers(0, 256, size=(20, 8), dtype=np.uint8)
            if me % 2 and rng.random() < 0.1:
                index.compact()
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

    crew = [threading.Thread(target=guarded, args=(w, k)) for k in range(4) for w in (owner, searcher)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    figures.notes = f"{len(index):,} codes at the end"
    return figures


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
