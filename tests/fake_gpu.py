"""A GPU that runs its two streams in random order: what streaming asks of a `scq_gpu._core.arrays.CudaDevice`."""

from __future__ import annotations

from collections import deque

import numpy as np


class FakeEvent:
    def __init__(self, gpu):
        self.gpu, self.done = gpu, False

    def synchronize(self):
        self.gpu.run_until(self)


class FakeGpu:
    """Two streams of actions; nothing runs before it has to, or before chance has it."""

    def __init__(self, seed=0, *, free=1 << 40):
        self.rng = np.random.default_rng(seed)
        self.haste, self.favour_work = self.rng.random(2)
        self.free = free
        self.work, self.copies = deque(), deque()
        self.allocated = self.uploads = self.downloads = 0

    # ---- the interface ----

    def grants(self, n_bytes):
        return n_bytes <= self.free

    def empty(self, shape, dtype):
        x = np.full(shape, 99, dtype=dtype)
        self.allocated += x.nbytes
        return x

    def pinned(self, shape, dtype):
        return np.full(shape, 77, dtype=dtype)

    def mark(self):
        event = FakeEvent(self)
        self.give(self.work, record=event)
        return event

    def wait(self, event):
        self.give(self.work, wait=event)

    def upload(self, host, out, *, after):
        assert host.shape == out.shape
        assert host.dtype == out.dtype
        assert host.flags.c_contiguous
        self.uploads += 1
        event = FakeEvent(self)
        self.give(self.copies, wait=after)
        self.give(self.copies, run=lambda: np.copyto(out, host))
        self.give(self.copies, record=event)
        return event

    def download(self, x):
        self.downloads += 1
        host = np.full(x.shape, 55, dtype=x.dtype)
        self.give(self.work, run=lambda: np.copyto(host, x))
        return host

    def finish_copies(self):
        while self.copies:
            assert self.step(), "the streams wait for each other"

    # ---- what drives it ----

    def give(self, stream, **action):
        stream.append(action)
        while self.rng.random() < self.haste and self.step():
            pass

    def step(self):
        """Run the next action of one of the streams that can go on, if there is one."""
        ready = [s for s in (self.work, self.copies) if s and ("wait" not in s[0] or s[0]["wait"].done)]
        if not ready:
            return False
        action = ready[0 if self.rng.random() < self.favour_work else -1].popleft()
        if "run" in action:
            action["run"]()
        if "record" in action:
            action["record"].done = True
        return True

    def run_until(self, event):
        while not event.done:
            assert self.step(), "the streams wait for each other"

    def run(self):
        while self.work or self.copies:
            assert self.step(), "the streams wait for each other"


class EagerGpu(FakeGpu):
    """For work that NumPy does at once: a wait lasts until the copy is there."""

    def wait(self, event):
        self.run_until(event)

    def mark(self):
        event = super().mark()
        self.run_until(event)
        return event
