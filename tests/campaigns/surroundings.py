"""What surrounds a call: strange files, links, outputs over inputs, streams, widths, locales, forks and full disks."""

import contextlib
import io
import itertools
import locale
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from strange_files import STRANGE, Hung, put, within

import scq_gpu as scq
from campaigns.attack import BITS, ENV, Figures, encoder, rows
from campaigns.fuzzed_files import seeds, targets, use
from scq_gpu.cli import main

FILES = ("npy", "npz", "fbin", "fvecs", "parquet", "hdf5", "zarr2", "zarr3", "model")
COMMANDS = {
    "fit": ("fit x.npy --bits 4 -o OUT.safetensors", ["x.npy"]),
    "sweep": ("sweep x.npy --bits 4 -o OUT.csv", ["x.npy"]),
    "encode": ("encode m.safetensors x.npy -o OUT.npy", ["m.safetensors", "x.npy"]),
    "search": ("search m.safetensors c.npy x.npy -o OUT.npz", ["m.safetensors", "c.npy", "x.npy"]),
    "export": ("export m.safetensors --to faiss -o OUT.faiss", ["m.safetensors"]),
    "export codes": ("export c.npy --to cuvs -o OUT.npy", ["c.npy"]),
    "report": ("report m.safetensors --data x.npy --fast -o OUT.html", ["m.safetensors", "x.npy"]),
}
PRINTING = (
    "info m.safetensors",
    "search m.safetensors c.npy x.npy -k 200",
    "evaluate m.safetensors --data x.npy",
    "--help",
)


def files_and_links(count: int, seed: int) -> Figures:
    """Something strange in the place of a file, or of a file of a store: an error that names it, at once."""
    figures, rng = Figures(), np.random.default_rng(seed)
    model = encoder()
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        good = {kind: path for kind, path in seeds(folder).items() if kind in FILES}
        for kind, strange in itertools.islice(itertools.cycle(itertools.product(FILES, STRANGE)), count):
            found = targets(good[kind])
            victim = found[int(rng.integers(0, len(found)))]
            kept = folder / "kept"
            victim.rename(kept)
            put(strange, victim)
            figures.tried += 1
            try:
                with within(20):
                    use(kind, good[kind], model)
                figures.failures.append(f"{strange} in the place of {victim.name} of {kind} was read")
            except (ValueError, OSError) as error:
                if folder.name not in str(error) or len(str(error)) > 600:
                    figures.failures.append(f"{strange} in {kind}: {str(error)[:300]}")
            except (Hung, Exception) as error:
                figures.failures.append(f"{strange} in the place of {victim.name} of {kind}: {error!r}")
            victim.unlink()
            kept.rename(victim)
    return figures


@contextlib.contextmanager
def _workplace() -> Iterator[Path]:
    """A folder with rows, codes and a model, in which commands run."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as name:
        folder, model = Path(name), encoder()
        np.save(folder / "x.npy", rows())
        np.save(folder / "c.npy", model.encode(rows()))
        model.save(folder / "m.safetensors")
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def _run(line: str) -> tuple[int, str, str]:
    """Exit code and streams of a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(line.split())
    return code, out.getvalue(), err.getvalue()


def outputs_over_inputs(seed: int) -> Figures:
    """Every command, its output the same file as each of its inputs: by name, by a link, by a second name."""
    figures = Figures()
    with _workplace() as folder:
        for command, (line, inputs) in COMMANDS.items():
            ending = next(word for word in line.split() if word.startswith("OUT"))
            for source, link in itertools.product(inputs, (os.symlink, os.link, shutil.copy)):
                link(source, ending)
                before = _content(folder)
                code, _, err = _run(f"{line} --overwrite -q")
                figures.tried += 1
                refused = code == 1 and "is read" in err and _content(folder) == before
                if refused == (link is shutil.copy):
                    figures.failures.append(f"{command} over {source} by {link.__name__}: exit {code}, {err[:200]!r}")
                Path(ending).unlink()
                for extra in folder.glob("OUT*"):
                    extra.unlink()
    return figures


def streams(count: int, seed: int) -> Figures:
    """Standard streams that are closed, full, or left after a line: an exit code, and no traceback."""
    figures = Figures()
    ends = {">&-": {4}, "2>&-": {0}, "<&-": {0}, "<&- >&- 2>&-": {4}, "| head -n 1": {0, 141}, ">/dev/full": {4}}
    cases = itertools.cycle(itertools.product(ends, PRINTING))
    with _workplace() as folder:
        for end, line in itertools.islice(cases, count):
            command = f"set -o pipefail; {shlex.quote(sys.executable)} -m scq_gpu.cli {line} {end}"
            done = subprocess.run(
                ["bash", "-c", command], cwd=folder, env=ENV, capture_output=True, text=True, check=False, timeout=300
            )
            figures.tried += 1
            if done.returncode not in ends[end] or "Traceback" in done.stderr:
                figures.failures.append(f"{line} {end}: exit {done.returncode}, {done.stderr[-300:]!r}")
    return figures


def widths(step: int, seed: int) -> Figures:
    """Terminals of 40 to 200 columns: every answer is printed."""
    figures, before = Figures(), os.environ.get("COLUMNS")
    with _workplace():
        try:
            for columns, k in itertools.product(range(40, 201, step), (1, 30, 60)):
                os.environ["COLUMNS"] = str(columns)
                code, out, err = _run(f"search m.safetensors c.npy x.npy -k {k} -q")
                figures.tried += 1
                answers = len(re.findall(r"^[\d ]+$", out, re.MULTILINE))
                if (code, answers, err) != (0, 10 * k, ""):
                    figures.failures.append(f"{columns} columns, k={k}: exit {code}, {answers} answers, {err[:200]!r}")
        finally:
            os.environ.pop("COLUMNS")
            if before is not None:
                os.environ["COLUMNS"] = before
    return figures


def locales(seed: int) -> Figures:
    """A locale that writes 0,5 for a half, where one is installed: files and answers are the same."""
    figures, before = Figures(), locale.setlocale(locale.LC_ALL)
    known = ("de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8", "pt_BR.UTF-8", "ru_RU.UTF-8")

    def answers() -> list[Any]:
        found = _run("search m.safetensors c.npy x.npy -o found.csv -q --overwrite"), Path("found.csv").read_bytes()
        model = scq.load("m.safetensors")
        return [found, _run("info m.safetensors --json"), model.encode(rows()).tobytes(), model.loss_curve_]

    with _workplace():
        expected = answers()
        for name in known:
            with contextlib.suppress(locale.Error):
                locale.setlocale(locale.LC_ALL, name)
                figures.tried += 1
                if answers() != expected:
                    figures.failures.append(f"another answer under {name}")
        locale.setlocale(locale.LC_ALL, before)
    figures.notes = "" if figures.tried else "no such locale is installed"
    return figures


def strange_arrays(seed: int) -> Figures:
    """Arrays that lack values, or are none: refused by a ValueError or TypeError, or worked with as they are."""
    import pandas as pd
    import scipy.sparse

    X, figures, model = rows(), Figures(), encoder()
    frame = pd.DataFrame((9 * X).astype(int)).astype("Int64")
    frame.iloc[3, 2] = pd.NA
    holes = pd.DataFrame(X).mask(X > 2)
    refused = {
        "sparse": scipy.sparse.csr_matrix(X),
        "sparse array": scipy.sparse.coo_array(X),
        "masked": np.ma.masked_array(X, mask=X > 1),
        "masked rows": list(np.ma.masked_array(X, mask=X > 1)),
        "missing integers": frame,
        "missing floats": holes,
        "objects": X.astype(object),
        "words": X.astype(str),
    }
    calls: dict[str, Callable[[Any], Any]] = {
        "fit": lambda x: scq.OgE(4, random_state=0).fit(x),
        "encode": model.encode,
        "transform": model.transform,
        "evaluate": lambda x: scq.evaluate(model, X[:5], x),
        "exact_neighbors": lambda x: scq.metrics.exact_neighbors(X[:5], x),
        "VectorIndex": lambda x: scq.VectorIndex(x, encoder=model),
        "search": lambda x: scq.HammingIndex(model.encode(X), BITS).search_asymmetric(model, x, 3),
    }
    for (kind, x), (name, call) in itertools.product(refused.items(), calls.items()):
        figures.tried += 1
        try:
            call(x)
            figures.failures.append(f"{name} took {kind}")
        except (ValueError, TypeError):
            pass
        except Exception as error:
            figures.failures.append(f"{name} of {kind}: {error!r}")
    for kind, x in {
        "sparse frame": pd.DataFrame(X).astype(pd.SparseDtype("float32", 0.0)),
        "unmasked": np.ma.array(X),
    }.items():
        figures.tried += 1
        if (np.asarray(model.encode(x)) != model.encode(X)).any():
            figures.failures.append(f"other codes of {kind}")
    return figures


FORK = """
import signal, sys, threading, warnings
import numpy as np, os, scq_gpu as scq
warnings.simplefilter("ignore")
rng = np.random.default_rng(int(sys.argv[2]))
X = rng.standard_normal((1000, 24)).astype(np.float32)
encoder, going = scq.OgE(16, random_state=0).fit(X), True
codes = encoder.encode(X)

def work(seed):
    while going:
        scq.OgE(16, max_iter=2, tol=0, random_state=seed).fit(X)

crew = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
[thread.start() for thread in crew]
failed = 0
for number in range(int(sys.argv[1])):
    threading.Event().wait(rng.uniform(0, 0.1))
    child = os.fork()
    if not child:
        signal.alarm(60)
        os._exit(int((scq.OgE(16, random_state=0).fit(X).encode(X) != codes).any()))
    failed += os.waitpid(child, 0)[1] != 0
going = False
[thread.join() for thread in crew]
print(failed)
"""


def forks(count: int, seed: int) -> Figures:
    """Children forked while two threads fit: each fits too, and gives the same codes within a minute."""
    environment = ENV | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(count), str(seed)],
        env=environment, capture_output=True, text=True, check=False, timeout=60 + 70 * count,
    )  # fmt: skip
    failed = done.stdout.strip()
    return Figures(count, [] if failed == "0" else [f"{failed or 'all'} children failed: {done.stderr[-300:]}"])


def full_disk(seed: int) -> Figures:
    """A small file system, where one can be mounted: exit code 4, one line, and what was there before."""
    figures = Figures()
    with _workplace() as folder:
        small = folder / "small"
        small.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)]
        if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
            return Figures(0, [], "no file system can be mounted here")
        try:
            (small / "filler").write_bytes(bytes(60 << 10))
            for command, (line, _) in COMMANDS.items():
                before = _content(small)
                code, _, err = _run(line.replace("OUT", "small/OUT") + " -q")
                figures.tried += 1
                if code == 0:  # it fitted in
                    for path in small.glob("OUT*"):
                        path.unlink()
                elif code != 4 or "No space left" not in err or _content(small) != before:
                    figures.failures.append(f"{command}: exit {code}, {err[:300]!r}, left {sorted(_content(small))}")
        finally:
            subprocess.run(["umount", str(small)], check=True)
    return figures
