"""How plots look: colours, ink, lines and labels; the other modules draw with them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

Axes = Any
Draw = TypeVar("Draw", bound=Callable[..., Any])

# After Okabe and Ito, whose colours stay apart for all common kinds of colour blindness; lighter ones on dark.
LIGHT: dict[str, Any] = {
    "face": "#ffffff",
    "ink": "#1d2433",
    "grid": "#d5d9e2",
    "series": ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#b58900", "#3b3f8f"),
}
DARK: dict[str, Any] = {
    "face": "#14181f",
    "ink": "#e6e9ef",
    "grid": "#3a4250",
    "series": ("#56b4e9", "#ff8c42", "#2fd3a2", "#e79ad0", "#f0c845", "#a5a8ff"),
}
_MARKERS = "os^Dv*"
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))


@contextlib.contextmanager
def theme(*, dark: bool = False) -> Iterator[None]:
    """Draw with the look of this package, on white or on near-black.

    Parameters
    ----------
    dark : bool, default False

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> from scq_gpu import plots
    >>> with plots.theme(dark=True):
    ...     ax = plots.loss_curve([3.0, 2.0, 1.5])
    >>> ax.figure.get_facecolor()[:3] < (0.2, 0.2, 0.2)
    True
    """
    import matplotlib
    from cycler import cycler

    colours = DARK if dark else LIGHT
    ink, face, grid = colours["ink"], colours["face"], colours["grid"]
    settings = {
        "axes.axisbelow": True,
        "axes.edgecolor": ink,
        "axes.facecolor": face,
        "axes.grid": True,
        "axes.labelcolor": ink,
        "axes.prop_cycle": cycler(color=colours["series"]),
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlelocation": "left",
        "axes.titlesize": "medium",
        "axes.titleweight": "bold",
        "figure.facecolor": face,
        "figure.constrained_layout.use": True,
        "grid.color": grid,
        "grid.linewidth": 0.7,
        "legend.frameon": False,
        "savefig.facecolor": face,
        "text.color": ink,
        "xtick.color": ink,
        "ytick.color": ink,
    }
    with matplotlib.rc_context(settings):
        yield


def themed(draw: Draw) -> Draw:
    """Give new axes this package's look, on the background in force; axes that were passed keep their own."""

    @functools.wraps(draw)
    def wrapper(*args: Any, ax: Axes | None = None, **options: Any) -> Axes:
        if ax is not None:
            return draw(*args, ax=ax, **options)
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise ImportError('plots need matplotlib: pip install "scq-gpu[plots]"') from error
        with theme(dark=_is_dark(plt.rcParams["figure.facecolor"])):
            return draw(*args, ax=None, **options)

    return cast("Draw", wrapper)


def new_axes(ax: Axes | None, *, size: tuple[float, float] = (6.0, 3.8)) -> Axes:
    """The axes given, or those of a new figure."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=size)[1]


def _is_dark(colour: Any) -> bool:
    from matplotlib.colors import to_rgba

    red, green, blue, alpha = to_rgba(colour)
    return alpha > 0.5 and 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.4


def colours_of(ax: Axes) -> dict[str, Any]:
    """The colours for the background of the axes."""
    faces = (ax.get_facecolor(), ax.figure.get_facecolor())
    return DARK if any(_is_dark(face) for face in faces) else LIGHT


def line_styles(ax: Axes, count: int) -> list[dict[str, Any]]:
    """Looks of ``count`` lines; they begin again when they run out."""
    looks = [
        {"color": colour, "marker": marker, "linestyle": dash, "linewidth": 1.8}
        for colour, marker, dash in zip(colours_of(ax)["series"], _MARKERS, _DASHES, strict=True)
    ]
    return [looks[place % len(looks)] for place in range(count)]


def label_axes(ax: Axes, *, title: str, x: str = "", y: str = "") -> None:
    """Title and labels in the ink that the background asks for."""
    ink = colours_of(ax)["ink"]
    ax.set_title(title, color=ink)
    ax.set_xlabel(x, color=ink)
    ax.set_ylabel(y, color=ink)


def add_legend(ax: Axes, names: Any) -> None:
    """A legend, where there is more than one thing to tell apart."""
    if len(names) > 1:
        ax.legend(labelcolor=colours_of(ax)["ink"])


def percent_ticks(axis: Any) -> None:
    """Fractions shown in percent."""
    axis.set_major_formatter(lambda value, _: f"{100 * value:g}%")


def whole_ticks(axis: Any) -> None:
    """Ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))
