"""Commands that fit and measure encoders: fit, sweep, evaluate, report."""

import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import scq_gpu as scq
from scq_gpu._core.bits import code_bytes
from scq_gpu._core.files import natural_order, replace_file, replacing
from scq_gpu._core.validate import AP_RULES, METRICS, TIE_RULES
from scq_gpu.cli._answers import join_csv
from scq_gpu.cli._console import (
    Data,
    Metric,
    Model,
    Session,
    check_word,
    command,
    encoders,
    load_array,
    load_column,
    make_encoder,
    option,
    option_name,
)

_IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}

Rows = Annotated[list[str], option("Rows to search in; repeat it for several files.", "--data")]


@command("seed", "overwrite", "name", "device")
def fit(
    session: Session,
    data: Data,
    output: Annotated[Path, option("The model file, .safetensors.", "--output", "-o")],
    encoder: Annotated[str, option("Encoder to fit.", autocompletion=encoders)] = "OgE",
    bits: Annotated[int, option("Length of the codes.", min=1)] = 32,
    preserve: Annotated[str | None, option("neighbors or classes.", show_default="neighbors")] = None,
    components: Annotated[
        str | None, option("Principal components to keep: a number, auto or all.", show_default="auto")
    ] = None,
    ridge: Annotated[str | None, option("A number or auto.", show_default="auto")] = None,
    scale: Annotated[str | None, option("A number or auto.", show_default="auto")] = None,
    solver: Annotated[str | None, option("joint or columnwise.", show_default="joint")] = None,
    init: Annotated[
        str | None, option("auto, longer_code, shorter_codes, random, pca, itq.", show_default="auto")
    ] = None,
    max_iter: Annotated[int | None, option("Maximum number of iterations.", min=1, show_default="auto")] = None,
    tol: Annotated[float | None, option("Relative decrease of loss to stop at.", min=0, show_default="1e-4")] = None,
    restarts: Annotated[int | None, option("Number of starts; the best is kept.", min=1, show_default="1")] = None,
    metric: Metric = "l2",
    on_invalid: Annotated[str, option("Rows with NaN or inf: raise or skip.", "--on-invalid")] = "raise",
) -> None:
    """Learn an encoder from rows."""
    session.check_output(output, [".safetensors"])
    given = {"preserve": preserve, "solver": solver, "init": init, "max_iter": max_iter, "tol": tol, "n_init": restarts}
    words = {"n_components": components, "ridge": ridge, "scale": scale}
    chosen = {key: value for key, value in given.items() if value is not None}
    chosen |= {key: _number(text, key) for key, text in words.items() if text is not None}
    learner = make_encoder(session, encoder, bits, chosen)
    rows = session.open_rows(data, metric=metric)
    n, d = rows.shape
    session.note(f"fitting {encoder}, {bits} bits, to {n:,} rows of {d:,} {rows.dtype} features")
    started = time.perf_counter()
    learner.fit(rows, on_invalid=on_invalid)
    seconds = time.perf_counter() - started
    learner.save(output)
    learned = scq.plots.report.encoder_facts(learner)
    names = {"n_iter": "iterations", "converged": "converged", "loss": "loss"}
    facts = {"output": output, "encoder": encoder, "n_bits": bits, "bytes_per_row": learned["bytes_per_row"]}
    facts |= {"rows": n, "n_features": d, "seconds": seconds}
    session.summary("Fitted", facts | {names[key]: value for key, value in learned.items() if key in names})


def _number(text: str, option: str) -> Any:
    """Parse the value of an option: a number or one of a few words."""
    words = {"auto": "auto", "all": None} if option == "n_components" else {"auto": "auto"}
    if text in words:
        return words[text]
    try:
        return int(text) if option == "n_components" else float(text)
    except ValueError as error:
        known = " nor ".join(words)
        raise typer.BadParameter(f"{option_name(option)} {text} is neither a number nor {known}") from error


@command("labels", "queries", "query_labels", "n_queries", "seed", "overwrite", "name", "device")
def sweep(
    session: Session,
    data: Data,
    bits: Annotated[
        str | None, option("Lengths, such as 16,32,64.", show_default="8 to 256, up to half the features")
    ] = None,
    encoder: Annotated[
        list[str] | None, option("Encoder; repeat it to compare.", show_default="OgE", autocompletion=encoders)
    ] = None,
    methods: Annotated[str | None, option("Encoders to compare, such as OgE,ITQ,LSH.")] = None,
    preserve: Annotated[str | None, option("For OgE and OnE: neighbors or classes.", show_default="neighbors")] = None,
    solver: Annotated[str | None, option("For OgE and OnE: joint or columnwise.", show_default="joint")] = None,
    metric: Metric = "l2",
    output: Annotated[Path | None, option("Also write the table, .csv.", "--output", "-o")] = None,
    plot: Annotated[Path | None, option("Also draw the figure, .png or .svg.")] = None,
) -> None:
    """Fit several encoders and code lengths, measure them, recommend one."""
    session.check_output(output, [".csv"])
    session.check_output(plot, [".png", ".svg"])
    given = None if bits is None else _lengths(bits)
    names = [*(encoder or []), *(part.strip() for part in (methods or "").split(",") if part.strip())] or ["OgE"]
    aim = {key: value for key, value in (("preserve", preserve), ("solver", solver)) if value is not None}
    # Baselines have neither of these options.
    learners = {name: make_encoder(session, name, 1, aim if name in ("OgE", "OnE") else {}) for name in names}
    task = _open_task(session, data, metric=metric)
    d = task.X.shape[1]
    lengths = given or [b for b in (8, 16, 32, 64, 128, 256) if b <= d // 2] or [max(1, d // 2)]
    table = []
    for name, learner in learners.items():
        session.note(f"fitting {name} with {', '.join(map(str, lengths))} bits to {task.n:,} rows")
        found = scq.sweep_bits(task.X, bits=lengths, encoder=learner)
        for fitted, seconds in zip(found.encoders, found.seconds, strict=True):
            row = {"encoder": name, "n_bits": fitted.n_bits, "bytes": code_bytes(fitted.n_bits)}
            table.append({**row, **task.measure(fitted), "fit_seconds": seconds})
    metrics = "mean_average_precision", "asymmetric_10_at_10", "recall_10_at_10"
    best_by = next(name for name in metrics if all(name in row for row in table))
    advice = _recommend(table, best_by)
    columns = list(dict.fromkeys(key for row in table for key in row))
    table = [{key: row.get(key) for key in columns} for row in table]
    if output is not None:
        replace_file(output, join_csv(columns, (row.values() for row in table)))
    if plot is not None:
        curves = {name: [row for row in table if row["encoder"] == name] for name in learners}
        figure = scq.plots.bits_curve(curves, metric=best_by).figure
        with replacing(plot) as file:
            figure.savefig(file, format=plot.suffix[1:], dpi=150)
    facts = {"queries": task.n_queries, "database": len(task.database_rows), "metric": best_by, "results": table}
    session.table("Bits against quality", table, facts | advice, note=advice["advice"])


def _recommend(table: list[dict[str, Any]], metric: str) -> dict[str, Any]:
    """Recommend the fewest bits, of any encoder, that reach 95 % of the best value."""
    best = max(table, key=lambda row: row[metric])
    good = [row for row in table if row[metric] >= 0.95 * best[metric]]
    choice = min(good, key=lambda row: (row["n_bits"], -row[metric]))
    advice = (
        f"Recommended: {choice['encoder']} with {choice['n_bits']} bits ({choice['bytes']} bytes per row): the fewest "
        f"bits that reach 95% of the best {metric.replace('_', ' ')}, "
        f"{best[metric]:.3f} by {best['encoder']} with {best['n_bits']} bits."
    )
    return {"recommended": {key: choice[key] for key in ("encoder", "n_bits")}, "advice": advice}


def _lengths(text: str) -> list[int]:
    try:
        lengths = sorted({int(part) for part in text.split(",")})
    except ValueError:
        lengths = [0]
    if lengths[0] < 1:
        raise typer.BadParameter(f"--bits {text} is not a list of lengths; write it as 16,32,64")
    return lengths


@command("labels", "queries", "query_labels", "n_queries", "seed", "name", "device")
def evaluate(
    session: Session,
    model: Model,
    data: Rows,
    k: Annotated[int, option("Number of answers of precision_at_k.", "-k", min=1)] = 1000,
    radius: Annotated[int, option("Hamming radius of precision_at_radius.", min=0)] = 2,
    ap: Annotated[str, option(f"Rule of average precision: {', '.join(AP_RULES)}.")] = "standard",
    ties: Annotated[str, option(f"Order inside ties: {', '.join(TIE_RULES)}.")] = "database",
    metric: Metric = "l2",
) -> None:
    """Measure the quality of the answers.

    Shares of each query's 10 nearest rows found by codes (recall), by float queries against the codes (asymmetric) and
    after 40 or 160 candidates are re-ranked by their floats (rescored). With labels, also precision by label.
    """
    for rule, value, choices in (("ap", ap, AP_RULES), ("ties", ties, TIE_RULES), ("metric", metric, METRICS)):
        check_word(rule, value, choices)
    encoder = session.open_model(model)
    task = _open_task(session, data, metric=metric)
    session.note(f"{task.n_queries:,} queries in {len(task.database_rows):,} rows")
    facts = {"encoder": type(encoder).__name__, "n_bits": encoder.n_bits, "queries": task.n_queries}
    measured = task.measure(encoder, k=k, radius=radius, ap=ap, ties=ties)
    session.facts("Evaluation", facts | {"database": len(task.database_rows)} | measured)


@command("labels", "n_queries", "seed", "overwrite", "name", "device")
def report(
    session: Session,
    model: Model,
    data: Rows,
    output: Annotated[Path, option("The page, .html.", "--output", "-o")] = Path("report.html"),
    images: Annotated[
        Path | None, option("Pictures of the rows: .npy (n, height, width[, 3]) or a folder of files.")
    ] = None,
    fast: Annotated[bool, option("Skip the figures that need other encoders fitted.", "--fast")] = False,
) -> None:
    """Write an HTML report about a model: figures, facts, a gallery.

    The report is one file that needs no network. Its queries are drawn from the data at random.
    """
    session.check_output(output, [".html"])
    encoder = session.open_model(model)
    rows = session.open_rows(data)
    labels = _read_labels(session, session.labels)[0]
    _check_labels(labels, "--labels", session.labels, rows, "the data")
    session.note(f"measuring {model.name} on {rows.shape[0]:,} rows")
    numbers = scq.write_report(
        output,
        encoder,
        rows,
        labels=labels,
        images=None if images is None else _read_images(session, images),
        n_queries=session.n_queries,
        refit=not fast,
        random_state=session.seed,
        name=model.name,
    )
    session.summary("Report", {"output": output, **numbers, "bytes": output.stat().st_size})


def _read_images(session: Session, path: Path) -> Any:
    """Load an array of images, or list the image files of a folder in the natural order of their names."""
    if not path.is_dir():
        session.takes(path)
        return load_array(path)
    found = [p for p in path.iterdir() if p.suffix.lower() in _IMAGES and not p.name.startswith(".")]
    if not found:
        raise ValueError(f"{path} is a folder without images ({', '.join(sorted(_IMAGES))})")
    session.takes(*found)
    return sorted(found, key=natural_order)


def _open_task(session: Session, data: list[str], *, metric: str = "l2") -> Any:
    """Open rows, queries and labels as a `RetrievalTask`."""
    y, y_query = _read_labels(session, session.labels, session.query_labels)
    rows = session.open_rows(data)
    queries = session.open_rows(session.queries) if session.queries else None
    if queries is None and y_query is not None:
        raise ValueError(f"--query-labels {session.query_labels} was given, but not --queries, whose labels they are")
    if queries is not None and (y is None) != (y_query is None):
        given, missing = ("--labels", "--query-labels") if y_query is None else ("--query-labels", "--labels")
        raise ValueError(f"{given} was given, but not {missing}; right answers need the labels of both")
    _check_labels(y, "--labels", session.labels, rows, "the data")
    _check_labels(y_query, "--query-labels", session.query_labels, queries, "--queries")
    return scq.metrics.evaluation.RetrievalTask(
        rows,
        y,
        X_query=queries,
        query_labels=y_query,
        metric=metric,
        n_queries=session.n_queries,
        device=session.device,
        random_state=session.seed,
    )


def _check_labels(y: np.ndarray | None, option: str, path: Path | None, rows: Any, of: str) -> None:
    """Reject labels that are not one per row, in terms of the options."""
    if y is not None and len(y) != rows.shape[0]:
        raise ValueError(
            f"{option} {path} holds {len(y):,} labels, and {of} {rows.shape[0]:,} rows ({rows.label}); one per row is "
            "expected"
        )


def _read_labels(session: Session, *paths: Path | None) -> list[np.ndarray | None]:
    """Read labels from each file: integers, or 0/1 in columns. Words get the same numbers in all files."""
    session.takes(*(path for path in paths if path is not None))
    labels = [None if path is None else load_column(path, "label") for path in paths]
    given = [y for y in labels if y is not None]
    if any(y.dtype.kind in "US" for y in given):
        known = np.unique(np.concatenate([y.astype(str) for y in given]))
        return [None if y is None else np.searchsorted(known, y.astype(str)) for y in labels]
    return labels
