"""The command line ``scq-gpu``, a thin layer over the library."""

import contextlib
import os
import sys
from typing import NoReturn

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run a command line, by default that of the process, and return its exit code.

    Examples
    --------
    >>> from scq_gpu.cli import main
    >>> main(["--version"])
    scq-gpu ...
    0
    """
    try:
        from scq_gpu.cli._run import run
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] not in {"typer", "rich"}:
            raise
        print(f'scq-gpu: the command line needs {error.name}: pip install "scq-gpu[cli]"', file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("scq-gpu: interrupted", file=sys.stderr)
        return 130
    return run(sys.argv[1:] if arguments is None else arguments)


def end() -> NoReturn:
    """Run the command line of the process and exit with its code."""
    # Files would get the numbers of closed streams. Writing to what takes the place of standard output fails likewise.
    for name, flags in (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), "r" if name == "stdin" else "w"))
    code = main()
    # While Python waits for threads and finalizes, another Ctrl-C would end it by the signal instead of with this code.
    if code == 130:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(code)
    sys.exit(code)
