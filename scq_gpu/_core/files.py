"""Writing files so that a reader sees the old one or the new one, never half of each."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # not on Windows, where files that are being written are not told from stale ones
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file to write to, which takes the name ``path`` when the block ends; on failure ``path`` is as it was.

    It is written under a temporary name beside ``path``, synced and renamed. Temporary files for the same ``path`` that
    killed processes left are removed first; those that are being written are locked, and stay.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder")
    _remove_stale(path)
    with _naming(path):
        names: list[Path] = []  # an interrupt may come as soon as a file is there
        try:
            temporary, file = _open_temporary(path, names)
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                if fcntl is not None:
                    os.replace(temporary, path)  # while it is locked: nobody takes it for a stale one
            if fcntl is None:
                os.replace(temporary, path)
        except BaseException:
            for name in names:
                name.unlink(missing_ok=True)
            raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder reach the disk too, where the system can do that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors of the system name the file that was wanted, not the temporary one, or none."""
    try:
        yield
    except OSError as error:
        temporary = str(error.filename or "").endswith(".tmp")
        if error.errno is None or (error.filename is not None and not temporary):
            raise
        raise OSError(error.errno, f"{error.strerror}: could not write {path}") from error


def _open_temporary(path: Path, names: list[Path]) -> tuple[Path, IO[bytes]]:
    """A new file beside ``path``, locked where the system has locks; never one that was there, nor behind a link.

    Its name is added to ``names`` before it is there.
    """
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        names.append(temporary)
        try:
            file = open(temporary, "xb")  # noqa: SIM115 - the caller closes it
        except FileExistsError:  # another's
            names.remove(temporary)
            raise
        try:
            if lock(file.fileno(), temporary):
                return temporary, file
        except BaseException:
            file.close()
            raise
        file.close()  # somebody took it for a stale one before it was locked


def _remove_stale(path: Path) -> None:
    """Remove temporary files that no process holds any more, of this user and for this ``path``."""
    if fcntl is None:
        return
    mark = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.tmp")
    with contextlib.suppress(OSError):
        for name in os.listdir(path.parent):
            if mark.fullmatch(name):
                _remove_if_free(path.with_name(name))


def _remove_if_free(stray: Path) -> None:
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
    """Whether a file could be locked and still has its name; True too where there are no locks."""
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


def natural_order(path: Path) -> list[tuple[int, int | str]]:
    """Key that sorts numbers inside names by value: ``part-2`` before ``part-10``."""
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", path.name)]
