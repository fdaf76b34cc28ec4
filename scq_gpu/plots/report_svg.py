"""A matplotlib figure as SVG that takes its colors and its font from the page it stands in."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable
from typing import Any

from scq_gpu.plots import theme
from scq_gpu.plots._style import DARK, LIGHT

_SIZE = 5.0, 3.3  # inches: small, so that text is readable when the figure is as wide as a phone
_PAGE = {"page": ("#f5f6f9", "#0d1015"), "muted": ("#586174", "#9aa3b5")}  # by light and by dark


def draw_svg(name: str, draw: Callable[..., Any], *args: Any, size: tuple[float, float] = _SIZE, **options: Any) -> str:
    """What ``draw(*args, ax=ax, **options)`` draws, as an ``<svg>`` element labeled with the title of the axes.

    ``name`` keeps its ids apart from those of other figures.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with theme(), matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        ax = draw(*args, ax=figure.subplots(), **options)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    viewbox, svg = re.search(r'<svg[^>]*viewBox="([^"]*)"[^>]*>(.*)</svg>', buffer.getvalue(), re.DOTALL).groups()  # type: ignore[union-attr]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<image [^>]*) id="[^"]*"', r"\1", svg)  # those of equal images would be equal
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{name}-", svg)
    for variable, color in _variables(LIGHT).items():
        svg = svg.replace(color, f"var(--{variable})")
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", svg)
    return f'<svg role="img" aria-label="{html.escape(ax.get_title(loc="left"))}" viewBox="{viewbox}">{svg}</svg>'


def _variables(colors: dict[str, Any]) -> dict[str, str]:
    """The CSS variables of a figure's colors."""
    series = {f"series-{k}": color for k, color in enumerate(colors["series"])}
    return series | {"ink": colors["ink"], "grid": colors["grid"], "card": colors["face"]}


def style_variables() -> str:
    """The CSS that gives every color of the figures and of the page its value, by light and by dark."""
    schemes = []
    for i, colors in enumerate((LIGHT, DARK)):
        names = _variables(colors) | {name: pair[i] for name, pair in _PAGE.items()}
        schemes.append(":root { " + " ".join(f"--{name}: {color};" for name, color in names.items()) + " }")
    return f"{schemes[0]}\n@media (prefers-color-scheme: dark) {{ {schemes[1]} }}"
