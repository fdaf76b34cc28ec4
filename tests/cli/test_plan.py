"""Rates, and plans made of them, against arithmetic by hand."""

import json

import pytest

pytest.importorskip("typer", reason="the command line needs typer")
pytest.importorskip("rich", reason="the command line needs rich")

from command_line import made, run, work

from scq_gpu.encoders.scale import Rates, measure_rates, plan

__all__ = ["made", "run", "work"]  # fixtures

RATES = Rates(
    features=768,
    bits=130,
    rows=1000,
    codes=1000,
    threads="1",
    fit_seconds_per_row=3.6e-4,
    encode_rows_per_second=5e5,
    encode_gigabytes_per_second=1.5,
    hamming_codes_per_second=5e8,
    hamming_batch_codes_per_second=2e9,
    asymmetric_codes_per_second=2.5e8,
    asymmetric_batch_codes_per_second=1e9,
    busy=None,
)


def test_a_plan_is_arithmetic():
    found = plan(RATES, 1e9, queries_per_second=100, workers=4)
    expected = {
        "rows": 10**9,
        "fit_hours_on_all_rows": 100 / 4,
        "fit_minutes_on_a_million_rows": 6.0,
        "encode_hours": 2000 / 3600 / 4,
        "bytes_vectors": 3072 * 10**9,
        "bytes_codes": 17 * 10**9,
        "bytes_codes_and_ids": 25 * 10**9,
        "bytes_codes_and_factors": 21 * 10**9,
        "hamming_ms_per_query": 500.0,
        "asymmetric_ms_per_query": 1000.0,
        "asymmetric_ms_per_query_in_batches": 250.0,
        "queries_per_second_by_flat_scan": 4.0,
        "machines_for_a_flat_scan": 100,
        "most_rows_for_a_flat_scan": 40_000_000,
        "search_with": "inverted lists",
    }
    assert {key: found[key] for key in expected} == pytest.approx(expected)
    enough = plan(RATES, 40_000_000, queries_per_second=100, workers=4)
    assert (enough["search_with"], enough["machines_for_a_flat_scan"]) == ("flat scan", 4)
    assert plan(RATES, 40_000_001, queries_per_second=100, workers=4)["search_with"] == "inverted lists"


@pytest.mark.parametrize(
    "options",
    [{"rows": 0}, {"rows": 1e6, "workers": 0}, {"rows": 1e6, "queries_per_second": 0}, {"rows": float("inf")}],
)
def test_impossible_plans_are_refused(options):
    with pytest.raises(ValueError, match="must be"):
        plan(RATES, **options)


def test_rates_are_of_what_was_asked(tmp_path):
    rates = measure_rates(24, 12, rows=2000, codes=5000)
    assert (rates.features, rates.bits, rates.rows, rates.codes, rates.bytes_per_code) == (24, 12, 2000, 5000, 2)
    speeds = [value for key, value in rates.as_dict().items() if "per_" in key and "bytes_per_code" not in key]
    assert len(speeds) == 7
    assert min(speeds) > 0
    (tmp_path / "r.json").write_text(json.dumps(rates.as_dict()))
    assert Rates.read(tmp_path / "r.json") == rates
    with pytest.raises(ValueError, match="bits=25 exceeds features=24"):
        measure_rates(24, 25)


def test_from_bench_to_plan(work, run):
    code, out, _ = run("bench --rows 1000 --features 16 --bits 8 --codes 2000 -o rates.json --json")
    assert code == 0
    facts = json.loads(out)
    assert json.loads((work / "rates.json").read_text())["rates"] == facts["rates"]
    line = "plan --rows 1e9 --dims 16 --bits 8 --queries-per-second 1e6 --workers 2 --rates rates.json"
    code, out, error = run(f"{line} --json -o plan.json")
    assert (code, error) == (0, "")
    found = json.loads(out)
    expected = plan(Rates.read("rates.json"), 1e9, queries_per_second=1e6, workers=2)
    assert {key: found[key] for key in expected} == expected
    assert json.loads((work / "plan.json").read_text())["plan"] == expected
    code, out, _ = run(line)
    assert code == 0
    assert "1 GB" in out
    for word in ("Extrapolated", "Faiss", "milvus.md", "qdrant.md", "vespa.md", "docs/scale.md"):
        assert word in out.replace("\n", " ")
    few = "plan --rows 10 --dims 16 --bits 8 --queries-per-second 1e-3 --rates rates.json"
    assert "A flat scan (HammingIndex) is enough" in run(few)[1]


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        (
            "plan --rows 1e9 --dims 32 --bits 8 --rates rates.json",
            2,
            "--rates rates.json was measured with 768 features",
        ),
        ("plan --rows 1e9 --rates c.npy", 1, "c.npy holds no rates"),
        ("plan --rows none", 2, "--rows"),
        ("plan", 2, "--rows"),
        ("plan --rows 1e9 --dims 4 --bits 8", 1, "--bits 8 exceeds"),
        ("plan --rows 1e9 -o plan.txt", 1, "what can be written is .json"),
    ],
)
def test_what_cannot_be_planned(work, run, line, code, message):
    (work / "rates.json").write_text(json.dumps(RATES.as_dict()))
    found, _, error = run(line)
    assert found == code
    assert message in error
