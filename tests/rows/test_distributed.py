"""Dask: the same encoder as in memory, on a cluster of processes whose workers may die, and little on the client."""

from __future__ import annotations

import doctest
import os
import pickle
import signal
from pathlib import Path

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

import scq_gpu as scq
from scq_gpu.rows import distributed
from scq_gpu.rows.basis import compute_basis

dask = pytest.importorskip("dask", reason="Dask is not installed (extra dask)")
cluster = pytest.importorskip("distributed", reason="distributed is not installed (extra dask)")
import cloudpickle  # noqa: E402
import dask.array as da  # noqa: E402

# older versions of Dask say this of every result that a test works out beside its cluster
pytestmark = pytest.mark.filterwarnings("ignore:Running on a single-machine scheduler:UserWarning")

D = 24
PARAMETERS = {"n_bits": 10, "random_state": 0}


@pytest.fixture(scope="module")
def client():
    with (
        cluster.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as workers,
        cluster.Client(workers) as client,
    ):
        yield client


@pytest.fixture
def local():
    """No cluster: the test's own thread."""
    with dask.config.set(scheduler="synchronous"):
        yield


def rows(n=6000, chunk=1000):
    """Rows that workers make by themselves, the same each time."""
    scale = np.logspace(0, -1, D)
    return da.random.default_rng(3).standard_normal((n, D), chunks=(chunk, D)) * scale + 2


@pytest.fixture(scope="module")
def X():
    return rows().compute(scheduler="synchronous")


def largest_difference(encoder, expected):
    return max(
        np.abs(getattr(encoder, name) - getattr(expected, name)).max()
        for name in ("components_", "threshold_", "mean_", "eigenvalues_", "levels_")
    )


# ---- fit ----


@pytest.mark.parametrize(("Encoder", "solver"), [(scq.OgE, "joint"), (scq.OnE, "columnwise")])
def test_a_cluster_learns_the_same_encoder(client, X, Encoder, solver):
    parameters = PARAMETERS | {"solver": solver, "max_iter": 10, "tol": 0}
    encoder, expected = (Encoder(**parameters).fit(x) for x in (rows(), X))
    assert isinstance(encoder.components_, np.ndarray)
    assert largest_difference(encoder, expected) <= 1e-5
    np.testing.assert_allclose(encoder.loss_curve_, expected.loss_curve_, rtol=1e-9)
    assert encoder.n_samples_ == 6000
    assert encoder.n_features_in_ == D


def test_starts_that_look_at_the_rows(local, X):
    parameters = PARAMETERS | {"init": "itq", "n_init": 2, "max_iter": 2, "tol": 0}
    encoder, expected = (scq.OgE(**parameters).fit(x) for x in (rows(), X))
    assert largest_difference(encoder, expected) <= 1e-5


@settings(max_examples=20)
@given(
    st.lists(st.integers(0, 150), min_size=1, max_size=12).filter(lambda sizes: sum(sizes) >= 60),
    st.lists(st.integers(1, D - 1), max_size=3, unique=True),
    st.sampled_from(["float64", "float32", "float16", "int16"]),
    st.booleans(),
)
def test_any_chunks(sizes, cuts, dtype, persist):
    """Empty chunks, one row, columns in several pieces; kept or not."""
    x = (np.random.default_rng(1).standard_normal((sum(sizes), D)) * np.linspace(30, 10, D)).astype(dtype)
    edges = [0, *sorted(cuts), D]
    lazy = da.from_array(x, chunks=(tuple(sizes), tuple(np.diff(edges).tolist())))
    parameters = PARAMETERS | {"n_bits": 4, "max_iter": 3, "tol": 0}
    with dask.config.set({"scheduler": "synchronous", distributed.PERSIST: persist}):
        encoder, expected = (scq.OgE(**parameters).fit(x) for x in (lazy, x))
        assert encoder.components_.dtype == expected.components_.dtype
        assert largest_difference(encoder, expected) <= (1e-9 if dtype == "float64" else 0.05)
        codes = encoder.encode(lazy)
        assert codes.chunks == (tuple(sizes), (1,))
        np.testing.assert_array_equal(codes.compute(), encoder.encode(x))


def counted(chunk=500):
    """Rows in six chunks, and a list that grows by one whenever a chunk is computed."""
    computed = []
    x = np.random.default_rng(0).standard_normal((6 * chunk, D))

    def note(block):
        computed.append(len(block))
        return block

    return da.from_array(x, chunks=(chunk, D)).map_blocks(note, dtype=x.dtype, meta=x[:0]), computed


def test_projected_rows_are_kept_unless_the_configuration_says_otherwise(local):
    lazy, computed = counted()
    encoder = scq.OgE(**PARAMETERS, max_iter=5, tol=0).fit(lazy)
    assert len(computed) == 2 * 6  # for the moments, and to project
    computed.clear()
    with dask.config.set({distributed.PERSIST: False}):
        again = scq.OgE(**PARAMETERS, max_iter=5, tol=0).fit(lazy)
    assert len(computed) == (1 + 1 + 5 + 1) * 6  # the moments, the sample for the start, the passes, the levels
    assert largest_difference(again, encoder) < 1e-9


def test_workers_die_and_nothing_changes(client):
    """First one, then the other: with them go projected rows, sums and V."""
    parameters = PARAMETERS | {"max_iter": 5, "tol": 0}
    expected = scq.OgE(**parameters).fit(rows())
    # never one that was just started again: Dask does not replace a worker that dies before it is all there
    pids = dict(zip((2, 4), client.run(os.getpid).values(), strict=True))

    def kill(iteration, loss, encoder):
        if iteration in pids:
            os.kill(pids[iteration], signal.SIGKILL)

    encoder = scq.OgE(**parameters, callback=kill).fit(rows())
    assert encoder.loss_curve_ == expected.loss_curve_
    assert largest_difference(encoder, expected) == 0
    client.wait_for_workers(2)
    assert not set(client.run(os.getpid).values()) & set(pids.values())


def test_only_small_results_reach_the_client(client, monkeypatch):
    """Whatever a client gets, it gathers."""
    sizes = []
    gather = cluster.Client.gather

    def spy(self, *args, **kwargs):
        result = gather(self, *args, **kwargs)
        sizes.append(len(pickle.dumps(result)))
        return result

    monkeypatch.setattr(cluster.Client, "gather", spy)
    lazy = rows(60_000, 3_000)
    scq.OgE(**PARAMETERS, max_iter=4, tol=0).fit(lazy)
    assert len(sizes) == 1 + 1 + 4 + 1  # the moments, the sample for the start, the passes, the levels
    assert 8 * D * D <= sizes[0] <= 8 * D * (D + 1) + 1000
    assert sizes[1] <= 8 * D * 50_000 + 1000
    assert all(8 * D * 10 <= size <= 8 * (D + 1) * 10 + 1000 for size in sizes[2:])
    lazy[:1].compute()
    assert len(sizes) == 8, "the spy works"


def test_v_is_sent_once_a_pass_and_added_up_in_a_tree(local, monkeypatch):
    from dask.delayed import Delayed

    graphs = []
    compute = Delayed.compute

    def spy(self, **kwargs):
        graphs.append(dict(self.__dask_graph__()))
        return compute(self, **kwargs)

    monkeypatch.setattr(Delayed, "compute", spy)
    x = np.random.default_rng(0).standard_normal((640, D))
    scq.OgE(**PARAMETERS, init="random", max_iter=1, tol=0).fit(da.from_array(x, chunks=(10, D)))
    assert len(graphs) == 3
    V_bytes = 8 * D * 10
    graph = {key: task for key, task in graphs[1].items() if "_project_chunk" not in str(key)}
    assert len(graph) == 64 + 8 + 1 + 1  # signs of 64 chunks, their sums by eights, the sum of these, and V
    assert sum(len(pickle.dumps(task)) > V_bytes for task in graph.values()) == 1


@pytest.mark.parametrize("kept", [True, False])
def test_a_sample_is_of_the_rows_asked_for(local, kept):
    x = np.random.default_rng(0).standard_normal((100, D))
    places = np.array([0, 7, 9, 10, 29, 64, 99])  # of chunks of 10, most of which have none
    rows = distributed.DaskRows(da.from_array(x, chunks=((10,) * 7 + (0, 30), D)), device=None)
    basis = compute_basis(rows.moments(), n_bits=3, n_components=5, scale=2.0, eps=1e-12, xp=rows.xp)
    with dask.config.set({distributed.PERSIST: kept}):
        (block,) = rows.project(basis).sample(places).kept
    np.testing.assert_allclose(block, 2.0 * (x - x.mean(0))[places] @ basis.P, atol=1e-12)


@pytest.mark.parametrize("kept", [True, False])
def test_batches_of_chunks_are_those_of_the_array(local, monkeypatch, kept):
    """Fits for classes learn from the same batches, however the rows are cut into chunks."""
    monkeypatch.setattr("scq_gpu.training.loop.BATCH_ROWS", 250)
    rng = np.random.default_rng(0)
    x = rng.choice([-2.0, 2.0], size=(1100, D)) + rng.standard_normal((1100, D))
    chunked = da.from_array(x, chunks=((100, 0, 700, 299, 1), D))
    with dask.config.set({distributed.PERSIST: kept}):
        there = scq.OgE(6, preserve="classes", random_state=0).fit(chunked)
    here = scq.OgE(6, preserve="classes", random_state=0).fit(x)
    assert there.n_iter_ == here.n_iter_ == 2
    np.testing.assert_allclose(there.components_, here.components_, atol=1e-9)


# ---- encode, transform, project ----


@pytest.fixture(scope="module")
def encoder(X):
    return scq.OgE(**PARAMETERS, max_iter=5, tol=0).fit(X)


def test_a_cluster_gives_the_same_codes(client, encoder, X):
    np.testing.assert_array_equal(encoder.encode(rows()).compute(), encoder.encode(X))
    np.testing.assert_array_equal(encoder.transform(rows()).compute(), encoder.transform(X))
    np.testing.assert_allclose(encoder.project(rows()).compute(), encoder.project(X), rtol=0, atol=1e-12)


def test_results_are_lazy_and_their_shapes_known(local, encoder):
    lazy, computed = counted()
    results = encoder.encode(lazy), encoder.transform(lazy), encoder.project(lazy)
    assert not computed
    for result, (width, dtype) in zip(results, [(2, np.uint8), (10, np.int8), (10, np.float64)], strict=True):
        assert result.chunks == (lazy.chunks[0], (width,))
        assert result.dtype == dtype
        assert result[700:702].compute().dtype == dtype
    assert len(computed) == 3, "a slice computes its chunk only"


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_codes_of_other_types(local, encoder, dtype):
    x = np.random.default_rng(0).integers(0, 9, (300, D)).astype(dtype)
    codes = encoder.encode(da.from_array(x, chunks=(70, 5)))
    np.testing.assert_array_equal(codes.compute(), encoder.encode(x))


@pytest.mark.parametrize("library", ["torch", "array_api_strict"])
def test_chunks_of_other_libraries(local, encoder, library, X):
    """Dask has no word for such chunks, so it takes them for NumPy's; the passes look at what they are given."""
    xp = pytest.importorskip(library, reason=f"{library} is not installed")
    lazy = da.from_array(X, chunks=(1700, D)).map_blocks(lambda x: xp.asarray(x.copy()), dtype=X.dtype, meta=X[:0])
    parameters = PARAMETERS | {"max_iter": 5, "tol": 0}
    fitted = scq.OgE(**parameters).fit(lazy)
    assert isinstance(fitted.components_, np.ndarray)
    assert largest_difference(fitted, encoder) <= 1e-5
    parts = [part.compute() for part in encoder.encode(lazy).to_delayed().ravel()]
    assert all(type(part) is type(xp.asarray([0])) for part in parts)
    codes = np.concatenate([np.from_dlpack(part) for part in parts])
    reference.assert_same_codes(codes, X, encoder.components_.T, encoder.threshold_, 10)


def test_without_a_cluster_the_default_scheduler_works(encoder, X):
    with dask.config.set(scheduler="threads"):
        lazy = da.from_array(X, chunks=(1000, D))
        assert largest_difference(scq.OgE(**PARAMETERS, max_iter=5, tol=0).fit(lazy), encoder) <= 1e-5
        np.testing.assert_array_equal(encoder.encode(lazy).compute(), encoder.encode(X))


def test_the_map_is_sent_once(local, encoder):
    graph = dict(encoder.encode(rows()).__dask_graph__())
    size = encoder.components_.nbytes
    assert sum(len(cloudpickle.dumps(task)) > size for task in graph.values()) == 1


def test_examples_of_the_page_run(local):
    page = Path(__file__).parents[2] / "docs" / "distributed.md"
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    result = doctest.testfile(str(page), module_relative=False, optionflags=flags, encoding="utf-8")
    assert result.attempted > 5
    assert result.failed == 0


# ---- bad input ----


@pytest.mark.parametrize("scheduler", ["synchronous", "cluster"])
def test_nonfinite_rows_are_named_by_their_place_in_the_whole(request, encoder, X, scheduler):
    if scheduler == "cluster":
        request.getfixturevalue("client")
    x = X.copy()
    x[4321, 5] = np.nan
    lazy = da.from_array(x, chunks=(1000, 7))
    with dask.config.set({} if scheduler == "cluster" else {"scheduler": scheduler}):
        for call in (scq.OgE(**PARAMETERS).fit, lambda x: encoder.encode(x).compute()):
            with pytest.raises(ValueError, match="first NaN at row 4321, column 5"):
                call(lazy)


def test_unknown_chunk_sizes(local, encoder):
    lazy = rows()
    some = lazy[lazy[:, 0] > 2]
    for call in (scq.OgE(**PARAMETERS).fit, encoder.encode, encoder.project):
        with pytest.raises(ValueError, match=r"chunks of unknown sizes; .*X = X.compute_chunk_sizes\(\)"):
            call(some)
    assert encoder.encode(some.compute_chunk_sizes()).shape[1] == 2


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: da.zeros((5, 2, 2)), ValueError, r"2 dimensions \(rows, features\), got 3 .*Dask array of shape"),
        (lambda: da.zeros(5), ValueError, "must have 2 dimensions .* got 1"),
        (lambda: da.zeros((0, D)), ValueError, "n_samples=0"),
        (lambda: da.zeros((1, D)), ValueError, "n_samples=1 .* minimum of 2"),
        (lambda: da.zeros((9, 0)), ValueError, r"0 feature\(s\)"),
        (lambda: da.zeros((9, D), dtype=complex), ValueError, "Complex data not supported"),
        (
            lambda: da.from_array(np.zeros((9, D), dtype=object), chunks=9),
            TypeError,
            "dtype object, which is not numeric",
        ),
        (lambda: dask.delayed(np.zeros((9, D))), TypeError, "collection of type Delayed.*; pass a dask.array.Array"),
        (lambda: [da.zeros((9, D)), da.zeros((9, D))], TypeError, r"X\[0\] is a Dask array; .*dask.array.concatenate"),
        (lambda: [np.zeros((9, D)), da.zeros((9, D))], TypeError, r"X\[1\] is a Dask array"),
        (lambda: da.zeros((9, 3)), ValueError, "n_bits=10 exceeds|equal rows"),
    ],
)
def test_what_cannot_be_fitted(local, make, error, message):
    with pytest.raises(error, match=message):
        scq.OgE(**PARAMETERS).fit(make())


def test_what_cannot_be_encoded(encoder):
    with pytest.raises(ValueError, match="X has 3 features, but OgE is expecting 24"):
        encoder.encode(da.zeros((9, 3)))
    with pytest.raises(TypeError, match=r"out cannot take codes that are yet to be computed; .*dask.array.store"):
        encoder.encode(da.zeros((9, D)), out=np.zeros((9, 2), np.uint8))
    with pytest.raises(ValueError, match="precision='fast' needs a CUDA array"):
        encoder.encode(da.zeros((9, D)), precision="fast")
    with pytest.raises(ValueError, match="precision='best' is not one of"):
        encoder.encode(da.zeros((9, D)), precision="best")


def test_a_device_is_the_chunks_affair():
    with pytest.raises(ValueError, match=r"device='cpu' with a Dask array: .*set_params\(device=None\)"):
        scq.OgE(**PARAMETERS, device="cpu").fit(rows())


@pytest.mark.parametrize("Encoder", [scq.LSH, scq.PCAH, scq.SpH])
def test_encoders_that_go_through_the_rows_say_so(local, Encoder):
    with pytest.raises(TypeError, match=r"X is a Dask array, whose rows stay .* Only OnE and OgE learn"):
        Encoder(n_bits=8).fit(rows())
