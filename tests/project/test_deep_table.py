"""The table of the deep peers on small made-up files, and the scale of the authors' script."""

import csv
import sys
import warnings

import numpy as np
import paper_scripts
import pytest

methods = paper_scripts.load("methods")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Made-up feature files and images of ten classes, 130 each."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    y = rng.permutation(np.arange(1300) % 10).astype(np.uint8)
    centers = rng.integers(60, 180, (10, 16))
    X = (centers[y] + rng.integers(-40, 40, (1300, 16))).astype(np.uint8)
    images = (centers[y, :3][:, None, None, :] + rng.integers(-40, 40, (1300, 8, 8, 3))).astype(np.uint8)
    for name, rows, more in (
        ("cifar10_gist512", X.astype(np.float16), {}),
        ("cifar10_efflite0", X, {"feature_scale": np.ones(16, np.float32)}),
        ("images", images, {}),
    ):
        parts = {"X_train": rows[:1100], "y_train": y[:1100], "X_test": rows[1100:], "y_test": y[1100:]}
        np.savez(folder / f"{name}.npz", **parts, **more)
    return folder


@pytest.fixture
def run(data, tmp_path, monkeypatch, capsys):
    """Call the script with options; what it printed."""
    script = paper_scripts.load("deep_table")

    def call(*options):
        monkeypatch.setattr(sys, "argv", ["x", f"--data={data}", f"--output={tmp_path}", "--threads=1", *options])
        with warnings.catch_warnings():
            script.main()
        return capsys.readouterr().out

    return call


def rows_of(folder):
    with (folder / "deep_table.csv").open() as file:
        return list(csv.DictReader(file))


def test_gist_rows_resume(run, tmp_path):
    """Rows that are there are not run again; other settings are other rows."""
    peers = ("--methods", "DH", "UH-BDNN", "OnE, columnwise", "--bits", "4")
    run(*peers, "--runs", "1", "--rounds", "1", "--lbfgs-iter", "2")
    assert [row["method"] for row in rows_of(tmp_path)] == ["DH", "UH-BDNN", "OnE, columnwise"]
    printed = run(*peers, "--runs", "2", "--rounds", "1", "--lbfgs-iter", "2")
    assert [(row["method"], row["seed"]) for row in rows_of(tmp_path)[3:]] == [
        ("DH", "1"),
        ("UH-BDNN", "1"),
        ("OnE, columnwise", "1"),
    ]
    assert printed.count("GIST") == 3
    printed = run(*peers, "--runs", "1", "--rounds", "1", "--lbfgs-iter", "3")
    assert printed.count("GIST") == 1
    assert rows_of(tmp_path)[-1]["settings"] == "1 x 3 L-BFGS iterations"
    page = (tmp_path / "deep_table.md").read_text()
    values = [float(row["mAP"]) for row in rows_of(tmp_path) if row["method"] == "DH"]
    assert f"| DH |  | 2 | {np.mean(values):.2f} ± {np.std(values, ddof=1):.2f} |" in page
    assert min(values) > 15  # ten classes: 10 by chance


@pytest.mark.filterwarnings("ignore:X .* has rank:UserWarning")
def test_images(run, data, tmp_path):
    pytest.importorskip("torch", reason="needs torch: pip install torch")
    options = ("--part", "images", "--images", f"{data / 'images.npz'}", "--bits", "6", "--runs", "1", "--epochs", "5")
    run(*options, "--rows", "200")
    rows = rows_of(tmp_path)
    assert [row["method"] for row in rows][:3] == ["BGAN", "OnE, columnwise", "OgE, columnwise"]
    assert {row["settings"] for row in rows} == {"5 epochs, 200 images"}
    assert float(rows[0]["mAP"]) > 15
    assert "images" not in run(*options, "--rows", "200").partition("wrote")[0]


def test_images_are_wanted(run, capsys):
    with pytest.raises(SystemExit):
        run("--part", "images")
    assert "--part images needs --images FILE" in capsys.readouterr().err


def test_scale_of_the_authors_script():
    """sqrt(L / lambda_1), larger than the equation's for more than one bit; nothing else differs."""
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((500, 12)) * np.linspace(3, 0.5, 12)).astype(np.float32)
    lam = np.linalg.eigvalsh(np.cov(X.T, bias=True))[::-1]
    found = methods.METHODS[methods.SCRIPT_SCALE].make(4, 0).fit(X)
    assert found.scale_ == pytest.approx(np.sqrt(4 / lam[0]), rel=1e-5)
    usual = methods.METHODS["OgE, columnwise"].make(4, 0).fit(X)
    assert usual.scale_ == pytest.approx(np.sqrt(4 / lam[:4].sum()), rel=1e-5)
    changed = {k for k, v in found.get_params().items() if v != usual.get_params()[k]}
    assert changed == {"scale"}
    assert found.scale_ > usual.scale_
