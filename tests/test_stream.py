"""Streaming through a GPU, with one that runs its two streams in random order in the place of the real one."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

import scq_gpu as scq
from scq_gpu import _stream, rows
from scq_gpu._stream import fits, stream_rows


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

    def free_bytes(self):
        return self.free

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


def streamed(gpu, blocks, **options):
    """What the work sees of each block, whenever it comes to run."""
    seen = []
    for X in stream_rows(blocks, gpu, **options):
        gpu.give(gpu.work, run=lambda X=X: seen.append(X.copy()))
    gpu.run()
    return seen


def cut(X, size):
    return [X[start : start + size] for start in range(0, len(X), size)]


def agree(seen, blocks):
    return len(seen) == len(blocks) and all(np.array_equal(a, b) for a, b in zip(seen, blocks, strict=True))


# ---- the two buffers ----


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("n", [1, 5, 10, 12, 33])
def test_work_sees_every_block_in_any_order_of_events(n, pinned):
    blocks = cut(np.arange(3 * n, dtype=np.float32).reshape(n, 3), 5)
    for seed in range(60):
        gpu = FakeGpu(seed)
        assert agree(streamed(gpu, blocks, pinned=pinned), blocks)
        assert gpu.allocated <= 2 * blocks[0].nbytes


class DeafWork(FakeGpu):
    def wait(self, event):
        pass


class DeafCopies(FakeGpu):
    def upload(self, host, out, *, after):
        past = FakeEvent(self)
        past.done = True
        return super().upload(host, out, after=past)


class DeafHost(FakeGpu):
    def run_until(self, event):
        pass


@pytest.mark.parametrize("Broken", [DeafWork, DeafCopies, DeafHost])
def test_each_wait_is_needed(Broken):
    blocks = cut(np.arange(90, dtype=np.float32).reshape(30, 3), 5)
    assert not all(agree(streamed(Broken(seed), blocks), blocks) for seed in range(60))


def test_the_next_block_is_copied_while_this_one_is_worked_on():
    gpu = FakeGpu()
    gpu.haste = 0  # nothing runs by itself
    blocks = cut(np.arange(8.0).reshape(4, 2), 1)
    order, slow = [], FakeEvent(gpu)
    upload = gpu.upload

    def noted(host, out, *, after):
        event = upload(host, out, after=after)
        gpu.give(gpu.copies, run=lambda: order.append(f"copied {host[0, 0]:.0f}"))
        return event

    gpu.upload = noted
    stream = stream_rows(blocks, gpu, pinned=True)
    for _ in range(3):
        X = next(stream)
        gpu.give(gpu.work, wait=slow)  # a product that takes its time
        gpu.give(gpu.work, run=lambda X=X: order.append(f"worked on {X[0, 0]:.0f}"))
    while gpu.step():
        pass
    assert order == ["copied 0", "copied 2"], "the third block waits for a buffer"
    slow.done = True
    gpu.run()
    assert sorted(order[2:]) == ["copied 4", "worked on 0", "worked on 2", "worked on 4"]
    stream.close()


def test_a_pass_given_up_leaves_no_copy_under_way():
    gpu = FakeGpu()
    stream = stream_rows(cut(np.arange(20.0).reshape(10, 2), 2), gpu)
    next(stream)
    next(stream)
    stream.close()
    assert not gpu.copies


@pytest.mark.parametrize(
    "X",
    [
        np.arange(24.0).reshape(8, 3).astype(">f4"),
        np.asfortranarray(np.arange(24, dtype=np.float16).reshape(8, 3)),
        np.arange(48, dtype=np.uint8).reshape(8, 6)[:, ::2],
        np.arange(24).reshape(8, 3) % 2 == 0,
    ],
    ids=["big-endian", "column-major", "strided", "bool"],
)
def test_any_layout_goes_through_the_staging_buffers(X):
    seen = streamed(FakeGpu(), cut(X, 3))
    assert agree(seen, cut(X, 3))
    assert all(x.dtype.isnative for x in seen)


# ---- what the passes make of it ----


@pytest.fixture
def gpu(monkeypatch):
    """A GPU under every NumPy array, with small blocks."""
    gpu = EagerGpu()
    monkeypatch.setattr(rows, "gpu_of", lambda x: gpu)
    monkeypatch.setattr(rows, "cache_bytes", lambda x: 0)  # blocks of 128 rows
    return gpu


@pytest.fixture
def X():
    rng = np.random.default_rng(5)
    return (rng.standard_normal((1000, 12)) * np.logspace(0, -1, 12) + 3).astype(np.float32)


PARAMETERS = {"n_bits": 6, "max_iter": 4, "tol": 0, "random_state": 0}
BLOCKS = 8  # of 128 rows


def plain(X, monkeypatch):
    """A fit without the GPU, in the same blocks."""
    with monkeypatch.context() as patch:
        patch.setattr(rows, "gpu_of", lambda x: None)
        return scq.OgE(**PARAMETERS).fit(X)


@pytest.mark.parametrize("free", [0, 1 << 30])
def test_fit_and_encode_are_the_same_streamed(gpu, X, monkeypatch, free):
    expected = plain(X, monkeypatch)
    gpu.free = free
    encoder = scq.OgE(**PARAMETERS).fit(X)
    np.testing.assert_array_equal(encoder.components_, expected.components_)
    np.testing.assert_array_equal(encoder.encode(X), expected.encode(X))
    assert encoder.loss_curve_ == expected.loss_curve_


def test_projected_rows_stay_on_the_device_where_they_fit(gpu, X):
    size = X.shape[0] * X.shape[1] * 4
    gpu.free = int(size / _stream.SHARE_OF_FREE) + 1
    scq.OgE(**PARAMETERS).fit(X)
    assert gpu.downloads == 0
    assert gpu.uploads == 2 * BLOCKS  # for the moments, and to project

    gpu.free, gpu.uploads = int(size / _stream.SHARE_OF_FREE) - 1, 0
    scq.OgE(**PARAMETERS).fit(X)
    assert gpu.downloads == BLOCKS
    # and to take the sample that the start is learned from, and in each pass, the last for levels_
    assert gpu.uploads == 2 * BLOCKS + BLOCKS + (PARAMETERS["max_iter"] + 1) * BLOCKS


def test_fits():
    assert fits(70, FakeGpu(free=100))
    assert not fits(71, FakeGpu(free=100))


def test_memory_maps_are_streamed(gpu, X, tmp_path, monkeypatch):
    mapped = np.memmap(tmp_path / "X", dtype=np.float32, mode="w+", shape=X.shape)
    mapped[:] = X
    encoder = scq.OgE(**PARAMETERS).fit(mapped)
    np.testing.assert_array_equal(encoder.components_, plain(X, monkeypatch).components_)


def test_nonfinite_rows_are_named_by_their_place_in_x(gpu, X):
    encoder = scq.OgE(**PARAMETERS).fit(X)
    X[701, 3] = np.nan
    for call in (encoder.encode, encoder.fit):
        with pytest.raises(ValueError, match="first NaN at row 701, column 3"):
            call(X)
    assert not gpu.copies
