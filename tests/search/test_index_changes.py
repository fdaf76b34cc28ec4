"""An index that changes: ids, removal, files, and many threads at once."""

import copy
import hashlib
import json
import pickle
import threading
import time

import array_api_strict
import numpy as np
import pytest
from safetensors.numpy import load_file

import scq_gpu as scq
from scq_gpu.search.index import HammingIndex

LAST = 2**63 - 1


def codes_of(ids, width=4):
    """The code of an id, so that any thread can tell what an answer should be."""
    ids = np.asarray(ids, dtype=np.uint64)
    mixed = ids * np.uint64(0x9E3779B97F4A7C15) ^ (ids >> np.uint64(7))
    return np.ascontiguousarray(mixed.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width])


def distances(query, codes):
    return np.unpackbits(query[None] ^ codes, axis=1).sum(axis=1)


def brute(query, ids, k):
    """(distance, id) of the nearest of rows in the order they came, by the definition."""
    d = distances(query, codes_of(ids))
    order = np.argsort(d, kind="stable")[:k]
    return d[order], np.asarray(ids)[order]


def check(index, live, k=12):
    live = np.asarray(live)
    np.testing.assert_array_equal(index.ids, live)
    assert len(index) == len(live)
    for query in codes_of(np.arange(5) + 10**6):
        d, ids = index.search(query[None], k)
        expected = brute(query, live, k)
        np.testing.assert_array_equal(d[0, : len(live)], expected[0])
        np.testing.assert_array_equal(ids[0, : len(live)], expected[1])
        assert (ids[0, len(live) :] == -1).all()


def test_a_copy_does_not_change_with_its_index():
    """Both append to rows that they share, and neither sees what the other appends."""
    index = HammingIndex(codes_of(np.arange(30)), 32)
    index.add(codes_of([30]))
    before = copy.copy(index)
    index.add(codes_of([70]), ids=[70]).remove([3])
    check(before, np.arange(31))
    before.add(codes_of([80]), ids=[80])
    check(before, [*range(31), 80])
    check(index, [*range(3), *range(4, 31), 70])


# -- add and remove -----------------------------------------------------------------------------------------------


def test_any_order_of_adding_and_removing():
    rng = np.random.default_rng(0)
    live = list(range(50))
    index = HammingIndex(codes_of(np.arange(50)), 32)
    for _ in range(60):
        if rng.random() < 0.5 or len(live) < 10:
            new = rng.permutation(np.setdiff1d(rng.choice(5000, 20, replace=False), live))
            assert index.add(codes_of(new), ids=new) is index
            live += new.tolist()
        else:
            gone = rng.choice(live, rng.integers(1, 10), replace=False)
            assert index.remove(gone) is index
            live = [x for x in live if x not in gone]
        check(index, live)


@pytest.mark.parametrize("asarray", [np.asarray, array_api_strict.asarray])
def test_remove_in_any_namespace(asarray):
    codes = codes_of(np.arange(20))
    index = HammingIndex(asarray(codes), 32)
    index.remove(asarray(np.array([0, 7, 19]))).add(asarray(codes[:1]))
    assert index.ids.tolist() == [*range(1, 7), *range(8, 19), 20]
    expected = np.concatenate([codes[[*range(1, 7), *range(8, 19)]], codes[:1]])
    np.testing.assert_array_equal(np.asarray(index.get(index.ids)), expected)


def test_unknown_ids_are_named_and_nothing_is_removed():
    index = HammingIndex(codes_of(np.arange(5)), 32, ids=np.arange(5) * 2)
    with pytest.raises(KeyError, match="id 3 is not in the index"):
        index.remove([2, 3, 4])
    check_ids = [0, 2, 4, 6, 8]
    assert index.ids.tolist() == check_ids
    index.remove([4])
    with pytest.raises(KeyError, match="id 4 is not in the index"):
        index.remove([4])


@pytest.mark.parametrize("ids", [[-1], [1.5], [[1]], ["a"], 3, [2**63]])
def test_ids_that_cannot_be_are_refused(ids):
    index = HammingIndex(codes_of(np.arange(5)), 32)
    with pytest.raises((ValueError, TypeError, KeyError, OverflowError), match="id"):
        index.remove(ids)
    assert len(index) == 5


def test_removing_nothing_and_everything():
    index = HammingIndex(codes_of(np.arange(5)), 32)
    assert len(index.remove([])) == 5
    assert len(index.remove(np.arange(5))) == 0
    assert index.ids.tolist() == []
    distances, ids = index.search(codes_of([1]), 1)
    assert (distances.tolist(), ids.tolist()) == ([[33]], [[-1]])
    index.add(codes_of([3, 4]))
    assert index.ids.tolist() == [5, 6]  # a number is not given twice
    index.remove([6, 6])  # twice is once
    assert index.ids.tolist() == [5]


def test_an_empty_index_is_saved(tmp_path):
    codes = codes_of(np.arange(5))
    empty = HammingIndex(codes[:0], 32).add(codes[:0])
    empty.save(tmp_path / "empty")
    assert len(HammingIndex.load(tmp_path / "empty")) == 0


def test_ids_run_out():
    index = HammingIndex(codes_of([1]), 32, ids=np.array([LAST]))
    with pytest.raises(ValueError, match=f"no ids are left after the largest, {LAST}; pass ids"):
        index.add(codes_of([2]))
    assert index.add(codes_of([2]), ids=[5]).ids.tolist() == [LAST, 5]
    d, ids = index.search(codes_of([1]), 1)
    assert (d[0, 0], ids[0, 0]) == (0, LAST)
    with pytest.raises(ValueError, match=r"fit int64"):
        index.add(codes_of([2]), ids=np.array([2**63], dtype=np.uint64))


def test_ids_of_an_array_belong_to_the_caller():
    """Neither the ids passed nor those handed out are the index's own."""
    mine = np.arange(5) * 2
    index = HammingIndex(codes_of(mine), 32, ids=mine)
    mine[:] = 0
    index.ids[:] = 7
    assert index.ids.tolist() == [0, 2, 4, 6, 8]


def test_an_id_twice_is_refused_and_nothing_added():
    index = HammingIndex(codes_of(np.arange(5)), 32)
    for ids, what in (([9, 4], "id 4 is in the index already"), ([9, 9], "id 9 is given to more than one code")):
        with pytest.raises(ValueError, match=what):
            index.add(codes_of([1, 2]), ids=ids)
    index.add(codes_of([5]), ids=[5]).remove([5])
    check(index, range(5))


def test_bytes_per_row_and_repr():
    codes = codes_of(np.arange(5))
    sizes = [
        (HammingIndex(codes, 32), 4),
        (HammingIndex(codes[:, :2], 12 + 4), 2),
        (HammingIndex(codes, 32, ids=np.arange(5) + 1), 12),
        (HammingIndex(codes, 32).remove([1]), 4),
        (HammingIndex(codes, 32).remove([1, 2]), 12),  # a quarter was removed: places have changed
    ]
    for index, size in sizes:
        assert index.bytes_per_row == size
        assert f"bytes_per_row={size}" in repr(index)


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_are_indexes_of_their_own(make):
    index = HammingIndex(codes_of(np.arange(30)), 32)
    index.search(codes_of([1]), 3)
    other = make(index)
    other.remove([3])
    assert len(index) == 30
    assert len(other) == 29
    assert 3 not in other.search(codes_of([3]), 29)[1]


# -- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("n_bits", [9, 16, 24])
def test_save_and_load(tmp_path, with_ids, n_bits):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((211, 30)).astype(np.float32)
    encoder = scq.OgE(n_bits, random_state=0).fit(X)
    ids = rng.permutation(1000)[:211] if with_ids else None
    index = HammingIndex(encoder.encode(X), n_bits, ids=ids, encoder=encoder)
    index.add(encoder.encode(X[:3]))
    index.remove(index.ids[[5, 100]]) if with_ids else None
    index.save(tmp_path / "i.safetensors")
    loaded = HammingIndex.load(tmp_path / "i.safetensors")
    np.testing.assert_array_equal(loaded.ids, index.ids)
    assert loaded.bytes_per_row == index.bytes_per_row
    for metric in ("l2", "cosine", "ip"):
        answers = (x.search_asymmetric(encoder, X[:7], 20, metric=metric) for x in (index, loaded))
        for a, b in zip(*answers, strict=True):
            np.testing.assert_array_equal(a, b)
    tensors = load_file(tmp_path / "i.safetensors")
    assert set(tensors) == {"codes", "digests"} | ({"ids"} if with_ids else set())
    grown = loaded.add(encoder.encode(X[:4])).remove(loaded.ids[:1])
    grown.save(tmp_path / "i.safetensors")  # over the file that it reads from
    again = HammingIndex.load(tmp_path / "i.safetensors")
    np.testing.assert_array_equal(again.ids, grown.ids)
    np.testing.assert_array_equal(again.get(again.ids), grown.get(grown.ids))


@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("distance", ["hamming", "spherical"])
def test_a_file_laid_out_by_hand_loads(tmp_path, with_ids, distance):
    """Ids, then codes, then digests of the header and of these; no fingerprint."""
    n_bits, ids = 12, np.arange(40, dtype="<i8") * 3 + 1
    codes = codes_of(ids, width=2) & np.array([255, 15], dtype=np.uint8)
    contract = "bit k = [x.w_k >= t_k]; byte k//8, position k%8, LSB first; padding 0; v1"
    metadata = {"format": "scq_gpu.HammingIndex v2", "n_bits": str(n_bits), "bit_contract": contract}
    metadata["next_id"] = str(ids.max() + 1 if with_ids else 40)
    metadata["distance"] = distance
    header, at, body = {"__metadata__": metadata}, 0, b""
    for name, tensor, kind in [("ids", ids, "I64")] * with_ids + [("codes", codes, "U8")]:
        data = tensor.tobytes()
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [at, at + len(data)]}
        at, body = at + len(data), body + data
    header["digests"] = {"dtype": "U8", "shape": [2, 32], "data_offsets": [at, at + 64]}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    body += hashlib.sha256(text).digest() + hashlib.sha256(body).digest()
    (tmp_path / "hand.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + body)
    index = HammingIndex.load(tmp_path / "hand.safetensors", verify=True)
    assert len(index) == 40
    assert index.distance == distance
    expected = ids if with_ids else np.arange(40)
    np.testing.assert_array_equal(index.ids, expected)
    if index.distance == "hamming":
        d, found = index.search(codes[5:6], 1)
        assert (d[0, 0], found[0, 0]) == (0, expected[distances(codes[5], codes) == 0].min())
    index.remove(expected[:2]).add(codes[:1])
    assert len(index) == 39
    index.save(tmp_path / "new.safetensors")
    assert len(HammingIndex.load(tmp_path / "new.safetensors")) == 39


# -- threads ------------------------------------------------------------------------------------------------------


def test_threads_that_add_remove_and_search(tmp_path):
    """Each writer owns a range of ids; a searcher knows what the code of any id is, and that some ids never leave."""
    stay = np.arange(200)
    index, stop, failures = HammingIndex(codes_of(stay), 32), threading.Event(), []
    live = [set() for _ in range(3)]

    def guarded(function):
        def run(*args):
            try:
                while not stop.is_set():
                    function(*args)
            except Exception as error:
                failures.append(error)
                stop.set()
                raise

        return run

    generators = [np.random.default_rng(seed) for seed in range(6)]

    @guarded
    def write(number):
        rng, mine = generators[number], live[number]
        if len(mine) < 100 or rng.random() < 0.5:
            base = 10**6 * (number + 1)
            new = np.setdiff1d(base + rng.choice(3000, 15, replace=False), list(mine))
            index.add(codes_of(new), ids=new)
            mine |= set(new.tolist())
        else:
            gone = rng.choice(sorted(mine), 10, replace=False)
            index.remove(gone)
            mine -= set(gone.tolist())

    @guarded
    def search(number):
        rng = generators[number]
        query = codes_of(rng.integers(0, 10**7, 1))
        d, ids = (x[0] for x in index.search(query, 300))
        there = ids >= 0
        assert there.sum() >= 200
        np.testing.assert_array_equal(d[there], distances(query[0], codes_of(ids[there])))
        assert (np.diff(d) >= 0).all()
        within = index.range_search(query, 32)
        assert np.isin(stay, within[1]).all()
        assert len(within[1]) == len(set(within[1].tolist()))
        np.testing.assert_array_equal(within[2], distances(query[0], codes_of(within[1])))

    @guarded
    def look(number):
        ids = index.ids
        assert len(set(ids.tolist())) == len(ids)
        assert np.isin(stay, ids).all()
        index.save(tmp_path / f"{number}")
        saved = HammingIndex.load(tmp_path / f"{number}")
        np.testing.assert_array_equal(codes_of(saved.ids), saved.get(saved.ids))

    threads = [threading.Thread(target=write, args=(i,)) for i in range(3)]
    threads += [threading.Thread(target=search, args=(i,)) for i in (3, 4)] + [threading.Thread(target=look, args=(5,))]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 5
    while time.monotonic() < end and not stop.is_set():
        time.sleep(0.05)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert sorted(index.ids.tolist()) == sorted(set(stay.tolist()).union(*live))
    check(index, index.ids)


def test_numbers_given_to_threads_are_never_the_same():
    """No ids passed: each thread's rows get numbers of their own."""
    index = HammingIndex(codes_of([0]), 32, ids=[0])
    codes = codes_of(np.arange(5))
    threads = [threading.Thread(target=lambda: [index.add(codes) for _ in range(40)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert index.ids.tolist() == list(range(1 + 4 * 40 * 5))
