"""A Dask cluster with one worker process per GPU learns and encodes what one GPU does.

The workers' chunks are CuPy's, each on the device of the worker that holds it. CuPy runs on the stand-in with two
devices: ``make test-cupy``.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import scq_gpu as scq


def missing() -> str:
    if importlib.util.find_spec("standin") is None:
        return "CuPy does not run on the stand-in here (make test-cupy)"
    import cupy

    return "" if cupy.cuda.runtime.getDeviceCount() > 1 else "one device only (STANDIN_DEVICES=2)"


pytestmark = [pytest.mark.gpu, pytest.mark.standin, pytest.mark.skipif(bool(missing()), reason=missing())]

D, CHUNK, N_CHUNKS = 16, 500, 6
PARAMETERS = {"n_bits": 8, "random_state": 0}


@pytest.fixture(scope="module")
def client():
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as workers,
        distributed.Client(workers) as client,
    ):
        # dask-cuda shows each worker a device of its own; here each worker's one thread makes one its current
        for number, address in enumerate(client.scheduler_info()["workers"]):
            client.submit(use_device, number, workers=[address], pure=False).result()
            client.run(receive_on, number, workers=[address])
        yield client


def use_device(number: int) -> None:
    import cupy

    cupy.cuda.Device(number).use()


def receive_on(number: int) -> None:
    """Let arrays of other workers arrive on a device; Dask asks numba's CUDA or RMM, which the stand-in has not."""
    import cupy
    from distributed.protocol import cupy as protocol

    def receive(header: object, frames: list) -> object:
        with cupy.cuda.Device(number):
            return cupy.asarray(np.frombuffer(b"".join(map(bytes, frames)), dtype=np.uint8))

    protocol.dask_deserialize_cuda_buffer = receive


def to_gpu(block: np.ndarray) -> object:
    import cupy

    return cupy.asarray(block)


def device_of(chunk: object) -> int:
    return int(chunk.device.id)  # type: ignore[attr-defined]


def rows() -> np.ndarray:
    rng = np.random.default_rng(4)
    X = rng.standard_normal((N_CHUNKS * CHUNK, D)) * np.logspace(0, -1, D) + 2
    return X.astype(np.float32)


def chunked(X: np.ndarray):
    import cupy
    import dask.array as da

    return da.from_array(X, chunks=(CHUNK, D)).map_blocks(to_gpu, meta=cupy.empty((0, 0), dtype=X.dtype))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("preserve", ["neighbors", "classes"])
def test_one_worker_per_device(client, preserve):
    import cupy
    import dask
    from distributed import wait

    X = rows()
    spread = chunked(X).persist()
    wait(spread)
    chunks = spread.to_delayed().ravel()
    assert set(client.gather(client.compute([dask.delayed(device_of)(chunk) for chunk in chunks]))) == {0, 1}

    encoder = scq.OgE(**PARAMETERS, preserve=preserve).fit(spread)
    codes = encoder.encode(spread)
    assert isinstance(codes._meta, cupy.ndarray)
    codes = codes.map_blocks(cupy.asnumpy).compute()

    with dask.config.set(scheduler="synchronous"):  # the same chunks, all on one device
        one = scq.OgE(**PARAMETERS, preserve=preserve).fit(chunked(X))
    np.testing.assert_array_equal(encoder.components_, one.components_)
    assert encoder.loss_curve_ == one.loss_curve_
    np.testing.assert_array_equal(codes, one.encode(cupy.asarray(X)).get())


def test_a_chunk_with_nan_is_named(client):
    X = rows()
    X[CHUNK + 7, 3] = np.nan
    with pytest.raises(ValueError, match=f"row {CHUNK + 7}"):
        scq.OgE(**PARAMETERS).fit(chunked(X))
