"""Every block of code in the documentation runs, in order, in a folder of its own; or says why it is not run."""

import importlib.util
import re
import tomllib

import numpy as np
import pytest
from sklearn.datasets import load_digits
from snippets import ROOT, blocks_of, run_blocks, skip_if_missing

import scq_gpu as scq

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if not {"_build", "auto_gallery"} & set(page.parts)),
]
ELSEWHERE = {
    "docs/cli.md": "docs/make_cli.py runs its commands and writes what they print",
    "docs/distributed.md": "tests/rows/test_distributed.py runs its sessions; Ray, Spark and several GPUs are not here",
    "docs/databases/pgvector.md": "tests/io/test_interchange_postgres.py runs it against a server",
}
OPTIONAL = {"torch", "sentence_transformers", "usearch", "qdrant_client", "lancedb", "faiss", "pyarrow"} | {
    *("onnx", "onnxruntime", "polars", "matplotlib", "array_api_strict", "h5py", "zarr", "dask", "typer")
}


def name_of(page):
    return str(page.relative_to(ROOT))


def runnable(page):
    return [block for block in blocks_of(page) if block.reason is None]


def given(folder):
    """What pages take for granted: digits, an encoder fitted to them, and files of vectors."""
    X, y = load_digits(return_X_y=True)
    X = X.astype(np.float32)
    encoder = scq.OgE(n_bits=32, random_state=0).fit(X[:1500])
    rng = np.random.default_rng(0)
    vectors = (rng.standard_normal((1200, 40)) @ rng.standard_normal((40, 160))).astype(np.float32)
    vectors += rng.standard_normal(vectors.shape).astype(np.float32)
    np.save(folder / "vectors.npy", vectors[:1100])
    np.save(folder / "queries.npy", vectors[1100:])
    return {
        "__name__": "__main__",
        "scq": scq,
        "np": np,
        "X": X[:1500],
        "X_train": X[:1500],
        "X_database": X[:1500],
        "X_query": X[1500:],
        "queries": X[1500:],
        "y_train": y[:1500],
        "y_query": y[1500:],
        "database_labels": y[:1500],
        "query_labels": y[1500:],
        "encoder": encoder,
        "codes": encoder.encode(X[:1500]),
        "query_codes": encoder.encode(X[1500:]),
        "database_codes": encoder.encode(X[:1500]),
    }


@pytest.mark.parametrize(
    "page", [page for page in PAGES if runnable(page) and name_of(page) not in ELSEWHERE], ids=name_of
)
def test_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if importlib.util.find_spec("matplotlib"):
        import matplotlib as mpl

        mpl.use("agg")
    skip_if_missing(run_blocks(page, tmp_path, given(tmp_path), optional=OPTIONAL))


def test_pages_that_are_run_elsewhere_exist():
    assert [page for page in ELSEWHERE if not blocks_of(ROOT / page)] == []


def test_a_block_that_fails_fails(tmp_path):
    """The runner itself: an exception, a difference in output and a command that fails are all seen."""
    page = ROOT / "docs" / "of_a_test.md"
    for text in ("```python\n1 / 0\n```", "```pycon\n>>> 1 + 1\n3\n\n```", "```console\nfalse\n```"):
        path = tmp_path / page.name
        path.write_text(text + "\n")
        with pytest.raises((ZeroDivisionError, AssertionError)):
            run_blocks_of_copy(path, tmp_path)
    path.write_text("<!-- not run: a reason -->\n```python\n1 / 0\n```\n")
    assert run_blocks_of_copy(path, tmp_path) == []


def run_blocks_of_copy(path, folder):
    import snippets

    old, snippets.ROOT = snippets.ROOT, folder
    try:
        return run_blocks(path, folder, {})
    finally:
        snippets.ROOT = old


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_install_lines_work_from_a_clone(page):
    """There is no release: installing by the package's name fails, and an unknown extra installs nothing."""
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r"pip install [^\n`]*\bscq[-_]gpu", text)
    with open(ROOT / "pyproject.toml", "rb") as file:
        extras = set(tomllib.load(file)["project"]["optional-dependencies"])
    for names in re.findall(r"pip install [^\n`]*\"?\.\[([\w,-]+)\]", text):
        assert set(names.split(",")) <= extras
