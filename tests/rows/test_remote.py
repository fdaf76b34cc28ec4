"""Rows behind URLs: every format that streams from fsspec's memory, some from a web server; patterns and folders."""

import functools
import http.server
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
from row_files import X, fbin, fvecs, hdf5, npy, parquet

import scq_gpu as scq
from scq_gpu.rows.sources.locations import Remote, is_url

fsspec = pytest.importorskip("fsspec")


def npz(path, X):
    np.savez_compressed(path, x=X)
    return path


def arrow(path, X):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table = pa.table({f"c{j}": X[:, j] for j in range(X.shape[1])})
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table, max_chunksize=10)
    return path


FORMATS = {
    "x.npy": npy,
    "x.npz": npz,
    "x.fbin": fbin,
    "x.fvecs": fvecs,
    "x.parquet": functools.partial(parquet, row_group_size=20),
    "x.arrow": arrow,
    "x.h5": hdf5,
}


@pytest.fixture
def memory():
    fs = fsspec.filesystem("memory")
    yield fs
    fs.rm("/", recursive=True)


class Ranges(http.server.SimpleHTTPRequestHandler):
    """Files of a folder, in parts where a client asks for parts."""

    asked: list = []  # noqa: RUF012

    def do_GET(self):
        content = (self.server.folder / self.path.lstrip("/").partition("?")[0]).read_bytes()
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        lo, hi = (int(wanted[1]), min(int(wanted[2]) + 1, len(content))) if wanted else (0, len(content))
        self.asked.append((lo, hi))
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(hi - lo))
        self.send_header("Content-Range", f"bytes {lo}-{hi - 1}/{len(content)}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[lo:hi])

    def do_HEAD(self):
        try:
            content = (self.server.folder / self.path.lstrip("/").partition("?")[0]).read_bytes()
        except FileNotFoundError:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{hash(content)}"')
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path):
    pytest.importorskip("aiohttp", reason="fsspec reads from web servers with aiohttp")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ranges) as server:
        server.folder = tmp_path
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_streams_from_memory(memory, tmp_path, name):
    memory.pipe(f"/data/{name}", FORMATS[name](tmp_path / name, X).read_bytes())
    rows = scq.io.open_rows(f"memory://data/{name}")
    assert rows.shape == X.shape
    np.testing.assert_array_equal(np.asarray(rows), X)
    np.testing.assert_array_equal(np.concatenate(list(rows.blocks(10, first=37))), X[37:])
    assert rows.label == f"memory://data/{name}"
    assert rows.locate(3) == f"row 3 of memory://data/{name}"


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.parquet", "x.h5"])
def test_formats_stream_from_a_web_server(server, tmp_path, name):
    FORMATS[name](tmp_path / name, X)
    rows = scq.io.open_rows(f"{server}/{name}?token=1")
    np.testing.assert_array_equal(np.asarray(rows), X)
    encoder = scq.OgE(n_bits=4, max_iter=3, tol=0, random_state=0)
    np.testing.assert_array_equal(
        encoder.fit(rows).components_, encoder.fit(scq.io.open_rows(tmp_path / name)).components_
    )


def test_a_file_on_the_web_is_read_in_parts(server, tmp_path):
    Y = np.random.default_rng(0).normal(size=(200_000, 8))  # 12.8 MB, more than fsspec reads ahead
    np.save(tmp_path / "y.npy", Y)
    Ranges.asked.clear()
    np.testing.assert_array_equal(next(scq.io.open_rows(f"{server}/y.npy").blocks(10)), Y[:10])
    assert max(hi - lo for lo, hi in Ranges.asked) < Y.nbytes / 2


def test_what_is_not_there_is_named_with_its_url(server, memory, tmp_path):
    for url in (f"{server}/nowhere.npy", "memory://nowhere.npy"):
        with pytest.raises(FileNotFoundError, match=re.escape(f"{url} does not exist")):
            scq.io.open_rows(url)
    with pytest.raises(FileNotFoundError, match=r"no file matches memory://nowhere/\*\.npy"):
        scq.io.open_rows("memory://nowhere/*.npy")
    with pytest.raises(FileNotFoundError, match="no file matches"):
        scq.io.open_rows(tmp_path / "part-*.npy")


def test_patterns_and_folders_in_natural_order(memory, tmp_path):
    parts = [X[lo : lo + 10] for lo in range(0, 100, 10)]
    for k, part in enumerate(parts, start=2):
        content = npy(tmp_path / f"part-{k}.npy", part).read_bytes()
        memory.pipe(f"/s/part-{k}.npy", content)
    memory.pipe("/s/_SUCCESS", b"")
    memory.pipe("/s/notes.txt", b"no rows")
    for where in ("memory://s", "memory://s/part-*.npy", f"{tmp_path}/part-*.npy", f"file://{tmp_path}", tmp_path):
        np.testing.assert_array_equal(np.asarray(scq.io.open_rows(where)), np.concatenate(parts))
    few = scq.io.open_rows(["memory://s/part-10.npy", f"file://{tmp_path}/part-[23].npy"])
    np.testing.assert_array_equal(np.asarray(few), np.concatenate([parts[8], parts[0], parts[1]]))
    (tmp_path / "day=10").mkdir()
    (tmp_path / "day=9").mkdir()
    npy(tmp_path / "day=10" / "a.npy", X[:3])
    npy(tmp_path / "day=9" / "b.npy", X[3:7])
    nested = np.asarray(scq.io.open_rows(f"{tmp_path}/day=*/*.npy"))
    np.testing.assert_array_equal(nested, np.concatenate([X[3:7], X[:3]]))
    (tmp_path / "odd[1].npy").write_bytes(
        (tmp_path / "part-2.npy").read_bytes()
    )  # a name, though it looks like a pattern
    np.testing.assert_array_equal(np.asarray(scq.io.open_rows(tmp_path / "odd[1].npy")), parts[0])


def test_a_file_that_changes_is_refused(memory, server, tmp_path):
    memory.pipe("/x.npy", npy(tmp_path / "x.npy", X).read_bytes())
    for url, change in (
        ("memory://x.npy", lambda: memory.pipe("/x.npy", npy(tmp_path / "z.npy", X[:50]).read_bytes())),
        (f"{server}/x.npy", lambda: npy(tmp_path / "x.npy", X + 1)),
    ):
        rows = scq.io.open_rows(url)
        assert len(list(rows.blocks(10))) == 11
        change()
        with pytest.raises(scq.io.RowFileError, match="changed while it was in use"):
            list(rows.blocks(10))


def test_encode_file_from_a_url(memory, tmp_path):
    memory.pipe("/x.npy", npy(tmp_path / "x.npy", X).read_bytes())
    encoder = scq.OgE(n_bits=4, max_iter=3, tol=0, random_state=0).fit(X)
    out = scq.encode_file(encoder, "memory://x.npy", tmp_path / "c.npy", block_rows=10, progress=False)
    np.testing.assert_array_equal(np.load(out), encoder.encode(X))
    for url in ("s3://bucket/c.npy", "memory://c.npy"):
        with pytest.raises(ValueError, match=f"out='{url}' is a URL; codes are written to a local file"):
            scq.encode_file(encoder, "memory://x.npy", url, progress=False)


def test_zarr_behind_a_url_is_refused_and_vectors_are_read(memory, tmp_path):
    memory.pipe("/x.zarr/zarr.json", b"{}")
    with pytest.raises(scq.io.RowFileError, match="read from local folders alone; copy it first"):
        scq.io.open_rows("memory://x.zarr")
    memory.pipe("/x.npy", npy(tmp_path / "x.npy", X).read_bytes())
    for keep_vectors in (True, False):
        index = scq.VectorIndex("memory://x.npy", 8, keep_vectors=keep_vectors, random_state=0)
        assert len(index) == len(X)
        assert ("in memory" in repr(index)) == keep_vectors


@pytest.mark.parametrize(
    ("text", "url"),
    [("s3://a/b", True), ("simplecache::s3://a/b", True), ("C://a", False), ("a/b.npy", False), ("x:y", False)],
)
def test_what_a_url_is(text, url):
    assert is_url(text) is url


def test_what_is_missing_is_said(monkeypatch):
    """A driver, or fsspec itself; and never a path with a slash too few."""
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(ImportError, match=r"reading s3://b/x\.npy needs a driver .* pip install s3fs"):
        Remote("s3://b/x.npy")
    with pytest.raises(ValueError, match="nosuch://b is a URL that cannot be opened"):
        Remote("nosuch://b")
    script = """
        import sys
        sys.modules["fsspec"] = None
        import scq_gpu as scq
        try:
            scq.io.open_rows("s3://bucket/x.npy")
        except ImportError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(line[8:] for line in script.splitlines())],
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.match(r'reading s3://bucket/x\.npy needs fsspec.*: pip install "scq-gpu\[remote\]"', done.stdout)
