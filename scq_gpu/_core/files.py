"""Atomic writes: a reader sees the old file or the new one, never half of each."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

# Windows has no fcntl: there, stale temporary files cannot be distinguished from those being written, and stay
try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Yield a file that takes the name ``path`` when the block ends; on failure ``path`` is unchanged.

    The file is written under a temporary name beside ``path``, synced and renamed. Temporary files for the same
    ``path`` that killed processes left are removed first. Those still being written are locked, and stay.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder")
    _remove_stale(path)
    with _naming(path):
        # Names are noted before their files exist: an interrupt may come in between
        names: list[Path] = []
        try:
            temporary, file = _open_temporary(path, names)
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                # Renamed while it is locked, so that no other process takes it for a stale one
                if fcntl is not None:
                    os.replace(temporary, path)
            if fcntl is None:
                os.replace(temporary, path)
        except BaseException:
            for name in names:
                name.unlink(missing_ok=True)
            raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Fsync the folder, where the system can do that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Make errors of the system name ``path`` instead of the temporary file, or of no file."""
    try:
        yield
    except OSError as error:
        temporary = str(error.filename or "").endswith(".tmp")
        if error.errno is None or (error.filename is not None and not temporary):
            raise
        raise OSError(error.errno, f"{error.strerror}: could not write {path}") from error


def _open_temporary(path: Path, names: list[Path]) -> tuple[Path, IO[bytes]]:
    """Create a new file beside ``path``, never through a link, locked where the system has locks."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        names.append(temporary)
        try:
            file = open(temporary, "xb")  # noqa: SIM115 - the caller closes it
        # The existing file belongs to another process and must not be removed
        except FileExistsError:
            names.remove(temporary)
            raise
        try:
            if lock(file.fileno(), temporary):
                return temporary, file
        except BaseException:
            file.close()
            raise
        # Another process took it for a stale one before it was locked: try again
        file.close()


def _remove_stale(path: Path) -> None:
    """Remove temporary files for ``path``, of this user, that no process holds any more."""
    if fcntl is None:
        return
    mark = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.tmp")
    names = []
    with contextlib.suppress(OSError):
        names = os.listdir(path.parent)
    for stray in (path.with_name(name) for name in names if mark.fullmatch(name)):
        with contextlib.suppress(OSError):
            descriptor = os.open(stray, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                facts = os.fstat(descriptor)
                ours = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid()
                if ours and lock(descriptor, stray):
                    stray.unlink()
            finally:
                os.close(descriptor)


def lock(descriptor: int, path: Path) -> bool:
    """Return True if the file is locked now and still has its name, or if the system has no locks."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def replace_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Write ``content`` to ``path``, all or nothing."""
    with replacing(path) as file:
        file.write(content)


_SPECIAL = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def check_regular(path: str | os.PathLike[str], facts: os.stat_result | None = None) -> os.stat_result:
    """Return the facts of a file; reject FIFOs, sockets and devices, where opening or reading may never end."""
    facts = os.stat(path) if facts is None else facts
    if kind := _SPECIAL.get(stat.S_IFMT(facts.st_mode)):
        raise ValueError(f"{os.fspath(path)} is {kind}, not a file: copy what it gives to a file, and pass that")
    return facts


def check_not_input(outputs: Iterable[Path], inputs: Iterable[str | os.PathLike[str]]) -> None:
    """Reject an output that is one of the inputs, under whatever name, or in a folder that is one."""
    places: dict[tuple[int, int], Path] = {}
    for output in outputs:
        for place in (output, *Path(os.path.realpath(output)).parents):
            with contextlib.suppress(OSError):
                facts = os.stat(place)
                places.setdefault((facts.st_dev, facts.st_ino), output)
    for source in inputs:
        with contextlib.suppress(OSError):
            facts = os.stat(source)
            if found := places.get((facts.st_dev, facts.st_ino)):
                raise ValueError(f"{found} cannot be written, as {source} is read: choose another name")


def natural_order(path: Path) -> list[tuple[int, int | str]]:
    """Return a sort key that orders numbers in names by value: ``part-2`` before ``part-10``."""
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", path.name)]
