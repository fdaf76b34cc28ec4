"""Vectors that an index keeps: whose memory they are, rounded ones, files that change, and files that it writes."""

import os
import shutil
import signal
import threading
import time
import uuid

import numpy as np
import pytest

import scq_gpu as scq
from scq_gpu.index.vectors import VectorFileError

X = np.random.default_rng(0).normal(size=(700, 16)).astype(np.float32)
Q = X[:9] + np.float32(0.01)
ENCODER = scq.OgE(16, random_state=0).fit(X)


def index_of(X, **options):
    return scq.VectorIndex(X, encoder=ENCODER, **options)


def nearest(index, queries=Q):
    return index.search(queries, 3, candidates=5000)[1].tolist()


def same_answers(a, b):
    for x, y in zip(a.search(Q, 7, candidates=5000), b.search(Q, 7, candidates=5000), strict=True):
        np.testing.assert_array_equal(x, y)


# -- in memory ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_vectors", [True, False, "float16", "int8"])
def test_rows_handed_over_are_the_index_s_own(keep_vectors):
    buffer = X[:100].copy()
    index = index_of(buffer, keep_vectors=keep_vectors)
    buffer[:] = X[100:200]
    index.add(buffer)
    buffer[:] = X[200:300]
    index.update(np.arange(100), buffer)
    expected = index_of(np.concatenate([X[200:300], X[100:200]]), keep_vectors=keep_vectors)
    buffer[:] = 0
    same_answers(index, expected)


def test_codes_handed_over_are_the_index_s_own():
    codes = ENCODER.encode(X[:100])
    index, before = scq.HammingIndex(codes, 16), codes.copy()
    codes[:] = 0
    np.testing.assert_array_equal(index.get(np.arange(100)), before)
    found = index.get([5])
    found[:] = 0
    np.testing.assert_array_equal(index.get([5]), before[5:6])


@pytest.mark.parametrize(("keep_vectors", "size", "error"), [("float16", 32, 2e-3), ("int8", 20, 2e-2)])
def test_rounded_vectors_take_fewer_bytes(tmp_path, keep_vectors, size, error):
    index = index_of(X, keep_vectors=keep_vectors)
    assert f"vectors in memory as {keep_vectors}" in repr(index)
    np.testing.assert_allclose(index.get(np.arange(700)), X, atol=error * np.abs(X).max())
    index.save(tmp_path / "i")
    assert os.path.getsize(tmp_path / "i") < 700 * (size + 2) + 8000
    loaded = scq.VectorIndex.load(tmp_path / "i").add(X[:5])
    np.testing.assert_array_equal(loaded.get([700, 704]), index.get([0, 4]))
    same_answers(index.add(X[:5]), loaded)


def test_what_a_kept_type_cannot_hold_is_refused():
    with pytest.raises(ValueError, match=r"beyond 65,504, which float16 does not hold.*'int8'"):
        index_of(X * 1e6, keep_vectors="float16")
    index = scq.VectorIndex((X * 9).astype(np.int16), 16, random_state=0)
    with pytest.raises(ValueError, match=r"float32 and the vectors of the index are int16.*astype\('int16'\)"):
        index.add(X)
    assert len(index) == 700
    for wrong in (3, None, ""):
        with pytest.raises(TypeError, match="keep_vectors="):
            index_of(X, keep_vectors=wrong)


def test_updates_leave_memory_and_file_where_they_were(tmp_path):
    index = index_of(X)
    index.save(tmp_path / "before")
    for turn in range(300):
        index.update(np.arange(40) + turn, X[:40] * (turn % 7 + 1))
        vectors = index._store.state.vectors
        assert vectors.replaced <= 700 / 4
        assert vectors._updated.n <= 700 / 4
    index.save(tmp_path / "after")
    assert os.path.getsize(tmp_path / "after") == os.path.getsize(tmp_path / "before")


def test_removed_vectors_are_in_no_file(tmp_path):
    secret = np.full((1, 16), 1234.5, dtype=np.float32)
    index = index_of(np.concatenate([X, secret]))
    index.update([3], secret * 2)
    index.remove([700]).update([3], X[3:4])
    index.save(tmp_path / "i")
    content = (tmp_path / "i").read_bytes()
    assert secret[0, :4].tobytes() not in content
    assert (secret * 2)[0, :4].tobytes() not in content
    same_answers(scq.VectorIndex.load(tmp_path / "i"), index_of(X))


def test_get_and_in():
    names = [uuid.UUID(int=i) for i in range(5)]
    index = index_of(X[:5], ids=names)
    np.testing.assert_array_equal(index.get(names[::-1]), X[4::-1])
    assert names[2] in index
    assert str(names[2]) in index
    for other in (7, "x", 1.5, None, b"a", ["x"]):
        assert other not in index
    with pytest.raises(KeyError, match="id nobody is not in the index, so it cannot be returned"):
        index.get(["nobody"])
    with pytest.raises(ValueError, match="keeps no vectors"):
        index_of(X, keep_vectors=False).get([3])
    assert True not in index_of(X)
    assert 3 in index_of(X)


def test_one_query_is_one_answer():
    index = index_of(X)
    for a, b in zip(index.search(X[5], 4), index.search(X[5:6], 4), strict=True):
        np.testing.assert_array_equal(a, b[0])


def test_a_selection_follows_its_rows():
    index = index_of(X)
    chosen = index.select(np.arange(0, 700, 2))
    assert len(chosen) == 350
    assert nearest_of(index, X[4], chosen) == 4
    index.remove(np.arange(0, 400, 4)).compact().add(X[4:5])
    assert nearest_of(index, X[4], chosen) != 700  # added later
    assert nearest_of(index, X[2], chosen) == 2
    assert nearest_of(index, X[401], chosen) % 2 == 0
    with pytest.raises(ValueError, match="selection of another index"):
        index_of(X).search(Q, 1, allowed=chosen)


def nearest_of(index, query, allowed):
    return int(index.search(query, 1, allowed=allowed)[1][0])


# -- users' files -------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    np.save(tmp_path / "x.npy", X)
    return tmp_path / "x.npy"


def overwrite(file):
    np.save(file, X[::-1])


def shrink(file):
    os.truncate(file, 5000)


def touch_a_row(file):
    with open(file, "r+b") as opened:
        opened.seek(5000)
        opened.write(b"\xff" * 8)


@pytest.mark.parametrize("change", [overwrite, shrink, touch_a_row])
def test_a_file_that_changed_is_named_and_not_answered_from(tmp_path, file, change):
    """Also by whoever has it open, where a memory map would end the process."""
    index = index_of(file)
    index.save(tmp_path / "i")
    os.utime(file, ns=(1, 1)) if change is not shrink else None
    index = index_of(file) if change is not shrink else index
    index.save(tmp_path / "i")
    change(file)
    with pytest.raises(VectorFileError, match=r"x\.npy (changed|is 5000 bytes long)"):
        index.search(Q, 3)
    with pytest.raises(VectorFileError, match=r"x\.npy"):
        scq.VectorIndex.load(tmp_path / "i")


def test_a_file_that_was_replaced(tmp_path, file):
    """The index has the old one open and answers from it; who loads it is told of the new one."""
    index = index_of(file)
    before = nearest(index)
    index.save(tmp_path / "i")
    np.save(tmp_path / "new.npy", X[::-1])
    os.replace(tmp_path / "new.npy", file)
    assert nearest(index) == before
    with pytest.raises(VectorFileError, match=r"x\.npy is another file than the one that the index was made of"):
        scq.VectorIndex.load(tmp_path / "i")
    with pytest.raises(VectorFileError, match="does not hold the vectors"):
        scq.VectorIndex.load(tmp_path / "i", vectors=file)
    np.save(file, X)  # put back: another inode, the same rows
    assert nearest(scq.VectorIndex.load(tmp_path / "i", vectors=file)) == before


def test_rows_of_a_file_that_are_updated_removed_and_joined_by_others(tmp_path, file):
    index = index_of(file)
    index.update([3, 5], X[100:102] * 2).remove([0, 7]).add(X[:4] * 3).update([702], X[:1] * 5)
    np.save(tmp_path / "y.npy", X[:50] * 7)
    index.add(tmp_path / "y.npy").remove([710, 711]).update([720], X[:1] * 9)
    expected = {i: X[i] for i in range(700)} | {3: X[100] * 2, 5: X[101] * 2}
    expected |= {700 + i: X[i] * 3 for i in range(4)} | {704 + i: X[i] * 7 for i in range(50)}
    expected |= {702: X[0] * 5, 720: X[0] * 9}
    for gone in (0, 7, 710, 711):
        del expected[gone]
    for _ in range(2):
        np.testing.assert_array_equal(index.get(list(expected)), np.array(list(expected.values())))
        assert sorted(expected) == index.ids.tolist()
        index.save(tmp_path / "i")
        index = scq.VectorIndex.load(tmp_path / "i", verify=True)
    np.testing.assert_array_equal(index.compact().get(list(expected)), np.array(list(expected.values())))
    assert os.path.getsize(tmp_path / "i") < X.nbytes / 2


def test_rows_in_memory_that_have_all_gone(tmp_path, file):
    index = index_of(file).add(X[:9]).remove(np.arange(700, 709))
    index.save(tmp_path / "i")
    same_answers(scq.VectorIndex.load(tmp_path / "i").add(X[:1]), index.add(X[:1]))


@pytest.mark.parametrize("ending", ["npy", "parquet"])
@pytest.mark.parametrize("keep_vectors", [True, False, "float16", "file"])
def test_a_folder_of_shards(tmp_path, ending, keep_vectors):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "shards"
    folder.mkdir()
    ids = np.array([f"doc-{i}" for i in range(700)])
    for part, start in enumerate(range(0, 700, 100)):
        some = X[start : start + 100]
        if ending == "npy":
            np.save(folder / f"part-{part}.npy", some)
            continue
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(some.ravel()), 16)
        table = pa.table({"id": ids[start : start + 100], "v": vectors, "other": np.arange(100)})
        pq.write_table(table, folder / f"part-{part}.parquet")
    columns = {"id_column": "id", "vector_column": "v"} if ending == "parquet" else {"ids": ids}
    keep = tmp_path / "kept.npy" if keep_vectors == "file" else keep_vectors
    index = index_of(folder, keep_vectors=keep, **columns)
    assert index.ids.tolist() == ids.tolist()
    same_answers(index, index_of(X, ids=ids, keep_vectors=keep_vectors == "file" or keep_vectors))
    if ending == "npy" and keep_vectors is True:
        assert "vectors in a file" in repr(index)
        index.save(tmp_path / "i")
        shutil.copytree(folder, tmp_path / "moved")
        shutil.rmtree(folder)
        with pytest.raises(FileNotFoundError, match="vectors="):
            scq.VectorIndex.load(tmp_path / "i")
        same_answers(index, scq.VectorIndex.load(tmp_path / "i", vectors=tmp_path / "moved"))


def test_columns_where_there_are_none(file):
    with pytest.raises(ValueError, match="id_column='id' needs a file with columns"):
        index_of(X, id_column="id")
    with pytest.raises(ValueError, match="both ids and id_column='id'"):
        index_of(file, id_column="id", ids=np.arange(700))
    with pytest.raises(ValueError, match="vector_column='v' names a part of a file"):
        index_of(X, vector_column="v")


# -- files that the index writes ----------------------------------------------------------------------------------


def test_vectors_are_written_as_they_come(tmp_path):
    path = tmp_path / "kept.npy"
    index = index_of(X[:500], keep_vectors=path).add(X[500:])
    assert "vectors in a file" in repr(index)
    np.testing.assert_array_equal(np.load(path), X)
    index.save(tmp_path / "i")
    assert os.path.getsize(tmp_path / "i") < X.nbytes / 2
    loaded = scq.VectorIndex.load(tmp_path / "i")
    same_answers(loaded, index_of(X))
    with pytest.raises(VectorFileError, match=r"kept\.npy is written by another index"):
        loaded.add(X[:3])
    del index
    loaded.add(X[:3])
    assert np.load(path).shape == (703, 16)
    # as after a crash: rows that no saved index knows
    again = scq.VectorIndex.load(tmp_path / "i")
    same_answers(again, index_of(X))


def test_a_file_that_is_there_is_left_alone(tmp_path, file):
    before = file.read_bytes()
    with pytest.raises(FileExistsError, match=r"x\.npy is there already; pass another path"):
        index_of(X, keep_vectors=file)
    assert file.read_bytes() == before


def test_compaction_of_a_file_leaves_the_saved_index_whole(tmp_path):
    """Until the index is saved anew, and no longer: then removed vectors are in no file."""
    path, saved = tmp_path / "kept.npy", tmp_path / "i"
    index = index_of(X, keep_vectors=path)
    index.save(saved)
    index.remove(np.arange(300)).update([301], X[:1])
    assert sorted(os.listdir(tmp_path)) == ["i", "kept.1.npy", "kept.npy"]
    same_answers(scq.VectorIndex.load(saved), index_of(X))
    expected = index_of(X[300:], ids=np.arange(300, 700)).update([301], X[:1])
    same_answers(index, expected)
    index.save(saved)
    names = sorted(os.listdir(tmp_path))
    assert len(names) == 2
    kept = np.load(tmp_path / next(name for name in names if name != "i"))
    assert kept.shape == (400, 16)
    same_answers(scq.VectorIndex.load(saved), expected)
    index.remove(index.ids[:-1]).add(X[:10])
    index.save(saved)
    same_answers(scq.VectorIndex.load(saved), index)
    assert len(os.listdir(tmp_path)) == 2


def test_a_file_of_an_index_that_was_never_saved_has_no_older_versions(tmp_path):
    index = index_of(X, keep_vectors=tmp_path / "kept.npy")
    for _ in range(3):
        index.remove(index.ids[: len(index) // 2])
    assert len(os.listdir(tmp_path)) == 1
    index.remove(index.ids)
    assert len(index.add(X[:5])) == 5
    np.testing.assert_array_equal(index.get(index.ids), X[:5])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_child_forked_while_another_thread_changes_the_index():
    index = index_of(X, ids=np.arange(700))
    with index._store._lock:  # as another thread would
        child = os.fork()
        if not child:
            ok = index.add(X[:3], ids=[800, 801, 802]).remove([5]).search(X[0], 1)[1][0] in (0, 800)
            os._exit(0 if ok and len(index) == 702 else 1)
    for _ in range(600):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.05)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        status = -1
    assert status == 0


# -- many at once -------------------------------------------------------------------------------------------------


def test_a_load_beside_two_savers_is_one_of_the_two_indexes(tmp_path):
    path, stop, failures = tmp_path / "i", threading.Event(), []
    indexes = [index_of(X[:300] * (i + 1), ids=np.arange(300) + 1000 * i) for i in range(2)]
    indexes[0].save(path)

    def save(index):
        while not stop.is_set():
            index.save(path)

    threads = [threading.Thread(target=save, args=(index,)) for index in indexes]
    for thread in threads:
        thread.start()
    for _ in range(60):
        loaded = scq.VectorIndex.load(path)
        which = int(loaded.ids[0] >= 1000)
        row = np.array([7 + 1000 * which])
        if loaded.ids.tolist() != indexes[which].ids.tolist() or (loaded.get(row) != X[7] * (which + 1)).any():
            failures.append(loaded)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
