"""What a fit asks of the device per iteration, and an encode per call: a Markdown table.

    .venv-cupy/bin/python tests/cupy_on_cpu/counts.py > before.md

Counts are exact and need no GPU: they are what CuPy asked the stand-in for. They say nothing about time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import cupy
import numpy as np
import standin

import scq_gpu as scq

N, D, N_BITS = 20_000, 256, 32


@dataclass(frozen=True)
class Counts:
    """Of some work; of several iterations, their mean."""

    launches: float
    cublas: float
    cusolver: float
    syncs: float
    """Calls that hold the host until the device is done."""
    allocations: float
    """Asked of CuPy's pool, which asks the driver only if it has nothing that fits."""
    bytes_to_host: float
    bytes_to_device: float

    def __sub__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(Counts)))

    def __truediv__(self, n: int) -> Counts:
        return Counts(*(getattr(self, f.name) / n for f in fields(Counts)))


class _Allocations(cupy.cuda.MemoryHook):
    name = "allocations"
    n = 0

    def malloc_preprocess(self, **_: Any) -> None:
        self.n += 1


@contextmanager
def _counting() -> Iterator[list[Counts]]:
    """A list that holds the counts after the block."""
    result: list[Counts] = []
    with _Allocations() as allocations, standin.counting() as n:
        yield result
    syncs = sum(k for name, k in n.items() if name.startswith("sync ") or name.endswith(", synchronous"))
    result.append(
        Counts(
            launches=n["kernel launches"],
            cublas=n["cublas calls"],
            cusolver=n["cusolver calls"],
            syncs=syncs,
            allocations=allocations.n,
            bytes_to_host=n["copy device to host, bytes"],
            bytes_to_device=n["copy host to device, bytes"],
        )
    )


def count(work: Callable[[], object]) -> Counts:
    """Of work; what it compiles counts too, so have it done once before."""
    with _counting() as result:
        work()
    return result[0]


def rows(n: int = N) -> np.ndarray:
    """Gaussian rows with a decaying spectrum."""
    rng = np.random.default_rng(0)
    return (rng.standard_normal((n, D)) * np.logspace(0, -1.5, D)).astype(np.float32)


def count_iteration(Encoder: type, solver: str) -> dict[str, Counts]:
    """Of one iteration, from fits of different length."""
    X = cupy.asarray(rows())

    def fit(max_iter: int) -> Counts:
        encoder = Encoder(N_BITS, solver=solver, init="random", max_iter=max_iter, tol=0, random_state=0)
        return count(lambda: encoder.fit(X))

    fit(4)
    four, eight = fit(4), fit(8)
    return {f"{Encoder.__name__} {solver}": (eight - four) / 4}


STARTS = {"neighbors": "itq", "classes": "longer_code"}


def count_start(preserve: str) -> dict[str, Counts]:
    """Of the default start for an aim, per sign pass: 25 rotations for neighbors, after 16 passes for classes."""
    X = cupy.asarray(rows())

    def fit(init: str) -> Counts:
        encoder = scq.OgE(N_BITS, preserve=preserve, init=init, max_iter=1, tol=0, random_state=0)
        return count(lambda: encoder.fit(X))

    passes = {"neighbors": 25, "classes": 16 + 25}[preserve]
    for init in (STARTS[preserve], "pca"):
        fit(init)
    return {f"start for {preserve}, per pass": (fit(STARTS[preserve]) - fit("pca")) / passes}


def count_fit_from_host() -> tuple[Counts, int]:
    """Of a default fit of rows in host memory, and the bytes of the rows."""
    X = rows()
    encoder = scq.OgE(N_BITS, device="cuda", random_state=0)
    encoder.fit(X)
    return count(lambda: encoder.fit(X)), X.nbytes


def count_default_fit(n_bits: int, n_blocks: int, monkeypatch: Any) -> Counts:
    """Of a default fit of rows of 768 features on the device, in so many blocks; the start samples the size of one."""
    from scq_gpu.rows import blocks, stream
    from scq_gpu.training import starts

    height = 512
    monkeypatch.setattr(starts, "START_ROWS", height)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_blocks * height, 768)) * np.logspace(0, -1.5, 768)
    for module in (blocks, stream):
        monkeypatch.setattr(module, "block_bytes", lambda x: height * 4 * x.shape[1])
    X = cupy.asarray(X, dtype=np.float32)
    encoder = scq.OgE(n_bits, random_state=0)
    return count(lambda: encoder.fit(X))


def count_encode(n: int) -> Counts:
    """Of an encode of n rows on the device."""
    X = cupy.asarray(rows(n))
    encoder = scq.OgE(N_BITS, init="random", max_iter=2, tol=0, random_state=0).fit(X[:N])
    encoder.encode(X)
    return count(lambda: encoder.encode(X))


def count_placed() -> dict[str, Counts]:
    """Of calls whose rows, codes and results are all on the device, by an encoder told to work there."""
    X = cupy.asarray(rows())
    encoder = scq.OgE(N_BITS, init="random", max_iter=2, tol=0, random_state=0, device="cuda").fit(X)
    index = scq.HammingIndex(encoder.encode(X), N_BITS)
    queries = encoder.encode(X[:100])
    calls: dict[str, Callable[[], object]] = {
        "encode": lambda: encoder.encode(X),
        "project": lambda: encoder.project(X),
        "transform": lambda: encoder.transform(X),
        "search": lambda: index.search(queries, 10),
        "range_search": lambda: index.range_search(queries, 6),
    }
    return {name: (call(), count(call))[1] for name, call in calls.items()}


def count_streamed_block(height: int, dtype: str = "float32", precision: str = "exact") -> Counts:
    """Of a block of that height in an encode of rows in host memory, from two of different length."""
    X = rows(20 * height)
    encoder = scq.OgE(N_BITS, init="random", max_iter=2, tol=0, random_state=0).fit(X).to("cuda")
    X = X.astype(dtype)
    encoder.encode(X, precision=precision)
    long, short = (count(lambda part=part: encoder.encode(part, precision=precision)) for part in (X, X[: 10 * height]))
    return (long - short) / 10


def table() -> dict[str, Counts]:
    """Every line."""
    lines: dict[str, Counts] = {}
    for solver in ("joint", "columnwise"):
        for Encoder in (scq.OgE, scq.OnE):
            lines |= count_iteration(Encoder, solver)
    for preserve in STARTS:
        lines |= count_start(preserve)
    for n in (N, 10 * N):
        lines[f"encode {n:,} rows"] = count_encode(n)
    return lines


def main() -> None:
    """Print the table."""
    names = [f.name.replace("_", " ") for f in fields(Counts)]
    print(f"Per iteration of a fit ({N:,} x {D}, {N_BITS} bits), and per encode ({D} features, {N_BITS} bits):\n")
    print(f"| | {' | '.join(names)} |\n|---|{'---:|' * len(names)}")
    for name, counts in table().items():
        print(f"| {name} | {' | '.join(f'{getattr(counts, f.name):,.0f}' for f in fields(Counts))} |")


if __name__ == "__main__":
    main()
