"""Public modules under their shorter names: ``scq_gpu.asymmetric``, ``from scq_gpu.baselines import ITQ``, ...

They live in the rooms of the package; here they are found by the names they have always had, and loaded when asked for.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

MODULES = {
    "asymmetric": "search.asymmetric",
    "baselines": "encoders.baselines",
    "codes": "kernels.encode",
    "evaluation": "metrics.evaluation",
    "interchange": "encoders.imported",
    "memory": "encoders.memory",
    "report": "plots.report",
    "scale": "encoders.scale",
    "sweeps": "encoders.sweeps",
}


def find(name: str) -> ModuleType:
    """``scq_gpu.name`` for a public module."""
    if name not in MODULES:
        raise AttributeError(f"module 'scq_gpu' has no attribute {name!r}")
    return importlib.import_module(f"scq_gpu.{MODULES[name]}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """``import scq_gpu.name`` for a public module: the module itself, under a second name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        if package != "scq_gpu" or name not in MODULES:
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = find(module.__name__.rpartition(".")[2])


sys.meta_path.append(_Finder())
