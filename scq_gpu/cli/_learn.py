"""Commands that fit encoders: fit, sweep."""

from __future__ import annotations

import inspect
import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from sklearn.base import clone

import scq_gpu as scq
from scq_gpu.cli import _files
from scq_gpu.cli._console import Data, Device, Json, Labels, Name, Overwrite, Quiet, Talk
from scq_gpu.cli._measure import Drawn, Queries, QueryLabels, Seed, open_trial
from scq_gpu.codes import code_bytes
from scq_gpu.io import replace_file
from scq_gpu.starts import STARTS

_ENOUGH = 0.95  # of the best figure: what a recommended code length must reach

_DEFAULT_BITS = 8, 16, 32, 64, 128, 256


def add_commands(app: typer.Typer) -> None:
    """Add them to the app."""
    app.command()(fit)
    app.command()(sweep)


def encoders() -> dict[str, type]:
    """The encoders that can be fitted, by name."""
    public = {name: getattr(scq, name) for name in scq.__all__}
    return {name: x for name, x in public.items() if inspect.isclass(x) and hasattr(x, "fit") and hasattr(x, "encode")}


def _complete() -> list[str]:
    return list(encoders())


def fit(
    data: Data,
    output: Annotated[Path, typer.Option("--output", "-o", help="The model file, .safetensors.")],
    encoder: Annotated[str, typer.Option(help="Which encoder to fit.", autocompletion=_complete)] = "OgE",
    bits: Annotated[int, typer.Option(min=1, help="Length of the codes.")] = 32,
    components: Annotated[
        str | None, typer.Option(help="Principal components to keep: a number, auto or all.", show_default="auto")
    ] = None,
    ridge: Annotated[str | None, typer.Option(help="A number or auto.", show_default="auto")] = None,
    scale: Annotated[str | None, typer.Option(help="A number or auto.", show_default="auto")] = None,
    solver: Annotated[str | None, typer.Option(help="joint or columnwise.", show_default="joint")] = None,
    init: Annotated[str | None, typer.Option(help=f"{', '.join(STARTS)}.", show_default="auto")] = None,
    max_iter: Annotated[int | None, typer.Option(min=1, help="Most iterations.", show_default="100")] = None,
    tol: Annotated[
        float | None, typer.Option(min=0, help="Relative fall that ends the fit.", show_default="1e-4")
    ] = None,
    restarts: Annotated[int | None, typer.Option(min=1, help="Starts; the best is kept.", show_default="1")] = None,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    name: Name = None,
    device: Device = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn an encoder from rows."""
    talk = Talk(as_json=json, quiet=quiet)
    _files.check_output(output, overwrite=overwrite, endings=[".safetensors"])
    given = {"solver": solver, "init": init, "max_iter": max_iter, "tol": tol, "n_init": restarts}
    words = {"n_components": components, "ridge": ridge, "scale": scale}
    chosen = {key: value for key, value in given.items() if value is not None}
    chosen |= {key: _number(text, key) for key, text in words.items() if text is not None}
    learner = make_encoder(encoder, bits, chosen, device=device, seed=seed, quiet=quiet)
    rows = _files.open_rows(data, name)
    talk.note(f"fitting {encoder}, {bits} bits, to {rows.shape[0]:,} rows of {rows.shape[1]:,} {rows.dtype} features")
    started = time.perf_counter()
    learner.fit(rows)
    seconds = time.perf_counter() - started
    learner.save(output)
    facts = {"output": output, "encoder": encoder, "n_bits": bits, "bytes_per_row": code_bytes(bits)}
    facts |= {"rows": rows.shape[0], "n_features": rows.shape[1], "seconds": seconds}
    learned = {"iterations": "n_iter_", "converged": "converged_"}
    facts |= {title: getattr(learner, key) for title, key in learned.items() if hasattr(learner, key)}
    if len(getattr(learner, "loss_curve_", ())):
        facts["loss"] = learner.loss_curve_[-1]
    talk.summary("Fitted", facts)


def make_encoder(name: str, bits: int, chosen: dict[str, Any], *, device: str | None, seed: int, quiet: bool) -> Any:
    """An encoder by name, with the options that it has."""
    known = encoders()
    if name not in known:
        raise typer.BadParameter(f"--encoder {name} is not one of {', '.join(known)}")
    has = inspect.signature(known[name]).parameters
    for key in chosen:
        if key not in has:
            raise typer.BadParameter(f"{name} has no {key}; it takes {', '.join(has)}")
    rest = {"device": _files.require_device(device), "random_state": seed, "verbose": not quiet}
    return known[name](n_bits=bits, **chosen, **{key: value for key, value in rest.items() if key in has})


def _number(text: str, option: str) -> Any:
    """A number, or one of a few words."""
    words = {"auto": "auto", "all": None} if option == "n_components" else {"auto": "auto"}
    if text in words:
        return words[text]
    try:
        return int(text) if option == "n_components" else float(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} for {option} is neither a number nor {' nor '.join(words)}") from error


def sweep(
    data: Data,
    labels: Labels = None,
    queries: Queries = None,
    query_labels: QueryLabels = None,
    bits: Annotated[
        str | None,
        typer.Option(help="Lengths, such as 16,32,64.", show_default="8 to 256, up to half the features"),
    ] = None,
    encoder: Annotated[
        list[str] | None,
        typer.Option(help="Which encoder; repeat it to compare.", show_default="OgE", autocompletion=_complete),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Also write the table, .csv.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw the figure, .png or .svg.")] = None,
    n_queries: Drawn = 300,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    name: Name = None,
    device: Device = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say how many bits are enough: fit several lengths, measure."""
    talk = Talk(as_json=json, quiet=quiet)
    for path, endings in ((output, [".csv"]), (plot, [".png", ".svg"])):
        if path is not None:
            _files.check_output(path, overwrite=overwrite, endings=endings)
    given = None if bits is None else _lengths(bits)
    names = list(dict.fromkeys(encoder or ["OgE"]))
    learners = {which: make_encoder(which, 1, {}, device=device, seed=seed, quiet=quiet) for which in names}
    trial = open_trial(data, labels, queries, query_labels, name=name, n_queries=n_queries, device=device, seed=seed)
    lengths = given or [b for b in _DEFAULT_BITS if b <= trial.X.shape[1] // 2] or [max(1, trial.X.shape[1] // 2)]
    table = []
    for fitted, seconds in _fit_all(learners, trial.X, lengths, talk):
        row = {"encoder": type(fitted).__name__, "n_bits": fitted.n_bits, "bytes": code_bytes(fitted.n_bits)}
        table.append({**row, **trial.figures(fitted), "fit_seconds": seconds})
    metric = list(table[0])[3]
    advice = _recommend(table, metric)
    if output is not None:
        replace_file(output, _files.csv_text(list(table[0]), [list(row.values()) for row in table]))
    if plot is not None:
        _draw(plot, table, metric)
    columns = [key.replace("_", " ") for key in table[0]]
    facts = {"queries": trial.n_queries, "database": len(trial.database_rows), "metric": metric, "results": table}
    talk.table("Bits against quality", columns, [list(row.values()) for row in table], facts | advice, advice["advice"])


def _fit_all(learners: dict[str, Any], X: Any, lengths: list[int], talk: Talk) -> Iterator[tuple[Any, float]]:
    """Encoders of all lengths, fitted, and the seconds each took."""
    for which, learner in learners.items():
        talk.note(f"fitting {which} with {', '.join(map(str, lengths))} bits to {X.shape[0]:,} rows")
        if isinstance(learner, scq.OgE | scq.OnE):
            found = scq.sweep_bits(X, bits=lengths, encoder=learner)
            yield from zip(found.encoders, found.seconds, strict=True)
            continue
        for length in lengths:
            started = time.perf_counter()
            fitted = clone(learner).set_params(n_bits=length).fit(X)
            yield fitted, time.perf_counter() - started


def _recommend(table: list[dict[str, Any]], metric: str) -> dict[str, Any]:
    """The fewest bits that come close to the best figure."""
    best = max(table, key=lambda row: row[metric])
    enough = [row for row in table if row[metric] >= _ENOUGH * best[metric]]
    choice = min(enough, key=lambda row: (row["n_bits"], -row[metric]))
    advice = (
        f"Recommended: {choice['encoder']} with {choice['n_bits']} bits ({choice['bytes']} bytes a row): the fewest "
        f"bits that reach {_ENOUGH:.0%} of the best {metric.replace('_', ' ')}, "
        f"{best[metric]:.3f} with {best['n_bits']} bits."
    )
    return {"recommended": {key: choice[key] for key in ("encoder", "n_bits")}, "advice": advice}


def _draw(path: Path, table: list[dict[str, Any]], metric: str) -> None:
    from matplotlib.figure import Figure

    curves: dict[str, list[dict[str, Any]]] = {}
    for row in table:
        curves.setdefault(row["encoder"], []).append(row)
    buffer = io.BytesIO()
    with scq.plots.theme():
        figure = Figure(figsize=(6, 3.8))
        scq.plots.bits_curve(curves, metric=metric, ax=figure.subplots())
        figure.savefig(buffer, format=path.suffix[1:], dpi=150)
    replace_file(path, buffer.getvalue())


def _lengths(text: str) -> list[int]:
    try:
        lengths = sorted({int(part) for part in text.split(",")})
    except ValueError:
        lengths = [0]
    if lengths[0] < 1:
        raise typer.BadParameter(f"--bits {text} is not a list of lengths; write it as 16,32,64")
    return lengths
