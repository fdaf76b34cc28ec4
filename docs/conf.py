"""Sphinx configuration: ``make docs``. Nothing here needs the network."""

import inspect
import re
from importlib.metadata import files
from operator import attrgetter
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

autodoc_typehints = "none"  # the docstrings state types
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

# Worked examples. Every build runs every script of gallery/, and a script that fails fails the build.
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "FileNameSortKey",
    "run_stale_examples": True,  # the package may have changed even if the script has not
    "abort_on_example_error": True,
    "capture_repr": ("_repr_html_",),  # frames as tables; other results only where they are printed
    "image_srcset": ["2x"],
    "min_reported_time": 1e9,  # never report the time of an example
    "write_computation_times": False,
    "download_all_examples": False,
    "notebook_extensions": set(),
    "show_signature": False,
}
html_static_path = ["_static", "gallery/_static"]
html_css_files = ["site.css", "gallery.css"]

# Formulas. A package provides MathJax in one file with SVG fonts, so the pages need no network.
MATHJAX = "tex-svg.js"
mathjax_path = MATHJAX

# The sections of the API page: public names of scq_gpu and scq_gpu.io, and all of two subpackages.
API = {
    "encoders": ["OgE", "OnE", "OPQ", "ITQ", "LSH", "PCAH", "PCARR", "SH", "SpH", "KMH", "BA"],
    "models": ["load", "ModelFileError"],
    "files": ["encode_file", "io.open_rows", "io.read_codes", "io.RowSource", "io.RowFileError"],
    "codes": ["pack", "unpack", "convert", "from_faiss"],
    "search": ["VectorIndex", "HammingIndex", "ClusterIndex", "rescore"],
    "measuring": ["evaluate", "sweep_bits", "scale_path", "write_report"],
    "metrics": [f"metrics.{name}" for name in scq_gpu.metrics.__all__],
    "plots": [f"plots.{name}" for name in scq_gpu.plots.__all__],
}


def reference(names: list[str]) -> str:
    """Return a table of names, then the docstring of each, as MyST."""
    blocks = [".. autosummary::\n   :nosignatures:\n", *(f"   scq_gpu.{name}" for name in names)]
    for name in names:
        thing = attrgetter(name)(scq_gpu)
        if not inspect.isclass(thing):
            blocks.append(f"\n.. autofunction:: scq_gpu.{name}")
        elif issubclass(thing, Exception):
            blocks.append(f"\n.. autoexception:: scq_gpu.{name}")
        else:
            blocks.append(f"\n.. autoclass:: scq_gpu.{name}\n   :members:\n   :inherited-members:")
    return "\n".join(["```{eval-rst}", *blocks, "```"])


myst_substitutions = {section: reference(names) for section, names in API.items()}


def skip_sklearn(app: Any, what: str, name: str, thing: object, skip: bool, options: Any) -> bool | None:
    """Skip members that scikit-learn's base classes define; scikit-learn documents them."""
    return True if (getattr(thing, "__module__", None) or "").startswith("sklearn.") else None


def tidy(app: Any, page: str, source: list[str]) -> None:
    """Drop the blank line at the end of a doctest's fence, and keep mean ± deviation on one line."""
    source[0] = re.sub(r"^(```pycon\n.*?\n)\n```$", r"\1```", source[0], flags=re.MULTILINE | re.DOTALL)
    source[0] = source[0].replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")


def bundle_mathjax(app: Any, config: Any) -> None:
    """Copy MathJax to the site."""
    (script,) = (path for path in files("sphinx-mathjax-offline") or () if path.name == MATHJAX)
    config.html_static_path.append(str(script.locate()))


def list_every_page(app: Any, page: str, source: list[str]) -> None:
    """Append pages that no group of the sidebar lists to the last group, so that every page can be reached."""
    if page != "index":
        return
    listed = {"index", *re.findall(r"^[\w/]+$", source[0], re.MULTILINE)}
    listed_by_glob = re.compile(r"results/\w+|auto_gallery/.*")
    left = [name for name in sorted(app.project.docnames - listed) if not listed_by_glob.fullmatch(name)]
    source[0] = re.sub(r"\n```\s*$", "".join(f"\n{name}" for name in left) + "\n```\n", source[0])


def setup(app: Any) -> None:
    """Connect the functions above to Sphinx's events."""
    app.connect("config-inited", bundle_mathjax)
    app.connect("source-read", list_every_page)
    app.connect("source-read", tidy)
    app.connect("autodoc-skip-member", skip_sklearn)
