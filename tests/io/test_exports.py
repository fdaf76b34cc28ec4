"""Encoders handed to Faiss, ONNX and torch, and taken from Faiss: the same codes, up to the rounding of the product."""

import copy
import pickle
import sys

import numpy as np
import pytest
import reference
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import scq_gpu as scq
from scq_gpu._core.bits import BIT_CONTRACT
from scq_gpu.encoders.imported import ImportedEncoder

BITS = [1, 8, 31, 64, 100]
D = 120


@pytest.fixture(scope="module")
def X():
    """Rows with a mean, so that thresholds matter."""
    return (np.random.default_rng(0).standard_normal((10_000, D)) + 0.3).astype(np.float32)


@pytest.fixture(scope="module", params=BITS)
def encoder(request, X):
    return scq.OgE(n_bits=request.param, max_iter=2, tol=0, random_state=0).fit(X[:1000])


def map_of(components, threshold):
    """An encoder with this map."""
    encoder = ImportedEncoder(n_bits=len(threshold))
    encoder.components_, encoder.threshold_ = np.asarray(components), np.asarray(threshold)
    encoder.n_features_in_ = encoder.components_.shape[1]
    return encoder


def with_faiss(encoder):
    pytest.importorskip("faiss")
    return encoder.to_faiss().sa_encode


def with_onnxruntime(encoder):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(
        encoder.to_onnx().SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda X: session.run(["codes"], {"X": X})[0]


def with_onnx_reference(encoder):
    """The onnx package's own evaluator, in NumPy."""
    pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(encoder.to_onnx())
    return lambda X: evaluator.run(["codes"], {"X": X})[0]


def with_torch(encoder):
    torch = pytest.importorskip("torch")
    module = encoder.to_torch()
    return lambda X: module(torch.from_numpy(X)).numpy()


EXPORTS = [with_faiss, with_onnxruntime, with_onnx_reference, with_torch]


@pytest.mark.parametrize("export", EXPORTS)
def test_same_codes_on_ten_thousand_rows(encoder, X, export):
    codes, ours = export(encoder)(X), encoder.encode(X)
    assert (codes.dtype, codes.shape) == (ours.dtype, ours.shape)
    W, t = encoder.components_.T, encoder.threshold_
    reference.assert_same_codes(codes, X, W, t, encoder.n_bits)
    reference.assert_same_codes(ours, X, W, t, encoder.n_bits)
    differing = np.bitwise_count(codes ^ ours).sum()
    assert differing <= 1e-4 * X.shape[0] * encoder.n_bits
    if encoder.n_bits % 8:
        assert not (codes[:, -1] >> encoder.n_bits % 8).any()  # padding


@pytest.mark.parametrize("export", EXPORTS)
def test_zero_counts_as_one_and_small_integers_are_exact(export):
    rng = np.random.default_rng(0)
    W = rng.integers(-2, 3, (11, 5))
    X = rng.integers(-2, 3, (500, 5)).astype(np.float32)
    t = np.diagonal(X @ W.T)  # row k is on the threshold of bit k
    codes = export(map_of(W.astype(np.float64), t.astype(np.float64)))(X)
    np.testing.assert_array_equal(codes, reference.pack(X @ W.T >= t))


@pytest.mark.parametrize("export", EXPORTS)
def test_one_feature_and_more_bits_than_features(export):
    X = np.linspace(-3, 3, 25, dtype=np.float32)[:, None]
    t = np.linspace(-2, 2, 10)
    codes = export(map_of(np.ones((10, 1)), t))(X)
    np.testing.assert_array_equal(codes, reference.pack(X >= t.astype(np.float32)))


@pytest.mark.parametrize("export", [with_onnxruntime, with_torch])
@pytest.mark.parametrize("n", [1, 3])
def test_any_number_of_rows(encoder, X, export, n):
    codes = export(encoder)(X[:n])
    assert codes.shape == (n, -(-encoder.n_bits // 8))
    reference.assert_same_codes(codes, X[:n], encoder.components_.T, encoder.threshold_, encoder.n_bits)


@pytest.mark.parametrize("export", [with_onnxruntime, with_torch])
def test_nan_gives_zeros_as_the_docstrings_say(export):
    X = np.array([[np.nan, 1.0], [1.0, 1.0]], dtype=np.float32)
    assert export(map_of(np.ones((9, 2)), np.zeros(9)))(X).tolist() == [[0, 0], [255, 1]]


@pytest.mark.parametrize("method", ["to_faiss", "to_onnx", "to_torch"])
def test_an_unfitted_encoder_has_nothing_to_export(method):
    with pytest.raises(NotFittedError):
        getattr(scq.OgE(n_bits=8), method)()


@pytest.mark.parametrize(
    ("method", "library", "cure"),
    [("to_faiss", "faiss", "pip install faiss-cpu"), ("to_onnx", "onnx", r"scq-gpu\[export\]")],
)
def test_a_missing_library_is_named_with_the_cure(monkeypatch, method, library, cure):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=rf"{method} needs {library}.*{cure}"):
        getattr(map_of(np.ones((1, 1)), np.zeros(1)), method)()


def test_an_encoder_of_another_namespace_exports_too(X):
    strict = pytest.importorskip("array_api_strict")
    device = strict.Device("device1")
    encoder = scq.OgE(n_bits=9, max_iter=2, tol=0, random_state=0).fit(strict.asarray(X[:500], device=device))
    W, t = (np.from_dlpack(x) for x in (encoder.components_.T, encoder.threshold_))
    for export in (with_faiss, with_onnxruntime):
        reference.assert_same_codes(export(encoder)(X), X, W, t, 9)


# ONNX


def test_onnx_is_one_product_with_the_contract_beside_it(encoder):
    onnx = pytest.importorskip("onnx")
    model = encoder.to_onnx()
    onnx.checker.check_model(model, full_check=True)
    operations = [node.op_type for node in model.graph.node]
    assert operations.count("MatMul") == 1
    assert [opset.version for opset in model.opset_import] == [13]
    assert {prop.key: prop.value for prop in model.metadata_props} == {
        "bit_contract": BIT_CONTRACT,
        "n_bits": str(encoder.n_bits),
        "n_features": str(D),
        "encoder": "OgE",
    }
    shapes = [
        [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    ]
    assert shapes == [["n", D], ["n", -(-encoder.n_bits // 8)]]


def test_onnx_file_is_the_model_and_replaces_the_old_one(tmp_path):
    onnx = pytest.importorskip("onnx")
    encoder = map_of(np.ones((3, 2)), np.zeros(3))
    path = tmp_path / "encoder.onnx"
    path.write_bytes(b"old")
    model = encoder.to_onnx(path)
    assert onnx.load(path) == model == encoder.to_onnx()
    with pytest.raises(FileNotFoundError, match=r"the folder .* does not exist"):
        encoder.to_onnx(tmp_path / "missing" / "encoder.onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["encoder.onnx"]


# torch


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def test_torch_module_has_two_buffers_of_its_own(torch, encoder, X):
    module = encoder.to_torch()
    assert list(module.state_dict()) == ["components", "threshold"]
    assert not list(module.parameters())
    assert repr(module) == f"TorchEncoder(n_features={D}, n_bits={encoder.n_bits})"
    module.components.zero_()
    assert encoder.components_.any()  # the encoder's arrays are not shared


def test_torch_module_takes_other_types_and_leading_axes(torch, encoder, X):
    module, rows = encoder.to_torch(), torch.from_numpy(X[:60])
    codes = module(rows)
    assert codes.dtype == torch.uint8
    assert torch.equal(module(rows.reshape(3, 20, D)), codes.reshape(3, 20, -1))
    assert torch.equal(module(rows[0]), codes[0])
    assert torch.equal(module(rows.half()), module(rows.half().float()))
    assert torch.equal(module(rows.double()), codes)
    assert torch.equal(module(rows.requires_grad_()), codes)


def test_torch_module_survives_copies(torch, encoder, X):
    module, rows = encoder.to_torch(), torch.from_numpy(X[:50])
    for same in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(same(rows), module(rows))
    other = scq.OgE(n_bits=encoder.n_bits, max_iter=1, tol=0, random_state=9).fit(X[:500]).to_torch()
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(rows), module(rows))


def test_torch_module_runs_where_its_buffers_are(torch, encoder):
    """On torch's meta device every tensor that a forward makes elsewhere, or reads, is an error."""
    codes = encoder.to_torch().to("meta")(torch.empty(7, D, device="meta"))
    assert codes.device.type == "meta"
    assert tuple(codes.shape) == (7, -(-encoder.n_bits // 8))


def test_torch_module_can_be_traced(torch, X):
    """torch.export sees tensor operations only, with the number of rows open."""
    encoder = scq.OgE(n_bits=31, max_iter=1, tol=0, random_state=0).fit(X[:500])
    module, rows = encoder.to_torch(), torch.from_numpy(X[:50])
    traced = torch.export.export(module, (rows,), dynamic_shapes=({0: torch.export.Dim("n")},)).module()
    assert torch.equal(traced(rows[:7]), module(rows[:7]))


# Faiss


@pytest.fixture
def faiss():
    return pytest.importorskip("faiss")


def test_faiss_index_searches_as_hamming_index_does(faiss, encoder, X):
    index = encoder.to_faiss()
    index.add(X[:2000])
    codes = faiss.vector_to_array(index.codes).reshape(2000, -1)
    distances, ids = index.search(X[2000:2020], 10)
    expected, _ = scq.HammingIndex(codes, encoder.n_bits).search(index.sa_encode(X[2000:2020]), k=10)
    np.testing.assert_array_equal(distances, expected)
    found = np.bitwise_count(codes[ids] ^ index.sa_encode(X[2000:2020])[:, None, :]).sum(axis=2)
    np.testing.assert_array_equal(found, expected)


def test_faiss_round_trips(faiss, encoder, X):
    index = encoder.to_faiss()
    for same in (index, faiss.deserialize_index(faiss.serialize_index(index))):
        np.testing.assert_array_equal(same.sa_encode(X), index.sa_encode(X))
        back = scq.from_faiss(same)
        np.testing.assert_array_equal(back.components_, encoder.components_, strict=True)
        np.testing.assert_array_equal(back.threshold_, encoder.threshold_, strict=True)


FACTORIES = [
    "LSH",
    "LSHr",
    "LSHt",
    "LSHrt",
    "PCA16,LSH",
    "PCAR16,LSH",
    "PCAW16,LSHt",
    "RR16,LSH",
    "OPQ4_16,LSH",
    "ITQ16,LSH",
    "PCA24,ITQ16,LSH",
    "L2norm,RR16,LSH",
]


@pytest.fixture(scope="module")
def small():
    return (np.random.default_rng(1).standard_normal((2000, 40)) * np.linspace(1, 3, 40) + 0.5).astype(np.float32)


def train(faiss, factory, X):
    index = faiss.index_factory(X.shape[1], factory)
    if factory.startswith("OPQ"):
        faiss.downcast_VectorTransform(index.chain.at(0)).niter = 1
    index.train(X)
    return index


def assert_nearly(codes, encoder, X):
    """Faiss takes several float32 products where the encoder takes one: bits differ only next to the threshold."""
    scores = X.astype(np.float64) @ encoder.components_.T.astype(np.float64) - encoder.threshold_
    bits = np.unpackbits(codes, axis=1, count=encoder.n_bits, bitorder="little") == 1
    far = np.abs(scores) > 1e-4 * np.abs(scores).mean(axis=0)
    assert far.mean() > 0.999
    np.testing.assert_array_equal(bits[far], scores[far] >= 0)


@pytest.mark.parametrize("factory", FACTORIES)
def test_from_faiss_reads_what_faiss_learned(faiss, small, factory):
    index = train(faiss, factory, small)
    encoder = scq.from_faiss(index)
    assert encoder.n_features_in_ == 40
    codes = index.sa_encode(small)
    assert_nearly(codes, encoder, small)
    assert np.bitwise_count(encoder.encode(small) ^ codes).sum() <= 1e-3 * codes.size


def test_from_faiss_reads_transforms(faiss, small):
    transforms = [faiss.PCAMatrix(40, 12), faiss.ITQTransform(40, 12, True), faiss.RandomRotationMatrix(40, 12)]
    transforms += [faiss.CenteringTransform(40), faiss.NormalizationTransform(40), faiss.ITQMatrix(40)]
    for transform in transforms:
        transform.train(small)
        encoder = scq.from_faiss(transform)
        assert encoder.n_bits == transform.d_out
        assert_nearly(reference.pack(transform.apply(small) >= 0), encoder, small)


def test_from_faiss_keeps_the_first_dimensions_of_a_short_lsh(faiss, small):
    index = faiss.IndexLSH(40, 11, False, False)
    np.testing.assert_array_equal(scq.from_faiss(index).encode(small), reference.pack(small[:, :11] >= 0))
    np.testing.assert_array_equal(index.sa_encode(small), reference.pack(small[:, :11] >= 0))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda faiss, X: train(faiss, "L2norm,PCA16,LSH", X), ValueError, "bits are no linear map of the row"),
        (lambda faiss, X: train(faiss, "ITQ16,LSHt", X), ValueError, "bits are no linear map of the row"),
        (lambda faiss, X: faiss.index_factory(40, "PCA16,LSH"), ValueError, "is not trained; train it in Faiss first"),
        (lambda faiss, X: faiss.PCAMatrix(40, 4), ValueError, "PCAMatrix is not trained"),
        (lambda faiss, X: faiss.IndexFlatL2(40), TypeError, "IndexFlatL2 does not encode by the signs"),
        (lambda faiss, X: faiss.IndexIDMap(faiss.IndexLSH(40, 8)), TypeError, "IndexIDMap does not .*in index.index"),
        (lambda faiss, X: faiss.IndexBinaryFlat(40), TypeError, "from_faiss got IndexBinaryFlat; pass a faiss.Index"),
        (lambda faiss, X: X, TypeError, "from_faiss got ndarray; pass a faiss.Index"),
        (
            lambda faiss, X: faiss.RemapDimensionsTransform(40, 8, True),
            TypeError,
            "cannot read a RemapDimensionsTransform; it reads LinearTransform",
        ),
    ],
)
def test_from_faiss_refuses_what_is_no_linear_map(faiss, small, make, error, message):
    with pytest.raises(error, match=message):
        scq.from_faiss(make(faiss, small))


# what an imported encoder can do


@pytest.fixture
def imported(faiss, small):
    return scq.from_faiss(train(faiss, "ITQ16,LSH", small))


def test_imported_encoder_saves_and_loads(imported, small, tmp_path):
    imported.save(tmp_path / "m.safetensors")
    loaded = scq.load(tmp_path / "m.safetensors")
    assert type(loaded) is ImportedEncoder
    assert (loaded.n_bits, loaded.n_features_in_) == (16, 40)
    np.testing.assert_array_equal(loaded.encode(small), imported.encode(small))


def test_imported_encoder_is_measured_like_any_other(imported, small):
    y = np.arange(2000) % 3
    figures = scq.evaluate(imported, small[1500:], small[:1500], y[1500:], y[:1500])
    assert figures.n_bits == 16
    index = scq.HammingIndex(imported.encode(small), imported.n_bits)
    _, ids = index.search_asymmetric(imported, small[:5], k=1)
    assert ids.shape == (5, 1)


def test_imported_encoder_does_not_learn(imported, small):
    before = imported.encode(small)
    assert imported.fit(small + 1) is imported
    np.testing.assert_array_equal(imported.encode(small), before)
    with pytest.raises(ValueError, match="X has 39 features, but ImportedEncoder is expecting 40"):
        imported.fit(small[:, 1:])
    with pytest.raises(NotFittedError, match="an ImportedEncoder cannot learn: make it with"):
        clone(imported).fit(small)
    scaler = StandardScaler().fit(small)
    pipeline = make_pipeline(scaler, FrozenEstimator(imported))
    signs = clone(pipeline).fit_transform(small)
    np.testing.assert_array_equal(signs, imported.transform(scaler.transform(small)))
