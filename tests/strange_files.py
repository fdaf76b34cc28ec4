"""FIFOs, sockets, devices and links in the place of files, and a watch over what may hang on them."""

import contextlib
import os
import shutil
import signal
import socket
from pathlib import Path


class Hung(BaseException):
    """No error that a caller would catch."""


@contextlib.contextmanager
def within(seconds=20):
    """End the block by `Hung` if it takes longer."""

    def stop(number, frame):
        raise Hung(f"nothing came of it in {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _socket(path):
    bound, here = socket.socket(socket.AF_UNIX), os.getcwd()
    os.chdir(path.parent)  # the address may have 107 bytes
    try:
        bound.bind(path.name)
    finally:
        os.chdir(here)
        bound.close()


STRANGE = {
    "fifo": os.mkfifo,
    "socket": _socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "dangling link": lambda path: path.symlink_to("nowhere"),
}


def put(kind, path):
    """Put something strange in the place of a file or of nothing."""
    path = Path(path)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    STRANGE[kind](path)
    return path
