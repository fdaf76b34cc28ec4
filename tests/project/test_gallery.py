"""The worked examples of docs/gallery: each runs as a script, draws what its name promises and leaves no file."""

import re
import runpy
import tempfile
from pathlib import Path

import pytest
from threadpoolctl import threadpool_limits

matplotlib = pytest.importorskip("matplotlib", reason="the examples draw with matplotlib")
pytest.importorskip("pandas", reason="the examples show data frames")
matplotlib.use("agg")

import matplotlib.pyplot as plt  # noqa: E402

DOCS = Path(__file__).parents[2] / "docs"
GALLERY = DOCS / "gallery"
EXAMPLES = sorted(GALLERY.rglob("*.py"))


def files_of(*folders):
    """Every file below the folders and when it was last written, compiled Python left out."""
    found = (path for folder in folders for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {path: path.stat().st_mtime_ns for path in found if path.is_file()}


def run(path):
    """Run a script as a reader would; its figures, drawn."""
    plt.close("all")
    with threadpool_limits(1):  # BLAS threads that spin on a busy machine take far longer than one
        runpy.run_path(str(path), run_name="__main__")
    figures = [plt.figure(number) for number in plt.get_fignums()]
    for figure in figures:
        figure.canvas.draw()  # what cannot be drawn, such as a letter the font lacks, warns here
    return figures


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    """An empty folder to work in, temporary files included."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    plt.close("all")


def test_there_are_examples_and_the_build_runs_them_all():
    settings = runpy.run_path(str(DOCS / "conf.py"))["sphinx_gallery_conf"]
    assert len(EXAMPLES) >= 6
    assert DOCS / settings["examples_dirs"] == GALLERY
    assert [path.name for path in EXAMPLES if not re.search(settings["filename_pattern"], str(path))] == []
    assert settings["abort_on_example_error"]
    assert settings["run_stale_examples"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, workshop, capsys):
    before = files_of(GALLERY)
    figures = run(path)
    if path.name.startswith("plot_"):
        assert figures
        assert all(any(ax.has_data() for ax in figure.axes) for figure in figures)
    printed = capsys.readouterr().out
    assert printed.strip()
    assert "nan" not in printed.lower().split()
    assert files_of(GALLERY) == before
    assert list(workshop.iterdir()) == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_begins_with_a_title_and_says_what_it_is_about(path):
    title, rule, blank, *rest = compile(path.read_text(encoding="utf-8"), path, "exec").co_consts[0].strip().split("\n")
    assert rule == "=" * len(title)
    assert blank == ""
    assert "".join(rest).endswith(".")


def test_faults_of_an_example_are_seen(workshop):
    script = workshop / "plot_fault.py"
    script.write_text('import warnings\nwarnings.warn("a fault")\n')
    with pytest.raises(UserWarning, match="a fault"):
        run(script)
    script.write_text('open("left_behind", "w").close()\n')
    assert run(script) == []
    assert "left_behind" in {path.name for path in files_of(workshop)}
