"""Peak memory, measured in a process of its own."""

import os
import subprocess
import sys

import pytest

CAN_FORGET_PEAKS = os.access("/proc/self/clear_refs", os.W_OK)
needs_peaks = pytest.mark.skipif(not CAN_FORGET_PEAKS, reason="measures with Linux's /proc")

PEAK = """
def memory(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name)) * 1024

def peak(function):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # forget the peak so far
    before = memory("VmRSS:")
    result = function()
    return memory("VmHWM:") - before, result
"""


def measure(script: str, *arguments: str) -> list[float]:
    """The numbers that a script prints, which may call ``peak(function)``: bytes at the most, and the result.

    glibc by and by keeps freed arrays for the next ones, which would hide what those take; a fixed threshold has them
    given back at once.
    """
    command = [sys.executable, "-c", PEAK + script, *map(str, arguments)]
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    return [
        float(word)
        for word in subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout.split()
    ]
