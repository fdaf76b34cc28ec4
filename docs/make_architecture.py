"""Draw the picture of docs/architecture.md from the imports as they are: rooms, layers, and who imports whom.

python docs/make_architecture.py          # writes docs/images/architecture.svg, prints the figures of the layout
python docs/make_architecture.py --check  # fails if the picture is not that of the imports
"""

from __future__ import annotations

import functools
import sys
import tomllib
from collections import Counter
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
PURPOSE = {
    "cli": "commands, no maths",
    "plots": "pictures, the report page",
    "encoders": "what you fit",
    "metrics": "how good codes are",
    "training": "the maths of a fit",
    "io": "models, codes of whole files, other software",
    "search": "codes near a query",
    "rows": "data in blocks",
    "kernels": "compiled loops, and which of them runs",
    "_core": "arrays, devices, checks, the bit contract",
}
WIDTH, ROW, BOX, GAP = 900, 84, 52, 24


def layers() -> list[list[str]]:
    """The rooms of each layer, from the contract in pyproject.toml."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = settings["tool"]["importlinter"]["contracts"][0]
    return [[room.strip().removeprefix("scq_gpu.") for room in layer.split("|")] for layer in contract["layers"]]


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports_between(graph: grimp.ImportGraph) -> Counter[tuple[str, str]]:
    """How many modules of one room import something of another."""
    pairs = Counter()
    for module in graph.modules:
        rooms = {room_of(other) for other in graph.find_modules_directly_imported_by(module)}
        pairs.update((room_of(module), room) for room in rooms if room in PURPOSE and room != room_of(module))
    return Counter({pair: count for pair, count in pairs.items() if pair[0] in PURPOSE})


def longest_chain(graph: grimp.ImportGraph) -> tuple[str, ...]:
    """The longest chain of imports, the package's own ``__init__``, which gathers the public names, aside."""

    @functools.cache
    def chain(module: str) -> tuple[str, ...]:
        below = (chain(other) for other in graph.find_modules_directly_imported_by(module) if other != "scq_gpu")
        return (module, *max(below, key=lambda found: (len(found), found), default=()))

    return max(map(chain, graph.modules - {"scq_gpu"}), key=lambda found: (len(found), found))


def draw(graph: grimp.ImportGraph) -> str:
    """The picture as SVG text, readable on a light and on a dark page."""
    place, boxes, lines = {}, [], []
    for level, rooms in enumerate(layers()):
        width = (WIDTH - GAP * (len(rooms) + 1)) / len(rooms)
        for column, room in enumerate(rooms):
            x, y = GAP + column * (width + GAP), 10 + level * ROW
            place[room] = x, y, width
            boxes.append(
                f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{BOX}" rx="6"/>'
                f'<text x="{x + width / 2:.0f}" y="{y + 22}" class="room">{room}/</text>'
                f'<text x="{x + width / 2:.0f}" y="{y + 41}">{PURPOSE[room]}</text>'
            )
    for (upper, lower), count in sorted(imports_between(graph).items()):
        (x1, y1, w1), (x2, y2, w2) = place[upper], place[lower]
        middle = min(max(x1 + w1 / 2, x2 + 20), x2 + w2 - 20)
        start = min(max(middle, x1 + 10), x1 + w1 - 10)
        lines.append(
            f'<path d="M{start:.0f} {y1 + BOX} L{middle:.0f} {y2}" stroke-width="{0.6 + count / 6:.1f}">'
            f"<title>{upper} imports {lower}: {count} modules</title></path>"
        )
    height = 10 + len(layers()) * ROW
    style = (
        "rect{fill:#eef3f8;stroke:#4477aa} text{font:13px sans-serif;text-anchor:middle;fill:#222}"
        " .room{font-weight:bold} path{stroke:#88a;fill:none;opacity:.55}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="Rooms of scq_gpu and their imports"><style>{style}</style>'
        f'<rect x="0" y="0" width="{WIDTH}" height="{height}" style="fill:#fff;stroke:none"/>'
        + "".join([*lines, *boxes])
        + "</svg>\n"
    )


def main(check: bool) -> int:
    graph = grimp.build_graph("scq_gpu", cache_dir=None)
    picture = draw(graph)
    if check:
        same = PICTURE.read_text() == picture
        print("the picture is that of the imports" if same else "run python docs/make_architecture.py and commit")
        return 0 if same else 1
    PICTURE.write_text(picture)
    chain = longest_chain(graph)
    entries = [path for path in (ROOT / "scq_gpu").iterdir() if path.name != "__pycache__"]
    lines = sum(len(path.read_text().splitlines()) for path in (ROOT / "scq_gpu").rglob("*.py"))
    print(f"{len(entries)} entries, {len(layers())} layers, {len(graph.modules)} modules, {lines:,} lines")
    print(f"longest chain of imports: {len(chain)}\n  " + "\n  ".join(chain))
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
