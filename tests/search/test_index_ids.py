"""Ids that are strings, codes replaced by id, and filters, against brute force on plain dictionaries."""

import threading
import uuid

import array_api_strict
import numpy as np
import pytest
from native_engines import use_engine
from safetensors.numpy import load_file

import scq_gpu as scq
from scq_gpu.search.index import HammingIndex

RNG = np.random.default_rng(0)
N_BITS, WIDTH = 20, 3
WORDS = np.array([f"key-{i}-{'é' * (i % 4)}" for i in RNG.permutation(5000)[:400]])
MASK = np.array([255, 255, 15], dtype=np.uint8)


def random_codes(n, seed=1):
    return np.random.default_rng(seed).integers(0, 256, (n, WIDTH), dtype=np.uint8) & MASK


def brute(query, table, k, none):
    """The k nearest of a dictionary from id to code, in the order of its keys, filled up."""
    found = [(int(np.bitwise_count(query ^ code).sum()), key) for key, code in table.items()]
    return sorted(found, key=lambda hit: hit[0])[:k] + [(N_BITS + 1, none)] * (k - len(found))


def host(x):
    return x if isinstance(x, np.ndarray) else x.get() if hasattr(x, "get") else np.from_dlpack(x)


def check(found, queries, table, k, none=-1):
    d, ids = map(host, found)
    for row, query in enumerate(queries):
        assert list(zip(d[row].tolist(), ids[row].tolist(), strict=True)) == brute(query, table, k, none)


@pytest.fixture(params=["native", "numpy", "array_api_strict", "torch", "cupy"])
def asarray(request, monkeypatch):
    if request.param in ("torch", "cupy"):
        module = pytest.importorskip(request.param)
    if request.param == "cupy":
        if not module.is_available():
            pytest.skip("CuPy finds no CUDA device here")
        return module.asarray
    if request.param in ("native", "numpy"):
        use_engine(request.param, monkeypatch)
    if request.param == "torch":
        return module.asarray
    return array_api_strict.asarray if request.param == "array_api_strict" else np.asarray


@pytest.mark.parametrize("given", ["unicode", "object", "list", "StringDType"])
def test_strings_are_ids(given):
    codes, queries = random_codes(400), random_codes(5, seed=2)
    ids = {
        "unicode": WORDS,
        "object": WORDS.astype(object),
        "list": WORDS.tolist(),
        "StringDType": WORDS.astype(np.dtypes.StringDType()),
    }[given]
    index = HammingIndex(codes, N_BITS, ids=ids)
    check(index.search(queries, 30), queries, dict(zip(WORDS.tolist(), codes, strict=True)), 30, "")
    assert index.ids.tolist() == WORDS.tolist()
    longest = max(len(word.encode()) for word in WORDS)
    assert index.bytes_per_row == WIDTH + longest


def test_strings_are_added_removed_replaced_and_padded():
    codes = random_codes(400)
    index = HammingIndex(codes[:3], N_BITS, ids=["b", "a", "c"])
    index.add(codes[3:5], ids=["much longer than any before", "ä"]).remove(["b"]).update(["c", "ä"], codes[10:12])
    table = {"a": codes[1], "c": codes[10], "much longer than any before": codes[3], "ä": codes[11]}
    check(index.search(codes[:4], 6), codes[:4], table, 6, "")
    offsets, ids, _ = index.range_search(codes[10:11], radius=0)
    assert (offsets.tolist(), ids.tolist()) == ([0, 1], ["c"])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda index, codes: index.add(codes[:1]), ValueError, "ids of this index are strings, such as 'c'; pass ids"),
        (lambda index, codes: index.add(codes[:1], ids=[7]), ValueError, "ids are integers, such as 7"),
        (lambda index, codes: index.add(codes[:1], ids=["a"]), ValueError, "id a is in the index already"),
        (lambda index, codes: index.add(codes[:2], ids=["x", "x"]), ValueError, "id x is given to more than one"),
        (lambda index, codes: index.add(codes[:1], ids=[""]), ValueError, r"ids\[0\] is the empty string"),
        (lambda index, codes: index.add(codes[:2], ids=["x"]), ValueError, "2 codes take"),
        (lambda index, codes: index.add(codes[:2], ids=np.array(["x", None])), TypeError, r"ids\[1\] is None"),
        (lambda index, codes: index.add(codes[:1], ids=["\ud800"]), ValueError, "cannot be written as UTF-8"),
        (lambda index, codes: index.remove(["zz"]), KeyError, "id zz is not in the index, so it cannot be removed"),
        (lambda index, codes: index.update(["zz"], codes[:1]), KeyError, "id zz is not in the index, so it cannot be"),
        (lambda index, codes: index.update(["a", "a"], codes[:2]), ValueError, "id a is given to more than one"),
        (lambda index, codes: index.update(["a"], codes[:2]), ValueError, "2 codes take"),
        (lambda index, codes: index.search(codes[:1], 1, allowed=[True]), ValueError, r"mask of shape \(1,\)"),
        (lambda index, codes: index.search(codes[:1], 1, allowed=[1, 2]), ValueError, "ids are integers"),
    ],
)
def test_what_is_refused_changes_nothing(change, error, message):
    codes = random_codes(6)
    index = HammingIndex(codes[:3], N_BITS, ids=["c", "a", "b"])
    with pytest.raises(error, match=message):
        change(index, codes)
    check(index.search(codes[:2], 3), codes[:2], dict(zip("cab", codes, strict=False)), 3, "")


def test_strings_in_a_file(tmp_path):
    codes = random_codes(400)
    HammingIndex(codes, N_BITS, ids=WORDS).save(tmp_path / "i.safetensors")
    index = HammingIndex.load(tmp_path / "i.safetensors", verify=True)
    check(index.search(codes[:3], 9), codes[:3], dict(zip(WORDS.tolist(), codes, strict=True)), 9, "")
    stored = load_file(tmp_path / "i.safetensors")["ids"]
    assert [bytes(row).rstrip(b"\0").decode() for row in stored] == WORDS.tolist()
    index.add(codes[:1], ids=["one more"]).remove(WORDS[:10]).save(tmp_path / "j.safetensors")
    assert HammingIndex.load(tmp_path / "j.safetensors").ids.tolist() == [*WORDS[10:].tolist(), "one more"]


@pytest.mark.parametrize("damage", ["twice", "empty", "not UTF-8"])
def test_damaged_strings_in_a_file_are_refused(tmp_path, damage):
    path = tmp_path / "i.safetensors"
    HammingIndex(random_codes(3), N_BITS, ids=["aa", "bb", "cc"]).save(path)
    content = path.read_bytes()
    new = {"twice": b"aaaacc", "empty": b"\0\0bbcc", "not UTF-8": b"aa\xff\xffcc"}[damage]
    assert content.count(b"aabbcc") == 1
    path.write_bytes(content.replace(b"aabbcc", new))
    with pytest.raises(ValueError, match="not a usable index file"):
        HammingIndex.load(path)


@pytest.mark.parametrize("ids", [None, "integers", "strings"])
@pytest.mark.parametrize("share", [0, 0.01, 0.5, 1])
def test_a_filter_is_brute_force_over_what_it_leaves(asarray, ids, share):
    """By mask and by ids, on every engine, with more answers wanted than are left."""
    codes, queries = random_codes(400), random_codes(4, seed=2)
    given = {None: np.arange(400), "integers": RNG.permutation(4000)[:400], "strings": WORDS}[ids]
    index = HammingIndex(asarray(codes), N_BITS, ids=None if ids is None else given)
    chosen = np.random.default_rng(3).random(400) < share
    table = {key: code for key, code, kept in zip(given.tolist(), codes, chosen, strict=True) if kept}
    none = "" if ids == "strings" else -1
    allowed = [*table, *("nowhere", "there")] if ids == "strings" else [*table, 5000, 5001, *table]
    for filter in (allowed, np.isin(index.ids, list(table)) if table else np.zeros(400, dtype=bool)):
        check(index.search(asarray(queries), 300, allowed=filter), queries, table, 300, none)
    assert len(index) == 400


def test_a_filter_reads_what_was_added_and_a_memory_map(tmp_path):
    codes = random_codes(400)
    HammingIndex(codes[:200], N_BITS).save(tmp_path / "i.safetensors")
    index = HammingIndex.load(tmp_path / "i.safetensors").add(codes[200:300]).add(codes[300:])
    allowed = np.arange(150, 350, 7)
    check(index.search(codes[:3], 40, allowed=allowed), codes[:3], {int(i): codes[i] for i in allowed}, 40)


@pytest.mark.parametrize("ids", [False, True])
def test_asymmetric_search_with_a_filter(asarray, ids):
    """The same distances as without it, of the rows that it leaves."""
    rng = np.random.default_rng(4)
    X, Q = rng.normal(size=(300, 24)), rng.normal(size=(4, 24))
    encoder = scq.OgE(n_bits=N_BITS, max_iter=5, tol=0, random_state=0).fit(X)
    given = rng.permutation(1000)[:300] if ids else None
    index = HammingIndex(asarray(encoder.encode(X)), N_BITS, ids=given)
    every, order = map(host, index.search_asymmetric(encoder, Q, 300))
    allowed = index.ids[rng.random(300) < 0.3]
    d, found = map(host, index.search_asymmetric(encoder, Q, 50, allowed=allowed))
    for row in range(len(Q)):
        kept = np.isin(order[row], allowed)
        np.testing.assert_array_equal(found[row], order[row][kept][:50])
        np.testing.assert_array_equal(d[row], every[row][kept][:50])
    d, found = map(host, index.search_asymmetric(encoder, Q, 2, allowed=[]))
    assert np.isinf(d).all()
    assert (found == -1).all()


def test_spherical_distance_with_a_filter():
    codes = random_codes(100)
    index = HammingIndex(codes, N_BITS, distance="spherical")
    d, ids = index.search(codes[:2], 100)
    some, found = index.search(codes[:2], 5, allowed=np.arange(0, 100, 3))
    for row in range(2):
        kept = ids[row] % 3 == 0
        np.testing.assert_array_equal(found[row], ids[row][kept][:5])
        np.testing.assert_array_equal(some[row], d[row][kept][:5])


def test_update_in_any_namespace(asarray):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(60, 24))
    encoder = scq.OgE(n_bits=N_BITS, max_iter=5, tol=0, random_state=0).fit(X)
    codes = encoder.encode(X)
    index = HammingIndex(asarray(codes[:40]), N_BITS, ids=np.arange(40)[::-1].copy())
    index.update([7, 0, 31], asarray(codes[50:53]))
    changed = np.array(codes[:40][::-1])
    changed[[7, 0, 31]] = codes[50:53]
    fresh = HammingIndex(asarray(changed), N_BITS)
    np.testing.assert_array_equal(host(index.get(np.arange(40))), host(fresh.get(np.arange(40))))
    assert index.ids.tolist() == list(range(39, -1, -1))  # updated rows keep their places


@pytest.mark.parametrize("metric", ["l2", "cosine"])
@pytest.mark.parametrize("strings", [False, True])
@pytest.mark.parametrize("keep_vectors", [False, True])
def test_vectors_with_ids_filters_and_updates(tmp_path, metric, strings, keep_vectors):
    """Against all distances by NumPy, where vectors are kept; saved and loaded the same."""
    rng = np.random.default_rng(6)
    X, Q = rng.normal(size=(300, 16)).astype("f4"), rng.normal(size=(3, 16)).astype("f4")
    ids = WORDS[:200] if strings else rng.permutation(900)[:200]
    index = scq.VectorIndex(X[:200], 16, metric=metric, ids=ids, keep_vectors=keep_vectors, random_state=0)
    new = ["late-1", "late-2"] if strings else [2001, 2002]
    index.update(ids[:5], X[200:205]).remove(ids[5:10]).add(X[205:207], ids=new)
    index.add(X[207:208], ids=ids[5:6])
    table = dict(zip(ids[10:].tolist(), X[10:200], strict=True))
    table |= dict(zip(ids[:5].tolist(), X[200:205], strict=True)) | dict(zip(new, X[205:207], strict=True))
    table[ids[5].item()] = X[207]
    assert sorted(index.ids.tolist()) == sorted(table)
    allowed = [key for i, key in enumerate(table) if i % 3 == 0]
    index.save(tmp_path / "v.safetensors")
    loaded = scq.VectorIndex.load(tmp_path / "v.safetensors")
    mask = np.isin(index.ids, allowed)
    answers = [one.search(Q, 7, candidates=300, allowed=f) for one in (index, loaded) for f in (allowed, mask)]
    for d, found in answers:
        np.testing.assert_array_equal(found, answers[0][1])
        np.testing.assert_array_equal(d, answers[0][0])
        assert set(found.ravel().tolist()) <= set(allowed)
    if keep_vectors:
        V = np.array([table[key] for key in allowed], dtype="f8")
        for q, found in zip(Q.astype("f8"), answers[0][1], strict=True):
            far = ((V - q) ** 2).sum(1) if metric == "l2" else -(V @ q) / np.linalg.norm(V, axis=1)
            assert found.tolist() == [allowed[i] for i in np.argsort(far)[:7]]
    d, found = index.search(Q, 2, allowed=[])
    assert np.isinf(d).all()
    assert (found == ("" if strings else -1)).all()
    index.remove(index.ids)
    index.add(X[:3], ids=[1, 2, 3] if strings else ["a", "b", "c"])  # empty: of either kind
    assert index.search(X[:1], 1)[1].tolist() == [[1 if strings else "a"]]


def test_updates_while_others_search():
    """A search sees a code before or after its update, never in between, and ids never go."""
    codes = random_codes(300)
    flipped = (codes ^ MASK) & MASK
    index = HammingIndex(codes, N_BITS)
    stop, failures = threading.Event(), []
    moments = [np.bitwise_count(codes[0] ^ each).sum(1) for each in (codes, flipped)]

    def look():
        while not stop.is_set():
            d, ids = index.search(codes[:1], 300, allowed=np.arange(300))
            seen = d[0][np.argsort(ids[0])]
            if sorted(ids[0].tolist()) != list(range(300)) or not any((seen == moment).all() for moment in moments):
                failures.append((d, ids))

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(30):
        index.update(np.arange(300), flipped if turn % 2 == 0 else codes)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (["a", "b\0"], ValueError, r"ids\[1\] is 'b\\x00', which has a null character"),
        (np.array(["a", "b\0"], dtype=object), ValueError, "which has a null character"),
        (np.array(["a", "b\0"], dtype=np.dtypes.StringDType()), ValueError, "which has a null character"),
        ([1, "a"], TypeError, r"ids\[0\] is 1 and others are strings"),
        (["a", 1.5], TypeError, r"ids\[1\] is 1.5 and others are strings"),
        ([b"a", b"b"], TypeError, r"ids are \|S1, such as .*b'a'.*numpy\.strings\.decode"),
        ([None, 1], TypeError, "ids are object, such as None; integers or strings are expected"),
        ({1, 2}, TypeError, "ids are a set, which has no order; pass a list of them"),
        (dict.fromkeys("ab").keys(), TypeError, "ids are a dict_keys, which has no order"),
        (np.ma.masked_array(["a", "b"], mask=[0, 1]), ValueError, "ids has masked entries"),
        (np.ma.masked_array([1, 2], mask=[0, 1]), ValueError, "ids has masked entries"),
    ],
)
def test_ids_that_would_become_others(ids, error, message):
    with pytest.raises(error, match=message) as caught:
        HammingIndex(random_codes(2), N_BITS, ids=ids)
    assert "float32" not in str(caught.value)
    index = HammingIndex(random_codes(400), N_BITS, ids=WORDS)
    with pytest.raises((TypeError, ValueError)):
        index.remove(ids)
    with pytest.raises((TypeError, ValueError)):
        index.search(random_codes(1), 1, allowed=ids)


def test_nulls_within_ids_are_refused_and_uuids_are_strings():
    with pytest.raises(ValueError, match=r"ids\[0\] is 'a\\x00b', which has a null character"):
        HammingIndex(random_codes(2), N_BITS, ids=["a\0b", "c"])
    names = [uuid.UUID(int=7), uuid.UUID(int=1)]
    index = HammingIndex(random_codes(2), N_BITS, ids=names)
    assert index.ids.tolist() == [str(name) for name in names]
    assert names[1] in index
    assert str(names[0]) in index.remove(names[1:])
    assert names[1] not in index
