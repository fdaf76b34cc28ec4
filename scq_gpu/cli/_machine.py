"""Commands about files and this machine: info, demo, and the version."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from typing import Annotated, Any

import typer

import scq_gpu as scq
from scq_gpu import _xp
from scq_gpu._host_memory import available_bytes
from scq_gpu.cli import _files
from scq_gpu.cli._console import Json, Name, Quiet, Talk
from scq_gpu.codes import code_bytes

_PACKAGES = (
    *("numpy", "scikit-learn", "numba", "cupy-cuda12x", "cupy-cuda13x", "torch", "faiss-cpu", "matplotlib", "dask"),
    *("pyarrow", "h5py", "zarr", "onnx"),
)


def add_commands(app: typer.Typer) -> None:
    """Add them to the app."""
    app.command()(info)
    app.command()(demo)
    app.callback()(_top)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"scq-gpu {scq.__version__}")
        raise typer.Exit


def _top(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Learned binary codes for similarity search: fit an encoder, encode rows, search codes, measure."""


def info(
    path: Annotated[
        Path | None,
        typer.Argument(help="A model, an index, codes or rows; without it, this machine.", show_default=False),
    ] = None,
    name: Name = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Tell about a file, or about this machine."""
    talk = Talk(as_json=json, quiet=quiet)
    if path is None:
        talk.facts("This machine", _machine())
    elif path.suffix == ".safetensors":
        talk.facts(str(path), _model_or_index(path))
    elif path.suffix == ".bin":
        talk.facts(str(path), {"kind": "codes, or other bytes", "bytes": path.stat().st_size})
    else:
        rows = _files.open_rows([path], name)
        n, d = rows.shape
        kind = "codes, or rows of uint8" if rows.dtype == "uint8" else "rows"
        talk.facts(str(path), {"kind": kind, "rows": n, "columns": d, "dtype": str(rows.dtype)})


def _machine() -> dict[str, Any]:
    count, reason = _xp._cuda_count("cupy")
    room = available_bytes()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts: dict[str, Any] = {
        "scq_gpu": scq.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu_cores": cores,
        "memory_available": None if room is None else f"{room / 2**30:.1f} GiB",
        "devices": ", ".join(["cpu", *(f"cuda:{i}" for i in range(count))]),
    }
    if reason:
        facts["no_gpu"] = reason
    return facts | {package: _version(package) for package in _PACKAGES}


def _version(package: str) -> str | None:
    try:
        return installed(package)
    except PackageNotFoundError:
        return None


def _model_or_index(path: Path) -> dict[str, Any]:
    try:
        encoder = scq.load(path)
    except scq.ModelFileError:
        try:
            index = scq.HammingIndex.load(path)
        except ValueError:
            index = None
        if index is None:
            raise
        return {"kind": "index", "codes": len(index), "n_bits": index.n_bits}
    facts: dict[str, Any] = {"kind": "model", "encoder": type(encoder).__name__, "n_bits": encoder.n_bits}
    facts |= {"bytes_per_row": code_bytes(encoder.n_bits), "n_features": encoder.n_features_in_}
    for key in ("n_samples_", "n_iter_", "converged_", "scale_"):
        if hasattr(encoder, key):
            facts[key.rstrip("_")] = getattr(encoder, key)
    if len(getattr(encoder, "loss_curve_", ())):
        facts["loss"] = encoder.loss_curve_[-1]
    for key, value in encoder.get_params(deep=False).items():
        if isinstance(value, bool | int | float | str) and key != "verbose":
            facts.setdefault(key, value)
    return facts


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the picture.")] = Path("demo_output"),
) -> None:
    """Fit and search on handwritten digits: table and picture."""
    from scq_gpu.demo import main

    main(["--output", str(output)])
