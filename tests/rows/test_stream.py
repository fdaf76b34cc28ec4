"""Streaming through a GPU, with one that runs its two streams in random order in the place of the real one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from fake_gpu import EagerGpu, FakeEvent, FakeGpu
from threadpoolctl import threadpool_limits

import scq_gpu as scq
from scq_gpu.rows import blocks
from scq_gpu.rows.stream import SHARE_OF_FREE, fits, join_rows, stream_rows


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


@pytest.mark.parametrize("n", [1, 5, 12, 33])
def test_blocks_that_stay_are_whole_when_all_have_gone_by(n):
    blocks = cut(np.arange(3 * n, dtype=np.float32).reshape(n, 3), 5)
    for seed in range(60):
        gpu = FakeGpu(seed)
        kept = []
        for X in stream_rows(blocks, gpu, stay=True):
            kept.append(X)
            gpu.give(gpu.work, run=lambda: None)
        gpu.run()
        assert agree(kept, blocks)


@pytest.mark.parametrize("heights", [[1], [3, 3, 3, 3], [10], [10, 1, 4, 4, 4], [2, 12, 2, 7, 1]])
def test_pieces_are_joined_up_to_the_size_of_a_block(monkeypatch, heights):
    monkeypatch.setattr("scq_gpu.rows.stream.block_bytes", lambda x: 10 * x.shape[1] * x.itemsize)
    pieces = [np.full((height, 3), number, dtype=np.float32) for number, height in enumerate(heights)]
    joined = list(join_rows(iter(pieces)))
    np.testing.assert_array_equal(np.concatenate(joined), np.concatenate(pieces))
    lengths = [len(X) for X in joined]
    assert all(length <= max(10, *heights) for length in lengths)
    assert all(a + b > 10 for a, b in itertools.pairwise(lengths))


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
    """A GPU under every NumPy array, with small blocks; products in one thread, as where NumPy's go over threads."""
    gpu = EagerGpu()
    monkeypatch.setattr(blocks, "cuda_device_of", lambda x: gpu)
    monkeypatch.setattr(blocks, "block_bytes", lambda x: 0)  # blocks of 128 rows
    with threadpool_limits(1):
        yield gpu


@pytest.fixture
def X():
    rng = np.random.default_rng(5)
    return (rng.standard_normal((1000, 12)) * np.logspace(0, -1, 12) + 3).astype(np.float32)


PARAMETERS = {"n_bits": 6, "max_iter": 4, "tol": 0, "random_state": 0}
BLOCKS = 8  # of 128 rows


def plain(X, monkeypatch):
    """A fit without the GPU, in the same blocks."""
    with monkeypatch.context() as patch:
        patch.setattr(blocks, "cuda_device_of", lambda x: None)
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
    gpu.free = int(size / SHARE_OF_FREE) + 1
    scq.OgE(**PARAMETERS).fit(X)
    assert gpu.downloads == 0
    assert gpu.uploads == 2 * BLOCKS  # for the moments, and to project

    gpu.free, gpu.uploads = int(size / SHARE_OF_FREE) - 1, 0
    scq.OgE(**PARAMETERS).fit(X)
    assert gpu.downloads == BLOCKS
    # and to take the sample that the start is learned from, and in each pass, the last for levels_
    assert gpu.uploads == 2 * BLOCKS + BLOCKS + (PARAMETERS["max_iter"] + 1) * BLOCKS


def test_rows_go_to_the_device_once_where_they_fit_beside_projected_ones(gpu, X):
    gpu.free = int(2 * X.nbytes / SHARE_OF_FREE) + 1
    encoder = scq.OgE(**PARAMETERS).fit(X)
    assert (gpu.uploads, gpu.downloads) == (BLOCKS, 0)
    gpu.free -= 2
    np.testing.assert_array_equal(scq.OgE(**PARAMETERS).fit(X).components_, encoder.components_)
    assert gpu.uploads == BLOCKS + 2 * BLOCKS


def test_fits():
    assert fits(60, FakeGpu(free=100))
    assert not fits(61, FakeGpu(free=100))


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
