"""How much memory this process can still have, and what that means for rows that could be kept."""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path
from typing import Final

_CGROUPS = Path("/sys/fs/cgroup")

KEPT_BYTES: Final = 512 << 20
KEPT_SHARE: Final = 0.25
"""Rows read from files stay in memory, projected, where they take no more than both of these."""


def worth_keeping(n_bytes: int) -> bool:
    """Whether rows of files may stay in memory: at most 512 MiB, and at most a quarter of what is available."""
    available = available_bytes()
    return n_bytes <= KEPT_BYTES and (available is None or n_bytes <= KEPT_SHARE * available)


def available_bytes() -> int | None:
    """Memory that can still be had without swapping, by the machine and by the container; None where unknown."""
    return min((figure for figure in (_machine_bytes(), _container_bytes()) if figure is not None), default=None)


def check_room(n_bytes: int, what: str, *, cure: str = "") -> None:
    """Refuse to allocate what this process cannot have: better a sentence now than a killed process later."""
    available = available_bytes()
    if available is not None and n_bytes > available:
        raise MemoryError(
            f"{what} would take {n_bytes / 2**30:,.1f} GiB of memory, and {available / 2**30:,.1f} GiB are available"
            f"{'; ' if cure else ''}{cure}"
        )


def _machine_bytes() -> int | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    if importlib.util.find_spec("psutil") is not None:
        import psutil

        return int(psutil.virtual_memory().available)
    return None


def _container_bytes() -> int | None:
    """What the limits of the control groups (version 2) above this process leave; files in cache do not count."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own = _CGROUPS / next(line for line in lines if line.startswith("0::"))[3:].lstrip("/")
        groups = [group for group in (own, *own.parents) if group.is_relative_to(_CGROUPS)]
        return min((room for room in map(_room, groups) if room is not None), default=None)
    return None


def _room(group: Path) -> int | None:
    limit = group / "memory.max"
    if not limit.exists() or limit.read_text().strip() == "max":
        return None
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    cached = int(stat["active_file"]) + int(stat["inactive_file"])
    return max(0, int(limit.read_text()) - int((group / "memory.current").read_text()) + cached)
