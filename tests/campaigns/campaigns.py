"""The campaigns. Each takes a budget and a seed, and prints what was tried and what failed.

PYTHONPATH=tests python -m campaigns.campaigns --scale 1      in full, as ``make campaign`` does
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from campaigns.attack import Figures
from campaigns.crowds import soak, threads
from campaigns.fuzzed_files import FORMATS, fuzz
from campaigns.indexes import cycles, hostile_headers, loads_beside_savers, machine
from campaigns.interrupts import command_line, interrupts
from campaigns.kills import kill_encodes, kill_saves
from campaigns.properties import properties
from campaigns.surroundings import (
    files_and_links,
    forks,
    full_disk,
    locales,
    outputs_over_inputs,
    strange_arrays,
    streams,
    widths,
)


def everything(scale: float, seed: int) -> dict[str, Callable[[], Figures]]:
    """The campaigns by name; ``scale`` 1 is in full."""

    def many(full: int) -> int:
        return max(2, int(full * scale))

    return {
        **{f"fuzz {kind}": lambda kind=kind: fuzz(kind, many(500), seed) for kind in FORMATS},
        "kill encode_file": lambda: kill_encodes(many(50), seed),
        "kill saves": lambda: kill_saves(many(50), seed),
        "threads": lambda: threads(60 * scale, seed),
        "interrupt": lambda: interrupts(many(10), seed),
        "interrupt command line": lambda: command_line(many(12), seed),
        "properties": lambda: properties(many(300), seed),
        "files and links": lambda: files_and_links(many(180), seed),
        "outputs over inputs": lambda: outputs_over_inputs(seed),
        "streams": lambda: streams(many(24), seed),
        "widths": lambda: widths(max(1, int(1 / scale)), seed),
        "locales": lambda: locales(seed),
        "strange arrays": lambda: strange_arrays(seed),
        "forks": lambda: forks(many(40), seed),
        "full disk": lambda: full_disk(seed),
        "index operations": lambda: machine(many(2000), seed),
        "index loads beside savers": lambda: loads_beside_savers(many(2000), seed),
        "index cycles": lambda: cycles(many(300), seed),
        "index headers": lambda: hostile_headers(many(3000), seed),
        "soak": lambda: soak(60 * scale, seed),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="campaigns whose names contain this")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {}
    for name, run in everything(options.scale, options.seed).items():
        if options.only in name:
            started = time.monotonic()
            figures = run()
            seconds = round(time.monotonic() - started)
            failed = len(figures.failures)
            results[name] = {"tried": figures.tried, "failed": failed, "notes": figures.notes, "seconds": seconds}
            print(f"{name:26} {figures} ({seconds} s)", flush=True)
            for failure in figures.failures[:5]:
                print(f"    {failure[:400]}", flush=True)
            if options.json:
                options.json.write_text(json.dumps(results, indent=1) + "\n")
    tried, failed = (sum(result[key] for result in results.values()) for key in ("tried", "failed"))
    print(f"{'all':26} tried {tried:,}, failed {failed}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
