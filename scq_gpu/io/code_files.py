"""Codes of a file of rows, written to a file, in a job that can be stopped at any moment and goes on where it was.

Codes are appended to ``out.partial``; ``out.partial.json``, the journal, says how many rows of which files and encoder
are safely there. The journal is there before the file it is about; codes reach the disk before the journal tells of
them; ``out`` appears in one step, complete. A file at ``out.partial`` that no journal is about is not ours and is left
alone, as is whatever a link there leads to.
"""

from __future__ import annotations

import contextlib
import hashlib
import io as streams
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from scq_gpu._core.arrays import is_array, to_host
from scq_gpu._core.bits import BIT_CONTRACT
from scq_gpu._core.files import lock, replace_file, replacing, sync_folder
from scq_gpu._core.invalid import ON_INVALID, InvalidRowsWarning
from scq_gpu._core.terminal import printable
from scq_gpu._core.validate import check_choice, check_integer
from scq_gpu._core.warn import warn_caller
from scq_gpu._version import __version__
from scq_gpu.io.block_codes import BlockCodes, Work, block_checksum, encoded_blocks
from scq_gpu.io.code_tables import TABLES, check_id_column, write_table
from scq_gpu.io.models import digest
from scq_gpu.rows.sources import Paths, RowSource, is_url, open_rows

__all__ = ["encode_file"]

_BLOCK_BYTES = 32 << 20
_JOURNAL_SECONDS = 1.0  # codes of at most this long are made again after a crash
_SAMPLES = 64  # blocks of which the journal keeps a checksum at most
_COMPARED = 8  # blocks looked at when a job goes on
_REASONS = {
    "encoder": "the encoder is another",
    "block_rows": "block_rows is another",
    "code_bytes": "codes are of another width",
    "on_invalid": "on_invalid is another",
    "scq_gpu": "another version of scq_gpu began it",
}
_OPEN = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


def encode_file(
    encoder: Any,
    source: Paths,
    out: str | os.PathLike[str],
    *,
    id_column: str | None = None,
    workers: int = 1,
    overwrite: bool = False,
    block_rows: int | None = None,
    on_invalid: str = "raise",
    progress: bool = True,
) -> Path:
    """Encode a file of rows into a file of codes, in bounded memory.

    If it is stopped, by an error, an interrupt, a crash or ``kill -9``, call it again: it goes on where it was, and the
    file comes out the same, byte for byte. If encoder, ``block_rows`` or ``on_invalid`` are others, it starts over; if
    one of several files changed, such as one that was mended, it goes on from that file.

    Parameters
    ----------
    encoder : fitted encoder
    source : path, list of paths, or what `scq_gpu.io.open_rows` returned
    out : path
        ``.npy``: an array (n, ceil(n_bits / 8)) of uint8; ``.bin``: its bytes alone; ``.parquet``, ``.arrow`` or
        ``.feather``: a table with a column ``code`` of fixed-size binaries, see `scq_gpu.io.read_codes`. Until it is
        complete there is only ``<out>.partial`` and ``<out>.partial.json`` beside it.
    id_column : str, optional
        A column of integers or strings in a Parquet or Arrow source, which is written beside the codes; ``out`` is a
        table then.
    workers : int, default=1
        Processes that read and encode. The file is the same, byte for byte. More than one helps where reading is the
        slow part (compressed or remote files), and wants ``if __name__ == "__main__":`` around a script.
    overwrite : bool, default=False
        Whether ``out`` may exist; it is replaced when the new file is complete.
    block_rows : int, optional
        Rows to encode at a time; by default 32 MiB of them.
    on_invalid : {"raise", "skip", "zero"}, default="raise"
        What to do about rows with NaN or inf: raise an error that names the first (blocks before it stay), leave them
        out of the codes, or give them codes of zeros. The latter two warn at the end, and write the numbers of all such
        rows to ``<out>.invalid.npy``.
    progress : bool, default=True
        Show rows, rows per second and time left, if standard error is a terminal; say in any case if it goes on from
        what an earlier call left, or why it does not.

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
    if is_url(out):
        raise ValueError(
            f"out={out!r} is a URL; codes are written to a local file, which can be copied there afterwards"
        )
    out = Path(out)
    encode_rows(
        encoder,
        open_rows(source),
        out,
        id_column=id_column,
        workers=workers,
        overwrite=overwrite,
        block_rows=block_rows,
        on_invalid=on_invalid,
        progress=progress,
        say=_write_line if progress else lambda message: None,
    )
    return out


def _write_line(message: str) -> None:
    from tqdm import tqdm

    tqdm.write(message, file=sys.stderr)


class Encoded(NamedTuple):
    """What a call has done."""

    path: Path
    rows: int  # of the source
    earlier: int  # of them encoded by an earlier call
    invalid: int


def encode_rows(
    encoder: Any,
    rows: RowSource,
    out: Path,
    *,
    id_column: str | None = None,
    workers: int = 1,
    overwrite: bool = False,
    block_rows: int | None = None,
    on_invalid: str = "raise",
    progress: bool = True,
    say: Callable[[str], None],
) -> Encoded:
    """Do the work of `encode_file`; ``say`` is told where it goes on, or why it starts over."""
    check_choice(on_invalid, name="on_invalid", choices=ON_INVALID)
    check_integer(workers, name="workers", minimum=1)
    if block_rows is None:
        block_rows = max(1, _BLOCK_BYTES // (rows.shape[1] * rows.dtype.itemsize))
    check_integer(block_rows, name="block_rows", minimum=1)
    _check_out(out, rows, overwrite=overwrite)
    check_id_column(rows, id_column, out)
    width = encoder.encode(rows.sample()).shape[1]  # also refuses an encoder that does not fit the rows
    job = {
        "encoder": _encoder_digest(encoder),
        "block_rows": block_rows,
        "code_bytes": width,
        "on_invalid": on_invalid,
        "scq_gpu": __version__,
    }
    with _Partial(out, job, rows) as partial:
        earlier = partial.done
        if partial.fresh_because:
            say(f"{out}: starting over, because {partial.fresh_because}")
        elif earlier:
            say(f"{out}: going on from row {earlier:,} of {rows.shape[0]:,}")
        work = Work(encoder, rows, block_rows, on_invalid)
        _encode_rest(work, partial, workers=workers, progress=progress)
        partial.finish(overwrite=overwrite, n_bits=encoder.n_bits, id_column=id_column)
    if partial.invalid:
        bad = np.load(_report_path(out), mmap_mode="r")
        where = f"; all are in {_report_path(out)}"
        warn_caller(InvalidRowsWarning(bad, n=rows.shape[0], on_invalid=on_invalid, where=where))
    return Encoded(out, rows.shape[0], earlier, partial.invalid)


def _encode_rest(work: Work, partial: _Partial, *, workers: int, progress: bool) -> None:
    from tqdm import tqdm

    n, done, off = work.rows.shape[0], partial.done, None if progress else True  # None: only on a terminal
    bar = tqdm(total=n, initial=done, desc=printable(partial.out.name), unit=" rows", unit_scale=True, disable=off)
    blocks = encoded_blocks(work, first=done, workers=workers)
    with bar, contextlib.closing(blocks):  # type: ignore[type-var]
        for block in blocks:
            partial.append(block)
            bar.update(block.rows)


class _Partial:
    """The unfinished file of ``out``, its journal, and a lock on both; ``job`` must be the same for it to go on."""

    def __init__(self, out: Path, job: dict[str, Any], rows: RowSource) -> None:
        self.out = out
        self.job = job
        self.done = 0  # rows read, of which some may be invalid
        self.invalid = 0
        self.fresh_because = ""  # why what an earlier call left is of no use
        self._rows = rows
        self._files = _fingerprints(rows)
        self._samples: dict[str, int] = {}
        self._path, self._journal, self._list_path = _partial_paths(out)
        self._list: int | None = None
        self._header = _header(out, rows.shape[0], job["code_bytes"])

    def __enter__(self) -> Self:
        with self._writing():
            journal = _read_journal(self._journal)
            if journal is None:
                for path in (self._path, self._list_path):
                    _refuse_foreign(path)
                self._save_journal()  # before there is a file that it is about
            self._file = _open_own(self._path)
            try:
                if not lock(self._file, self._path):  # or it has just been finished and renamed
                    raise BlockingIOError(f"another process is writing {self.out}; wait for it, or choose another name")
                self.done = 0 if journal is None else self._resume(journal)
                if self._list is None:
                    self._list_path.unlink(missing_ok=True)  # of another job
                os.ftruncate(self._file, self._size(self.done))
                os.lseek(self._file, 0, os.SEEK_SET)
                self._write(self._file, self._header)  # the number of rows may be another than it was
                os.lseek(self._file, 0, os.SEEK_END)
                self._save()
            except BaseException:
                self._close()
                raise
        self._saved = time.monotonic()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is not None and self._path.exists():
                with contextlib.suppress(OSError):  # the error under way says more
                    self._save()
        finally:
            self._close()

    def append(self, block: BlockCodes) -> None:
        """Add codes of the next rows, of which some were invalid."""
        codes, bad = block.codes, block.invalid
        if codes.dtype != np.uint8 or codes.ndim != 2 or codes.shape[1] != self.job["code_bytes"]:
            raise ValueError(f"the encoder gave {codes.dtype} {codes.shape}; uint8 codes of equal width were wanted")
        with self._writing():
            self._write(self._file, codes.tobytes())
            if bad.size:
                if self._list is None:
                    self._list = _open_own(self._list_path)
                self._write(self._list, (bad + self.done).astype("<i8").tobytes())
                self.invalid += bad.size
            self._samples[str(self.done)] = block.checksum
            if len(self._samples) > _SAMPLES:
                self._samples = dict(list(self._samples.items())[::2])
            self.done += block.rows
            if time.monotonic() - self._saved >= _JOURNAL_SECONDS:
                self._save()
                self._saved = time.monotonic()

    def finish(self, *, overwrite: bool, n_bits: int, id_column: str | None = None) -> None:
        """Give the file its name; what is to be a table is written anew, with the ids of the rows."""
        with self._writing():
            if self.job["on_invalid"] == "skip" and self.invalid:
                os.lseek(self._file, 0, os.SEEK_SET)
                header = _header(self.out, self.done - self.invalid, self.job["code_bytes"], length=len(self._header))
                self._write(self._file, header)
            os.fsync(self._file)
            if not overwrite:
                _refuse_existing(self.out)
            report = _report_path(self.out)
            if self._list is not None:
                with replacing(report) as file:
                    np.save(file, self._read_list())
            elif overwrite:
                report.unlink(missing_ok=True)
            if self.out.suffix in TABLES:
                self._save()  # all codes are there, whatever becomes of the table
                self._write_table(n_bits, id_column)
                self._path.unlink()
            else:
                os.replace(self._path, self.out)
            self._list_path.unlink(missing_ok=True)
            self._journal.unlink(missing_ok=True)
        sync_folder(self.out.parent)

    def _write_table(self, n_bits: int, id_column: str | None) -> None:
        width, skip = int(self.job["code_bytes"]), self.job["on_invalid"] == "skip"
        dropped = self._read_list() if skip and self._list is not None else np.zeros(0, dtype=np.int64)
        shape = (self.done - len(dropped), width)
        codes = np.memmap(self._path, dtype=np.uint8, mode="r", shape=shape) if shape[0] else np.zeros(shape, np.uint8)
        write_table(self.out, codes, n_bits=n_bits, rows=self._rows, id_column=id_column, dropped=dropped)

    def _size(self, rows: int) -> int:
        """Bytes of the header and the codes of that many rows of the source."""
        skipped = self.invalid if self.job["on_invalid"] == "skip" else 0
        return len(self._header) + (rows - skipped) * int(self.job["code_bytes"])

    def _resume(self, journal: dict[str, Any]) -> int:
        """How many rows an earlier run of this very job left; 0 if it was another, or left nothing whole."""
        done, invalid, files = journal["done"], journal["invalid"], journal["files"]
        total = sum(rows for _, rows in files)
        if journal["job"] != self.job or not 0 <= invalid <= done <= total:
            changed = [key for key in self.job if journal["job"].get(key) != self.job[key]]
            return self._start_over(" and ".join(_REASONS[key] for key in changed) or "its journal is damaged", done)
        if len(_header(self.out, total, self.job["code_bytes"])) != len(self._header):
            return self._start_over("the source has many more or fewer rows", done)
        if files != self._files:
            same = 0
            for then, now in zip(files, self._files, strict=False):
                if then != now:
                    break
                same += now[1]
            kept = min(done, same) // self.job["block_rows"] * self.job["block_rows"]
            if not kept:
                where = self._rows.locate(min(same, self._rows.shape[0] - 1)).partition(" of ")[2].partition(" (row")[0]
                return self._start_over(f"the source changed: {where} is not what it was, or not where it was", done)
            done = kept
        self._samples = {row: crc for row, crc in journal["samples"].items() if int(row) < done}
        if not self._same_rows():
            warn_caller(f"{self._rows.label} changed since {self._path} was begun, not in size or time; starting over")
            self._samples = {}
            return self._start_over("the source changed: rows are others, its size and time are not", done)
        if invalid:
            self._list = _open_own(self._list_path)
            listed = self._read_list()[:invalid]
            if len(listed) < invalid:
                os.ftruncate(self._list, 0)
                return self._start_over(f"{self._list_path} is shorter than it was", done)
            self.invalid = int(np.searchsorted(listed, done))
            os.ftruncate(self._list, 8 * self.invalid)
            os.lseek(self._list, 0, os.SEEK_END)
        if os.fstat(self._file).st_size < self._size(done):
            self.invalid = 0
            if self._list is not None:
                os.ftruncate(self._list, 0)
                os.lseek(self._list, 0, os.SEEK_SET)
            return self._start_over(f"{self._path} is shorter than it was", done)
        return int(done)

    def _start_over(self, reason: str, done: int) -> int:
        """Remember why, if anything is lost."""
        self.fresh_because = reason if done else ""
        return 0

    def _same_rows(self) -> bool:
        """Whether some rows of some blocks that were encoded are still what they were."""
        rows = list(self._samples)
        for row in rows[:: max(1, -(-len(rows) // _COMPARED))]:
            reader = self._rows.blocks(self.job["block_rows"], first=int(row))
            with contextlib.closing(reader) as blocks:  # type: ignore[type-var]
                if block_checksum(next(blocks)) != self._samples[row]:
                    return False
        return True

    def _read_list(self) -> np.ndarray:
        """The invalid rows that are on disk."""
        with open(self._list_path, "rb") as file:
            content = file.read()
        return np.frombuffer(content[: len(content) // 8 * 8], dtype="<i8")

    def _save(self) -> None:
        for descriptor in (self._file, self._list):
            if descriptor is not None:
                os.fsync(descriptor)
        self._save_journal()

    def _save_journal(self) -> None:
        facts = {"job": self.job, "files": self._files, "done": self.done, "invalid": self.invalid}
        replace_file(self._journal, json.dumps({"scq_gpu": "encode_file", **facts, "samples": self._samples}).encode())

    def _write(self, descriptor: int, content: bytes) -> None:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]

    def _close(self) -> None:
        for descriptor in (self._file, self._list):
            if descriptor is not None:
                os.close(descriptor)

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
                f"{os.strerror(error.errno)}: could not write {self._path} after {self.done:,} of "
                f"{self._rows.shape[0]:,} rows. Make room, or mend what is wrong, and call encode_file again: it "
                "goes on from what is there",
            ) from error


def _header(out: Path, rows: int, width: int, *, length: int | None = None) -> bytes:
    """What stands before the codes; filled up to a length with spaces, as the format allows."""
    if out.suffix != ".npy":
        return b""
    stream = streams.BytesIO()
    facts = {"descr": "|u1", "fortran_order": False, "shape": (rows, width)}
    np.lib.format.write_array_header_1_0(stream, facts)
    header = stream.getvalue()
    if length is None or length == len(header):
        return header
    text = header[10:].rstrip(b"\n").ljust(length - 11) + b"\n"
    return header[:8] + len(text).to_bytes(2, "little") + text


def _fingerprints(rows: RowSource) -> list[list[Any]]:
    """A digest of each file's facts, and how many rows it has; one for all where a source does not say."""
    facts = rows.identity()
    counts = [int(fact["shape"][0]) if "shape" in fact else -1 for fact in facts]
    if min(counts, default=-1) < 0 or sum(counts) != rows.shape[0]:
        return [[_fact_digest(facts), rows.shape[0]]]
    return [[_fact_digest(fact), count] for fact, count in zip(facts, counts, strict=True)]


def _fact_digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _read_journal(path: Path) -> dict[str, Any] | None:
    """A journal of ours, None if there is none or it is a stranger's."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with open(descriptor, "rb") as file:
            journal = json.loads(file.read(1 << 24))
        counts = [journal["done"], journal["invalid"], *(rows for _, rows in journal["files"])]
        counts += [number for row, crc in journal["samples"].items() for number in (int(row), crc)]
        ours = journal["scq_gpu"] == "encode_file" and isinstance(journal["job"], dict)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return journal if ours and all(type(count) is int and count >= 0 for count in counts) else None


def _open_own(path: Path) -> int:
    """A file of ours, made if there is none: never behind a link, a device, or under two names."""
    with contextlib.suppress(FileExistsError):
        return os.open(path, _OPEN | os.O_CREAT | os.O_EXCL, 0o666)
    _refuse_foreign(path, empty_only=False)
    return os.open(path, _OPEN)


def _refuse_foreign(path: Path, *, empty_only: bool = True) -> None:
    """Refuse a path that holds what we did not write; ``empty_only``: anything but an empty file."""
    try:
        facts = os.lstat(path)
    except FileNotFoundError:
        return
    why = "no journal of encode_file is beside it"
    if not stat.S_ISREG(facts.st_mode):
        why = "it is a link or no plain file"
    elif facts.st_nlink > 1:
        why = "it has a second name"
    elif not facts.st_size or not empty_only:
        return
    raise FileExistsError(f"{path} is there, and {why}: it is left as it is. Remove it, or choose another name for out")


def _check_out(out: Path, rows: RowSource, *, overwrite: bool) -> None:
    if out.suffix not in (".npy", ".bin", *TABLES):
        raise ValueError(
            f"out={str(out)!r} must end in .npy (an array of uint8) or .bin (its bytes alone), or in "
            f"{', '.join(TABLES)} (a table)"
        )
    if not out.parent.is_dir():
        raise FileNotFoundError(f"cannot write {out}: the folder {out.parent} does not exist")
    if out.is_dir():
        raise IsADirectoryError(f"cannot write {out}: it is a folder")
    if any(facts["path"] == str(out.resolve()) for facts in rows.identity()):
        raise ValueError(f"out={str(out)!r} is the source itself; choose another name")
    partial, journal, _ = _partial_paths(out)
    if not os.path.lexists(partial) and _read_journal(journal) is not None:
        journal.unlink(missing_ok=True)  # of a job killed between giving the file its name and this
    if not overwrite:
        _refuse_existing(out)


def _partial_paths(out: Path) -> tuple[Path, Path, Path]:
    """The unfinished file, its journal, and the list of invalid rows."""
    partial, journal, rows = (out.with_name(f"{out.name}.partial{ending}") for ending in ("", ".json", ".invalid"))
    return partial, journal, rows


def _report_path(out: Path) -> Path:
    return out.with_name(f"{out.name}.invalid.npy")


def _refuse_existing(out: Path) -> None:
    if out.exists():
        raise FileExistsError(f"{out} exists; pass overwrite=True to replace it, or remove it")


def _encoder_digest(encoder: Any) -> str:
    """SHA-256 over what an encoder has learned: its attributes that end in an underscore."""
    fitted = {name: value for name, value in vars(encoder).items() if name.endswith("_") and not name.startswith("_")}
    arrays = {name: to_host(value) for name, value in fitted.items() if is_array(value)}
    arrays = {name: x for name, x in arrays.items() if x.dtype.kind != "O"}  # names of features go by their repr
    facts = {name: repr(value) for name, value in fitted.items() if name not in arrays}
    return digest(arrays, facts | {"encoder": type(encoder).__name__, "bit_contract": BIT_CONTRACT})
