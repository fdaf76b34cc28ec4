"""Run a command and turn every way it can end into a message and an exit code."""

import contextlib
import errno
import os
import re
import sys
import warnings
from typing import Any

import typer
import typer.core

# Importing these modules adds their commands to the app.
from scq_gpu.cli import _index, _learn, _machine, _use  # noqa: F401
from scq_gpu.cli._console import Lacking, app, option_name, say

# The base class is click's, or that of the click inside newer versions of typer.
_USAGE_ERROR: Any = typer.BadParameter.__mro__[1]
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EBADF}
_ORDER = ["fit", "sweep", "encode", "search", "index", "export", "evaluate", "report", "bench", "info", "demo"]


class _Ordered(typer.core.TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return _ORDER


app.info.cls = _Ordered


def run(arguments: list[str]) -> int:
    """Run a command; failures become one line on standard error and an exit code."""
    with warnings.catch_warnings():
        try:
            code = app(args=arguments, prog_name="scq-gpu", standalone_mode=False)
            # Newer versions of typer return the code of an interrupt, older ones raise Abort.
            if code == 130:
                raise KeyboardInterrupt
            sys.stdout.flush()
            return code if isinstance(code, int) else 0
        except (KeyboardInterrupt, typer.Abort):
            say("interrupted")
            return 130
        except (BrokenPipeError, SystemExit) as error:
            if not isinstance(error.__context__ or error, BrokenPipeError):
                raise
            # Nobody reads standard output: the code of a shell for SIGPIPE.
            _drop_output()
            return 141
        except Exception as error:
            # python -X dev -m scq_gpu.cli ... shows the traceback.
            if sys.flags.dev_mode:
                raise
            return _explain(error)


# Parameters of the library that may stand in its messages: as ``name=value``, or alone.
_ALONE = (
    "n_bits|n_components|n_init|random_state|on_invalid|id_column|query_labels|n_queries|keep_vectors|vector_column"
)
_WITH_VALUE = (
    f"{_ALONE}|out|bits|max_iter|ap|ties|metric|ridge|scale|solver|init|tol|preserve|device|name|workers|overwrite"
    "|labels|radius"
)


def in_options(message: str) -> str:
    """Rewrite a message of the library with command-line names: ``--bits 9`` for ``n_bits=9``."""
    # scikit-learn's words for a parameter, and its value at the end
    message = re.sub(
        rf"^The '({_WITH_VALUE})' parameter of \w+ (.*?)\.? Got (.*) instead\.$",
        lambda match: f"{option_name(match[1])} {match[3]} {match[2]}",
        message,
    )
    message = re.sub(rf"(?<![\w.-])({_WITH_VALUE})=", lambda match: f"{option_name(match[1])} ", message)
    return re.sub(rf"(?<![\w.-])({_ALONE})\b", lambda match: option_name(match[1]), message)


def _explain(error: Exception) -> int:
    """Print an error as one line and return its exit code, as the help explains it; re-raise unexpected errors."""
    message, code = in_options(str(error)), 1
    if isinstance(error, _USAGE_ERROR):
        context = getattr(error, "ctx", None)
        command = "scq-gpu" if context is None else context.command_path
        message, code = f"{in_options(error.format_message())} (see {command} --help)", 2
    elif isinstance(error, Lacking | ImportError):
        code = 3
    elif isinstance(error, OSError) and error.errno in _DISK:
        message, code = f"the system reports: {error}", 4
        _drop_output()
    elif isinstance(error, MemoryError):
        message = f"not enough memory{': ' if str(error) else ''}{error}"
    elif not isinstance(error, OSError | ValueError | TypeError | RuntimeError):
        raise error
    say(message)
    return code


def _drop_output() -> None:
    """Discard buffered standard output, which would fail again at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
