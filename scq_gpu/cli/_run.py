"""Every way a command can end: what is printed, and the exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import warnings
from typing import Any

import typer

from scq_gpu.cli import _learn, _machine, _measure, _plan, _use  # noqa: F401 - they add their commands to the app
from scq_gpu.cli._console import Lacking, app, say

BAD_DATA, BAD_USAGE, LACKING, CANNOT_WRITE, INTERRUPTED, NO_READER = 1, 2, 3, 4, 130, 141
_USAGE_ERROR: Any = typer.BadParameter.__mro__[1]  # click's, or that of the click inside newer typers
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}
_ORDER = ["fit", "sweep", "encode", "search", "export", "evaluate", "report", "bench", "plan", "info", "demo"]

app.registered_commands.sort(key=lambda command: _ORDER.index(str(command.name)))


def run(arguments: list[str]) -> int:
    """Run a command; failures become one line on standard error and an exit code."""
    with warnings.catch_warnings():
        try:
            code = app(args=arguments, prog_name="scq-gpu", standalone_mode=False)
            if code == INTERRUPTED:  # newer typers return it, older ones raise Abort
                raise KeyboardInterrupt
            sys.stdout.flush()
            return code if isinstance(code, int) else 0
        except (KeyboardInterrupt, typer.Abort):
            say("interrupted")
            return INTERRUPTED
        except (BrokenPipeError, SystemExit) as error:
            if not isinstance(error.__context__ or error, BrokenPipeError):
                raise
            _drop_output()
            return NO_READER
        except Exception as error:
            if sys.flags.dev_mode:  # python -X dev -m scq_gpu.cli ... shows where it happened
                raise
            return _explain(error)


_OPTIONS = {
    "n_bits": "--bits",
    "n_components": "--components",
    "n_init": "--restarts",
    "random_state": "--seed",
    "out": "--output",
    "bits": "--bits",
    **{
        name: f"--{name.replace('_', '-')}"
        for name in ("on_invalid", "id_column", "query_labels", "n_queries", "max_iter")
    },
    **{name: f"--{name}" for name in ("ap", "ties", "metric", "ridge", "scale", "solver", "init", "tol", "preserve")},
    **{name: f"--{name}" for name in ("device", "name", "workers", "overwrite", "labels", "radius")},
}
"""What the library's parameters are called on the command line."""
_WITH_VALUE = re.compile(rf"(?<![\w.-])({'|'.join(_OPTIONS)})=")
_ALONE = re.compile(
    r"(?<![\w.-])(n_bits|n_components|n_init|random_state|on_invalid|id_column|query_labels|n_queries)\b"
)


def in_options(message: str) -> str:
    """A message of the library in the words of the command line: ``--bits 9`` for ``n_bits=9``."""
    message = _WITH_VALUE.sub(lambda match: f"{_OPTIONS[match[1]]} ", message)
    return _ALONE.sub(lambda match: _OPTIONS[match[1]], message)


def _explain(error: Exception) -> int:
    """Say in one line what went wrong, and return the exit code; what nobody foresaw is raised again."""
    message, code = in_options(str(error)), BAD_DATA
    if isinstance(error, _USAGE_ERROR):
        context = getattr(error, "ctx", None)
        command = "scq-gpu" if context is None else context.command_path
        message, code = f"{in_options(error.format_message())} (see {command} --help)", BAD_USAGE
    elif isinstance(error, Lacking | ImportError):
        code = LACKING
    elif isinstance(error, OSError) and error.errno in _DISK:
        message, code = f"the system refuses: {error}", CANNOT_WRITE
        _drop_output()
    elif isinstance(error, MemoryError):
        message = f"not enough memory{': ' if str(error) else ''}{error}"
    elif not isinstance(error, OSError | ValueError | TypeError | RuntimeError):
        raise error
    say(message)
    return code


def _drop_output() -> None:
    """Nobody can take what is still buffered for standard output; it must not fail once more at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
