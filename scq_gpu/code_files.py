"""Codes of a file of rows, written to a file, in a job that can be stopped at any moment and goes on where it was.

Codes are appended to ``out.partial``; ``out.partial.json``, the journal, says how many rows of which source and encoder
are safely there. The codes reach the disk before the journal tells of them, and ``out`` appears in one step, complete.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import io as streams
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from scq_gpu._validate import check_integer
from scq_gpu._version import __version__
from scq_gpu._xp import is_array, to_host
from scq_gpu.codes import BIT_CONTRACT
from scq_gpu.io import _digest, replace_file
from scq_gpu.sources import ArrayRows, Paths, RowSource, open_rows, read_ahead

try:
    import fcntl
except ImportError:  # not on Windows, where two jobs with one ``out`` are not told apart
    fcntl = None  # type: ignore[assignment]

__all__ = ["encode_file"]

_BLOCK_BYTES = 32 << 20
_JOURNAL_SECONDS = 1.0  # codes of at most this long are made again after a crash


def encode_file(
    encoder: Any,
    source: Paths,
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    block_rows: int | None = None,
    progress: bool = True,
) -> Path:
    """Encode a file of rows into a file of codes, in bounded memory.

    If it is stopped, by an error, an interrupt, a crash or ``kill -9``, call it again: it goes on where it was, and the
    file comes out the same, byte for byte. If encoder, source or ``block_rows`` are others, it starts over.

    Parameters
    ----------
    encoder : fitted encoder
    source : path, list of paths, or what `scq_gpu.io.open_rows` returned
    out : path
        ``.npy``: an array (n, ceil(n_bits / 8)) of uint8; ``.bin``: its bytes alone. Until it is complete there is only
        ``<out>.partial`` and ``<out>.partial.json`` beside it.
    overwrite : bool, default=False
        Whether ``out`` may exist; it is replaced when the new file is complete.
    block_rows : int, optional
        Rows to encode at a time; by default 32 MiB of them.
    progress : bool, default=True
        Show rows, rows a second and time left, if standard error is a terminal.

    Returns
    -------
    pathlib.Path
        ``out``.

    Examples
    --------
    >>> import tempfile, numpy as np, scq_gpu as scq
    >>> X = np.random.default_rng(0).normal(size=(1000, 16))
    >>> encoder = scq.OgE(n_bits=12, random_state=0).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/x.npy", X)
    ...     codes = np.load(scq.encode_file(encoder, f"{folder}/x.npy", f"{folder}/codes.npy"))
    >>> codes.shape, bool((codes == encoder.encode(X)).all())
    ((1000, 2), True)
    """
    out = Path(out)
    rows = open_rows(source)
    if block_rows is None:
        block_rows = max(1, _BLOCK_BYTES // (rows.shape[1] * rows.dtype.itemsize))
    check_integer(block_rows, name="block_rows", minimum=1)
    _check_out(out, rows, overwrite=overwrite)
    width = encoder.encode(rows.sample()).shape[1]  # also refuses an encoder that does not fit the rows
    job = {
        "encoder": _encoder_digest(encoder),
        "source": hashlib.sha256(json.dumps(rows.identity()).encode()).hexdigest(),
        "block_rows": block_rows,
        "rows": rows.shape[0],
        "code_bytes": width,
        "scq_gpu": __version__,
    }
    with _Partial(out, job) as partial:
        _encode_rest(encoder, rows, partial, block_rows=block_rows, progress=progress)
        partial.finish(overwrite=overwrite)
    return out


def _encode_rest(encoder: Any, rows: RowSource, partial: _Partial, *, block_rows: int, progress: bool) -> None:
    from tqdm import tqdm

    bar = tqdm(
        total=rows.shape[0],
        initial=partial.done,
        desc=partial.out.name,
        unit=" rows",
        unit_scale=True,
        disable=None if progress else True,  # None: only on a terminal
    )
    with bar, contextlib.closing(read_ahead(rows.blocks(block_rows, first=partial.done))) as blocks:
        for X in blocks:
            block = ArrayRows(X, label=rows.label, locate=_from(rows, partial.done))
            partial.append(to_host(encoder.encode(block)))
            bar.update(X.shape[0])


def _from(rows: RowSource, start: int) -> Callable[[int], str]:
    """Where the rows of a block that begins at ``start`` are in the file, for errors."""
    return lambda row: rows.locate(start + row)


class _Partial:
    """The unfinished file, its journal, and a lock on both.

    Parameters
    ----------
    out : Path
        What the file will be called.
    job : dict
        What must be the same for the job to go on.
    """

    def __init__(self, out: Path, job: dict[str, Any]) -> None:
        self.out = out
        self.done = 0
        self._job = job
        self._path, self._journal = _partial_paths(out)
        self._header = _npy_header((job["rows"], job["code_bytes"])) if out.suffix == ".npy" else b""

    def __enter__(self) -> Self:
        with self._writing():
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                self._lock()
                for stray in glob.glob(str(self.out.with_name(f".{glob.escape(self._journal.name)}.*.tmp"))):
                    os.unlink(stray)  # of a job killed while it wrote its journal
                self.done = self._resume()
                os.ftruncate(self._file, self._size)
                os.lseek(self._file, self._size, os.SEEK_SET)
                if not self.done:
                    os.lseek(self._file, 0, os.SEEK_SET)
                    self._write(self._header)
            except BaseException:
                os.close(self._file)
                raise
        self._saved = time.monotonic()
        return self

    def __exit__(
        self, exception: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None and self._path.exists():
                with contextlib.suppress(OSError):  # the error under way says more
                    self._save()
        finally:
            os.close(self._file)

    def append(self, codes: np.ndarray) -> None:
        """Add codes of the next rows."""
        if codes.dtype != np.uint8 or codes.ndim != 2 or codes.shape[1] != self._job["code_bytes"]:
            raise ValueError(f"the encoder gave {codes.dtype} {codes.shape}; uint8 codes of equal width were wanted")
        with self._writing():
            self._write(np.ascontiguousarray(codes))
            self.done += codes.shape[0]
            if time.monotonic() - self._saved >= _JOURNAL_SECONDS:
                self._save()
                self._saved = time.monotonic()

    def finish(self, *, overwrite: bool) -> None:
        """Give the file its name."""
        with self._writing():
            os.fsync(self._file)
            if not overwrite:
                _refuse_existing(self.out)
            os.replace(self._path, self.out)
            self._journal.unlink(missing_ok=True)
            _sync_folder(self.out.parent)

    @property
    def _size(self) -> int:
        """Bytes of the header and the codes that are done."""
        return len(self._header) + self.done * int(self._job["code_bytes"])

    def _resume(self) -> int:
        """How many rows an earlier run of this very job left; 0 if it was another, or left nothing whole."""
        try:
            journal = json.loads(self._journal.read_bytes())
            done = journal.pop("done")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return 0
        if journal != self._job or type(done) is not int or not 0 <= done <= self._job["rows"]:
            return 0
        there = os.fstat(self._file).st_size
        return done if there >= len(self._header) + done * self._job["code_bytes"] else 0

    def _save(self) -> None:
        os.fsync(self._file)
        replace_file(self._journal, json.dumps(self._job | {"done": self.done}).encode())

    def _write(self, content: bytes | np.ndarray) -> None:
        view = memoryview(content).cast("B") if len(content) else memoryview(b"")
        while view:
            view = view[os.write(self._file, view) :]

    def _lock(self) -> None:
        """Refuse to write beside another process, or to a file that another one has just finished and renamed."""
        if fcntl is None:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = os.path.samestat(os.fstat(self._file), os.stat(self._path))
        except (BlockingIOError, FileNotFoundError):
            mine = False
        if not mine:
            raise BlockingIOError(f"another process is writing {self.out}; wait for it, or choose another name")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Errors of the disk say what they mean for the job."""
        try:
            yield
        except OSError as error:
            if error.errno is None or isinstance(error, FileExistsError):
                raise
            raise OSError(
                error.errno,
                f"{error.strerror}: could not write {self._path} after {self.done:,} of {self._job['rows']:,} rows. "
                "Make room, or mend what is wrong, and call encode_file again: it goes on from what is there",
            ) from error


def _check_out(out: Path, rows: RowSource, *, overwrite: bool) -> None:
    if out.suffix not in (".npy", ".bin"):
        raise ValueError(f"out={str(out)!r} must end in .npy (an array of uint8) or .bin (its bytes alone)")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"cannot write {out}: the folder {out.parent} does not exist")
    if out.is_dir():
        raise IsADirectoryError(f"cannot write {out}: it is a folder")
    if any(facts["path"] == str(out.resolve()) for facts in rows.identity()):
        raise ValueError(f"out={str(out)!r} is the source itself; choose another name")
    partial, journal = _partial_paths(out)
    if not partial.exists():
        journal.unlink(missing_ok=True)  # of a job killed between giving the file its name and this
    if not overwrite:
        _refuse_existing(out)


def _partial_paths(out: Path) -> tuple[Path, Path]:
    return out.with_name(f"{out.name}.partial"), out.with_name(f"{out.name}.partial.json")


def _refuse_existing(out: Path) -> None:
    if out.exists():
        raise FileExistsError(f"{out} exists; pass overwrite=True to replace it, or remove it")


def _encoder_digest(encoder: Any) -> str:
    """SHA-256 over what an encoder has learned: its attributes that end in an underscore."""
    fitted = {name: value for name, value in vars(encoder).items() if name.endswith("_") and not name.startswith("_")}
    arrays = {name: to_host(value) for name, value in fitted.items() if is_array(value)}
    arrays = {name: x for name, x in arrays.items() if x.dtype.kind != "O"}  # names of features, say, are told by repr
    facts = {name: repr(value) for name, value in fitted.items() if name not in arrays}
    return _digest(arrays, facts | {"encoder": type(encoder).__name__, "bit_contract": BIT_CONTRACT})


def _npy_header(shape: tuple[int, int]) -> bytes:
    header = streams.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return header.getvalue()


def _sync_folder(folder: Path) -> None:
    """The new name on disk too, where the system can do that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
