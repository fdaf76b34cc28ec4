"""Commands that fit encoders: fit, sweep."""

from __future__ import annotations

import inspect
import time
from pathlib import Path
from typing import Annotated, Any

import typer

import scq_gpu as scq
from scq_gpu._core.bits import code_bytes
from scq_gpu._core.files import replace_file, replacing
from scq_gpu.cli._console import Data, Session, command, join_csv, option
from scq_gpu.cli._measure import Metric, open_task
from scq_gpu.training.defaults import AIMS, STARTS

_ENOUGH = 0.95  # of the best figure: what a recommended code length must reach
_DEFAULT_BITS = 8, 16, 32, 64, 128, 256
_FIGURES = "mean_average_precision", "asymmetric_10_at_10", "recall_10_at_10"  # recommended by the first there is
_OPTION = {"n_components": "--components", "n_init": "--restarts", "max_iter": "--max-iter"} | {
    name: f"--{name}" for name in ("preserve", "solver", "init", "tol", "ridge", "scale")
}
_VARYING = 0.05  # spread of norms from which factors help


def encoders() -> dict[str, type]:
    """The encoders that can be fitted to rows, by name."""
    public: dict[str, Any] = {name: getattr(scq, name) for name in scq.__all__}
    found: dict[str, Any] = {
        name: x for name, x in public.items() if inspect.isclass(x) and hasattr(x, "fit") and hasattr(x, "encode")
    }
    return {name: x for name, x in found.items() if x().__sklearn_tags__().input_tags.two_d_array}  # not to images


@command("seed", "overwrite", "name", "device")
def fit(
    session: Session,
    data: Data,
    output: Annotated[Path, option("The model file, .safetensors.", "--output", "-o")],
    encoder: Annotated[str, option("Which encoder to fit.", autocompletion=encoders)] = "OgE",
    bits: Annotated[int, option("Length of the codes.", min=1)] = 32,
    preserve: Annotated[str | None, option(f"{' or '.join(AIMS)}.", show_default=AIMS[0])] = None,
    components: Annotated[
        str | None, option("Principal components to keep: a number, auto or all.", show_default="auto")
    ] = None,
    ridge: Annotated[str | None, option("A number or auto.", show_default="auto")] = None,
    scale: Annotated[str | None, option("A number or auto.", show_default="auto")] = None,
    solver: Annotated[str | None, option("joint or columnwise.", show_default="joint")] = None,
    init: Annotated[str | None, option(f"{', '.join(STARTS)}.", show_default="auto")] = None,
    max_iter: Annotated[int | None, option("Most iterations.", min=1, show_default="auto")] = None,
    tol: Annotated[float | None, option("Relative fall that ends the fit.", min=0, show_default="1e-4")] = None,
    restarts: Annotated[int | None, option("Starts; the best is kept.", min=1, show_default="1")] = None,
) -> None:
    """Learn an encoder from rows."""
    session.check_output(output, [".safetensors"])
    given = {"preserve": preserve, "solver": solver, "init": init, "max_iter": max_iter, "tol": tol, "n_init": restarts}
    words = {"n_components": components, "ridge": ridge, "scale": scale}
    chosen = {key: value for key, value in given.items() if value is not None}
    chosen |= {key: _number(text, key) for key, text in words.items() if text is not None}
    learner = make_encoder(session, encoder, bits, chosen)
    rows = session.open_rows(data)
    n, d = rows.shape
    session.note(f"fitting {encoder}, {bits} bits, to {n:,} rows of {d:,} {rows.dtype} features")
    started = time.perf_counter()
    learner.fit(rows)
    seconds = time.perf_counter() - started
    learner.save(output)
    learned = scq.report.encoder_facts(learner)
    names = {"n_iter": "iterations", "converged": "converged", "loss": "loss"}
    facts = {"output": output, "encoder": encoder, "n_bits": bits, "bytes_per_row": learned["bytes_per_row"]}
    facts |= {"rows": n, "n_features": d, "seconds": seconds}
    session.summary("Fitted", facts | {names[key]: value for key, value in learned.items() if key in names})


def make_encoder(session: Session, name: str, bits: int, chosen: dict[str, Any]) -> Any:
    """An encoder by name, with the options that it has."""
    known = encoders()
    if name not in known:
        raise typer.BadParameter(f"--encoder {name} is not one of {', '.join(known)}")
    has = inspect.signature(known[name]).parameters
    for key in chosen:
        if key not in has:
            raise typer.BadParameter(f"--encoder {name} has no {_OPTION.get(key, key)}; it takes {', '.join(has)}")
    rest = {"device": session.check_device(), "random_state": session.seed, "verbose": not session.quiet}
    return known[name](n_bits=bits, **chosen, **{key: value for key, value in rest.items() if key in has})


def _number(text: str, option: str) -> Any:
    """A number, or one of a few words."""
    words = {"auto": "auto", "all": None} if option == "n_components" else {"auto": "auto"}
    if text in words:
        return words[text]
    try:
        return int(text) if option == "n_components" else float(text)
    except ValueError as error:
        named = "--components" if option == "n_components" else f"--{option}"
        raise typer.BadParameter(f"{named} {text} is neither a number nor {' nor '.join(words)}") from error


@command("labels", "queries", "query_labels", "n_queries", "seed", "overwrite", "name", "device")
def sweep(
    session: Session,
    data: Data,
    bits: Annotated[
        str | None, option("Lengths, such as 16,32,64.", show_default="8 to 256, up to half the features")
    ] = None,
    encoder: Annotated[
        list[str] | None, option("Which encoder; repeat it to compare.", show_default="OgE", autocompletion=encoders)
    ] = None,
    methods: Annotated[str | None, option("Encoders to compare, such as OgE,ITQ,LSH.")] = None,
    preserve: Annotated[str | None, option(f"For OgE and OnE: {' or '.join(AIMS)}.", show_default=AIMS[0])] = None,
    solver: Annotated[str | None, option("For OgE and OnE: joint or columnwise.", show_default="joint")] = None,
    metric: Metric = "l2",
    output: Annotated[Path | None, option("Also write the table, .csv.", "--output", "-o")] = None,
    plot: Annotated[Path | None, option("Also draw the figure, .png or .svg.")] = None,
) -> None:
    """Say which encoder, and how many bits, are enough: fit several lengths, measure."""
    session.check_output(output, [".csv"])
    session.check_output(plot, [".png", ".svg"])
    given = None if bits is None else _lengths(bits)
    names = [*(encoder or []), *(part.strip() for part in (methods or "").split(",") if part.strip())] or ["OgE"]
    learners = {name: make_encoder(session, name, 1, _aim(name, preserve, solver)) for name in names}
    task = open_task(session, data, metric=metric)
    d = task.X.shape[1]
    lengths = given or [b for b in _DEFAULT_BITS if b <= d // 2] or [max(1, d // 2)]
    table = []
    for name, learner in learners.items():
        session.note(f"fitting {name} with {', '.join(map(str, lengths))} bits to {task.n:,} rows")
        found = scq.sweep_bits(task.X, bits=lengths, encoder=learner)
        for fitted, seconds in zip(found.encoders, found.seconds, strict=True):
            row = {"encoder": name, "n_bits": fitted.n_bits, "bytes": code_bytes(fitted.n_bits)}
            table.append({**row, **task.measure(fitted), "fit_seconds": seconds})
    figure = next(name for name in _FIGURES if all(name in row for row in table))
    advice = _recommend(table, figure, task.norm_spread)
    columns = list(dict.fromkeys(key for row in table for key in row))
    table = [{key: row.get(key) for key in columns} for row in table]
    if output is not None:
        replace_file(output, join_csv(columns, (row.values() for row in table)))
    if plot is not None:
        _draw(plot, table, figure)
    facts = {"queries": task.n_queries, "database": len(task.database_rows), "metric": figure, "results": table}
    session.table("Bits against quality", table, facts | advice, note=advice["advice"])


def _aim(name: str, preserve: str | None, solver: str | None) -> dict[str, Any]:
    """What of these options an encoder has: OgE and OnE do, the baselines do not."""
    has = inspect.signature(encoders().get(name, object)).parameters if name in encoders() else {}
    given = {"preserve": preserve, "solver": solver}
    return {key: value for key, value in given.items() if value is not None and key in has}


def _recommend(table: list[dict[str, Any]], figure: str, norm_spread: float = 0.0) -> dict[str, Any]:
    """The fewest bits, of whichever encoder, that come close to the best figure."""
    best = max(table, key=lambda row: row[figure])
    enough = [row for row in table if row[figure] >= _ENOUGH * best[figure]]
    choice = min(enough, key=lambda row: (row["n_bits"], -row[figure]))
    advice = (
        f"Recommended: {choice['encoder']} with {choice['n_bits']} bits ({choice['bytes']} bytes per row): the fewest "
        f"bits that reach {_ENOUGH:.0%} of the best {figure.replace('_', ' ')}, "
        f"{best[figure]:.3f} by {best['encoder']} with {best['n_bits']} bits."
    )
    if norm_spread > _VARYING:
        advice += (
            f" The rows' distances from their mean vary by {norm_spread:.0%}: four bytes more per row "
            "(encode with factors=True) will improve asymmetric search."
        )
    return {"recommended": {key: choice[key] for key in ("encoder", "n_bits")}, "advice": advice}


def _draw(path: Path, table: list[dict[str, Any]], metric: str) -> None:
    curves: dict[str, list[dict[str, Any]]] = {}
    for row in table:
        curves.setdefault(row["encoder"], []).append(row)
    figure = scq.plots.bits_curve(curves, metric=metric).figure
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=150)


def _lengths(text: str) -> list[int]:
    try:
        lengths = sorted({int(part) for part in text.split(",")})
    except ValueError:
        lengths = [0]
    if lengths[0] < 1:
        raise typer.BadParameter(f"--bits {text} is not a list of lengths; write it as 16,32,64")
    return lengths
