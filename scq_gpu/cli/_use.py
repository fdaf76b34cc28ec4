"""Commands that use an encoder: encode, search, export."""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from tqdm import tqdm

import scq_gpu as scq
from scq_gpu._core.arrays import to_host
from scq_gpu._core.bits import code_bytes
from scq_gpu._core.devices import to_device
from scq_gpu._core.files import replace_file
from scq_gpu.cli._arrays import load_array
from scq_gpu.cli._console import Data, Model, Session, argument, command, join_csv, join_lines, option
from scq_gpu.io.code_files import encode_rows
from scq_gpu.io.code_tables import TABLES, read_table
from scq_gpu.io.formats import FORMATS
from scq_gpu.search import index_file

_RESCORED = 10  # answers looked at by their floats, for each one wanted
_SHOWN = 10  # queries printed
_PAIRS = 1 << 30  # queries times codes between two steps of the progress bar
_MODEL_EXPORTS = ("onnx", "faiss")
_FORMATS_HELP = f"For a model: {', '.join(_MODEL_EXPORTS)}. For codes: {', '.join(FORMATS)}."


@command("overwrite", "name", "device")
def encode(
    session: Session,
    model: Model,
    data: Data,
    output: Annotated[
        Path, option("Codes: .npy (uint8 array), .bin (bytes alone), .parquet or .arrow (a table).", "--output", "-o")
    ],
    id_column: Annotated[
        str | None, option("Column of Parquet or Arrow data to write beside the codes, into a table.")
    ] = None,
    workers: Annotated[int, option("Processes that read and encode.", min=1)] = 1,
    resume: Annotated[
        bool, option("When stopped, keep what is done (OUTPUT.partial); run again to go on.", "--resume")
    ] = False,
    on_invalid: Annotated[
        str, option("Rows with NaN or inf: raise, skip or zero; OUTPUT.invalid.npy lists them.", "--on-invalid")
    ] = "raise",
) -> None:
    """Encode rows as packed binary codes."""
    session.check_output(output)
    encoder = session.open_model(model)
    rows = session.open_rows(data)
    n, d = rows.shape
    session.note(f"encoding {n:,} rows of {d:,} {rows.dtype} features to {encoder.n_bits} bits")
    started = time.perf_counter()
    with contextlib.nullcontext() if resume else _no_partial(output):
        done = encode_rows(
            encoder,
            rows,
            output,
            id_column=id_column,
            workers=workers,
            overwrite=session.overwrite,
            on_invalid=on_invalid,
            progress=not session.quiet,
            say=session.note,
        )
    seconds = time.perf_counter() - started
    report = output.with_name(f"{output.name}.invalid.npy")
    facts = {"output": output, "rows": n, "n_bits": encoder.n_bits, "bytes_per_row": code_bytes(encoder.n_bits)}
    if on_invalid != "raise":
        facts |= {"invalid_rows": done.invalid} | ({"invalid_rows_in": report} if done.invalid else {})
    if done.earlier:
        facts |= {"rows_of_earlier_runs": done.earlier}
    session.summary("Encoded", facts | {"seconds": seconds, "rows_per_second": (n - done.earlier) / seconds})


@contextlib.contextmanager
def _no_partial(output: Path) -> Iterator[None]:
    """Remove what a failed run leaves, unless an earlier one left it there to go on from."""
    left = [output.with_name(f"{output.name}{ending}") for ending in (".partial", ".partial.json", ".partial.invalid")]
    ours = not any(path.exists() for path in left)
    try:
        yield
    except BaseException as error:
        if not ours:
            raise
        for path in left:
            path.unlink(missing_ok=True)
        if not isinstance(error, OSError) or not error.errno or isinstance(error, FileExistsError):
            raise
        message = f"{os.strerror(error.errno)}: could not write {output}; with --resume it could go on later"
        raise OSError(error.errno, message) from error


@command("overwrite", "name", "device")
def search(
    session: Session,
    model: Model,
    codes: Annotated[Path, argument("Codes (.npy, .bin, .parquet, .arrow) or an index (.safetensors).")],
    queries: Annotated[list[str], argument("Rows to search for, as for `encode`.")],
    k: Annotated[int, option("Answers per query.", "-k", min=1)] = 10,
    output: Annotated[Path | None, option("Write all answers: .npz, .csv or .jsonl.", "--output", "-o")] = None,
    asymmetric: Annotated[
        bool, option("Compare projections of the queries, not their bits, with the codes.", "--asymmetric")
    ] = False,
    rescore: Annotated[
        str | None, option(f"The rows behind the codes: order {_RESCORED} k answers by their floats.")
    ] = None,
) -> None:
    """Find the codes nearest to each query."""
    session.check_output(output, _ANSWERS)
    encoder = session.open_model(model)
    index, names = _open_index(codes, encoder.n_bits, session.device)
    rows = session.open_rows(queries)
    floats = None if rescore is None else np.asarray(session.open_rows([rescore]))
    if floats is not None and len(floats) != len(index):
        raise ValueError(
            f"--rescore {rescore} holds {len(floats):,} rows and {codes} {len(index):,} codes; they must match"
        )
    wanted = min(k if floats is None else _RESCORED * k, len(index))

    def find(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if asymmetric:
            distances, ids = scq.asymmetric_search(encoder, X, index, wanted)
        else:
            distances, ids = index.search(to_device(to_host(encoder.encode(X)), session.device), wanted)
        if floats is not None:
            distances, ids = scq.rescore(X, floats, to_host(ids), k=min(k, len(index)))
        return to_host(distances), to_host(ids)

    started = time.perf_counter()
    distances, ids = _in_parts(find, np.asarray(rows), step=max(1, _PAIRS // len(index)), quiet=session.quiet)
    seconds = time.perf_counter() - started
    if names is not None:  # what was found are rows of the table
        ids = names[ids]
    facts: dict[str, Any] = {"queries": len(ids), "codes": len(index), "k": ids.shape[1], "seconds": seconds}
    if output is not None:
        replace_file(output, _ANSWERS[output.suffix.lower()](distances, ids))
        session.summary("Searched", {"output": output, **facts})
        return
    answers = zip(ids[:_SHOWN], distances[:_SHOWN], strict=True)
    shown = [
        {"query": q} | {str(rank): f"{i} ({d:g})" for rank, (i, d) in enumerate(zip(*pair, strict=True), start=1)}
        for q, pair in enumerate(answers)
    ]
    more = len(ids) - len(shown)
    note = f"and {more:,} queries more: -o FILE writes all" if more else ""
    facts |= {"ids": ids.tolist(), "distances": distances.tolist()}
    session.table("Rows found (distance)", shown, facts, note=note)


def _open_index(path: Path, n_bits: int, device: str | None) -> tuple[Any, np.ndarray | None]:
    """Codes to search, of an index file or as ``scq-gpu encode`` writes them; with a table's, the ids of its rows."""
    if path.suffix != ".safetensors":
        names = None
        if path.suffix in TABLES:
            names = scq.io.read_codes(path)[1]
            names = names if names is None or names.dtype.kind != "O" else names.astype(str)
        return scq.HammingIndex(to_device(_open_codes(path, n_bits), device), n_bits), names
    if index_file.format_of(path) == "scq_gpu-model":
        raise typer.BadParameter(
            f"{path} is a model, where codes are wanted: the model comes first, then codes, then queries"
        )
    index = scq.HammingIndex.load(path, device=device)
    if index.n_bits != n_bits:
        raise ValueError(f"{path} holds codes of {index.n_bits} bits, and the model makes {n_bits}")
    return index, None


def _in_parts(
    find: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], X: np.ndarray, *, step: int, quiet: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Answers to some queries at a time, behind a bar."""
    found = []
    with tqdm(total=len(X), desc="search", unit=" rows", unit_scale=True, disable=quiet or None) as bar:
        for start in range(0, len(X), step):
            found.append(find(X[start : start + step]))
            bar.update(len(found[-1][1]))
    distances, ids = zip(*found, strict=True)
    return np.concatenate(distances), np.concatenate(ids)


def _array_bytes(save: Callable[..., None], *arrays: np.ndarray, **named: np.ndarray) -> bytes:
    """What `numpy.save` or `numpy.savez` writes."""
    buffer = io.BytesIO()
    save(buffer, *arrays, **named)
    return buffer.getvalue()


def _csv(distances: np.ndarray, ids: np.ndarray) -> bytes:
    queries, ranks = np.indices(ids.shape)
    columns: list[list[Any]] = [x.ravel().tolist() for x in (queries, ranks, ids, distances)]
    if ids.dtype.kind == "U":  # names may hold commas and quotes
        columns[2] = ['"' + name.replace('"', '""') + '"' for name in columns[2]]
    return join_csv(["query", "rank", "id", "distance"], zip(*columns, strict=True))


def _jsonl(distances: np.ndarray, ids: np.ndarray) -> bytes:
    answers = enumerate(zip(ids.tolist(), distances.tolist(), strict=True))
    return join_lines(json.dumps({"query": q, "ids": found, "distances": far}) for q, (found, far) in answers)


_ANSWERS: dict[str, Callable[[np.ndarray, np.ndarray], bytes]] = {
    ".npz": lambda distances, ids: _array_bytes(np.savez, distances=distances, ids=ids),
    ".csv": _csv,
    ".jsonl": _jsonl,
}
"""Results of a search as the content of a file: arrays, one line per answer, or one line per query."""


@command("overwrite")
def export(
    session: Session,
    source: Annotated[Path, argument("Model file, or codes (.npy, .bin, .parquet, .arrow).")],
    to: Annotated[str, option(_FORMATS_HELP, autocompletion=lambda: [*_MODEL_EXPORTS, *FORMATS])],
    output: Annotated[
        Path, option("The file; for codes .npy, or .txt for formats that are strings.", "--output", "-o")
    ],
    bits: Annotated[int | None, option("Length of the codes; all bits of their bytes if absent.", min=1)] = None,
) -> None:
    """Write a model or codes for other software."""
    session.check_output(output)
    is_model = source.suffix == ".safetensors"
    content = _export_model(source, to) if is_model else _export_codes(session, source, bits, to, output)
    replace_file(output, content)
    session.summary("Exported", {"output": output, "format": to, "bytes": len(content)})


def _export_model(path: Path, to: str) -> bytes:
    if to not in _MODEL_EXPORTS:
        raise typer.BadParameter(f"a model can be exported to {', '.join(_MODEL_EXPORTS)}, not to {to!r}")
    encoder = scq.load(path)
    if not hasattr(encoder, f"to_{to}"):
        raise ValueError(f"{path} holds a {type(encoder).__name__}, which is no linear map; it cannot go to {to}")
    if to == "onnx":
        return bytes(encoder.to_onnx().SerializeToString())
    index = encoder.to_faiss()
    import faiss

    content: np.ndarray = faiss.serialize_index(index)
    return content.tobytes()


def _export_codes(session: Session, path: Path, bits: int | None, to: str, output: Path) -> bytes:
    if to not in FORMATS:
        raise typer.BadParameter(f"codes can be exported to {', '.join(FORMATS)}, not to {to!r}")
    codes = _open_codes(path, bits)
    converted = scq.convert(codes, bits or 8 * codes.shape[1], to=to)
    strings = isinstance(converted, list) or converted.dtype.kind == "U"
    session.check_output(output, [".txt" if strings else ".npy"])
    return join_lines(converted) if strings else _array_bytes(np.save, converted)


def _open_codes(path: Path, n_bits: int | None) -> np.ndarray:
    """Codes that ``scq-gpu encode`` wrote, left on disk until they are used; None means all bits of their bytes."""
    if path.suffix not in (".npy", ".bin", *TABLES):
        known = ", ".join([".npy", ".bin", *TABLES])
        raise ValueError(f"{path} has the ending {path.suffix!r}; codes are {known} or an index (.safetensors)")
    if path.suffix in TABLES:
        codes, _, made_for = read_table(path)
        if n_bits not in (None, made_for):
            raise ValueError(f"{path} holds codes of {made_for} bits, and {n_bits} are wanted")
        return codes
    if path.suffix == ".npy":
        codes = load_array(path)
        n_bits = n_bits or 8 * max(1, codes.shape[1] if codes.ndim == 2 else 1)
        width = code_bytes(n_bits)
        if codes.dtype != np.uint8 or codes.ndim != 2 or codes.shape[1] != width:
            raise ValueError(
                f"{path} holds {codes.dtype} of shape {codes.shape}; codes of {n_bits} bits are uint8 (n, {width}), as "
                "`scq-gpu encode` writes them, and come before the queries"
            )
        return codes
    if n_bits is None:
        raise ValueError(f"{path} does not say how long its codes are; pass --bits")
    size, width = path.stat().st_size, code_bytes(n_bits)
    if not size or size % width:
        raise ValueError(f"{path} has {size} bytes, which is no number of codes of {width} bytes ({n_bits} bits)")
    return np.memmap(path, dtype=np.uint8, mode="r", shape=(size // width, width))
