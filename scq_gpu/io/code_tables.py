"""Tables of codes: Parquet and Arrow files with the ids of the rows beside their codes.

The column ``code`` holds codes as fixed-size binaries. The metadata of the schema hold the number of bits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from scq_gpu._core.bits import BIT_CONTRACT, code_bytes
from scq_gpu._core.files import check_regular, replacing
from scq_gpu._core.messages import need
from scq_gpu.rows.sources.base import RowSource

TABLES = (".parquet", ".arrow", ".feather")
_BATCH = 1 << 18  # rows of a record batch or row group
_COLUMN = "code"


def _pyarrow(module: str = "pyarrow") -> Any:
    return need(module, caller="Parquet and Arrow files of codes", install='pip install "scq-gpu[io]"')


def check_id_column(rows: RowSource, column: str | None, out: Path) -> None:
    """Reject ids that do not exist, or that the output cannot hold, before any work is done."""
    if out.suffix in TABLES:
        _pyarrow()
    if column is None:
        return
    if out.suffix not in TABLES:
        raise ValueError(
            f"id_column={column!r} needs a table for the ids, which {out.suffix} is not: use {' or '.join(TABLES)}"
        )
    if column == _COLUMN:
        raise ValueError(f"id_column={column!r} is the name of the column of codes; rename the one of ids")
    rows.id_type(column)


def write_table(
    out: Path, codes: np.ndarray, *, n_bits: int, rows: RowSource, id_column: str | None, dropped: np.ndarray
) -> None:
    """Write codes (m, bytes) and the ids of their rows to a table, atomically.

    ``dropped`` lists the rows of the source, ascending, that have no codes.
    """
    pa = _pyarrow()
    width = codes.shape[1]
    fields = [] if id_column is None else [pa.field(id_column, rows.id_type(id_column), nullable=False)]
    metadata = {"scq_gpu.n_bits": str(n_bits), "scq_gpu.bit_contract": BIT_CONTRACT}
    schema = pa.schema([*fields, pa.field(_COLUMN, pa.binary(width), nullable=False)], metadata=metadata)
    ids = repeat(None) if id_column is None else _in_batches(rows.ids(id_column, _BATCH), dropped)
    if out.suffix == ".parquet":
        make = partial(_pyarrow("pyarrow.parquet").ParquetWriter, use_dictionary=False, compression="zstd")
    else:
        make = _pyarrow("pyarrow.ipc").new_file
    with replacing(out) as file, make(file, schema) as writer:
        for start, some_ids in zip(range(0, len(codes), _BATCH), ids, strict=False):
            some = np.ascontiguousarray(codes[start : start + _BATCH])
            column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(some), [None, pa.py_buffer(some)])
            columns = [column] if some_ids is None else [some_ids, column]
            writer.write_batch(pa.record_batch(columns, schema=schema))


def _in_batches(ids: Iterator[Any], dropped: np.ndarray) -> Iterator[Any]:
    """Cut arrays of any length, without the ids of dropped rows, into arrays of `_BATCH`; the last may be shorter."""
    pa = _pyarrow()
    start = 0
    waiting: list[Any] = []
    for piece in ids:
        gone = dropped[np.searchsorted(dropped, start) : np.searchsorted(dropped, start + len(piece))] - start
        start += len(piece)
        waiting.append(piece.take(np.delete(np.arange(len(piece)), gone)) if gone.size else piece)
        while sum(map(len, waiting)) >= _BATCH:
            joined = pa.concat_arrays(waiting)
            yield joined[:_BATCH]
            waiting = [joined[_BATCH:]]
    if sum(map(len, waiting)):
        yield pa.concat_arrays(waiting)


def read_codes(path: str | os.PathLike[str]) -> tuple[np.ndarray, np.ndarray | None]:
    """Read the codes that `scq_gpu.encode_file` wrote, and their ids.

    Parameters
    ----------
    path : path
        ``.npy``, which is memory-mapped, or ``.parquet``, ``.arrow`` or ``.feather``, which are read.

    Returns
    -------
    codes : array (n, bytes) of uint8
    ids : array (n,) of integers or strings, or None
        The other column of a table; None if there is none.

    Examples
    --------
    >>> import tempfile, numpy as np, scq_gpu as scq
    >>> X = np.random.default_rng(0).normal(size=(1000, 16))
    >>> encoder = scq.OgE(n_bits=12, random_state=0).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/codes.npy", encoder.encode(X))
    ...     codes, ids = scq.io.read_codes(f"{folder}/codes.npy")
    >>> codes.shape, ids
    ((1000, 2), None)
    """
    path = Path(path)
    if path.exists():
        check_regular(path)
    if path.suffix == ".npy":
        codes: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        if codes.dtype != np.uint8 or codes.ndim != 2:
            raise ValueError(f"{path} holds {codes.dtype} of shape {codes.shape}; codes are uint8 (n, bytes)")
        return codes, None
    if path.suffix not in TABLES:
        raise ValueError(f"{path} has the ending {path.suffix!r}; codes are read from .npy, {', '.join(TABLES)}")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    codes, ids, _ = read_table(path)
    return codes, ids


def holds_codes(path: Path) -> bool:
    """Return whether a Parquet or Arrow file has a column of codes."""
    pa = _pyarrow()
    if path.suffix not in TABLES or not path.is_file():
        return False
    try:
        if path.suffix == ".parquet":
            schema = _pyarrow("pyarrow.parquet").read_schema(path)
        else:
            with pa.OSFile(os.fspath(path)) as file:  # threads of Arrow do not wait for Python, which may be ending
                schema = _pyarrow("pyarrow.ipc").open_file(file).schema
    except (OSError, pa.ArrowException):
        return False
    return _COLUMN in schema.names and pa.types.is_fixed_size_binary(schema.field(_COLUMN).type)


def read_table(path: Path) -> tuple[np.ndarray, np.ndarray | None, int]:
    """Read codes, ids and the number of bits from a table."""
    pa = _pyarrow()
    try:
        if path.suffix == ".parquet":
            table = _pyarrow("pyarrow.parquet").read_table(path, partitioning=None)
        else:
            with pa.OSFile(os.fspath(path)) as file:  # threads of Arrow do not wait for Python, which may be ending
                table = _pyarrow("pyarrow.ipc").open_file(file).read_all()
        table.validate(full=True)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    found = {field.name: field.type for field in table.schema}
    if not pa.types.is_fixed_size_binary(found.get(_COLUMN, pa.null())) or len(found) > 2:
        listed = ", ".join(f"{name!r} {kind}" for name, kind in found.items())
        raise ValueError(f"{path} holds the columns {listed}; codes are fixed-size binaries in {_COLUMN!r}, beside ids")
    width = found[_COLUMN].byte_width
    if any(column.null_count for column in table.columns):
        raise ValueError(f"{path} holds nulls; every row has a code and an id")
    metadata = table.schema.metadata or {}
    n_bits = int(metadata.get(b"scq_gpu.n_bits", b"%d" % (8 * width)))
    contract = BIT_CONTRACT.encode()
    if code_bytes(max(1, n_bits)) > width or metadata.get(b"scq_gpu.bit_contract", contract) != contract:
        raise ValueError(f"{path} holds codes of {width} bytes and claims {n_bits} bits by another contract")
    chunks = [
        np.frombuffer(chunk.buffers()[1], np.uint8, count=len(chunk) * width, offset=chunk.offset * width)
        for chunk in table.column(_COLUMN).chunks
        if len(chunk)
    ]
    codes = np.concatenate(chunks or [np.zeros(0, dtype=np.uint8)]).reshape(-1, width)
    other = [name for name in found if name != _COLUMN]
    return codes, np.asarray(table.column(other[0]).to_numpy()) if other else None, n_bits
