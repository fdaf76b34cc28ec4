"""Codes in other layouts: searched by the library they are for, they have the same neighbours as in HammingIndex."""

import json
from importlib.util import find_spec

import numpy as np
import pytest
from foreign_search import BITS, K, assert_same_neighbours, converted, make_case, random_bits
from hypothesis import given
from hypothesis import strategies as st

import scq_gpu as scq
from scq_gpu.io.formats import FORMATS


@pytest.fixture(scope="module", params=BITS)
def case(request):
    return make_case(request.param)


# libraries that search


def test_faiss(case):
    faiss = pytest.importorskip("faiss")
    codes, queries = converted(case, "faiss")
    index = faiss.IndexBinaryFlat(8 * codes.shape[1])
    index.add(codes)
    distances, ids = index.search(queries, K)
    assert_same_neighbours(case, ids, distances)


@pytest.mark.parametrize("whole_bytes", [False, True])
def test_usearch(case, whole_bytes):
    usearch = pytest.importorskip("usearch.index")
    codes, queries = converted(case, "usearch")
    ndim = 8 * codes.shape[1] if whole_bytes else case["n_bits"]
    index = usearch.Index(ndim=ndim, metric="hamming", dtype="b1")
    index.add(np.arange(len(codes)), codes)
    found = index.search(queries, K, exact=True)
    assert_same_neighbours(case, found.keys.astype(np.int64), found.distances)


def sentence_transformers():
    pytest.importorskip("faiss")
    pytest.importorskip("usearch")
    if find_spec("sentence_transformers") is None:
        pytest.skip("sentence-transformers is not installed")
    from sentence_transformers.util import quantization

    return quantization


def ids_of(hits):
    return [[hit["corpus_id"] for hit in query] for query in hits]


def test_sentence_transformers_search(case):
    quantization = sentence_transformers()
    for search, to, precision in (
        (quantization.semantic_search_faiss, "ubinary", "ubinary"),
        (quantization.semantic_search_faiss, "sentence-transformers", "ubinary"),
        (quantization.semantic_search_usearch, "ubinary", "ubinary"),
        (quantization.semantic_search_usearch, "binary", "binary"),
    ):
        codes, queries = converted(case, to)
        hits, _ = search(queries, corpus_embeddings=codes, corpus_precision=precision, top_k=K, rescore=False)
        distances = [[hit["score"] for hit in query] for query in hits]
        assert_same_neighbours(case, ids_of(hits), distances)


@pytest.mark.parametrize("n_bits", BITS)
def test_sentence_transformers_makes_the_same_bytes_of_the_projections(n_bits):
    quantization = sentence_transformers()
    X = np.random.default_rng(0).standard_normal((300, 101)).astype(np.float32)
    encoder = scq.OgE(n_bits=n_bits, max_iter=2, tol=0, random_state=0).fit(X)
    codes, floats = encoder.encode(X), encoder.project(X)
    assert not (floats == 0).any()  # it takes zero for a 0, we for a 1
    for precision in ("binary", "ubinary"):
        theirs = quantization.quantize_embeddings(floats, precision=precision)
        np.testing.assert_array_equal(scq.convert(codes, n_bits, to=precision), theirs, strict=True)


def test_sentence_transformers_rescores_float_queries():
    """Rescoring multiplies float queries with unpacked bits: with the wrong bit order it ranks at random."""
    quantization = sentence_transformers()
    X = np.random.default_rng(0).standard_normal((300, 40)).astype(np.float32)
    encoder = scq.OgE(n_bits=31, max_iter=5, tol=0, random_state=0).fit(X)
    queries, codes = encoder.project(X[:20]), encoder.encode(X)
    hits, _ = quantization.semantic_search_faiss(
        queries, scq.convert(codes, 31, to="ubinary"), corpus_precision="ubinary", top_k=1, rescore_multiplier=300
    )
    scores = queries @ (scq.unpack(codes, 31) > 0).T.astype(np.float32)
    np.testing.assert_array_equal(ids_of(hits), scores.argmax(axis=1)[:, None])


# databases


def test_qdrant(case):
    qdrant = pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
    codes, queries = converted(case, "qdrant")
    client = qdrant.QdrantClient(":memory:")
    client.create_collection(
        "codes", vectors_config=qdrant.models.VectorParams(size=case["n_bits"], distance=qdrant.models.Distance.DOT)
    )
    client.upload_collection("codes", vectors=codes, ids=list(range(len(codes))))
    answers = [client.query_points("codes", query=query, limit=K).points for query in queries]
    distances = [[(case["n_bits"] - point.score) / 2 for point in points] for points in answers]
    assert_same_neighbours(case, [[point.id for point in points] for points in answers], distances)
    client.close()


def test_lancedb(case, tmp_path):
    lancedb = pytest.importorskip("lancedb", reason="lancedb is not installed")
    pa = pytest.importorskip("pyarrow")
    codes, queries = converted(case, "lancedb")
    column = pa.FixedSizeListArray.from_arrays(pa.array(codes.ravel()), codes.shape[1])
    table = lancedb.connect(tmp_path).create_table("codes", pa.table({"id": np.arange(len(codes)), "code": column}))
    answers = [table.search(query).distance_type("hamming").limit(K).to_arrow() for query in queries]
    distances = [answer["_distance"].to_pylist() for answer in answers]
    assert_same_neighbours(case, [answer["id"].to_pylist() for answer in answers], distances)


def test_milvus(case, tmp_path):
    pymilvus = pytest.importorskip("pymilvus", reason="pymilvus is not installed")
    if find_spec("milvus_lite") is None:
        pytest.skip("milvus-lite is not installed")
    codes, queries = converted(case, "milvus")
    client = pymilvus.MilvusClient(str(tmp_path / "milvus.db"))
    schema = client.create_schema(auto_id=False)
    schema.add_field("id", pymilvus.DataType.INT64, is_primary=True)
    schema.add_field("code", pymilvus.DataType.BINARY_VECTOR, dim=8 * codes.shape[1])
    params = client.prepare_index_params()
    params.add_index("code", index_type="BIN_FLAT", metric_type="HAMMING")
    try:
        client.create_collection("codes", schema=schema, index_params=params)
    except pymilvus.MilvusException as error:
        if "does not support" not in str(error):
            raise
        pytest.skip("this milvus-lite has no binary vectors (2.5 has)")
    client.insert("codes", [{"id": i, "code": code.tobytes()} for i, code in enumerate(codes)])
    hits = client.search("codes", data=[query.tobytes() for query in queries], limit=K)
    distances = [[hit["distance"] for hit in query] for query in hits]
    assert_same_neighbours(case, [[hit["id"] for hit in query] for query in hits], distances)
    client.close()


# bytes, from the documentation of systems that were not run


def test_vespa_examples():
    """The table of its guide to binarizing: the first number is the most significant bit, bytes are signed."""
    bits = np.array([[1] * 8, [0] * 8, [1] + [0] * 7, [1] + [0] * 6 + [1]])
    assert scq.convert(scq.pack(bits), 8, to="vespa").tolist() == [[-1], [0], [-128], [-127]]


def test_elasticsearch_example():
    """The example of its dense_vector page: [127, -127, 0, 1, 42] is 0111111110000001000000000000000100101010."""
    numbers = "0111111110000001000000000000000100101010"
    other = "1000000100000000000000010010101001111111"
    codes = scq.pack(np.array([[int(bit) for bit in row] for row in (numbers, other)]))
    signed = scq.convert(codes, 40, to="elasticsearch")
    assert signed.dtype == np.int8
    assert signed.tolist()[0] == [127, -127, 0, 1, 42]
    assert scq.convert(codes, 40, to="hex")[1] == "8100012a7f"
    assert scq.convert(codes, 40, to="bits").tolist() == [numbers, other]
    json.dumps(signed.tolist())
    distances, _ = scq.HammingIndex(codes[:1], 40).search(codes[1:], k=1)
    assert (40 - distances.item()) / 40 == 0.55  # its score of the two, says the page


def test_milvus_example():
    """The first vector of its binary vector page, packed as that page packs: bit i at position i % 8 of byte i // 8."""
    bits = [1, 0, 0, 1, 1, 0, 1, 1, 0, 1, 0, 1, 0, 1, 0, 0]
    expected = bytes(sum(bit << (i % 8) for i, bit in enumerate(bits[start : start + 8])) for start in (0, 8))
    assert scq.convert(scq.pack(np.array([bits])), 16, to="milvus").tobytes() == expected


def test_cuvs_layout():
    """Bit i in bit i % 8 of byte i / 8, unused bits zero, says the page on its binary datasets."""
    bits = random_bits(50, 13)
    codes = scq.convert(scq.pack(bits), 13, to="cuvs")
    assert codes.shape == (50, 2)
    for i in range(16):
        expected = bits[:, i] if i < 13 else np.zeros(50, dtype=bool)
        np.testing.assert_array_equal(codes[:, i // 8] >> (i % 8) & 1, expected)


# the formats themselves

MSB = {"usearch", "lancedb", "sentence-transformers", "ubinary"}
LSB = {"faiss", "cuvs", "milvus"}


@given(st.integers(1, 70), st.integers(0, 6), st.integers(0, 2**32))
def test_every_format_against_numpy(n_bits, n, seed):
    bits = np.random.default_rng(seed).random((n, n_bits)) < 0.5
    codes, big = scq.pack(bits), np.packbits(bits, axis=1)
    text = ["".join("01"[bit] for bit in row) for row in bits.astype(int)]
    expected = {
        **dict.fromkeys(LSB, np.packbits(bits, axis=1, bitorder="little")),
        **dict.fromkeys(MSB, big),
        **dict.fromkeys(("vespa", "elasticsearch"), big.view(np.int8)),
        "binary": (big.astype(np.int16) - 128).astype(np.int8),
        "hex": [bytes(row).hex() for row in big],
        "pgvector": text,
        "bits": np.array(text, dtype=f"U{n_bits}"),
        **dict.fromkeys(("qdrant", "weaviate"), np.where(bits, 1, -1).astype(np.float32)),
    }
    assert expected.keys() == FORMATS.keys()
    for to, wanted in expected.items():
        result = scq.convert(codes, n_bits, to=to)
        assert type(result) is type(wanted), to
        if isinstance(wanted, list):
            assert result == wanted, to
        else:
            np.testing.assert_array_equal(result, wanted, strict=True, err_msg=to)


def test_codes_are_left_alone():
    codes = scq.pack(random_bits(20, 31))
    kept = codes.copy()
    for to in FORMATS:
        scq.convert(codes, 31, to=to)
    np.testing.assert_array_equal(codes, kept)


@pytest.mark.parametrize("to", sorted(FORMATS))
def test_arrays_stay_in_their_namespace(backend, to):
    bits = random_bits(9, 13)
    expected = scq.convert(scq.pack(bits), 13, to=to)
    result = scq.convert(scq.pack(backend.array(bits)), 13, to=to)
    if to in ("hex", "pgvector", "bits"):
        assert list(result) == list(expected)
    else:
        assert backend.owns(result)
        np.testing.assert_array_equal(backend.host(result), expected, strict=True)


@pytest.mark.parametrize(
    ("codes", "n_bits", "to", "error", "message"),
    [
        (np.zeros((2, 2), np.uint8), 16, "pinecone", ValueError, "to='pinecone' is not one of 'faiss', 'cuvs'"),
        (np.zeros((2, 2), np.uint8), 16, None, ValueError, "to=None is not one of"),
        (np.zeros((2, 2), np.uint8), 17, "faiss", ValueError, "2 bytes wide; n_bits=17 takes 3"),
        (np.zeros((2, 2), np.int8), 16, "faiss", TypeError, "dtype int8; packed codes are uint8"),
        (np.zeros(2, np.uint8), 16, "faiss", ValueError, "must have 2 dimensions, got 1"),
        (np.full((2, 2), 255, np.uint8), 9, "pgvector", ValueError, "bits set beyond n_bits=9"),
        (np.zeros((2, 2), np.uint8), 0, "faiss", ValueError, "n_bits=0 must be an integer >= 1"),
        (np.zeros((2, 2), np.uint8), 16.0, "faiss", ValueError, r"n_bits=16\.0 must be an integer"),
    ],
)
def test_bad_input(codes, n_bits, to, error, message):
    with pytest.raises(error, match=message):
        scq.convert(codes, n_bits, to=to)
