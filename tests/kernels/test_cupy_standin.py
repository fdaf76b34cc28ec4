"""The stand-in for CUDA: its counts are right, and the mistakes it is meant to catch do show on it.

Where a test needs a device of a certain kind, it is skipped on others; ``make test-cupy`` makes one of each.
"""

from __future__ import annotations

import importlib.util
import os

import numpy as np
import pytest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.standin,
    pytest.mark.skipif(
        importlib.util.find_spec("standin") is None, reason="CuPy does not run on the stand-in here (make test-cupy)"
    ),
]


def needs(variable: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not os.environ.get(variable), reason=f"needs {variable}")


@pytest.fixture
def cp():
    import cupy

    return cupy


@pytest.fixture
def standin():
    import standin

    return standin


def test_counters(cp, standin):
    x = cp.arange(1000, dtype=cp.float32)
    A = cp.ones((30, 20), dtype=cp.float32)
    spd = cp.eye(4)
    x + x, cp.sum(x), A.T @ A, cp.linalg.cholesky(spd)  # compiled, and cuBLAS's and cuSOLVER's handles made
    with standin.counting() as n:
        y = x + x
        cp.sum(y)
        A.T @ A
        cp.linalg.cholesky(spd)
    assert n["kernel cupy_add__float32_float32_float32"] == 1
    assert n["kernel cupy_sum"] == 1
    assert (n["cublas calls"], n["cusolver potrf"]) == (1, 1)
    assert (n["sync stream"], n["copy device to host, bytes"]) == (0, 0)
    with standin.counting() as n:
        assert float(y[3]) == 6
    assert (n["sync stream"], n["copy device to host, bytes"]) == (1, 4)


def test_new_memory_is_not_zero(cp):
    # A pool of its own: CuPy's may give memory that others have used
    with cp.cuda.using_allocator(cp.cuda.MemoryPool().malloc):
        assert bool(cp.isnan(cp.empty(1 << 20, dtype=cp.float32)).all())


def test_launches_are_checked(cp):
    kernel = cp.RawKernel('extern "C" __global__ void f(float* x) { x[threadIdx.x] = 1; }', "f")
    with pytest.raises(cp.cuda.driver.CUDADriverError, match="INVALID_VALUE"):
        kernel((1,), (2048,), (cp.empty(2048, dtype=cp.float32),))
    with pytest.raises(cp.cuda.compiler.CompileException):
        cp.RawKernel('extern "C" __global__ void f(float* x) { x = nonsense; }', "f").compile()


def test_barriers_and_collectives(cp):
    source = """
    extern "C" __global__ void reverse(const float* in, float* out, float* total) {
        extern __shared__ float kept[];
        kept[threadIdx.x] = in[threadIdx.x];
        __syncthreads();
        float x = kept[blockDim.x - 1 - threadIdx.x];
        out[threadIdx.x] = x;
        for (int step = 16; step; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
        if (threadIdx.x % 32 == 0) atomicAdd(total, x);
    }"""
    x, out, total = cp.arange(256, dtype=cp.float32), cp.empty(256, dtype=cp.float32), cp.zeros(1, dtype=cp.float32)
    cp.RawKernel(source, "reverse")((1,), (256,), (x, out, total), shared_mem=1024)
    assert np.array_equal(out.get(), x.get()[::-1])
    assert float(total[0]) == 255 * 128


def test_constant_memory(cp):
    module = cp.RawModule(
        code='__constant__ float c[4]; extern "C" __global__ void f(float* x) { x[threadIdx.x] = c[threadIdx.x]; }'
    )
    cp.ndarray((4,), cp.float32, module.get_global("c"))[:] = cp.arange(4, dtype=cp.float32)
    out = cp.empty(4, dtype=cp.float32)
    module.get_function("f")((1,), (4,), (out,))
    assert out.get().tolist() == [0, 1, 2, 3]


def test_fused_and_user_kernels(cp, standin):
    @cp.fuse
    def clip(x, gain):
        return cp.minimum(cp.maximum(x * gain, -1), 1)

    norm = cp.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "norm")
    double = cp.ElementwiseKernel("T x", "T y", "y = 2 * x", "double_it")
    x = cp.linspace(-2, 2, 9)
    clip(x, 3.0)
    with standin.counting() as n:
        clipped = clip(x, 3.0)
    assert n["kernel launches"] == 1
    assert np.array_equal(clipped.get(), np.clip(3 * x.get(), -1, 1))
    assert float(norm(x)) == pytest.approx(np.linalg.norm(x.get()))
    assert np.array_equal(double(x).get(), 2 * x.get())


def test_graph(cp, standin):
    """Kernels only: CuPy itself rejects cuBLAS and cuSOLVER while a stream is captured."""
    stream = cp.cuda.Stream(non_blocking=True)
    x, y, A = cp.zeros(5), cp.ones(5), cp.eye(5)
    cp.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        x += y
        y *= 2
        graph = stream.end_capture()
        assert float(x[0]) == 0  # captured, not done
        with standin.counting() as n:
            for _ in range(3):
                graph.launch()
        stream.synchronize()
        assert (n["graph launches"], n["kernel launches"]) == (3, 0)
        assert (float(x[0]), float(y[0])) == (1 + 2 + 4, 8)
        stream.begin_capture()
        with pytest.raises(RuntimeError, match="capturing"):
            float(x[0])
        with pytest.raises(NotImplementedError, match="cuBLAS"):
            A @ A
        stream.end_capture()


def test_graph_over_two_streams(cp):
    main, side = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    x, y = cp.zeros(5), cp.zeros(5)
    cp.cuda.Device().synchronize()
    main.begin_capture()
    with main:
        x += 1
    side.wait_event(main.record())
    with side:
        y += x
    main.wait_event(side.record())
    with main:
        x += y
    graph = main.end_capture()
    assert not side.is_capturing()
    graph.launch(main)
    graph.launch(main)
    main.synchronize()
    assert (float(x[0]), float(y[0])) == (7, 4)


@needs("STANDIN_MEMORY")
def test_memory_ends(cp):
    size = int(os.environ["STANDIN_MEMORY"])
    assert cp.cuda.runtime.memGetInfo()[1] == size
    with pytest.raises(cp.cuda.memory.OutOfMemoryError):
        cp.empty(size + 1, dtype=cp.uint8)


@needs("STANDIN_DEVICES")
@pytest.mark.skipif("STANDIN_PEERS" in os.environ, reason="the devices are peers")
def test_memory_of_another_device_is_out_of_reach(cp):
    with cp.cuda.Device(1):
        there = cp.ones((4, 4), dtype=cp.float32)
    with pytest.raises(ValueError, match="Peer access is unavailable"):
        there + 1
    with pytest.raises(cp.cuda.cublas.CUBLASError):  # CuPy does not look here; a GPU would fault
        there @ there
    kernel = cp.RawKernel('extern "C" __global__ void f(float* x) { x[threadIdx.x] = 2; }', "f")
    with pytest.raises(cp.cuda.driver.CUDADriverError, match="ILLEGAL_ADDRESS"):
        kernel((1,), (4,), (there,))
    assert there.get().tolist() == np.ones((4, 4)).tolist()
    assert cp.asarray(there).device.id == 0  # a copy between devices is no access


@needs("STANDIN_ASYNC")
def test_a_copy_that_waits_for_nothing_is_noticed(cp):
    """Work on one stream and a copy on another: right with an event between them, wrong, some time, without."""
    work, copies = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)

    def read_after_write(*, ordered: bool) -> float:
        x = cp.zeros(64)
        host = cp.cuda.alloc_pinned_memory(x.nbytes)
        out = np.frombuffer(host, dtype=np.float64, count=64)
        cp.cuda.Device().synchronize()
        with work:
            x += 1
            x *= 3
        if ordered:
            copies.wait_event(work.record())
        x.get(stream=copies, out=out, blocking=False)
        copies.synchronize()
        answer = float(out[0])
        work.synchronize()
        return answer

    assert {read_after_write(ordered=True) for _ in range(30)} == {3.0}
    assert {read_after_write(ordered=False) for _ in range(30)} != {3.0}


class _NeverWaits:
    """An event that does not hold the host."""

    def __init__(self, event):
        self.event = event

    def synchronize(self):
        pass


def _upload_at_once(gpu):
    upload = gpu.upload
    nothing = gpu.mark()
    gpu.upload = lambda host, out, *, after: upload(host, out, after=nothing)


def _work_at_once(gpu):
    gpu.wait = lambda event: None


def _overwrite_staging(gpu):
    upload, wait = gpu.upload, gpu.wait
    gpu.upload = lambda host, out, *, after: _NeverWaits(upload(host, out, after=after))
    gpu.wait = lambda event: wait(event.event)


@needs("STANDIN_ASYNC")
@pytest.mark.parametrize("mistake", [None, _upload_at_once, _work_at_once, _overwrite_staging])
def test_streaming_without_a_wait_is_noticed(cp, mistake):
    """Rows through the real `CudaDevice`, with each of its waits left out in turn."""
    from scq_gpu._core.arrays import CudaDevice
    from scq_gpu.rows.stream import stream_rows

    X = np.random.default_rng(0).random((200, 16, 16), dtype=np.float32)
    gpu = CudaDevice(0)
    if mistake is not None:
        mistake(gpu)
    sums = [cp.sum(block @ block) for block in stream_rows(list(X), gpu)]
    right = np.allclose(cp.stack(sums).get(), (X @ X).sum(axis=(1, 2)), rtol=1e-4)
    assert right == (mistake is None)
