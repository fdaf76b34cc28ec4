"""`VectorIndex` and `HammingIndex` under any sequence of operations, against lists of NumPy rows (hypothesis)."""

import copy
import itertools
import pickle
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import scq_gpu as scq
from scq_gpu.index import vectors as vectors_module
from scq_gpu.search import columns, store

D, N_BITS = 8, 16
POOL = np.random.default_rng(0).integers(-3, 4, (400, D)).astype(np.float32) + np.float32(0.25)  # many equal distances
ENCODERS = {
    "OgE": scq.OgE(N_BITS // 2, random_state=0).fit(POOL),
    "OPQ": scq.OPQ(N_BITS, max_iter=1, random_state=0).fit(POOL),
}
QUERIES = np.random.default_rng(1).normal(size=(3, D)).astype(np.float32)
KEPT = [True, False, "float16", "int8", "file"]


def distances(metric, X):
    Q = QUERIES.astype(np.float64)
    X = X.astype(np.float64)
    if metric == "l2":
        return ((Q[:, None] - X[None]) ** 2).sum(2)
    if metric == "cosine":
        return 1 - (Q @ X.T) / np.linalg.norm(Q, axis=1)[:, None] / np.linalg.norm(X, axis=1)
    return -Q @ X.T


class IndexMachine(RuleBasedStateMachine):
    """The oracle is two lists: the ids, and the numbers of their rows in `POOL`."""

    @initialize(
        kept=st.sampled_from(KEPT),
        metric=st.sampled_from(["l2", "cosine", "ip"]),
        encoder=st.sampled_from(sorted(ENCODERS)),
        text=st.sampled_from([None, False, True]),
        n=st.integers(0, 90),
        data=st.data(),
    )
    def begin(self, kept, metric, encoder, text, n, data):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name)
        self.metric, self.kept, self.text, self.saved = metric, kept, text, 0
        self.ids, self.rows, self.next, self.named, self.selected = [], [], 0, 0, None
        keep = self.path / "kept.npy" if kept == "file" else kept
        self.encoder = ENCODERS[encoder]
        rows, ids = self.drawn(data, n), self.new_ids(data, n)
        self.index = scq.VectorIndex(
            POOL[rows], encoder=self.encoder, metric=metric, ids=ids, keep_vectors=keep
        )  # fmt: skip
        self.took(rows, ids)

    def teardown(self):
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def drawn(self, data, n):
        return data.draw(st.lists(st.integers(0, len(POOL) - 1), min_size=n, max_size=n))

    def new_ids(self, data, n):
        """None, or ids that the index does not have."""
        if self.text is None and data.draw(st.booleans()):
            return None
        numbers = data.draw(st.lists(st.integers(0, 10**6), min_size=n, max_size=n, unique=True))
        if self.text:
            self.named += n
            return [f"{'é' * (number % 9)}{self.named - n + i}" for i, number in enumerate(numbers)]
        free = [x for x in numbers if x not in self.ids]
        taken = max([self.next - 1, *self.ids, *free]) + 1
        return np.array([*free, *(taken + np.arange(n - len(free)))], dtype=np.int64)

    def took(self, rows, ids):
        ids = (
            list(range(self.next, self.next + len(rows)))
            if ids is None
            else [getattr(x, "item", lambda x=x: x)() for x in ids]
        )
        self.ids, self.rows = self.ids + ids, self.rows + list(rows)
        numbers = [x for x in ids if not isinstance(x, str)]
        self.next = max([self.next, *(x + 1 for x in numbers)])

    @rule(n=st.integers(0, 70), data=st.data())
    def add(self, n, data):
        rows, ids = self.drawn(data, n), self.new_ids(data, n)
        if self.text and ids is None:
            return
        self.index.add(POOL[rows], ids=ids)
        self.took(rows, ids)

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def remove(self, data):
        gone = data.draw(st.lists(st.sampled_from(self.ids), max_size=len(self.ids), unique=True))
        self.index.remove(gone)
        left = [i for i, x in enumerate(self.ids) if x not in set(gone)]
        if self.selected is not None:
            self.selected -= set(gone)
        self.ids, self.rows = [self.ids[i] for i in left], [self.rows[i] for i in left]

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def update(self, data):
        changed = data.draw(st.lists(st.sampled_from(self.ids), max_size=20, unique=True))
        rows = self.drawn(data, len(changed))
        self.index.update(changed, POOL[rows])
        for x, row in zip(changed, rows, strict=True):
            self.rows[self.ids.index(x)] = row

    @rule()
    def compact(self):
        self.index.compact()

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def select(self, data):
        chosen = data.draw(st.lists(st.sampled_from(self.ids), unique=True))
        as_mask = data.draw(st.booleans())
        unknown = ["nobody"] if self.text else [10**9]
        self.selection = self.index.select(np.isin(self.ids, chosen) if as_mask else [*chosen, *unknown])
        self.selected = set(chosen)
        assert len(self.selection) == len(chosen)

    @precondition(lambda self: self.ids)
    @rule(way=st.sampled_from(["save", "save twice", "pickle", "copy"]))
    def move(self, way):
        """The index goes on as another object, from a file, or from a copy."""
        before = self.index.search(QUERIES, 5)
        if way == "copy":
            kept, self.index = self.index, copy.copy(self.index)
            kept.remove(self.ids[:1])
        elif way == "pickle":
            self.index = pickle.loads(pickle.dumps(self.index))
        else:
            file = self.path / ("index" if way == "save twice" else f"index-{self.saved}")
            self.saved += 1
            for _ in range(2):
                self.index.save(file)
                self.index = scq.VectorIndex.load(file, metric=self.metric, verify=True)
        self.selected = self.selection = None
        for a, b in zip(self.index.search(QUERIES, 5), before, strict=True):
            np.testing.assert_array_equal(a, b)

    @invariant()
    def answers_are_those_of_the_lists(self):
        index, n = self.index, len(self.ids)
        assert len(index) == n
        np.testing.assert_array_equal(index.ids, np.array(self.ids, dtype=index.ids.dtype))
        if not n:
            return
        assert self.ids[-1] in index
        assert ("nobody" if self.text else 10**9) not in index
        X = POOL[self.rows]
        allowed = [None, np.arange(n) % 3 == 0, self.ids[::4]]
        left = [np.ones(n, bool), allowed[1], np.isin(np.arange(n), np.arange(n)[::4])]
        if self.selected is not None:
            allowed.append(self.selection)
            left.append(np.isin(self.ids, list(self.selected)))
        for some, mask in zip(allowed, left, strict=True):
            self.check(some, np.flatnonzero(mask), X)
        if self.kept is not False:
            found = index.get(self.ids[::-3])
            tolerance = {"int8": 0.05, "float16": 0.01}.get(self.kept, 0)
            np.testing.assert_allclose(found, X[::-3], atol=tolerance)

    def check(self, allowed, places, X):
        k = 6
        d, ids = self.index.search(QUERIES, k, candidates=1000, allowed=allowed)
        m = min(k, len(places))
        assert (ids[:, m:] == ("" if self.text else -1)).all()
        assert np.isposinf(d[:, m:]).all()
        if not m:
            return
        if self.kept is False:
            codes = scq.HammingIndex(self.encoder.encode(self.unit(X)), self.index.n_bits)
            mask = np.isin(np.arange(len(X)), places)
            options = {"metric": self.metric, "allowed": mask}
            expected, order = codes.search_asymmetric(self.encoder, self.unit(QUERIES), k, **options)
            np.testing.assert_allclose(d[:, :m], expected[:, :m], rtol=1e-5, atol=1e-5)
            assert ids[:, :m].tolist() == [[self.ids[i] for i in row[:m]] for row in order.tolist()]
            return
        full = distances(self.metric, X[places])
        order = np.argsort(full, axis=1, kind="stable")[:, :m]
        tolerance = 0.3 if self.kept in ("int8", "float16") else 1e-4
        np.testing.assert_allclose(d[:, :m], np.take_along_axis(full, order, axis=1), rtol=tolerance, atol=tolerance)
        if self.kept in (True, "file") and self.metric != "cosine":
            for row, q in zip(ids[:, :m], range(len(QUERIES)), strict=True):
                at = [self.ids.index(x) for x in row.tolist()]
                # equal rows, whose distances are equal to the last digit, come in the order in which they came
                for a, b in itertools.pairwise(at):
                    assert a < b or (X[a] != X[b]).any()
                found = full[q][np.searchsorted(places, at)]
                np.testing.assert_allclose(found, np.sort(full[q])[:m], rtol=1e-4, atol=1e-4)

    def unit(self, X):
        return X / np.linalg.norm(X, axis=1, keepdims=True) if self.metric == "cosine" else X


def run_machine(monkeypatch, *, examples, steps, in_files, **options):
    """Run with chunks, parts and room so small that every seam is crossed; codes stay in files, or are read."""
    monkeypatch.setattr(columns, "_CHUNK_BYTES", 64 * 2)
    monkeypatch.setattr(columns, "_LEAST_ROOM", 5)
    monkeypatch.setattr(vectors_module, "_OVERRIDE_ROWS", 7)
    monkeypatch.setattr(vectors_module, "_PIECE_BYTES", 300)
    if in_files:
        monkeypatch.setattr(store, "worth_keeping", lambda n_bytes: False)
    options |= {"deadline": None, "phases": [Phase.generate], "suppress_health_check": list(HealthCheck)}
    run_state_machine_as_test(
        IndexMachine, settings=settings(max_examples=examples, stateful_step_count=steps, **options)
    )
