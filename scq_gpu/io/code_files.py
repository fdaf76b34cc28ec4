"""Encode a file of rows into a file of codes, in a job that can be stopped at any moment and resumed.

Codes are appended to ``out.partial``. The journal, ``out.partial.json``, records how many rows, of which files and
encoder, are safely on disk. It is created before the partial file, and codes reach the disk before the journal counts
them. ``out`` appears complete, in one step. A file at ``out.partial`` without a journal is not ours and is left alone,
and links there are not followed.
"""

from __future__ import annotations

import contextlib
import hashlib
import io as streams
import itertools
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
from tqdm import tqdm

from scq_gpu._core.arrays import is_array, to_host
from scq_gpu._core.bits import BIT_CONTRACT
from scq_gpu._core.files import check_not_input, lock, replace_file, replacing, sync_folder
from scq_gpu._core.messages import printable, warn_caller
from scq_gpu._core.validate import ON_INVALID, InvalidRowsWarning, check_choice, check_integer
from scq_gpu._version import __version__
from scq_gpu.io.block_codes import BlockCodes, Work, block_checksum, encoded_blocks
from scq_gpu.io.code_tables import TABLES, check_id_column, write_table
from scq_gpu.io.models import digest
from scq_gpu.rows.sources import Paths, RowSource, is_url, open_rows
from scq_gpu.rows.sources.binary import read_array

_BLOCK_BYTES = 32 << 20
_JOURNAL_SECONDS = 1.0  # work repeated after a crash, at most
_REASONS = {
    "encoder": "the encoder changed",
    "block_rows": "block_rows changed",
    "code_bytes": "the width of codes changed",
    "on_invalid": "on_invalid changed",
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

    After an error, an interrupt, a crash or ``kill -9``, call it again: it resumes, and the file is the same, byte for
    byte. It starts over if the encoder, ``block_rows`` or ``on_invalid`` changed. If one of several files changed, it
    resumes at that file.

    Parameters
    ----------
    encoder : fitted encoder
    source : path, list of paths, or result of `scq_gpu.io.open_rows`
    out : path
        ``.npy``: an array (n, ceil(n_bits / 8)) of uint8; ``.bin``: its bytes alone; ``.parquet``, ``.arrow`` or
        ``.feather``: a table with a column ``code`` of fixed-size binaries, see `scq_gpu.io.read_codes`. Unfinished
        work is in ``<out>.partial`` and ``<out>.partial.json``.
    id_column : str, optional
        A column of integers or strings in a Parquet or Arrow source, to be written beside the codes; ``out`` must be a
        table.
    workers : int, default=1
        Processes that read and encode. The file is the same, byte for byte. More than one helps where reading is slow
        (compressed or remote files), and needs ``if __name__ == "__main__":`` around a script.
    overwrite : bool, default=False
        Replace an existing ``out`` when the new file is complete.
    block_rows : int, optional
        Rows to encode at a time; by default 32 MiB of them.
    on_invalid : {"raise", "skip", "zero"}, default="raise"
        Rows with NaN or inf raise an error that names the first (blocks before it stay), are left out of the codes, or
        get codes of zeros. "skip" and "zero" warn at the end, and write the numbers of these rows to
        ``<out>.invalid.npy``.
    progress : bool, default=True
        Show a progress bar if standard error is a terminal, and print whether the work of an earlier call is resumed.

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
    encode_to_file(
        encoder,
        open_rows(source),
        out,
        id_column=id_column,
        workers=workers,
        overwrite=overwrite,
        block_rows=block_rows,
        on_invalid=on_invalid,
        progress=progress,
        say=(lambda message: tqdm.write(message, file=sys.stderr)) if progress else (lambda message: None),
    )
    return out


def encode_to_file(
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
) -> _Partial:
    """Do the work of `encode_file`; ``say`` reports where it resumes, or why it starts over."""
    check_choice(on_invalid, name="on_invalid", choices=ON_INVALID)
    check_integer(workers, name="workers", minimum=1)
    if block_rows is None:
        block_rows = max(1, _BLOCK_BYTES // (rows.shape[1] * rows.dtype.itemsize))
    check_integer(block_rows, name="block_rows", minimum=1)
    _check_out(out, rows, overwrite=overwrite, on_invalid=on_invalid)
    check_id_column(rows, id_column, out)
    # Encoding a row also rejects an encoder that does not fit the rows.
    width = encoder.encode(rows.sample()).shape[1]
    job = {"encoder": _encoder_digest(encoder), "block_rows": block_rows, "code_bytes": width, "on_invalid": on_invalid}
    job["scq_gpu"] = __version__
    with _Partial(out, job, rows) as partial:
        earlier = partial.earlier = partial.done
        if partial.fresh_because:
            say(f"{out}: starting over, because {partial.fresh_because}")
        elif earlier:
            say(f"{out}: going on from row {earlier:,} of {rows.shape[0]:,}")
        blocks = encoded_blocks(Work(encoder, rows, block_rows, on_invalid), first=earlier, workers=workers)
        look = {"desc": printable(out.name), "unit": " rows", "unit_scale": True}
        # disable=None shows the bar on terminals only.
        bar = tqdm(total=rows.shape[0], initial=earlier, disable=None if progress else True, **look)
        with bar, contextlib.closing(blocks):  # type: ignore[type-var]
            for block in blocks:
                partial.append(block)
                bar.update(block.rows)
        partial.finish(overwrite=overwrite, n_bits=encoder.n_bits, id_column=id_column)
    if partial.invalid:
        bad, where = np.load(partial.report, mmap_mode="r"), f"; all are in {partial.report}"
        warn_caller(InvalidRowsWarning(bad, n=rows.shape[0], on_invalid=on_invalid, where=where))
    return partial


class _Partial:
    """The unfinished file of ``out``, its journal, and a lock on both; only the same ``job`` can resume it."""

    def __init__(self, out: Path, job: dict[str, Any], rows: RowSource) -> None:
        self.out = out
        self.job = job
        self.done = 0  # rows read, of which some may be invalid
        self.earlier = 0  # rows encoded by an earlier call
        self.invalid = 0
        self.fresh_because = ""  # reason for not resuming
        self._rows = rows
        self._files = _fingerprints(rows)
        self._samples: dict[str, int] = {}
        self._path, self._journal, self._list_path, self.report = _companions(out)
        self._list: int | None = None
        self._header = _header(out, rows.shape[0], job["code_bytes"])

    def __enter__(self) -> Self:
        with self._writing():
            journal = _read_journal(self._journal)
            if journal is None:
                for path in (self._path, self._list_path, self._journal):
                    _reject_foreign(path)
                self._save_journal()
            self._file = _open_own(self._path)
            try:
                # The lock also fails if the file has just been finished and renamed.
                if not lock(self._file, self._path):
                    raise BlockingIOError(f"another process is writing {self.out}; wait for it, or choose another name")
                reason = "" if journal is None else self._resume(journal)
                if journal is not None and reason:
                    # Starting over is worth a word only if work is lost.
                    self.fresh_because = reason if journal["done"] else ""
                    self.done, self.invalid, self._samples = 0, 0, {}
                # A list that this job does not resume belongs to another job.
                if self._list is None:
                    self._list_path.unlink(missing_ok=True)
                else:
                    os.ftruncate(self._list, 8 * self.invalid)
                    os.lseek(self._list, 0, os.SEEK_END)
                os.ftruncate(self._file, self._size(self.done))
                # The number of rows in the header may have changed.
                os.lseek(self._file, 0, os.SEEK_SET)
                _write_all(self._file, self._header)
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
                # A second error would hide the first.
                with contextlib.suppress(OSError):
                    self._save()
        finally:
            self._close()

    def append(self, block: BlockCodes) -> None:
        """Append the codes of the next rows."""
        codes, bad = block.codes, block.invalid
        if codes.dtype != np.uint8 or codes.ndim != 2 or codes.shape[1] != self.job["code_bytes"]:
            raise ValueError(f"the encoder gave {codes.dtype} {codes.shape}; uint8 codes of equal width were expected")
        with self._writing():
            _write_all(self._file, codes.tobytes())
            if bad.size:
                if self._list is None:
                    self._list = _open_own(self._list_path)
                _write_all(self._list, (bad + self.done).astype("<i8").tobytes())
                self.invalid += bad.size
            self._samples[str(self.done)] = block.checksum
            # The journal stays short: beyond 64 checksums, every other one is dropped.
            if len(self._samples) > 64:
                self._samples = dict(list(self._samples.items())[::2])
            self.done += block.rows
            if time.monotonic() - self._saved >= _JOURNAL_SECONDS:
                self._save()
                self._saved = time.monotonic()

    def finish(self, *, overwrite: bool, n_bits: int, id_column: str | None = None) -> None:
        """Rename the file, or write the table with the ids of the rows."""
        with self._writing():
            if self.job["on_invalid"] == "skip" and self.invalid:
                os.lseek(self._file, 0, os.SEEK_SET)
                header = _header(self.out, self.done - self.invalid, self.job["code_bytes"], length=len(self._header))
                _write_all(self._file, header)
            os.fsync(self._file)
            if not overwrite:
                _reject_existing(self.out)
            if self._list is not None:
                listed = self._read_list()
                # A run killed between the report and the codes has left the same one.
                if not overwrite and self.report.exists() and not np.array_equal(read_array(self.report), listed):
                    _reject_existing(self.report)
                with replacing(self.report) as file:
                    np.save(file, listed)
            elif overwrite:
                self.report.unlink(missing_ok=True)
            if self.out.suffix in TABLES:
                # All codes are safe, even if writing the table fails.
                self._save()
                skip = self.job["on_invalid"] == "skip" and self._list is not None
                dropped = self._read_list() if skip else np.zeros(0, dtype=np.int64)
                shape = (self.done - len(dropped), int(self.job["code_bytes"]))
                # An empty file cannot be mapped.
                codes = np.memmap(self._path, np.uint8, "r", shape=shape) if shape[0] else np.zeros(shape, np.uint8)
                write_table(self.out, codes, n_bits=n_bits, rows=self._rows, id_column=id_column, dropped=dropped)
                self._path.unlink()
            else:
                os.replace(self._path, self.out)
            self._list_path.unlink(missing_ok=True)
            self._journal.unlink(missing_ok=True)
        sync_folder(self.out.parent)

    def _size(self, rows: int) -> int:
        """Return the bytes of the header and of the codes of that many rows of the source."""
        skipped = self.invalid if self.job["on_invalid"] == "skip" else 0
        return len(self._header) + (rows - skipped) * int(self.job["code_bytes"])

    def _resume(self, journal: dict[str, Any]) -> str:
        """Take over the state of an earlier run of this job, or return the reason why it cannot be resumed."""
        done, invalid, files = journal["done"], journal["invalid"], journal["files"]
        total = sum(rows for _, rows in files)
        if journal["job"] != self.job or not 0 <= invalid <= done <= total:
            changed = [key for key in self.job if journal["job"].get(key) != self.job[key]]
            return " and ".join(_REASONS[key] for key in changed) or "its journal is damaged"
        # A header of another length would shift all codes.
        if len(_header(self.out, total, self.job["code_bytes"])) != len(self._header):
            return "the source has many more or fewer rows"
        # Whole blocks before the first file that changed are kept.
        if files != self._files:
            alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(files, self._files, strict=False))
            same = sum(rows for _, (_, rows) in alike)
            done = min(done, same) // self.job["block_rows"] * self.job["block_rows"]
            if not done:
                where = self._rows.locate(min(same, self._rows.shape[0] - 1)).partition(" of ")[2].partition(" (row")[0]
                return f"the source changed: {where} is not what it was, or not where it was"
        self._samples = {row: crc for row, crc in journal["samples"].items() if int(row) < done}
        if not self._same_rows():
            warn_caller(f"{self._rows.label} changed since {self._path} was begun, not in size or time; starting over")
            return "the source changed: its rows differ, its size and time do not"
        if invalid:
            self._list = _open_own(self._list_path)
            listed = self._read_list()[:invalid]
            if len(listed) < invalid:
                return f"{self._list_path} is shorter than it was"
            self.invalid = int(np.searchsorted(listed, done))
        # The journal counts only codes that reached the disk, so someone else cut the file.
        if os.fstat(self._file).st_size < self._size(done):
            return f"{self._path} is shorter than it was"
        self.done = done
        return ""

    def _same_rows(self) -> bool:
        """Check that rows of up to 8 encoded blocks have not changed."""
        rows = list(self._samples)
        for row in rows[:: max(1, -(-len(rows) // 8))]:
            reader = self._rows.blocks(self.job["block_rows"], first=int(row))
            with contextlib.closing(reader) as blocks:  # type: ignore[type-var]
                if block_checksum(next(blocks)) != self._samples[row]:
                    return False
        return True

    def _read_list(self) -> np.ndarray:
        """Read the numbers of invalid rows from disk."""
        content = self._list_path.read_bytes()
        return np.frombuffer(content[: len(content) // 8 * 8], dtype="<i8")

    def _save(self) -> None:
        for descriptor in (self._file, self._list):
            if descriptor is not None:
                os.fsync(descriptor)
        self._save_journal()

    def _save_journal(self) -> None:
        facts = {"job": self.job, "files": self._files, "done": self.done, "invalid": self.invalid}
        replace_file(self._journal, json.dumps({"scq_gpu": "encode_file", **facts, "samples": self._samples}).encode())

    def _close(self) -> None:
        for descriptor in (self._file, self._list):
            if descriptor is not None:
                os.close(descriptor)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Add the state of the job to errors of the disk."""
        try:
            yield
        except OSError as error:
            if error.errno is None or isinstance(error, FileExistsError):
                raise
            raise OSError(
                error.errno,
                f"{os.strerror(error.errno)}: could not write {self._path} after {self.done:,} of "
                f"{self._rows.shape[0]:,} rows. Make room, or fix the cause, and call encode_file again: it goes "
                "on from what is there",
            ) from error


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _header(out: Path, rows: int, width: int, *, length: int | None = None) -> bytes:
    """Return the header before the codes, padded with spaces to a length, as the format allows."""
    if out.suffix != ".npy":
        return b""
    stream = streams.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": (rows, width)})
    header = stream.getvalue()
    if length is None or length == len(header):
        return header
    text = header[10:].rstrip(b"\n").ljust(length - 11) + b"\n"
    return header[:8] + len(text).to_bytes(2, "little") + text


def _fingerprints(rows: RowSource) -> list[list[Any]]:
    """Return a digest and the number of rows of each file, or one pair for a source that cannot tell."""
    facts: list[Any] = list(rows.identity())
    counts = [int(fact["shape"][0]) if "shape" in fact else -1 for fact in facts]
    if min(counts, default=-1) < 0 or sum(counts) != rows.shape[0]:
        facts, counts = [facts], [rows.shape[0]]
    digests = [hashlib.sha256(json.dumps(fact).encode()).hexdigest() for fact in facts]
    return [[text, count] for text, count in zip(digests, counts, strict=True)]


def _read_journal(path: Path) -> dict[str, Any] | None:
    """Read a journal; None if there is none or it is not ours."""
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
    """Open or create a file of ours; reject links, devices and files with two names."""
    with contextlib.suppress(FileExistsError):
        return os.open(path, _OPEN | os.O_CREAT | os.O_EXCL, 0o666)
    _reject_foreign(path, empty_only=False)
    return os.open(path, _OPEN)


def _reject_foreign(path: Path, *, empty_only: bool = True) -> None:
    """Reject a path that we did not write; ``empty_only`` also rejects files with content."""
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


def _check_out(out: Path, rows: RowSource, *, overwrite: bool, on_invalid: str) -> None:
    if out.suffix not in (".npy", ".bin", *TABLES):
        raise ValueError(
            f"out={str(out)!r} must end in .npy (an array of uint8) or .bin (its bytes alone), or in "
            f"{', '.join(TABLES)} (a table)"
        )
    if not out.parent.is_dir():
        raise FileNotFoundError(f"cannot write {out}: the folder {out.parent} does not exist")
    if out.is_dir():
        raise IsADirectoryError(f"cannot write {out}: it is a folder")
    partial, journal, _, report = _companions(out)
    check_not_input((out, *_companions(out)), (facts["path"] for facts in rows.identity()))
    # A job killed after the rename leaves its journal.
    if not os.path.lexists(partial) and _read_journal(journal) is not None:
        journal.unlink(missing_ok=True)
    if not overwrite:
        _reject_existing(out)
    if (overwrite or on_invalid != "raise") and os.path.lexists(report):
        _check_report(report, replaced=overwrite or _read_journal(journal) is not None)


def _check_report(report: Path, *, replaced: bool) -> None:
    """Reject a file in the place of the report unless it is one, and to be ``replaced``."""
    with contextlib.suppress(OSError, ValueError):
        listed = read_array(report) if stat.S_ISREG(os.lstat(report).st_mode) else np.zeros(0)
        if replaced and listed.ndim == 1 and listed.dtype == np.int64:
            return
    why = "no list of invalid rows" if replaced else "the numbers of invalid rows go there"
    raise FileExistsError(
        f"{report} is there, and {why}: it is left as it is. Remove it, or choose another name for out"
    )


def _companions(out: Path) -> tuple[Path, Path, Path, Path]:
    """Return the paths of the unfinished file, its journal, its list of invalid rows, and the report of them."""
    partial, journal, rows, report = (
        out.with_name(f"{out.name}{ending}")
        for ending in (".partial", ".partial.json", ".partial.invalid", ".invalid.npy")
    )
    return partial, journal, rows, report


def _reject_existing(out: Path) -> None:
    if out.exists():
        raise FileExistsError(f"{out} exists; pass overwrite=True to replace it, or remove it")


def _encoder_digest(encoder: Any) -> str:
    """Compute SHA-256 over the learned attributes of an encoder, whose names end in an underscore."""
    fitted = {name: value for name, value in vars(encoder).items() if name.endswith("_") and not name.startswith("_")}
    arrays = {name: to_host(value) for name, value in fitted.items() if is_array(value)}
    # Names of features are arrays of objects, whose repr is hashed.
    arrays = {name: x for name, x in arrays.items() if x.dtype.kind != "O"}
    facts = {name: repr(value) for name, value in fitted.items() if name not in arrays}
    return digest(arrays, facts | {"encoder": type(encoder).__name__, "bit_contract": BIT_CONTRACT})
