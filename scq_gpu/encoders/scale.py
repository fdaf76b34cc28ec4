"""What codes of many rows will take: rates of this machine, measured in seconds, and arithmetic on them."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from scq_gpu._core.bits import code_bytes
from scq_gpu._core.factors import FACTOR_BYTES
from scq_gpu._core.validate import check_integer, check_real
from scq_gpu.encoders.scq import OgE
from scq_gpu.search.index import HammingIndex

__all__ = ["Rates", "measure_rates", "plan"]

_REPEATS = 3
_BATCH = 64  # queries answered in one go
_K = 10
_TRAINING_ROWS = 1_000_000  # beyond these a fit gains little (docs/scale.md)


@dataclass(frozen=True)
class Rates:
    """How fast one machine works, at one number of features and bits.

    Attributes
    ----------
    features, bits : int
        What was measured.
    rows, codes : int
        How many rows were encoded, and codes scanned.
    threads : str
        What ``NUMBA_NUM_THREADS`` said, or all cores.
    fit_seconds_per_row : float
        Of a fit with the default parameters, over all of its passes: the slope between two numbers of rows.
    encode_rows_per_second, encode_gigabytes_per_second : float
        From float32 rows in memory.
    hamming_codes_per_second, hamming_batch_codes_per_second : float
        Codes compared with one query, asked alone or with 63 others.
    asymmetric_codes_per_second, asymmetric_batch_codes_per_second : float
        The same for float queries.
    busy : float or None
        Load of the machine per core when this was measured, where the system tells; above 0.5 or so the figures are
        those of a busy machine.
    """

    features: int
    bits: int
    rows: int
    codes: int
    threads: str
    fit_seconds_per_row: float
    encode_rows_per_second: float
    encode_gigabytes_per_second: float
    hamming_codes_per_second: float
    hamming_batch_codes_per_second: float
    asymmetric_codes_per_second: float
    asymmetric_batch_codes_per_second: float
    busy: float | None

    @property
    def bytes_per_code(self) -> int:
        """Of a code alone."""
        return code_bytes(self.bits)

    def as_dict(self) -> dict[str, Any]:
        """All figures, ready for JSON."""
        return {**asdict(self), "bytes_per_code": self.bytes_per_code}

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Rates:
        """Rates from a JSON file, as ``scq-gpu bench --output`` writes it."""
        try:
            found = json.loads(Path(path).read_bytes())
            given = found.get("rates", found)
            return cls(**{field.name: given[field.name] for field in fields(cls)})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} holds no rates ({error!r}); write it with scq-gpu bench --output") from error


def measure_rates(features: int, bits: int, *, rows: int = 50_000, codes: int = 5_000_000) -> Rates:
    """Measure how fast this machine fits, encodes and scans, in well under a minute.

    Parameters
    ----------
    features, bits : int
    rows : int, default=50_000
        Random float32 rows to encode; fits are of a tenth and a fifth of them.
    codes : int, default=5_000_000
        Random codes to scan; one query over fewer than 4,194,304 would not be worth the compiled loops.

    Returns
    -------
    Rates

    Examples
    --------
    >>> from scq_gpu.encoders.scale import measure_rates
    >>> measure_rates(32, 16, rows=2_000, codes=10_000).bytes_per_code
    2
    """
    check_integer(features, name="features", minimum=1)
    check_integer(rows, name="rows", minimum=1000)
    check_integer(codes, name="codes", minimum=1000)
    if check_integer(bits, name="bits", minimum=1) > features:
        raise ValueError(f"bits={bits} exceeds features={features}: a code has a direction of its own for each bit")
    busy = _load()
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, features), dtype=np.float32)
    few, more = max(4 * features, rows // 10), max(8 * features, rows // 5)
    sample = X if more <= rows else rng.standard_normal((more, features), dtype=np.float32)
    encoder = OgE(bits, random_state=0).fit(sample[:few])  # which also warms up
    fits = [_seconds(lambda n=n: OgE(bits, random_state=0).fit(sample[:n]), once=True) for n in (few, more)]  # type: ignore[misc]
    slope = max(0.0, fits[1] - fits[0]) / (more - few) or fits[1] / more
    encode = _seconds(lambda: encoder.encode(X))
    stored = rng.integers(0, 256, (codes, code_bytes(bits)), dtype=np.uint8)
    if bits % 8:
        stored[:, -1] &= (1 << bits % 8) - 1
    index = HammingIndex(stored, bits)
    queries = X[:_BATCH]
    packed = encoder.encode(queries)
    scans = (
        _seconds(lambda: index.search(packed[:1], _K)),
        _seconds(lambda: index.search(packed, _K)) / len(packed),
        _seconds(lambda: index.search_asymmetric(encoder, queries[:1], _K)),
        _seconds(lambda: index.search_asymmetric(encoder, queries, _K)) / len(packed),
    )
    hamming, hamming_batch, asymmetric, asymmetric_batch = (codes / seconds for seconds in scans)
    return Rates(
        features,
        bits,
        rows,
        codes,
        os.environ.get("NUMBA_NUM_THREADS", "all cores"),
        slope,
        rows / encode,
        X.nbytes / encode / 1e9,
        hamming,
        hamming_batch,
        asymmetric,
        asymmetric_batch,
        busy,
    )


def _seconds(run: Callable[[], Any], *, once: bool = False) -> float:
    """The least time of a few runs after one to warm up; or of one."""
    taken = []
    for _ in range(1 if once else _REPEATS + 1):
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return min(taken if once else taken[1:])


def _load() -> float | None:
    if not hasattr(os, "getloadavg"):
        return None
    return float(os.getloadavg()[0]) / (os.cpu_count() or 1)


def plan(rates: Rates, rows: float, *, queries_per_second: float = 1.0, workers: int = 1) -> dict[str, Any]:
    """What codes of that many rows take, by the rates of one machine.

    Parameters
    ----------
    rates : Rates
    rows : float
        Such as 1e9.
    queries_per_second : float, default=1
    workers : int, default=1
        Machines like the one measured, which share the rows.

    Returns
    -------
    dict
        Hours, bytes, milliseconds, and what to search with; all but the bytes are extrapolated from the rates.

    Examples
    --------
    >>> from scq_gpu.encoders.scale import Rates, plan
    >>> rates = Rates(768, 128, 1000, 1000, "2", 1e-4, 1e6, 3.0, 1e9, 4e9, 1e9, 2e9, 0.0)
    >>> found = plan(rates, 1e9, queries_per_second=100)
    >>> found["bytes_codes"], found["encode_hours"], found["asymmetric_ms_per_query"], found["machines_for_a_flat_scan"]
    (16000000000, 0.2777777777777778, 1000.0, 50)
    """
    n = int(check_real(rows, name="rows", minimum=1))
    check_real(queries_per_second, name="queries_per_second", minimum=0, strict=True)
    check_integer(workers, name="workers", minimum=1)
    code, d = rates.bytes_per_code, rates.features
    needed = max(1, math.ceil(queries_per_second * n / rates.asymmetric_batch_codes_per_second))
    most = int(workers * rates.asymmetric_batch_codes_per_second / queries_per_second)
    return {
        "rows": n,
        "features": d,
        "bits": rates.bits,
        "workers": workers,
        "fit_hours_on_all_rows": rates.fit_seconds_per_row * n / 3600 / workers,
        "fit_minutes_on_a_million_rows": rates.fit_seconds_per_row * min(n, _TRAINING_ROWS) / 60,
        "encode_hours": n / rates.encode_rows_per_second / 3600 / workers,
        "gigabytes_per_second_to_read_per_worker": rates.encode_gigabytes_per_second,
        "bytes_vectors": 4 * n * d,
        "bytes_codes": n * code,
        "bytes_codes_and_ids": n * (code + 8),
        "bytes_codes_and_factors": n * (code + FACTOR_BYTES),
        "hamming_ms_per_query": 1e3 * n / rates.hamming_codes_per_second / workers,
        "asymmetric_ms_per_query": 1e3 * n / rates.asymmetric_codes_per_second / workers,
        "asymmetric_ms_per_query_in_batches": 1e3 * n / rates.asymmetric_batch_codes_per_second / workers,
        "queries_per_second": queries_per_second,
        "queries_per_second_by_flat_scan": workers * rates.asymmetric_batch_codes_per_second / n,
        "machines_for_a_flat_scan": needed,
        "most_rows_for_a_flat_scan": most,
        "search_with": "flat scan" if needed <= workers else "inverted lists",
    }
