"""Commands about files and this machine: info, demo, and the version."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from typing import Annotated, Any

import typer

import scq_gpu as scq
from scq_gpu._core.devices import count_cuda_devices
from scq_gpu._core.host_memory import available_bytes
from scq_gpu._core.invalid import fill_invalid
from scq_gpu.cli._console import Session, app, argument, command, option
from scq_gpu.search import index_file

_PACKAGES = (
    *("numpy", "scikit-learn", "numba", "cupy-cuda12x", "cupy-cuda13x", "torch", "faiss-cpu", "matplotlib", "dask"),
    *("pyarrow", "h5py", "zarr", "onnx"),
)


@app.callback(invoke_without_command=True)
def _top(context: typer.Context, version: Annotated[bool, option("Print the version.", "--version")] = False) -> None:
    """Learned binary codes for similarity search: fit an encoder, encode rows, search codes, measure."""
    if version:
        print(f"scq-gpu {scq.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)


@command("name")
def info(
    session: Session,
    path: Annotated[str | None, argument("A model, an index, codes or rows; without it, this machine.")] = None,
    verify: Annotated[
        bool, option("Read all of the file: compare an index's digests, count rows with NaN or inf.", "--verify")
    ] = False,
) -> None:
    """Tell about a file, or about this machine."""
    if path is None:
        session.facts("This machine", _machine())
    elif path.endswith(".safetensors"):
        session.facts(path, _model_or_index(Path(path), verify=verify))
    elif path.endswith(".bin"):
        session.facts(path, {"kind": "codes, or other bytes", "bytes": Path(path).stat().st_size})
    else:
        rows = session.open_rows([path])
        kind = "codes, or rows of uint8" if rows.dtype == "uint8" else "rows"
        facts = {"kind": kind, "rows": rows.shape[0], "columns": rows.shape[1], "dtype": str(rows.dtype)}
        session.facts(path, facts | (_count_invalid(rows) if verify else {}))


def _count_invalid(rows: Any) -> dict[str, Any]:
    """Go through all rows."""
    step = max(1, (32 << 20) // (rows.shape[1] * rows.dtype.itemsize))
    return {"verified": True, "invalid_rows": sum(len(fill_invalid(X)[1]) for X in rows.blocks(step))}


def _machine() -> dict[str, Any]:
    count, reason = count_cuda_devices()
    memory = available_bytes()
    facts: dict[str, Any] = {
        "scq_gpu": scq.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_available": None if memory is None else f"{memory / 2**30:.1f} GiB",
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


def _model_or_index(path: Path, *, verify: bool) -> dict[str, Any]:
    checked = {"verified": True} if verify else {}
    kind = index_file.format_of(path)
    if kind == index_file.FORMAT:
        index = scq.HammingIndex.load(path, verify=verify)
        return {"kind": "index", "codes": len(index), "n_bits": index.n_bits} | checked
    if kind == index_file.VECTOR_FORMAT:
        vectors = scq.VectorIndex.load(path, verify=verify)
        return {"kind": "vector index", "vectors": len(vectors), "n_bits": vectors.n_bits} | checked
    return {"kind": "model", **scq.report.encoder_facts(scq.load(path))} | checked  # its digest is always compared


@app.command("demo")
def demo(
    output: Annotated[Path, option("Folder for the picture.", "--output", "-o")] = Path("demo_output"),
) -> None:
    """Fit and search on handwritten digits: table and picture."""
    Session()  # for its warnings
    from scq_gpu.cli.demo import main

    main(output)
