"""The engines for NumPy arrays: the native core in each instruction set that runs here, and array operations."""

import pytest

from scq_gpu.kernels import native

INSTRUCTION_SETS = tuple(native.core.available()) if native.core is not None else ()
ENGINES = (*(INSTRUCTION_SETS or ("native",)), "numpy")


def use_engine(name, monkeypatch):
    """Have NumPy arrays go to this engine until the test ends: an instruction set, "native" (the best) or "numpy"."""
    if name == "numpy":
        monkeypatch.setattr(native, "core", None)
    elif native.core is None:
        pytest.skip(f"there is no native core: {native.missing}")
    elif name != "native":
        monkeypatch.setattr(_Chosen(), "name", name)


class _Chosen:
    """The instruction set in use, as an attribute that monkeypatch sets, and sets back."""

    @property
    def name(self):
        return native.core.in_use()

    @name.setter
    def name(self, name):
        native.core.use(name)
