"""Indexes: any sequence of operations, loads beside savers, cycles that must not grow, and hostile headers."""

import json
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import seed as seeded
from index_machine import IndexMachine, run_machine

import scq_gpu as scq
from campaigns.attack import Figures, encoder, rows
from campaigns.crowds import resident


def machine(examples: int, seed: int) -> Figures:
    """Run hypothesis's state machine against lists of NumPy rows, with codes in memory and in files."""
    figures = Figures()
    seeded(seed)(IndexMachine)
    for in_files in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            try:
                run_machine(patch, examples=examples // 2, steps=20, in_files=in_files, database=None)
            except Exception as error:
                figures.failures.append(repr(error))
            figures.tried += examples // 2
    return figures


def loads_beside_savers(loads: int, seed: int) -> Figures:
    """Load a file while two threads save different indexes to it, which differ in every part."""
    figures, X, model = Figures(), rows(), encoder()
    made = [
        scq.VectorIndex(X[:300] * (i + 1), encoder=model, ids=np.arange(300) + 1000 * i, metric=("l2", "ip")[i])
        for i in range(2)
    ]
    stop = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "i.safetensors"
        made[0].save(path)

        def save(index: Any) -> None:
            while not stop.is_set():
                index.save(path)

        threads = [threading.Thread(target=save, args=(index,)) for index in made]
        for thread in threads:
            thread.start()
        try:
            for _ in range(loads):
                loaded = scq.VectorIndex.load(path)
                which = int(loaded.ids[0] >= 1000)
                same = loaded.metric == made[which].metric and (loaded.ids == made[which].ids).all()
                if not same or (loaded.get([1000 * which + 7]) != made[which].get([1000 * which + 7])).any():
                    figures.failures.append("a load mixed two indexes")
                figures.tried += 1
        except Exception as error:
            figures.failures.append(repr(error))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    return figures


def cycles(rounds: int, seed: int) -> Figures:
    """Update, remove and add rows: neither memory nor file may grow, whatever is kept and wherever."""
    figures, rng, model = Figures(), np.random.default_rng(seed), encoder()
    X = rng.standard_normal((20_000, rows().shape[1])).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        for keep in (True, "int8", Path(folder) / "kept.npy"):
            index = scq.VectorIndex(X, encoder=model, keep_vectors=keep)
            sizes = []
            for turn in range(rounds):
                index.update(index.ids[rng.choice(len(index), 200, replace=False)], X[:200])
                gone = index.ids[rng.choice(len(index), 200, replace=False)]
                index.remove(gone).add(X[200:400], ids=gone)
                figures.tried += 3
                if turn in (rounds // 2, rounds - 1):
                    index.save(Path(folder) / "i.safetensors")
                    files = sum(path.stat().st_size for path in Path(folder).iterdir())
                    sizes.append((resident(), files))
            (memory, files), (last_memory, last_files) = sizes[0], sizes[-1]
            if last_files != files or last_memory > 1.2 * memory + (64 << 20) or len(index) != 20_000:
                figures.failures.append(f"keep_vectors={keep}: {sizes}")
            del index
            for path in Path(folder).iterdir():
                path.unlink()
    return figures


def hostile_headers(count: int, seed: int) -> Figures:
    """Change values in the headers of index files; then load, search, add, update, remove and save."""
    figures, rng = Figures(), np.random.default_rng(seed)
    X, model = rows(), encoder()
    options = {"ids": np.array([f"id-{i}" for i in range(300)])}
    rejected = 0
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        np.save(folder / "x.npy", X[:300])
        made = [
            scq.HammingIndex(model.encode(X[:300]), model.n_bits, **options, encoder=model),
            scq.VectorIndex(X[:300], encoder=model).remove([3]),
            scq.VectorIndex(folder / "x.npy", encoder=scq.OPQ(8, max_iter=1, random_state=0), **options).update(
                ["id-7"], X[:1]
            ),
        ]
        originals = []
        for i, index in enumerate(made):
            index.save(folder / f"{i}")
            originals.append((type(index), (folder / f"{i}").read_bytes()))
        for _ in range(count):
            kind, content = originals[rng.integers(len(originals))]
            length = int.from_bytes(content[:8], "little")
            header = json.loads(content[8 : 8 + length])
            change(header, rng)
            text = json.dumps(header).encode()
            text += b" " * (-(8 + len(text)) % 64)
            (folder / "bad").write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
            figures.tried += 1
            try:
                use(kind, folder, X)
            except (ValueError, OSError, KeyError) as error:
                rejected += 1
                if isinstance(error, KeyError) and "is not in the index" not in str(error):
                    figures.failures.append(f"{error!r} of {text[:300]!r}")
            except BaseException as error:
                figures.failures.append(f"{error!r} of {text[:300]!r}")
    figures.notes = f"{rejected} rejected"
    return figures


def use(kind: Any, folder: Path, X: np.ndarray) -> None:
    index = kind.load(folder / "bad")
    if kind is scq.VectorIndex:
        index.search(X[:3], 5)
        first = index.ids[:1]
        index.add(X[:2], ids=["new", "newer"] if first.dtype.kind == "U" else [10**7, 10**7 + 1])
        index.update(first, X[5:6])
        index.get(first)
        index.remove(index.ids[:2])
    else:
        codes = np.zeros((2, -(-index.n_bits // 8)), dtype=np.uint8)
        index.search(codes, 5)
        index.add(codes, ids=["new", "newer"] if index.ids.dtype.kind == "U" else None)
        index.remove(index.ids[:2])
    index.save(folder / "again")
    kind.load(folder / "again", verify=True)


_WORDS: list[Callable[[Any, np.random.Generator], Any]] = [
    lambda x, rng: None,
    lambda x, rng: [],
    lambda x, rng: {},
    lambda x, rng: "",
    lambda x, rng: -1,
    lambda x, rng: 1 << 62,
    lambda x, rng: [x, x],
    lambda x, rng: str(x)[:-1],
    lambda x, rng: x + 1 if isinstance(x, int) else "7",
    lambda x, rng: 1.5,
    lambda x, rng: True,
]


def change(header: dict[str, Any], rng: np.random.Generator) -> None:
    """Change, drop or swap one value somewhere in a header, also within the JSON texts of its metadata."""
    metadata = header["__metadata__"]
    texts = [key for key in ("encoder", "encoder_shapes", "vectors") if metadata.get(key, "").startswith("{")]
    inside = rng.choice(texts) if texts and rng.random() < 0.5 else None
    target = json.loads(metadata[inside]) if inside else header
    here: Any = target
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        key = keys[rng.integers(len(keys))]
        below = here[key]
        if not isinstance(below, dict | list) or not below or rng.random() < 0.15:
            break
        here = below
    if isinstance(here, dict) and rng.random() < 0.25:
        del here[key]
    else:
        here[key] = _WORDS[rng.integers(len(_WORDS))](here[key], rng)
    if inside:
        metadata[inside] = json.dumps(target)
