"""What commands share: the app, the options that several have, and how they talk."""

import inspect
import json as json_format
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import scq_gpu as scq
from scq_gpu._core.devices import usable_device
from scq_gpu._core.terminal import printable

app = typer.Typer(
    name="scq-gpu",
    epilog="Exit codes: 0 done, 1 bad data or file, 2 bad usage, 3 this machine lacks something, "
    "4 the disk is full or may not be written, 130 interrupted.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def option(help: str, *names: str, **settings: Any) -> Any:
    """An option, its help first."""
    return typer.Option(*names, help=help, **settings)


def argument(help: str) -> Any:
    """An argument; that there is no default goes without saying."""
    return typer.Argument(help=help, show_default=False)


Model = Annotated[Path, argument("Model file, as `scq-gpu fit` writes it.")]
_FORMATS = (
    "Rows: .npy .npz .fbin .u8bin .i8bin .fvecs .bvecs .parquet .arrow .h5 .zarr; folders, patterns, URLs of them."
)
Data = Annotated[list[str], argument(_FORMATS)]  # not paths: pathlib would make s3:/ of s3://


class Lacking(Exception):
    """Something that this machine does not have."""


def say(message: str) -> None:
    """Print one line on standard error."""
    print(f"scq-gpu: {printable(' '.join(message.split()))}", file=sys.stderr, flush=True)


@dataclass
class Session:
    """The options that several commands have, what they open, and how a command talks.

    Results go to standard output, everything else to standard error. Until the ``warnings.catch_warnings`` around the
    command ends, warnings of the library are one line each; those for developers of other packages are not shown.
    """

    labels: Annotated[Path | None, option("Labels of the rows, in order: .npy, .npz, or text, one per line.")] = None
    queries: Annotated[
        list[str] | None, option("Rows to search for; if absent, some of the data, taken out of it.")
    ] = None
    query_labels: Annotated[Path | None, option("Labels of the queries.")] = None
    n_queries: Annotated[int, option("How many queries to take out of the data.", min=1)] = 300
    seed: Annotated[int, option("Seed of whatever is drawn at random.", min=0)] = 0
    overwrite: Annotated[bool, option("Replace the output if it is there already.", "--overwrite")] = False
    name: Annotated[
        list[str] | None,
        option("Array (.npz, HDF5, Zarr) or column (Parquet, Arrow) to read; repeat it for several columns."),
    ] = None
    device: Annotated[str | None, option("Where to work: cpu, cuda, cuda:0, cuda:1, ...; cpu by default.")] = None
    json: Annotated[bool, option("Print one JSON object on standard output, and nothing else.", "--json")] = False
    quiet: Annotated[bool, option("No progress, no warnings, no chatter.", "--quiet", "-q")] = False

    def __post_init__(self) -> None:
        self._warned: list[str] = []
        warnings.resetwarnings()
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", UserWarning)
        warnings.simplefilter("default", RuntimeWarning)
        warnings.showwarning = self._warn

    def _warn(self, message: Warning | str, *args: object, **options: object) -> None:
        self._warned.append(" ".join(str(message).split()))
        self.note(f"warning: {message}")

    def check_device(self) -> str | None:
        """The device, if work can run there."""
        try:
            return None if self.device is None else usable_device(self.device)
        except RuntimeError as error:
            raise Lacking(str(error).replace("device='cpu'", "--device cpu")) from error

    def check_output(self, path: Path | None, endings: Iterable[str] = ()) -> None:
        """Refuse a path that cannot be written to, before the work starts rather than after it."""
        if path is None:
            return
        if url := _url_of(path):
            raise ValueError(f"--output {url} is a URL; write to a local file, which can be copied there afterwards")
        known = list(endings)
        if known and path.suffix.lower() not in known:
            raise ValueError(f"{path} has the ending {path.suffix!r}; what can be written is {', '.join(known)}")
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder; name a file in it")
        if not path.parent.is_dir():
            raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist")
        if path.exists() and not self.overwrite:
            raise FileExistsError(f"{path} is there already; pass --overwrite to replace it")

    def open_rows(self, paths: Sequence[str]) -> Any:
        """Rows of one file or several."""
        name = self.name[0] if self.name and len(self.name) == 1 else self.name or None
        return scq.io.open_rows(paths[0] if len(paths) == 1 else list(paths), name=name)

    def open_model(self, path: Path) -> Any:
        """An encoder from its file, at work on the device."""
        if url := _url_of(path):
            raise ValueError(f"{url} is a URL, and models are read from local files; copy it first")
        if path.exists() and path.suffix != ".safetensors" and not _may_be_model(path):
            raise typer.BadParameter(
                f"{path} comes where the model is wanted, and is none: a model is a .safetensors file, as "
                "`scq-gpu fit` writes it, and comes first, before the data"
            )
        return scq.load(path, device=self.check_device())

    def note(self, message: str) -> None:
        """Print a line about what is going on, unless quiet."""
        if not self.quiet:
            say(message)

    def summary(self, title: str, facts: Mapping[str, Any]) -> None:
        """Print what was done, unless quiet: the files written are the result."""
        if self.json or not self.quiet:
            self.facts(title, facts)

    def facts(self, title: str, facts: Mapping[str, Any]) -> None:
        """Print a result of single values."""
        lines = [{"fact": key.replace("_", " "), "value": value} for key, value in facts.items()]
        self.table(title, lines, facts, header=False)

    def table(
        self,
        title: str,
        rows: Sequence[Mapping[str, Any]],
        data: Mapping[str, Any],
        note: str = "",
        header: bool = True,
    ) -> None:
        """Print a table for people, or ``data`` and the warnings so far for machines."""
        if self.json:
            text = json_format.dumps(dict(data), default=os.fspath)
            plain = json_format.loads(text, parse_constant=lambda _: None)  # there is no NaN in JSON
            print(json_format.dumps({**plain, "warnings": self._warned}))
            return
        table = Table(title=printable(title), title_justify="left", title_style="bold", show_header=header, box=None)
        for i, key in enumerate(rows[0]):
            table.add_column(key.replace("_", " "), justify="right" if header and i else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(printable(scq.report.show(value))) for value in row.values()))
        console = Console()
        console.print(table)
        if note:
            console.print(note, markup=False, highlight=False)


def command(*shared: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a command to the app: a function of a `Session`, then of its own options.

    It also has the options of `Session` that ``shared`` names, and ``--json`` and ``--quiet``.
    """

    def add(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        fields = inspect.signature(Session).parameters
        common = [fields[name] for name in (*shared, "json", "quiet")]

        def run(**options: Any) -> None:
            session = Session(**{field.name: options.pop(field.name) for field in common})
            function(session, **options)

        keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*own, *common)]
        run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        app.command(function.__name__, help=inspect.getdoc(function))(run)
        return function

    return add


def _url_of(path: Path) -> str | None:
    """The URL that was typed for a path, with the slash that pathlib took from it."""
    url, count = re.subn(r"^([A-Za-z][A-Za-z0-9+.-]+):/", r"\1://", path.as_posix())
    return url if count else None


def _may_be_model(path: Path) -> bool:
    """Whether a file begins as safetensors files do, with the length of a header in JSON, and the header."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(9)[8:] == b"{"


def join_lines(lines: Iterable[str]) -> bytes:
    """The content of a text file."""
    return "".join(f"{line}\n" for line in lines).encode()


def join_csv(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> bytes:
    """A table of numbers and plain names as CSV."""
    return join_lines(",".join(map(str, row)) for row in (columns, *rows))
