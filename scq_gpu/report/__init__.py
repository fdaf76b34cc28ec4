"""A page about an encoder: one HTML file that needs nothing else, no network and no scripts.

Figures are drawn once, as SVG; their colours become CSS variables, so that the same figure is dark on light or light on
dark, as the reader's system asks.
"""

from __future__ import annotations

import html
import os
import platform
import string
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import numpy as np
from sklearn.base import clone

from scq_gpu import metrics, plots
from scq_gpu._version import __version__
from scq_gpu._xp import Array
from scq_gpu.codes import BIT_CONTRACT, code_bytes
from scq_gpu.encoders import OgE, OnE
from scq_gpu.io import replace_file
from scq_gpu.report._gallery import Pictures, gallery_html
from scq_gpu.report._svg import draw_svg, style_variables
from scq_gpu.sweeps import scale_path, sweep_bits
from scq_gpu.trial import Trial

__all__ = ["write_report"]

_LENGTHS = 8, 16, 32, 64, 128, 256
_FACTORS = 0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0
_LOSSES: dict[type, str] = {
    OnE: ": the squared distance of projections to their signs. It steps down where soft signs turn hard.",
    OgE: ": the squared distance of projections to their signs, and the ridge term. It steps down where soft signs "
    "turn hard.",
}
_NAMES = {
    "mean_average_precision": "mean average precision",
    "precision_at_radius": "precision within radius 2",
    "precision_at_k": "precision of the first 100",
    "recall_10_at_10": "of the 10 nearest rows in the first 10",
    "recall_10_at_100": "of the 10 nearest rows in the first 100",
}


@dataclass(frozen=True)
class _Figure:
    name: str
    title: str
    caption: str
    draw: Callable[[Any], object]

    def html(self) -> str:
        svg = draw_svg(self.draw, name=self.name, title=self.title)
        return f'<figure id="{self.name}">{svg}<figcaption>{html.escape(self.caption)}</figcaption></figure>'


def write_report(
    path: str | os.PathLike[str],
    encoder: Any,
    X: Any,
    *,
    labels: Array | None = None,
    images: Any = None,
    n_queries: int = 300,
    refit: bool = True,
    random_state: int = 0,
    name: str | None = None,
) -> dict[str, float]:
    """Write a self-contained HTML page about a fitted encoder and how it does on some rows.

    Some of the rows, drawn at random, are the queries; the others are the database they are searched in.

    Parameters
    ----------
    path : path-like
        The page; an existing one is replaced once the new one is complete.
    encoder : fitted encoder
    X : array (n, d), or what `scq_gpu.io.open_rows` gives
    labels : array (n,) or (n, classes), optional
        Integers, or 0/1 in one column a class: what is right. Without them, each query's nearest rows are.
    images : array (n, height, width) or (n, height, width, 3), or list of n paths, optional
        Pictures of the rows, for a gallery of queries and answers.
    n_queries : int, default 300
        At most a fifth of the rows.
    refit : bool, default True
        Also fit encoders with other code lengths and scales, for two more figures.
    random_state : int, default 0
        Seed of the drawing of queries, and of the fits.
    name : str, optional
        What the page calls the model.

    Returns
    -------
    dict of str to float
        The figures that the page shows as numbers.

    Examples
    --------
    >>> import numpy as np, tempfile, scq_gpu as scq
    >>> from pathlib import Path
    >>> from scq_gpu.report import write_report
    >>> X = np.random.default_rng(0).normal(size=(300, 16))
    >>> encoder = scq.OgE(n_bits=8, max_iter=20, tol=0, random_state=0).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "page.html"
    ...     numbers = write_report(path, encoder, X, labels=X[:, 0] > 0, refit=False)
    ...     page = path.read_text(encoding="utf-8")
    >>> page.count("<svg"), sorted(numbers)
    (5, ['mean_average_precision', 'precision_at_k', 'precision_at_radius'])
    """
    trial = Trial(X, labels, n_queries=n_queries, random_state=random_state)
    pictures = None if images is None else Pictures(images, n=trial.n)
    codes = trial.codes(encoder)
    numbers = trial.figures(encoder)
    figures = [*_figures_of(encoder, trial, codes)]
    if refit:
        figures += _figures_of_refits(encoder, trial, random_state)
    body = _tiles(encoder, numbers) + _section("Figures", "figures", "".join(figure.html() for figure in figures))
    if pictures is not None:
        rows = gallery_html(trial, codes, encoder.n_bits, pictures)
        body += _section("Queries and their nearest, with the Hamming distance", "facts gallery", rows)
    body += _section("The model", "facts", _facts(encoder))
    replace_file(path, _page(name or f"{type(encoder).__name__}, {encoder.n_bits} bits", trial, body).encode())
    return numbers


def _figures_of(encoder: Any, trial: Trial, codes: tuple[np.ndarray, np.ndarray]) -> Iterator[_Figure]:
    """The figures that need this encoder alone."""
    queries, database = codes
    n_bits = encoder.n_bits
    if trial.labels is not None:
        pair = (queries, database, *trial.labels)
        yield _Figure(
            "precision-recall",
            "Precision and recall",
            "How many answers are right, and how many of the right ones are among them, as the Hamming radius grows. "
            "A query with nothing inside a radius counts as precision 0, so the curve may begin low.",
            lambda ax: plots.precision_recall(metrics.precision_recall_curve(*pair), ax=ax),
        )
        yield _Figure(
            "distances",
            "Distances of pairs",
            "Hamming distances from queries to rows with their label and to others. The less they overlap, the better.",
            lambda ax: plots.distance_histograms(*pair, n_bits=n_bits, ax=ax),
        )
    yield _Figure(
        "balance",
        "Balance of bits",
        "In which share of the codes each bit is set. A bit tells most when that is half.",
        lambda ax: plots.bit_balance(database, n_bits, ax=ax),
    )
    yield _Figure(
        "correlation",
        "Correlation of bits",
        "How far bits repeat each other: faint is good. The diagonal is left blank.",
        lambda ax: plots.bit_correlation(database, n_bits, ax=ax),
    )
    if len(getattr(encoder, "loss_curve_", ())):
        yield _Figure(
            "loss",
            "Training loss",
            "What the fit made smaller" + _LOSSES.get(type(encoder), "."),
            lambda ax: plots.loss_curve(encoder, ax=ax),
        )


def _figures_of_refits(encoder: Any, trial: Trial, random_state: int) -> Iterator[_Figure]:
    """The figures that need other lengths and scales."""
    if not isinstance(encoder, OgE | OnE):
        return
    template = clone(encoder).set_params(random_state=random_state, callback=None, verbose=False)
    if not isinstance(encoder.init, str):
        template.set_params(init="random")  # a start of the encoder's own has its own length
    dimensions = len(encoder.eigenvalues_)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fit of the encoder itself has said it all
        lengths = {encoder.n_bits, *(bits for bits in _LENGTHS if bits <= dimensions)}
        sweep = sweep_bits(trial.X, bits=lengths, encoder=template)
        table = [{"n_bits": other.n_bits, **trial.figures(other)} for other in sweep.encoders]
        scales = [encoder.scale_ * factor for factor in _FACTORS]
        one = OnE(n_components=encoder.n_components, device=encoder.device, random_state=random_state)
        path = scale_path(trial.X, encoder.n_bits, scales, encoder=one)
    metric = next(name for name in table[0] if name != "n_bits")
    yield _Figure(
        "bits",
        "Quality against code length",
        f"{type(encoder).__name__} fitted anew with other code lengths.",
        lambda ax: plots.bits_curve(table, metric=metric, ax=ax),
    )
    yield _Figure(
        "scale",
        "Loss and variance over the scale",
        "OnE fitted at other scales of the data. A larger scale costs variance; a smaller one, precision of the signs.",
        lambda ax: plots.scale_path(path, ax=ax),
    )


def _tiles(encoder: Any, numbers: dict[str, float]) -> str:
    tiles = [(f"{100 * value:.1f}%", _NAMES.get(key, key)) for key, value in numbers.items()]
    size = code_bytes(encoder.n_bits)
    tiles.append((f"{size:,} bytes", f"a vector; as float32 it takes {4 * encoder.n_features_in_:,}"))
    return (
        '<div class="tiles">'
        + "".join(f'<div class="tile"><b>{b}</b><span>{s}</span></div>' for b, s in tiles)
        + "</div>"
    )


def _section(title: str, kind: str, content: str) -> str:
    return f'<h2>{title}</h2><div class="{kind}">{content}</div>'


def _facts(encoder: Any) -> str:
    """What was learned, from what and how, as a table."""
    facts: dict[str, Any] = {
        "Encoder": type(encoder).__name__,
        "Bits": encoder.n_bits,
        "Features": f"{encoder.n_features_in_:,}",
    }
    fitted = {
        "Rows it learned from": "n_samples_",
        "Iterations": "n_iter_",
        "Converged": "converged_",
        "Scale": "scale_",
    }
    facts |= {title: _said(getattr(encoder, key)) for title, key in fitted.items() if hasattr(encoder, key)}
    for key, value in encoder.get_params(deep=False).items():
        if isinstance(value, bool | int | float | str) and key not in ("n_bits", "verbose"):
            facts[key] = _said(value)
    facts["Bit contract"] = BIT_CONTRACT
    rows = (
        f"<tr><th>{html.escape(str(key))}</th><td>{html.escape(str(value))}</td></tr>" for key, value in facts.items()
    )
    return f"<table>{''.join(rows)}</table>"


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)


def _page(name: str, trial: Trial, body: str) -> str:
    truth = "by label" if trial.labels is not None else "the nearest rows by Euclidean distance"
    subtitle = (
        f"{trial.n_queries:,} queries, drawn from {trial.n:,} rows, searched in the other "
        f"{len(trial.database_rows):,}; right answers: {truth}."
    )
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    footer = f"Written {now} by scq_gpu {__version__}, NumPy {np.__version__}, Python {platform.python_version()}."
    template = string.Template((files(__package__) / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=html.escape(name), subtitle=subtitle, colours=style_variables(), body=body, footer=footer
    )
