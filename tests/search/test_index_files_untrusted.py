"""Index files: every flipped byte is found on request, ids are checked always, and strange headers name the file."""

import json
import struct

import numpy as np
import pytest
from command_line import run  # noqa: F401 - a fixture

import scq_gpu as scq
from scq_gpu.search import index_file


@pytest.fixture
def path(tmp_path):
    rng = np.random.default_rng(0)
    codes = np.packbits(rng.integers(0, 2, size=(500, 12), dtype=np.uint8), axis=1, bitorder="little")
    ids = rng.permutation(10_000)[:500]
    scq.HammingIndex(codes, 12, ids).save(tmp_path / "i.safetensors")
    return tmp_path / "i.safetensors"


def read(path):
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def write(path, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def refused(path, match, **options):
    with pytest.raises(ValueError, match=match) as caught:
        scq.HammingIndex.load(path, **options)
    assert "i.safetensors" in str(caught.value)


def test_every_flipped_byte_is_found(path, monkeypatch):
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    places = np.unique(np.r_[8 : 8 + length : 11, np.linspace(8 + length, len(content) - 1, 200).astype(int)])
    for place in places:
        broken = bytearray(content)
        broken[place] ^= 4
        path.write_bytes(bytes(broken))
        refused(path, "not a usable index file", verify=True)
    path.write_bytes(content)
    assert len(scq.HammingIndex.load(path, verify=True)) == 500


@pytest.mark.parametrize("block", [64, 1000, 4096])
def test_digests_are_per_block_and_name_it(path, monkeypatch, block):
    monkeypatch.setattr(index_file, "_BLOCK", block)
    index = scq.HammingIndex.load(path)
    index.save(path)
    header, data = read(path)
    end = header["digests"]["data_offsets"][0]
    assert header["digests"]["shape"] == [1 + -(-end // block), 32]
    scq.HammingIndex.load(path, verify=True)
    broken = bytearray(data)
    begin = header["codes"]["data_offsets"][0]
    broken[begin + 20] ^= 1
    write(path, path.read_bytes()[8 : -len(data)], bytes(broken))
    refused(path, f"block {(begin + 20) // block} of ", verify=True)
    scq.HammingIndex.load(path)  # which does not look


def test_files_without_digests_or_distance_are_rejected(path):
    header, data = read(path)
    write(path, header | {"__metadata__": header["__metadata__"] | {"distance": "none"}}, data)
    refused(path, "its distance is 'none', not one of hamming, spherical")
    del header["__metadata__"]["distance"]
    write(path, header, data)
    refused(path, "its distance is None")
    header["__metadata__"]["distance"] = "hamming"
    end = header.pop("digests")["data_offsets"][0]
    write(path, header, data[:end])
    refused(path, "it has no digests")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda ids: ids[:1].__setitem__(0, -5), "the id -5 of row 0 is below 0"),
        (lambda ids: ids[:1].__setitem__(0, np.iinfo(np.int64).min), "is below 0"),
        (lambda ids: ids[7:8].__setitem__(0, ids[6]), "is given to more than one code"),
        (lambda ids: ids[7:8].__setitem__(0, -1), "the id -1 of row 7 is below 0"),
        (lambda ids: ids[7:8].__setitem__(0, 1 << 40), "of row 7 is not below the next"),
    ],
)
@pytest.mark.parametrize("piece", [1 << 20, 7])
def test_ids_are_checked_at_every_load(path, change, match, piece, monkeypatch):
    monkeypatch.setattr(index_file, "_PIECE", piece)
    header, data = read(path)
    begin, end = header["ids"]["data_offsets"]
    ids = np.frombuffer(data[begin:end], dtype="<i8").copy()
    change(ids)
    write(path, header, data[:begin] + ids.tobytes() + data[end:])
    refused(path, match)


def test_padding_bits_are_found_on_request(path, monkeypatch):
    header, data = read(path)
    begin, end = header["codes"]["data_offsets"]
    codes = np.frombuffer(data[begin:end], dtype=np.uint8).copy()
    codes[41] |= 0x80
    monkeypatch.setattr(index_file, "_verify", lambda *args: None)
    write(path, header, data[:begin] + codes.tobytes() + data[end:])
    refused(path, "the code of row 20 has bits set beyond n_bits=12", verify=True)


HEADERS = {
    "metadata a list": lambda h: h.update(__metadata__=[["format", index_file.FORMAT]]),
    "metadata a number": lambda h: h.update(__metadata__=5),
    "metadata nothing": lambda h: h.update(__metadata__=None),
    "no metadata": lambda h: h.pop("__metadata__"),
    "numbers in metadata": lambda h: h["__metadata__"].update(n_bits=12),
    "huge n_bits": lambda h: h["__metadata__"].update(n_bits="9" * 5000),
    "negative n_bits": lambda h: h["__metadata__"].update(n_bits="-12"),
    "other distance": lambda h: h["__metadata__"].update(distance="\x1b[2J"),
    "infinite shape": lambda h: h["codes"].update(shape=[float("inf"), 2]),
    "shape of floats": lambda h: h["codes"].update(shape=[500.0, 2.0]),
    "shape of strings": lambda h: h["codes"].update(shape="ab"),
    "no shape": lambda h: h["codes"].update(shape=[]),
    "negative shape": lambda h: h["codes"].update(shape=[-500, -2]),
    "huge shape": lambda h: h["codes"].update(shape=[10**30, 2]),
    "empty and huge": lambda h: h["codes"].update(shape=[0, 10**30], data_offsets=[0, 0]),
    "offsets beyond": lambda h: h["codes"].update(data_offsets=[10**9, 10**9 + 1000]),
    "offsets of floats": lambda h: h["codes"].update(data_offsets=[0.5, 1000.5]),
    "three offsets": lambda h: h["codes"].update(data_offsets=[0, 1, 2]),
    "entry a list": lambda h: h.update(codes=[1]),
    "no codes": lambda h: h.pop("codes"),
    "unknown dtype": lambda h: h["codes"].update(dtype="C64"),
    "dtype a list": lambda h: h["codes"].update(dtype=[]),
    "ids of another type": lambda h: h["ids"].update(dtype="U64"),
    "ids too few": lambda h: h["ids"].update(shape=[499], data_offsets=[0, 499 * 8]),
}


@pytest.mark.parametrize("change", HEADERS.values(), ids=HEADERS)
def test_strange_headers_name_the_file(path, change):
    header, data = read(path)
    change(header)
    write(path, header, data)
    refused(path, "not a usable index file")


@pytest.mark.parametrize("text", [b"[" * 100_000, b"{", b"[]", b"1", b"\xff\xfe", b""])
def test_headers_that_are_no_json(path, text):
    write(path, text, b"x" * 100)
    refused(path, "not a usable index file")


def test_info_verify(path, tmp_path, monkeypatch, run):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("info i.safetensors --verify --json")
    assert code == 0
    assert json.loads(out)["verified"] is True
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    path.write_bytes(bytes(content))
    code, _, err = run("info i.safetensors --verify")
    assert code == 1
    assert "does not match its digest" in err
    assert run("info i.safetensors")[0] == 0


def test_vector_index_whose_rows_are_not_those_of_its_codes(tmp_path):
    X = np.random.default_rng(0).standard_normal((300, 16)).astype(np.float32)
    path = tmp_path / "i.safetensors"
    scq.VectorIndex(X, n_bits=8, random_state=0).save(path)
    header, data = read(path)
    facts = json.loads(header["__metadata__"]["vectors"])
    for change in (
        lambda facts: facts.update(d=15),
        lambda facts: facts.update(dtype="<f8"),
        lambda facts: facts["segments"][0].update(rows=299),
        lambda facts: facts["segments"][0].update(rows=301),
        lambda facts: facts["segments"].append({"rows": 5}),
        lambda facts: facts.update(segments=[]),
        lambda facts: facts["segments"][0].update(path="/dev/zero"),
    ):
        changed, said = json.loads(json.dumps(header)), json.loads(json.dumps(facts))
        change(said)
        changed["__metadata__"]["vectors"] = json.dumps(said)
        write(path, changed, data)
        with pytest.raises(ValueError, match=r"i\.safetensors"):
            scq.VectorIndex.load(path)


def test_vector_index_files(tmp_path):
    X = np.random.default_rng(0).standard_normal((300, 16)).astype(np.float32)
    path = tmp_path / "i.safetensors"
    scq.VectorIndex(X, n_bits=8, random_state=0).save(path)
    scq.VectorIndex.load(path, verify=True)
    header, data = read(path)
    for change in (
        lambda h: h["__metadata__"].update(metric="l3"),
        lambda h: h["__metadata__"].pop("encoder"),
        lambda h: h["__metadata__"].update(encoder="[" * 10_000),
        lambda h: h["__metadata__"].update(encoder_shapes='{"components_": [8, 999]}'),
        lambda h: h["__metadata__"].update(n_bits="7"),
    ):
        changed = json.loads(json.dumps(header))
        change(changed)
        write(path, changed, data)
        with pytest.raises(ValueError, match=r"i\.safetensors"):
            scq.VectorIndex.load(path)
