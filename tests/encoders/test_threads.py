"""The same codes whatever the number of threads, and BLAS left as it was found."""

import itertools
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from peers import DH, UHBDNN
from threadpoolctl import threadpool_info, threadpool_limits

import scq_gpu as scq
from scq_gpu._core import machine as threads
from scq_gpu._core.machine import blas_in_one_thread, ordered_map, product
from scq_gpu.training.loop import BATCH_ROWS

ENCODERS = {
    "OgE": scq.OgE(24, random_state=0),
    "OgE of groups drawn apart": scq.OgE(40, random_state=0),
    "OgE classes": scq.OgE(24, preserve="classes", max_iter=6, tol=0, random_state=0),
    "OgE long": scq.OgE(70, preserve="classes", max_iter=2, tol=0, random_state=0),
    "OgE columnwise": scq.OgE(12, solver="columnwise", max_iter=4, tol=0, random_state=0),
    "OnE": scq.OnE(24, random_state=0),
    "OnE columnwise": scq.OnE(8, solver="columnwise", max_iter=3, tol=0, random_state=0),
    "ITQ": scq.ITQ(24, max_iter=8, random_state=0),
    "PCAH": scq.PCAH(24),
    "PCARR": scq.PCARR(24, random_state=0),
    "LSH": scq.LSH(24, random_state=0),
    "SH": scq.SH(24),
    "SpH": scq.SpH(8, random_state=0),
    "KMH": scq.KMH(8, max_iter=3, random_state=0),
    "BA": scq.BA(8, max_iter=2, random_state=0),
    "DH": DH(8, max_iter=3, random_state=0),
    "UHBDNN": UHBDNN(8, max_iter=1, lbfgs_iter=3, random_state=0),
}


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return rng.standard_normal((9000, 96), dtype=np.float32) * np.logspace(0, -1, 96, dtype=np.float32) + 0.3


def blas_threads():
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ENCODERS)
def test_codes_do_not_depend_on_the_number_of_threads(name, X):
    from sklearn.base import clone

    fits = []
    for count in (1, 2, 4):
        with threadpool_limits(count, user_api="blas"):
            encoder = clone(ENCODERS[name]).fit(X)
            fits.append((encoder.encode(X), encoder.transform(X[:500])))
    for codes, signs in fits[1:]:
        np.testing.assert_array_equal(codes, fits[0][0])
        np.testing.assert_array_equal(signs, fits[0][1])


@pytest.fixture(scope="module")
def many():
    """So many rows that a fit for classes learns from parts of them."""
    rng = np.random.default_rng(1)
    centers = 2 * rng.standard_normal((6, 16), dtype=np.float32)
    return centers[rng.integers(6, size=2 * BATCH_ROWS)] + rng.standard_normal((2 * BATCH_ROWS, 16), dtype=np.float32)


def test_fits_from_parts_do_not_depend_on_the_number_of_threads(many):
    fits = []
    for count in (1, 2, 4):
        with threadpool_limits(count, user_api="blas"):
            fits.append(scq.OgE(8, preserve="classes", random_state=0).fit(many))
    assert fits[0].n_iter_ == 2  # it learned from parts before
    for encoder in fits[1:]:
        np.testing.assert_array_equal(encoder.components_, fits[0].components_)
        np.testing.assert_array_equal(encoder.encode(many), fits[0].encode(many))


KINDS = {
    "array": lambda X, path: X,
    "memory map": lambda X, path: np.load(path, mmap_mode="r"),
    "file": lambda X, path: scq.io.open_rows(path),
    "list": lambda X, path: [X[:1000], X[1000:1001], X[1001:]],
    "Dask": lambda X, path: pytest.importorskip("dask.array").from_array(X, chunks=X.shape),
}


@pytest.mark.parametrize(
    ("rows", "parameters"),
    [
        ("X", {"n_bits": 16}),  # projected
        ("wide", {"n_bits": 16}),  # which stay as they are: projecting them would cost more
        ("wide", {"n_bits": 40}),
        ("many", {"n_bits": 8, "preserve": "classes"}),
        ("many_wide", {"n_bits": 8, "preserve": "classes"}),
    ],
)
def test_files_memory_maps_lists_and_dask_give_the_codes_of_the_array_on_any_number_of_threads(
    tmp_path, X, many, rows, parameters
):
    rng = np.random.default_rng(2)
    wide = rng.standard_normal((3000, 200), dtype=np.float32) * np.logspace(0, -1, 200, dtype=np.float32)
    many_wide = np.tile(many, 10) + 0.1 * np.resize(wide, (2 * BATCH_ROWS, 160))
    data = {"X": X, "wide": wide, "many": many, "many_wide": many_wide}[rows]
    np.save(tmp_path / "x.npy", data)
    fits = {}
    on_clusters = "many" not in rows  # where there are no parts
    kinds = {kind: read for kind, read in KINDS.items() if kind != "Dask" or on_clusters}
    for count, (kind, read) in itertools.product((1, 2), kinds.items()):
        with threadpool_limits(count, user_api="blas"):
            fits[kind, count] = scq.OgE(random_state=0, **parameters).fit(read(data, tmp_path / "x.npy"))
    expected = fits.pop(("array", 1))
    for key, encoder in fits.items():
        np.testing.assert_array_equal(encoder.components_, expected.components_, err_msg=str(key))
        np.testing.assert_array_equal(encoder.encode(data), expected.encode(data), err_msg=str(key))


def test_blas_has_its_threads_back_also_after_fits_side_by_side_and_errors(X):
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        fits = [threading.Thread(target=lambda seed=seed: scq.OgE(8, random_state=seed).fit(X)) for seed in range(4)]
        for fit in fits:
            fit.start()
        for fit in fits:
            fit.join()
        assert blas_threads() == before
        with pytest.raises(ValueError, match="NaN or inf"):
            scq.OgE(8).fit(np.full((50, 4), np.nan))
        assert blas_threads() == before


def test_blas_is_looked_for_once_per_import(monkeypatch):
    """Which takes longer than to encode a row; a module that was imported since may have brought another library."""
    looks, look = [], threads.ThreadpoolController

    def counted():
        looks.append(len(sys.modules))
        return look()

    monkeypatch.setattr(threads, "ThreadpoolController", counted)
    encoder, rows = scq.LSH(8, random_state=0).fit(np.eye(20)), np.eye(20)
    encoder.encode(rows)
    del looks[:]
    for row in rows:
        encoder.encode(row[None])
    assert looks == []
    monkeypatch.setitem(sys.modules, "a_module_imported_since", threads)
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        with blas_in_one_thread(np):
            assert set(blas_threads()) == {1}
        assert blas_threads() == before
    assert len(looks) == 1


def test_results_come_in_order_from_several_threads():
    names, gate = set(), threading.Event()

    def work(number):
        names.add(threading.current_thread().name)
        if number == 0:
            assert gate.wait(10)  # the first is done last
        if number == 1:
            gate.set()
        return number * number

    with threadpool_limits(2, user_api="blas"), blas_in_one_thread(np):
        assert list(ordered_map(work, range(20))) == [n * n for n in range(20)]
    assert len(names) == 2
    assert list(ordered_map(lambda n: -n, range(3))) == [0, -1, -2]


def test_one_block_stays_on_the_thread_that_asks():
    with threadpool_limits(2, user_api="blas"), blas_in_one_thread(np):
        assert list(ordered_map(lambda _: threading.current_thread().name, [0])) == [threading.current_thread().name]
        assert list(ordered_map(abs, [])) == []


def test_an_error_in_a_block_ends_the_map():
    seen = []

    def work(number):
        seen.append(number)
        if number == 3:
            raise ValueError("block 3")
        return number

    with threadpool_limits(2, user_api="blas"), blas_in_one_thread(np), pytest.raises(ValueError, match="block 3"):
        list(ordered_map(work, range(1000)))
    assert len(seen) < 30


@pytest.mark.parametrize("shape", [(3, 4, 5), (1281, 130, 131), (5000, 64, 64)])
def test_a_product_in_bands_is_the_product_on_any_number_of_threads(shape):
    m, k, n = shape
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    found = []
    for count in (1, 2, 4):
        with threadpool_limits(count, user_api="blas"), blas_in_one_thread(np):
            found.append(product(A, B))
    np.testing.assert_allclose(found[0], np.einsum("ik,kj->ij", A, B), rtol=1e-10, atol=1e-10)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


FORK = """
import os, signal, sys, threading, time, warnings
import numpy as np, scq_gpu as scq
from threadpoolctl import threadpool_info
warnings.simplefilter("ignore")
X = np.random.default_rng(0).standard_normal((1000, 24)).astype(np.float32)
encoder = scq.OgE(16, random_state=0).fit(X)
codes, blas = encoder.encode(X), [library["num_threads"] for library in threadpool_info()]
going = True

def work(seed):
    while going:
        scq.OgE(16, max_iter=2, tol=0, random_state=seed).fit(X)
        encoder.encode(X)

crew = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
[thread.start() for thread in crew]
status = 0
for number in range(int(sys.argv[1])):
    time.sleep(0.013 * (number % 7))
    child = os.fork()
    if not child:
        signal.alarm(60)  # ends it if it hangs
        same = (scq.OgE(16, random_state=0).fit(X).encode(X) == codes).all() and (encoder.encode(X) == codes).all()
        free = [library["num_threads"] for library in threadpool_info()] == blas
        os._exit(0 if same and free else 2 if same else 3)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        break
going = False
[thread.join() for thread in crew]
if status:
    sys.exit(f"child {number} ended with {status}")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
@pytest.mark.parametrize("blas_threads", ["1"])
def test_children_forked_while_other_threads_work(blas_threads):
    """They hang on no lock, and have BLAS as it was before anyone held it: 3 says it is not, -14 that one hung."""
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), blas_threads)
    done = subprocess.run(
        [sys.executable, "-c", FORK, "4"], env=environment, check=False, capture_output=True, text=True, timeout=900
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_child_forked_under_the_lock_and_in_a_hold():
    """The moment that hangs a child, made to last: another thread is in the hold, and has its lock."""
    code = """
import os, threading, numpy as np
from scq_gpu._core import machine
from scq_gpu._core.machine import blas_in_one_thread, ordered_map
entered, leave = threading.Event(), threading.Event()

def hold():
    with blas_in_one_thread(np):
        machine._held.threads = 2
        list(ordered_map(abs, range(5)))
        entered.set()
        leave.wait()

thread = threading.Thread(target=hold)
thread.start()
entered.wait()
with blas_in_one_thread(np):
    child = os.fork()
    if not child:
        import faulthandler
        faulthandler.dump_traceback_later(20, exit=True)
        assert list(ordered_map(abs, range(-3, 3))) == [3, 2, 1, 0, 1, 2]
if not child:
    assert not machine._held.holders
    with blas_in_one_thread(np):
        machine._held.threads = 2
        assert list(ordered_map(abs, range(-3, 3))) == [3, 2, 1, 0, 1, 2]
    os._exit(0)
assert machine._held.holders
leave.set()
thread.join()
assert not machine._held.holders
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
