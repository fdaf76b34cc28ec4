"""Codes as tables: Parquet and Arrow files with the ids of the rows beside their codes.

The column ``code`` holds fixed-size binaries, the bytes of a code; the schema's metadata say how many bits they hold.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from scq_gpu._core.bits import BIT_CONTRACT, code_bytes
from scq_gpu._core.files import replacing
from scq_gpu._core.optional import need
from scq_gpu.rows.sources.base import RowSource

__all__ = ["TABLES", "read_codes", "write_table"]

TABLES = (".parquet", ".arrow", ".feather")
_BATCH = 1 << 18  # rows of a record batch, or row group
_COLUMN = "code"


def _pyarrow(module: str = "pyarrow") -> Any:
    return need(module, caller="Parquet and Arrow files of codes", install='pip install "scq-gpu[io]"')


def check_id_column(rows: RowSource, column: str | None, out: Path) -> None:
    """Refuse ids that are not there, or have no place in the output, before any work is done."""
    if out.suffix in TABLES:
        _pyarrow()
    if column is None:
        return
    if out.suffix not in TABLES:
        raise ValueError(
            f"id_column={column!r} needs a place for ids, which {out.suffix} files have not: use {' or '.join(TABLES)}"
        )
    if column == _COLUMN:
        raise ValueError(f"id_column={column!r} is the name of the column of codes; rename the one of ids")
    rows.id_type(column)


def write_table(
    out: Path, codes: np.ndarray, *, n_bits: int, rows: RowSource, id_column: str | None, dropped: np.ndarray
) -> None:
    """Write codes (m, bytes), and the ids of their rows, to a table, all or nothing.

    ``dropped`` are the rows of the source, ascending, that have no codes.
    """
    pa = _pyarrow()
    width = codes.shape[1]
    fields = [] if id_column is None else [pa.field(id_column, rows.id_type(id_column), nullable=False)]
    metadata = {"scq_gpu.n_bits": str(n_bits), "scq_gpu.bit_contract": BIT_CONTRACT}
    schema = pa.schema([*fields, pa.field(_COLUMN, pa.binary(width), nullable=False)], metadata=metadata)
    batches = range(0, len(codes), _BATCH)
    ids = repeat(None) if id_column is None else _in_batches(_kept(rows.ids(id_column, _BATCH), dropped))
    with replacing(out) as file, _writer(file, schema, out.suffix) as writer:
        for start, some_ids in zip(batches, ids, strict=False):
            some = np.ascontiguousarray(codes[start : start + _BATCH])
            column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(some), [None, pa.py_buffer(some)])
            columns = [column] if some_ids is None else [some_ids, column]
            writer.write_batch(pa.record_batch(columns, schema=schema))


def _writer(file: Any, schema: Any, ending: str) -> Any:
    if ending == ".parquet":
        pq = _pyarrow("pyarrow.parquet")
        return pq.ParquetWriter(file, schema, use_dictionary=False, compression="zstd")
    return _pyarrow("pyarrow.ipc").new_file(file, schema)


def _kept(ids: Iterator[Any], dropped: np.ndarray) -> Iterator[Any]:
    """The ids of rows that were not dropped."""
    start = 0
    for piece in ids:
        gone = dropped[np.searchsorted(dropped, start) : np.searchsorted(dropped, start + len(piece))] - start
        start += len(piece)
        yield piece.take(np.delete(np.arange(len(piece)), gone)) if gone.size else piece


def _in_batches(pieces: Iterator[Any]) -> Iterator[Any]:
    """Arrays of any length as arrays of `_BATCH`; the last may be shorter."""
    pa = _pyarrow()
    waiting: list[Any] = []
    for piece in pieces:
        waiting.append(piece)
        while sum(map(len, waiting)) >= _BATCH:
            joined = pa.concat_arrays(waiting)
            yield joined[:_BATCH]
            waiting = [joined[_BATCH:]]
    if sum(map(len, waiting)):
        yield pa.concat_arrays(waiting)


def read_codes(path: str | os.PathLike[str]) -> tuple[np.ndarray, np.ndarray | None]:
    """Codes that `scq_gpu.encode_file` wrote, and their ids.

    Parameters
    ----------
    path : path
        ``.npy``, which is memory-mapped, or ``.parquet``, ``.arrow`` or ``.feather``, which are read.

    Returns
    -------
    codes : array (n, bytes) of uint8
    ids : array (n,) of integers or strings, or None
        What the other column of a table holds; None where there is none.

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


def read_table(path: Path) -> tuple[np.ndarray, np.ndarray | None, int]:
    """Codes, ids and the number of bits that a table holds."""
    pa = _pyarrow()
    try:
        if path.suffix == ".parquet":
            table = _pyarrow("pyarrow.parquet").read_table(path, partitioning=None)
        else:
            with path.open("rb") as file:
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
    column = table.column(_COLUMN).combine_chunks()
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    codes = np.concatenate([_bytes(chunk, width) for chunk in chunks] or [np.zeros((0, width), dtype=np.uint8)])
    metadata = table.schema.metadata or {}
    n_bits = int(metadata.get(b"scq_gpu.n_bits", b"%d" % (8 * width)))
    if code_bytes(max(1, n_bits)) > width or metadata.get(b"scq_gpu.bit_contract", BIT_CONTRACT.encode()) != (
        BIT_CONTRACT.encode()
    ):
        raise ValueError(f"{path} holds codes of {width} bytes and claims {n_bits} bits by another contract")
    other = [name for name in found if name != _COLUMN]
    return codes, np.asarray(table.column(other[0]).to_numpy()) if other else None, n_bits


def _bytes(column: Any, width: int) -> np.ndarray:
    """The bytes of fixed-size binaries, as rows."""
    start = column.offset * width
    return np.frombuffer(column.buffers()[1], dtype=np.uint8)[start : start + len(column) * width].reshape(-1, width)
