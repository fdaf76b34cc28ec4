"""Files of every format, each with a few changes: whatever they are, only ValueError and OSError may come of them."""

import contextlib
import io
import json
import struct
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import safetensors.numpy

import scq_gpu as scq
from campaigns.attack import BITS, D, Figures, N, encoder, rows
from scq_gpu.io import models

FORMATS = (
    *("npy", "npz", "fbin", "fvecs", "parquet", "hdf5", "zarr2", "zarr3"),
    *("model", "index", "vectors", "journal", "forged npz", "forged model"),
)


def make_zarr(path: Path, version: int) -> Path:
    import zarr

    array = zarr.create_array(str(path), shape=(N, D), chunks=(150, D), dtype="f4", zarr_format=version)
    array[:] = rows()
    return path


def make_parquet(path: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    values = pa.FixedSizeListArray.from_arrays(pa.array(rows().reshape(-1)), D)
    pq.write_table(pa.table({"x": values}), path, row_group_size=150)
    return path


def make_hdf5(path: Path) -> Path:
    import h5py

    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=rows(), chunks=(150, D), compression="gzip")
    return path


def make_vecs(path: Path) -> Path:
    path.write_bytes(b"".join(struct.pack("<i", D) + x.tobytes() for x in rows()))
    return path


def make_bin(path: Path) -> Path:
    path.write_bytes(struct.pack("<II", N, D) + rows().tobytes())
    return path


def saved(path: Path, save: Callable[[Path], object]) -> Path:
    save(path)
    return path


def seeds(folder: Path) -> dict[str, Path]:
    """A good file of every format."""
    model, X = encoder(), rows()
    codes = model.encode(X)
    ids = np.random.default_rng(1).permutation(10 * N)[:N]
    return {
        "npy": saved(folder / "x.npy", lambda p: np.save(p, X)),
        "npz": saved(folder / "x.npz", lambda p: np.savez_compressed(p, x=X)),
        "fbin": make_bin(folder / "x.fbin"),
        "fvecs": make_vecs(folder / "x.fvecs"),
        "parquet": make_parquet(folder / "x.parquet"),
        "hdf5": make_hdf5(folder / "x.h5"),
        "zarr2": make_zarr(folder / "x2.zarr", 2),
        "zarr3": make_zarr(folder / "x3.zarr", 3),
        "model": saved(folder / "m.safetensors", model.save),
        "index": saved(folder / "i.safetensors", scq.HammingIndex(codes, BITS, ids, encoder=model).save),
        "vectors": saved(folder / "v.safetensors", scq.VectorIndex(X, encoder=model).save),
        "forged npz": saved(folder / "f.npz", lambda p: np.savez_compressed(p, x=X)),
        "forged model": saved(folder / "f.safetensors", model.save),
        "journal": saved(folder / "codes.npy.partial.json", lambda p: p.write_text(journal(folder, model))),
    }


def journal(folder: Path, model) -> str:
    """The journal of an encode that was stopped half-way."""

    class Stop(Exception):
        pass

    class Half:
        def __init__(self) -> None:
            self.__dict__ |= vars(model)
            self._calls = 0

        def encode(self, X):
            self._calls += 1
            if self._calls > 3:
                raise Stop
            return model.encode(X)

    Half.__name__ = "OgE"
    np.save(folder / "x.npy", rows())
    with contextlib.suppress(Stop):
        scq.encode_file(Half(), folder / "x.npy", folder / "codes.npy", block_rows=100, progress=False)
    return (folder / "codes.npy.partial.json").read_text()


def mutate(content: bytes, rng: np.random.Generator) -> bytes:
    """One of: bits flipped, bytes replaced, a piece cut out, doubled or zeroed, the end cut, numbers made extreme."""
    data = bytearray(content)
    head = min(len(data), 400)  # headers are where most can go wrong
    for _ in range(int(rng.integers(1, 4))):
        if not data:
            break
        at = int(rng.integers(0, head if rng.random() < 0.6 else len(data)) % len(data))
        size = int(rng.integers(1, 32))
        kind = int(rng.integers(0, 8))
        if kind == 0:
            data[at] ^= 1 << int(rng.integers(0, 8))
        elif kind == 1:
            data[at : at + size] = rng.bytes(len(data[at : at + size]))
        elif kind == 2:
            del data[at : at + size]
        elif kind == 3:
            data[at:at] = data[at : at + size]
        elif kind == 4:
            data[at : at + size] = bytes(len(data[at : at + size]))
        elif kind == 5:
            del data[at + 1 :]
        elif kind == 6:
            extreme = [0, -1, 1, 2**31 - 1, 2**63 - 1, -(2**63)][int(rng.integers(0, 6))]
            data[at : at + 8] = struct.pack("<q", extreme)[: len(data[at : at + 8])]
        else:
            digits = [i for i, c in enumerate(data[:head]) if 48 <= c <= 57]
            if digits:
                data[digits[int(rng.integers(0, len(digits)))]] = 48 + int(rng.integers(0, 10))
    return bytes(data)


def forge(kind: str, content: bytes, rng: np.random.Generator) -> bytes:
    """Changes behind checksums that are right again, as somebody who means harm would make them."""
    if kind == "forged npz":
        stream = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as new:
            new.writestr("x.npy", mutate(old.read("x.npy"), rng))
        return stream.getvalue()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    arrays = dict(sorted(safetensors.numpy.load(content).items()))  # the library gives them in any order
    name = list(arrays)[int(rng.integers(0, len(arrays)))]
    change = int(rng.integers(0, 5))
    if change == 0:
        arrays[name] = np.frombuffer(mutate(arrays[name].tobytes(), rng), dtype=np.uint8).copy()
    elif change == 1:
        arrays[name] = np.resize(arrays[name], tuple(rng.integers(0, 40, size=int(rng.integers(0, 4)))))
    elif change == 2:
        arrays[name] = arrays[name].astype(rng.choice(["f2", "f8", "i8", "u1", "?"]))
    elif change == 3:
        arrays[f"{name}x"] = arrays.pop(name)
    else:
        header["facts"] = mutate(header["facts"].encode(), rng).decode("utf-8", "replace")
    header["sha256"] = models.digest(arrays, {key: value for key, value in header.items() if key != "sha256"})
    return safetensors.numpy.save(arrays, metadata=header)


def use(kind: str, path: Path, model) -> None:
    """What a user would do with the file; whatever it is, only ValueError and OSError may come of it."""
    X = rows()
    if kind.endswith("model"):
        loaded = scq.load(path)
        width = int(loaded.n_features_in_)
        codes = loaded.encode(np.zeros((3, width), dtype=np.float32))
        assert codes.shape == (3, -(-loaded.n_bits // 8))
    elif kind == "index":
        index = scq.HammingIndex.load(path)
        queries = np.zeros((4, -(-index.n_bits // 8)), dtype=np.uint8)
        d, ids = index.search(queries, 5)
        assert d.shape == ids.shape == (4, 5)
        index.range_search(queries, 2)
        with contextlib.suppress(ValueError):
            scq.HammingIndex.load(path, verify=True)
    elif kind == "vectors":
        scq.VectorIndex.load(path).search(X[:3], 4)
    elif kind == "journal":
        scq.encode_file(model, path.parent / "x.npy", path.parent / "codes.npy", block_rows=100, progress=False)
        np.testing.assert_array_equal(np.load(path.parent / "codes.npy"), model.encode(X))
    else:
        source = scq.io.open_rows(path)
        assert len(source.shape) == 2
        if source.shape[0] * source.shape[1] < 10**7:
            np.asarray(source)


def targets(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]


def fuzz(kind: str, count: int, seed: int) -> Figures:
    """Files of one format, each with a few changes, fixed by the seed."""
    figures, rng = Figures(), np.random.default_rng([seed, *kind.encode()])
    model = encoder()
    rejected = 0
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        good = seeds(folder)[kind]
        before = {p: p.read_bytes() for p in targets(good)}
        partial = (folder / "codes.npy.partial").read_bytes() if kind == "journal" else b""
        for number in range(count):
            victim = list(before)[int(rng.integers(0, len(before)))]
            forged = kind.startswith("forged")
            victim.write_bytes(forge(kind, before[victim], rng) if forged else mutate(before[victim], rng))
            if kind == "journal":
                (folder / "codes.npy.partial").write_bytes(partial)
                (folder / "codes.npy").unlink(missing_ok=True)
            figures.tried += 1
            # of the processor: other work on the machine does not count
            started = time.process_time()
            try:
                use(kind, good, model)
            except (ValueError, OSError) as error:
                rejected += 1
                named = isinstance(error, OSError) or any(p in str(error) for p in (folder.name, "k=", "X_query"))
                if not named and "NaN or inf" not in str(error):
                    figures.failures.append(f"{kind} {number}: no file named: {error!r}")
            except Exception as error:
                figures.failures.append(f"{kind} {number}: {error!r}")
            if time.process_time() - started > 10:
                figures.failures.append(f"{kind} {number}: took {time.process_time() - started:.0f} s")
            for path, content in before.items():
                path.write_bytes(content)
    figures.notes = f"{rejected} rejected"
    return figures
