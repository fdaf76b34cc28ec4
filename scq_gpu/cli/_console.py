"""Shared parts of all commands: the app, common options, input, output and messages."""

import contextlib
import inspect
import json as json_format
import os
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

import scq_gpu as scq
from scq_gpu._core.arrays import usable_device
from scq_gpu._core.files import check_not_input, check_regular
from scq_gpu._core.messages import printable, show
from scq_gpu._core.validate import METRICS
from scq_gpu.rows.changed import normalize_rows
from scq_gpu.rows.sources import FORMATS
from scq_gpu.rows.sources.binary import read_array

app = typer.Typer(
    name="scq-gpu",
    epilog="Exit codes: 0 done, 1 bad data or file, 2 bad usage, 3 this machine lacks something, "
    "4 the disk is full or may not be written, 130 interrupted.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def option(help: str, *names: str, **settings: Any) -> Any:
    """Return a typer option, its help first."""
    return typer.Option(*names, help=help, **settings)


def argument(help: str) -> Any:
    """Return a typer argument without a default."""
    return typer.Argument(help=help, show_default=False)


def option_name(parameter: str) -> str:
    """Return the option for a parameter of the library: ``--bits`` for ``n_bits``."""
    names = {"n_bits": "bits", "n_components": "components", "n_init": "restarts", "out": "output"}
    names["random_state"] = "seed"
    return f"--{names.get(parameter, parameter).replace('_', '-')}"


metric_option = option(
    f"Metric that defines the nearest rows: {', '.join(METRICS)}. The cosine normalizes rows and queries.",
    show_default="l2",
)
Metric = Annotated[str, metric_option]
Model = Annotated[Path, argument("Model file, as `scq-gpu fit` writes it.")]
_Facts = Mapping[str, Any]
_Words = list[str] | None
# Strings, not paths: pathlib would turn s3:// into s3:/.
Data = Annotated[list[str], argument(f"Rows: {' '.join(FORMATS)}; folders, patterns, URLs of them.")]


def check_word(name: str, value: str, choices: Collection[str]) -> None:
    """Reject the value of an option that is none of its words."""
    if value not in choices:
        raise typer.BadParameter(f"--{name} {value} is not one of {', '.join(choices)}")


class Lacking(Exception):
    """A device or package that this machine does not have."""


def say(message: str) -> None:
    """Print one line on standard error."""
    print(f"scq-gpu: {printable(' '.join(message.split()))}", file=sys.stderr, flush=True)


@dataclass
class Session:
    """Options shared by several commands, the files they open, and the way a command prints.

    Results go to standard output, everything else to standard error. Inside the ``warnings.catch_warnings`` around the
    command, each warning of the library is printed as one line; deprecation warnings of other packages are hidden.
    """

    labels: Annotated[Path | None, option("Labels of the rows, in order: .npy, .npz, or text, one per line.")] = None
    queries: Annotated[_Words, option("Rows to search for; if absent, some of the data, taken out of it.")] = None
    query_labels: Annotated[Path | None, option("Labels of the queries.")] = None
    n_queries: Annotated[int, option("Number of queries to take out of the data.", min=1)] = 300
    seed: Annotated[int, option("Random seed.", min=0)] = 0
    overwrite: Annotated[bool, option("Replace an existing output.", "--overwrite")] = False
    name: Annotated[
        _Words, option("Array (.npz, HDF5, Zarr) or column (Parquet, Arrow) to read; repeat it for several columns.")
    ] = None
    device: Annotated[str | None, option("Where to work: cpu, cuda, cuda:0, cuda:1, ...; cpu by default.")] = None
    json: Annotated[bool, option("Print one JSON object on standard output, and nothing else.", "--json")] = False
    quiet: Annotated[bool, option("No progress, no warnings, no chatter.", "--quiet", "-q")] = False

    def __post_init__(self) -> None:
        self._warned: list[str] = []
        self._outputs: list[Path] = []
        warnings.resetwarnings()
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", UserWarning)
        warnings.simplefilter("default", RuntimeWarning)
        warnings.showwarning = self._warn

    def _warn(self, message: Warning | str, *args: object, **options: object) -> None:
        self._warned.append(" ".join(str(message).split()))
        self.note(f"warning: {message}")

    def check_device(self) -> str | None:
        """Return the device, or raise `Lacking` where it cannot be used."""
        try:
            return None if self.device is None else usable_device(self.device)
        except RuntimeError as error:
            raise Lacking(str(error).replace("device='cpu'", "--device cpu")) from error

    def check_output(self, path: Path | None, endings: Iterable[str] = ()) -> None:
        """Reject a path that cannot be written, before the work starts."""
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
        self._outputs.append(path)

    def takes(self, *paths: str | os.PathLike[str]) -> None:
        """Reject inputs that are outputs, under whatever name, and those that are no regular files."""
        check_not_input(self._outputs, paths)
        for path in paths:
            # A missing file is told of where it is opened.
            with contextlib.suppress(OSError):
                check_regular(path)

    def open_rows(self, paths: Sequence[str], *, metric: str = "l2") -> Any:
        """Open the rows of one file or several, normalized for the cosine."""
        check_word("metric", metric, METRICS)
        name = self.name[0] if self.name and len(self.name) == 1 else self.name or None
        rows = scq.io.open_rows(paths[0] if len(paths) == 1 else list(paths), name=name)
        self.takes(*(facts["path"] for facts in rows.identity()))
        return normalize_rows(rows) if metric == "cosine" else rows

    def open_model(self, path: Path) -> Any:
        """Load an encoder onto the device."""
        if url := _url_of(path):
            raise ValueError(f"{url} is a URL, and models are read from local files; copy it first")
        self.takes(path)
        if path.exists() and path.suffix != ".safetensors" and not _may_be_model(path):
            raise typer.BadParameter(
                f"{path} comes where the model is expected, and is none: a model is a .safetensors file, as "
                "`scq-gpu fit` writes it, and comes first, before the data"
            )
        return scq.load(path, device=self.check_device())

    def open_index(self, path: Path, *, change: bool = False, verify: bool = False) -> Any:
        """Open an index of vectors, which is an output, too, if it is to be changed."""
        self.takes(path)
        if change:
            self._outputs.append(path)
        return scq.VectorIndex.load(path, verify=verify)

    def note(self, message: str) -> None:
        """Print a progress message, unless quiet."""
        if not self.quiet:
            say(message)

    def summary(self, title: str, facts: _Facts) -> None:
        """Print a summary of the files written, unless quiet."""
        if self.json or not self.quiet:
            self.facts(title, facts)

    def facts(self, title: str, facts: _Facts) -> None:
        """Print a table of names and values."""
        lines = [{"fact": key.replace("_", " "), "value": value} for key, value in facts.items()]
        self.table(title, lines, facts, header=False)

    def table(self, title: str, rows: Sequence[_Facts], data: _Facts, note: str = "", header: bool = True) -> None:
        """Print a table for people, or ``data`` and the warnings so far for machines."""
        if self.json:
            text = json_format.dumps(dict(data), default=os.fspath)
            # JSON has no NaN: it becomes null.
            plain = json_format.loads(text, parse_constant=lambda _: None)
            print(json_format.dumps({**plain, "warnings": self._warned}))
            return
        console = Console()
        lines = [{key: printable(show(value)) for key, value in row.items()} for row in rows]
        for number, widths in enumerate(_fitting_columns(rows, lines, console.width, header=header)):
            table = Table(title_justify="left", title_style="bold", show_header=header, box=None)
            table.title = None if number else printable(title)
            for i, (key, width) in enumerate(widths.items()):
                table.add_column(key.replace("_", " "), justify="right" if header and i else "left", width=width)
            for line in lines:
                table.add_row(*(Text(line[key]) for key in widths))
            # Words that do not fit would be broken; terminals wrap long lines by themselves.
            console.print(table, width=max(console.width, sum(widths.values()) + 2 * len(widths)))
        if note:
            console.print(note, markup=False, highlight=False)


def command(*shared: str, group: typer.Typer = app) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a function of a `Session` and its own options to the app, or to a group of its commands.

    The command also has the options of `Session` that ``shared`` names, and ``--json`` and ``--quiet``.
    """

    def add(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function).parameters.values())[1:]
        fields = inspect.signature(Session).parameters
        common = [fields[name] for name in (*shared, "json", "quiet")]

        def run(**options: Any) -> None:
            session = Session(**{field.name: options.pop(field.name) for field in common})
            function(session, **options)

        keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*own, *common)]
        run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        group.command(function.__name__, help=inspect.getdoc(function))(run)
        return function

    return add


def _fitting_columns(
    rows: Sequence[_Facts], lines: Sequence[Mapping[str, str]], room: int, *, header: bool
) -> list[dict[str, int]]:
    """Split the columns of a table into parts that fit without breaking a word; those before a float are repeated.

    Each part has the widths of its columns, without the spaces on both sides.
    """
    keys = list(rows[0]) if rows else []
    texts = {key: [key.replace("_", " ") if header else "", *(line[key] for line in lines)] for key in keys}
    least = {
        key: max(cell_len(word) for text in column for word in text.split() or [""]) for key, column in texts.items()
    }
    repeated = list(takewhile(lambda key: not isinstance(rows[0][key], float), keys))
    parts = [repeated]
    for key in keys[len(repeated) :]:
        if parts[-1] != repeated and sum(least[other] + 2 for other in (*parts[-1], key)) > room:
            parts.append(repeated)
        parts[-1] = [*parts[-1], key]
    found = []
    for part in parts:
        spare = room - sum(least[key] + 2 for key in part)
        widths = {}
        for key in part:
            more = max(0, min(spare, max(map(cell_len, texts[key])) - least[key]))
            widths[key], spare = least[key] + more, spare - more
        found.append(widths)
    return found


def _url_of(path: Path) -> str | None:
    """Return the URL that was typed for a path, with the slash that pathlib removed."""
    url, count = re.subn(r"^([A-Za-z][A-Za-z0-9+.-]+):/", r"\1://", path.as_posix())
    return url if count else None


def _may_be_model(path: Path) -> bool:
    """Check whether a file begins like safetensors: eight bytes of length, then JSON."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(9)[8:] == b"{"


def load_array(path: Path) -> np.ndarray:
    """Load an array of any number of dimensions from .npy or .npz, or the rows of another format."""
    return read_array(path) if path.suffix.lower() in {".npy", ".npz"} else np.asarray(scq.io.open_rows(path))


def load_column(path: Path, what: str, *, words: bool = False) -> np.ndarray:
    """Load labels or ids: an array, or text with one per line. Lines that are all numbers are, unless ``words``."""
    if path.suffix.lower() not in {".txt", ".csv", ".labels"}:
        column = load_array(path)
        return column[:, 0] if column.ndim == 2 and column.shape[1] == 1 else column
    lines = np.array(path.read_text(encoding="utf-8").split("\n"), dtype=str)
    lines = np.char.strip(lines[:-1] if lines[-1] == "" else lines)
    if not len(lines) or (lines == "").any():
        raise ValueError(f"{path} has an empty line {1 + int(np.argmax(lines == ''))}; one {what} per line is expected")
    with contextlib.suppress(ValueError):
        return lines if words else lines.astype(np.int64)
    return lines


def encoders() -> dict[str, type]:
    """Return the encoders that can be fitted, by name."""
    public: dict[str, Any] = {name: getattr(scq, name) for name in scq.__all__}
    return {name: x for name, x in public.items() if inspect.isclass(x) and hasattr(x, "fit") and hasattr(x, "encode")}


def make_encoder(session: Session, name: str, bits: int, chosen: dict[str, Any]) -> Any:
    """Return an encoder by name, and reject options that it does not have."""
    known = encoders()
    if name not in known:
        raise typer.BadParameter(f"--encoder {name} is not one of {', '.join(known)}")
    has = inspect.signature(known[name]).parameters
    for key in chosen:
        if key not in has:
            raise typer.BadParameter(f"--encoder {name} has no {option_name(key)}; it takes {', '.join(has)}")
    rest = {"device": session.check_device(), "random_state": session.seed, "verbose": not session.quiet}
    return known[name](n_bits=bits, **chosen, **{key: value for key, value in rest.items() if key in has})


def index_facts(index: Any) -> dict[str, Any]:
    """Return what is to be said of an index of vectors."""
    facts = {"kind": "vector index", "vectors": len(index), "n_features": index.encoder.n_features_in_}
    facts |= {"metric": index.metric, "encoder": type(index.encoder).__name__, "n_bits": index.n_bits}
    ids = "strings" if index.ids.dtype.kind == "U" else "integers"
    kept = repr(index).rpartition(", ")[2].removesuffix(")")
    return facts | {"bytes_per_row": index.bytes_per_row, "ids": ids, "kept": kept}
