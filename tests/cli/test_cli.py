"""The command line: what it writes is what the library gives."""

import csv
import json
import re
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer", reason="the command line needs typer")
pytest.importorskip("rich", reason="the command line needs rich")

from command_line import BASE, QUERIES, Y, made, run, work
from typer.testing import CliRunner

import scq_gpu as scq
from scq_gpu.metrics.evaluation import RetrievalTask
from scq_gpu.training.starts import STARTS

__all__ = ["made", "run", "work"]  # fixtures

COMMANDS = ["fit", "sweep", "encode", "search", "index", "export", "evaluate", "report", "bench", "info", "demo"]


def test_fit_writes_the_encoder_the_library_fits(work, run):
    options = "--ridge 0.05 --components 40 --scale auto --seed 3 --max-iter 9 --tol 0"
    code, out, err = run(f"fit x.npy -o new.safetensors --bits 12 {options}")
    assert code == 0
    assert "new.safetensors" in out
    assert "fitting OgE, 12 bits, to 1,500 rows of 64 float32 features" in err
    wanted = scq.OgE(12, ridge=0.05, n_components=40, max_iter=9, tol=0, random_state=3).fit(BASE)
    fitted = scq.load("new.safetensors")
    np.testing.assert_allclose(fitted.components_, wanted.components_, rtol=1e-5, atol=1e-6)
    assert fitted.n_components == 40
    assert run("fit x.npy -o all.safetensors --components all --max-iter 2 --tol 0 --encoder OnE --restarts 2")[0] == 0
    fitted = scq.load("all.safetensors")
    assert (type(fitted), fitted.n_components, fitted.n_iter_, fitted.n_init) == (scq.OnE, None, 2, 2)
    facts = json.loads(run("fit x.npy -o new.safetensors --bits 12 --overwrite --json")[1])
    fitted = scq.load("new.safetensors")
    assert (facts["rows"], facts["n_features"], facts["bytes_per_row"]) == (1500, 64, 2)
    assert (facts["iterations"], facts["converged"]) == (fitted.n_iter_, fitted.converged_)
    assert facts["loss"] == fitted.loss_curve_[-1]


def test_every_encoder_can_be_fitted_by_name(work, run):
    from scq_gpu.cli._learn import encoders

    assert {"OgE", "OnE", "ITQ", "LSH", "PCAH", "SpH", "KMH", "BA"} <= set(encoders())
    for name in ("ITQ", "LSH", "SpH"):
        assert run(f"fit x.npy -o {name}.safetensors --encoder {name} --bits 8 -q") == (0, "", "")
        assert type(scq.load(f"{name}.safetensors")).__name__ == name


@pytest.mark.parametrize("ending", ["npy", "bin"])
def test_encode_writes_the_librarys_codes(work, run, ending):
    code, out, _ = run(f"encode m.safetensors q.npy -o new.{ending} --json")
    assert code == 0
    facts = json.loads(out)
    assert (facts["rows"], facts["n_bits"], facts["bytes_per_row"]) == (297, 20, 3)
    wanted = scq.load("m.safetensors").encode(QUERIES)
    written = np.load("new.npy") if ending == "npy" else np.fromfile("new.bin", dtype=np.uint8).reshape(-1, 3)
    np.testing.assert_array_equal(written, wanted)
    assert not list(work.glob("*.partial*"))


def _write_fbin(path):
    path.write_bytes(np.array(QUERIES.shape, dtype=np.int32).tobytes() + QUERIES.tobytes())


def _write_fvecs(path):
    width = np.full((len(QUERIES), 1), QUERIES.shape[1], dtype=np.int32)
    path.write_bytes(np.hstack([width, QUERIES.view(np.int32)]).tobytes())


def _write_parquet(path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    column = pa.FixedSizeListArray.from_arrays(pa.array(QUERIES.ravel()), QUERIES.shape[1])
    pyarrow.parquet.write_table(pa.table({"v": column}), path)


def _write_h5(path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file["rows"] = QUERIES


def _write_folder(path):
    path.mkdir()
    np.save(path / "part-2.npy", QUERIES[:200])
    np.save(path / "part-10.npy", QUERIES[200:])


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("r.fbin", _write_fbin),
        ("r.fvecs", _write_fvecs),
        ("r.npz", lambda path: np.savez(path, rows=QUERIES)),
        ("r.parquet", _write_parquet),
        ("r.h5", _write_h5),
        ("folder", _write_folder),
    ],
)
def test_rows_of_every_format(work, run, name, write):
    write(work / name)
    assert run(f"encode m.safetensors {name} -o new.npy -q")[0] == 0
    np.testing.assert_array_equal(np.load("new.npy"), scq.load("m.safetensors").encode(QUERIES))


def test_name_picks_an_array_and_several_files_are_joined(work, run):
    np.savez("two.npz", a=BASE, b=QUERIES)
    assert run("encode m.safetensors two.npz -o new.npy")[0] == 1
    assert run("encode m.safetensors two.npz --name b -o new.npy -q")[0] == 0
    assert run("encode m.safetensors x.npy q.npy -o both.npy -q")[0] == 0
    np.testing.assert_array_equal(np.load("both.npy")[1500:], np.load("new.npy"))


def by_hand(k):
    """Nearest codes from unpacked bits: distances and ids, the lowest id first."""
    encoder = scq.load("m.safetensors")
    far = (encoder.transform(QUERIES)[:, None] != encoder.transform(BASE)).sum(-1)
    ids = np.argsort(far, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(far, ids, 1), ids


def test_search_finds_what_a_search_by_hand_finds_in_every_output(work, run):
    far, ids = by_hand(7)
    facts = json.loads(run("search m.safetensors c.npy q.npy -k 7 --json")[1])
    np.testing.assert_array_equal(facts["ids"], ids)
    np.testing.assert_array_equal(facts["distances"], far)
    for ending in ("npz", "csv", "jsonl"):
        assert run(f"search m.safetensors c.npy q.npy -k 7 -o out.{ending}")[0] == 0
    with np.load("out.npz") as written:
        np.testing.assert_array_equal(written["ids"], ids)
        np.testing.assert_array_equal(written["distances"], far)
    lines = list(csv.DictReader(Path("out.csv").read_text().splitlines()))
    np.testing.assert_array_equal(np.array([int(line["id"]) for line in lines]).reshape(-1, 7), ids)
    assert [json.loads(line)["ids"] for line in Path("out.jsonl").read_text().splitlines()] == ids.tolist()
    shown = run("search m.safetensors c.npy q.npy -k 2")[1]
    assert re.search(rf"^ 0 +1 +{ids[0, 0]} +{far[0, 0]} *$", shown, re.MULTILINE), shown
    assert "287 queries more" in shown


def test_codes_without_hamming_distance_are_searched_by_floats_alone(work, run):
    encoder = scq.OPQ(16, max_iter=1, random_state=0).fit(BASE)
    encoder.save("o.safetensors")
    np.save("o.npy", encoder.encode(BASE))
    status, out, *err = run("search o.safetensors o.npy q.npy -k 7")
    assert status != 0
    assert "codes of an OPQ have no Hamming distance" in out + "".join(err)
    assert run("search o.safetensors o.npy q.npy -k 7 --asymmetric")[0] == 0


def test_search_in_parts_and_in_an_index_file(work, run, monkeypatch):
    far, ids = by_hand(3)
    scq.HammingIndex(np.load("c.npy"), 20, ids=np.arange(1500) + 7000).save("index.safetensors")
    np.load("c.npy").tofile("c.bin")
    monkeypatch.setattr("scq_gpu.cli._answers._PAIRS", 1500 * 50)
    for codes, offset in (("c.npy", 0), ("c.bin", 0), ("index.safetensors", 7000)):
        facts = json.loads(run(f"search m.safetensors {codes} q.npy -k 3 --json")[1])
        np.testing.assert_array_equal(facts["ids"], ids + offset)
        np.testing.assert_array_equal(facts["distances"], far)


def test_search_asymmetric_and_rescored(work, run):
    encoder, index = scq.load("m.safetensors"), scq.HammingIndex(np.load("c.npy"), 20)
    facts = json.loads(run("search m.safetensors c.npy q.npy -k 5 --asymmetric --json")[1])
    np.testing.assert_array_equal(facts["ids"], index.search_asymmetric(encoder, QUERIES, 5)[1])
    facts = json.loads(run("search m.safetensors c.npy q.npy -k 5 --rescore x.npy --json")[1])
    _, wide = by_hand(50)
    exact = ((BASE[wide] - QUERIES[:, None]) ** 2).sum(-1)
    np.testing.assert_allclose(facts["distances"], np.sort(exact, axis=1)[:, :5], rtol=1e-5)


def test_metric_is_that_of_the_library_on_normalized_rows(work, run):
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (BASE, QUERIES)]
    assert run("fit x.npy -o cos.safetensors --bits 20 --metric cosine -q")[0] == 0
    encoder = scq.load("cos.safetensors")
    expected = scq.OgE(20, random_state=0).fit(unit[0])
    np.testing.assert_allclose(encoder.components_, expected.components_, rtol=1e-3, atol=1e-4)
    assert run("encode cos.safetensors x.npy -o cos.npy --metric cosine --workers 2 -q")[0] == 0
    np.testing.assert_array_equal(np.load("cos.npy"), encoder.encode(unit[0]))
    index = scq.HammingIndex(np.load("cos.npy"), 20)
    for options, metric, queries in (("--metric cosine", "cosine", unit[1]), ("--metric ip", "ip", QUERIES)):
        facts = json.loads(run(f"search cos.safetensors cos.npy q.npy -k 5 {options} --asymmetric --json")[1])
        expected = index.search_asymmetric(encoder, queries, 5, metric=metric)
        np.testing.assert_allclose(facts["distances"], expected[0], rtol=1e-4, atol=1e-5)
        facts = json.loads(run(f"search cos.safetensors cos.npy q.npy -k 5 {options} --rescore x.npy --json")[1])
        wide = index.search(encoder.encode(queries), 50)[1]
        expected = scq.rescore(queries, BASE, wide, k=5, metric=metric)
        np.testing.assert_allclose(facts["distances"], expected[0], rtol=1e-4, atol=1e-5)
    code, _, error = run("search cos.safetensors cos.npy q.npy --metric dot")
    assert code == 2
    assert "--metric dot is not one of l2, cosine, ip" in error


def test_fit_skips_invalid_rows(work, run):
    rows = BASE.copy()
    rows[[4, 70]] = np.nan
    np.save("nan.npy", rows)
    code, _, error = run("fit nan.npy -o skipped.safetensors --bits 8 --on-invalid skip")
    assert code == 0
    assert "warning: 2 of 1,500 rows hold NaN or inf and were skipped: 4, 70" in error
    assert scq.load("skipped.safetensors").n_samples_ == 1498
    assert run("fit nan.npy -o n.safetensors --bits 8 --on-invalid zero")[0] == 1


FIGURES = {
    "mean_average_precision": scq.metrics.mean_average_precision,
    "precision_at_radius": scq.metrics.precision_at_radius,
    "precision_at_k": scq.metrics.precision_at_k,
}


@pytest.mark.parametrize("options", [{}, {"k": 50}, {"ap": "trapezoid", "k": 7, "radius": 3}])
def test_command_line_evaluate_and_metrics_give_the_same_figures(work, run, options):
    """From the same codes, three ways, by the same defaults; k and radius stand beside the figures they belong to."""
    line = "evaluate m.safetensors --data x.npy --labels y.npy --queries q.npy --query-labels yq.npy"
    line += "".join(f" {'-k' if name == 'k' else f'--{name}'} {value}" for name, value in options.items())
    shown = json.loads(run(f"{line} --json")[1])
    encoder = scq.load("m.safetensors")
    evaluated = scq.evaluate(encoder, QUERIES, BASE, Y[1500:], Y[:1500], **options).as_dict()
    assert (shown["k"], shown["radius"]) == (evaluated["k"], evaluated["radius"])
    assert (shown["k"], shown["radius"]) == (options.get("k", 1000), options.get("radius", 2))
    given = {
        "mean_average_precision": {key: value for key, value in options.items() if key == "ap"},
        "precision_at_radius": {"radius": shown["radius"]},  # metrics ask for these two
        "precision_at_k": {"k": shown["k"]},
    }
    for name, metric in FIGURES.items():
        alone = metric(encoder.encode(QUERIES), encoder.encode(BASE), Y[1500:], Y[:1500], **given[name])
        assert shown[name] == evaluated[name] == alone, name
    table = run(line)[1]
    assert re.search(rf"precision at k +{shown['precision_at_k']:.4f}\s+k +{shown['k']:,}\s", table)
    assert re.search(rf"precision at radius +{shown['precision_at_radius']:.4f}\s+radius +{shown['radius']}\s", table)


def test_evaluate_without_labels_measures_recall_of_the_nearest_rows(work, run):
    facts = json.loads(run("evaluate m.safetensors --data x.npy --json --n-queries 50 --seed 4")[1])
    wanted = RetrievalTask(BASE, n_queries=50, random_state=4).measure(scq.load("m.safetensors"))
    assert wanted == {name: facts[name] for name in wanted}
    assert {"recall_10_at_10", "asymmetric_10_at_10", "rescored_4x", "rescored_16x"} <= set(wanted)


def test_labels_may_be_words_or_columns(work, run):
    words = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
    Path("y.txt").write_text("".join(f"{w}\n" for w in words[Y[:1500]]))
    Path("yq.csv").write_text("".join(f"{w}\r\n" for w in words[Y[1500:]]))
    np.save("many.npy", np.eye(10, dtype=int)[Y[:1500]])
    np.save("manyq.npy", np.eye(10, dtype=int)[Y[1500:]])
    line = "evaluate m.safetensors --data x.npy --queries q.npy --json"
    results = [
        json.loads(run(f"{line} --labels {y} --query-labels {yq}")[1])["mean_average_precision"]
        for y, yq in (("y.npy", "yq.npy"), ("y.txt", "yq.csv"), ("many.npy", "manyq.npy"))
    ]
    assert results[0] == results[1] == results[2]


def test_sweep_recommends_the_fewest_bits_that_are_nearly_as_good(work, run):
    line = "sweep x.npy --labels y.npy --queries q.npy --query-labels yq.npy --bits 16,4,8 --encoder OgE --encoder LSH"
    code, out, _ = run(f"{line} --json -o table.csv --plot bits.png")
    facts = json.loads(out)
    assert code == 0
    assert [(row["encoder"], row["n_bits"]) for row in facts["results"]] == [
        (name, bits) for name in ("OgE", "LSH") for bits in (4, 8, 16)
    ]
    task = RetrievalTask(BASE, Y[:1500], X_query=QUERIES, query_labels=Y[1500:])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whether it settles is not the question here
        alone = task.measure(scq.OgE(8, random_state=0).fit(BASE))["mean_average_precision"]
    assert facts["results"][1]["mean_average_precision"] == pytest.approx(alone, abs=0.02)
    best = max(row["mean_average_precision"] for row in facts["results"])
    enough = [row for row in facts["results"] if row["mean_average_precision"] >= 0.95 * best]
    assert facts["recommended"]["n_bits"] == min(row["n_bits"] for row in enough)
    assert len(Path("table.csv").read_text().splitlines()) == 7
    assert Path("bits.png").read_bytes().startswith(b"\x89PNG")
    shown = run("sweep x.npy -q")[1]
    assert "Recommended: OgE with" in shown
    assert re.findall(r"^ OgE +(\d+)", shown, re.MULTILINE) == ["8", "16", "32"]


def test_codes_of_cells_are_measured_by_float_queries(work, run):
    code, out, _ = run("sweep x.npy --bits 8,16 --encoder OPQ --encoder OgE --json -o cells.csv")
    rows = json.loads(out)["results"]
    assert code == 0
    assert [row["recall_10_at_10"] is None for row in rows] == [True, True, False, False]
    assert rows[1]["asymmetric_10_at_10"] > rows[0]["asymmetric_10_at_10"] > 0
    assert json.loads(out)["metric"] == "asymmetric_10_at_10"
    assert run("fit x.npy --encoder OPQ --bits 16 -o cells.safetensors -q")[0] == 0
    code, out, _ = run("evaluate cells.safetensors --data x.npy --json")
    assert code == 0
    assert "recall_10_at_10" not in json.loads(out)
    assert 0 < json.loads(out)["asymmetric_10_at_10"] <= json.loads(out)["rescored_16x"]
    code, out, err = run("evaluate cells.safetensors --data x.npy --labels y.npy")
    assert code != 0
    assert "codes of OPQ have no Hamming distance" in out + "".join(err)


def test_recommendation_goes_by_the_rule():
    from scq_gpu.cli._learn import _recommend

    table = [
        {"encoder": "A", "n_bits": bits, "bytes": bits // 8, "f": f} for bits, f in ((8, 0.5), (16, 0.76), (32, 0.8))
    ]
    assert _recommend(table, "f")["recommended"] == {"encoder": "A", "n_bits": 16}
    table[1]["f"] = 0.75
    assert _recommend(table, "f")["recommended"] == {"encoder": "A", "n_bits": 32}


def test_export_of_models_is_what_other_libraries_read(work, run):
    onnxruntime, faiss = pytest.importorskip("onnxruntime"), pytest.importorskip("faiss")
    assert run("export m.safetensors --to onnx -o m.onnx")[0] == 0
    assert run("export m.safetensors --to faiss -o m.index")[0] == 0
    wanted = scq.load("m.safetensors").encode(QUERIES)
    (codes,) = onnxruntime.InferenceSession("m.onnx").run(None, {"X": QUERIES})
    np.testing.assert_array_equal(codes, wanted)
    np.testing.assert_array_equal(faiss.read_index("m.index").sa_encode(QUERIES), wanted)


def test_export_of_codes(work, run):
    codes = np.load("c.npy")
    assert run("export c.npy --bits 20 --to pgvector -o c.txt")[0] == 0
    assert Path("c.txt").read_text().splitlines() == scq.convert(codes, 20, to="pgvector")
    assert run("export c.npy --to ubinary -o u.npy")[0] == 0
    bits = np.unpackbits(codes, axis=1, bitorder="little")
    np.testing.assert_array_equal(np.load("u.npy"), np.packbits(bits, axis=1))


def test_info_tells_about_each_kind_of_file_and_the_machine(work, run):
    facts = json.loads(run("info m.safetensors --json")[1])
    assert (facts["kind"], facts["encoder"], facts["n_bits"], facts["n_features"]) == ("model", "OgE", 20, 64)
    assert facts["scale"] == scq.load("m.safetensors").scale_
    scq.HammingIndex(np.load("c.npy"), 20).save("i.safetensors")
    facts = json.loads(run("info i.safetensors --json")[1])
    assert (facts["kind"], facts["codes"], facts["n_bits"]) == ("index", 1500, 20)
    assert json.loads(run("info c.npy --json")[1])["kind"].startswith("codes")
    rows = BASE[:90].copy()
    rows[[4, 70]] = np.nan
    np.save("nan.npy", rows)
    for name in ("t.parquet", "t.arrow", "t.npy"):
        assert run(f"encode m.safetensors nan.npy -o {name} --on-invalid skip -q")[0] == 0
    for name in ("t.parquet", "t.arrow"):
        facts = json.loads(run(f"info {name} --json")[1])
        del facts["warnings"]
        assert facts == {"kind": "codes", "rows": 88, "n_bits": 20, "bytes_per_row": 3}
    facts = json.loads(run("info t.npy.invalid.npy --json")[1])
    assert (facts["kind"], facts["rows"]) == ("numbers of rows with NaN or inf", 2)
    facts = json.loads(run("info x.npy --json")[1])
    assert (facts["rows"], facts["columns"], facts["dtype"]) == (1500, 64, "float32")
    facts = json.loads(run("info --json")[1])
    assert facts["scq_gpu"] == scq.__version__
    assert facts["numpy"] == np.__version__
    assert "cpu" in facts["devices"]


def test_bench_measures_each_contender(run):
    facts = json.loads(run("bench --rows 300 --features 16 --bits 8 --json")[1])
    names = [result["what"] for result in facts["results"]]
    assert names[:3] == ["scq_gpu encode", "product alone", "numpy.packbits(X @ W >= t)"]
    assert all(result["rows_per_second"] > 0 for result in facts["results"])
    assert facts["results"][1]["times_product"] == 1
    assert run("bench --bits 9 --features 8")[0] == 2


def test_report_writes_the_page(work, run):
    pytest.importorskip("matplotlib", reason="the report's figures need matplotlib")
    np.save("images.npy", BASE.reshape(-1, 8, 8))
    code, out, _ = run("report m.safetensors --data x.npy --labels y.npy --images images.npy --fast -o r.html --json")
    assert code == 0
    page = Path("r.html").read_text(encoding="utf-8")
    assert page.count("<figure id=") == 5
    assert f"{100 * json.loads(out)['mean_average_precision']:.1f}%" in page


def test_demo_prints_a_table_and_draws_the_picture(tmp_path, run):
    pytest.importorskip("matplotlib", reason="the picture needs matplotlib")
    code, out, _ = run("demo -o", tmp_path / "new" / "pictures")
    assert code == 0
    lines = re.findall(r"^(OnE|OgE) +(\d+) +([\d.]+) +([\d.]+) +(\d+) +[\d.]+$", out, re.MULTILINE)
    assert [(name, int(bits), int(size)) for name, bits, _, _, size in lines] == [
        (name, bits, bits // 8) for bits in (8, 16, 32) for name in ("OnE", "OgE")
    ]
    assert float(lines[-1][2]) > float(lines[0][2])
    assert re.search(r"^float vectors +[\d.]+ +[\d.]+ +256", out, re.MULTILINE)
    assert (tmp_path / "new" / "pictures" / "neighbors.png").read_bytes().startswith(b"\x89PNG")


def test_no_command_shows_the_help(run):
    code, out, err = run("")
    assert (code, out) == (2, "")
    assert re.search(r"^  fit  +Learn an encoder", err, re.MULTILINE)


def test_quiet_and_json_keep_their_word(work, run):
    assert run("fit x.npy -o a.safetensors --max-iter 2 -q") == (0, "", "")  # the warning that it did not converge too
    assert run("encode a.safetensors x.npy -o a.npy -q") == (0, "", "")
    code, out, err = run("fit x.npy -o b.safetensors --max-iter 2 --json")
    (warning,) = json.loads(out)["warnings"]
    assert "max_iter=2" in warning
    assert err.splitlines()[1:] == [f"scq-gpu: warning: {warning}"]
    assert out.count("\n") == 1
    assert code == 0


@pytest.mark.parametrize("missing", ["typer", "rich.console"])
def test_without_its_libraries_it_says_which_extra_to_install(run, monkeypatch, missing):
    for name in [name for name in sys.modules if name.startswith("scq_gpu.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    code, out, err = run("info")
    assert (code, out) == (3, "")
    assert err == f'scq-gpu: the command line needs {missing}: pip install "scq-gpu[cli]"\n'


def test_starting_is_light():
    """It imports none of these beyond what scikit-learn does by itself."""
    heavy = ["cupy", "torch", "dask", "matplotlib", "pyarrow", "h5py", "zarr", "faiss", "onnx"]
    code = "import sys, sklearn.base; old = set(sys.modules); import scq_gpu.cli._run; "
    code += f"print([m for m in {heavy} if m in sys.modules and m not in old])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_help_of_fit_shows_the_defaults_of_the_encoder():
    """They stand in the help as text, since None is what lets an encoder have its own."""
    import typer

    from scq_gpu.cli._run import app

    fit = typer.main.get_command(app).commands["fit"]
    shown = {option.name: option.show_default for option in fit.params if isinstance(option.show_default, str)}
    names = {"components": "n_components", "restarts": "n_init"}
    defaults = scq.OgE().get_params()
    assert shown, "no option shows a default"
    for name, text in shown.items():
        if names.get(name, name) in defaults:
            default = defaults[names.get(name, name)]
            assert text == default if isinstance(default, str) else float(text) == default, name
    assert next(option for option in fit.params if option.name == "init").help == ", ".join(STARTS) + "."


def test_help_lists_every_command_and_the_exit_codes():
    from scq_gpu.cli._run import app

    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert re.findall(r"^  (\w+)  +\w", result.output, re.MULTILINE) == COMMANDS  # in the order of the work
    assert "130 interrupted" in " ".join(result.output.split())
    for name in COMMANDS:
        text = CliRunner().invoke(app, [name, "--help"]).output
        assert "Usage" in text
        options = (
            {"--json", "--quiet"} if name not in ("demo", "index") else {"--help" if name == "index" else "--output"}
        )
        assert options <= set(re.findall(r"--[a-z-]+", text)), name


@pytest.mark.parametrize(
    ("words", "wanted"),
    [("scq-gpu ev", "evaluate"), ("scq-gpu fit --enc", "--encoder"), ("scq-gpu fit --encoder O", "OnE")],
)
def test_shells_complete_commands_options_and_encoders(words, wanted):
    from scq_gpu.cli._run import app

    asked = {"_SCQ_GPU_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    result = CliRunner().invoke(app, [], env=asked, prog_name="scq-gpu")
    assert wanted in result.stdout.split()


def test_entry_point_and_extras_are_declared():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"scq-gpu": "scq_gpu.cli:end"}
    assert {re.match(r"\w+", x).group() for x in project["optional-dependencies"]["cli"]} == {"typer", "rich"}


def test_the_documentation_shows_commands_and_options_that_exist():
    from scq_gpu.cli._run import app

    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\$ scq-gpu (\w+)(.*)$", page, re.MULTILINE)
    assert {name for name, _ in lines} | {"demo"} == set(COMMANDS)
    for name, rest in lines:
        words = [name, *rest.split()[: name == "index"], "--help"]
        known = set(re.findall(r"(?<!\S)--?[a-z-]+", CliRunner().invoke(app, words).output.replace(",", " ")))
        assert set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", rest)) <= known, (name, rest)
