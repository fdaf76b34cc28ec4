"""Checks of user input; each message states the value, the expectation and the fix."""

from __future__ import annotations

import math
import numbers
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array, detach, device_of, is_array, is_dask, namespace, to_host
from scq_gpu._core.machine import check_room

AP_RULES = ("standard", "trapezoid")
TIE_RULES = ("database", "average")
DISTANCES = ("hamming", "spherical")
METRICS = ("l2", "cosine", "ip")
ON_INVALID = ("raise", "skip", "zero")


def check_array(x: Any, *, name: str, min_ndim: int) -> Array:
    """Return x as an array of numbers or booleans; lists and data frames become NumPy arrays."""
    if hasattr(x, "tocsr") or getattr(x, "is_sparse", False) is True:
        raise TypeError(f"{name} is a sparse matrix ({type(x).__name__}); pass a dense array, such as {name}.toarray()")
    if any(np.ma.is_masked(part) for part in (x if isinstance(x, list | tuple) else (x,))):
        raise ValueError(
            f"{name} has masked entries, which have no value; drop their rows, or fill them: {name}.filled(0)"
        )
    if not is_array(x):
        x = _to_numpy(x, name)
    if isinstance(x, np.ma.MaskedArray):
        x = x.data
    if isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.dtype.itemsize > 8:
        raise TypeError(f"{name} has dtype {x.dtype}, wider than float64; pass {name}.astype(numpy.float64)")
    if isinstance(x, np.ndarray) and x.dtype.kind not in "biufc":
        fix = f"convert it first, such as {name}.astype(numpy.float32)"
        first: Any = x.flat[0] if x.size else None
        wrong = next((v for v in x.flat if not isinstance(v, numbers.Real)), None) if x.dtype.kind == "O" else None
        if wrong is not None:
            fix = f"it holds {reprlib.repr(wrong)}: fill in what is no number, or drop its row"
        # A column of arrays, as data frames have them
        if x.dtype.kind == "O" and np.ndim(first) == 1:
            fix = f"each entry is a vector of {len(first)}: pass numpy.stack({name}), or numpy.stack(frame['column'])"
        raise TypeError(f"{name} has dtype {x.dtype}, which is not numeric; {fix}")
    x = detach(x)
    if namespace(x).isdtype(x.dtype, "complex floating"):
        raise ValueError(f"Complex data not supported: {name} has dtype {x.dtype}; pass real numbers")
    if x.ndim < min_ndim:
        fix = f": {name}.reshape(1, -1) if it is a single row" if x.ndim == 1 and min_ndim == 2 else ""
        # queries and candidates are never of one feature
        fix += ", X.reshape(-1, 1) if it has a single feature" if fix and name == "X" else ""
        raise ValueError(
            f"{name} must have {min_ndim} dimensions, got {x.ndim} (shape {tuple(x.shape)}). Reshape your data{fix}"
        )
    return x


def _to_numpy(x: Any, name: str) -> np.ndarray:
    if x is None or isinstance(x, Mapping | str | bytes):
        raise TypeError(f"{name} is {reprlib.repr(x)}; an array of numbers is expected")
    if isinstance(x, Iterator):
        raise TypeError(
            f"{name} is a {type(x).__name__}, which can be gone through once; pass an array, such as numpy.stack(list("
            f"{name})) of vectors or numpy.concatenate(list({name})) of blocks. fit takes an iterator of blocks, too"
        )
    try:
        return np.asarray(x)
    except ValueError as error:
        if "inhomogeneous" not in str(error):
            raise
        raise ValueError(f"the rows of {name} are not of equal length, which an array has: {error}") from error


def check_computed(x: Any, *, name: str) -> None:
    """Reject a Dask array where all of it has to be here."""
    if is_dask(x):
        raise TypeError(
            f"{name} is a Dask array, whose chunks stay with their workers; pass {name}.compute(). To search its rows "
            "where they are, use scq_gpu.ClusterIndex"
        )


def check_rows(X: Any, *, min_rows: int = 1) -> Array:
    """Return X as an array (n, d) of numbers with at least ``min_rows`` rows and one column."""
    check_computed(X, name="X")
    X = check_array(X, name="X", min_ndim=2)
    check_row_count(X.shape, min_rows=min_rows)
    return X


def check_row_count(shape: tuple[int, ...], *, min_rows: int) -> None:
    """Check that ``shape`` is (n, d) with at least ``min_rows`` rows and one column."""
    if len(shape) != 2:
        raise ValueError(
            f"X must have 2 dimensions (rows, features), got {len(shape)} (shape {(*shape,)}); flatten each row first"
        )
    n, d = shape
    if d < 1:
        raise ValueError(f"0 feature(s) (shape={(n, d)}) while a minimum of 1 is required.")
    if n < min_rows:
        raise ValueError(f"Found array with n_samples={n} (shape={(n, d)}) while a minimum of {min_rows} is required.")


def check_dask_rows(X: Any, *, device: str | None, min_rows: int) -> None:
    """Check that a Dask array is (n, d), in chunks of known sizes, and is to stay on their devices."""
    if X.ndim != 2:
        raise ValueError(f"X must have 2 dimensions (rows, features), got {X.ndim} (a Dask array of shape {X.shape})")
    check_row_count(X.shape, min_rows=min_rows)
    if any(math.isnan(size) for sizes in X.chunks for size in sizes):
        raise ValueError(
            "X is a Dask array with chunks of unknown sizes; compute them first: X = X.compute_chunk_sizes(), or "
            "X = frame.to_dask_array(lengths=True)"
        )
    if device is not None:
        raise ValueError(
            f"device={device!r} with a Dask array: work is done where its chunks are. Call "
            "encoder.set_params(device=None), and put the chunks on GPUs with X.map_blocks(cupy.asarray)"
        )


def check_integer(value: object, *, name: str, minimum: int) -> int:
    """Return value as an int of at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < minimum:
        raise ValueError(f"{name}={value!r} must be an integer >= {minimum}")
    return int(value)


def check_real(value: object, *, name: str, minimum: float, strict: bool = False) -> float:
    """Return value as a finite float, at least (or, if strict, above) ``minimum``."""
    number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    if not math.isfinite(number) or number < minimum or (strict and number == minimum):
        raise ValueError(f"{name}={value!r} must be a finite number {'>' if strict else '>='} {minimum:g}")
    return number


def check_integers(values: Any, *, name: str, minimum: int) -> list[int]:
    """Return values, one or more, as ints of at least ``minimum``."""
    return [check_integer(value, name=f"{name}[{i}]", minimum=minimum) for i, value in enumerate(_listed(values, name))]


def check_scales(scales: Any) -> tuple[float, ...]:
    """Return scales, one or more, as finite floats above 0."""
    values = enumerate(_listed(scales, "scales"))
    return tuple(check_real(value, name=f"scales[{i}]", minimum=0, strict=True) for i, value in values)


def _listed(values: Any, name: str) -> list[Any]:
    if isinstance(values, str) or not hasattr(values, "__iter__"):
        raise TypeError(f"{name}={values!r} is not a list; pass numbers, such as {name}=[{values!r}]")
    listed = list(values)
    if not listed:
        raise ValueError(f"{name} is empty; at least one number is needed")
    return listed


def check_choice(value: object, *, name: str, choices: Collection[str]) -> str:
    """Return value, which must be one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, choices))}")
    return value


def check_init(init: Any, *, d: int, n_bits: int) -> np.ndarray:
    """Return a start given as an array (d, n_bits), finite and of full column rank, as float64 on the host."""
    V0 = to_host(check_array(init, name="init", min_ndim=2)).astype(np.float64)
    if V0.shape != (d, n_bits):
        raise ValueError(f"init has shape {V0.shape}; it must be (n_features, n_bits) = {(d, n_bits)}")
    bad = np.argwhere(~np.isfinite(V0))
    if bad.size:
        row, column = bad[0]
        raise ValueError(f"init contains NaN or inf, first {V0[row, column]} at row {row}, column {column}")
    if (rank := np.linalg.matrix_rank(V0)) < n_bits:
        raise ValueError(f"init has rank {rank}; its {n_bits} columns must be linearly independent")
    return V0


def check_codes(codes: Any, n_bits: int, *, name: str = "codes", min_ndim: int = 1, fix: str = "") -> Array:
    """Return codes as a uint8 array whose last axis has the bytes of ``n_bits`` bits."""
    codes = _check_packed(codes, name=name, min_ndim=min_ndim)
    width = -(-n_bits // 8)
    if codes.shape[-1] != width:
        raise ValueError(f"{name} are {codes.shape[-1]} bytes wide; n_bits={n_bits} takes {width}{fix}")
    return codes


def check_linear_map(X: Array, W: Array, t: Array) -> None:
    """Check that X (n, d), W (d, n_bits) and t (n_bits,) fit, with at least one feature and one bit."""
    shapes = tuple(tuple(x.shape) for x in (X, W, t))
    if tuple(map(len, shapes)) != (2, 2, 1) or shapes[0][1:] != shapes[1][:1] or shapes[1][1:] != shapes[2]:
        raise ValueError("X {}, W {} and t {} do not fit; (n, d), (d, n_bits) and (n_bits,) fit".format(*shapes))
    if 0 in shapes[1]:
        raise ValueError(f"W has shape {shapes[1]}; at least one feature and one bit are needed")


def check_out(out: Any, *, shape: tuple[int, int], like: Array) -> None:
    """Check that codes of ``shape``, made from rows ``like``, can be written to ``out``."""
    xp = namespace(like)
    if not is_array(out) or namespace(out) is not xp or device_of(out) != device_of(like):
        raise TypeError(
            f"out is a {type(out).__name__}; expected is an array of {xp.__name__} on {device_of(like)}, as X is"
        )
    if tuple(out.shape) != shape or out.dtype != xp.uint8:
        raise ValueError(f"out has shape {tuple(out.shape)} and dtype {out.dtype}; expected are {shape} and uint8")
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ValueError("out is read-only; open a memory map with mode 'r+' or 'w+'")


def check_signs(B: Array, *, xp: ModuleType) -> Array:
    """Return B as booleans, from booleans, 0/1 or -1/+1."""
    if xp.isdtype(B.dtype, "bool"):
        return B
    positive = B == 1
    for negative in (0,) if xp.isdtype(B.dtype, "unsigned integer") else (-1, 0):
        if bool(xp.all(positive | (B == negative))):
            return positive
    raise ValueError("B must hold booleans, only 0 and 1, or only -1 and +1; take signs first, for example X >= 0")


def check_code_pair(query_codes: object, database_codes: object) -> tuple[Array, Array]:
    """Return queries and database as packed codes (n, bytes) of one namespace and width."""
    for codes, name in ((query_codes, "query_codes"), (database_codes, "database_codes")):
        check_computed(codes, name=name)
    queries = _check_packed(query_codes, name="query_codes")
    database = _check_packed(database_codes, name="database_codes")
    namespace(queries, database)
    if queries.shape[1] != database.shape[1]:
        raise ValueError(
            f"query_codes are {queries.shape[1]} bytes wide and database_codes {database.shape[1]}; "
            "encode both with the same encoder"
        )
    if queries.shape[0] == 0 or database.shape[0] == 0:
        raise ValueError(
            f"got {queries.shape[0]} query codes and {database.shape[0]} database codes; at least one of each is needed"
        )
    return queries, database


def _check_packed(codes: Any, *, name: str, min_ndim: int = 2) -> Array:
    codes = check_array(codes, name=name, min_ndim=min_ndim)
    if codes.dtype != namespace(codes).uint8:
        raise TypeError(f"{name} has dtype {codes.dtype}; packed codes are uint8 (see scq_gpu.pack)")
    if min_ndim == 2 and (codes.ndim != 2 or codes.shape[1] < 1):
        raise ValueError(f"{name} has shape {tuple(codes.shape)}; packed codes are (n, ceil(n_bits / 8))")
    return codes


def check_labels(query_labels: object, database_labels: object, *, n_queries: int, n: int) -> tuple[Array, Array]:
    """Return the labels of queries and database: both (n,) integers, or both (n, classes) of 0/1."""
    queries = _check_label_array(query_labels, name="query_labels", n=n_queries)
    database = _check_label_array(database_labels, name="database_labels", n=n)
    if queries.ndim != database.ndim or queries.shape[1:] != database.shape[1:]:
        raise ValueError(
            f"query_labels have shape {tuple(queries.shape)} and database_labels {tuple(database.shape)}; "
            "both must be 1-D, or 2-D with the same classes"
        )
    return queries, database


def _check_label_array(labels: Any, *, name: str, n: int) -> Array:
    check_computed(labels, name=name)
    labels = check_array(labels, name=name, min_ndim=1)
    xp = namespace(labels)
    if labels.ndim > 2 or labels.shape[0] != n:
        raise ValueError(
            f"{name} has shape {tuple(labels.shape)}; for {n} codes it must be ({n},) integers or ({n}, classes) of 0/1"
        )
    if labels.ndim == 1 and not xp.isdtype(labels.dtype, ("integral", "bool")):
        raise TypeError(f"{name} has dtype {labels.dtype}; labels are integers, for example {name}.astype(int)")
    if labels.ndim == 1 or xp.isdtype(labels.dtype, "bool"):
        return labels
    if not bool(xp.all((labels == 0) | (labels == 1))):
        raise ValueError(f"{name} is 2-D (multi-label) and must hold only 0 and 1; pass class numbers in 1-D")
    return labels == 1


def check_index_codes(codes: object, *, n_bits: int, name: str) -> Array:
    """Return codes (n, bytes) of ``n_bits`` bits as uint8 with zeros in the padding."""
    check_computed(codes, name=name)
    fix = ". Encode with the encoder that the index was made for"
    checked = check_codes(codes, n_bits, name=name, min_ndim=2, fix=fix)
    if n_bits % 8 and bool(namespace(checked).any(checked[:, -1] >= 1 << n_bits % 8)):
        raise ValueError(
            f"{name} have bits set beyond n_bits={n_bits}: padding bits must be 0. "
            "Check n_bits, or pack again (see scq_gpu.pack)"
        )
    return checked


def check_padding_room(k: int, *, queries: int, n: int) -> None:
    """Reject a k far above the n codes, whose padding alone would take more than 256 MiB."""
    # A distance and an id take 12 bytes
    padding = queries * max(0, k - n) * 12
    if padding > 256 << 20:
        raise ValueError(
            f"k={k} is far above the {n} codes there are: for {queries} queries its padding alone would take "
            f"{padding / 2**30:,.1f} GiB; pass k={max(1, n)} or less"
        )
    # Asking the system for the free memory takes longer than finding a few answers
    if (answers := queries * min(k, n) * 12) > 1 << 20:
        check_room(answers, f"answers to {queries} queries with k={k}", fix="ask fewer at a time")


def check_projections(P: np.ndarray, *, n_bits: int) -> np.ndarray:
    """Return projections of queries (q, n_bits) as finite float64 on the host."""
    P = np.asarray(P).astype(np.float64)
    if P.ndim != 2 or P.shape[1] != n_bits:
        raise ValueError(f"the queries' projections have shape {P.shape}; (queries, n_bits={n_bits}) is expected")
    if not np.isfinite(P).all():
        bad = np.argwhere(~np.isfinite(P))
        raise ValueError(
            f"X_query projects to NaN or inf, first {P[tuple(bad[0])]} at row {bad[0][0]}; drop or fill in such rows"
        )
    return P


def check_rescored(X_query: Array, ids: np.ndarray, *, n: int, d: int) -> None:
    """Check that queries (q, d) and ids (q, m) fit a database (n, d)."""
    if X_query.ndim != 2 or X_query.shape[1] != d:
        raise ValueError(f"X_query has shape {tuple(X_query.shape)}; (queries, {d}) is expected, as X_database has")
    if ids.ndim != 2 or ids.dtype.kind not in "iu" or ids.shape[0] != X_query.shape[0] or not ids.shape[1]:
        raise ValueError(
            f"ids have shape {ids.shape} and dtype {ids.dtype}; "
            f"a row of integers for each of the {X_query.shape[0]} queries is expected"
        )
    if ids.size and (int(ids.max()) >= n or int(ids.min()) < -1):
        raise ValueError(f"ids run from {ids.min()} to {ids.max()}; they must be rows of the {n} in X_database, or -1")


@np.errstate(all="ignore")
def unit_rows(X: Array, locate: Callable[[int], str]) -> Array:
    """Divide rows of floats by their lengths, of whatever size; reject a zero row by its location."""
    xp = namespace(X)
    norms = xp.linalg.vector_norm(X, axis=1, keepdims=True)
    exponent = math.frexp(float(xp.finfo(X.dtype).max))[1] // 3
    high, low = 2.0**exponent, 2.0**-exponent
    # Squares of longer and shorter rows overflow or vanish, so a power of two is taken out of these rows first
    if not bool(xp.all((norms > low) & (norms < high))):
        largest, one = xp.max(xp.abs(X), axis=1, keepdims=True), xp.ones_like(norms)
        X = X * xp.where(largest > high, one * low**2, xp.where(largest < low, one * high**2, one))
        norms = xp.linalg.vector_norm(X, axis=1, keepdims=True)
    if bool(xp.any(norms == 0)):
        zero = int(xp.argmax(xp.astype(norms[:, 0] == 0, xp.int8)))
        raise ValueError(
            f"{locate(zero)} is zero and has no direction, which metric='cosine' compares; drop it, or use metric='l2'"
        )
    return X / norms


class InvalidRowsWarning(UserWarning):
    """Warning about rows with NaN or inf that were skipped or got codes of zeros; ``rows`` has their numbers."""

    def __init__(self, rows: np.ndarray, *, n: int, on_invalid: str, where: str = "") -> None:
        first = ", ".join(map(str, rows[:5].tolist())) + (", ..." if len(rows) > 5 else "")
        done = "were skipped" if on_invalid == "skip" else "got codes of zeros"
        super().__init__(f"{len(rows):,} of {n:,} rows hold NaN or inf and {done}: {first}{where}")
        self.rows = rows


def fill_invalid(X: Array) -> tuple[Array, np.ndarray]:
    """Set rows of X (n, d) that hold NaN or inf to zeros; return X and the numbers of these rows."""
    xp = namespace(X)
    if not xp.isdtype(X.dtype, "real floating"):
        return X, np.zeros(0, dtype=np.int64)
    valid = xp.all(xp.isfinite(X), axis=1)
    bad = np.flatnonzero(~to_host(valid))
    return (xp.where(valid[:, None], X, xp.zeros_like(X)) if bad.size else X), bad


def settle_codes(codes: Array, bad: np.ndarray, on_invalid: str) -> Array:
    """Drop the codes of invalid rows ("skip") or set them to zeros ("zero")."""
    if not bad.size:
        return codes
    xp = namespace(codes)
    valid = np.ones(codes.shape[0], dtype=bool)
    valid[bad] = False
    if on_invalid == "skip":
        return xp.take(codes, xp.asarray(np.flatnonzero(valid), device=device_of(codes)), axis=0)
    return xp.where(xp.asarray(valid, device=device_of(codes))[:, None], codes, xp.zeros_like(codes))
