"""A page about an encoder: one HTML file that needs nothing else, no network and no scripts.

Figures are drawn once, as SVG; their colors become CSS variables, so that the same figure is dark on light or light on
dark, as the reader's system asks.
"""

from __future__ import annotations

import html
import os
import platform
import string
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import numpy as np
from sklearn.base import clone

from scq_gpu import metrics, plots
from scq_gpu._core.arrays import Array, to_host
from scq_gpu._core.bits import BIT_CONTRACT, code_bytes
from scq_gpu._core.files import replace_file
from scq_gpu._core.validate import check_array
from scq_gpu._version import __version__
from scq_gpu.encoders.scq import OgE, OnE
from scq_gpu.encoders.sweeps import scale_path, sweep_bits
from scq_gpu.metrics.evaluation import RetrievalTask
from scq_gpu.plots._bits import BitStatistics, bit_statistics
from scq_gpu.plots._gallery import typical_queries
from scq_gpu.plots.report_svg import draw_svg, style_variables
from scq_gpu.search.index import HammingIndex

__all__ = ["encoder_facts", "write_report"]

_LENGTHS = 8, 16, 32, 64, 128, 256
_KEPT = {
    "neighbors": "neighbors: Hamming distance ranks like the vectors do",
    "classes": "classes: groups of rows come first, and who is near within a group is lost",
}
_QUERIES, _ANSWERS = 8, 10  # in the gallery
_PIXELS = 96  # most of an image in the gallery, along its longer side
_FACTORS = 0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0


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
        Integers, or 0/1 in one column per class: what is right. Without them, each query's nearest rows are.
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
    >>> from scq_gpu.plots.report import write_report
    >>> X = np.random.default_rng(0).normal(size=(300, 16))
    >>> encoder = scq.OgE(n_bits=8, max_iter=20, tol=0, random_state=0).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "page.html"
    ...     numbers = write_report(path, encoder, X, labels=X[:, 0] > 0, refit=False)
    ...     page = path.read_text(encoding="utf-8")
    >>> page.count("<svg"), sorted(numbers)[:4]
    (5, ['asymmetric_10_at_10', 'asymmetric_10_at_100', 'k', 'mean_average_precision'])
    """
    task = RetrievalTask(X, labels, n_queries=n_queries, random_state=random_state)
    images = None if images is None else _check_images(images, task.n)
    codes = task.codes(encoder)
    numbers = task.measure(encoder)
    bits = bit_statistics(codes[1], encoder.n_bits)
    figures = [*_figures_of(encoder, task, codes, bits)]
    if refit and isinstance(encoder, OgE | OnE):
        figures += _figures_of_refits(encoder, task, random_state)
    body = _tiles(encoder, numbers) + _findings(encoder, bits) + _section("Figures", "figures", "".join(figures))
    if images is not None:
        gallery = _gallery(task, codes, encoder.n_bits, images)
        body += _section("Typical queries and their nearest, with the Hamming distance", "facts gallery", gallery)
    facts = encoder_facts(encoder) | {"bit contract": BIT_CONTRACT}
    lines = (f"<tr><th>{key}</th><td>{html.escape(show(value))}</td></tr>" for key, value in facts.items())
    body += _section("The model", "facts", f"<table>{''.join(lines)}</table>")
    replace_file(path, _page(name or f"{type(encoder).__name__}, {encoder.n_bits} bits", task, body).encode())
    return numbers


def encoder_facts(encoder: Any) -> dict[str, Any]:
    """What a fitted encoder is, what it learned from and how, then its parameters: single values by name."""
    facts: dict[str, Any] = {"encoder": type(encoder).__name__, "n_bits": encoder.n_bits}
    facts |= {"bytes_per_row": code_bytes(encoder.n_bits), "n_features": encoder.n_features_in_}
    learned = ("n_samples_", "n_iter_", "converged_", "scale_")
    facts |= {key.rstrip("_"): getattr(encoder, key) for key in learned if hasattr(encoder, key)}
    if len(getattr(encoder, "loss_curve_", ())):
        facts["loss"] = encoder.loss_curve_[-1]
    for key, value in encoder.get_params(deep=False).items():
        if isinstance(value, bool | int | float | str) and key != "verbose":
            facts.setdefault(key, value)
    if facts.get("preserve") in _KEPT and facts.get("solver") == "joint":
        facts["keeps"] = _KEPT[facts["preserve"]]
    return facts


def show(value: Any) -> str:
    """A value for people."""
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        size = abs(value)
        return f"{value:,.0f}" if size >= 1000 else f"{value:.4f}" if 1e-3 <= size < 10 else f"{value:.4g}"
    return str(value)


def _figure(name: str, caption: str, draw: Callable[..., Any], *args: Any, **options: Any) -> str:
    svg = draw_svg(name, draw, *args, **options)
    return f'<figure id="{name}">{svg}<figcaption>{html.escape(caption)}</figcaption></figure>'


def _findings(encoder: Any, bits: BitStatistics) -> str:
    """What is wrong, in a sentence each; or that nothing is."""
    found = bits.warnings()
    if getattr(encoder, "converged_", True) is False:
        found.append(
            f"The fit stopped after {encoder.n_iter_} iterations, before its loss had settled: raise max_iter."
        )
    if not found:
        return '<p class="fine">Nothing looks wrong: every bit changes, and no two tell the same.</p>'
    return f'<ul class="wrong">{"".join(f"<li>{html.escape(sentence)}</li>" for sentence in found)}</ul>'


def _figures_of(
    encoder: Any, task: RetrievalTask, codes: tuple[np.ndarray, np.ndarray], bits: BitStatistics
) -> Iterator[str]:
    """The figures that need this encoder alone."""
    database, n_bits = codes[1], encoder.n_bits
    if task.labels is not None:
        pair = (*codes, *task.labels)
        caption = (
            "How many answers are right, and how many of the right ones are among them, as the Hamming radius grows. "
            "A query with nothing inside a radius counts as precision 0, so the curve may begin low."
        )
        yield _figure("precision-recall", caption, plots.precision_recall, metrics.precision_recall_curve(*pair))
        caption = (
            "Hamming distances from queries to rows with their label and to others. The less they overlap, the better."
        )
        yield _figure("distances", caption, plots.distance_histograms, *pair, n_bits=n_bits)
    balance, likeness = bits.verdicts()
    caption = f"In which share of the codes each bit is set. A bit tells most when that is half. {balance}"
    yield _figure("balance", caption, plots.bit_balance, database, n_bits)
    caption = f"How far bits repeat each other: faint is good. The diagonal is left blank. {likeness}"
    yield _figure("correlation", caption, plots.bit_correlation, database, n_bits)
    if len(getattr(encoder, "loss_curve_", ())):
        caption = "What the fit made smaller"
        if isinstance(encoder, OgE | OnE):
            ridge = ", and the ridge term" if isinstance(encoder, OgE) else ""
            caption += f": the squared distance of projections to their signs{ridge}"
        yield _figure("loss", f"{caption}.", plots.loss_curve, encoder)


def _figures_of_refits(encoder: Any, task: RetrievalTask, random_state: int) -> Iterator[str]:
    """The figures that need other lengths and scales."""
    template = clone(encoder).set_params(random_state=random_state, callback=None, verbose=False)
    if not isinstance(encoder.init, str):
        template.set_params(init="random")  # a start of the encoder's own has its own length
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fit of the encoder itself has said it all
        lengths = {encoder.n_bits, *(bits for bits in _LENGTHS if bits <= len(encoder.eigenvalues_))}
        sweep = sweep_bits(task.X, bits=lengths, encoder=template)
        table = [{"n_bits": other.n_bits, **task.measure(other)} for other in sweep.encoders]
        scales = [encoder.scale_ * factor for factor in _FACTORS]
        one = OnE(n_components=encoder.n_components, device=encoder.device, random_state=random_state)
        path = scale_path(task.X, encoder.n_bits, scales, encoder=one)
    metric = next(name for name in table[0] if name != "n_bits")
    caption = f"{type(encoder).__name__} fitted anew with other code lengths."
    yield _figure("bits", caption, plots.bits_curve, table, metric=metric)
    caption = (
        "OnE fitted at other scales of the data. A larger scale costs variance; a smaller one, precision of the signs."
    )
    yield _figure("scale", caption, plots.scale_path, path)


def _check_images(images: Any, n: int) -> np.ndarray | Sequence[str | os.PathLike[str]]:
    """The images of n rows, in an array on the host or in files."""
    if len(images) != n:
        raise ValueError(f"there are {len(images)} images and {n} rows; one per row is wanted")
    if isinstance(images, Sequence) and all(isinstance(x, str | os.PathLike) for x in images):
        return images
    array = to_host(check_array(images, name="images", min_ndim=3))
    if array.ndim > 4 or array.shape[3:] not in ((), (3,)) or not array.size:
        raise ValueError(f"images have shape {array.shape}; (n, height, width) or (n, height, width, 3) is wanted")
    return array


def _gallery(task: RetrievalTask, codes: tuple[np.ndarray, np.ndarray], n_bits: int, images: Any) -> str:
    """Some queries with their nearest rows: typical ones, of each label first."""
    queries, database = codes
    index, k = HammingIndex(database, n_bits), min(_ANSWERS, len(database))
    right, groups = None, None
    if task.labels is not None:
        quality = metrics.average_precision(queries, database, *task.labels)
        groups = task.labels[0] if task.labels[0].ndim == 1 else None
    else:
        quality = index.search(queries, k)[0].mean(axis=1)  # no answer is right or wrong: how far they are
    chosen = typical_queries(quality, _QUERIES, groups)
    distances, ids = index.search(queries[chosen], k)
    if task.labels is not None:
        wanted, found = task.labels[0][chosen, None], task.labels[1][ids]
        right = wanted == found if found.ndim == 2 else (wanted & found).any(axis=2)
    shown = _take_images(images, task.query_rows[chosen]), _take_images(images, task.database_rows[ids])
    size = 0.8 * (ids.shape[1] + 1.4), len(ids) + 0.5
    return draw_svg("gallery", plots.gallery, *shown, right=right, distances=distances, size=size)


def _take_images(images: Any, rows: np.ndarray) -> np.ndarray:
    """The images of some rows, shrunk to `_PIXELS`; those of files, which may differ in shape, inside squares."""
    if isinstance(images, np.ndarray):
        step = -(-max(images.shape[1:3]) // _PIXELS)
        height, width = (side // step * step for side in images.shape[1:3])
        shifted = [images[:, i:height:step, j:width:step][rows] for i, j in np.ndindex(step, step)]
        return np.asarray(np.mean(shifted, axis=0), dtype=images.dtype)
    from PIL import Image, ImageOps, UnidentifiedImageError  # comes with matplotlib

    taken = np.zeros((*rows.shape, _PIXELS, _PIXELS, 3), dtype=np.uint8)
    for i in np.ndindex(rows.shape):
        try:
            with Image.open(images[rows[i]]) as image:
                method = Image.Resampling.NEAREST if max(image.size) < _PIXELS // 2 else Image.Resampling.BICUBIC
                taken[i] = ImageOps.pad(image.convert("RGB"), (_PIXELS, _PIXELS), method)
        except UnidentifiedImageError as error:
            raise ValueError(f"{images[rows[i]]} is not an image that can be read") from error
    return taken


def _tiles(encoder: Any, numbers: dict[str, Any]) -> str:
    names = {
        "mean_average_precision": "mean average precision",
        "precision_at_radius": f"precision within radius {numbers.get('radius')}",
        "precision_at_k": f"precision of the first {show(numbers.get('k'))}",
        "recall_10_at_10": "of the 10 nearest rows in the first 10, by codes",
        "recall_10_at_100": "of the 10 nearest rows in the first 100, by codes",
        "asymmetric_10_at_10": "in the first 10, by float queries",
        "asymmetric_10_at_100": "in the first 100, by float queries",
        "rescored_4x": "in 10 chosen by their floats out of 40",
        "rescored_16x": "in 10 chosen by their floats out of 160",
    }
    tiles = [(f"{100 * value:.1f}%", names[key]) for key, value in numbers.items() if key in names]
    floats = f"per vector; as float32 it takes {4 * encoder.n_features_in_:,}"
    tiles.append((f"{code_bytes(encoder.n_bits):,} bytes", floats))
    content = "".join(f'<div class="tile"><b>{value}</b><span>{name}</span></div>' for value, name in tiles)
    return f'<div class="tiles">{content}</div>'


def _section(title: str, kind: str, content: str) -> str:
    return f'<h2>{title}</h2><div class="{kind}">{content}</div>'


def _page(name: str, task: RetrievalTask, body: str) -> str:
    truth = "by label" if task.labels is not None else "the nearest rows by Euclidean distance"
    subtitle = (
        f"{task.n_queries:,} queries, drawn from {task.n:,} rows, searched in the other "
        f"{len(task.database_rows):,}; right answers: {truth}."
    )
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    footer = f"Written {now} by scq_gpu {__version__}, NumPy {np.__version__}, Python {platform.python_version()}."
    template = string.Template((files(__package__) / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=html.escape(name), subtitle=subtitle, colors=style_variables(), body=body, footer=footer
    )
