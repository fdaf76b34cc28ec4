"""Commands that measure: evaluate, report, bench."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import scq_gpu as scq
from scq_gpu._core.arrays import device_of, from_host, namespace, to_host
from scq_gpu._core.bits import code_bytes
from scq_gpu._core.devices import to_device
from scq_gpu._core.files import natural_order, replace_file
from scq_gpu._core.validate import AP_RULES, METRICS, TIE_RULES
from scq_gpu.cli._arrays import load_array
from scq_gpu.cli._console import Model, Session, command, option
from scq_gpu.cli._plan import measure

_REPEATS = 5
_TEXT = {".txt", ".csv", ".labels"}
_IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}

Rows = Annotated[list[str], option("Rows to search in; repeat it for several files.", "--data")]


Metric = Annotated[str, option(f"What near means: {', '.join(METRICS)}.")]


def open_task(session: Session, data: list[str], *, metric: str = "l2") -> Any:
    """Rows, queries and right answers, from files."""
    y, y_query = _read_labels(session.labels, session.query_labels)
    rows = session.open_rows(data)
    queries = session.open_rows(session.queries) if session.queries else None
    if queries is not None and (y is None) != (y_query is None):
        given, missing = ("--labels", "--query-labels") if y_query is None else ("--query-labels", "--labels")
        raise ValueError(f"{given} was given, but not {missing}; right answers need the labels of both")
    check_labels(y, "--labels", session.labels, rows, "the data")
    if queries is not None:
        check_labels(y_query, "--query-labels", session.query_labels, queries, "--queries")
    elif y_query is not None:
        raise ValueError(f"--query-labels {session.query_labels} was given, but not --queries, whose labels they are")
    return scq.evaluation.RetrievalTask(
        rows,
        y,
        X_query=queries,
        query_labels=y_query,
        metric=metric,
        n_queries=session.n_queries,
        device=session.device,
        random_state=session.seed,
    )


def check_labels(y: np.ndarray | None, option: str, path: Path | None, rows: Any, of: str) -> None:
    """Refuse labels that are not one per row, by the names of the options."""
    if y is not None and len(y) != rows.shape[0]:
        raise ValueError(
            f"{option} {path} holds {len(y):,} labels, and {of} {rows.shape[0]:,} rows ({rows.label}); one per row is "
            "wanted"
        )


def _read_labels(*paths: Path | None) -> list[np.ndarray | None]:
    """Labels of each file: integers, or 0/1 in columns; words are numbered, the same in all files."""
    labels = [None if path is None else _read_label_file(path) for path in paths]
    given = [y for y in labels if y is not None]
    if any(y.dtype.kind in "US" for y in given):
        known = np.unique(np.concatenate([y.astype(str) for y in given]))
        return [None if y is None else np.searchsorted(known, y.astype(str)) for y in labels]
    return labels


def _read_label_file(path: Path) -> np.ndarray:
    if path.suffix.lower() not in _TEXT:
        labels = load_array(path)
        return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    lines = np.array(path.read_text(encoding="utf-8").split("\n"), dtype=str)
    lines = np.char.strip(lines[:-1] if lines[-1] == "" else lines)
    if not len(lines) or (lines == "").any():
        raise ValueError(f"{path} has an empty line {1 + int(np.argmax(lines == ''))}; one label per line is wanted")
    try:
        return lines.astype(np.int64)
    except ValueError:
        return lines


@command("labels", "queries", "query_labels", "n_queries", "seed", "name", "device")
def evaluate(
    session: Session,
    model: Model,
    data: Rows,
    k: Annotated[int, option("Answers that precision_at_k looks at.", "-k", min=1)] = 1000,
    radius: Annotated[int, option("Hamming radius of precision_at_radius.", min=0)] = 2,
    ap: Annotated[str, option(f"Rule of average precision: {', '.join(AP_RULES)}.")] = "standard",
    ties: Annotated[str, option(f"Order inside ties: {', '.join(TIE_RULES)}.")] = "database",
    metric: Metric = "l2",
) -> None:
    """Measure how good the answers are.

    How many of the query's 10 nearest rows are found by codes (recall), by float queries against the codes (asymmetric)
    and after ordering 40 or 160 candidates by their floats (rescored); with labels also precision by them.
    """
    for rule, value, choices in (("ap", ap, AP_RULES), ("ties", ties, TIE_RULES), ("metric", metric, METRICS)):
        if value not in choices:
            raise typer.BadParameter(f"--{rule} {value} is not one of {', '.join(choices)}")
    encoder = session.open_model(model)
    task = open_task(session, data, metric=metric)
    session.note(f"{task.n_queries:,} queries in {len(task.database_rows):,} rows")
    facts = {"encoder": type(encoder).__name__, "n_bits": encoder.n_bits, "queries": task.n_queries}
    facts |= {"database": len(task.database_rows)}
    session.facts("Evaluation", facts | task.measure(encoder, k=k, radius=radius, ap=ap, ties=ties))


@command("labels", "n_queries", "seed", "overwrite", "name", "device")
def report(
    session: Session,
    model: Model,
    data: Rows,
    output: Annotated[Path, option("The page, .html.", "--output", "-o")] = Path("report.html"),
    images: Annotated[
        Path | None, option("Pictures of the rows: .npy (n, height, width[, 3]) or a folder of files.")
    ] = None,
    fast: Annotated[bool, option("Leave out the figures that need other encoders fitted.", "--fast")] = False,
) -> None:
    """Write a page about a model: figures, facts, a gallery.

    It is one HTML file that needs no network. Some of the data, taken out at random, are the queries.
    """
    session.check_output(output, [".html"])
    encoder = session.open_model(model)
    rows = session.open_rows(data)
    labels = _read_labels(session.labels)[0]
    check_labels(labels, "--labels", session.labels, rows, "the data")
    session.note(f"measuring {model.name} on {rows.shape[0]:,} rows")
    numbers = scq.report.write_report(
        output,
        encoder,
        rows,
        labels=labels,
        images=None if images is None else _read_images(images),
        n_queries=session.n_queries,
        refit=not fast,
        random_state=session.seed,
        name=model.name,
    )
    session.summary("Report", {"output": output, **numbers, "bytes": output.stat().st_size})


def _read_images(path: Path) -> Any:
    """An array of images, or the image files of a folder in the natural order of their names."""
    if not path.is_dir():
        return load_array(path)
    found = [p for p in path.iterdir() if p.suffix.lower() in _IMAGES and not p.name.startswith(".")]
    if not found:
        raise ValueError(f"{path} is a folder without images ({', '.join(sorted(_IMAGES))})")
    return sorted(found, key=natural_order)


@command("device", "overwrite")
def bench(
    session: Session,
    model: Annotated[Path | None, option("Encode with this model rather than with one made up.")] = None,
    rows: Annotated[int, option("Rows to encode, random float32.", min=1)] = 100_000,
    features: Annotated[int, option("Features per row; a model brings its own.", min=1)] = 512,
    bits: Annotated[int, option("Bits per code; a model brings its own.", min=1)] = 32,
    codes: Annotated[int, option("Codes to scan, random.", min=1000)] = 5_000_000,
    output: Annotated[
        Path | None, option("Also write all figures, .json, for `scq-gpu plan`.", "--output", "-o")
    ] = None,
) -> None:
    """Measure how fast this machine encodes and scans.

    Beside encoding stand the bare matrix product and, if it is installed, Faiss. Scans are on the CPU.
    """
    session.check_device()
    session.check_output(output, [".json"])
    encoder = scq.load(model) if model is not None else _made_up(features, bits)
    n_bits, d = encoder.n_bits, encoder.n_features_in_
    X = np.random.default_rng(0).standard_normal((rows, d), dtype=np.float32)
    session.note(f"encoding {rows:,} rows of {d:,} float32 features to {n_bits} bits, best of {_REPEATS}")
    seconds = _best_times(dict(_contenders(encoder, X, session.device)))
    bare = seconds.get("product alone")
    results = [
        {
            "what": what,
            "milliseconds": 1e3 * s,
            "rows_per_second": rows / s,
            "gigabytes_per_second": X.nbytes / s / 1e9,
            "times_product": None if bare is None else s / bare,
        }
        for what, s in seconds.items()
    ]
    device = session.device or "cpu"
    title = f"{rows:,} x {d:,} float32 to {n_bits} bits ({code_bytes(n_bits)} bytes) on {device}"
    rates = measure(session, d, n_bits, rows=max(1000, rows), codes=codes).as_dict()
    facts = {"rows": rows, "features": d, "n_bits": n_bits, "device": device, "results": results, "rates": rates}
    if output is not None:
        replace_file(output, json.dumps(facts, indent=1).encode() + b"\n")
    session.table(title, results, facts, note="" if session.json else _scan_lines(rates))


def _scan_lines(rates: dict[str, Any]) -> str:
    """What the scans came to, for people."""
    kinds = {
        "Hamming, one query": "hamming",
        "Hamming, 64 at a time": "hamming_batch",
        "floats against codes, one query": "asymmetric",
        "floats against codes, 64 at a time": "asymmetric_batch",
    }
    lines = [f" {title:<36}{rates[f'{kind}_codes_per_second'] / 1e6:>12,.0f}" for title, kind in kinds.items()]
    fit = f"A fit takes {1e6 * rates['fit_seconds_per_row']:.3g} seconds per million rows."
    head = f"Scan of {rates['codes']:,} codes, million codes per second and query"
    return "\n".join([head, *lines, fit])


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
