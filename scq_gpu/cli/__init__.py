"""The command line ``scq-gpu``: files in, files and tables out; the work is done by the library.

Exit codes: 0 done; 1 bad data, file or value; 2 bad usage; 3 something this machine lacks (a GPU, an optional
package); 4 the disk is full or may not be written; 130 interrupted.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run a command line and return its exit code.

    Parameters
    ----------
    arguments : list of str, optional
        By default those of the process.

    Returns
    -------
    int

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
