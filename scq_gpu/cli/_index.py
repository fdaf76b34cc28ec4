"""Commands of an index of vectors: index build, add, remove, search, info, compact."""

import contextlib
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import scq_gpu as scq
from scq_gpu._core.arrays import row_slices
from scq_gpu.cli._answers import ANSWERS, give_answers, search_parts
from scq_gpu.cli._console import (
    Data,
    Metric,
    Session,
    app,
    argument,
    command,
    encoders,
    index_facts,
    load_column,
    make_encoder,
    option,
)

_BITS = 128  # at most, unless said otherwise
_ROWS = 4096  # whose distances are computed at a time, to measure recall

group = typer.Typer(help="Build, change and search an index of vectors.", rich_markup_mode=None, no_args_is_help=True)
app.add_typer(group, name="index")

Index = Annotated[Path, argument("Index file, as `scq-gpu index build` writes it.")]
Columns = Annotated[
    list[str] | None, option("Array or column with the vectors; repeat it for several.", "--vector-column")
]
IdColumn = Annotated[str | None, option("Column of Parquet or Arrow data with the ids.")]
Ids = Annotated[Path | None, option("Ids: .npy, or text with one per line.")]


@command("seed", "overwrite", "device", group=group)
def build(
    session: Session,
    data: Data,
    output: Annotated[Path, option("The index file, .safetensors.", "--output", "-o")],
    bits: Annotated[
        int | None, option("Length of the codes.", min=1, show_default=f"{_BITS}, or fewer for short vectors")
    ] = None,
    metric: Metric = "l2",
    encoder: Annotated[str, option("Encoder: OPQ, or a linear one.", autocompletion=encoders)] = "OPQ",
    ids: Ids = None,
    id_column: IdColumn = None,
    vector_column: Columns = None,
    keep_vectors: Annotated[
        str, option("What re-ranks answers: true, false, float16, int8, or a new .npy file to write vectors to.")
    ] = "true",
) -> None:
    """Learn codes for vectors, and write them with ids and vectors to an index."""
    session.check_output(output, [".safetensors"])
    rows, given = _open(session, data, vector_column, ids, id_column)
    most = rows.shape[1] * (8 if encoder == "OPQ" else 1)
    learner = make_encoder(session, encoder, bits or min(_BITS, most), {})
    keep: Any = {"true": True, "false": False}.get(keep_vectors.lower(), keep_vectors)
    ours = Path(keep) if isinstance(keep, str) and keep not in ("float16", "int8") else None
    if ours is not None and ours.suffix != ".npy":
        raise typer.BadParameter(f"--keep-vectors {ours} is not true, false, float16, int8 or an .npy file")
    if ours is not None and ours.exists():
        raise FileExistsError(f"--keep-vectors {ours} is there already; name a new file")
    session.note(f"indexing {rows.shape[0]:,} rows of {rows.shape[1]:,} {rows.dtype} features")
    started = time.perf_counter()
    try:
        index = scq.VectorIndex(rows, metric=metric, encoder=learner, ids=given, keep_vectors=keep)
        index.save(output)
    except BaseException:
        if ours is not None:
            ours.unlink(missing_ok=True)
        raise
    session.summary("Built", {"output": output, **index_facts(index), "seconds": time.perf_counter() - started})


@command(group=group)
def add(
    session: Session,
    index: Index,
    data: Data,
    ids: Ids = None,
    id_column: IdColumn = None,
    vector_column: Columns = None,
) -> None:
    """Add vectors to an index."""
    with _changing(session, index, "Added") as opened:
        rows, given = _open(session, data, vector_column, ids, id_column, words=_has_words(opened))
        opened.add(rows, ids=given)


@command(group=group)
def remove(
    session: Session, index: Index, ids: Annotated[Path, argument("Ids: .npy, or text with one per line.")]
) -> None:
    """Remove vectors by id, each of which must be in the index."""
    with _changing(session, index, "Removed") as opened:
        session.takes(ids)
        opened.remove(load_column(ids, "id", words=_has_words(opened)))


@command("overwrite", group=group)
def search(
    session: Session,
    index: Index,
    queries: Annotated[list[str], argument("Vectors to search for, as for `build`.")],
    k: Annotated[int, option("Answers per query.", "-k", min=1)] = 10,
    candidates: Annotated[
        int | None, option("Vectors to re-rank per query.", min=1, show_default="20 k, at least 200")
    ] = None,
    allowed: Annotated[Path | None, option("Ids that may be found: .npy, or text with one per line.")] = None,
    vector_column: Columns = None,
    recall: Annotated[
        int | None, option("Also measure recall: exact search for so many of the queries.", min=1)
    ] = None,
    output: Annotated[Path | None, option("Write all answers: .npz, .csv or .jsonl.", "--output", "-o")] = None,
) -> None:
    """Find the vectors nearest to each query."""
    session.check_output(output, ANSWERS)
    opened = session.open_index(index)
    rows, _ = _open(session, queries, vector_column)
    X, kept = np.asarray(rows), opened.ids
    selected = None
    if allowed is not None:
        session.takes(allowed)
        listed = load_column(allowed, "id", words=_has_words(opened))
        selected, kept = opened.select(listed), kept[np.isin(kept, listed)]
    if k > len(kept):
        warnings.warn(f"-k {k} exceeds the {len(kept):,} vectors that may be found", stacklevel=2)
    k = max(1, min(k, len(kept)))
    started = time.perf_counter()
    distances, found = search_parts(
        session, X, len(opened), lambda Q: opened.search(Q, k, candidates=candidates, allowed=selected)
    )
    facts: dict[str, Any] = {"queries": len(X), "vectors": len(kept), "k": k, "seconds": time.perf_counter() - started}
    if recall is not None:
        some = min(recall, len(X))
        true = _exact(opened, X[:some], kept, k)
        facts |= {"recall": scq.metrics.recall_at_k(found[:some], true), "recall_queries": some}
    give_answers(session, output, distances, found, facts)


@command(group=group)
def info(
    session: Session,
    index: Index,
    verify: Annotated[bool, option("Read all of the file, and compare its digests.", "--verify")] = False,
) -> None:
    """Describe an index."""
    opened = session.open_index(index, verify=verify)
    facts = index_facts(opened) | {"bytes": index.stat().st_size}
    session.facts(str(index), facts | ({"verified": True} if verify else {}))


@command(group=group)
def compact(session: Session, index: Index) -> None:
    """Free the room of removed and replaced vectors in a file of vectors that the index writes."""
    with _changing(session, index, "Compacted") as opened:
        opened.compact()


@contextlib.contextmanager
def _changing(session: Session, path: Path, title: str) -> Iterator[Any]:
    """Open an index, and write it back when it has been changed."""
    index = session.open_index(path, change=True)
    before, started = len(index), time.perf_counter()
    try:
        yield index
    except KeyError as error:
        raise ValueError(error.args[0]) from error
    index.save(path)
    facts = {"index": path, "vectors_before": before, "vectors": len(index), "bytes": path.stat().st_size}
    session.summary(title, facts | {"seconds": time.perf_counter() - started})


def _open(
    session: Session,
    data: list[str],
    columns: list[str] | None,
    ids: Path | None = None,
    id_column: str | None = None,
    *,
    words: bool = False,
) -> tuple[Any, Any]:
    """Open vectors and read their ids, None if there are none."""
    session.name = columns
    rows = session.open_rows(data)
    if ids is not None:
        session.takes(ids)
        return rows, load_column(ids, "id", words=words)
    if id_column is None:
        return rows, None
    rows.id_type(id_column)
    return rows, np.concatenate([part.to_numpy(zero_copy_only=False) for part in rows.ids(id_column, 1 << 18)])


def _has_words(index: Any) -> bool:
    return bool(index.ids.dtype.kind == "U")


def _exact(index: Any, Q: np.ndarray, ids: np.ndarray, k: int) -> np.ndarray:
    """Return the ids of the k nearest vectors among those with some ids, by what the index keeps of them."""
    best, nearest = np.empty((len(Q), 0)), np.empty((len(Q), 0), dtype=ids.dtype)
    for part in row_slices(len(ids), _ROWS):
        rows = np.tile(np.arange(len(ids[part])), (len(Q), 1))
        d, rows = scq.rescore(Q, index.get(ids[part]), rows, metric=index.metric)
        best, nearest = np.hstack([best, d]), np.hstack([nearest, ids[part][rows]])
        order = np.argsort(best, axis=1, kind="stable")[:, :k]
        best, nearest = np.take_along_axis(best, order, axis=1), np.take_along_axis(nearest, order, axis=1)
    return nearest
