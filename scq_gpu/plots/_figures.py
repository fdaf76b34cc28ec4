"""Figures: curves of fits and metrics, distances of codes, balance and correlation of bits, galleries of answers."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scq_gpu._core.arrays import Array, row_slices, to_host
from scq_gpu._core.codes import unpack
from scq_gpu._core.validate import check_array, check_code_pair, check_codes, check_integer, check_labels
from scq_gpu.metrics import ranking
from scq_gpu.plots._style import Axes, colors_of, finish_axes, line_styles, new_axes, themed

_BLOCK_ROWS = 1 << 16
# A bit whose rarer value is in fewer of the codes carries at most 0.29 of the information of a balanced bit.
_RARE = 0.05
# Two bits of larger correlation agree, or differ, in more than 95 % of the codes.
_ALIKE = 0.9
# A bit set in 30 to 70 % of the codes carries at least 0.88 of the information of a balanced bit.
_EVEN = 30
# A bit of larger correlation with another one adds little.
_APART = 0.5


@themed
def loss_curve(fitted: Any, *, ax: Axes | None = None) -> Axes:
    """Draw the loss after each iteration of a fit.

    Parameters
    ----------
    fitted : encoder, sequence of float, or mapping of name to either
        The ``loss_curve_`` of an encoder includes the ridge term. Losses are comparable only for equal code length,
        scale and ridge.
    ax : matplotlib axes, optional

    Examples
    --------
    >>> import numpy as np, scq_gpu as scq
    >>> X = np.random.default_rng(0).normal(size=(300, 16))
    >>> encoder = scq.OgE(n_bits=8, max_iter=20, tol=0, random_state=0).fit(X)
    >>> ax = scq.plots.loss_curve(encoder)
    >>> len(ax.lines[0].get_xdata()) == encoder.n_iter_
    True
    """
    curves = {name: _losses(x) for name, x in _named(fitted).items()}
    ax = new_axes(ax)
    for style, (name, losses) in zip(line_styles(ax, len(curves)), curves.items(), strict=True):
        ax.plot(np.arange(1, len(losses) + 1), losses, label=name, markevery=[-1], **style)
    return finish_axes(ax, title="Training loss", x="iteration", y="loss", names=curves, whole="x")


@themed
def bits_curve(results: Any, *, metric: str = "mean_average_precision", ax: Axes | None = None) -> Axes:
    """Draw a metric against the length of the codes, one line per method.

    Parameters
    ----------
    results : mapping of method to table
        A table is a list of rows that have ``n_bits`` and the metric, such as ``sweep_bits(...).evaluate(...)`` gives,
        or a mapping of n_bits to value. A single table needs no name.
    metric : str, default "mean_average_precision"
        A fraction of 1, shown in percent.
    ax : matplotlib axes, optional

    Examples
    --------
    >>> from scq_gpu import plots
    >>> ax = plots.bits_curve({"OgE": {8: 0.51, 16: 0.62, 32: 0.65}, "LSH": {8: 0.2, 16: 0.3, 32: 0.4}})
    >>> ax.get_ylabel(), [text.get_text() for text in ax.get_xticklabels()]
    ('mAP', ['8', '16', '32'])
    """
    is_single = not isinstance(results, Mapping) or not any(isinstance(x, Mapping | Sequence) for x in results.values())
    curves = {name: _by_bits(table, metric) for name, table in ({None: results} if is_single else results).items()}
    lengths = sorted({bits for curve in curves.values() for bits in curve})
    ax = new_axes(ax)
    for style, (name, curve) in zip(line_styles(ax, len(curves)), curves.items(), strict=True):
        ax.plot(sorted(curve), [curve[bits] for bits in sorted(curve)], label=name, **style)
    ax.set_xscale("log", base=2)
    ax.set_xticks(lengths, [str(bits) for bits in lengths])
    ax.minorticks_off()
    shown = "mAP" if metric == "mean_average_precision" else metric.replace("_", " ")
    title = f"{shown} against code length"
    return finish_axes(ax, title=title, x="bits per vector", y=shown, names=curves, percent="y")


@themed
def scale_path(path: Any, *, ax: Axes | None = None) -> Axes:
    """Draw quantization loss and retained variance over the scale of the data, as in the paper.

    Parameters
    ----------
    path : ScalePath
        Result of `scq_gpu.scale_path`. The scale of "auto" is marked.
    ax : matplotlib axes, optional
        Axes of the loss; the variance has a twin axis on the right.

    Examples
    --------
    >>> import numpy as np, scq_gpu as scq
    >>> X = np.random.default_rng(0).normal(size=(300, 16)) @ np.diag(1 / np.arange(1, 17))
    >>> path = scq.scale_path(X, 4, [1.0, 2.0, 4.0], encoder=scq.OnE(random_state=0))
    >>> scq.plots.scale_path(path).get_xlabel()
    'scale'
    """
    columns = (_numbers(getattr(path, name), name) for name in ("scales", "loss_per_bit", "retained_variance"))
    s, loss, variance = np.stack(list(columns))[:, np.argsort(path.scales)]
    ax = new_axes(ax)
    first, second = line_styles(ax, 2)
    right = ax.twinx()
    ax.plot(s, loss, **first)
    right.plot(s, variance, **second)
    right.spines["right"].set_visible(True)
    right.grid(False)
    finish_axes(ax, title="Loss and variance over the scale", x="scale", y="quantization loss per bit")
    right.set_ylabel("retained variance, % of PCA's")
    for axis, style in ((ax, first), (right, second)):
        axis.yaxis.label.set_color(style["color"])
        axis.tick_params(axis="y", colors=style["color"])
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ink = colors_of(ax)["ink"]
    ax.axvline(path.auto, color=ink, linestyle=":", linewidth=1.2)
    beside = {"xycoords": ("data", "axes fraction"), "xytext": (4, -4), "textcoords": "offset points"}
    ax.annotate(f"auto: {path.auto:.3g}", (path.auto, 1), va="top", color=ink, **beside)
    return ax


@themed
def precision_recall(curves: Any, *, ax: Axes | None = None) -> Axes:
    """Draw precision against recall for growing Hamming radii.

    Parameters
    ----------
    curves : (precision, recall), or mapping of name to such a pair
        As `scq_gpu.metrics.precision_recall_curve` returns them: entry r belongs to radius r. A query with nothing
        inside a radius counts as precision 0, so a curve may begin low.
    ax : matplotlib axes, optional

    Examples
    --------
    >>> from scq_gpu import plots
    >>> ax = plots.precision_recall(([1.0, 0.5, 0.6], [0.2, 0.5, 1.0]))
    >>> ax.get_xlabel()
    'recall'
    """
    named = _named(curves)
    ax = new_axes(ax)
    for style, (name, (precision, recall)) in zip(line_styles(ax, len(named)), named.items(), strict=True):
        precision, recall = _numbers(precision, "precision"), _numbers(recall, "recall")
        if precision.shape != recall.shape:
            raise ValueError(f"precision has {len(precision)} entries and recall {len(recall)}; one per radius each")
        # Radii that add no relevant code are left out.
        moved = np.concatenate([[True], np.diff(recall) > 0])
        ax.plot(recall[moved], precision[moved], label=name, **{**style, "markersize": 4})
    ax.set(xlim=(0, 1), ylim=(0, 1.02))
    title = "Precision and recall by Hamming radius"
    return finish_axes(ax, title=title, x="recall", y="precision", names=named, percent="xy")


def _losses(fitted: Any) -> np.ndarray:
    curve = getattr(fitted, "loss_curve_", fitted)
    if hasattr(fitted, "get_params") and curve is fitted:
        raise ValueError(f"{type(fitted).__name__} has no loss_curve_; fit it first, or pass a sequence of losses")
    return _numbers(curve, "the loss curve")


def _numbers(x: Any, name: str) -> np.ndarray:
    values = to_host(check_array(x, name=name, min_ndim=1)).astype(np.float64)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"{name} has shape {values.shape}; a sequence of one number or more is expected")
    return values


def _by_bits(table: Any, metric: str) -> dict[int, float]:
    """Convert a table to a mapping of n_bits to value."""
    if not isinstance(table, Mapping):
        missing = [row for row in table if not {"n_bits", metric} <= set(row)]
        if missing:
            raise ValueError(f"a row of the table lacks n_bits or {metric!r}; it has {', '.join(missing[0])}")
        table = {row["n_bits"]: row[metric] for row in table}
    if not table:
        raise ValueError("a table of results is empty; there is nothing to draw")
    return {check_integer(bits, name="n_bits", minimum=1): float(value) for bits, value in table.items()}


def _named(x: Any) -> Mapping[str | None, Any]:
    """Return a mapping as it is, and anything else as a single entry without a name."""
    if isinstance(x, Mapping):
        if not x:
            raise ValueError("an empty mapping was passed; there is nothing to draw")
        return x
    return {None: x}


@themed
def distance_histograms(
    query_codes: Array,
    database_codes: Array,
    query_labels: Array,
    database_labels: Array,
    *,
    n_bits: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the Hamming distances of pairs of one class and of different classes; less overlap is better.

    Parameters
    ----------
    query_codes, database_codes, query_labels, database_labels : arrays
        As for `scq_gpu.metrics.mean_average_precision`. Every query is paired with every code, so a query that is also
        in the database is paired with itself at distance 0.
    n_bits : int, optional
        End of the axis; by default all bits of the bytes.
    ax : matplotlib axes, optional

    Examples
    --------
    >>> import numpy as np, scq_gpu as scq
    >>> database = np.array([[0b0], [0b1], [0b111]], dtype=np.uint8)
    >>> ax = scq.plots.distance_histograms(database[:1], database[1:], np.array([7]), np.array([7, 5]), n_bits=3)
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['same class', 'other class']
    """
    queries, database = check_code_pair(query_codes, database_codes)
    labels = check_labels(query_labels, database_labels, n_queries=queries.shape[0], n=database.shape[0])
    length = 8 * queries.shape[1] if n_bits is None else check_integer(n_bits, name="n_bits", minimum=1)
    found = ranking.scan(queries, database, *labels)
    same = found.hits.sum(axis=0)
    other = found.counts.sum(axis=0) - same
    ax = new_axes(ax)
    edges = np.arange(length + 2) - 0.5
    names = "same class", "other class"
    for counts, label, style in zip((same, other), names, line_styles(ax, 2), strict=True):
        shares = counts[: length + 1] / max(counts.sum(), 1)
        ax.stairs(shares, edges, fill=True, alpha=0.3, label=label, color=style["color"])
        ax.stairs(shares, edges, linewidth=1.4, color=style["color"], linestyle=style["linestyle"])
    ax.set_xlim(-0.5, length + 0.5)
    x, y = "Hamming distance (bits)", "share of pairs"
    return finish_axes(ax, title="Distances of pairs", x=x, y=y, names=names, percent="y", whole="x")


@themed
def bit_balance(codes: Array, n_bits: int, *, ax: Axes | None = None) -> Axes:
    """Draw the share of codes in which each bit is set; one half is best.

    Parameters
    ----------
    codes : array (n, ceil(n_bits / 8)) of uint8
    n_bits : int
    ax : matplotlib axes, optional

    Examples
    --------
    >>> import numpy as np, scq_gpu as scq
    >>> ax = scq.plots.bit_balance(np.array([[0b01], [0b11]], dtype=np.uint8), n_bits=2)
    >>> [float(bar.get_height()) for bar in ax.patches]
    [1.0, 0.5]
    """
    shares = bit_statistics(codes, n_bits).shares
    ax = new_axes(ax)
    style, accent = line_styles(ax, 2)
    ax.bar(np.arange(n_bits), shares, width=0.8 if n_bits <= 64 else 1.0, color=style["color"])
    ax.axhline(0.5, color=accent["color"], linestyle="--", linewidth=1.4)
    ax.set(xlim=(-0.6, n_bits - 0.4), ylim=(0, 1))
    title = f"Balance of bits (at most {100 * np.abs(shares - 0.5).max():.0f} points off half)"
    return finish_axes(ax, title=title, x="bit", y="codes with the bit set", percent="y", whole="x")


@themed
def bit_correlation(codes: Array, n_bits: int, *, ax: Axes | None = None) -> Axes:
    """Draw the correlation between bits, without the diagonal; less is better.

    Parameters
    ----------
    codes, n_bits, ax
        As for `bit_balance`. A bit that never changes has correlation 0 with all others.

    Examples
    --------
    >>> import numpy as np, scq_gpu as scq
    >>> ax = scq.plots.bit_correlation(np.array([[0b01], [0b10], [0b01]], dtype=np.uint8), n_bits=2)
    >>> round(float(ax.images[0].get_array()[0, 1]), 6)
    -1.0
    """
    from matplotlib.colors import LinearSegmentedColormap, to_rgb

    R = bit_statistics(codes, n_bits).correlation
    ax = new_axes(ax)
    blue, red = colors_of(ax)["series"][:2]
    # Strength is opacity, so that 0 is the background on any page.
    ends = [(*to_rgb(blue), 1), (*to_rgb(blue), 0), (*to_rgb(red), 0), (*to_rgb(red), 1)]
    shades = LinearSegmentedColormap.from_list("correlation", list(zip((0, 0.5, 0.5, 1), ends, strict=True)))
    most = float(np.abs(R).max())
    limit = max(most, 0.1)
    image = ax.imshow(R, cmap=shades, vmin=-limit, vmax=limit, interpolation="nearest")
    bar = ax.figure.colorbar(image, ax=ax, label="correlation", shrink=0.9)
    # As vectors, translucent shades would show their seams.
    bar.solids.set_rasterized(True)
    ax.grid(False)
    ax.spines[:].set_visible(True)
    return finish_axes(ax, title=f"Correlation of bits (at most {most:.2f})", x="bit", y="bit", whole="xy")


class BitStatistics(NamedTuple):
    """Balance and correlation of the bits of codes."""

    shares: np.ndarray  # (L,): share of the codes in which each bit is set
    correlation: np.ndarray  # (L, L), with 0 on the diagonal and for bits that never change

    def verdicts(self) -> tuple[str, str]:
        """Return a sentence about balance and one about correlation: the values, and if they are good."""
        low, high = 100 * self.shares.min(), 100 * self.shares.max()
        balance = "that is good" if low >= _EVEN and high <= 100 - _EVEN else f"good is {_EVEN} to {100 - _EVEN} %"
        most = np.abs(self.correlation).max()
        likeness = "that is good" if most <= _APART else f"good is {_decimal(_APART)} or less"
        return (
            f"Here {low:.0f} to {high:.0f} %: {balance}.",
            f"Here at most {_decimal(most)}, of either sign: {likeness}.",
        )

    def warnings(self) -> list[str]:
        """Return a sentence for each problem of the bits."""
        found = []
        rarer = np.minimum(self.shares, 1 - self.shares)
        constant, rare = np.flatnonzero(rarer == 0), np.flatnonzero((rarer > 0) & (rarer < _RARE))
        if len(constant):
            verb = "changes" if len(constant) == 1 else "change"
            found.append(f"{_name_bits(constant)} never {verb}: they carry no information.")
        if len(rare):
            verb = "is" if len(rare) == 1 else "are"
            found.append(
                f"{_name_bits(rare)} {verb} nearly always the same (the rarer value in as few as "
                f"{100 * rarer[rare].min():.1f} % of the codes): they carry little information."
            )
        R = self.correlation
        pairs = sorted(np.argwhere(np.triu(np.abs(R) > _ALIKE, 1)), key=lambda pair: -abs(R[tuple(pair)]))
        if pairs:
            listed = "; ".join(f"{i} and {j} (correlation {_decimal(R[i, j])})" for i, j in pairs[:4])
            listed += f"; and {len(pairs) - 4} more pairs" if len(pairs) > 4 else ""
            found.append(f"Some bits nearly repeat others: {listed}. One bit of each pair adds next to nothing.")
        return found


def bit_statistics(codes: Array, n_bits: int) -> BitStatistics:
    """Compute balance and correlation of the bits of codes (n, ceil(n_bits / 8))."""
    n_bits = check_integer(n_bits, name="n_bits", minimum=1)
    codes = check_codes(codes, n_bits)
    if codes.ndim != 2 or not codes.shape[0]:
        raise ValueError(f"codes have shape {tuple(codes.shape)}; (n, {-(-n_bits // 8)}) with n >= 1 is expected")
    n, both = codes.shape[0], np.zeros((n_bits, n_bits))
    for part in row_slices(n, _BLOCK_ROWS):
        bits = (unpack(to_host(codes[part, :]), n_bits) > 0).astype(np.float32)
        # Counts below 2**24 are exact in float32.
        both += bits.T @ bits
    ones = np.diag(both).copy()
    covariance = both / n - np.outer(ones, ones) / n**2
    spread = np.sqrt(np.diag(covariance))
    spread[ones % n == 0] = np.inf
    correlation = covariance / np.outer(spread, spread)
    np.fill_diagonal(correlation, 0)
    return BitStatistics(ones / n, correlation)


def _name_bits(bits: np.ndarray) -> str:
    """List the numbers of the first few bits."""
    listed = ", ".join(str(bit) for bit in bits[:4])
    more = f" and {len(bits) - 4} more" if len(bits) > 4 else ""
    return f"Bit {listed}" if len(bits) == 1 else f"Bits {listed}{more}"


def _decimal(x: float) -> str:
    return f"{x:.2f}".replace("0.", ".", 1) if abs(x) < 0.995 else f"{x:.2f}"


@themed
def gallery(
    query_images: Array,
    answer_images: Array,
    *,
    right: Array | None = None,
    distances: Array | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw queries, each beside its answers, nearest first, with right and wrong answers marked.

    Parameters
    ----------
    query_images : array (q, height, width) or (q, height, width, 3)
        Gray images of any range, or color images in 0..1 (float) or 0..255 (integer).
    answer_images : array (q, k, height, width) or (q, k, height, width, 3)
        For example ``images[ids]`` with the ids of a search.
    right : array (q, k) of bool, optional
        Right answers have a thin frame and ✓ below, the others a thick, broken frame and ✗.
    distances : array (q, k), optional
        Written below the answers.
    ax : matplotlib axes, optional

    Examples
    --------
    >>> import numpy as np, scq_gpu as scq
    >>> images = np.random.default_rng(0).random((4, 8, 8))
    >>> ax = scq.plots.gallery(images[:1], images[None, 1:], right=np.array([[True, False, True]]))
    >>> len(ax.images)
    4
    """
    queries = to_host(check_array(query_images, name="query_images", min_ndim=3))
    answers = to_host(check_array(answer_images, name="answer_images", min_ndim=4))
    shape, fits = queries.shape, answers.ndim == queries.ndim + 1 and len(answers) == len(queries)
    if not fits or not answers.size or not queries.size or shape[3:] not in ((), (3,)):
        raise ValueError(
            f"query_images have shape {shape} and answer_images {answers.shape}; "
            "(q, height, width) and (q, k, height, width) are expected, or the same with 3 colors last"
        )
    marks = None if right is None else _check_table(right, "right", answers).astype(bool)
    numbers = None if distances is None else _check_table(distances, "distances", answers)
    q, k = answers.shape[:2]
    # Captions need space for a line below each answer.
    pitch = 1.0 if marks is None and numbers is None else 1.25
    ax = new_axes(ax, size=(0.8 * (k + 1.4), 0.8 * pitch * q + 0.5))
    height, width = 0.9 * np.array(shape[1:3]) / max(shape[1:3])
    look: dict[str, Any] = {"cmap": "gray", "interpolation": "none"}
    look |= {"vmin": min(queries.min(), answers.min()), "vmax": max(queries.max(), answers.max())}
    for row, column in np.ndindex(q, k + 1):
        # A gap separates the query from its answers.
        x, y = column + 0.3 if column else 0.0, pitch * row
        left, top = x + (0.9 - width) / 2, y + (0.9 - height) / 2
        image = answers[row, column - 1] if column else queries[row]
        ax.imshow(image, extent=(left, left + width, top + height, top), **look)
        if column:
            number = "" if numbers is None else f"{numbers[row, column - 1]:g}"
            _caption(ax, x, y, number, None if marks is None else bool(marks[row, column - 1]))
    ax.set(xlim=(-0.05, k + 1.3), ylim=(pitch * q, -0.08), aspect="equal")
    ax.axis("off")
    return finish_axes(ax, title="Queries (left) and their nearest" + ("" if marks is None else ", wrong ones ✗"))


def _caption(ax: Axes, x: float, y: float, number: str, right: bool | None) -> None:
    """Write below an image, and mark right and wrong answers by color, frame and sign."""
    from matplotlib.patches import Rectangle

    colors = colors_of(ax)
    color, sign = colors["ink"], ""
    if right is not None:
        color, sign = (colors["series"][2], "✓ ") if right else (colors["series"][1], "✗ ")
        width, dash = (1.2, "-") if right else (2.6, (0, (3, 1)))
        frame = {"linewidth": width, "linestyle": dash, "edgecolor": color}
        ax.add_patch(Rectangle((x, y), 0.9, 0.9, fill=False, clip_on=False, **frame))
    ax.text(x + 0.45, y + 0.95, f"{sign}{number}".strip(), ha="center", va="top", size=7, color=color)


def _check_table(x: Array, name: str, answers: np.ndarray) -> np.ndarray:
    table = to_host(check_array(x, name=name, min_ndim=2))
    if table.shape != answers.shape[:2]:
        raise ValueError(f"{name} has shape {table.shape}; one entry per answer, {answers.shape[:2]}, is expected")
    return table
