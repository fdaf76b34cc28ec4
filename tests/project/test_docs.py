"""The documentation: its links lead somewhere, and it names everything public. test_snippets.py runs its examples."""

import re
import runpy
from pathlib import Path

import pytest

import scq_gpu as scq

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


def test_api_page_holds_every_public_name():
    page = "".join(runpy.run_path(str(DOCS / "conf.py"))["myst_substitutions"].values())
    public = [name for name in scq.__all__ if callable(getattr(scq, name))]
    missing = [name for name in public if not re.search(rf":: scq_gpu\.{name}$", page, re.MULTILINE)]
    assert not missing, f"add the modules of {missing} to API in docs/conf.py"


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
