"""What commands share: the app, the options that all have, and how they talk."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(
    name="scq-gpu",
    epilog="Exit codes: 0 done, 1 bad data or file, 2 bad usage, 3 this machine lacks something, "
    "4 the disk is full or may not be written, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no warnings, no chatter.")]
Device = Annotated[str | None, typer.Option(help="Where to work: cpu, cuda, cuda:0, cuda:1, ...; cpu by default.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the output if it is there already.")]
Name = Annotated[
    list[str] | None,
    typer.Option(help="Array (.npz, HDF5, Zarr) or column (Parquet) to read; repeat it for several columns."),
]
Model = Annotated[Path, typer.Argument(help="Model file, as `scq-gpu fit` writes it.", show_default=False)]
Data = Annotated[
    list[Path],
    typer.Argument(
        help="Rows: .npy .npz .fbin .u8bin .i8bin .fvecs .bvecs .parquet .h5 .zarr, or folders of them.",
        show_default=False,
    ),
]
Labels = Annotated[Path | None, typer.Option(help="Labels of the rows, in order: .npy, .npz, or text with one a line.")]

_warned: list[str] = []


class Lacking(Exception):
    """Something that this machine does not have."""


def say(message: str) -> None:
    """One line on standard error."""
    print(f"scq-gpu: {' '.join(message.split())}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def short_warnings() -> Iterator[None]:
    """Warnings of the library as one line each; those of other packages' developers are not for users."""

    def show(message: Warning | str, *args: object, **kwargs: object) -> None:
        _warned.append(" ".join(str(message).split()))
        if not Talk.hushed:
            say(f"warning: {message}")

    _warned.clear()
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", UserWarning)
        warnings.simplefilter("default", RuntimeWarning)
        warnings.showwarning = show
        yield


class Talk:
    """How one command talks: results on standard output, everything else on standard error.

    Parameters
    ----------
    as_json : bool
        Results as one JSON object.
    quiet : bool
        No progress, no warnings, no notes.
    """

    hushed = False

    def __init__(self, *, as_json: bool, quiet: bool) -> None:
        self._json, self.quiet = as_json, quiet
        Talk.hushed = quiet

    def note(self, message: str) -> None:
        """A line about what is going on."""
        if not self.quiet:
            say(message)

    def summary(self, title: str, facts: Mapping[str, Any]) -> None:
        """What was done, for whoever watches; the files written are the result."""
        if self._json or not self.quiet:
            self.facts(title, facts)

    def facts(self, title: str, facts: Mapping[str, Any]) -> None:
        """A result of single values."""
        self.table(title, ["", ""], [[key.replace("_", " "), value] for key, value in facts.items()], facts)

    def table(
        self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], data: Mapping[str, Any], note: str = ""
    ) -> None:
        """A result as a table for people, or as ``data`` for machines, with the warnings so far."""
        if self._json:
            print(json.dumps({**_plain(data), "warnings": list(_warned)}, allow_nan=False))
            return
        table = Table(title=title, title_justify="left", title_style="bold", show_header=any(columns), box=None)
        for place, column in enumerate(columns):
            table.add_column(column, justify="left" if place == 0 or not any(columns) else "right", overflow="fold")
        for row in rows:
            table.add_row(*(show(value) for value in row))
        console = Console()
        console.print(table)
        if note:
            console.print(note, markup=False, highlight=False)


def show(value: Any) -> str:
    """A value for people."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        size = abs(value)
        return f"{value:,.0f}" if size >= 1000 else f"{value:.4f}" if 1e-3 <= size < 10 else f"{value:.4g}"
    return str(value)


def _plain(value: Any) -> Any:
    """A value as JSON has it; there is no NaN in JSON."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
