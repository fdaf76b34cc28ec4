"""A report about an encoder: one HTML file without scripts that needs no network.

Figures are drawn once, as SVG. Their colors are CSS variables, so a figure follows the light or dark scheme of the
reader's system.
"""

import html
import io
import os
import platform
import re
import string
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import numpy as np
from sklearn.base import clone

import scq_gpu as scq
from scq_gpu import plots
from scq_gpu._core.arrays import Array, to_host
from scq_gpu._core.bits import BIT_CONTRACT, code_bytes
from scq_gpu._core.files import check_regular, replace_file
from scq_gpu._core.messages import show
from scq_gpu._core.validate import check_array
from scq_gpu._version import __version__
from scq_gpu.metrics.codes import average_precision, precision_recall_curve
from scq_gpu.metrics.evaluation import RetrievalTask
from scq_gpu.plots._figures import BitStatistics, bit_statistics
from scq_gpu.plots._style import DARK, LIGHT
from scq_gpu.search.index import HammingIndex

_KEPT = {
    "neighbors": "neighbors: Hamming distance ranks like the vectors do",
    "classes": "classes: groups of rows come first, and the order within a group is lost",
}
_PIXELS = 96  # longest side of an image in the gallery


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
    """Write a self-contained HTML page about a fitted encoder and its results on some rows.

    Queries are drawn from the rows at random and searched in the other rows.

    Parameters
    ----------
    path : path-like
        The page. An existing file is replaced once the new one is complete.
    encoder : fitted encoder
    X : array (n, d), or what `scq_gpu.io.open_rows` gives
    labels : array (n,) or (n, classes), optional
        Integers, or 0/1 in one column per class; answers with the label of the query are right. Without labels, the
        nearest rows of each query are right.
    images : array (n, height, width) or (n, height, width, 3), or list of n paths, optional
        Pictures of the rows, for a gallery of queries and answers.
    n_queries : int, default 300
        At most a fifth of the rows.
    refit : bool, default True
        Also fit encoders with other code lengths and scales, for two more figures.
    random_state : int, default 0
        Seed for the choice of queries and for the fits.
    name : str, optional
        What the page calls the model.

    Returns
    -------
    dict of str to float
        The metrics on the page.

    Examples
    --------
    >>> import numpy as np, tempfile, scq_gpu as scq
    >>> from pathlib import Path
    >>> X = np.random.default_rng(0).normal(size=(300, 16))
    >>> encoder = scq.OgE(n_bits=8, max_iter=20, tol=0, random_state=0).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "page.html"
    ...     numbers = scq.write_report(path, encoder, X, labels=X[:, 0] > 0, refit=False)
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
    if refit and isinstance(encoder, scq.OgE | scq.OnE):
        figures += _figures_of_refits(encoder, task, random_state)
    body = (
        _tiles(encoder, numbers) + _findings(encoder, bits, numbers) + _section("Figures", "figures", "".join(figures))
    )
    if images is not None:
        chosen, ids, marks = typical_answers(*codes, encoder.n_bits, task.labels)
        shown = _take_images(images, task.query_rows[chosen]), _take_images(images, task.database_rows[ids])
        size = 0.8 * (ids.shape[1] + 1.4), len(ids) + 0.5
        gallery = _draw_svg("gallery", plots.gallery, *shown, **marks, size=size)
        body += _section("Typical queries and their nearest, with the Hamming distance", "facts gallery", gallery)
    facts = encoder_facts(encoder) | {"bit contract": BIT_CONTRACT}
    lines = (f"<tr><th>{key}</th><td>{html.escape(show(value))}</td></tr>" for key, value in facts.items())
    body += _section("The model", "facts", f"<table>{''.join(lines)}</table>")
    replace_file(path, _page(name or f"{type(encoder).__name__}, {encoder.n_bits} bits", task, body).encode())
    return numbers


def encoder_facts(encoder: Any) -> dict[str, Any]:
    """Return facts about a fitted encoder and its training, then its parameters, by name."""
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


def _figure(name: str, caption: str, draw: Callable[..., Any], *args: Any, **options: Any) -> str:
    svg = _draw_svg(name, draw, *args, **options)
    return f'<figure id="{name}">{svg}<figcaption>{html.escape(caption)}</figcaption></figure>'


def _findings(encoder: Any, bits: BitStatistics, numbers: dict[str, Any]) -> str:
    """List the problems found, a sentence each, or say that there are none."""
    found, share = bits.warnings(), numbers["rescored_16x"]
    recalled = f"{100 * share:.0f}% of a query's 10 nearest rows are found by re-ranking 160 candidates"
    # codes for classes give up the order within a class
    if share < 0.5 and getattr(encoder, "preserve", "") != "classes":
        found.append(f"Only {recalled}: longer codes find more.")
    if getattr(encoder, "converged_", True) is False:
        found.append(
            f"The fit stopped after {encoder.n_iter_} iterations, before its loss had settled: raise max_iter."
        )
    if not found:
        return f'<p class="fine">Nothing looks wrong: every bit changes, no two repeat each other, and {recalled}.</p>'
    return f'<ul class="wrong">{"".join(f"<li>{html.escape(sentence)}</li>" for sentence in found)}</ul>'


def _figures_of(encoder: Any, task: RetrievalTask, codes: tuple[Any, Any], bits: BitStatistics) -> Iterator[str]:
    """Draw the figures that need this encoder alone."""
    database, n_bits = codes[1], encoder.n_bits
    if task.labels is not None:
        pair = (*codes, *task.labels)
        caption = (
            "How many answers are right, and how many of the right ones are among them, as the Hamming radius grows. "
            "A query with nothing inside a radius counts as precision 0, so the curve may begin low."
        )
        yield _figure("precision-recall", caption, plots.precision_recall, precision_recall_curve(*pair))
        caption = (
            "Hamming distances from queries to rows with their label and to others. The less they overlap, the better."
        )
        yield _figure("distances", caption, plots.distance_histograms, *pair, n_bits=n_bits)
    balance, likeness = bits.verdicts()
    caption = f"Share of the codes in which each bit is set. One half is best. {balance}"
    yield _figure("balance", caption, plots.bit_balance, database, n_bits)
    caption = f"Correlation between bits: faint is good. The diagonal is left blank. {likeness}"
    yield _figure("correlation", caption, plots.bit_correlation, database, n_bits)
    if len(getattr(encoder, "loss_curve_", ())):
        caption = "The loss of the fit"
        if isinstance(encoder, scq.OgE | scq.OnE):
            ridge = ", and the ridge term" if isinstance(encoder, scq.OgE) else ""
            caption += f": the squared distance of projections to their signs{ridge}"
        yield _figure("loss", f"{caption}.", plots.loss_curve, encoder)


def _figures_of_refits(encoder: Any, task: RetrievalTask, random_state: int) -> Iterator[str]:
    """Draw the figures that need other lengths and scales."""
    template = clone(encoder).set_params(random_state=random_state, callback=None, verbose=False)
    # A start given as an array fits one length only.
    if not isinstance(encoder.init, str):
        template.set_params(init="random")
    with warnings.catch_warnings():
        # The fit of the encoder itself has already warned.
        warnings.simplefilter("ignore")
        lengths = {encoder.n_bits, *(L for L in (8, 16, 32, 64, 128, 256) if L <= len(encoder.eigenvalues_))}
        sweep = scq.sweep_bits(task.X, bits=lengths, encoder=template)
        table = [{"n_bits": other.n_bits, **task.measure(other)} for other in sweep.encoders]
        one = scq.OnE(n_components=encoder.n_components, device=encoder.device, random_state=random_state)
        path = scq.scale_path(task.X, encoder.n_bits, encoder=one)
    metric = next(name for name in table[0] if name != "n_bits")
    caption = f"{type(encoder).__name__} fitted anew with other code lengths."
    yield _figure("bits", caption, plots.bits_curve, table, metric=metric)
    caption = "OnE fitted at other scales of the data. A large scale costs variance, a small one precision."
    yield _figure("scale", caption, plots.scale_path, path)


def _check_images(images: Any, n: int) -> np.ndarray | Sequence[str | os.PathLike[str]]:
    """Return the images of n rows as an array on the host or as paths."""
    if len(images) != n:
        raise ValueError(f"there are {len(images)} images and {n} rows; one per row is expected")
    if isinstance(images, Sequence) and all(isinstance(x, str | os.PathLike) for x in images):
        return images
    array = to_host(check_array(images, name="images", min_ndim=3))
    if array.ndim > 4 or array.shape[3:] not in ((), (3,)) or not array.size:
        raise ValueError(f"images have shape {array.shape}; (n, height, width) or (n, height, width, 3) is expected")
    return array


def typical_answers(
    queries: np.ndarray, database: np.ndarray, n_bits: int, labels: tuple[np.ndarray, np.ndarray] | None
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Return 8 typical queries, of each label first, their 10 nearest codes, and what `gallery` writes below them."""
    index, k = HammingIndex(database, n_bits), min(10, len(database))
    # Without labels, typical queries are those of typical distances.
    if labels is None:
        chosen = typical_queries(index.search(queries, k)[0].mean(axis=1), 8)
        distances, ids = index.search(queries[chosen], k)
        return chosen, ids, {"distances": distances}
    groups = labels[0] if labels[0].ndim == 1 else None
    chosen = typical_queries(average_precision(queries, database, *labels), 8, groups)
    distances, ids = index.search(queries[chosen], k)
    label, found = labels[0][chosen, None], labels[1][ids]
    right = label == found if found.ndim == 2 else (label & found).any(axis=2)
    return chosen, ids, {"distances": distances, "right": right}


def typical_queries(quality: np.ndarray, count: int, groups: np.ndarray | None = None) -> np.ndarray:
    """Return the ``count`` queries nearest to the median quality, first the one nearest in each of ``groups`` (q,)."""
    numbers = np.arange(len(quality))
    members = [] if groups is None else [numbers[groups == group] for group in np.unique(groups)[:count]]
    chosen = [int(group[_nearest_median(quality[group])[0]]) for group in members]
    others = numbers[_nearest_median(quality)]
    chosen += [int(i) for i in others if i not in set(chosen)][: count - len(chosen)]
    return np.array(chosen[:count], dtype=np.int64)


def _nearest_median(values: np.ndarray) -> np.ndarray:
    """Sort positions by distance from the lower median; ties keep their order."""
    return np.argsort(np.abs(values - np.quantile(values, 0.5, method="lower")), kind="stable")


def _take_images(images: Any, rows: np.ndarray) -> np.ndarray:
    """Return the images of some rows, shrunk to `_PIXELS`; those of files are padded to squares."""
    if isinstance(images, np.ndarray):
        step = -(-max(images.shape[1:3]) // _PIXELS)
        height, width = (side // step * step for side in images.shape[1:3])
        shifted = [images[:, i:height:step, j:width:step][rows] for i, j in np.ndindex(step, step)]
        return np.asarray(np.mean(shifted, axis=0), dtype=images.dtype)
    from PIL import Image, ImageOps, UnidentifiedImageError  # comes with matplotlib

    taken = np.zeros((*rows.shape, _PIXELS, _PIXELS, 3), dtype=np.uint8)
    for i in np.ndindex(rows.shape):
        check_regular(images[rows[i]])
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
    # Every color of the figures and the page, for light and dark schemes.
    light, dark = (
        ":root { " + " ".join(f"--{name}: {color};" for name, color in _variables(colors).items()) + " }"
        for colors in (LIGHT, DARK)
    )
    colors = f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}"
    return template.substitute(title=html.escape(name), subtitle=subtitle, colors=colors, body=body, footer=footer)


def _draw_svg(
    name: str, draw: Callable[..., Any], *args: Any, size: tuple[float, float] = (5.0, 3.3), **options: Any
) -> str:
    """Return what ``draw(*args, ax=ax, **options)`` draws, as ``<svg>`` labeled with the title of the axes.

    ``name`` is the prefix of its ids, which makes them unique on the page.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with plots.theme(), matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        ax = draw(*args, ax=figure.subplots(), **options)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    viewbox, svg = re.search(r'<svg[^>]*viewBox="([^"]*)"[^>]*>(.*)</svg>', buffer.getvalue(), re.DOTALL).groups()  # type: ignore[union-attr]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    # Equal images would have equal ids.
    svg = re.sub(r'(<image [^>]*) id="[^"]*"', r"\1", svg)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{name}-", svg)
    for variable, color in _variables(LIGHT).items():
        svg = svg.replace(color, f"var(--{variable})")
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", svg)
    return f'<svg role="img" aria-label="{html.escape(ax.get_title(loc="left"))}" viewBox="{viewbox}">{svg}</svg>'


def _variables(colors: dict[str, Any]) -> dict[str, str]:
    """Return the CSS variables of a scheme's colors."""
    series = {f"series-{k}": color for k, color in enumerate(colors["series"])}
    return series | {name: color for name, color in colors.items() if name != "series"}
