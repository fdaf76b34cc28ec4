"""Commands that measure: evaluate, report, bench."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import scq_gpu as scq
from scq_gpu._validate import AP_RULES, TIE_RULES, check_choice
from scq_gpu._xp import device_of, from_host, namespace, to_device, to_host
from scq_gpu.cli import _files
from scq_gpu.cli._console import Device, Json, Labels, Model, Name, Overwrite, Quiet, Talk
from scq_gpu.codes import code_bytes

_REPEATS = 5

Rows = Annotated[list[Path], typer.Option("--data", help="Rows to search in; repeat it for several files.")]
Queries = Annotated[
    list[Path] | None, typer.Option(help="Rows to search for; if absent, some of the data, taken out of it.")
]
QueryLabels = Annotated[Path | None, typer.Option(help="Labels of the queries.")]
Drawn = Annotated[int, typer.Option("--n-queries", min=1, help="How many queries to take out of the data.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of whatever is drawn at random.")]


def add_commands(app: typer.Typer) -> None:
    """Add them to the app."""
    for command in (evaluate, report, bench):
        app.command()(command)


def open_trial(
    data: list[Path],
    labels: Path | None,
    queries: list[Path] | None,
    query_labels: Path | None,
    *,
    name: list[str] | None,
    n_queries: int,
    device: str | None,
    seed: int,
) -> Any:
    """Rows, queries and right answers, from files."""
    from scq_gpu.trial import Trial

    y, y_query = _files.read_labels(labels, query_labels)
    return Trial(
        _files.open_rows(data, name),
        y,
        X_query=_files.open_rows(queries, name) if queries else None,
        query_labels=y_query,
        n_queries=n_queries,
        device=device,
        random_state=seed,
    )


def evaluate(
    model: Model,
    data: Rows,
    labels: Labels = None,
    queries: Queries = None,
    query_labels: QueryLabels = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Answers that precision_at_k looks at.")] = 100,
    radius: Annotated[int, typer.Option(min=0, help="Hamming radius of precision_at_radius.")] = 2,
    ap: Annotated[str, typer.Option(help=f"Rule of average precision: {', '.join(AP_RULES)}.")] = "trapezoid",
    ties: Annotated[str, typer.Option(help=f"Order inside ties: {', '.join(TIE_RULES)}.")] = "database",
    n_queries: Drawn = 300,
    seed: Seed = 0,
    name: Name = None,
    device: Device = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure how good the answers are.

    With labels, a row is right if it has the query's. Without, the query's 10 nearest rows are right.
    """
    talk = Talk(as_json=json, quiet=quiet)
    for value, option, choices in ((ap, "ap", AP_RULES), (ties, "ties", TIE_RULES)):
        _usage(check_choice, value, name=option, choices=choices)
    encoder = _files.open_model(model, device)
    trial = open_trial(data, labels, queries, query_labels, name=name, n_queries=n_queries, device=device, seed=seed)
    talk.note(f"{trial.n_queries:,} queries in {len(trial.database_rows):,} rows")
    facts = {"encoder": type(encoder).__name__, "n_bits": encoder.n_bits, "queries": trial.n_queries}
    facts |= {"database": len(trial.database_rows)}
    talk.facts("Evaluation", facts | trial.figures(encoder, k=k, radius=radius, ap=ap, ties=ties))


def _usage(check: Callable[..., object], *args: object, **options: object) -> None:
    """A check whose failure is one of usage."""
    try:
        check(*args, **options)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def report(
    model: Model,
    data: Rows,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page, .html.")] = Path("report.html"),
    labels: Labels = None,
    images: Annotated[
        Path | None, typer.Option(help="Pictures of the rows: .npy (n, height, width[, 3]) or a folder of files.")
    ] = None,
    n_queries: Drawn = 300,
    fast: Annotated[
        bool, typer.Option("--fast", help="Leave out the figures that need other encoders fitted.")
    ] = False,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    name: Name = None,
    device: Device = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a page about a model: figures, facts, a gallery.

    It is one HTML file that needs no network. Some of the data, taken out at random, are the queries.
    """
    talk = Talk(as_json=json, quiet=quiet)
    _files.check_output(output, overwrite=overwrite, endings=[".html"])
    encoder = _files.open_model(model, device)
    rows = _files.open_rows(data, name)
    (y,) = _files.read_labels(labels)
    pictures = None if images is None else _files.read_images(images)
    talk.note(f"measuring {model.name} on {rows.shape[0]:,} rows")
    from scq_gpu.report import write_report

    numbers = write_report(
        output,
        encoder,
        rows,
        labels=y,
        images=pictures,
        n_queries=n_queries,
        refit=not fast,
        random_state=seed,
        name=model.name,
    )
    talk.summary("Report", {"output": output, **numbers, "bytes": output.stat().st_size})


def bench(
    model: Annotated[Path | None, typer.Option(help="Encode with this model rather than with one made up.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows to encode, random float32.")] = 100_000,
    features: Annotated[int, typer.Option(min=1, help="Features of a row; a model brings its own.")] = 512,
    bits: Annotated[int, typer.Option(min=1, help="Bits of a code; a model brings its own.")] = 32,
    device: Device = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure how fast this machine encodes.

    Beside it stand the bare matrix product and, if it is installed, Faiss.
    """
    talk = Talk(as_json=json, quiet=quiet)
    _files.require_device(device)
    encoder = scq.load(model) if model is not None else _made_up(features, bits)
    d = encoder.n_features_in_
    X = np.random.default_rng(0).standard_normal((rows, d), dtype=np.float32)
    talk.note(f"encoding {rows:,} rows of {d:,} float32 features to {encoder.n_bits} bits, best of {_REPEATS}")
    seconds = _best_times(dict(_contenders(encoder, X, device)))
    bare = seconds.get("product alone")
    table = [
        [title, 1e3 * s, rows / s, X.nbytes / s / 1e9, None if bare is None else s / bare]
        for title, s in seconds.items()
    ]
    columns = ["", "ms", "rows/s", "GB/s read", "x product"]
    keys = ("what", "milliseconds", "rows_per_second", "gigabytes_per_second", "times_product")
    facts = {"rows": rows, "features": d, "n_bits": encoder.n_bits, "device": device or "cpu"}
    results = [dict(zip(keys, line, strict=True)) for line in table]
    shown = [[line[0], f"{line[1]:.2f}", f"{line[2]:,.0f}", f"{line[3]:.2f}", line[4]] for line in table]
    title = (
        f"{rows:,} x {d:,} float32 to {encoder.n_bits} bits ({code_bytes(encoder.n_bits)} bytes) on {facts['device']}"
    )
    talk.table(title, columns, shown, facts | {"results": results})


def _made_up(features: int, bits: int) -> Any:
    """An encoder of that shape, from a fit too short to be any good: speed does not depend on what was learned."""
    if bits > features:
        raise typer.BadParameter(f"--bits {bits} exceeds --features {features}")
    sample = np.random.default_rng(1).standard_normal((2 * features + 8, features), dtype=np.float32)
    return scq.OgE(bits, n_components=None, max_iter=1, tol=0, random_state=0).fit(sample)


def _contenders(encoder: Any, X_host: np.ndarray, device: str | None) -> Iterator[tuple[str, Callable[[], Any]]]:
    X = to_device(X_host, device)
    yield "scq_gpu encode", lambda: encoder.encode(X)
    if not hasattr(encoder, "threshold_"):
        return
    W, t = (
        from_host(np.asarray(to_host(x), dtype=np.float32), xp=namespace(X), device=device_of(X))
        for x in (encoder.components_.T, encoder.threshold_)
    )
    yield "product alone", lambda: X @ W
    if isinstance(X, np.ndarray):
        yield "numpy.packbits(X @ W >= t)", lambda: np.packbits(X @ W >= t, axis=1, bitorder="little")
        if importlib.util.find_spec("faiss") is not None:
            index = encoder.to_faiss()
            yield "Faiss IndexLSH.sa_encode", lambda: index.sa_encode(X)


def _best_times(contenders: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Seconds of each one's fastest run, after one to warm up; in turns, so that a busy machine is busy for all."""
    times: dict[str, list[float]] = {title: [] for title in contenders}
    for _ in range(_REPEATS + 1):
        for title, run in contenders.items():
            started = time.perf_counter()
            to_host(run()[:1, :])  # looking at a result waits for the device
            times[title].append(time.perf_counter() - started)
    return {title: min(taken[1:]) for title, taken in times.items()}
