"""Commands that use an encoder: encode, search, export."""

import contextlib
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import scq_gpu as scq
from scq_gpu._core.arrays import to_device, to_host
from scq_gpu._core.bits import code_bytes
from scq_gpu._core.files import replace_file, replacing
from scq_gpu.cli._answers import ANSWERS, give_answers, join_lines, search_parts
from scq_gpu.cli._console import Data, Metric, Model, Session, argument, command, load_array, metric_option, option
from scq_gpu.io.code_files import encode_to_file
from scq_gpu.io.code_tables import TABLES, read_table
from scq_gpu.io.formats import FORMATS
from scq_gpu.rows.sources import RowSource, memory_map
from scq_gpu.search import index_file

_RESCORED = 10  # candidates re-ranked by their floats, per answer
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
        bool, option("When stopped, keep finished codes (OUTPUT.partial); run again to resume.", "--resume")
    ] = False,
    on_invalid: Annotated[
        str, option("Rows with NaN or inf: raise, skip or zero; OUTPUT.invalid.npy lists them.", "--on-invalid")
    ] = "raise",
    metric: Metric = "l2",
) -> None:
    """Encode rows as packed binary codes."""
    session.check_output(output)
    encoder = session.open_model(model)
    rows = session.open_rows(data, metric=metric)
    n, d = rows.shape
    session.note(f"encoding {n:,} rows of {d:,} {rows.dtype} features to {encoder.n_bits} bits")
    started = time.perf_counter()
    with contextlib.nullcontext() if resume else _no_partial(output):
        done = encode_to_file(
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
    """Remove the partial files of a failed run, unless an earlier run left them to resume from."""
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
        str | None, option(f"Rows behind the codes: re-rank {_RESCORED} k candidates by their floats.")
    ] = None,
    metric: Annotated[str | None, metric_option] = None,
) -> None:
    """Find the codes nearest to each query."""
    session.check_output(output, ANSWERS)
    encoder = session.open_model(model)
    session.takes(codes)
    if hasattr(encoder, "query_tables") and not asymmetric:
        raise ValueError(
            f"{model}: codes of an {type(encoder).__name__} have no Hamming distance; pass --asymmetric to compare the "
            "queries' floats with them"
        )
    index, names = _open_index(codes, encoder.n_bits, session.device)
    if k > len(index):
        warnings.warn(f"-k {k} exceeds the {len(index):,} codes of {codes}: a query has no more answers", stacklevel=2)
    X = np.asarray(session.open_rows(queries, metric=metric or "l2"))
    floats = None if rescore is None else session.open_rows([rescore])
    if floats is not None and floats.shape[0] != len(index):
        raise ValueError(
            f"--rescore {rescore} holds {floats.shape[0]:,} rows and {codes} {len(index):,} codes; they must match"
        )
    m = min(k if floats is None else _RESCORED * k, len(index))

    def find(Q: np.ndarray) -> Any:
        if asymmetric:
            return index.search_asymmetric(encoder, Q, m, metric=metric or "l2")
        return index.search(to_device(to_host(encoder.encode(Q)), session.device), m)

    started = time.perf_counter()
    distances, ids = search_parts(session, X, len(index), find)
    if floats is not None:
        distances, ids = _rescore(X, floats, ids, k=min(k, len(index)), metric=metric)
    seconds = time.perf_counter() - started
    # A table names its rows.
    if names is not None:
        ids = names[ids]
    facts = {"queries": len(ids), "codes": len(index), "k": ids.shape[1], "seconds": seconds}
    give_answers(session, output, distances, ids, facts)


def _open_index(path: Path, n_bits: int, device: str | None) -> tuple[Any, np.ndarray | None]:
    """Open codes or an index file to search, and the ids of the rows of a table."""
    if path.suffix != ".safetensors":
        codes, names = _open_codes(path, n_bits)
        return scq.HammingIndex(to_device(codes, device), n_bits), names
    if index_file.format_of(path) == "scq_gpu-model":
        raise typer.BadParameter(
            f"{path} is a model, where codes are expected: the model comes first, then codes, then queries"
        )
    index = scq.HammingIndex.load(path, device=device)
    if index.n_bits != n_bits:
        raise ValueError(f"{path} holds codes of {index.n_bits} bits, and the model makes {n_bits}")
    return index, None


def _rescore(
    X: np.ndarray, floats: RowSource, ids: np.ndarray, *, k: int, metric: str | None
) -> tuple[np.ndarray, np.ndarray]:
    """Re-rank candidates by their floats, without reading the other rows into memory."""
    mapped = memory_map(floats.label) if Path(floats.label).is_file() else None
    if mapped is not None:
        return scq.rescore(X, mapped, ids, k=k, metric=metric)
    # Formats that cannot be mapped are read once, in blocks, of which the candidates are kept.
    rows, numbers = np.unique(ids, return_inverse=True)
    step = max(1, (32 << 20) // (floats.shape[1] * floats.dtype.itemsize))
    kept = [block[rows[rows // step == i] - i * step] for i, block in enumerate(floats.blocks(step))]
    distances, best = scq.rescore(X, np.concatenate(kept), numbers.reshape(ids.shape), k=k, metric=metric)
    return distances, rows[best]


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
    session.takes(source)
    if source.suffix == ".safetensors":
        replace_file(output, _export_model(source, to))
    else:
        if to not in FORMATS:
            raise typer.BadParameter(f"codes can be exported to {', '.join(FORMATS)}, not to {to!r}")
        codes, _ = _open_codes(source, bits)
        converted = scq.convert(codes, bits or 8 * codes.shape[1], to=to)
        strings = isinstance(converted, list) or converted.dtype.kind == "U"
        session.check_output(output, [".txt" if strings else ".npy"])
        with replacing(output) as file:
            if strings:
                file.write(join_lines(converted))
            else:
                np.save(file, converted)
    session.summary("Exported", {"output": output, "format": to, "bytes": output.stat().st_size})


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


def _open_codes(path: Path, n_bits: int | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Open the codes that ``scq-gpu encode`` wrote, memory-mapped where possible, and the ids of a table.

    None for ``n_bits`` means all bits of their bytes.
    """
    known = ".npy", ".bin", *TABLES
    if path.suffix not in known:
        listed = ", ".join(known)
        raise ValueError(f"{path} has the ending {path.suffix!r}; codes are {listed} or an index (.safetensors)")
    if path.suffix in TABLES:
        codes, names, made_for = read_table(path)
        if n_bits not in (None, made_for):
            raise ValueError(f"{path} holds codes of {made_for} bits, and {n_bits} are expected")
        return codes, names if names is None or names.dtype.kind != "O" else names.astype(str)
    if path.suffix == ".npy":
        codes = load_array(path)
        n_bits = n_bits or 8 * max(1, codes.shape[1] if codes.ndim == 2 else 1)
        width = code_bytes(n_bits)
        if codes.dtype != np.uint8 or codes.ndim != 2 or codes.shape[1] != width:
            raise ValueError(
                f"{path} holds {codes.dtype} of shape {codes.shape}; codes of {n_bits} bits are uint8 (n, {width}), as "
                "`scq-gpu encode` writes them, and come before the queries"
            )
        return codes, None
    if n_bits is None:
        raise ValueError(f"{path} does not say how long its codes are; pass --bits")
    size, width = path.stat().st_size, code_bytes(n_bits)
    if not size or size % width:
        raise ValueError(f"{path} has {size} bytes, which is no number of codes of {width} bytes ({n_bits} bits)")
    return np.memmap(path, dtype=np.uint8, mode="r", shape=(size // width, width)), None
