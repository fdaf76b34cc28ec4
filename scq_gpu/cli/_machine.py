"""Commands that describe, demonstrate and time: info, demo, bench, and the version."""

import contextlib
import importlib.util
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import scq_gpu as scq
from scq_gpu._core.arrays import count_cuda_devices, device_of, from_host, namespace, to_device, to_host
from scq_gpu._core.bits import code_bytes
from scq_gpu._core.machine import available_bytes
from scq_gpu._core.validate import fill_invalid
from scq_gpu.cli._console import Session, app, argument, command, index_facts, load_array, option
from scq_gpu.io.code_tables import TABLES, holds_codes, read_table
from scq_gpu.kernels import native
from scq_gpu.search import index_file

_PACKAGES = (
    *("numpy", "scikit-learn", "cupy-cuda12x", "cupy-cuda13x", "torch", "faiss-cpu", "matplotlib", "dask"),
    *("pyarrow", "h5py", "zarr", "onnx"),
)


@app.callback(invoke_without_command=True)
def _top(context: typer.Context, version: Annotated[bool, option("Print the version.", "--version")] = False) -> None:
    """Fit learned binary codes, encode rows, search codes and measure the results."""
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
    """Describe a file, or this machine."""
    if path is None:
        session.facts("This machine", _machine())
    elif path.endswith(".safetensors"):
        session.takes(path)
        session.facts(path, _model_or_index(Path(path), verify=verify))
    elif path.endswith(".bin"):
        session.facts(path, {"kind": "codes, or other bytes", "bytes": Path(path).stat().st_size})
    elif path.endswith(".invalid.npy"):
        session.facts(path, {"kind": "numbers of rows with NaN or inf", "rows": len(load_array(Path(path)))})
    elif Path(path).suffix in TABLES and holds_codes(Path(path)):
        codes, ids, n_bits = read_table(Path(path))
        facts: dict[str, Any] = {"kind": "codes", "rows": len(codes), "n_bits": n_bits, "bytes_per_row": codes.shape[1]}
        session.facts(
            path, facts | ({} if ids is None else {"ids": "strings" if ids.dtype.kind == "O" else "integers"})
        )
    else:
        rows = session.open_rows([path])
        kind = "codes, or rows of uint8" if rows.dtype == "uint8" else "rows"
        n, d = rows.shape
        facts = {"kind": kind, "rows": n, "columns": d, "dtype": str(rows.dtype)}
        if verify:
            step = max(1, (32 << 20) // (d * rows.dtype.itemsize))
            facts |= {"verified": True, "invalid_rows": sum(len(fill_invalid(X)[1]) for X in rows.blocks(step))}
        session.facts(path, facts)


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
    facts["native_core"] = f"none: {native.missing}" if native.core is None else native.core.in_use()
    if reason:
        facts["no_gpu"] = reason
    for package in _PACKAGES:
        facts[package] = None
        with contextlib.suppress(PackageNotFoundError):
            facts[package] = installed(package)
    return facts


def _model_or_index(path: Path, *, verify: bool) -> dict[str, Any]:
    checked = {"verified": True} if verify else {}
    kind = index_file.format_of(path)
    if kind == index_file.FORMAT:
        index = scq.HammingIndex.load(path, verify=verify)
        return {"kind": "index", "codes": len(index), "n_bits": index.n_bits} | checked
    if kind == index_file.VECTOR_FORMAT:
        return index_facts(scq.VectorIndex.load(path, verify=verify)) | checked
    # Loading a model always compares its digest.
    return {"kind": "model", **scq.plots.report.encoder_facts(scq.load(path))} | checked


@app.command("demo")
def demo(
    output: Annotated[Path, option("Folder for the picture.", "--output", "-o")] = Path("demo_output"),
) -> None:
    """Fit and search on handwritten digits: table and picture."""
    Session()  # sets how warnings are shown
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    n_queries, k = 300, 100
    X, y = load_digits(return_X_y=True)
    X = X.astype("float32")
    X_base, X_query, y_base, y_query = train_test_split(X, y, test_size=n_queries, stratify=y, random_state=0)
    print(f"{len(X_base)} handwritten digits as database, {n_queries} others as queries, {X.shape[1]} float32 features")
    print(f"\n{'method':<14}{'bits':>6}{'mAP':>8}{f'prec@{k}':>10}{'bytes/vector':>14}{'fit seconds':>13}")
    print("-" * 65)
    line = "{:<14}{:>6}{:>8.1f}{:>10.1f}{:>14}{:>13}"
    encoder: Any = None
    for n_bits in (8, 16, 32):
        for Encoder in (scq.OnE, scq.OgE):
            started = time.perf_counter()
            encoder = Encoder(n_bits=n_bits, preserve="classes", random_state=0).fit(X_base)
            seconds = f"{time.perf_counter() - started:.3f}"
            found = scq.evaluate(encoder, X_query, X_base, y_query, y_base, k=k, recall=False).as_dict()
            values = 100 * found["mean_average_precision"], 100 * found["precision_at_k"]
            print(line.format(Encoder.__name__, n_bits, *values, code_bytes(n_bits), seconds))
    ranked = scq.metrics.exact_neighbors(X_query, X_base, k=len(X_base))
    mean_ap = scq.metrics.ranked_average_precision(ranked, y_query, y_base).mean()
    precision = scq.metrics.ranked_precision_at_k(ranked, y_query, y_base, k=k)
    print(line.format("float vectors", "", 100 * mean_ap, 100 * precision, 4 * X.shape[1], ""))
    codes = encoder.encode(X_query), encoder.encode(X_base)
    chosen, ids, marks = scq.plots.report.typical_answers(*codes, n_bits, (y_query, y_base))
    queries, answers = X_query[chosen].reshape(-1, 8, 8), X_base[ids].reshape(*ids.shape, 8, 8)
    output.mkdir(parents=True, exist_ok=True)
    path = output / "neighbors.png"
    with scq.plots.theme():
        ax = scq.plots.gallery(queries, answers, **marks)
        ax.set_title(
            f"{type(encoder).__name__}, {n_bits} bits per digit ({code_bytes(n_bits)} bytes): typical queries, and "
            "nearest by distance"
        )
        ax.figure.savefig(path, dpi=110)
    print(f"\nTypical queries and their nearest images by Hamming distance ({n_bits} bits): {path}")


@command("device")
def bench(
    session: Session,
    model: Annotated[Path | None, option("Encode with this model instead of a random one.")] = None,
    rows: Annotated[int, option("Rows to encode, random float32.", min=1)] = 100_000,
    features: Annotated[int, option("Features per row; a model brings its own.", min=1)] = 512,
    bits: Annotated[int, option("Bits per code; a model brings its own.", min=1)] = 32,
) -> None:
    """Measure how fast this machine encodes, beside a matrix product and Faiss."""
    session.check_device()
    if model is not None:
        encoder = scq.load(model)
    elif bits > features:
        raise typer.BadParameter(f"--bits {bits} exceeds --features {features}")
    else:
        # One iteration is enough: the speed of an encoder does not depend on its quality.
        sample = np.random.default_rng(1).standard_normal((2 * features + 8, features), dtype=np.float32)
        encoder = scq.OgE(bits, n_components=None, max_iter=1, tol=0, random_state=0).fit(sample)
    n_bits, d = encoder.n_bits, encoder.n_features_in_
    X = np.random.default_rng(0).standard_normal((rows, d), dtype=np.float32)
    session.note(f"encoding {rows:,} rows of {d:,} float32 features to {n_bits} bits, best of 5")
    contenders = dict(_contenders(encoder, X, session.device))
    times: dict[str, list[float]] = {title: [] for title in contenders}
    # Runs alternate, so that load affects all contenders alike. The first run of each is a warm-up.
    for _ in range(6):
        for title, run in contenders.items():
            started = time.perf_counter()
            # Copying a row of the result waits for the device.
            to_host(run()[:1, :])
            times[title].append(time.perf_counter() - started)
    seconds = {title: min(taken[1:]) for title, taken in times.items()}
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
    facts = {"rows": rows, "features": d, "n_bits": n_bits, "device": device, "results": results}
    session.table(title, results, facts)


def _contenders(encoder: Any, X_host: np.ndarray, device: str | None) -> Iterator[tuple[str, Callable[[], Any]]]:
    X = to_device(X_host, device)
    yield "scq_gpu encode", lambda: encoder.encode(X)
    if not hasattr(encoder, "threshold_"):
        return
    floats = (np.asarray(to_host(x), dtype=np.float32) for x in (encoder.components_.T, encoder.threshold_))
    W, t = (from_host(x, xp=namespace(X), device=device_of(X)) for x in floats)
    yield "product alone", lambda: X @ W
    if isinstance(X, np.ndarray):
        yield "numpy.packbits(X @ W >= t)", lambda: np.packbits(X @ W >= t, axis=1, bitorder="little")
        if importlib.util.find_spec("faiss") is not None:
            index = encoder.to_faiss()
            yield "Faiss IndexLSH.sa_encode", lambda: index.sa_encode(X)
