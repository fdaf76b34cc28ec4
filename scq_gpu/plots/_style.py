"""The look of plots: colors, lines and labels."""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Sized
from typing import Any, TypeVar, cast

Axes = Any
Draw = TypeVar("Draw", bound=Callable[..., Any])

# After Okabe and Ito: distinguishable with all common kinds of color blindness. Lighter on dark backgrounds.
LIGHT: dict[str, Any] = {
    "face": "#ffffff",
    "ink": "#1d2433",
    "grid": "#d5d9e2",
    "page": "#f5f6f9",
    "muted": "#586174",
    "series": ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#b58900", "#3b3f8f"),
}
DARK: dict[str, Any] = {
    "face": "#14181f",
    "ink": "#e6e9ef",
    "grid": "#3a4250",
    "page": "#0d1015",
    "muted": "#9aa3b5",
    "series": ("#56b4e9", "#ff8c42", "#2fd3a2", "#e79ad0", "#f0c845", "#a5a8ff"),
}
_COLUMN = 3.4  # inches: the column width of common two-column templates
_for_paper = contextvars.ContextVar("for_paper", default=False)
_MARKERS = "os^Dv*"
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))


@contextlib.contextmanager
def theme(*, dark: bool = False, paper: bool = False) -> Iterator[None]:
    """Draw with the style of this package, on white or near-black, for a screen or a paper.

    Parameters
    ----------
    dark : bool, default False
    paper : bool, default False
        New figures are as wide as a column of a paper (3.4 inches), with text of 8 points and without titles. Fonts are
        embedded in PDF files as TrueType, as most publishers require.

    Examples
    --------
    >>> from scq_gpu import plots
    >>> with plots.theme(dark=True):
    ...     ax = plots.loss_curve([3.0, 2.0, 1.5])
    >>> ax.figure.get_facecolor()[:3] < (0.2, 0.2, 0.2)
    True
    >>> with plots.theme(paper=True):
    ...     ax = plots.loss_curve([3.0, 2.0, 1.5])
    >>> float(ax.figure.get_figwidth()), ax.get_title(loc="left")
    (3.4, '')
    """
    import matplotlib
    from cycler import cycler

    colors = DARK if dark else LIGHT
    inked = ("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color")
    settings = dict.fromkeys(inked, colors["ink"]) | {
        "axes.axisbelow": True,
        "axes.facecolor": colors["face"],
        "axes.grid": True,
        "axes.prop_cycle": cycler(color=colors["series"]),
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlelocation": "left",
        "axes.titlesize": "medium",
        "axes.titleweight": "bold",
        "figure.facecolor": colors["face"],
        "figure.constrained_layout.use": True,
        "grid.color": colors["grid"],
        "grid.linewidth": 0.7,
        "legend.frameon": False,
        "savefig.facecolor": colors["face"],
    }
    if paper:
        sizes = ("font.size", "axes.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize")
        settings |= dict.fromkeys(sizes, 8.0) | {"pdf.fonttype": 42, "lines.markersize": 4.0, "savefig.dpi": 300}
    token = _for_paper.set(paper)
    try:
        with matplotlib.rc_context(settings):
            yield
    finally:
        _for_paper.reset(token)


def themed(draw: Draw) -> Draw:
    """Give new axes this package's style; axes that were passed keep their own."""

    @functools.wraps(draw)
    def wrapper(*args: Any, ax: Axes | None = None, **options: Any) -> Axes:
        if ax is not None:
            return draw(*args, ax=ax, **options)
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise ImportError('plots need matplotlib: pip install "scq-gpu[plots]"') from error
        with theme(dark=_is_dark(plt.rcParams["figure.facecolor"]), paper=_for_paper.get()):
            return draw(*args, ax=None, **options)

    return cast("Draw", wrapper)


def new_axes(ax: Axes | None, *, size: tuple[float, float] = (6.0, 3.8)) -> Axes:
    """Return the given axes, or those of a new figure."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    if _for_paper.get():
        size = _COLUMN, _COLUMN * size[1] / size[0]
    return plt.subplots(figsize=size)[1]


def _is_dark(color: Any) -> bool:
    from matplotlib.colors import to_rgba

    red, green, blue, alpha = to_rgba(color)
    return alpha > 0.5 and 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.4


def colors_of(ax: Axes) -> dict[str, Any]:
    """Return the colors that suit the background of the axes."""
    faces = (ax.get_facecolor(), ax.figure.get_facecolor())
    return DARK if any(_is_dark(face) for face in faces) else LIGHT


def line_styles(ax: Axes, count: int) -> list[dict[str, Any]]:
    """Return the styles of ``count`` lines, repeated cyclically."""
    looks = [
        {"color": color, "marker": marker, "linestyle": dash, "linewidth": 1.8}
        for color, marker, dash in zip(colors_of(ax)["series"], _MARKERS, _DASHES, strict=True)
    ]
    return [looks[i % len(looks)] for i in range(count)]


def finish_axes(
    ax: Axes, *, title: str, x: str = "", y: str = "", names: Sized = (), percent: str = "", whole: str = ""
) -> Axes:
    """Write title, labels and, for more than one name, a legend, in a color that suits the background.

    ``percent`` names the axes ("x", "y", "xy") that show fractions in percent, ``whole`` the axes with integer ticks.
    """
    from matplotlib.ticker import MaxNLocator

    ink = colors_of(ax)["ink"]
    if not _for_paper.get():
        ax.set_title(title, color=ink)
    ax.set_xlabel(x, color=ink)
    ax.set_ylabel(y, color=ink)
    if len(names) > 1:
        ax.legend(labelcolor=ink)
    for axis in percent:
        getattr(ax, f"{axis}axis").set_major_formatter(lambda value, _: f"{100 * value:g}%")
    for axis in whole:
        getattr(ax, f"{axis}axis").set_major_locator(MaxNLocator(integer=True))
    return ax
