"""``scq-gpu index``: what its commands write and print is what the library does."""

import json
import os

import numpy as np
import pytest

pytest.importorskip("typer", reason="the command line needs typer")
pytest.importorskip("rich", reason="the command line needs rich")

from command_line import BASE, QUERIES, files, made, run, work

import scq_gpu as scq

__all__ = ["made", "run", "work"]  # fixtures


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """An index of short codes: 1,500 vectors that the file holds."""
    path = tmp_path_factory.mktemp("index") / "i.safetensors"
    scq.VectorIndex(BASE, n_bits=16, random_state=0).save(path)
    return path


@pytest.fixture
def index(file, work):
    content = file.read_bytes()
    (work / "i.safetensors").write_bytes(content)
    return scq.VectorIndex.load(work / "i.safetensors")


def answers(run, line):
    code, out, err = run(f"{line} --json")
    assert (code, err) == (0, "") or code == 0, err
    return json.loads(out)


def brute_force(Q, X, k, metric="l2"):
    """Row numbers of the nearest vectors, from all distances."""
    Q, X = Q.astype(np.float64), X.astype(np.float64)
    if metric == "cosine":
        Q, X = (A / np.linalg.norm(A, axis=1, keepdims=True) for A in (Q, X))
    d = ((Q[:, None] - X[None]) ** 2).sum(axis=2)
    return np.argsort(d, axis=1, kind="stable")[:, :k]


@pytest.mark.parametrize(
    ("options", "keep", "kept"),
    [
        ("", True, "vectors in a file"),
        ("--keep-vectors FALSE", False, "no vectors"),
        ("--keep-vectors float16 --metric cosine", "float16", "vectors in a file"),
        ("--keep-vectors int8 --metric ip", "int8", "vectors in a file"),
        ("--keep-vectors v.npy", "v2.npy", "vectors in a file"),
    ],
)
def test_build_and_search_are_those_of_the_library(work, run, options, keep, kept):
    metric = options.partition("--metric ")[2] or "l2"
    code, _, err = run(f"index build x.npy -o i.safetensors --bits 16 --seed 3 -q {options}")
    assert (code, err) == (0, "")
    expected = scq.VectorIndex("x.npy", 16, metric=metric, keep_vectors=keep, random_state=3)
    found = answers(run, "index search i.safetensors q.npy -k 3 --candidates 40")
    assert found["ids"] == expected.search(QUERIES, 3, candidates=40)[1].tolist()
    facts = answers(run, "index info i.safetensors --verify")
    wanted = {"vectors": 1500, "n_features": 64, "metric": metric, "n_bits": 16, "ids": "integers", "kept": kept}
    assert facts.items() >= (wanted | {"encoder": "OPQ", "verified": True}).items()
    assert answers(run, "info i.safetensors").items() >= wanted.items()


def test_string_ids_columns_and_a_folder_of_shards(work, run):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra io)")
    import pyarrow.parquet as pq

    os.mkdir("shards")
    for i in range(3):
        part = BASE[500 * i : 500 * (i + 1)]
        columns = {"id": [f"d{500 * i + j}" for j in range(500)], "x": list(part), "y": list(-part)}
        pq.write_table(pa.table(columns), f"shards/{i}.parquet")
    line = "index build shards -o i.safetensors --encoder OPQ --bits 32 --id-column id --vector-column x -q"
    assert run(line)[0] == 0
    true = brute_force(QUERIES[:40], BASE, 5)
    found = answers(run, "index search i.safetensors q.npy -k 5 --candidates 1500 --recall 40")
    assert found["ids"][:40] == [[f"d{i}" for i in row] for row in true.tolist()]
    assert (found["recall"], found["recall_queries"]) == (1, 40)
    some = np.arange(0, 1500, 7)
    (work / "some.txt").write_text("".join(f"d{i}\n" for i in some) + "nobody\n")
    found = answers(run, "index search i.safetensors q.npy -k 4 --allowed some.txt --candidates 1500")
    assert found["ids"][:40] == [[f"d{some[i]}" for i in row] for row in brute_force(QUERIES[:40], BASE[some], 4)]
    assert found["vectors"] == len(some)
    code, out, _ = run("index search i.safetensors q.npy -k 2 --recall 9")
    assert code == 0
    assert out.endswith("queries: 1.0000\n")


def test_recall_is_the_share_of_true_neighbors(index, run):
    found = answers(run, "index search i.safetensors q.npy -k 10 --candidates 10 --recall 30")
    true = brute_force(QUERIES[:30], BASE, 10)
    share = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found["ids"], true.tolist(), strict=False)])
    assert 0.1 < share < 0.9
    assert found["recall"] == pytest.approx(share)


def test_changes_are_written(index, run, work):
    np.save("more.npy", QUERIES[:4])
    np.save("ids.npy", np.arange(7000, 7004))
    facts = answers(run, "index add i.safetensors more.npy --ids ids.npy")
    assert (facts["vectors_before"], facts["vectors"]) == (1500, 1504)
    assert answers(run, "index search i.safetensors more.npy -k 1")["ids"] == [[7000], [7001], [7002], [7003]]
    (work / "gone.txt").write_text("7001\n3\n")
    assert answers(run, "index remove i.safetensors gone.txt")["vectors"] == 1502
    loaded = scq.VectorIndex.load("i.safetensors")
    assert 3 not in loaded
    assert 7001 not in loaded
    assert loaded.ids[:4].tolist() == [0, 1, 2, 4]


def test_compact_shortens_the_file_of_vectors_that_an_index_writes(work, run):
    assert run("index build x.npy -o i.safetensors --bits 16 --keep-vectors v.npy -q")[0] == 0
    scq.VectorIndex.load("i.safetensors")
    (work / "gone.txt").write_text("".join(f"{i}\n" for i in range(100)))
    assert run("index remove i.safetensors gone.txt -q")[0] == 0
    assert answers(run, "index compact i.safetensors")["vectors"] == 1400
    (kept,) = work.glob("v*.npy")
    np.testing.assert_array_equal(np.load(kept), BASE[100:])
    assert answers(run, "index search i.safetensors x.npy -k 1")["ids"][100:105] == [[100], [101], [102], [103], [104]]


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("index build x.npy -o i.safetensors", 1, "i.safetensors is there already; pass --overwrite"),
        ("index build x.npy -o n.npy", 1, "n.npy has the ending '.npy'"),
        ("index build x.npy -o n.safetensors --keep-vectors c.npy", 1, "--keep-vectors c.npy is there already"),
        ("index build x.npy -o n.safetensors --keep-vectors int16", 2, "--keep-vectors int16 is not true, false"),
        ("index build x.npy -o n.safetensors --encoder SpH", 1, "SpH is not a linear encoder or OPQ"),
        ("index build x.npy -o n.safetensors --encoder XXX", 2, "--encoder XXX is not one of"),
        ("index build x.npy -o n.safetensors --metric l3", 1, "--metric 'l3' is not one of"),
        ("index build x.npy -o n.safetensors --id-column id", 1, "x.npy has no columns"),
        ("index build x.npy -o n.safetensors --bits 8 --keep-vectors w.npy --ids yq.npy", 1, "1500"),
        ("index build nan.npy -o n.safetensors --keep-vectors w.npy", 1, "NaN or inf"),
        ("index add i.safetensors x.npy --ids y.npy", 1, "ids must be unique"),
        ("index add i.safetensors i.safetensors", 1, "i.safetensors is a model or an index, where rows"),
        ("index add x.npy x.npy", 1, "x.npy"),
        ("index remove i.safetensors gone.txt", 1, "id 9999 is not in the index, so it cannot be removed"),
        (
            "index remove i.safetensors words.txt",
            1,
            "ids are strings, such as 'a', and those of the index are integers",
        ),
        ("index search m.safetensors q.npy", 1, "m.safetensors"),
        ("index search i.safetensors q.npy --allowed missing.txt", 1, "missing.txt"),
        ("index search none.safetensors q.npy --recall 3", 1, "keeps no vectors"),
        ("index search i.safetensors q.npy -o q.npz --vector-column v", 1, "q.npy"),
        ("index", 2, ""),
    ],
)
def test_what_cannot_be_is_one_line_and_changes_no_file(index, run, work, line, code, message):
    (work / "gone.txt").write_text("9999\n")
    (work / "words.txt").write_text("a\nb\n")
    np.save("nan.npy", np.where(np.arange(64) == 5, np.nan, BASE))
    scq.VectorIndex(BASE, n_bits=8, keep_vectors=False, random_state=0).save("none.safetensors")
    before = files(work)
    found, out, err = run(f"{line} -q" if line != "index" else line)
    assert found == code, err
    assert message in err
    assert out == "" or line == "index"
    assert files(work) == before
