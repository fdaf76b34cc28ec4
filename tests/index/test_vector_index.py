"""`VectorIndex` against brute force in NumPy: every source of vectors, every metric, files, threads."""

import copy
import os
import pickle
import shutil
import threading
import time

import array_api_strict
import numpy as np
import pytest

import scq_gpu as scq
from scq_gpu._core import machine
from scq_gpu.index import vector_index
from scq_gpu.rows.sources.base import ArrayRows

METRICS = ["l2", "cosine", "ip"]


def rows(n=1200, d=24, seed=0):
    """Clusters off the origin, whose norms vary."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((25, d)) * np.linspace(2, 0.5, d)
    X = centres[rng.integers(25, size=n)] + 0.5 * rng.standard_normal((n, d)) + 0.3
    return (X * rng.uniform(0.7, 1.4, (n, 1))).astype(np.float32)


X, Q = rows(), rows(15, seed=1)


def brute(Q, X, metric):
    Q, X = np.asarray(Q, dtype=np.float64), np.asarray(X, dtype=np.float64)
    if metric == "l2":
        return ((Q[:, None] - X[None]) ** 2).sum(2)
    if metric == "cosine":
        Q, X = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (Q, X))
        return 1 - Q @ X.T
    return -Q @ X.T


def check(found, Q, X, ids, metric, k):
    """The k nearest of the rows X, whose ids are these."""
    d, got = (x if isinstance(x, np.ndarray) else np.from_dlpack(x) for x in found)
    full, ids = brute(Q, X, metric), np.asarray(ids)
    order = [np.argsort(row, kind="stable")[:k] for row in full]
    expected = np.array([row[o] for row, o in zip(full, order, strict=True)])
    np.testing.assert_allclose(d, expected, rtol=1e-4, atol=1e-5 * np.abs(full).max())
    wanted = np.array([ids[o] for o in order])
    assert (got == wanted).mean() > 0.995  # distances a rounding apart
    assert got.dtype == np.int64


@pytest.mark.parametrize("metric", METRICS)
def test_all_candidates_are_brute_force(metric):
    index = scq.VectorIndex(X, n_bits=16, metric=metric, random_state=0)
    check(index.search(Q, 20, candidates=len(X)), Q, X, np.arange(len(X)), metric, 20)
    check(index.search(Q, 20, candidates=10 * len(X)), Q, X, np.arange(len(X)), metric, 20)
    assert len(index) == len(X)
    assert index.bytes_per_row == 2


@pytest.mark.parametrize("metric", METRICS)
def test_default_candidates_find_most_neighbors(metric):
    many, queries = rows(6000, seed=2), rows(50, seed=3)
    index = scq.VectorIndex(many, n_bits=24, metric=metric, random_state=0)
    true = np.argsort(brute(queries, many, metric), axis=1)[:, :10]
    found = index.search(queries, 10)[1]
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(true.tolist(), found.tolist(), strict=True)])
    assert recall >= 0.9


def test_cosine_does_not_see_lengths():
    index = scq.VectorIndex(X, n_bits=16, metric="cosine", random_state=0)
    stretched = Q * np.geomspace(1e-3, 1e3, len(Q))[:, None].astype(np.float32)
    for a, b in zip(index.search(Q, 5), index.search(stretched, 5), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


# -- where vectors come from --------------------------------------------------------------------------------------


def fbin(path, X):
    path.write_bytes(np.array(X.shape, dtype="<u4").tobytes() + X.astype("<f4").tobytes())
    return path


@pytest.mark.parametrize("kind", ["array", "memmap", "npy path", "str path", "fbin path", "list", "Fortran"])
def test_vectors_of_every_kind(kind, tmp_path):
    np.save(tmp_path / "x.npy", X)
    source = {
        "array": lambda: X,
        "memmap": lambda: np.load(tmp_path / "x.npy", mmap_mode="r"),
        "npy path": lambda: tmp_path / "x.npy",
        "str path": lambda: str(tmp_path / "x.npy"),
        "fbin path": lambda: fbin(tmp_path / "x.fbin", X),
        "list": lambda: X.tolist(),
        "Fortran": lambda: np.asfortranarray(X),
    }[kind]()
    index = scq.VectorIndex(source, n_bits=16, random_state=0)
    check(index.search(Q, 7, candidates=len(X)), Q, X, np.arange(len(X)), "l2", 7)
    mapped = kind in ("memmap", "npy path", "str path", "fbin path")
    assert ("vectors in a file" if mapped else "vectors in memory") in repr(index)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int8, np.uint8])
@pytest.mark.parametrize("metric", METRICS)
def test_vectors_of_every_type(dtype, metric):
    Y, queries = ((10 * x + 50).clip(1, 120).astype(dtype) for x in (X, Q))
    index = scq.VectorIndex(Y, n_bits=16, metric=metric, random_state=0)
    d, ids = index.search(queries, 6, candidates=len(Y))
    full = brute(queries, Y, metric)
    np.testing.assert_allclose(d, np.sort(full, axis=1)[:, :6], rtol=2e-3, atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(full, ids, axis=1), d, rtol=2e-3, atol=1e-5)


def parquet(path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    column = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), X.shape[1])
    pq.write_table(pa.table({"v": column}), path)
    return path


@pytest.mark.parametrize("as_path", [False, True])
def test_vectors_in_parquet(tmp_path, as_path, monkeypatch):
    path = parquet(tmp_path / "x.parquet")
    source = path if as_path else scq.io.open_rows(path)
    index = scq.VectorIndex(source, n_bits=16, keep_vectors=False, random_state=0)
    assert "no vectors" in repr(index)
    same = scq.VectorIndex(X, n_bits=16, keep_vectors=False, random_state=0)
    for a, b in zip(index.search(Q, 9), same.search(Q, 9), strict=True):
        np.testing.assert_array_equal(a, b)
    kept = scq.VectorIndex(source, n_bits=16, random_state=0)
    check(kept.search(Q, 7, candidates=len(X)), Q, X, np.arange(len(X)), "l2", 7)
    monkeypatch.setattr(machine, "available_bytes", lambda: X.nbytes // 2)
    with pytest.raises(MemoryError, match=r"keep_vectors='float16' or 'int8'.*keep_vectors=PATH or False"):
        scq.VectorIndex(source, encoder=kept.encoder)


@pytest.mark.parametrize("metric", METRICS)
def test_without_vectors_distances_are_those_of_the_codes(metric):
    index = scq.VectorIndex(X, encoder=scq.OgE(20, random_state=0), metric=metric, keep_vectors=False)
    Y, queries = (
        x / np.linalg.norm(x, axis=1, keepdims=True) if metric == "cosine" else x for x in (X, Q)
    )  # fmt: skip
    plain = scq.HammingIndex(index.encoder.encode(Y), 20)
    d, ids = index.search(Q, 9)
    expected = plain.search_asymmetric(index.encoder, queries, 9, metric=metric)
    np.testing.assert_array_equal(ids, expected[1])
    np.testing.assert_allclose(d, expected[0], rtol=1e-6)


def test_an_index_that_begins_empty():
    encoder = scq.OgE(16, random_state=0).fit(X)
    index = scq.VectorIndex(encoder=encoder)
    assert len(index) == 0
    assert index.n_bits == 16
    assert index.bytes_per_row == 2
    d, ids = index.search(Q, 3)
    assert d.shape == ids.shape == (len(Q), 3)
    assert (d == np.inf).all()
    assert (ids == -1).all()
    with pytest.raises(ValueError, match="index is empty"):
        index.save("nowhere")
    with pytest.raises(KeyError):
        index.remove([0])
    index.add(X[:700]).add(X[700:])
    assert index.encoder is encoder
    check(index.search(Q, 11, candidates=len(X)), Q, X, np.arange(len(X)), "l2", 11)


@pytest.mark.parametrize("d", [1, 3, 8, 64])
def test_default_codes_of_vectors_of_any_width(d):
    few = np.random.default_rng(0).normal(size=(90, d)).astype(np.float32)
    index = scq.VectorIndex(few, random_state=0)
    assert type(index.encoder) is scq.OPQ
    assert index.n_bits == min(128, 8 * d)
    check(index.search(few[:5], 4), few[:5], few, np.arange(90), "l2", 4)
    with pytest.raises(ValueError, match="n_bits=12 is not a multiple of 8"):
        scq.VectorIndex(few, n_bits=12)


@pytest.mark.parametrize("encoder", [None, scq.OgE(8), scq.ITQ(8)])
def test_an_empty_index_needs_a_fitted_encoder(encoder):
    with pytest.raises(ValueError, match="needs a fitted encoder"):
        scq.VectorIndex(encoder=encoder)


def test_an_encoder_of_ones_own():
    fitted = scq.ITQ(12, random_state=0).fit(X[:500])
    components = fitted.components_.copy()
    index = scq.VectorIndex(X, encoder=fitted)
    assert index.n_bits == 12
    np.testing.assert_array_equal(index.encoder.components_, components)  # used as it is
    unfitted = scq.LSH(20, random_state=0)
    index = scq.VectorIndex(X, encoder=unfitted, metric="cosine")
    check(index.search(Q, 5, candidates=len(X)), Q, X, np.arange(len(X)), "cosine", 5)


@pytest.mark.parametrize("encoder", [scq.SH(8), scq.SpH(8, random_state=0), scq.KMH(8, random_state=0)])
def test_encoders_without_a_linear_map_are_refused(encoder, monkeypatch):
    monkeypatch.setattr(type(encoder), "fit", lambda *args: pytest.fail("fitted before it was known to be of no use"))
    with pytest.raises(TypeError, match=rf"{type(encoder).__name__}.*linear"):
        scq.VectorIndex(X, encoder=encoder)


def test_array_api_strict_vectors():
    asarray = array_api_strict.asarray
    index = scq.VectorIndex(asarray(X), n_bits=16, metric="cosine", random_state=0)
    d, ids = index.search(asarray(Q), 6, candidates=len(X))
    assert type(d) is type(ids) is type(asarray(Q))
    check((d, ids), Q, X, np.arange(len(X)), "cosine", 6)
    index.add(asarray(X[:4])).remove(asarray(np.array([3])))
    assert len(index) == len(X) + 3
    with pytest.raises(ValueError, match=r"X is .*; convert X"):
        index.add(X[:4])
    check(index.search(asarray(Q), 6, candidates=2 * len(X)), Q, np.delete(np.concatenate([X, X[:4]]), 3, axis=0),
          np.delete(np.arange(len(X) + 4), 3), "cosine", 6)  # fmt: skip


# -- add, remove, ids ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", METRICS)
def test_adding_and_removing(metric, tmp_path):
    rng = np.random.default_rng(0)
    ids = rng.permutation(5000)[:500]
    index = scq.VectorIndex(X[:500], n_bits=16, metric=metric, ids=ids, random_state=0)
    vectors = dict(zip(ids.tolist(), X[:500], strict=True))
    np.save(tmp_path / "x.npy", X[600:700])
    steps = [(X[500:600], np.arange(5000, 5100)), (tmp_path / "x.npy", rng.permutation(1000) + 6000)]
    for added, new in steps:
        new = new[:100]
        index.add(added, ids=new)
        vectors |= dict(zip(new.tolist(), np.load(added) if isinstance(added, os.PathLike) else added, strict=True))
        gone = rng.choice(sorted(vectors), 50, replace=False)
        assert index.remove(gone) is index
        vectors = {i: v for i, v in vectors.items() if i not in gone}
        check(index.search(Q, 15, candidates=5000), Q, list(vectors.values()), list(vectors), metric, 15)
    index.add(X[700:710])  # numbers after the largest
    new = int(max(vectors)) + 1
    vectors |= dict(zip(range(new, new + 10), X[700:710], strict=True))
    check(index.search(X[700:710], 3, candidates=5000), X[700:710], list(vectors.values()), list(vectors), metric, 3)


def test_a_removed_id_given_again_is_the_new_vector():
    index = scq.VectorIndex(X[:300], n_bits=16, random_state=0)
    for turn in range(3):
        index.remove([7, 8])
        index.add(X[400 + turn : 402 + turn], ids=[8, 7])
        Y = X[:300].copy()
        Y[[8, 7]] = X[400 + turn : 402 + turn]
        check(index.search(Q, 20, candidates=1000), Q, Y, np.arange(300), "l2", 20)
        check(index.search(Y[[7]], 1, candidates=1000), Y[[7]], Y, np.arange(300), "l2", 1)


def test_equal_vectors_come_in_the_order_in_which_they_came():
    ids = np.array([50, 3, 99, 7, 0, 12])
    Y = np.concatenate([np.repeat(X[:1], 6, axis=0), X[1:300]])
    index = scq.VectorIndex(Y, n_bits=16, ids=np.concatenate([ids, 1000 + np.arange(299)]), random_state=0)
    index.add(X[:1], ids=[5])
    for keep in (2, 7):
        d, found = index.search(X[:1], keep, candidates=400)
        assert found.tolist() == [[*ids.tolist(), 5][:keep]]
        assert np.ptp(d) == 0


def test_more_wanted_than_there_are():
    index = scq.VectorIndex(X, n_bits=16, random_state=0)
    index.remove(np.arange(3, len(X)))
    for keep_vectors in (True, False):
        if not keep_vectors:
            index = scq.VectorIndex(X, n_bits=16, keep_vectors=False, random_state=0).remove(np.arange(3, len(X)))
        d, ids = index.search(Q, 5)
        assert (ids[:, 3:] == -1).all()
        assert np.isposinf(d[:, 3:]).all()
        assert (np.sort(ids[:, :3], axis=1) == [0, 1, 2]).all()


def test_what_is_refused_changes_nothing():
    index = scq.VectorIndex(X[:300], n_bits=16, random_state=0)
    before = index.search(Q, 9, candidates=500)
    nan = X[:3].copy()
    nan[1, 2] = np.nan
    refused = [
        (lambda: index.add(X[:2], ids=[299, 300]), ValueError, "id 299 is in the index already"),
        (lambda: index.add(X[:2], ids=[400, 400]), ValueError, "id 400"),
        (lambda: index.add(X[:2], ids=[400]), ValueError, "ids have shape"),
        (lambda: index.add(X[:2], ids=[-1, 4]), ValueError, "0 or more"),
        (lambda: index.add(X[:2, :5]), ValueError, "features"),
        (lambda: index.add(nan), ValueError, "NaN"),
        (lambda: index.add(array_api_strict.asarray(X[:2])), ValueError, r"X is .*; convert X"),
        (lambda: index.remove([1, 300]), KeyError, "id 300 is not in the index"),
        (lambda: index.search(Q, 0), ValueError, "k=0"),
        (lambda: index.search(Q, candidates=0), ValueError, "candidates=0"),
        (lambda: index.search(Q[:, :5]), ValueError, "features"),
        (lambda: index.search(Q[0, :5]), ValueError, "features"),
        (lambda: index.search(Q[None]), ValueError, "2 dimensions"),
        (lambda: scq.VectorIndex(X, metric="dot"), ValueError, "metric='dot' is not one of 'l2', 'cosine', 'ip'"),
        (lambda: scq.VectorIndex(X, 16, ids=[1, 2]), ValueError, "ids have shape"),
        (lambda: scq.VectorIndex("no/such/file.npy"), FileNotFoundError, "does not exist"),
    ]
    for call, error, message in refused:
        with pytest.raises(error, match=message):
            call()
        for a, b in zip(index.search(Q, 9, candidates=500), before, strict=True):
            np.testing.assert_array_equal(a, b)
    index.add(X[300:301])  # the next number is the one it always was
    assert index.search(X[300:301], 1)[1].tolist() == [[300]]
    check(index.search(Q, 9, candidates=500), Q, X[:301], np.arange(301), "l2", 9)


def test_ids_run_out():
    index = scq.VectorIndex(X[:300], n_bits=16, ids=np.arange(300) + (2**63 - 300), random_state=0)
    assert index.search(X[299:300], 1)[1].tolist() == [[2**63 - 1]]
    with pytest.raises(ValueError, match="no ids are left"):
        index.add(X[300:302])
    assert len(index.add(X[300:302], ids=[0, 1])) == 302


@pytest.mark.parametrize("n", [0, 3])
def test_zero_vectors_have_no_cosine(n, tmp_path):
    Y = X[:300].copy()
    Y[211] = 0
    with pytest.raises(ValueError, match=r"row 211\b.*is zero.*metric='l2'"):
        scq.VectorIndex(Y, n_bits=16, metric="cosine")
    np.save(tmp_path / "y.npy", Y)
    with pytest.raises(ValueError, match=r"row 211\b.*is zero.*metric='l2'"):
        scq.VectorIndex(tmp_path / "y.npy", n_bits=16, metric="cosine")
    index = scq.VectorIndex(X[:300], n_bits=16, metric="cosine", random_state=0)
    with pytest.raises(ValueError, match=r"row 211\b.*is zero"):
        index.add(Y)
    assert len(index) == 300
    with pytest.raises(ValueError, match=r"row 2 of queries is zero"):
        index.search(np.where(np.arange(5)[:, None] == 2, 0, X[:5]))
    for metric in ("l2", "ip"):
        scq.VectorIndex(Y, n_bits=16, metric=metric, random_state=0).search(Y[211:212], 3)


# -- files --------------------------------------------------------------------------------------------------------


def same_answers(a, b, queries=Q, k=9):
    for x, y in zip(a.search(queries, k, candidates=2000), b.search(queries, k, candidates=2000), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("keep_vectors", [False, True])
def test_save_and_load(tmp_path, metric, keep_vectors):
    rng = np.random.default_rng(0)
    ids = rng.permutation(2000)[:500]
    options = {"metric": metric, "keep_vectors": keep_vectors}
    index = scq.VectorIndex(X[:500], n_bits=16, ids=ids, random_state=0, **options)
    index.remove(ids[:20]).add(X[500:530], ids=ids[:30:-1][:30] + 3000).remove(ids[40:45]).add(
        X[530:533], ids=ids[40:43]
    )
    index.save(tmp_path / "i.safetensors")
    assert os.listdir(tmp_path) == ["i.safetensors"]
    loaded = scq.VectorIndex.load(tmp_path / "i.safetensors", metric=metric)
    assert (loaded.metric, loaded.n_bits, loaded.bytes_per_row, len(loaded)) == (
        metric,
        16,
        index.bytes_per_row,
        len(index),
    )
    assert loaded.encoder.get_params() == index.encoder.get_params()
    same_answers(index, loaded)
    loaded.save(tmp_path / "again.safetensors")
    (tmp_path / "i.safetensors").rename(tmp_path / "moved.safetensors")
    loaded = scq.VectorIndex.load(tmp_path / "again.safetensors")
    same_answers(index, loaded)
    for one in (index, loaded):
        one.add(X[540:560]).remove([int(ids[50])])
    same_answers(index, loaded)
    loaded.save(tmp_path / "i.safetensors")  # over the file that it reads from
    same_answers(index, scq.VectorIndex.load(tmp_path / "i.safetensors"))


def test_numbers_go_on_after_loading_without_vectors(tmp_path):
    index = scq.VectorIndex(X[:300], n_bits=16, ids=np.arange(300) + 300, keep_vectors=False, random_state=0)
    index.remove([310]).save(tmp_path / "i")
    loaded = scq.VectorIndex.load(tmp_path / "i")
    loaded.add(X[300:302])
    index.add(X[300:302])
    same_answers(index, loaded)
    assert len(loaded) == 301
    assert set(loaded.search(X[300:302], 300)[1].ravel().tolist()) <= set(range(300, 602))


@pytest.mark.parametrize("kind", ["npy", "fbin"])
def test_vectors_in_a_file_stay_there(tmp_path, kind):
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / f"x.{kind}"
    np.save(path, X) if kind == "npy" else fbin(path, X)
    index = scq.VectorIndex(path, n_bits=16, random_state=0)
    index.save(tmp_path / "i")
    assert (tmp_path / "i").stat().st_size < X.nbytes / 2
    loaded = scq.VectorIndex.load(tmp_path / "i")
    assert "vectors in a file" in repr(loaded)
    same_answers(index, loaded)
    moved = tmp_path / f"elsewhere.{kind}"
    shutil.move(path, moved)
    with pytest.raises(FileNotFoundError, match=r"vectors="):
        scq.VectorIndex.load(tmp_path / "i")
    for vectors in (moved, str(moved)):
        same_answers(index, scq.VectorIndex.load(tmp_path / "i", vectors=vectors))
    for wrong, what in ((X[:-1], "was cut off"), (X[::-1].copy(), "does not hold the vectors")):
        np.save(moved, wrong) if kind == "npy" else fbin(moved, wrong)
        with pytest.raises(ValueError, match=rf"elsewhere\.{kind} .*{what}"):
            scq.VectorIndex.load(tmp_path / "i", vectors=moved)


def test_relative_paths_are_remembered_whole(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    np.save("x.npy", X)
    index = scq.VectorIndex("x.npy", n_bits=16, random_state=0)
    index.save("i")
    monkeypatch.chdir(tmp_path)
    same_answers(index, scq.VectorIndex.load("here/i"))


@pytest.mark.parametrize(
    "view",
    [lambda x: x[::-1], lambda x: x[100:900], lambda x: x[:, ::-1], lambda x: x[::2], lambda x: x.view("<i4")],
)
def test_part_of_a_memory_map_is_not_the_file(tmp_path, view):
    np.save(tmp_path / "x.npy", X)
    part = view(np.load(tmp_path / "x.npy", mmap_mode="r"))
    if part.dtype.kind == "i":
        part = part % 1000  # no memory map any more
    index = scq.VectorIndex(part, n_bits=16, random_state=0)
    index.save(tmp_path / "i")
    same_answers(index, scq.VectorIndex.load(tmp_path / "i"), queries=np.asarray(part[:9]))


def test_raw_memory_maps(tmp_path):
    """Files without a header, which a path alone does not describe."""
    raw = np.memmap(tmp_path / "x.dat", dtype=np.float32, mode="w+", shape=X.shape)
    raw[:] = X
    index = scq.VectorIndex(raw, n_bits=16, random_state=0)
    index.save(tmp_path / "i")
    same_answers(index, scq.VectorIndex.load(tmp_path / "i"))


def test_another_metric_is_refused(tmp_path):
    scq.VectorIndex(X[:300], n_bits=16, metric="cosine", random_state=0).save(tmp_path / "i")
    with pytest.raises(ValueError, match=r"made for metric='cosine', not 'l2'"):
        scq.VectorIndex.load(tmp_path / "i", metric="l2")
    with pytest.raises(ValueError, match="metric='dot' is not one of"):
        scq.VectorIndex.load(tmp_path / "i", metric="dot")


def test_files_of_another_kind_are_refused(tmp_path):
    encoder = scq.OgE(16, random_state=0).fit(X)
    scq.HammingIndex(encoder.encode(X), 16).save(tmp_path / "codes")
    encoder.save(tmp_path / "model")
    index = scq.VectorIndex(X, encoder=encoder)
    index.save(tmp_path / "i")
    for name in ("codes", "model"):
        with pytest.raises(ValueError, match="format"):
            scq.VectorIndex.load(tmp_path / name)
    with pytest.raises(ValueError, match="format"):
        scq.HammingIndex.load(tmp_path / "i")
    content = (tmp_path / "i").read_bytes()
    (tmp_path / "cut").write_bytes(content[:-100])
    with pytest.raises(ValueError, match="too short"):
        scq.VectorIndex.load(tmp_path / "cut")


def test_every_safetensors_reader_opens_the_file(tmp_path):
    from safetensors.numpy import load_file

    index = scq.VectorIndex(X[:301], encoder=scq.OgE(12, random_state=0))
    index.save(tmp_path / "i")
    tensors = load_file(tmp_path / "i")
    np.testing.assert_array_equal(tensors["vectors"], X[:301])
    np.testing.assert_array_equal(tensors["codes"], index.encoder.encode(X[:301]))


# -- threads ------------------------------------------------------------------------------------------------------


def test_threads_that_add_remove_and_search():
    """Ids are given away, taken back and given to other vectors; an answer is always one vector that had the id."""
    index = scq.VectorIndex(X[:200], n_bits=16, random_state=0)
    stop, failures = threading.Event(), []
    versions = 4 + np.arange(30)  # id i is X[200 + 30 v + i] in turn v
    first = 10_000

    def guarded(function):
        def run():
            try:
                function()
            except Exception as error:
                failures.append(error)
                raise
            finally:
                stop.set()

        return run

    turns = [0]

    @guarded
    def write():
        while not stop.is_set():
            turn = turns[0] % len(versions)
            index.add(X[200 + 30 * turn : 230 + 30 * turn], ids=first + np.arange(30))
            index.remove(first + np.arange(30))
            turns[0] += 1

    @guarded
    def search():
        rng = np.random.default_rng()
        while not stop.is_set():
            query = X[rng.integers(len(X), size=1)]
            d, ids = (x[0] for x in index.search(query, 40, candidates=400))
            assert (np.diff(d) >= 0).all()
            assert len(set(ids.tolist())) == 40
            new = ids >= first
            np.testing.assert_allclose(d[~new], ((query - X[ids[~new]]) ** 2).sum(1), rtol=1e-3, atol=1e-3)
            if new.any():  # all of one turn: the search saw one moment
                at = [200 + 30 * turn + (ids[new] - first) for turn in range(len(versions))]
                fits = [np.allclose(d[new], ((query - X[rows]) ** 2).sum(1), rtol=1e-3, atol=1e-3) for rows in at]
                assert any(fits)

    threads = [threading.Thread(target=write)] + [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(3)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert turns[0] > 10
    check(index.search(Q, 20, candidates=1000), Q, X[:200], np.arange(200), "l2", 20)


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index.remove([5]).add(X[700:701], ids=[5]),
        lambda index: index.update([5, 6], X[700:702]),
        lambda index: index.remove(np.arange(100, 250)).compact(),
        lambda index: index.remove([5]),
        lambda index: index.add(X[5:6], ids=[17]),
        lambda index: index.add(X[300:320]),
    ],
)
def test_a_search_sees_one_moment(monkeypatch, change):
    """Between finding codes and reading vectors, ids come, go, and are given to other vectors."""
    index = scq.VectorIndex(X[:300], n_bits=16, random_state=0).remove([17])
    original = vector_index.search_floats

    def meanwhile(*args, **options):
        monkeypatch.setattr(vector_index, "search_floats", original)
        change(index)
        return original(*args, **options)

    monkeypatch.setattr(vector_index, "search_floats", meanwhile)
    ids = np.delete(np.arange(300), 17)
    d, found = index.search(X[[5, 17]], 299, candidates=1000)
    check((d, found), X[[5, 17]], X[ids], ids, "l2", 299)
    assert found[0, 0] == 5
    assert 17 not in found


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_are_indexes_of_their_own(make):
    index = scq.VectorIndex(X[:300], n_bits=16, random_state=0)
    other = make(index)
    same_answers(index, other)
    other.remove([3]).add(X[300:310]).update([7], X[400:401])
    assert (len(index), len(other)) == (300, 309)
    check(index.search(Q, 9, candidates=500), Q, X[:300], np.arange(300), "l2", 9)


def test_row_numbers_take_no_memory_until_something_is_removed():
    index = scq.VectorIndex(X[:300], n_bits=16, random_state=0).add(X[300:310])
    assert index.bytes_per_row == 2
    assert index.remove([3]).add(X[310:311]).bytes_per_row == 2
    assert index.compact().bytes_per_row == 10
    assert index.search(X[310:311], 1)[1].tolist() == [[310]]
    assert scq.VectorIndex(encoder=index.encoder).add(X[:9]).add(X[9:20]).bytes_per_row == 2


@pytest.mark.parametrize("keep_vectors", [True, False])
def test_rows_that_are_a_source_in_memory_are_read(keep_vectors):
    index = scq.VectorIndex(ArrayRows(X, label="mine"), n_bits=16, keep_vectors=keep_vectors, random_state=0)
    assert len(index) == len(X)
    assert index.search(X[7], 1)[1].tolist() == [7] or not keep_vectors
