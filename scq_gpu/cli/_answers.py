"""Answers of searches: found behind a progress bar, printed, or written to a file."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
from tqdm import tqdm

from scq_gpu._core.arrays import row_slices, to_host
from scq_gpu._core.files import replacing

_SHOWN = 10  # queries whose answers are printed
_PAIRS = 1 << 30  # queries times codes between two steps of the progress bar


def search_parts(
    session: Any, X: np.ndarray, n: int, find: Callable[[np.ndarray], Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Search n rows for a part of the queries at a time, behind a progress bar: distances and ids."""
    found = []
    with tqdm(total=len(X), desc="search", unit=" rows", unit_scale=True, disable=session.quiet or None) as bar:
        for part in row_slices(len(X), max(1, _PAIRS // max(1, n))):
            found.append([to_host(x) for x in find(X[part])])
            bar.update(len(found[-1][1]))
    distances, ids = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return distances, ids


def give_answers(
    session: Any, output: Path | None, distances: np.ndarray, ids: np.ndarray, facts: dict[str, Any]
) -> None:
    """Write all answers to a file, or print the first queries' as a table, or all as JSON."""
    if output is not None:
        with replacing(output) as file:
            ANSWERS[output.suffix.lower()](file, distances, ids)
        session.summary("Searched", {"output": output, **facts})
        return
    shown = [
        {"query": q, "rank": rank, "id": str(i), "distance": f"{d:g}"}
        for q, pair in enumerate(zip(ids[:_SHOWN], distances[:_SHOWN], strict=True))
        for rank, (i, d) in enumerate(zip(*pair, strict=True), start=1)
        if np.isfinite(d)
    ]
    more = max(0, len(ids) - _SHOWN)
    note = f"and {more:,} queries more: -o FILE writes all\n" if more else ""
    if "recall" in facts:
        note += f"recall of {facts['recall_queries']:,} queries: {facts['recall']:.4f}"
    facts |= {"ids": ids.tolist(), "distances": distances.tolist()}
    session.table("Rows found", shown, facts, note=note.rstrip())


def _write_csv(file: IO[bytes], distances: np.ndarray, ids: np.ndarray) -> None:
    queries, ranks = np.indices(ids.shape)
    columns: list[list[Any]] = [x.ravel().tolist() for x in (queries, ranks, ids, distances)]
    # Names may hold commas and quotes.
    if ids.dtype.kind == "U":
        columns[2] = ['"' + name.replace('"', '""') + '"' for name in columns[2]]
    file.write(join_csv(["query", "rank", "id", "distance"], zip(*columns, strict=True)))


def _write_jsonl(file: IO[bytes], distances: np.ndarray, ids: np.ndarray) -> None:
    answers = enumerate(zip(ids.tolist(), distances.tolist(), strict=True))
    file.write(join_lines(json.dumps({"query": q, "ids": found, "distances": far}) for q, (found, far) in answers))


# Writers of all answers: arrays, one line per answer, or one line per query.
ANSWERS: dict[str, Callable[[IO[bytes], np.ndarray, np.ndarray], None]] = {
    ".npz": lambda file, distances, ids: np.savez(file, distances=distances, ids=ids),
    ".csv": _write_csv,
    ".jsonl": _write_jsonl,
}


def join_lines(lines: Iterable[str]) -> bytes:
    """Join lines into the content of a text file."""
    return "".join(f"{line}\n" for line in lines).encode()


def join_csv(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> bytes:
    """Format a table of numbers and plain names as CSV."""
    return join_lines(",".join(map(str, row)) for row in (columns, *rows))
