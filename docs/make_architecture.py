"""Draw the diagram of docs/architecture.md from the imports as they are, and trace its walks through real calls.

python docs/make_architecture.py          # writes the diagram and the table of walks, prints sizes
python docs/make_architecture.py --check  # fails if either is out of date, or a walk is too long
"""

from __future__ import annotations

import functools
import re
import sys
import tempfile
import threading
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
PAGE = ROOT / "docs" / "architecture.md"
WALKS = re.compile(r"(?<=<!-- walks -->\n).*?(?=<!-- end of walks -->)", re.DOTALL)
LONGEST = {"`OgE(64).fit(X)`": 12, "`encoder.encode(X)`": 8, "`HammingIndex.search`": 8}
PURPOSE = {
    "cli": "commands, no maths",
    "plots": "pictures, the report page",
    "index": "vectors, found by codes and re-ranked",
    "encoders": "what you fit",
    "metrics": "how good codes are",
    "training": "the maths of a fit",
    "io": "models, codes of whole files, other software",
    "search": "codes near a query",
    "rows": "data in blocks",
    "kernels": "loops over rows and codes, and which engine runs",
    "_core": "arrays, devices, checks, the bit contract",
}
WIDTH, ROW, BOX, GAP = 900, 84, 52, 24


def layers() -> list[list[str]]:
    """Return the subpackages of each layer, from the contract in pyproject.toml."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = settings["tool"]["importlinter"]["contracts"][0]
    return [[name.strip().removeprefix("scq_gpu.") for name in layer.split("|")] for layer in contract["layers"]]


def subpackage_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports_between(graph: grimp.ImportGraph) -> Counter[tuple[str, str]]:
    """Count the modules of one subpackage that import something of another."""
    pairs = Counter()
    for module in graph.modules:
        mine, used = subpackage_of(module), map(subpackage_of, graph.find_modules_directly_imported_by(module))
        pairs.update((mine, other) for other in set(used) if other in PURPOSE and other != mine)
    return Counter({pair: count for pair, count in pairs.items() if pair[0] in PURPOSE})


def longest_chain(graph: grimp.ImportGraph) -> tuple[str, ...]:
    """Return the longest chain of imports, without the package's own ``__init__``, which gathers the public names."""

    @functools.cache
    def chain(module: str) -> tuple[str, ...]:
        below = (chain(other) for other in graph.find_modules_directly_imported_by(module) if other != "scq_gpu")
        return (module, *max(below, key=lambda found: (len(found), found), default=()))

    return max(map(chain, graph.modules - {"scq_gpu"}), key=lambda found: (len(found), found))


def draw(graph: grimp.ImportGraph) -> str:
    """Draw the diagram as SVG text, readable on a light and on a dark page."""
    place, boxes, lines = {}, [], []
    for level, names in enumerate(layers()):
        width = (WIDTH - GAP * (len(names) + 1)) / len(names)
        for column, name in enumerate(names):
            x, y = GAP + column * (width + GAP), 10 + level * ROW
            place[name] = x, y, width
            boxes.append(
                f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{BOX}" rx="6"/>'
                f'<text x="{x + width / 2:.0f}" y="{y + 22}" class="name">{name}/</text>'
                f'<text x="{x + width / 2:.0f}" y="{y + 41}">{PURPOSE[name]}</text>'
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
        " .name{font-weight:bold} path{stroke:#88a;fill:none;opacity:.55}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="Subpackages of scq_gpu and their imports"><style>{style}</style>'
        f'<rect x="0" y="0" width="{WIDTH}" height="{height}" style="fill:#fff;stroke:none"/>'
        + "".join([*lines, *boxes])
        + "</svg>\n"
    )


def trace(job: Callable[[], object]) -> list[str]:
    """Return the modules of the package whose functions a call enters, in the order of their first."""
    seen: dict[str, None] = {}

    def enter(frame: object, event: str, arg: object) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("scq_gpu."):
            seen.setdefault(name.removeprefix("scq_gpu."))

    threading.setprofile(enter)
    sys.setprofile(enter)
    try:
        job()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(seen)


def walks() -> dict[str, list[str]]:
    """Trace the main jobs on rows of a common size, each for the second time: nothing is imported or compiled."""
    import numpy as np
    from threadpoolctl import threadpool_limits

    import scq_gpu as scq

    X = np.random.default_rng(0).standard_normal((3000, 512), dtype=np.float32)
    encoder = scq.OgE(64, random_state=0).fit(X)
    codes = encoder.encode(X)
    index, vectors = scq.HammingIndex(codes, n_bits=64), scq.VectorIndex(X, n_bits=64)
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1):
        path = f"{folder}/model.safetensors"
        jobs = {
            "`OgE(64).fit(X)`": lambda: scq.OgE(64, random_state=0).fit(X),
            '`OgE(64, preserve="classes").fit(X)`': lambda: scq.OgE(64, preserve="classes", random_state=0).fit(X),
            "`encoder.encode(X)`": lambda: encoder.encode(X),
            "`HammingIndex.search`": lambda: index.search(codes, k=10),
            "`VectorIndex.search`": lambda: vectors.search(X, k=10),
            "`encoder.save(path)`": lambda: encoder.save(path),
            "`scq.load(path)`": lambda: scq.load(path),
        }
        for job in jobs.values():
            job()
        return {name: trace(job) for name, job in jobs.items()}


def table(found: dict[str, list[str]]) -> str:
    """Return the walks as a Markdown table."""
    rows = [f"| {name} | {len(modules)} | {', '.join(f'`{m}`' for m in modules)} |" for name, modules in found.items()]
    return "\n".join(["| call | modules | in the order of their first call |", "|---|---|---|", *rows, ""])


def main(check: bool) -> int:
    graph = grimp.build_graph("scq_gpu", cache_dir=None)
    found = walks()
    too_long = [f"{name} enters {len(found[name])} modules, at most {most}" for name, most in LONGEST.items()]
    too_long = [line for line, (name, most) in zip(too_long, LONGEST.items(), strict=True) if len(found[name]) > most]
    picture, page = draw(graph), WALKS.sub(lambda _: table(found), PAGE.read_text())
    if check:
        same = PICTURE.read_text() == picture and PAGE.read_text() == page
        print("the diagram and the walks are those of the code" if same else "run python docs/make_architecture.py")
        print(*too_long, sep="\n", end="")
        return 0 if same and not too_long else 1
    PICTURE.write_text(picture)
    PAGE.write_text(page)
    chain = longest_chain(graph)
    entries = [path for path in (ROOT / "scq_gpu").iterdir() if path.name != "__pycache__"]
    lines = sum(len(path.read_text().splitlines()) for path in (ROOT / "scq_gpu").rglob("*.py"))
    print(f"{len(entries)} entries, {len(layers())} layers, {len(graph.modules)} modules, {lines:,} lines")
    print(f"longest chain of imports: {len(chain)}\n  " + "\n  ".join(chain))
    print(*(f"{len(modules):3} modules: {name}" for name, modules in found.items()), *too_long, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
