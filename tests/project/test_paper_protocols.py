"""The paper's splits on small made-up files, and the script that runs them."""

import csv
import re
import sys
import warnings

import numpy as np
import paper_scripts
import pytest
from snippets import ROOT, blocks_of

protocols = paper_scripts.load("protocols")


def save(folder, name, as_folder, **arrays):
    if as_folder:
        (folder / name).mkdir()
        for key, x in arrays.items():
            np.save(folder / name / f"{key}.npy", x)
    else:
        np.savez(folder / f"{name}.npz", **arrays)


def numbered(n):
    """Features that tell rows apart."""
    return np.arange(2 * n, dtype=np.float32).reshape(n, 2)


def numbers(X):
    return (X[:, 0] / 2).astype(int)


def assert_partition(split, rows):
    """Every row is asked with or searched, none both, and labels go with their rows."""
    query, rest = numbers(split.X_query), numbers(split.X)
    np.testing.assert_array_equal(np.sort(np.concatenate([query, rest])), np.sort(rows))
    assert set(numbers(split.X_train)) <= set(rest)


@pytest.mark.parametrize("as_folder", [False, True])
@pytest.mark.parametrize("values", [False, True])
def test_labelme(tmp_path, as_folder, values):
    rng = np.random.default_rng(0)
    y, y_test = rng.integers(0, 12, 40), rng.integers(0, 12, 10)
    files = {"y_train": y, "y_test": y_test}
    if values:  # the class of the largest value, others may be above 0
        files = {k: 0.4 * rng.random((len(v), 12)) + 0.5 * np.eye(12)[v] for k, v in files.items()}
    save(tmp_path, "labelme", as_folder, X_train=numbered(40), X_test=numbered(10), **files)
    split = protocols.labelme(tmp_path, 0)
    np.testing.assert_array_equal(split.y, y)
    np.testing.assert_array_equal(split.y_query, y_test)
    assert split.X_train.shape == split.X.shape == (40, 2)
    assert split.X_query.shape == (10, 2)


@pytest.fixture(scope="module")
def sun(tmp_path_factory):
    """42 categories of 501 to 542 images among small ones, one of exactly 500; numbers with gaps, rows mixed."""
    folder = tmp_path_factory.mktemp("sun")
    y = np.concatenate([np.full(501 + k, 7 * k + 1) for k in range(42)] + [np.full(500, 3), np.full(40, 900)])
    y = np.random.default_rng(0).permutation(y)
    np.savez(folder / "sun397.npz", X=numbered(len(y)), y=y)
    return folder, y


def test_sun397(sun):
    folder, y = sun
    split = protocols.sun397(folder, 0)
    categories, counts = np.unique(split.y_query, return_counts=True)
    np.testing.assert_array_equal(categories, 7 * np.arange(42) + 1)
    assert set(counts) == {100}
    np.testing.assert_array_equal(np.unique(split.y, return_counts=True)[1], 401 + np.arange(42))
    np.testing.assert_array_equal(y[numbers(split.X_query)], split.y_query)
    np.testing.assert_array_equal(y[numbers(split.X)], split.y)
    assert_partition(split, np.flatnonzero((y != 3) & (y != 900)))
    same, other = protocols.sun397(folder, 0), protocols.sun397(folder, 1)
    np.testing.assert_array_equal(same.X_query, split.X_query)
    assert not np.array_equal(other.X_query, split.X_query)


def test_sun397_needs_all_large_categories(tmp_path):
    np.savez(tmp_path / "sun397.npz", X=numbered(1202), y=np.arange(1202) % 2)
    with pytest.raises(ValueError, match=r"2 categories have more than 500 images; the paper's subset has 42"):
        protocols.sun397(tmp_path, 0)


def test_nuswide(tmp_path):
    """25 concepts, of which 21 are frequent; images of only rare ones, and of none, are dropped."""
    rng = np.random.default_rng(0)
    Y = np.zeros((34000, 25), dtype=np.uint8)
    frequent = np.delete(np.arange(25), [0, 5, 9, 24])
    first = rng.permutation(np.repeat(frequent, 1400))
    Y[np.arange(len(first)), first] = 1
    extra = rng.integers(0, len(first), 8000)
    Y[extra, rng.choice(frequent, 8000)] = 1
    Y[len(first) : len(first) + 300, 0] = 1
    Y[:50, 24] = 1  # a rare concept beside a frequent one stays
    np.savez(tmp_path / "nuswide.npz", X=numbered(len(Y)), Y=Y)
    split = protocols.nuswide(tmp_path, 3)
    assert split.y.shape[1] == 21
    assert split.X_query.shape == (2100, 2)
    assert split.X_train.shape == (21000, 2)
    assert (split.y_query.sum(axis=0) >= 100).all()
    assert_partition(split, np.arange(len(first)))
    np.testing.assert_array_equal(Y[numbers(split.X)][:, frequent], split.y)
    np.testing.assert_array_equal(Y[numbers(split.X_query)][:, frequent], split.y_query)
    train = Y[numbers(split.X_train)][:, frequent]
    assert (train.sum(axis=0) >= 1000).all()
    assert len(np.unique(numbers(split.X_train))) == 21000


def test_nuswide_needs_its_concepts(tmp_path):
    np.savez(tmp_path / "nuswide.npz", X=numbered(9), Y=np.ones((9, 20)))
    with pytest.raises(ValueError, match=r"\(9, 20\)"):
        protocols.nuswide(tmp_path, 0)


def test_draw_lets_the_rarest_choose_first():
    member = np.zeros((12, 2), dtype=bool)
    member[:, 0] = True
    member[:3, 1] = True  # were class 0 to draw first, it would mostly take one of these
    for seed in range(20):
        drawn = protocols._draw(member, 3, np.random.default_rng(seed))
        assert len(drawn) == 6
        assert set(drawn) >= {0, 1, 2}
    with pytest.raises(ValueError, match="class 1 has 3 rows left to draw 4 from"):
        protocols._draw(member, 4, np.random.default_rng(0))


@pytest.mark.parametrize("as_folder", [False, True])
def test_missing_and_wrong_files(tmp_path, as_folder):
    with pytest.raises(FileNotFoundError, match=r"labelme\.npz.*says what to put there"):
        protocols.labelme(tmp_path, 0)
    save(tmp_path, "labelme", as_folder, X_train=numbered(4), y_train=np.zeros(4), X_test=numbered(2))
    with pytest.raises(ValueError, match="labelme lacks the arrays y_test"):
        protocols.labelme(tmp_path, 0)
    save(tmp_path, "sun397", as_folder, X=numbered(5), y=np.zeros(4))
    with pytest.raises(ValueError, match="X has 5 rows and y has 4"):
        protocols.sun397(tmp_path, 0)


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    """A made-up cifar10_efflite0.npz: classes that can be told apart."""
    folder = tmp_path_factory.mktemp("cifar")
    rng = np.random.default_rng(0)
    centres = rng.integers(40, 200, (10, 24))
    arrays = {"feature_scale": np.full(24, 0.5, dtype=np.float32)}
    for part, n in (("train", 1200), ("test", 50)):
        y = rng.permutation(np.arange(n) % 10).astype(np.uint8)
        arrays |= {f"X_{part}": (centres[y] + rng.integers(-40, 40, (n, 24))).astype(np.uint8), f"y_{part}": y}
    np.savez(folder / "cifar10_efflite0.npz", **arrays)
    return folder


def test_cifar10(cifar):
    split = protocols.cifar10(cifar, 0)
    assert split.X.shape == split.X_train.shape == (1200, 24)
    assert split.X_query.shape == (50, 24)
    split = protocols.cifar10_validation(cifar, 0)
    assert split.X_query.shape == (200, 24)
    assert split.X.shape == (1000, 24)
    assert set(np.bincount(split.y_query)) == {20}
    again, other = protocols.cifar10_validation(cifar, 0), protocols.cifar10_validation(cifar, 1)
    np.testing.assert_array_equal(again.X_query, split.X_query)
    assert not np.array_equal(other.X_query, split.X_query)


@pytest.fixture
def run(cifar, tmp_path, monkeypatch, capsys):
    """Call the script with options; what it printed."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    script = paper_scripts.load("state_of_the_art")

    def call(*options):
        monkeypatch.setattr(sys, "argv", ["x", f"--data={cifar}", f"--output={tmp_path}", "--threads=1", *options])
        with warnings.catch_warnings():
            script.main()
        return capsys.readouterr().out

    return call


def test_state_of_the_art_resumes(run, tmp_path):
    """Rows that are there are kept, not run again; what nothing is drawn for runs once."""
    run("--methods", "LSH", "PCAH", "--bits", "8", "--runs", "1")
    path = tmp_path / "state_of_the_art.csv"
    path.write_text(re.sub(r"PCAH,8,0,1200,[^,]*", "PCAH,8,0,1200,12.3456", path.read_text()))
    printed = run("--methods", "LSH", "PCAH", "ITQ", "--bits", "8", "--runs", "2")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    found = [(row["method"], row["seed"]) for row in rows]
    assert found == [("LSH", "0"), ("PCAH", "0"), ("ITQ", "0"), ("LSH", "1"), ("ITQ", "1")]
    assert rows[1]["mAP"] == "12.3456"
    assert "PCAH" not in printed
    page = (tmp_path / "state_of_the_art.md").read_text()
    assert "--bits 8 --runs 2" in page
    assert "| PCAH | 12.35 |" in page
    itq = [float(row["mAP"]) for row in rows if row["method"] == "ITQ"]
    assert f"| ITQ | {np.mean(itq):.2f} ± {np.std(itq, ddof=1):.2f} (24.75) |" in page
    assert (tmp_path / "state_of_the_art.png").stat().st_size > 10_000


def test_state_of_the_art_keeps_row_counts_apart(run, tmp_path):
    """A quick look at few rows does not pass for the whole."""
    run("--methods", "LSH", "--bits", "8", "--runs", "1", "--rows", "1050")
    run("--methods", "LSH", "--bits", "8", "--runs", "1")
    with (tmp_path / "state_of_the_art.csv").open() as file:
        assert [row["rows"] for row in csv.DictReader(file)] == ["1050", "1200"]
    run("--methods", "PCAH", "--bits", "8", "--runs", "1", "--fresh")
    with (tmp_path / "state_of_the_art.csv").open() as file:
        assert [(row["method"], row["rows"]) for row in csv.DictReader(file)] == [("PCAH", "1200")]
    assert "1,200 rows" in (tmp_path / "state_of_the_art.md").read_text()


# --methods, and your own


def methods_found(text):
    return paper_scripts.load("methods").find_methods(text)


def test_methods_by_name_by_family_and_in_a_list():
    assert methods_found("OgE, joint") == ["OgE, joint"]
    assert methods_found("OgE") == ["OgE, columnwise", "OgE, scale as in the authors' script", "OgE, joint"]
    assert methods_found("KMH") == ["KMH, b = 2", "KMH, b = 4", "KMH, b = 8"]
    assert methods_found("ITQ,OnE,ITQ") == ["ITQ", "OnE, columnwise", "OnE, joint"]
    with pytest.raises(Exception, match=r"'oge' is no method; there are 'LSH', .* the families LSH, .*file\.py:Class"):
        methods_found("ITQ,oge")


def test_own_method_of_the_documentation_is_in_the_table(run, tmp_path, monkeypatch):
    """The file that docs/metrics.md shows, through the script as the page calls it."""
    monkeypatch.chdir(tmp_path)
    (block,) = (b for b in blocks_of(ROOT / "docs" / "metrics.md") if b.code.startswith("# median_pca.py"))
    (tmp_path / "median_pca.py").write_text(block.code)
    printed = run("--methods", "median_pca.py:MedianPCA", "LSH", "--bits", "8", "--runs", "2", "--pdf")
    assert printed.count("MedianPCA") == 2  # it takes a seed, so it runs twice
    page = (tmp_path / "state_of_the_art.md").read_text()
    assert re.search(r"^\| MedianPCA \| [\d.]+ ± [\d.]+ \|", page, re.MULTILINE)
    pdf = (tmp_path / "state_of_the_art.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    (box,) = re.findall(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+) ?\]", pdf)
    assert abs(float(box[0]) / 72 - 7.0) < 0.01  # three panels: as wide as the page
    assert b"/FontFile2" in pdf  # fonts are embedded as TrueType


@pytest.mark.parametrize(
    ("text", "message"), [("none.py:X", "none.py is not a file"), ("some.py:X", "some.py has no X")]
)
def test_own_methods_that_are_not_there_are_named(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some.py").write_text("")
    with pytest.raises(Exception, match=message):
        methods_found(text)
