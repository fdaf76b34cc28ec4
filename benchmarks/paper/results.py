"""Tables and figures with their origin, as the scripts of this folder and of the one above write them."""

from __future__ import annotations

import argparse
import csv
import datetime
import io
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import scq_gpu as scq
from scq_gpu._core.files import replace_file

COLUMN, PAGE, POINTS = 3.4, 7.0, 7  # inches and points of the usual two-column templates
CAVEAT = (
    "Some defaults of the joint solver were chosen on EfficientNet features of these images ([quality](quality.md) "
    "says how), two of them with a look at GIST: its rows on those features are optimistic."
)


def arguments(doc: str, *, data: bool = True) -> argparse.ArgumentParser:
    """Return a parser of the options that all scripts take."""
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    if data:
        parser.add_argument("--data", type=Path, required=True, help="folder with the CIFAR-10 feature files")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    parser.add_argument("--pdf", action="store_true", help="also write each picture as PDF for a paper, without titles")
    return parser


def origin(command: str, *, seeds: Iterable[int], threads: int) -> str:
    """Return the sentence that says how to make a table or figure again."""
    seeds = sorted(set(seeds))
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"
    cores = "1 thread" if threads == 1 else f"{threads} threads"
    return (
        f"Made by `python benchmarks/paper/{command}` on {datetime.date.today()} with scq_gpu {scq.__version__}, NumPy "
        f"{np.__version__}, Python {platform.python_version()}, {cores}, {which}."
    )


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write a CSV file; floats keep six digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(k for row in rows for k in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    _write(path, text.getvalue().encode())


def put_row(path: Path, row: dict[str, Any], key: Sequence[str]) -> None:
    """Add a row to a CSV file, in place of the one of the same key if there is one."""
    rows: list[dict[str, Any]] = list(read_rows(path))
    names = [tuple(str(old[k]) for k in key) for old in rows]
    name = tuple(str(row[k]) for k in key)
    place = names.index(name) if name in names else len(rows)
    rows[place : place + 1] = [row]
    write_rows(path, rows)


def differences(
    before: Sequence[dict[str, Any]], now: Sequence[dict[str, Any]], key: Sequence[str], measures: Sequence[str]
) -> str:
    """Return a Markdown table of what changed: means ± standard errors over seeds, and their difference."""
    lines = []
    for name in dict.fromkeys(tuple(str(row[k]) for k in key) for row in now):
        for measure in measures:
            both = [
                [float(row[measure]) for row in rows if tuple(str(row[k]) for k in key) == name and row.get(measure)]
                for rows in (before, now)
            ]
            if min(map(len, both)) < 2:
                continue
            means = [np.mean(values) for values in both]
            errors = [np.std(values, ddof=1) / np.sqrt(len(values)) for values in both]
            cells = (f"{mean:.4g} ± {error:.2g}" for mean, error in zip(means, errors, strict=True))
            gain, error = means[1] - means[0], np.hypot(*errors)
            lines.append((*name, measure, *cells, f"{gain:+.3g} ± {error:.2g}"))
    return table((*key, "measure", "before", "now", "difference"), lines)


def write_page(path: Path, title: str, *blocks: str) -> None:
    """Write a Markdown page of paragraphs and tables."""
    _write(path, ("\n\n".join((f"# {title}", *blocks)) + "\n").encode())
    print(f"wrote {path}")


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def mean_and_spread(values: Sequence[float], digits: int = 2) -> str:
    """Return mean ± standard deviation; one value stands alone."""
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {np.std(values, ddof=1):.{digits}f}"


def new_figure(rows: int = 1, columns: int = 1, *, size: tuple[float, float]) -> tuple[Any, Any]:
    """Return a figure without a window, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns)


def write_figure(figure: Any, path: Path, *, pdf: bool = False) -> None:
    """Write a PNG file, and a PDF file for a paper if asked for."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    _write(path, picture.getvalue())
    if pdf:
        _write(path.with_suffix(".pdf"), _for_paper(figure))


def _for_paper(figure: Any) -> bytes:
    """Return the figure as PDF, without titles, as wide as a column, or as the page if it has several panels.

    The title of a panel becomes the label of its axis, where there is none.
    """
    import matplotlib
    from matplotlib.text import Text

    width, height = figure.get_size_inches()
    width_in = COLUMN if len([axis for axis in figure.axes if axis.get_subplotspec() is not None]) < 2 else PAGE
    figure.set_size_inches(width_in, max(height * width_in / width, 0.6 * COLUMN))
    figure.suptitle("")
    for axis in figure.axes:
        axis.set_ylabel(axis.get_ylabel() or axis.get_title())
        axis.set_title("")
    for text in figure.findobj(Text):
        text.set_fontsize(POINTS)
    picture = io.BytesIO()
    with matplotlib.rc_context({"pdf.fonttype": 42}):
        figure.savefig(picture, format="pdf")
    return picture.getvalue()


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)
