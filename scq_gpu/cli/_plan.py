"""The command plan: what codes of many rows will take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import scq_gpu as scq
from scq_gpu._core.files import replace_file
from scq_gpu.cli._console import Session, command, option

_BUSY = 0.5  # load per core from which rates are said to be of a busy machine
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")
_RECIPES = {
    "Faiss, binary inverted lists, in one machine's memory": "docs/interchange.md",
    "Milvus, over several machines": "docs/databases/milvus.md",
    "Qdrant, over several machines": "docs/databases/qdrant.md",
    "Vespa, over several machines": "docs/databases/vespa.md",
}


@command("overwrite")
def plan(
    session: Session,
    rows: Annotated[float, option("How many rows, such as 1e9.", min=1)],
    dims: Annotated[int, option("Features per row.", min=1)] = 768,
    bits: Annotated[int, option("Bits per code.", min=1)] = 128,
    queries_per_second: Annotated[float, option("How many queries are to be answered.", min=1e-9)] = 1.0,
    workers: Annotated[int, option("Machines like this one, which share the rows.", min=1)] = 1,
    rates: Annotated[
        Path | None, option("Rates that `scq-gpu bench --output` wrote; measured now if absent, for some seconds.")
    ] = None,
    output: Annotated[Path | None, option("Also write the figures, .json.", "--output", "-o")] = None,
) -> None:
    """Say what codes of that many rows take: time, disk, memory, engine.

    Arithmetic on rates of this machine: all figures but bytes are extrapolated, not measured.
    """
    session.check_output(output, [".json"])
    known = measure(session, dims, bits) if rates is None else scq.scale.Rates.read(rates)
    if (known.features, known.bits) != (dims, bits):
        raise typer.BadParameter(
            f"--rates {rates} was measured with {known.features} features and {known.bits} bits, not --dims {dims} "
            f"--bits {bits}; run scq-gpu bench --features {dims} --bits {bits} --output FILE"
        )
    found = scq.scale.plan(known, rows, queries_per_second=queries_per_second, workers=workers)
    if output is not None:
        replace_file(output, json.dumps({"plan": found, "rates": known.as_dict()}, indent=1).encode() + b"\n")
    where = f"{workers} machine{'s' if workers > 1 else ''} like this one"
    facts = {key: _shown(key, value) for key, value in found.items()}
    lines = [{"what": key.replace("_", " "), "figure": value} for key, value in facts.items()]
    session.table(
        f"Extrapolated to {where}", lines, {**found, "rates": known.as_dict()}, note=advice(found), header=False
    )


def measure(session: Session, dims: int, bits: int, *, rows: int = 50_000, codes: int = 5_000_000) -> Any:
    """Rates of this machine, with a word if it is busy."""
    session.note(f"measuring fit, encode and scan with {dims} features and {bits} bits")
    known = scq.scale.measure_rates(dims, bits, rows=rows, codes=codes)
    if known.busy is not None and known.busy > _BUSY:
        session.note(f"this machine is busy (load {known.busy:.1f} per core): rates of an idle one are higher")
    return known


def advice(found: dict[str, Any]) -> str:
    """What to search with."""
    enough, needed = found["most_rows_for_a_flat_scan"], found["machines_for_a_flat_scan"]
    rate = found["queries_per_second"]
    if found["search_with"] == "flat scan":
        return (
            f"A flat scan (HammingIndex) is enough, up to {enough:,} rows at {rate:g} queries per second: exact, and "
            "nothing to tune (docs/searching.md)."
        )
    recipes = "; ".join(f"{engine} ({page})" for engine, page in _RECIPES.items())
    return (
        f"A flat scan answers {found['queries_per_second_by_flat_scan']:.3g} of {rate:g} queries per second; it would "
        f"take {needed:,} machines, or at most {enough:,} rows. Beyond that an engine looks at some of the codes: "
        f"{recipes}. docs/scale.md says more."
    )


def _shown(key: str, value: Any) -> Any:
    """A figure for people."""
    if key.startswith("bytes_"):
        size, unit = float(value), 0
        while size >= 1000 and unit < len(_UNITS) - 1:
            size, unit = size / 1000, unit + 1
        return f"{size:,.3g} {_UNITS[unit]}"
    return f"{value:,.3g}" if isinstance(value, float) else value
