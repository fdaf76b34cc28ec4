"""Maps from ids to places, beside a dictionary: one body over the native map and the one without a core."""

import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scq_gpu.kernels import native
from scq_gpu.kernels.ids import id_map

NO_CORE = pytest.param("numpy", id="dict")
NATIVE = pytest.param("native", marks=pytest.mark.skipif(native.core is None, reason=f"no core: {native.missing}"))


@pytest.fixture(params=[NATIVE, NO_CORE])
def make(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(native, "core", None)
    return id_map


def as_array(ids, text, width=0):
    """Ids as the maps take them; strings in rows of at least this width."""
    if not text:
        return np.array(ids, dtype=np.int64)
    width = max([width, 1, *map(len, ids)])
    return np.frombuffer(b"".join(x.ljust(width, b"\0") for x in ids), dtype=np.uint8).reshape(len(ids), width)


NUMBERS = st.integers(-5, 30) | st.sampled_from([2**63 - 1, -(2**63), 1 << 32])
STRINGS = st.binary(max_size=9).map(lambda x: x.rstrip(b"\0")) | st.sampled_from([b"a", b"a\0b", b"", b"x" * 70])
STEPS = st.sampled_from(["insert", "insert", "insert", "erase", "move", "find"])


def first_wrong(name, ids, known):
    """The number of the first id that cannot be inserted, erased or moved, or -1."""
    seen = set()
    for number, x in enumerate(ids):
        wrong = {"insert": x in known or x in seen, "erase": x not in known or x in seen, "move": x not in known}
        if wrong[name]:
            return number
        seen.add(x)
    return -1


@pytest.mark.parametrize("text", [False, True])
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_against_a_dictionary(make, text, data):
    ids_of = st.lists(STRINGS if text else NUMBERS, max_size=50, unique=data.draw(st.booleans()))
    tested, known = make(text), {}
    for step in range(data.draw(st.integers(1, 12))):
        name, ids = data.draw(STEPS), data.draw(ids_of)
        if name == "erase" and data.draw(st.booleans()):
            ids = list(known)[:: data.draw(st.integers(1, 3))]
        given_ids, places = as_array(ids, text, data.draw(st.integers(0, 90))), np.arange(len(ids)) + 1000 * step
        before = given_ids.copy()
        if name == "find":
            found = tested.find(given_ids)
            assert found.dtype == np.int64
            assert found.tolist() == [known.get(x, -1) for x in ids]
            continue
        wrong = first_wrong(name, ids, known)
        arguments = (given_ids,) if name == "erase" else (given_ids, places)
        assert getattr(tested, name)(*arguments) == wrong
        if wrong < 0:
            known = (
                {x: p for x, p in known.items() if x not in ids}
                if name == "erase"
                else known | dict(zip(ids, places.tolist(), strict=True))
            )
        np.testing.assert_array_equal(given_ids, before)
        assert len(tested) == len(known)
        assert tested.find(as_array(list(known), text)).tolist() == list(known.values())


@pytest.mark.parametrize("text", [False, True])
def test_many_ids(make, text):
    """Growth, calls that release the GIL, and one wrong id among many: nothing is changed."""
    n = 20_000
    ids = np.random.default_rng(0).permutation(10 * n)[:n]
    ids = np.char.add("id ", ids.astype("U7")).astype("S12").view(np.uint8).reshape(n, -1) if text else ids
    twice = ids.copy()
    twice[n - 1] = twice[7]
    tested, places = make(text), np.arange(n)
    assert tested.insert(twice, places) == n - 1
    assert len(tested) == 0
    assert tested.insert(ids, places) == -1
    assert tested.erase(twice) == n - 1
    np.testing.assert_array_equal(tested.find(ids), places)
    assert tested.move(ids[::-1].copy(), places) == -1
    np.testing.assert_array_equal(tested.find(ids), places[::-1])
    assert tested.erase(ids[::2].copy()) == -1
    np.testing.assert_array_equal(tested.find(ids), np.where(places % 2, places[::-1], -1))
    assert tested.insert(ids, places) == 1


@pytest.mark.parametrize("text", [False, True])
def test_churn(make, text):
    """Ids that come and go leave nothing that later searches would have to pass."""
    tested, rounds = make(text), 1000 if native.core is not None else 30
    stay = as_array([b"stays %d" % i for i in range(50)] if text else list(range(-50, 0)), text, 16)
    tested.insert(stay, np.arange(50))
    for step in range(rounds):
        names = range(100 * step, 100 * step + 100)
        ids, places = as_array([b"%d" % i for i in names] if text else names, text), np.arange(100)
        assert tested.insert(ids, places) == -1
        if step % 100 == 0:
            np.testing.assert_array_equal(tested.find(ids), places)
        assert tested.erase(ids) == -1
    assert len(tested) == 50
    np.testing.assert_array_equal(tested.find(stay), np.arange(50))


@pytest.mark.skipif(native.core is None, reason=f"no core: {native.missing}")
def test_what_does_not_fit_is_refused():
    numbers, strings = native.core.IdMap(False), native.core.IdMap(True)
    ids, text, places = np.arange(3), np.zeros((3, 4), np.uint8), np.arange(3)
    for call, message in (
        (lambda: numbers.insert(text, places), "int64"),
        (lambda: numbers.insert(ids.astype(np.int32), places), "int64"),
        (lambda: strings.insert(ids, places), "uint8"),
        (lambda: strings.find(text[0], places), "uint8"),
        (lambda: numbers.insert(ids, places[:2]), "place for each id"),
        (lambda: numbers.move(ids, places[:2]), "place for each id"),
        (lambda: numbers.find(ids, places[:2].copy()), "place for each id"),
        (lambda: numbers.insert(ids, -places), "at least 0"),
        (lambda: numbers.insert(ids, places + (2**63 - 3)), "at least 0"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError):
        numbers.insert(np.arange(6)[::2], places)
    assert len(numbers) == len(strings) == 0


@pytest.mark.skipif(native.core is None, reason=f"no core: {native.missing}")
def test_threads_keep_out_of_one_another():
    """Calls that release the GIL, and those that do not, from several threads."""
    tested, wrong = native.core.IdMap(False), []

    def churn(thread):
        for n in (10, 20_000, 300):
            ids = np.arange(n) * 8 + thread
            for _ in range(3):
                found = np.empty(n, dtype=np.int64)
                wrong.append(tested.insert(ids, ids) != -1)
                tested.find(ids, found)
                wrong.append((found != ids).any() or tested.erase(ids) != -1)

    threads = [threading.Thread(target=churn, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 4 * 18
    assert not any(wrong)
    assert len(tested) == 0
