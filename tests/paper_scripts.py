"""The scripts of benchmarks/paper, which are no package, as modules."""

import importlib.util
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "benchmarks" / "paper"


def load(name):
    """A script as it is when run; the names of its neighbours (`results`, `methods`) are not left to other tests."""
    spec = importlib.util.spec_from_file_location(f"paper_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    path, known = list(sys.path), set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = path
        for other in set(sys.modules) - known:
            file = Path(getattr(sys.modules[other], "__file__", None) or "/")
            # a second import of the peers would make second classes of the same names
            if file.is_relative_to(FOLDER.parent) and not file.is_relative_to(FOLDER.parent / "peers"):
                del sys.modules[other]
    return module
