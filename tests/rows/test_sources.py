"""Files of rows: what they give is what the library that owns the format wrote."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from row_files import X, fbin, fvecs, hdf5, npy, parquet, zarr_array

import scq_gpu as scq
from scq_gpu.io import RowFileError, open_rows
from scq_gpu.rows.sources.base import ArrayRows, JoinedRows, read_ahead, recut


def agrees(source, X):
    """Shape and type beforehand, and every row, in blocks of any size, from any row, twice."""
    assert source.shape == X.shape
    assert source.dtype == X.dtype.newbyteorder("=")
    np.testing.assert_array_equal(np.asarray(source), X, strict=X.dtype.isnative)
    for size in (1, 5, len(X), 10 * len(X)):
        for first in (0, 1, len(X) // 2, len(X) - 1):
            blocks = list(source.blocks(size, first=first))
            assert all(len(block) == size for block in blocks[:-1])
            np.testing.assert_array_equal(np.concatenate(blocks), X[first:])
            assert all(block.dtype == source.dtype for block in blocks)
    assert list(source.blocks(5, first=len(X))) == []


# ---- every format against what wrote it ----


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<f2", "u1", "<i4", "?", ">f4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy(tmp_path, dtype, order):
    stored = np.asarray(X > 0 if dtype == "?" else 20 * X, dtype=dtype, order=order)
    agrees(open_rows(npy(tmp_path / "x.npy", stored)), stored)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path, save):
    save(tmp_path / "x.npz", X=X, labels=np.arange(len(X)))
    agrees(open_rows(tmp_path / "x.npz"), X)  # the only one of two dimensions
    save(tmp_path / "y.npz", X=X, Y=2 * X)
    agrees(open_rows(tmp_path / "y.npz", name="Y"), 2 * X)


@pytest.mark.parametrize(("ending", "dtype"), [(".fbin", "<f4"), (".u8bin", "u1"), (".i8bin", "i1")])
def test_bin(tmp_path, ending, dtype):
    stored = (100 * X).astype(dtype) if dtype == "<f4" else (20 * np.abs(X)).astype(dtype)
    agrees(open_rows(fbin(tmp_path / f"x{ending}", stored, dtype)), stored)


@pytest.mark.parametrize(("ending", "dtype"), [(".fvecs", "<f4"), (".bvecs", "u1")])
def test_vecs(tmp_path, ending, dtype):
    stored = X.astype(dtype) if dtype == "<f4" else (20 * np.abs(X)).astype(dtype)
    agrees(open_rows(fvecs(tmp_path / f"x{ending}", stored, dtype)), stored)


def test_fvecs_as_faiss_reads_them(tmp_path):
    datasets = pytest.importorskip("faiss.contrib.vecs_io", reason="faiss is not installed")
    path = fvecs(tmp_path / "x.fvecs", X)
    agrees(open_rows(path), np.array(datasets.fvecs_read(str(path))))


@pytest.mark.parametrize("row_group_size", [1, 10, 1000])
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "u1", "i4"])
def test_parquet_fixed_size_lists(tmp_path, dtype, row_group_size):
    stored = (20 * np.abs(X)).astype(dtype)
    agrees(open_rows(parquet(tmp_path / "x.parquet", stored, row_group_size=row_group_size)), stored)


def test_parquet_lists_as_other_software_writes_them(tmp_path):
    """Parquet itself knows no lists of fixed size; the width is that of the first row, and the rest are held to it."""
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import pyarrow.parquet as pq

    for kind in (pa.list_(pa.float32()), pa.large_list(pa.float32())):
        pq.write_table(pa.table({"x": pa.array(list(X), type=kind)}), tmp_path / "x.parquet", row_group_size=20)
        agrees(open_rows(tmp_path / "x.parquet"), X)
    rows = [*list(X), X[0, :3]]
    pq.write_table(pa.table({"x": pa.array(rows, type=pa.list_(pa.float32()))}), tmp_path / "y.parquet")
    with pytest.raises(RowFileError, match=r"y\.parquet: row 103 has 3 values, the first has 7"):
        np.asarray(open_rows(tmp_path / "y.parquet"))


def test_parquet_numeric_columns(tmp_path):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    frame = pandas.DataFrame(X, columns=[f"f{k}" for k in range(7)])
    frame.to_parquet(tmp_path / "x.parquet", row_group_size=13)
    agrees(open_rows(tmp_path / "x.parquet"), X)
    agrees(open_rows(tmp_path / "x.parquet", name=["f5", "f1"]), X[:, [5, 1]])
    agrees(open_rows(tmp_path / "x.parquet", name="f3"), X[:, [3]])
    frame.assign(label="cat", n=np.arange(len(X))).to_parquet(tmp_path / "y.parquet")
    agrees(open_rows(tmp_path / "y.parquet", name=["f1", "n"]), np.stack([X[:, 1], np.arange(len(X))], axis=1))
    with pytest.raises(RowFileError, match=r"y\.parquet holds the columns 'f0' float.*'label' .*string.*say which"):
        open_rows(tmp_path / "y.parquet")
    with pytest.raises(RowFileError, match=r"name='label' does not fit"):
        open_rows(tmp_path / "y.parquet", name="label")


@pytest.mark.parametrize("missing", ["list", "value", "number"])
def test_parquet_nulls_are_named(tmp_path, missing):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import pyarrow.parquet as pq

    rows = X.tolist()
    if missing == "list":
        rows[57] = None
    elif missing == "value":
        rows[57][2] = None
    kind = pa.list_(pa.float32(), 7)
    columns = {"x": pa.array(rows, type=kind)}
    if missing == "number":
        columns = {"a": pa.array([None if k == 57 else k for k in range(103)]), "b": pa.array(range(103))}
    try:
        pq.write_table(pa.table(columns), tmp_path / "x.parquet", row_group_size=20)
    except pa.ArrowNotImplementedError as error:
        pytest.skip(f"pyarrow {pa.__version__} cannot write it: {error}")
    with pytest.raises(RowFileError, match=r"x\.parquet: (value 2 of )?row 57 is null"):
        np.asarray(open_rows(tmp_path / "x.parquet"))


@pytest.mark.parametrize(
    "options", [{}, {"chunks": (10, 7)}, {"chunks": (10, 3), "compression": "gzip"}, {"chunks": (103, 1)}]
)
def test_hdf5(tmp_path, options):
    path = hdf5(tmp_path / "x.h5", X, name="group/train", **options)
    agrees(open_rows(path), X)
    hdf5(path, X.astype(">f8"), name="group/test")
    agrees(open_rows(path, name="group/test"), X.astype(np.float64))
    agrees(open_rows(path, name="/group/train"), X)
    with pytest.raises(RowFileError, match=r"2 arrays of 2 dimensions.*'group/test' \(103, 7\), 'group/train'.*name="):
        open_rows(path)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("chunks", [(103, 7), (10, 7), (10, 3)])
def test_zarr(tmp_path, chunks, zarr_format):
    agrees(open_rows(zarr_array(tmp_path / "x.zarr", X, chunks=chunks, zarr_format=zarr_format)), X)
    agrees(open_rows(zarr_array(tmp_path / "unmarked", X, chunks=chunks, zarr_format=zarr_format)), X)


def test_zarr_groups_and_shards(tmp_path):
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    group = zarr.open_group(str(tmp_path / "x.zarr"), mode="w")
    group.create_array("a/train", shape=X.shape, dtype=X.dtype, chunks=(5, 7), shards=(20, 7))[:] = X
    group.create_array("labels", shape=(103,), dtype="int64")[:] = np.arange(103)
    agrees(open_rows(tmp_path / "x.zarr"), X)
    agrees(open_rows(tmp_path / "x.zarr", name="a/train"), X)
    with pytest.raises(RowFileError, match=r"no array named 'b'; it holds 'a/train' \(103, 7\), 'labels' \(103,\)"):
        open_rows(tmp_path / "x.zarr", name="b")
    with pytest.raises(RowFileError, match=r"shape \(103,\); 2 dimensions"):
        open_rows(tmp_path / "x.zarr", name="labels")
    with pytest.raises(RowFileError, match="no array named 'x'"):
        open_rows(zarr_array(tmp_path / "y.zarr", X), name="x")


# ---- folders and lists ----


def test_folder_in_natural_order(tmp_path):
    cuts = [0, 4, 5, 50, 51, 103]
    for k, part in enumerate(np.split(X, cuts[1:-1])):
        save = (npy, fvecs, fbin)[k % 3]
        save(tmp_path / f"part-{9 + k}{('.npy', '.fvecs', '.fbin')[k % 3]}", part)
    (tmp_path / "README.txt").write_text("not rows")
    (tmp_path / ".hidden.npy").write_text("not rows")
    source = open_rows(tmp_path)
    agrees(source, X)
    assert source.locate(51) == f"row 0 of {tmp_path}/part-13.fvecs (row 51 of all)"
    assert source.locate(50) == f"row 0 of {tmp_path}/part-12.npy (row 50 of all)"
    agrees(open_rows(str(tmp_path)), X)


def test_list_keeps_its_order_and_widens_the_type(tmp_path):
    a, b = npy(tmp_path / "a.npy", X), npy(tmp_path / "b.npy", X.astype(np.float64) / 3)
    agrees(open_rows([b, str(a)]), np.concatenate([X.astype(np.float64) / 3, X]))
    nested = open_rows([open_rows(a), tmp_path])
    assert nested.shape == (309, 7)


def test_unequal_widths_name_the_files(tmp_path):
    npy(tmp_path / "a.npy", X)
    npy(tmp_path / "b.npy", X[:, :5])
    with pytest.raises(ValueError, match=r"b\.npy has 5 columns, but .*a\.npy has 7"):
        open_rows(tmp_path)


def test_nothing_to_open(tmp_path):
    with pytest.raises(RowFileError, match=r"is a folder without a file of rows \(\.npy, \.npz"):
        open_rows(tmp_path)
    for path in ([], 7):
        with pytest.raises(ValueError, match="neither a path nor a list of paths"):
            open_rows(path)
    with pytest.raises(TypeError, match=r"path is an array .*encode take arrays themselves"):
        open_rows(np.zeros(3))


# ---- blocks, and reading ahead ----


@given(st.lists(st.integers(0, 12), max_size=8), st.integers(1, 15))
def test_recut(heights, size):
    rows = np.arange(2 * sum(heights)).reshape(-1, 2)
    pieces = np.split(rows, np.cumsum(heights)[:-1]) if heights else []
    blocks = list(recut(pieces, size))
    assert all(len(block) == size for block in blocks[:-1])
    assert all(0 < len(block) <= size for block in blocks)
    np.testing.assert_array_equal(np.concatenate([rows[:0], *blocks]), rows)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 15), st.data())
def test_joined_rows(heights, size, data):
    rows = np.arange(3.0 * sum(heights)).reshape(-1, 3)
    parts = np.split(rows, np.cumsum(heights)[:-1])
    joined = JoinedRows([ArrayRows(part, label=f"X[{k}]") for k, part in enumerate(parts)])
    first = data.draw(st.integers(0, len(rows) - 1))
    blocks = list(joined.blocks(size, first=first))
    assert all(len(block) == size for block in blocks[:-1])
    np.testing.assert_array_equal(np.concatenate(blocks), rows[first:])
    part = np.searchsorted(np.cumsum(heights), first, side="right")
    inside = first - sum(heights[:part])
    assert joined.locate(first) == f"row {inside} of X[{part}] (row {first} of all)"


def readers():
    return [thread for thread in threading.enumerate() if thread.name.startswith("scq-reader")]


def test_reading_ahead_is_done_elsewhere_and_bounded():
    taken = []

    def blocks():
        for k in range(10):
            taken.append((k, threading.current_thread().name))
            yield np.full((1, 1), k)

    ahead = read_ahead(blocks())
    assert next(ahead)[0, 0] == 0
    for _ in range(1000):
        if len(taken) == 3:
            break
        threading.Event().wait(0.01)
    threading.Event().wait(0.05)
    assert [k for k, _ in taken] == [0, 1, 2]  # one in use, two ahead
    assert all(name.startswith("scq-reader") for _, name in taken)
    assert [block[0, 0] for block in ahead] == list(range(1, 10))
    assert readers() == []


def test_reader_errors_come_to_the_caller_in_their_place():
    def blocks():
        yield np.zeros(1)
        yield np.ones(1)
        raise OSError(5, "Input/output error")

    seen = []
    with pytest.raises(OSError, match="Input/output error"):
        seen.extend(read_ahead(blocks()))
    assert len(seen) == 2
    assert readers() == []


def test_an_abandoned_pass_ends_its_thread_and_closes_its_file(tmp_path):
    closed = []

    def blocks():
        try:
            for k in range(1000):
                yield np.full(3, k)
        finally:
            closed.append(True)

    ahead = read_ahead(blocks())
    next(ahead)
    assert len(readers()) == 1
    ahead.close()
    assert readers() == []
    assert closed == [True]


def test_a_failing_fit_leaves_no_thread(tmp_path):
    bad = X.copy()
    bad[70, 2] = np.nan
    source = open_rows(npy(tmp_path / "x.npy", bad))
    with pytest.raises(ValueError, match="NaN"):
        scq.OgE(n_bits=2).fit(source)
    assert readers() == []


def test_sources_describe_themselves(tmp_path):
    source = open_rows(npy(tmp_path / "x.npy", X))
    assert repr(source) == f"<103 x 7 float32 rows of {tmp_path}/x.npy>"
    assert np.asarray(source, dtype=np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="has to be read"):
        np.asarray(source, copy=False)
