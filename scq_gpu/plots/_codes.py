"""What codes look like: distances of pairs, balance and correlation of bits."""

from __future__ import annotations

import numpy as np

from scq_gpu._core.arrays import Array
from scq_gpu._core.validate import check_code_pair, check_integer, check_labels
from scq_gpu.metrics import ranking
from scq_gpu.plots._bits import bit_statistics
from scq_gpu.plots._style import Axes, colors_of, finish_axes, line_styles, new_axes, themed

_SHADES = 256


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
    """Hamming distances of pairs of one class and of pairs of different classes: the less they overlap, the better.

    Parameters
    ----------
    query_codes, database_codes, query_labels, database_labels : arrays
        As for `scq_gpu.metrics.mean_average_precision`. Every query is paired with every code, so queries should not be
        in the database: each would meet itself at distance 0.
    n_bits : int, optional
        Where the axis ends; by default at all bits of the bytes.
    ax : matplotlib axes, optional

    Returns
    -------
    matplotlib axes

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu import plots
    >>> database = np.array([[0b0], [0b1], [0b111]], dtype=np.uint8)
    >>> ax = plots.distance_histograms(database[:1], database[1:], np.array([7]), np.array([7, 5]), n_bits=3)
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
    """The share of codes in which each bit is set; a bit tells most when it is half.

    Parameters
    ----------
    codes : array (n, ceil(n_bits / 8)) of uint8
    n_bits : int
    ax : matplotlib axes, optional

    Returns
    -------
    matplotlib axes

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu import plots
    >>> ax = plots.bit_balance(np.array([[0b01], [0b11]], dtype=np.uint8), n_bits=2)
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
    """Correlation between bits; the diagonal, which is 1, is left blank. Less is better: each bit tells something new.

    Parameters
    ----------
    codes : array (n, ceil(n_bits / 8)) of uint8
    n_bits : int
        A bit that never changes has correlation 0 with all others.
    ax : matplotlib axes, optional

    Returns
    -------
    matplotlib axes

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu import plots
    >>> ax = plots.bit_correlation(np.array([[0b01], [0b10], [0b01]], dtype=np.uint8), n_bits=2)
    >>> round(float(ax.images[0].get_array()[0, 1]), 6)
    -1.0
    """
    from matplotlib.colors import LinearSegmentedColormap, to_rgb

    R = bit_statistics(codes, n_bits).correlation
    ax = new_axes(ax)
    blue, red = colors_of(ax)["series"][:2]
    # strength is opacity, so that 0 is the background, whatever it is
    ends = [(*to_rgb(blue), 1), (*to_rgb(blue), 0), (*to_rgb(red), 0), (*to_rgb(red), 1)]
    shades = LinearSegmentedColormap.from_list("correlation", list(zip((0, 0.5, 0.5, 1), ends, strict=True)), N=_SHADES)
    most = float(np.abs(R).max())
    limit = max(most, 0.1)
    image = ax.imshow(R, cmap=shades, vmin=-limit, vmax=limit, interpolation="nearest")
    bar = ax.figure.colorbar(image, ax=ax, label="correlation", shrink=0.9)
    bar.solids.set_rasterized(True)  # as vectors, see-through shades show their seams
    ax.grid(False)
    ax.spines[:].set_visible(True)
    return finish_axes(ax, title=f"Correlation of bits (at most {most:.2f})", x="bit", y="bit", whole="xy")
