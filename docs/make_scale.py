"""Write the tables of docs/scale.md from measured rates:  python docs/make_scale.py

The rates and the check are measured, on an idle machine, by

    scq-gpu bench --rows 50000 --features 768 --bits 128 --overwrite --output docs/results/plan_rates.json
    python benchmarks/scale.py --output docs/results/plan_check.json
"""

import json
import re
from pathlib import Path

import scq_gpu as scq

PAGE = Path(__file__).parent / "scale.md"
RESULTS = Path(__file__).parent / "results"
SIZES = {"10^6": 1e6, "10^7": 1e7, "10^8": 1e8, "10^9": 1e9, "10^10": 1e10}


def size(n_bytes):
    power = min(4, (len(str(int(n_bytes))) - 1) // 3)
    return f"{n_bytes / 1000**power:.3g} {['bytes', 'kB', 'MB', 'GB', 'TB'][power]}"


def duration(seconds):
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60), ("s", 1)):
        if seconds >= (2 if length > 1 else 1) * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{1e3 * seconds:.3g} ms"


def plans():
    rates = scq.scale.Rates.read(RESULTS / "plan_rates.json")
    lines = ["| rows | vectors | codes | with factors | fit, all rows | encode | scan, one query | one of 64 queries |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for name, rows in SIZES.items():
        plan = scq.scale.plan(rates, rows)
        cells = [size(plan[key]) for key in ("bytes_vectors", "bytes_codes", "bytes_codes_and_factors")]
        cells += [duration(3600 * plan[key]) for key in ("fit_hours_on_all_rows", "encode_hours")]
        cells += [duration(plan[f"asymmetric_ms_per_query{end}"] / 1e3) for end in ("", "_in_batches")]
        lines.append(f"| {name.replace('^', '<sup>')}</sup> | {' | '.join(cells)} |")
    state = "idle" if (rates.busy or 0) < 0.5 else f"busy, with a load of {rates.busy:.0f} per core"
    lines.append("")
    lines.append(f"NUMBA_NUM_THREADS: {rates.threads}. The machine was {state} when its rates were measured.")
    return "\n".join(lines)


def check():
    facts = json.loads((RESULTS / "plan_check.json").read_text())
    names = {
        "encode_hours": ("encode", 3600),
        "hamming_ms_per_query": ("Hamming scan, one query", 1e-3),
        "asymmetric_ms_per_query": ("float query against codes, alone", 1e-3),
        "asymmetric_ms_per_query_in_batches": ("the same, one of 64", 1e-3),
    }
    lines = ["| | planned | measured | measured / planned |", "|---|---|---|---|"]
    for key, (title, unit) in names.items():
        planned, real = facts["planned"][key] * unit, facts["measured"][key] * unit
        lines.append(f"| {title} | {duration(planned)} | {duration(real)} | {real / planned:.2f} |")
    rates = facts["rates"]
    lines.append("")
    lines.append(
        f"{facts['rows']:,} rows of {rates['features']} features, {rates['bits']} bits; load per core "
        f"{rates['busy']:.1f} before, {facts['load_after']:.1f} after."
    )
    return "\n".join(lines)


def main():
    page = PAGE.read_text(encoding="utf-8")
    for name, table in (("plans", plans()), ("check", check())):
        page = re.sub(
            rf"(<!-- {name} -->\n).*?(\n<!-- end -->)", lambda m, t=table: m[1] + t + m[2], page, flags=re.DOTALL
        )
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
