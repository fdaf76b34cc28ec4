"""Model files: whole, ours, and the same on every device, or refused."""

import json
import os
import stat

import numpy as np
import pytest
import safetensors.numpy

import scq_gpu as scq
from scq_gpu._core.bits import BIT_CONTRACT
from scq_gpu.io import models


@pytest.fixture
def X():
    return np.random.default_rng(0).standard_normal((200, 12)).astype(np.float32)


@pytest.fixture
def model(X, tmp_path):
    path = tmp_path / "model.safetensors"
    scq.OgE(n_bits=10, max_iter=4, tol=0, ridge=0.05, random_state=3).fit(X).save(path)
    return path


@pytest.mark.parametrize("Encoder", [scq.OgE, scq.OnE])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_round_trip(X, tmp_path, Encoder, dtype):
    encoder = Encoder(n_bits=10, max_iter=4, tol=0, random_state=3).fit(X.astype(dtype))
    encoder.save(tmp_path / "m.safetensors")
    loaded = scq.load(tmp_path / "m.safetensors")
    assert type(loaded) is Encoder
    assert loaded.get_params() == encoder.get_params()
    for name in ("components_", "threshold_", "mean_", "eigenvalues_", "levels_"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(encoder, name), strict=True)
    for name in ("scale_", "loss_curve_", "n_iter_", "converged_", "n_features_in_", "n_samples_"):
        assert getattr(loaded, name) == getattr(encoder, name)
    np.testing.assert_array_equal(loaded.encode(X), encoder.encode(X))


def test_start_array_and_feature_names_come_along(X, tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=[f"f{k}" for k in range(12)])
    V0 = np.eye(12, 4)
    encoder = scq.OnE(n_bits=4, init=V0, max_iter=2, tol=0, callback=print, random_state=np.random.default_rng(0))
    encoder.set_params(callback=None).fit(frame)
    encoder.save(tmp_path / "m.safetensors")
    loaded = scq.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(loaded.init, V0)
    assert list(loaded.feature_names_in_) == list(frame.columns)
    assert loaded.random_state is None  # a generator is not part of a model
    np.testing.assert_array_equal(loaded.encode(frame), encoder.encode(frame))


def test_header_tells_contract_versions_and_training_facts(model):
    content = model.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    assert header["bit_contract"] == BIT_CONTRACT
    assert json.loads(header["versions"])["scq_gpu"] == scq.__version__
    facts = json.loads(header["facts"])
    assert facts["encoder"] == "OgE"
    assert facts["params"]["ridge"] == 0.05
    assert "device" not in facts["params"]
    assert facts["fitted"]["n_samples_"] == 200
    assert len(facts["fitted"]["loss_curve_"]) == 4


@pytest.mark.parametrize("share", [0, 0.001, 0.005, 0.1, 0.5, 0.9, 0.999])
def test_truncated(model, share):
    content = model.read_bytes()
    model.write_bytes(content[: int(share * len(content))])
    with pytest.raises(scq.ModelFileError, match="is not a whole safetensors file"):
        scq.load(model)


def test_every_flipped_byte_of_the_arrays_is_noticed(model):
    content = model.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    for place in np.linspace(start, len(content) - 1, 25).astype(int):
        broken = bytearray(content)
        broken[place] ^= 1
        model.write_bytes(bytes(broken))
        with pytest.raises(scq.ModelFileError, match="corrupted"):
            scq.load(model)


def test_flipped_bytes_of_the_header_are_noticed(model):
    content = model.read_bytes()
    for place in range(0, 8 + int.from_bytes(content[:8], "little"), 13):
        broken = bytearray(content)
        broken[place] ^= 0x10
        model.write_bytes(bytes(broken))
        with pytest.raises(scq.ModelFileError):
            scq.load(model)


def test_foreign_files(tmp_path):
    foreign = tmp_path / "foreign.safetensors"
    safetensors.numpy.save_file({"weight": np.zeros(3)}, foreign)
    with pytest.raises(scq.ModelFileError, match=r"not a model of scq_gpu; it holds \['weight'\]"):
        scq.load(foreign)
    foreign.write_bytes(b"PK\x03\x04 a zip file, say" * 10)
    with pytest.raises(scq.ModelFileError, match="not a whole safetensors file"):
        scq.load(foreign)
    with pytest.raises(FileNotFoundError):
        scq.load(tmp_path / "missing.safetensors")


def _with_header(model, **changes):
    content = model.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    arrays = safetensors.numpy.load(content)
    header |= changes
    header["sha256"] = models.digest(arrays, header)
    model.write_bytes(safetensors.numpy.save(arrays, metadata=header))


def test_newer_format_and_other_contract(model):
    _with_header(model, format_version="2")
    with pytest.raises(
        scq.ModelFileError, match=r"format version 2, and this .* reads version 1: load it with the scq_gpu"
    ):
        scq.load(model)
    _with_header(model, format_version="1", bit_contract="MSB first")
    with pytest.raises(scq.ModelFileError, match="another bit contract: 'MSB first'"):
        scq.load(model)


def test_unknown_encoder_is_named(model):
    content = model.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    facts = json.loads(header["facts"]) | {"encoder": "Tomorrow"}
    _with_header(model, facts=json.dumps(facts))
    with pytest.raises(scq.ModelFileError, match=r"encoder 'Tomorrow'.*knows"):
        scq.load(model)


def test_missing_folder(X, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"folder .*nowhere does not exist"):
        scq.OgE(n_bits=3, max_iter=1, tol=0, random_state=0).fit(X).save(tmp_path / "nowhere" / "m.safetensors")


@pytest.mark.parametrize("failure", ["write", "rename"])
def test_failed_write_leaves_the_old_file_and_nothing_else(X, model, monkeypatch, failure):
    before = model.read_bytes()

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync" if failure == "write" else "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        scq.OgE(n_bits=3, max_iter=1, tol=0, random_state=0).fit(X).save(model)
    assert model.read_bytes() == before
    assert [p.name for p in model.parent.iterdir()] == [model.name]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_unwritable_folder(X, model):
    model.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with pytest.raises(PermissionError):
            scq.OgE(n_bits=3, max_iter=1, tol=0, random_state=0).fit(X).save(model)
    finally:
        model.parent.chmod(stat.S_IRWXU)
    scq.load(model)
