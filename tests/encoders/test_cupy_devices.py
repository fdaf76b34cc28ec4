"""Every public call on the second of two GPUs that cannot reach each other's memory, while the first is current.

Each call runs on cuda:0 and on cuda:1, with the same numbers; the answers must be equal, lie on the device of the
input, and leave the current device as it was. CuPy runs on the stand-in: ``make test-cupy``.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peers import DH, UHBDNN

import scq_gpu as scq
from scq_gpu import metrics
from scq_gpu.kernels import encode_linear
from scq_gpu.kernels.cuda.hamming import CodeSearch


def missing() -> str:
    if importlib.util.find_spec("standin") is None:
        return "CuPy does not run on the stand-in here (make test-cupy)"
    import cupy

    return "" if cupy.cuda.runtime.getDeviceCount() > 1 else "one device only (STANDIN_DEVICES=2)"


pytestmark = [pytest.mark.gpu, pytest.mark.standin, pytest.mark.skipif(bool(missing()), reason=missing())]

N_BITS = 12
SEEDED = {"n_bits": N_BITS, "random_state": 0}
FEW = {**SEEDED, "max_iter": 3, "tol": 0}
ENCODERS: dict[str, Callable[..., Any]] = {
    "OgE joint": functools.partial(scq.OgE, **FEW),
    "OgE columnwise": functools.partial(scq.OgE, **FEW, solver="columnwise"),
    "OnE joint": functools.partial(scq.OnE, **FEW),
    "OnE columnwise": functools.partial(scq.OnE, **FEW, solver="columnwise"),
    "BA": functools.partial(scq.BA, **SEEDED, max_iter=3),
    "DH": functools.partial(DH, **FEW, hidden=(16,), learning_rate=0.01),
    "ITQ": functools.partial(scq.ITQ, **SEEDED, max_iter=3),
    "KMH": functools.partial(scq.KMH, **SEEDED, max_iter=3, tol=0),
    "LSH": functools.partial(scq.LSH, **SEEDED),
    "PCAH": functools.partial(scq.PCAH, N_BITS),
    "PCARR": functools.partial(scq.PCARR, **SEEDED),
    "SH": functools.partial(scq.SH, N_BITS),
    "SpH": functools.partial(scq.SpH, **SEEDED, max_iter=3, tol=1.0),
    "UHBDNN": functools.partial(UHBDNN, **FEW, hidden=(16,), lbfgs_iter=5),
}


@functools.cache
def rows() -> np.ndarray:
    rng = np.random.default_rng(11)
    return (rng.standard_normal((400, 24)) * np.linspace(2, 0.5, 24) + 1).astype(np.float32)


@functools.cache
def labels() -> np.ndarray:
    return np.random.default_rng(12).integers(0, 4, 400)


@functools.cache
def bits() -> np.ndarray:
    return np.random.default_rng(13).integers(0, 2, (400, N_BITS)).astype(bool)


@functools.cache
def fitted(name: str) -> Any:
    """An encoder fitted by NumPy; to be copied, not changed."""
    return ENCODERS[name]().fit(rows())


@dataclass(frozen=True)
class Place:
    """One of the devices, as its users name it."""

    number: int
    folder: Path

    @property
    def name(self) -> str:
        return f"cuda:{self.number}"

    def array(self, x: np.ndarray) -> Any:
        import cupy

        with cupy.cuda.Device(self.number):
            return cupy.asarray(x)

    def encoder(self, name: str) -> Any:
        """A fitted encoder that works here."""
        path = self.folder / "model.safetensors"
        fitted(name).save(path)
        return scq.load(path, device=self.name)

    @property
    def codes(self) -> Any:
        return self.array(scq.pack(bits()))

    @property
    def index(self) -> scq.HammingIndex:
        return scq.HammingIndex(self.codes, n_bits=N_BITS)


Call = Callable[[Place], Any]
CALLS: dict[str, Call] = {}


def call(name: str) -> Callable[[Call], Call]:
    def note(function: Call) -> Call:
        CALLS[name] = function
        return function

    return note


def learned(encoder: Any) -> list[Any]:
    return [getattr(encoder, name) for name in encoder._fitted_arrays]


def mapped(method: str, name: str, *, of: str) -> Call:
    """encode, transform or project, by an encoder that works there or, for rows that do, on the host."""

    def run(at: Place) -> Any:
        encoder = fitted(name) if of == "CuPy rows, encoder on the host" else at.encoder(name)
        return getattr(encoder, method)(rows() if of == "NumPy rows" else at.array(rows()))

    return run


for _name, _make in ENCODERS.items():
    CALLS[f"fit {_name}, NumPy rows"] = lambda at, make=_make: learned(make(device=at.name).fit(rows()))
    CALLS[f"fit {_name}, CuPy rows"] = lambda at, make=_make: learned(make().fit(at.array(rows())))
    if "columnwise" in _name:  # what it learned is of the same kind
        continue
    CALLS[f"load {_name}"] = lambda at, name=_name: learned(at.encoder(name))
    for _method in ("encode", "transform", "project"):
        if hasattr(_make.func, _method):
            for _of in ("NumPy rows", "CuPy rows", "CuPy rows, encoder on the host"):
                CALLS[f"{_method} {_name}, {_of}"] = mapped(_method, _name, of=_of)


@call("encode OgE, precision fast")
def _(at: Place) -> Any:
    return at.encoder("OgE joint").encode(at.array(rows()), precision="fast")


@call("encode OgE, float64 rows")
def _(at: Place) -> Any:
    return at.encoder("OgE joint").encode(at.array(rows().astype(np.float64)))


@call("fit OgE, start from ITQ")
def _(at: Place) -> Any:
    return learned(scq.OgE(**FEW, init="itq").fit(at.array(rows())))


@call("save what was loaded there")
def _(at: Place) -> Any:
    at.encoder("OgE joint").save(at.folder / "again.safetensors")
    return learned(scq.load(at.folder / "again.safetensors"))


@call("to the CPU")
def _(at: Place) -> Any:
    return learned(at.encoder("OgE joint").to("cpu"))


@call("pack")
def _(at: Place) -> Any:
    return scq.pack(at.array(bits()))


@call("pack signs")
def _(at: Place) -> Any:
    return scq.pack(at.array(np.where(bits(), 1, -1).astype(np.int8)))


@call("unpack")
def _(at: Place) -> Any:
    return scq.unpack(at.codes, N_BITS)


@call("kernels.encode_linear")
def _(at: Place) -> Any:
    encoder = fitted("OgE joint")
    return encode_linear(*map(at.array, (rows(), encoder.components_.T, encoder.threshold_)))


@call("kernels.encode_linear, float64")
def _(at: Place) -> Any:
    encoder = fitted("OgE joint")
    X = rows().astype(np.float64)
    return encode_linear(*map(at.array, (X, encoder.components_.T, encoder.threshold_)))


@call("kernels.cuda.CodeSearch")
def _(at: Place) -> Any:
    search = CodeSearch([at.codes])
    return [*search.knn(at.codes[:9], [at.codes], 5, n_bits=N_BITS), *search.within(at.codes[:9], [at.codes], 2)]


@call("index search")
def _(at: Place) -> Any:
    return at.index.search(at.codes[:9], 5)


@call("index search, k > n")
def _(at: Place) -> Any:
    return at.index.search(at.codes[:9], 500)


@call("index add, search")
def _(at: Place) -> Any:
    return at.index.add(at.codes[:50]).search(at.codes[:9], 5)


@call("index range_search")
def _(at: Place) -> Any:
    return at.index.range_search(at.codes[:9], 2)


@call("index with ids")
def _(at: Place) -> Any:
    return scq.HammingIndex(at.codes, N_BITS, ids=np.arange(400) * 3).search(at.codes[:9], 5)


@call("index with ids in any order")
def _(at: Place) -> Any:
    return scq.HammingIndex(at.codes, N_BITS, ids=np.arange(400)[::-1].copy()).search(at.codes[:9], 5)


@call("index search, spherical")
def _(at: Place) -> Any:
    return scq.HammingIndex(at.codes, N_BITS, distance="spherical").search(at.codes[:9], 5)


@call("index range_search, spherical")
def _(at: Place) -> Any:
    return scq.HammingIndex(at.codes, N_BITS, distance="spherical").range_search(at.codes[:9], 0.3)


@call("index search, codes too long for the kernels")
def _(at: Place) -> Any:
    long = at.array(np.random.default_rng(1).integers(0, 256, (60, 150), dtype=np.uint8))
    return scq.HammingIndex(long, 1200).search(long[:5], 4)


@call("index save, load")
def _(at: Place) -> Any:
    at.index.save(at.folder / "index.safetensors")
    return scq.HammingIndex.load(at.folder / "index.safetensors", device=at.name).search(at.codes[:9], 5)


@call("search_asymmetric, NumPy queries")
def _(at: Place) -> Any:
    return at.index.search_asymmetric(fitted("OgE joint"), rows()[:9], 5)


@call("search_asymmetric, CuPy queries")
def _(at: Place) -> Any:
    return at.index.search_asymmetric(at.encoder("OgE joint"), at.array(rows()[:9]), 5)


@call("search_asymmetric, inner product")
def _(at: Place) -> Any:
    return at.index.search_asymmetric(at.encoder("OgE joint"), at.array(rows()[:9]), 5, metric="ip")


@call("index remove, search")
def _(at: Place) -> Any:
    return at.index.add(at.codes[:50]).remove([0, 7]).search(at.codes[:9], 5)


@call("VectorIndex, CuPy rows")
def _(at: Place) -> Any:
    index = scq.VectorIndex(at.array(rows()), metric="cosine", encoder=scq.OgE(N_BITS, random_state=0))
    return index.add(at.array(rows()[:20])).remove([3]).search(at.array(rows()[:9]), 5)


@call("VectorIndex, NumPy rows")
def _(at: Place) -> Any:
    return scq.VectorIndex(rows(), encoder=scq.OgE(N_BITS, device=at.name, random_state=0)).search(rows()[:9], 5)


@call("fit and encode, rows in two arrays")
def _(at: Place) -> Any:
    encoder = scq.OgE(**FEW).fit([at.array(rows()[:150]), at.array(rows()[150:])])
    return [*learned(encoder), encoder.encode([at.array(rows()[:150]), at.array(rows()[150:])])]


@call("convert")
def _(at: Place) -> Any:
    return [scq.convert(at.codes, N_BITS, to) for to in ("ubinary", "binary", "vespa", "qdrant")]


@call("rescore")
def _(at: Place) -> Any:
    ids = np.arange(90).reshape(9, 10)
    return scq.rescore(at.array(rows()[:9]), at.array(rows()), at.array(ids), k=4, metric="l2")


def of_labels(figure: Callable[..., Any], **options: Any) -> Call:
    def compute(at: Place) -> Any:
        found = labels()
        return figure(at.codes[:20], at.codes, at.array(found[:20]), at.array(found), **options)

    return compute


for _name, _figure in {
    "mean_average_precision": metrics.mean_average_precision,
    "average_precision": metrics.average_precision,
    "precision_at_k": functools.partial(metrics.precision_at_k, k=10),
    "label_recall_at_k": functools.partial(metrics.label_recall_at_k, k=10),
}.items():
    CALLS[f"metrics.{_name}"] = of_labels(_figure)
    CALLS[f"metrics.{_name}, average ties"] = of_labels(_figure, ties="average")
    CALLS[f"metrics.{_name}, spherical"] = of_labels(_figure, distance="spherical")
for _name in ("precision_at_radius", "recall_at_radius", "precision_recall_curve"):
    CALLS[f"metrics.{_name}"] = of_labels(getattr(metrics, _name))


@call("metrics of ids")
def _(at: Place) -> Any:
    ids = np.random.default_rng(5).permutation(400)[:200].reshape(20, 10)
    found, true, of_rows = at.array(ids), at.array(ids[:, ::-1].copy()), at.array(labels())
    return [
        metrics.recall_at_k(found, true, k=5),
        metrics.ranked_average_precision(found, of_rows[:20], of_rows),
        metrics.ranked_precision_at_k(found, of_rows[:20], of_rows),
    ]


@call("metrics.exact_neighbors, CuPy rows")
def _(at: Place) -> Any:
    return metrics.exact_neighbors(at.array(rows()[:9]), at.array(rows()), k=3, metric="cosine")


@call("metrics.exact_neighbors, NumPy rows")
def _(at: Place) -> Any:
    return metrics.exact_neighbors(rows()[:9], rows(), k=3, device=at.name)


@call("metrics.quantization_loss")
def _(at: Place) -> Any:
    return metrics.quantization_loss(at.array(rows()[:, :N_BITS]))


@call("metrics.retained_variance")
def _(at: Place) -> Any:
    return metrics.retained_variance(at.array(rows()), at.array(fitted("OnE joint").components_))


@call("evaluate, NumPy rows")
def _(at: Place) -> Any:
    return list(evaluated(at.encoder("OgE joint"), rows()).values())


@call("evaluate, CuPy rows")
def _(at: Place) -> Any:
    return list(evaluated(at.encoder("OgE joint"), at.array(rows())).values())


def evaluated(encoder: Any, X: Any) -> dict[str, float]:
    result = scq.evaluate(encoder, X[:50], X[50:], labels()[:50], labels()[50:], k=10)
    return {name: value for name, value in result.as_dict().items() if "time" not in name and "second" not in name}


@call("encode_file")
def _(at: Place) -> Any:
    np.save(at.folder / "rows.npy", rows())
    out = at.folder / "codes.npy"
    scq.encode_file(at.encoder("OgE joint"), at.folder / "rows.npy", out, overwrite=True, progress=False)
    return np.load(out)


@call("fit from a file")
def _(at: Place) -> Any:
    np.save(at.folder / "rows.npy", rows())
    return learned(scq.OgE(**FEW, device=at.name).fit(scq.io.open_rows(at.folder / "rows.npy")))


@call("sweep_bits")
def _(at: Place) -> Any:
    sweep = scq.sweep_bits(rows(), (4, 8), encoder=scq.OgE(max_iter=3, tol=0, random_state=0, device=at.name))
    return [x for encoder in sweep.encoders for x in learned(encoder)]


@call("scale_path")
def _(at: Place) -> Any:
    path = scq.scale_path(
        rows(), 6, (0.5, 1.0), encoder=scq.OnE(max_iter=3, tol=0, random_state=0, init="random", device=at.name)
    )
    return [x for encoder in path.encoders for x in learned(encoder)]


@call("callback")
def _(at: Place) -> Any:
    seen: list[Any] = []
    scq.OgE(**FEW, device=at.name, callback=lambda i, loss, encoder: seen.extend(learned(encoder))).fit(rows())
    return seen


@pytest.mark.parametrize("name", list(CALLS))
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_second_device(name: str, tmp_path: Path) -> None:
    compare(name, tmp_path, current=(0, 0))


@pytest.mark.parametrize("name", list(CALLS))
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_second_device_made_current(name: str, tmp_path: Path) -> None:
    compare(name, tmp_path, current=(0, 1))


ON_TWO = {
    "fit, a list of arrays": lambda a, b: scq.OgE(**FEW).fit([a.array(rows()), b.array(rows())]),
    "encode_linear": lambda a, b: encode_linear(
        a.array(rows()), *map(b.array, (fitted("OgE joint").components_.T, fitted("OgE joint").threshold_))
    ),
    "add": lambda a, b: a.index.add(b.codes),
    "search": lambda a, b: a.index.search(b.codes, 3),
    "search after add": lambda a, b: a.index.add(a.codes).search(b.codes, 3),
    "range_search": lambda a, b: a.index.range_search(b.codes, 2),
    "rescore": lambda a, b: scq.rescore(a.array(rows()), b.array(rows()), np.zeros((400, 2), dtype=int), metric="l2"),
    "metrics": lambda a, b: metrics.precision_at_k(a.codes, b.codes, labels(), labels(), k=3),
    "metrics, labels": lambda a, b: metrics.precision_at_k(a.codes, a.codes, labels(), b.array(labels()), k=3),
    "CodeSearch": lambda a, b: CodeSearch([a.codes]).knn(b.codes, [a.codes], 3, n_bits=N_BITS),
}


@pytest.mark.parametrize("name", list(ON_TWO))
def test_arrays_on_two_devices_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"(cuda:|Device )\d.* and .*(cuda:|Device )\d.*; move"):
        ON_TWO[name](Place(0, tmp_path), Place(1, tmp_path))


def test_rows_of_two_devices_through_dask() -> None:
    """Chunks on both devices, worked on where they are, give what one device gives."""
    dask_array = pytest.importorskip("dask.array")
    import cupy

    X = dask_array.from_array(rows(), chunks=(100, -1))

    def place(block: np.ndarray, block_info: Any = None) -> Any:
        with cupy.cuda.Device(block_info[0]["chunk-location"][0] % 2):
            return cupy.asarray(block)

    spread = X.map_blocks(place, meta=cupy.empty((0, 0), dtype=np.float32))
    encoder, expected = scq.OgE(**FEW).fit(spread), scq.OgE(**FEW).fit(X)
    np.testing.assert_allclose(encoder.components_, expected.components_, rtol=1e-3, atol=1e-4)
    found = [block.compute() for block in encoder.encode(spread).to_delayed().ravel()]
    assert [block.device.id for block in found] == [0, 1, 0, 1]
    assert np.mean(np.concatenate([block.get() for block in found]) == expected.encode(rows())) > 0.999


def compare(name: str, folder: Path, *, current: tuple[int, int]) -> None:
    """A call on the two devices, each while a certain device is current."""
    import cupy

    answers = []
    for number, device in enumerate(current):
        with cupy.cuda.Device(device):
            answers.append(flat(CALLS[name](Place(number, folder))))
            assert cupy.cuda.Device().id == device
    for one, other in zip(*answers, strict=True):
        assert type(one) is type(other)
        if isinstance(one, cupy.ndarray):
            assert (one.device.id, other.device.id) == (0, 1)
            one, other = one.get(), other.get()
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)


def flat(answer: Any) -> list[Any]:
    return list(answer) if isinstance(answer, list | tuple) else [answer]
