"""Counters of the stand-in for CUDA: what CuPy has asked of the device.

    import standin
    with standin.counting() as n:
        work()
    n["kernel launches"], n["sync stream"], n["copy device to host, bytes"], n["kernel cupy_sum"]

build.py copies this file to the site-packages of the environment it makes, with the path of the library filled in. So
``import standin`` works where CuPy runs on the stand-in, and nowhere else.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
from collections.abc import Iterator

_library = ctypes.CDLL("libcuda.so.1")
_library.standin_counters.restype = ctypes.c_size_t
_library.standin_counters.argtypes = (ctypes.c_char_p, ctypes.c_size_t)


def read() -> collections.Counter[str]:
    """Everything counted since the process began."""
    size = 0
    buffer = ctypes.create_string_buffer(1)
    while (needed := _library.standin_counters(buffer, size)) > size:  # another thread may count meanwhile
        size = needed
        buffer = ctypes.create_string_buffer(size)
    lines = (line.rsplit("\t", 1) for line in buffer.value.decode().splitlines())
    return collections.Counter({name: int(number) for name, number in lines})


@contextlib.contextmanager
def counting() -> Iterator[collections.Counter[str]]:
    """A counter that holds, after the block, what was counted in it."""
    counts: collections.Counter[str] = collections.Counter()
    before = read()
    try:
        yield counts
    finally:
        counts.update({name: n - before[name] for name, n in read().items() if n != before[name]})
