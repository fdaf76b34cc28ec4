"""How much memory a fit and an encode will take, before they take it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from scq_gpu._core.bits import code_bytes
from scq_gpu._core.host_memory import worth_keeping
from scq_gpu._core.validate import check_choice, check_integer
from scq_gpu.rows.passes import _ENCODE_BYTES, FEW_PASSES, MANY_PASSES, Rows
from scq_gpu.rows.sources.base import READ_AHEAD
from scq_gpu.training.defaults import AIMS, auto_components
from scq_gpu.training.partial import LEAST_ROWS
from scq_gpu.training.starts import LEARN_ROWS, START_ROWS, start_columns

__all__ = ["MemoryEstimate", "estimate_memory"]

KINDS = ("array", "file")
_SCATTERS = 4  # d x d matrices alive at once where moments of blocks are added up,
_FACTORS = 7  # and where they are factored
_STEPS = 10  # and D x L matrices of each start in a V step


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of host memory on the CPU, beside the few hundred MB that Python and its libraries take.

    Attributes
    ----------
    fit : int
        The most that a fit takes at any moment, on top of ``rows``.
    encode : int
        The same for an encode, with its result.
    rows : int
        The rows themselves: 0 if they stay in files.
    parts : dict of str to int
        What the figures are made of: "moments" (the first pass), "basis" (principal axes), "projected" (the copy that
        training keeps; 0 where it goes through the rows themselves in each pass), "start" (while the default start is
        learned, with the sample of rows that it takes), "training" (everything else while it runs) and "codes".
    """

    fit: int
    encode: int
    rows: int
    parts: dict[str, int]

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {size / 1e6:,.0f}" for name, size in self.parts.items())
        fit, encode, rows = (f"{size / 1e6:,.0f} MB" for size in (self.fit, self.encode, self.rows))
        return f"fit {fit}, encode {encode}, beside the rows {rows} ({parts})"


def estimate_memory(
    n: int,
    d: int,
    n_bits: int,
    *,
    preserve: str = "neighbors",
    n_components: int | str | None = "auto",
    dtype: Any = "float32",
    kind: str = "array",
    n_init: int = 1,
) -> MemoryEstimate:
    """Estimate the memory of a fit and an encode on the CPU.

    A fit takes the largest of three moments: the first pass, the principal axes, and training, which keeps the axes and
    the projected rows. Only the last grows with n; from files, it does not either, beyond 512 MiB.

    Parameters
    ----------
    n, d : int
        Rows and features.
    n_bits : int
    preserve : {"neighbors", "classes"}, default="neighbors"
    n_components : int, "auto" or None, default="auto"
        Both as for the encoder.
    dtype : dtype, default="float32"
        Of the rows as they are stored.
    kind : {"array", "file"}, default="array"
        Whether they are in memory or in files (`scq_gpu.io.open_rows`).
    n_init : int, default=1
        Starts that run side by side.

    Returns
    -------
    MemoryEstimate

    Examples
    --------
    >>> import scq_gpu as scq
    >>> print(scq.estimate_memory(4_000_000, 512, 32))
    fit 4,172 MB, encode 20 MB, beside the rows 8,192 MB (moments 13, basis 15, projected 4,096,
    start 76, training 18, codes 16)
    >>> scq.estimate_memory(4_000_000, 512, 32, kind="file").fit < 200e6
    True
    """
    n, d = check_integer(n, name="n", minimum=1), check_integer(d, name="d", minimum=1)
    n_bits, n_init = check_integer(n_bits, name="n_bits", minimum=1), check_integer(n_init, name="n_init", minimum=1)
    if n_components is not None and n_components != "auto":
        check_integer(n_components, name="n_components", minimum=1)
    check_choice(kind, name="kind", choices=KINDS)
    check_choice(preserve, name="preserve", choices=AIMS)
    stored: np.dtype = np.dtype(dtype)
    if stored.kind not in "biuf":
        raise ValueError(f"dtype={dtype!r} is not one of real numbers, such as 'float32'")

    rows = Rows(np.broadcast_to(np.zeros((), dtype=stored), (n, d)))  # takes no memory, and knows its blocks
    kept_axes = auto_components(n_bits, preserve) if n_components == "auto" else n_components
    D = min(int(kept_axes or d), d, n)
    work: int = np.dtype(rows.dtype).itemsize
    read = READ_AHEAD + 1 if kind == "file" else 0

    def buffers(height: int) -> int:
        """A block in all its forms: as read, converted, and centered."""
        height = min(n, height)
        return height * d * (read * stored.itemsize + (work if stored != rows.dtype else 0) + work)

    codes = n * code_bytes(n_bits)
    few = preserve == "neighbors" or n >= LEAST_ROWS
    as_they_are = stored == rows.dtype and rows.stay_as_they_are(D, FEW_PASSES if few else MANY_PASSES)
    copy = n * (d if as_they_are else D) * work
    kept = worth_keeping(copy) if kind == "file" else not as_they_are

    def passes(wide: int, *, kept: bool) -> int:
        """What sign passes and V steps of so many columns take."""
        matrices = _STEPS * D * wide * 8 + (0 if kept else 3 * d * wide * 8)
        block = buffers(rows._block_rows) + 4 * min(n, rows._block_rows) * (wide + D * kept) * work
        return d * d * 8 + d * D * (8 + work) + matrices + block

    if preserve == "neighbors":  # rows on as many axes as bits are kept beside
        copied = 0 if n <= START_ROWS and (kept or kind == "array") else min(n, START_ROWS)
        start = min(n, START_ROWS) * n_bits * work + passes(n_init * n_bits, kept=kept)
    else:  # parts of rows that are at hand are views
        copied = 0 if kept or kind == "array" else min(n, LEARN_ROWS)
        start = passes(start_columns(n_bits, D, n_init), kept=kept)
    parts = {
        "moments": _SCATTERS * d * d * 8 + buffers(rows.tall_rows),
        "basis": _FACTORS * d * d * 8,
        "projected": copy if kept else 0,
        "start": copied * D * work + start,
        "training": passes(n_init * n_bits, kept=kept),
        "codes": codes,
    }
    fit = max(parts["moments"], parts["basis"], parts["projected"] + max(parts["start"], parts["training"]))
    taken = min(n, max(rows._block_rows, _ENCODE_BYTES // (d * work))) * d * stored.itemsize  # of a file, at a time
    encode = codes + read * taken + 2 * d * n_bits * work + buffers(rows._block_rows)
    return MemoryEstimate(fit, encode, n * d * stored.itemsize if kind == "array" else 0, parts)
