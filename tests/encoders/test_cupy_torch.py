"""torch CUDA tensors are worked on by CuPy, in the same memory, on torch's stream, and results are tensors again.

There is no GPU for torch here. Its tensors stand in memory of CuPy's stand-in, which is host memory, and say that they
are on a GPU: ``make test-cupy``, with torch installed.
"""

from __future__ import annotations

import copy
import importlib.util

import numpy as np
import pytest

import scq_gpu as scq
from scq_gpu._core import arrays

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.standin,
    pytest.mark.skipif(
        importlib.util.find_spec("standin") is None, reason="CuPy does not run on the stand-in here (make test-cupy)"
    ),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]
FEW = {"n_bits": 16, "max_iter": 3, "tol": 0, "init": "random", "random_state": 0}


@pytest.fixture
def to_torch(monkeypatch):
    """Make a function that gives a NumPy array as a tensor "on a GPU", and the streams that CuPy was told of."""
    import cupy
    import torch

    held = {}  # CuPy arrays, by the address of their memory

    class Tensor(torch.Tensor):
        is_cuda = property(lambda self: True)
        device = property(lambda self: torch.device("cuda:0"))

        def __dlpack__(self, **options):
            whole = next((x for start, x in held.items() if start <= self.data_ptr() < start + max(1, x.nbytes)), None)
            if whole is None:  # what torch made of its own, such as parts joined
                return cupy.asarray(np.from_dlpack(self.as_subclass(torch.Tensor))).__dlpack__(**options)
            memory = cupy.cuda.MemoryPointer(whole.data.mem, self.data_ptr() - whole.data.mem.ptr)
            strides = tuple(step * self.element_size() for step in self.stride())
            view = cupy.ndarray(tuple(self.shape), str(self.dtype).removeprefix("torch."), memory, strides=strides)
            return view.__dlpack__(**options)

        def __dlpack_device__(self):
            return (2, 0)

    def share(x):
        import ctypes

        cupy.cuda.Device().synchronize()
        held[x.data.ptr] = x
        bytes_of = (ctypes.c_uint8 * max(1, x.nbytes)).from_address(x.data.ptr)
        host = np.ndarray(x.shape, x.dtype, buffer=bytes_of, strides=x.strides)
        return torch.from_numpy(host).as_subclass(Tensor)

    real_to_host = arrays.to_host
    monkeypatch.setattr(torch, "from_dlpack", share)
    stream = cupy.cuda.Stream(non_blocking=True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: type("S", (), {"cuda_stream": stream.ptr}))
    seen = set()
    launch = arrays.CudaDevice.current

    def noted(self):
        seen.add(cupy.cuda.get_current_stream().ptr == stream.ptr)
        return launch(self)

    monkeypatch.setattr(arrays.CudaDevice, "current", noted)
    assert real_to_host(share(cupy.arange(3))).tolist() == [0, 1, 2]
    return lambda x: share(cupy.asarray(x)), seen


def features(n=3000, d=40):
    rng = np.random.default_rng(3)
    return rng.standard_normal((n, d), dtype=np.float32) * np.logspace(0, -1, d, dtype=np.float32)


def host(x):
    import cupy
    import torch

    assert isinstance(x, torch.Tensor)
    assert x.is_cuda
    return cupy.from_dlpack(x).get()


def test_fit_encode_and_search(to_torch):
    import cupy

    share, seen = to_torch
    X = features()

    def work(X):
        encoder = scq.OgE(**FEW).fit(X)
        codes, Q = encoder.encode(X), X[:5, :]
        index = scq.HammingIndex(codes, 16)
        answers = (*index.search(codes[:5, :], 9), *index.search_asymmetric(encoder, Q, 9))
        return encoder.components_, encoder.levels_, codes, encoder.project(Q), *answers

    expected, X = work(cupy.asarray(X)), share(X)
    seen.clear()
    found = work(X)
    assert seen == {True}, "all work is on torch's stream"
    for x, y in zip(found, expected, strict=True):
        assert np.array_equal(host(x), y.get())


def test_rows_are_shared_and_cut_for_the_device(to_torch):
    import standin

    share, _ = to_torch
    X = features(20_000)
    tensor, encoder = share(X), scq.OgE(**FEW)
    encoder.fit(tensor)
    with standin.counting() as n:
        encoder.fit(tensor)
    assert n["copy device to host, bytes"] < 10_000
    assert n["copy host to device, bytes"] < X.nbytes / 10
    assert n["copy device to device, bytes"] < X.nbytes
    import cupy

    on_device = cupy.asarray(X)
    with standin.counting() as expected:
        scq.OgE(**FEW).fit(on_device)
    assert n["kernel launches"] == expected["kernel launches"]


def test_lists_of_tensors_and_saved_encoders(to_torch, tmp_path):
    import cupy

    share, _ = to_torch
    X = features()
    encoder = scq.OgE(**FEW).fit([share(X[:1000]), share(X[1000:])])
    expected = scq.OgE(**FEW).fit([cupy.asarray(X[:1000]), cupy.asarray(X[1000:])])
    assert np.array_equal(host(encoder.components_), expected.components_.get())
    encoder.save(tmp_path / "m.safetensors")
    again = scq.load(tmp_path / "m.safetensors")
    assert np.array_equal(host(again.encode(share(X))), copy.deepcopy(expected).encode(cupy.asarray(X)).get())
