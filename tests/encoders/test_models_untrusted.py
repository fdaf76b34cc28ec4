"""Model files with a right digest that do not fit their header, and headers of strange JSON, are rejected by name."""

import json

import numpy as np
import peers
import pytest
import safetensors.numpy

import scq_gpu as scq
from scq_gpu.io import models
from scq_gpu.rows.blocks import Rows

ENCODERS = {
    **{name: {} for name in ("OgE", "OnE", "PCAH", "PCARR", "ITQ", "LSH", "SH", "SpH", "BA", "OPQ")},
    "KMH": {"n_components": 12},
    "DH": {"hidden": (6,), "max_iter": 2},
    "UHBDNN": {"hidden": (6,), "max_iter": 1, "lbfgs_iter": 3},
}


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(0).standard_normal((120, 12)).astype(np.float32)


@pytest.fixture
def model(X, tmp_path):
    path = tmp_path / "model.safetensors"
    scq.OgE(n_bits=8, max_iter=2, tol=0, random_state=3).fit(X).save(path)
    return path


def read(path):
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    return safetensors.numpy.load(content), header


def write(path, arrays, header):
    """With a right digest, as somebody who means harm would."""
    header = {k: v for k, v in header.items() if k != "sha256"}
    header["sha256"] = models.digest(arrays, header)
    path.write_bytes(safetensors.numpy.save({k: np.ascontiguousarray(x) for k, x in arrays.items()}, metadata=header))


def with_facts(path, change):
    arrays, header = read(path)
    facts = json.loads(header["facts"])
    change(facts)
    write(path, arrays, header | {"facts": json.dumps(facts)})


def assert_rejected(path, match):
    with pytest.raises(scq.ModelFileError, match=match) as caught:
        scq.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ENCODERS)
def test_every_array_of_every_encoder_is_held_to_its_shape_type_and_finiteness(X, tmp_path, name):
    path = tmp_path / "m.safetensors"
    random = {"random_state": 0} if name not in ("PCAH", "SH") else {}
    package = peers if name in peers.__all__ else scq
    encoder = getattr(package, name)(n_bits=8, **random, **ENCODERS[name]).fit(X)
    encoder.save(path)
    np.testing.assert_array_equal(scq.load(path).encode(X), encoder.encode(X))
    arrays, header = read(path)
    assert set(arrays) == set(encoder._fitted_arrays)
    for array, x in arrays.items():
        for axis in range(x.ndim):
            if array != "eigenvalues_":  # as many as axes were kept, whatever that was
                write(path, arrays | {array: np.concatenate([x, x], axis=axis)}, header)
                assert_rejected(path, "does not hold what its header says")
            write(path, arrays | {array: np.take(x, [], axis=axis)}, header)
            assert_rejected(path, f"{array} has the shape")
        write(path, arrays | {array: x[..., None]}, header)
        assert_rejected(path, f"{array} has the shape")
        write(path, arrays | {array: x.astype(np.float32 if array == "modes_" else np.int32)}, header)
        assert_rejected(path, "expected|not a whole")
        if x.dtype.kind == "f":
            for bad in (np.nan, np.inf, -np.inf):
                y = x.copy()
                y.flat[-1] = bad
                write(path, arrays | {array: y}, header)
                assert_rejected(path, f"{array} holds NaN or inf")


def test_components_far_wider_than_the_features_are_refused(model):
    """The file that crashed ``encode``: a right digest over an array that the header says nothing of."""
    arrays, header = read(model)
    write(model, arrays | {"components_": np.zeros((8, 400_000), dtype=np.float32)}, header)
    assert_rejected(model, r"components_ has the shape \(8, 400000\), where \(8, 12\) is expected")


@pytest.mark.parametrize("name", ["encode", "__class__", "_fitted_arrays", "param.fit", "param.", "n_bits"])
def test_arrays_of_other_names_are_refused(model, name):
    arrays, header = read(model)
    write(model, arrays | {name: np.zeros(3, dtype=np.float32)}, header)
    assert_rejected(model, "is none of this encoder's")


@pytest.mark.parametrize("name", ["OgE", "SpH"])
@pytest.mark.filterwarnings("ignore")
def test_missing_arrays(X, tmp_path, name):
    path = tmp_path / "m.safetensors"
    getattr(scq, name)(n_bits=4, max_iter=2, random_state=0).fit(X).save(path)
    arrays, header = read(path)
    assert {"mean_", "levels_"} < set(arrays)
    for missing in arrays:
        write(path, {k: x for k, x in arrays.items() if k != missing}, header)
        assert_rejected(path, f"the array '{missing}' is missing")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["OgE", "SpH", "KMH", "BA"])
def test_missing_facts(X, tmp_path, name):
    path = tmp_path / "m.safetensors"
    more = {"n_components": 12} if name == "KMH" else {}
    encoder = getattr(scq, name)(n_bits=8, max_iter=2, random_state=0, **more).fit(X)
    for missing in encoder._fitted_facts:
        encoder.save(path)
        with_facts(path, lambda facts, missing=missing: facts["fitted"].pop(missing))
        assert_rejected(path, f"the fact '{missing}' is missing")


def test_a_vector_index_whose_encoder_lacks_arrays(X, tmp_path):
    path = tmp_path / "v.safetensors"
    scq.VectorIndex(X, encoder=scq.OgE(8, random_state=0)).save(path)
    content = path.read_bytes()
    assert b"encoder.components_" in content
    for missing in ("components_", "threshold_", "mean_"):
        path.write_bytes(content.replace(b"encoder." + missing.encode(), b"encodex." + missing.encode()))
        with pytest.raises(ValueError, match=rf"v\.safetensors.*{missing}"):
            scq.VectorIndex.load(path)
    assert b'\\"mean_\\": ' in content
    path.write_bytes(content.replace(b'\\"mean_\\": ', b'\\"naem_\\": '))
    with pytest.raises(ValueError, match=r"v\.safetensors"):
        scq.VectorIndex.load(path)


CHANGES = {
    "no n_bits": lambda f: f["params"].pop("n_bits"),
    "n_bits of another type": lambda f: f["params"].update(n_bits="8"),
    "n_bits that is true": lambda f: f["params"].update(n_bits=True),
    "huge n_bits": lambda f: f["params"].update(n_bits=1 << 70),
    "n_bits 0": lambda f: f["params"].update(n_bits=0),
    "no features": lambda f: f["fitted"].pop("n_features_in_"),
    "negative features": lambda f: f["fitted"].update(n_features_in_=-12),
    "unknown parameter": lambda f: f["params"].update(shell="true"),
    "device": lambda f: f["params"].update(device="cuda:7"),
    "nested parameter": lambda f: f["params"].update(ridge={"a": 1}),
    "unknown fact": lambda f: f["fitted"].update(encode="x"),
    "curve of strings": lambda f: f["fitted"].update(loss_curve_=["x"]),
    "names too few": lambda f: f["fitted"].update(feature_names_in_=["x"]),
    "names that are numbers": lambda f: f["fitted"].update(feature_names_in_=[1] * 12),
    "no params": lambda f: f.pop("params"),
    "params a list": lambda f: f.update(params=[1]),
    "no fitted": lambda f: f.pop("fitted"),
    "no encoder": lambda f: f.pop("encoder"),
    "encoder a list": lambda f: f.update(encoder=["OgE"]),
    "base class": lambda f: f.update(encoder="LinearEncoder"),
    "another encoder": lambda f: f.update(encoder="SpH"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_facts_that_do_not_fit(model, change):
    with_facts(model, change)
    assert_rejected(model, "model.safetensors")


HEADERS = {
    "facts nested": {"facts": "[" * 100_000},
    "facts no JSON": {"facts": "{"},
    "facts a list": {"facts": "[1]"},
    "facts of NaN": {"facts": "NaN"},
    "huge version": {"format_version": "9" * 5000},
    "version 2": {"format_version": "2"},
    "version of letters": {"format_version": "\x1b[2J"},
    "other digits": {"format_version": "²"},
}


@pytest.mark.parametrize("changes", HEADERS.values(), ids=HEADERS)
def test_headers_of_strange_json(model, changes):
    arrays, header = read(model)
    write(model, arrays, header | changes)
    assert_rejected(model, "model.safetensors")


@pytest.mark.parametrize("missing", ["facts", "bit_contract", "format_version", "sha256", "format"])
def test_headers_without_a_key(model, missing):
    arrays, header = read(model)
    del header[missing]
    if missing == "sha256":
        model.write_bytes(safetensors.numpy.save(arrays, metadata=header))
    else:
        write(model, arrays, header)
    assert_rejected(model, "model.safetensors")


@pytest.mark.parametrize(
    "text", [b"[" * 200_000, b'{"__metadata__": 5}', b'{"__metadata__": {"format": 1}}', b"[]", b"1"]
)
def test_headers_that_are_no_dictionary(tmp_path, text):
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    assert_rejected(path, "model.safetensors")


@pytest.mark.parametrize(
    ("W", "t"), [((40, 8), (8,)), ((12, 8), (7,)), ((12, 8), (8, 1)), ((11, 8), (8,)), ((12,), (8,))]
)
def test_rows_check_the_map_that_compiled_loops_trust(X, W, t, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("encoded")

    monkeypatch.setattr("scq_gpu.rows.blocks.encode_rows", never)
    with pytest.raises((ValueError, IndexError), match="do not fit"):
        Rows(X).encode(np.zeros(W, dtype=np.float32), np.zeros(t, dtype=np.float32))
