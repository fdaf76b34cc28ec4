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


def test_what_cannot_be_says_so(shards, run):
    code, _, error = run("encode m.safetensors shards -o new.npy --id-column name")
    assert code == 1
    assert ".npy files have not" in error
    code, _, error = run("encode m.safetensors x.npy -o c.parquet --id-column name")
    assert code == 1
    assert "x.npy has no columns" in error
