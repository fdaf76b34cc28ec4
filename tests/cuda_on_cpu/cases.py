"""Runs of the kernels that fail on any wrong result; the sanitizers, the mutants and the tests share them.

``python -m cuda_on_cpu.cases MODE CASE`` runs one, or "all", in a process of its own; ``MODE mutants FOLDER`` runs each
mutant of a mode, and leaves its exit status and what it said in files of the folder.
"""

from __future__ import annotations

import os
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np

if __name__ == "__main__":  # only the kernels: the rest of the package would be slow to import under a sanitizer
    for name in ("scq_gpu", "scq_gpu.kernels"):
        package = types.ModuleType(name)
        package.__path__ = [str(Path(__file__).parents[2].joinpath(*name.split(".")))]
        sys.modules[name] = package

from cuda_on_cpu import SimulatedDevice, oracle
from cuda_on_cpu.mutants import MUTANTS
from cuda_on_cpu.sums import sum_errors
from scq_gpu.kernels.cuda.asymmetric import least_of_cells, least_scores
from scq_gpu.kernels.cuda.encode import encode, round_map
from scq_gpu.kernels.cuda.hamming import Database
from scq_gpu.kernels.cuda.quantize import nearest

SEED = 20190523


def features(rng: np.random.Generator, n: int, d: int, element: str) -> tuple[np.ndarray, np.ndarray]:
    """Draw random features, as the kernel gets them and as numbers."""
    X = rng.standard_normal((n, d), dtype=np.float32)
    if element == "bfloat16":
        bits = (X.view(np.uint32) >> 16).astype(np.uint16)
        return bits, (bits.astype(np.uint32) << 16).view(np.float32)
    X = X.astype(element)
    return X, X


def linear_map(rng: np.random.Generator, d: int, n_bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw a random map W (d, n_bits) and thresholds."""
    return rng.standard_normal((d, n_bits), dtype=np.float32), rng.standard_normal(n_bits, dtype=np.float32)


def encode_case(
    device: SimulatedDevice, n: int, d: int, n_bits: int, *, element: str = "float32", precision: str = "exact"
) -> float:
    """Encode random rows and check; returns the share of bits that differ from float64."""
    rng = np.random.default_rng([SEED, n, d, n_bits])
    X, numbers = features(rng, n, d, element)
    W, t = linear_map(rng, d, n_bits)
    codes, flag = encode(device, X, W, t, element=element, precision=precision)
    flips = oracle.check_codes(codes, numbers, W, t, element=element, precision=precision)
    assert flag.tolist() == [0], "finite rows flagged"
    return flips


def finite_codes(device: SimulatedDevice, X: np.ndarray, W: np.ndarray, t: np.ndarray, **variant: str) -> np.ndarray:
    """Encode finite rows, which must not be flagged."""
    codes, flag = encode(device, X, W, t, **variant)
    assert flag.tolist() == [0], "finite rows flagged"
    return codes


def nonfinite_case(device: SimulatedDevice, n: int, d: int, n_bits: int, *, element: str, precision: str) -> None:
    """Check that one NaN or inf of any bits, in any row and column, raises the flag, with zeros in W or not."""
    rng = np.random.default_rng([SEED, n, d, n_bits])
    X, _ = features(rng, n, d, element)
    W, t = linear_map(rng, d, n_bits)
    exponent, all_ones = {
        "float32": (0x7F800000, 0x7FFFFFFF),
        "float16": (0x7C00, 0x7FFF),
        "bfloat16": (0x7F80, 0x7FFF),
    }[element]
    bits = X.view(np.uint32 if element == "float32" else np.uint16)
    for bad in (exponent, exponent | all_ones + 1, exponent + 1, all_ones):  # inf, -inf, the least NaN, CUDA's own
        row, column = rng.integers(n), rng.integers(d)
        for W_other in (W, W * (np.arange(d) != column)[:, None]):
            kept, bits[row, column] = bits[row, column], bad
            _, flag = encode(device, X, W_other, t, element=element, precision=precision)
            bits[row, column] = kept
            assert flag.tolist() == [1], f"{bad:x} at {row, column} not flagged"


def search_case(device: SimulatedDevice, n: int, n_bytes: int, n_queries: int, k: int) -> None:
    """Search random codes; a fifth of the items are copies of one, so that there are many ties."""
    rng = np.random.default_rng([SEED, n, n_bytes, n_queries])
    codes = rng.integers(0, 256, (n, n_bytes), dtype=np.uint8)
    codes[rng.random(n) < 0.2] = codes[0]
    queries = rng.integers(0, 256, (n_queries, n_bytes), dtype=np.uint8)
    queries[0] = codes[0]
    radius = int(np.quantile(oracle.distances(queries, codes), 0.05))
    database = Database(device, codes)
    oracle.check_search(database, queries, codes, k=k, radius=radius)
    for allowed in masks(rng, n):
        oracle.check_search(database, queries, codes, k=k, radius=radius, allowed=allowed)


def masks(rng: np.random.Generator, n: int) -> list[np.ndarray]:
    """Draw masks of n rows: about half of them, in runs; and few, the first and the last among them."""
    few = rng.random(n) < 3 / n
    few[[0, -1]] = True
    return [np.repeat(rng.random(-(-n // 20)) < 0.5, 20)[:n], few]


def scored_case(device: SimulatedDevice, n: int, n_bits: int, n_queries: int, k: int, *, exact: bool = True) -> None:
    """Score random codes, many of them alike; gains are multiples of 1/8, whose sums are exact, or any floats."""
    rng = np.random.default_rng([SEED, n, n_bits, n_queries])
    bits = rng.random((n, n_bits)) < 0.5
    bits[rng.random(n) < 0.2] = bits[0]
    codes = oracle.pack(bits)
    gains = _draw(rng, (n_queries, n_bits), exact=exact)
    for allowed in (None, *masks(rng, n)):
        found = least_scores(device, gains, [codes], k, oracle.bitset(allowed))
        oracle.check_least_scores(found, gains, codes, k, allowed)


def cells_case(device: SimulatedDevice, n: int, n_bytes: int, n_queries: int, k: int, *, exact: bool = True) -> None:
    """Score random product codes by tables, as `scored_case` scores bits."""
    rng = np.random.default_rng([SEED, n, n_bytes, n_queries])
    codes = rng.integers(0, 256, (n, n_bytes), dtype=np.uint8)
    codes[rng.random(n) < 0.2] = codes[0]
    tables = _draw(rng, (n_queries, n_bytes, 256), exact=exact)
    for allowed in (None, *masks(rng, n)):
        found = least_of_cells(device, tables, [codes], k, oracle.bitset(allowed))
        oracle.check_least_scores(found, tables, codes, k, allowed)


def _draw(rng: np.random.Generator, shape: tuple[int, ...], *, exact: bool) -> np.ndarray:
    return (rng.integers(-40, 40, shape) / 8 if exact else rng.standard_normal(shape)).astype(np.float32)


def quantize_case(device: SimulatedDevice, n: int, n_bytes: int, w: int, K: int = 256, *, exact: bool = False) -> None:
    """Quantize random rows; exact ones are small integers, with each cell there twice."""
    rng = np.random.default_rng([SEED, n, n_bytes, w])
    draw = (lambda *shape: rng.integers(-4, 5, shape)) if exact else (lambda *shape: rng.standard_normal(shape))
    Y, cells = (draw(*shape).astype(np.float32) for shape in ((n, n_bytes * w), (n_bytes, K, w)))
    if exact:
        cells[:, K // 2 : K // 2 * 2] = cells[:, : K // 2]
    halves = (cells * cells).sum(axis=2) / 2
    codes, flag = nearest(device, Y, cells, halves)
    oracle.check_cells(codes, Y, cells, halves)
    assert flag.tolist() == [0], "finite rows flagged"
    for bad in (np.nan, np.inf, -np.inf):
        other = Y.copy()
        other[rng.integers(n), rng.integers(n_bytes * w)] = bad
        assert nearest(device, other, cells, halves)[1].tolist() == [1], f"{bad} not flagged"


def map_case(device: SimulatedDevice, element: str) -> None:
    """Round a map to 16 bits, ties among its numbers."""
    rng = np.random.default_rng(SEED)
    W, t = linear_map(rng, 300, 3)
    W[:100] = rng.integers(256, 512, (100, 3)) / np.float32(256)  # 9 bits: one more than bfloat16 has
    Wt, scaled = round_map(device, W, t, element=element)
    if element == "float16":
        e = np.frexp(np.abs(W).max(axis=0))[1]
        expected = np.ldexp(W, -e).T.astype(np.float16), np.ldexp(t, -e)
    else:
        bits = W.T.astype(np.float64) / np.exp2(np.frexp(W.T)[1] - 8.0)
        expected = np.rint(bits) * np.exp2(np.frexp(W.T)[1] - 8.0), t
        Wt = (Wt.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(Wt, expected[0]), "wrong map"
    assert np.array_equal(scaled, expected[1]), "wrong thresholds"


def zero_case(device: SimulatedDevice) -> None:
    """x . w == t exactly: the bit is one, and products of zero too."""
    X = np.zeros((3, 4), dtype=np.float32)
    X[1] = 1.0
    W = np.ones((4, 9), dtype=np.float32)
    t = np.where(np.arange(9) % 2, 0.0, 4.0).astype(np.float32)
    products = X @ W
    for precision in ("exact", "accurate", "fast"):
        codes = finite_codes(device, X, W, t, element="float32", precision=precision)
        assert np.array_equal(codes, oracle.pack(products >= t)), "sign of zero"


def near_case(device: SimulatedDevice, precision: str) -> None:
    """Check thresholds twice the error band away from the products of a row, on either side."""
    rng = np.random.default_rng(SEED)
    X, _ = features(rng, 1, 4, "float32")
    W, _ = linear_map(rng, 4, 64)
    X64, W64 = X.astype(np.float64), W.astype(np.float64)
    band = oracle.error_band(X64, W64, element="float32", precision=precision)[0]
    t = ((X64 @ W64)[0] + 2 * band * np.where(np.arange(64) % 2, 1, -1)).astype(np.float32)
    codes = finite_codes(device, X, W, t, element="float32", precision=precision)
    oracle.check_codes(codes, X, W, t, element="float32", precision=precision)


def sums_case(device: SimulatedDevice) -> None:
    """Compare the sums of three TF32 passes with those of float32 multiply-adds, for which tensor cores are cut off."""
    exact, _ = sum_errors(None, 256)
    error, bias = sum_errors(device, 256, precision="accurate")
    assert error <= exact, f"rms error {error}, worse than float32's {exact}"
    assert abs(bias) <= exact / 2, "sums biased"


def far_rows_case(device: SimulatedDevice) -> None:
    """Check rows more than 2^31 elements apart, in memory that is reserved but never touched."""
    n, d, n_bits = 3, 8, 16
    rng = np.random.default_rng(SEED)
    X, _ = features(rng, n, d, "float16")
    W, t = linear_map(rng, d, n_bits)
    far = np.empty((n, 2**30 + 8), dtype=np.float16)[:, :d]
    far[:] = X
    far.flags.writeable = False  # the simulator then takes no copy of it
    codes = finite_codes(device, far, W, t, element="float16", precision="exact")
    oracle.check_codes(codes, X, W, t, element="float16", precision="exact")


def far_codes_case(device: SimulatedDevice) -> None:
    """Check codes more than 2^31 bytes apart, in memory that is reserved but never touched."""
    rng = np.random.default_rng(SEED)
    codes, gains = rng.integers(0, 256, (3, 2), dtype=np.uint8), (rng.integers(-40, 40, (1, 16)) / 8).astype(np.float32)
    far = np.empty((3, 2**31 + 8), dtype=np.uint8)[:, :2]
    far[:] = codes
    far.flags.writeable = False  # the simulator then takes no copy of it
    oracle.check_least_scores(least_scores(device, gains, [far], 3), gains, codes, 3)


def unaligned_case(device: SimulatedDevice) -> None:
    """Score codes that begin one byte after a word."""
    rng = np.random.default_rng(SEED)
    codes, gains = rng.integers(0, 256, (300, 8), dtype=np.uint8)[:, 1:6], _draw(rng, (3, 40), exact=True)
    oracle.check_least_scores(least_scores(device, gains, [codes], 9), gains, codes, 9)


CASES: dict[str, Callable[[SimulatedDevice], object]] = {
    "exact-32": lambda device: encode_case(device, 300, 37, 17),
    "exact-64": lambda device: encode_case(device, 131, 100, 64),
    "exact-128": lambda device: encode_case(device, 131, 37, 150),
    "exact-half": lambda device: encode_case(device, 131, 45, 70, element="float16"),
    "accurate": lambda device: encode_case(device, 131, 52, 43, precision="accurate"),
    "fast-half": lambda device: encode_case(device, 131, 72, 70, element="float16", precision="fast"),
    "fast-brain": lambda device: encode_case(device, 131, 45, 20, element="bfloat16", precision="fast"),
    "map-half": lambda device: map_case(device, "float16"),
    "map-brain": lambda device: map_case(device, "bfloat16"),
    "quantize-12": lambda device: quantize_case(device, 1300, 3, 12, exact=True),
    "quantize-32": lambda device: quantize_case(device, 515, 2, 32),
    "quantize-few": lambda device: quantize_case(device, 5, 2, 3, 16),
    "zero": zero_case,
    "near-exact": lambda device: near_case(device, "exact"),
    "near-accurate": lambda device: near_case(device, "accurate"),
    "nonfinite-exact": lambda device: nonfinite_case(device, 131, 20, 33, element="float32", precision="exact"),
    "nonfinite-fast": lambda device: nonfinite_case(device, 131, 20, 33, element="float32", precision="fast"),
    "far-rows": far_rows_case,
    "sums": sums_case,
    "search-8": lambda device: search_case(device, 9300, 1, 12, 40),
    "search-50": lambda device: search_case(device, 4203, 7, 35, 5),
    "search-1024": lambda device: search_case(device, 99, 128, 9, 99),
    "search-few": lambda device: search_case(device, 4203, 7, 2, 40),
    "search-few-1024": lambda device: search_case(device, 2099, 128, 1, 99),
    "scored-20": lambda device: scored_case(device, 5003, 20, 11, 40),
    "scored-64": lambda device: scored_case(device, 700, 64, 9, 333, exact=False),
    "scored-1024": lambda device: scored_case(device, 70, 1024, 3, 70),
    "cells-8": lambda device: cells_case(device, 5003, 8, 5, 40),
    "cells-50": lambda device: cells_case(device, 700, 50, 1, 333, exact=False),
    "scored-unaligned": unaligned_case,
    "scored-few": lambda device: scored_case(device, 40, 20, 2, 60),
    "scored-ties": lambda device: scored_case(device, 400, 2, 1, 3),
    "far-codes": far_codes_case,
}


def run_mutants(mode: str, folder: Path) -> None:
    """Run each in a child of this process. Imports under a sanitizer take longer than a case, and are made once."""
    for number, mutant in enumerate(MUTANTS.values()):
        if mutant.mode != mode:
            continue
        said = folder / f"{number}.stderr"
        child = os.fork()
        if not child:
            os.dup2(os.open(said, os.O_CREAT | os.O_WRONLY), 2)
            try:
                device = SimulatedDevice(mode=mode, change=mutant.apply)
                CASES[mutant.case](device)
                if not device.changed:
                    raise LookupError(f"{mutant.old!r} is in no source that {mutant.case} runs")
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.with_suffix(".status").write_text(str(status))


if __name__ == "__main__":
    mode, name, *rest = sys.argv[1:]
    if name == "mutants":
        run_mutants(mode, Path(*rest))
    else:
        device = SimulatedDevice(mode=mode)
        for case in CASES if name == "all" else [name]:
            CASES[case](device)
