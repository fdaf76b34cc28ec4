"""Run the commands of docs/cli.md and put their output below them: python docs/make_cli.py

Lines of ``console`` blocks that begin with ``$`` are commands; whatever else such a block holds is replaced. They run
in one empty folder, in order, so a command finds the files of those before it.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).parent / "cli.md"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def main():
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "scq-gpu").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m scq_gpu.cli "$@"\n')
        (Path(folder) / "scq-gpu").chmod(0o755)
        work = Path(folder) / "work"
        work.mkdir()
        environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "COLUMNS": "150"}

        def fill(match):
            commands = [line for line in match[1].splitlines() if line.startswith("$ ")]
            return "```console\n" + "".join(run(line, work, environment) for line in commands) + "```"

        PAGE.write_text(BLOCK.sub(fill, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def run(line, work, environment):
    """Return a command and what it prints, the way a terminal shows it."""
    command = ["sh", "-c", line[2:].replace("python ", f"{sys.executable} ", 1)]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    out = subprocess.run(command, cwd=work, env=environment, check=False, **pipe).stdout
    return "\n".join([line, *without_times([text.rstrip() for text in out.splitlines()])]) + "\n"


def without_times(lines):
    """Leave out seconds and rates, in lines and in the last column of a table: they depend on the machine."""
    lines = [line for line in lines if not re.match(r" (seconds|rows per second) ", line)]
    head = next((line for line in lines if line.endswith(" seconds")), None)
    if head is None:
        return lines
    end = len(head.removesuffix("seconds").rstrip())
    return [line[:end].rstrip() if re.fullmatch(r" *(fit|seconds|[\d.]+)", line[end:]) else line for line in lines]


if __name__ == "__main__":
    main()
