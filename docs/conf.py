"""Sphinx configuration: ``make docs``. Nothing here needs the network."""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import files
from importlib.util import find_spec
from typing import Any

import scq_gpu

project = "scq_gpu"
author = "the scq_gpu developers"
copyright = author
version = release = scq_gpu.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "numpydoc",
    "myst_parser",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "_templates", "gallery"]  # gallery/ holds the scripts; auto_gallery/ their pages
templates_path = ["_templates"]
default_role = "py:obj"
highlight_language = "python"

myst_enable_extensions = ["dollarmath", "substitution"]
myst_heading_anchors = 3

autodoc_typehints = "none"  # the docstrings say it better
autodoc_member_order = "bysource"
autosummary_generate = False  # api.md is one page
numpydoc_show_class_members = False  # autodoc lists them
toc_object_entries_show_parents = "hide"

html_theme = "pydata_sphinx_theme"
html_title = f"scq_gpu {release}"
html_show_sourcelink = False
html_sidebars = {"**": ["pages.html"]}
html_theme_options = {
    "navbar_center": [],  # the sidebar lists every page
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
}

# Worked examples: every script of gallery/ runs at every build, and one that fails fails the build.
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "FileNameSortKey",
    "run_stale_examples": True,  # the package may have changed where the script has not
    "abort_on_example_error": True,
    "capture_repr": ("_repr_html_",),  # frames as tables; other results only where they are printed
    "image_srcset": ["2x"],
    "min_reported_time": 1e9,  # how long an example took says nothing about the package
    "write_computation_times": False,
    "download_all_examples": False,
    "notebook_extensions": set(),
    "show_signature": False,
}
html_static_path = ["_static", "gallery/_static"]
html_css_files = ["site.css", "gallery.css"]

# Formulas: MathJax in one file, with its fonts as SVG, out of a package; the pages need no network.
MATHJAX = "tex-svg.js"
mathjax_path = MATHJAX

# The API page: its sections, and the modules whose public names they hold. A name is shown once, by its shortest path.
API = {
    "encoders": ["encoders", "encoders.baselines", "encoders.deep", "encoders.base"],
    "files": ["io", "io.code_files", "encoders.memory"],
    "codes": ["_core.codes", "encoders.imported"],
    "search": ["encoders.vector_index", "search"],
    "measuring": ["metrics.evaluation", "encoders.sweeps", "encoders.scale"],
    "metrics": ["metrics"],
}


def public_names(module_name: str) -> Iterator[str]:
    """Full names of what a module makes public: its ``__all__``, or those of its names that scq_gpu exports."""
    if find_spec(f"scq_gpu.{module_name}") is None:
        return
    module = import_module(f"scq_gpu.{module_name}")
    own = (name for name in scq_gpu.__all__ if getattr(getattr(scq_gpu, name), "__module__", "") == module.__name__)
    for name in getattr(module, "__all__", own):
        exported = name in scq_gpu.__all__ and getattr(scq_gpu, name) is getattr(module, name)
        yield f"scq_gpu.{name}" if exported else f"{module.__name__}.{name}"


def reference(modules: list[str]) -> str:
    """A table of names, then the docstring of each, as MyST."""
    names = [name for module in modules for name in public_names(module)]
    blocks = [".. autosummary::\n   :nosignatures:\n", *(f"   {name}" for name in names)]
    for name in names:
        module_name, _, attribute = name.rpartition(".")
        thing = getattr(import_module(module_name), attribute)
        if not inspect.isclass(thing):
            blocks.append(f"\n.. autofunction:: {name}")
        elif issubclass(thing, Exception):
            blocks.append(f"\n.. autoexception:: {name}")
        else:
            blocks.append(f"\n.. autoclass:: {name}\n   :members:\n   :inherited-members:")
    return "\n".join(["```{eval-rst}", *blocks, "```"])


myst_substitutions = {section: reference(modules) for section, modules in API.items()}


def skip_sklearn(app: Any, what: str, name: str, thing: object, skip: bool, options: Any) -> bool | None:
    """Leave out what scikit-learn's base classes bring: it is documented there."""
    return True if (getattr(thing, "__module__", None) or "").startswith("sklearn.") else None


def tidy(app: Any, page: str, source: list[str]) -> None:
    """Drop the blank line that ends a doctest's fence, and keep mean ± deviation on one line."""
    source[0] = re.sub(r"^(```pycon\n.*?\n)\n```$", r"\1```", source[0], flags=re.MULTILINE | re.DOTALL)
    source[0] = source[0].replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")


def bundle_mathjax(app: Any, config: Any) -> None:
    """Have MathJax copied to the site."""
    (script,) = (path for path in files("sphinx-mathjax-offline") or () if path.name == MATHJAX)
    config.html_static_path.append(str(script.locate()))


def list_every_page(app: Any, page: str, source: list[str]) -> None:
    """Add the pages that no group of the sidebar names to the last, so that a new page is never without a way to it."""
    if page != "index":
        return
    listed = set(re.findall(r"^[\w/]+$", source[0], re.MULTILINE))
    left = [name for name in sorted(app.project.docnames) if "/" not in name and name not in {"index", *listed}]
    source[0] = re.sub(r"\n```\s*$", "".join(f"\n{name}" for name in left) + "\n```\n", source[0])


def setup(app: Any) -> None:
    """Connect them."""
    app.connect("config-inited", bundle_mathjax)
    app.connect("source-read", list_every_page)
    app.connect("source-read", tidy)
    app.connect("autodoc-skip-member", skip_sklearn)
