"""Run what a page of the documentation shows: Python, sessions and shell commands, in order, as a reader would.

A block that no test can run says why on the line above it, ``<!-- not run: needs a GPU -->``, where a reader sees it in
the source and this module finds it.
"""

import doctest
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n)?^```(?P<kind>python|pycon|console|sh)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, the line it begins at, and why it is not run, if it is not."""

    kind: str
    code: str
    line: int
    reason: str | None


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(match["kind"], match["code"], text.count("\n", 0, match.start("code")) + 1, match["reason"])
        for match in BLOCK.finditer(text)
    ]


def run_blocks(page: Path, folder: Path, names: dict, *, optional: set[str] = frozenset()) -> list[str]:
    """Run the blocks of a page in ``folder``, with ``names`` taken for granted; the optional libraries that lacked."""
    names, missing = dict(names), []
    for block in blocks_of(page):
        if block.reason is not None:
            continue
        where = f"{page.relative_to(ROOT)}:{block.line}"
        if block.kind in ("console", "sh"):
            run_commands(block.code, folder, where)
            continue
        try:
            file = re.match(r"# (\w+\.py)\n", block.code)
            if file:
                (folder / file[1]).write_text(block.code, encoding="utf-8")  # a block that is a file is saved as one
            with threadpool_limits(1):  # BLAS threads that spin on a busy machine take far longer than one
                run_python(block, names, where)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in optional:
                raise
            missing.append(error.name)
    for value in names.values():
        if isinstance(value, tempfile.TemporaryDirectory):
            value.cleanup()  # a session on a page need not
    return missing


def run_python(block: Block, names: dict, where: str) -> None:
    if block.kind == "python":
        exec(compile("\n" * (block.line - 1) + block.code, where, "exec"), names)
        return
    wanted = re.findall(r"^>>> (?:import|from) (\w+)", block.code, re.MULTILINE)
    for library in wanted:
        __import__(library)  # a library that lacks is a skip, not a difference in output
    test = doctest.DocTestParser().get_doctest(block.code, names, where, where, block.line - 1)
    said = []
    result = doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(test, out=said.append, clear_globs=False)
    names.update(test.globs)
    assert result.failed == 0, "".join(said)


def run_commands(code: str, folder: Path, where: str) -> None:
    """Run a block's commands, those behind ``$`` if there are any, with our ``scq-gpu``; an install is left alone."""
    lines = code.splitlines()
    shown = [line[2:] for line in lines if line.startswith("$ ")] or lines
    script = "\n".join(line for line in shown if not line.startswith("pip install"))
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name, target in (("scq-gpu", "-m scq_gpu.cli"), ("python", "")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {target} "$@"\n')
        program.chmod(0o755)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": path}
    done = subprocess.run(["sh", "-e", "-c", script], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{where}\n{script}\n{done.stdout}\n{done.stderr}"


def skip_if_missing(missing: list[str]) -> None:
    if missing:
        pytest.skip(f"the rest of the page ran; not installed: {', '.join(sorted(set(missing)))}")
