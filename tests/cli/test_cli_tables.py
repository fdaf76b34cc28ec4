"""Ids on the command line: from a column of shards to the answers of a search."""

import csv
import json

import numpy as np
import pytest
from command_line import BASE, QUERIES, made, run, work

import scq_gpu as scq

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

__all__ = ["made", "run", "work"]  # fixtures
NAMES = [f'row, "{i}"' for i in range(len(BASE))]


@pytest.fixture
def shards(work):
    (work / "shards").mkdir()
    for k in range(3):
        part = slice(500 * k, 500 * k + 500)
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(BASE[part].reshape(-1)), BASE.shape[1])
        pq.write_table(pa.table({"name": NAMES[part], "v": vectors}), work / "shards" / f"part-{k}.parquet")
    return work


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_ids_go_from_shards_to_answers(shards, run, ending):
    code, out, error = run(f"encode m.safetensors shards -o c.{ending} --id-column name --json --quiet")
    assert (code, error) == (0, "")
    assert json.loads(out)["rows"] == len(BASE)
    encoder = scq.load("m.safetensors")
    _, expected = scq.HammingIndex(encoder.encode(BASE), 20).search(encoder.encode(QUERIES), 4)
    assert run(f"search m.safetensors c.{ending} q.npy -k 4 -o found.csv --quiet")[0] == 0
    with open("found.csv", newline="") as file:
        found = [row["id"] for row in csv.DictReader(file)]
    assert found == [NAMES[i] for i in expected.ravel()]
    assert run(f"search m.safetensors c.{ending} q.npy -k 4 --rescore x.npy -o found.npz --quiet")[0] == 0
    nearest = np.argsort(((QUERIES[:20, None] - BASE[None]) ** 2).sum(2), axis=1)[:, 0]
    ids = np.load("found.npz")["ids"][:20, 0]
    assert np.mean(ids == np.array(NAMES)[nearest]) > 0.6
    assert run(f"export c.{ending} --bits 20 --to pgvector -o c.txt")[0] == 0


@pytest.mark.parametrize("floats", ["x.npy", "x.fvecs", "shards"])
def test_search_reads_a_table_once_and_floats_in_blocks(shards, run, monkeypatch, floats):
    """Formats that can be mapped and formats that cannot give the same answers; nothing reads all floats."""
    from scq_gpu.cli import _use
    from scq_gpu.rows.sources.base import RowSource

    encoder = scq.load("m.safetensors")
    lengths = np.full((len(BASE), 1), BASE.shape[1], dtype="<i4")
    np.hstack([lengths, BASE.astype("<f4").view("<i4")]).tofile("x.fvecs")
    assert run("encode m.safetensors shards -o c.parquet --quiet")[0] == 0
    read, tables = [], []
    as_array, read_table = RowSource.__array__, _use.read_table
    monkeypatch.setattr(RowSource, "__array__", lambda self, *_, **__: read.append(self.label) or as_array(self))
    monkeypatch.setattr(_use, "read_table", lambda path: tables.append(path) or read_table(path))
    found = json.loads(run(f"search m.safetensors c.parquet q.npy -k 5 --rescore {floats} --json -q")[1])
    assert [str(path) for path in tables] == ["c.parquet"]
    assert set(read) == {"q.npy"}
    _, candidates = scq.HammingIndex(encoder.encode(BASE), 20).search(encoder.encode(QUERIES), 50)
    distances, ids = scq.rescore(QUERIES, BASE, candidates, k=5, metric="l2")
    np.testing.assert_array_equal(found["ids"], ids)
    np.testing.assert_allclose(found["distances"], distances, rtol=1e-6)


def test_what_cannot_be_says_so(shards, run):
    code, _, error = run("encode m.safetensors shards -o new.npy --id-column name")
    assert code == 1
    assert "needs a table for the ids, which .npy is not" in error
    code, _, error = run("encode m.safetensors x.npy -o c.parquet --id-column name")
    assert code == 1
    assert "x.npy has no columns" in error


def test_urls_patterns_and_workers(shards, run):
    """The same codes by every way to name the shards; s3:// stays s3://."""
    expected = scq.load("m.safetensors").encode(BASE)
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").put(str(shards / "shards"), "/cli", recursive=True)
    for k, (where, more) in enumerate(
        [("memory://cli", ""), ("shards/part-*.parquet", "--workers 2"), (f"file://{shards}/shards", "")]
    ):
        code, _, error = run(f"encode m.safetensors {where} -o new{k}.npy --json --quiet {more}")
        assert (code, error) == (0, "")
        np.testing.assert_array_equal(np.load(f"new{k}.npy"), expected)
    fsspec.filesystem("memory").rm("/cli", recursive=True)
    code, _, error = run("encode m.safetensors s3://bucket/x.npy -o new.npy")
    assert "s3://bucket/x.npy" in error
    code, _, error = run("encode m.safetensors x.npy -o s3://bucket/c.npy")
    assert code == 1
    assert "is a URL; write to a local file" in error


def test_rates_are_of_this_run(work, run, monkeypatch):
    """A run that goes on says from where, and does not count what was there."""
    from scq_gpu.io import block_codes

    monkeypatch.setattr("scq_gpu.io.code_files._BLOCK_BYTES", 64 * 4 * 100)

    def some(work, *, first, workers):
        yield from (b for b, _ in zip(block_codes.encoded_blocks(work, first=first), range(12), strict=False))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("scq_gpu.io.code_files.encoded_blocks", some)
        assert run("encode m.safetensors x.npy -o new.npy --resume")[0] == 130
    code, out, error = run("encode m.safetensors x.npy -o new.npy --resume --json")
    assert code == 0
    assert "new.npy: going on from row 1,200 of 1,500" in error
    facts = json.loads(out)
    assert (facts["rows"], facts["rows_of_earlier_runs"]) == (1500, 1200)
    assert facts["rows_per_second"] == pytest.approx(300 / facts["seconds"])
