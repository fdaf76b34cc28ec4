"""A matplotlib figure as SVG that takes its colours and its font from the page it stands in."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable
from typing import Any

from scq_gpu.plots import theme
from scq_gpu.plots._style import DARK, LIGHT

_SIZE = 5.0, 3.3  # inches: small, so that text is readable when the figure is as wide as a phone
_PAGE = {
    "light": {"page": "#f5f6f9", "muted": "#586174"},
    "dark": {"page": "#0d1015", "muted": "#9aa3b5"},
}


def draw_svg(draw: Callable[[Any], object], *, name: str, title: str) -> str:
    """What ``draw(ax)`` draws, as an ``<svg>`` element; ``name`` keeps its ids apart from those of other figures."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with theme(), matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure = Figure(figsize=_SIZE, layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure.subplots())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    viewbox, content = re.search(r'<svg[^>]*viewBox="([^"]*)"[^>]*>(.*)</svg>', svg, re.DOTALL).groups()  # type: ignore[union-attr]
    content = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", content, flags=re.DOTALL)
    label = html.escape(title)
    return f'<svg role="img" aria-label="{label}" viewBox="{viewbox}">{_themed(_renamed(content, name))}</svg>'


def style_variables() -> str:
    """The CSS that gives every colour of the figures and of the page its value, by light and by dark."""
    blocks = []
    for scheme, colours in (("light", LIGHT), ("dark", DARK)):
        names = {"ink": colours["ink"], "grid": colours["grid"], "card": colours["face"], **_PAGE[scheme]}
        names |= {f"series-{k}": colour for k, colour in enumerate(colours["series"])}
        names |= {"right": colours["series"][2], "wrong": colours["series"][1]}
        blocks.append(":root { " + " ".join(f"--{key}: {value};" for key, value in names.items()) + " }")
    light, dark = blocks
    return f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}"


def _renamed(svg: str, name: str) -> str:
    """Ids, and what points at them, with the figure's name in front."""
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    return re.sub(r'href="#', f'href="#{name}-', svg)


def _themed(svg: str) -> str:
    """Colours as CSS variables, and the font of the page."""
    names = {colour: f"series-{k}" for k, colour in enumerate(LIGHT["series"])}
    names |= {LIGHT["ink"]: "ink", LIGHT["grid"]: "grid", LIGHT["face"]: "card"}
    for colour, variable in names.items():
        svg = svg.replace(colour, f"var(--{variable})")
    return re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", svg)
