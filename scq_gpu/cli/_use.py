"""Commands that use an encoder: encode, search, export."""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from tqdm import tqdm

import scq_gpu as scq
from scq_gpu._xp import to_device, to_host
from scq_gpu.cli import _files
from scq_gpu.cli._console import Data, Device, Json, Model, Name, Overwrite, Quiet, Talk
from scq_gpu.codes import code_bytes
from scq_gpu.interchange.formats import FORMATS
from scq_gpu.io import replace_file

_RESCORED = 10  # answers looked at by their floats, for each one wanted
_SHOWN = 10  # queries printed
_PAIRS = 1 << 30  # queries times codes between two steps of the progress bar
_MODEL_EXPORTS = ("onnx", "faiss")


def add_commands(app: typer.Typer) -> None:
    """Add them to the app."""
    for command in (encode, search, export):
        app.command()(command)


def encode(
    model: Model,
    data: Data,
    output: Annotated[Path, typer.Option("--output", "-o", help="Codes: .npy (uint8 array) or .bin (bytes alone).")],
    resume: Annotated[
        bool, typer.Option("--resume", help="When stopped, keep what is done (OUTPUT.partial); run again to go on.")
    ] = False,
    overwrite: Overwrite = False,
    name: Name = None,
    device: Device = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Encode rows as packed binary codes."""
    talk = Talk(as_json=json, quiet=quiet)
    _files.check_output(output, overwrite=overwrite)
    encoder = _files.open_model(model, device)
    rows = _files.open_rows(data, name)
    n, width = rows.shape[0], code_bytes(encoder.n_bits)
    talk.note(f"encoding {n:,} rows of {rows.shape[1]:,} {rows.dtype} features to {encoder.n_bits} bits")
    started = time.perf_counter()
    with contextlib.nullcontext() if resume else _no_partial(output):
        scq.encode_file(encoder, rows, output, overwrite=overwrite, progress=not quiet)
    seconds = time.perf_counter() - started
    facts = {"output": output, "rows": n, "n_bits": encoder.n_bits, "bytes_per_row": width}
    talk.summary("Encoded", facts | {"seconds": seconds, "rows_per_second": n / seconds})


@contextlib.contextmanager
def _no_partial(output: Path) -> Iterator[None]:
    """Remove what a failed run leaves, unless an earlier one left it there to go on from."""
    left = [output.with_name(f"{output.name}.partial"), output.with_name(f"{output.name}.partial.json")]
    ours = not any(path.exists() for path in left)
    try:
        yield
    except BaseException as error:
        if ours:
            for path in left:
                path.unlink(missing_ok=True)
        if ours and isinstance(error, OSError) and error.errno and not isinstance(error, FileExistsError):
            why = os.strerror(error.errno)
            raise OSError(
                error.errno, f"{why}: could not write {output}; with --resume it could go on later"
            ) from error
        raise


def search(
    model: Model,
    codes: Annotated[Path, typer.Argument(help="Codes (.npy, .bin) or an index (.safetensors).", show_default=False)],
    queries: Annotated[list[Path], typer.Argument(help="Rows to search for, as for `encode`.", show_default=False)],
    k: Annotated[int, typer.Option("-k", min=1, help="Answers to each query.")] = 10,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write all answers: .npz, .csv or .jsonl.")
    ] = None,
    asymmetric: Annotated[
        bool, typer.Option("--asymmetric", help="Compare projections of the queries, not their bits, with the codes.")
    ] = False,
    rescore: Annotated[
        Path | None, typer.Option(help=f"The rows behind the codes: order {_RESCORED} k answers by their floats.")
    ] = None,
    overwrite: Overwrite = False,
    name: Name = None,
    device: Device = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the codes nearest to each query."""
    talk = Talk(as_json=json, quiet=quiet)
    if output is not None:
        _files.check_output(output, overwrite=overwrite, endings=_files.ANSWERS)
    encoder = _files.open_model(model, device)
    index = _files.open_index(codes, encoder.n_bits, device)
    rows = _files.open_rows(queries, name)
    floats = None if rescore is None else np.asarray(_files.open_rows([rescore], name))
    if floats is not None and len(floats) != len(index):
        raise ValueError(f"{rescore} holds {len(floats):,} rows and {codes} {len(index):,} codes; they must match")
    wanted = min(k if floats is None else _RESCORED * k, len(index))

    def find(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if asymmetric:
            distances, ids = scq.asymmetric_search(encoder, X, index, wanted)
        else:
            distances, ids = index.search(to_device(to_host(encoder.encode(X)), device), wanted)
        if floats is not None:
            distances, ids = scq.rescore(X, floats, to_host(ids), k=min(k, len(index)))
        return to_host(distances), to_host(ids)

    started = time.perf_counter()
    distances, ids = _in_parts(find, np.asarray(rows), step=max(1, _PAIRS // len(index)), quiet=quiet)
    seconds = time.perf_counter() - started
    facts: dict[str, Any] = {"queries": len(ids), "codes": len(index), "k": ids.shape[1], "seconds": seconds}
    if output is not None:
        _files.write_answers(output, distances, ids)
        talk.summary("Searched", {"output": output, **facts})
        return
    shown = [[q, *(f"{i} ({d:g})" for i, d in zip(ids[q], distances[q], strict=True))] for q in range(len(ids))]
    more = len(shown) - _SHOWN
    talk.table(
        "Rows found (distance)",
        ["query", *(str(rank + 1) for rank in range(ids.shape[1]))],
        shown[:_SHOWN],
        facts | {"ids": ids.tolist(), "distances": distances.tolist()},
        note=f"and {more:,} queries more: -o FILE writes all" if more > 0 else "",
    )


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


def export(
    source: Annotated[Path, typer.Argument(help="Model file, or codes (.npy, .bin).", show_default=False)],
    to: Annotated[
        str,
        typer.Option(
            help=f"For a model: {', '.join(_MODEL_EXPORTS)}. For codes: {', '.join(FORMATS)}.",
            autocompletion=lambda: [*_MODEL_EXPORTS, *FORMATS],
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="The file; for codes .npy, or .txt for formats that are strings."),
    ],
    bits: Annotated[
        int | None, typer.Option(min=1, help="Length of the codes; all bits of their bytes if absent.")
    ] = None,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a model or codes for other software."""
    talk = Talk(as_json=json, quiet=quiet)
    _files.check_output(output, overwrite=overwrite)
    content = _export_model(source, to) if source.suffix == ".safetensors" else _export_codes(source, bits, to, output)
    replace_file(output, content)
    talk.summary("Exported", {"output": output, "format": to, "bytes": len(content)})


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


def _export_codes(path: Path, bits: int | None, to: str, output: Path) -> bytes:
    if to not in FORMATS:
        raise typer.BadParameter(f"codes can be exported to {', '.join(FORMATS)}, not to {to!r}")
    n_bits = _files.stored_bits(path) if bits is None else bits
    converted = scq.convert(_files.open_codes(path, n_bits), n_bits, to=to)
    strings = isinstance(converted, list) or converted.dtype.kind == "U"
    _files.check_output(output, overwrite=True, endings=[".txt" if strings else ".npy"])
    if strings:
        return "".join(f"{line}\n" for line in converted).encode()
    buffer = io.BytesIO()
    np.save(buffer, converted)
    return buffer.getvalue()
