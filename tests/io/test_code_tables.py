"""Codes as Parquet and Arrow tables, with the ids of their rows, read back by pyarrow alone."""

import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import scq_gpu as scq
from scq_gpu.io import code_tables

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

N, D = 4000, 24
X = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)
WORDS = [f"doc/{i * 7919 % 10007:05d}" for i in range(N)]
ENDINGS = [".parquet", ".arrow", ".feather"]


@pytest.fixture(scope="module")
def encoder():
    return scq.OgE(n_bits=20, max_iter=5, tol=0, random_state=0).fit(X)


def vectors(rows):
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), D)


def write(path, table, **options):
    if path.suffix == ".parquet":
        pq.write_table(table, path, **options)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table, max_chunksize=options.get("row_group_size", 1000))


def read(path):
    """By pyarrow alone: columns, and bytes of codes."""
    table = pq.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_file(path).read_all()
    codes = table.column("code").to_pylist()
    assert {len(code) for code in codes} <= {3}
    return table, np.frombuffer(b"".join(codes), dtype=np.uint8).reshape(-1, 3)


@pytest.fixture
def shards(tmp_path):
    """Eight shards of unequal height, in both formats, with integer and string ids."""
    folder = tmp_path / "shards"
    folder.mkdir()
    cuts = [0, 100, 700, 701, 1500, 2000, 2900, 3500, N]
    for k, (lo, hi) in enumerate(itertools.pairwise(cuts)):
        table = pa.table({"key": np.arange(lo, hi) * 3, "name": WORDS[lo:hi], "x": vectors(X[lo:hi])})
        write(folder / f"part-{k}{'.parquet' if k % 2 else '.arrow'}", table, row_group_size=64)
    return folder


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("column", [None, "key", "name"])
def test_ids_stand_beside_their_codes(encoder, shards, tmp_path, ending, column, monkeypatch):
    monkeypatch.setattr(code_tables, "_BATCH", 170)  # many batches, that end where no shard does
    out = scq.encode_file(encoder, shards, tmp_path / f"c{ending}", id_column=column, block_rows=333, progress=False)
    table, codes = read(out)
    np.testing.assert_array_equal(codes, encoder.encode(X))
    assert table.column_names == [*([column] if column else []), "code"]
    assert table.schema.metadata[b"scq_gpu.n_bits"] == b"20"
    expected = {"key": (np.arange(N) * 3).tolist(), "name": WORDS, None: None}[column]
    if column:
        assert table.column(column).to_pylist() == expected
    codes, ids = scq.io.read_codes(out)
    np.testing.assert_array_equal(codes, encoder.encode(X))
    assert (None if ids is None else ids.tolist()) == expected
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"c{ending}", "shards"]
    if column:
        index = scq.HammingIndex(codes, 20, ids=ids)
        assert index.search(codes[5:6], 1)[0] == 0


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("on_invalid", ["skip", "zero"])
def test_ids_of_rows_left_out_are_left_out(encoder, tmp_path, ending, on_invalid):
    bad = [0, 5, 999, 1000, 3999]
    Y = X.copy()
    Y[bad, 3] = np.nan
    path = tmp_path / "x.parquet"
    write(path, pa.table({"name": WORDS, "x": vectors(Y)}), row_group_size=500)
    with pytest.warns(UserWarning, match="NaN or inf"):
        out = scq.encode_file(
            encoder, path, tmp_path / f"c{ending}", id_column="name", on_invalid=on_invalid, progress=False
        )
    table, codes = read(out)
    kept = np.delete(np.arange(N), bad) if on_invalid == "skip" else np.arange(N)
    assert table.column("name").to_pylist() == [WORDS[i] for i in kept]
    expected = encoder.encode(X)
    expected[bad] = 0
    np.testing.assert_array_equal(codes, expected[kept])


@pytest.mark.parametrize("ending", ENDINGS)
def test_it_goes_on_and_the_file_is_the_same(encoder, shards, tmp_path, ending):
    """Stopped in the middle of the codes, and of the table: byte for byte the same."""
    whole = scq.encode_file(encoder, shards, tmp_path / f"a{ending}", id_column="name", progress=False).read_bytes()
    out = tmp_path / f"c{ending}"
    script = f"""
        import os, signal, sys
        import scq_gpu as scq
        from scq_gpu.io import code_files, code_tables
        when, count = sys.argv[1], 0
        def die(*args, **options):
            global count
            count += 1
            if count == 2 or when == "table":
                os.kill(os.getpid(), signal.SIGKILL)
        if when == "codes":
            append = code_files._Partial.append
            code_files._Partial.append = lambda self, *args: (append(self, *args), self._save(), die())
        else:
            code_tables._in_batches = die
        scq.encode_file(scq.load({str(tmp_path / "m.safetensors")!r}), {str(shards)!r}, {str(out)!r}, id_column="name",
                        progress=False, block_rows=500)
    """
    encoder.save(tmp_path / "m.safetensors")
    for when in ("codes", "table"):
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(script), when], env=os.environ, check=False)
        assert done.returncode == -signal.SIGKILL
        assert not out.exists()
        assert json.loads((tmp_path / f"c{ending}.partial.json").read_text())["done"] == (
            1000 if when == "codes" else N
        )
    scq.encode_file(encoder, shards, out, id_column="name", progress=False, block_rows=500)
    assert out.read_bytes() == whole
    left = {p.name for p in tmp_path.iterdir() if not p.name.startswith(".")}
    assert left == {f"a{ending}", f"c{ending}", "m.safetensors", "shards"}


@pytest.mark.parametrize(
    ("column", "out", "message"),
    [
        ("nope", "c.parquet", "has no column 'nope'; it has 'key', 'name', 'when', 'gap', 'code', 'x'"),
        ("when", "c.parquet", "column 'when' is double; ids are integers or strings"),
        ("gap", "c.parquet", "row 3 has no 'gap'"),
        ("key", "c.npy", "needs a table for the ids, which .npy is not"),
        ("code", "c.arrow", "name of the column of codes"),
    ],
)
def test_ids_that_cannot_be_are_refused(encoder, tmp_path, column, out, message):
    columns = {"key": np.arange(50), "name": WORDS[:50], "when": np.arange(50.0)}
    columns |= {"gap": [None if i == 3 else i for i in range(50)], "code": np.arange(50), "x": vectors(X[:50])}
    write(tmp_path / "x.parquet", pa.table(columns))
    with pytest.raises(ValueError, match=message):
        scq.encode_file(encoder, tmp_path / "x.parquet", tmp_path / out, id_column=column, progress=False)
    assert not (tmp_path / out).exists()


def test_sources_without_columns_have_no_ids(encoder, tmp_path):
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(ValueError, match=r"x\.npy has no columns, so no ids in 'key'"):
        scq.encode_file(encoder, tmp_path / "x.npy", tmp_path / "c.parquet", id_column="key", progress=False)
    mixed = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    write(mixed[0], pa.table({"key": np.arange(9), "x": vectors(X[:9])}))
    write(mixed[1], pa.table({"key": WORDS[:9], "x": vectors(X[:9])}))
    with pytest.raises(ValueError, match=r"b\.parquet: 'key' is string, in .*a\.parquet it is int64"):
        scq.encode_file(encoder, mixed, tmp_path / "c.parquet", id_column="key", progress=False)


@pytest.mark.parametrize("kind", ["lists", "columns", "dictionary"])
def test_arrow_files_are_rows(tmp_path, kind):
    path = tmp_path / "x.arrow"
    ids = pa.array(WORDS).dictionary_encode()
    columns = {"x": vectors(X)} if kind != "columns" else {f"c{j}": X[:, j] for j in range(D)}
    write(path, pa.table(columns | ({"name": ids} if kind == "dictionary" else {})), row_group_size=300)
    rows = scq.io.open_rows(path)
    assert (rows.shape, rows.dtype) == ((N, D), np.float32)
    np.testing.assert_array_equal(np.asarray(rows), X)
    np.testing.assert_array_equal(np.concatenate(list(rows.blocks(170, first=1234))), X[1234:])
    if kind == "dictionary":
        assert pa.concat_arrays(list(rows.ids("name", 100))).to_pylist() == WORDS


def test_a_cut_arrow_file_is_refused(tmp_path):
    path = tmp_path / "x.arrow"
    write(path, pa.table({"x": vectors(X)}))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(scq.io.RowFileError, match=r"x\.arrow cannot be read as an Arrow file"):
        scq.io.open_rows(path)


@pytest.mark.parametrize("damage", ["columns", "width", "null", "ending", "none"])
def test_tables_that_hold_no_codes_are_refused(tmp_path, damage):
    path = tmp_path / ("c.txt" if damage == "ending" else "c.parquet")
    code = pa.array([b"abc", b"def"], pa.binary(3))
    if damage == "width":
        table = pa.table({"code": code}, metadata={"scq_gpu.n_bits": "99"})
    elif damage == "null":
        table = pa.table({"code": pa.array([b"abc", None], pa.binary(3))})
    else:
        table = pa.table({"text": ["a", "b"]})
    if damage == "ending":
        path.write_bytes(b"x")
    elif damage != "none":
        pq.write_table(table, path)
    with pytest.raises((ValueError, FileNotFoundError), match=r"c\.(txt|parquet)"):
        scq.io.read_codes(path)
