"""The documentation: its links lead somewhere, and it names everything public. test_snippets.py runs its examples."""

import re
import runpy
from pathlib import Path

import pytest

import scq_gpu as scq
from scq_gpu.rows.sources import FORMATS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *(page for page in sorted(DOCS.rglob("*.md")) if "_build" not in page.parts),
]
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)")  # [text](target) and ![text](target "title")
FENCE = re.compile(r"^(```+|~~~+).*?^\1", re.MULTILINE | re.DOTALL)


def relative_links(text):
    """Targets of Markdown links outside code, without their fragment."""
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))
    targets = (target.partition("#")[0] for target in LINK.findall(prose))
    return [target for target in targets if target and not re.match(r"[a-z][a-z0-9+.-]*:", target)]


def test_relative_links_sees_links_and_nothing_else():
    text = """[a](a.md) ![b](images/b.png "title") [c](c.md#part) [d](#here) [e](https://x.org/e.md) `[f](f.md)`
```python
x[0](g.md)
```
[h](mailto:h@x.org) [i](<i.md>)"""
    assert relative_links(text) == ["a.md", "images/b.png", "c.md", "i.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_point_at_files(page):
    links = relative_links(page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_api_page_lists_exactly_the_public_names():
    page = "".join(runpy.run_path(str(DOCS / "conf.py"))["myst_substitutions"].values())
    listed = re.findall(r"^\.\. auto\w+:: (scq_gpu\.[\w.]+)$", page, re.MULTILINE)
    modules = {"": scq, "io.": scq.io, "metrics.": scq.metrics, "plots.": scq.plots}
    public = {
        f"scq_gpu.{prefix}{name}"
        for prefix, module in modules.items()
        for name in module.__all__
        if callable(thing := getattr(module, name)) and not (prefix and thing is getattr(scq, name, None))
    }
    assert len(listed) == len(set(listed))
    assert set(listed) == public, "docs/conf.py: list every public name in API, and no other"


def test_pages_list_every_metric_method_and_file_format():
    """Whoever adds one finds out here which page has to name it."""
    text = {page: (DOCS / f"{page}.md").read_text(encoding="utf-8") for page in ("metrics", "baselines", "big_data")}
    assert [name for name in scq.metrics.__all__ if not re.search(rf"`{name}\b", text["metrics"])] == []
    public = [getattr(scq, name) for name in scq.__all__]
    methods = [x.__name__ for x in public if getattr(x, "__module__", "").startswith("scq_gpu.encoders.baselines.")]
    assert len(methods) > 7
    assert [name for name in methods if f"| `{name}` |" not in text["baselines"]] == []
    for words in (text["big_data"], scq.io.open_rows.__doc__):
        assert [ending for ending in FORMATS if f"`{ending}`" not in words] == []


def groups_of_sidebar():
    """Caption and pages of every table of contents on the home page."""
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    trees = re.findall(r"^```\{toctree\}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return {
        re.search(r":caption: (\w+)", tree)[1]: [line for line in tree.splitlines() if line and line[0] != ":"]
        for tree in trees
    }


def test_sidebar_has_five_groups_and_every_page_once():
    groups = groups_of_sidebar()
    assert list(groups) == ["Start", "Guides", "Databases", "Results", "Reference"]
    listed = [page for pages in groups.values() for page in pages if "*" not in page]
    assert len(listed) == len(set(listed))
    made = {"auto_gallery/index"}
    assert [page for page in listed if page not in made and not (DOCS / f"{page}.md").exists()] == []
    folders = [page for page in (DOCS / "databases").glob("*.md") if f"databases/{page.stem}" not in listed]
    assert folders == []  # other folders have a glob, and pages of docs/ itself go to the last group


def test_site_needs_no_network():
    text = (DOCS / "conf.py").read_text(encoding="utf-8")
    assert "mathjax_path = MATHJAX" in text
    assert "://" not in text


def test_reliability_names_tests_that_there_are():
    named = re.findall(r"`(tests/[\w/]+\.py)?::(test_\w+)`", (DOCS / "reliability.md").read_text(encoding="utf-8"))
    assert len(named) > 40
    path = ""
    for file, test in named:
        path = file or path  # "::test" is of the file before it
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path} has no {test}"


FOLDERS = "|".join(path.name for path in (ROOT / "scq_gpu").iterdir() if path.is_dir() and path.name != "__pycache__")
NAMED = re.compile(rf"\b((?:scq_gpu/)?(?:{FOLDERS})/[\w/]+\.(?:py|cu|h)|(?:tests|benchmarks|docs)/[\w/]+\.(?:py|md))\b")


@pytest.mark.parametrize("folder", ["docs", "scq_gpu", "benchmarks"])
def test_files_named_in_prose_exist(folder):
    """Pages, docstrings and comments name no file that was moved or deleted."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.*")):
        if path.suffix not in {".md", ".py", ".cu", ".h"} or "_build" in path.parts or "auto_gallery" in path.parts:
            continue
        for name in NAMED.findall(path.read_text(encoding="utf-8")):
            if not any((ROOT / place / name).exists() for place in ("", "scq_gpu", "benchmarks")):
                found.append(f"{path.relative_to(ROOT)}: {name}")
    assert found == []
