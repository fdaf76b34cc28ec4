"""Fits of data that come once: an iterator of blocks."""

import numpy as np
import pytest

import scq_gpu as scq
from scq_gpu.io import code_files
from scq_gpu.rows import blocks as rows_in_blocks

RNG = np.random.default_rng(0)
X = (RNG.normal(size=(6000, 40)) @ RNG.normal(size=(40, 40)) + 3).astype(np.float32)


def cut(X, *heights):
    start = 0
    while start < len(X):
        height = heights[start % len(heights)]
        yield X[start : start + height]
        start += height


def fit(blocks, **options):
    return scq.OgE(16, random_state=0, **options).fit(blocks)


def test_where_all_rows_fit_it_is_the_fit_of_an_array():
    encoder = fit(cut(X, 500))
    whole = fit(X)
    np.testing.assert_allclose(encoder.mean_, X.astype("f8").mean(0), rtol=1e-5)
    assert (encoder.n_samples_, encoder.n_samples_kept_) == (6000, 6000)
    assert not hasattr(whole, "n_samples_kept_")
    assert not hasattr(encoder.fit(X), "n_samples_kept_")
    encoder.fit(cut(X, 500))
    assert np.mean(np.unpackbits(encoder.encode(X)) == np.unpackbits(whole.encode(X))) > 0.99


@pytest.mark.parametrize("make", [scq.OgE, scq.OnE, scq.ITQ, scq.PCAH, scq.LSH, scq.SpH])
def test_means_are_of_all_rows_and_training_goes_through_a_sample(monkeypatch, make):
    """What went by counts in the mean and the axes, however little is kept; every encoder takes it."""
    monkeypatch.setattr(rows_in_blocks, "KEPT_BYTES", 1000 * 40 * 4)
    options = {} if make is scq.PCAH else {"random_state": 0}
    encoder = make(8, **options).fit(cut(X, 700, 13))
    assert (encoder.n_samples_, encoder.n_samples_kept_) == (6000, 1000)
    if make in (scq.OgE, scq.OnE, scq.PCAH):
        np.testing.assert_allclose(encoder.mean_, X.astype("f8").mean(0), rtol=1e-4)
        top = np.linalg.eigvalsh(np.cov(X.astype("f8").T, bias=True))[::-1][:8]
        np.testing.assert_allclose(encoder.eigenvalues_[:8], top, rtol=1e-3)
    assert encoder.encode(X).shape == (6000, 1)


def test_codes_from_a_sample_are_nearly_as_good(monkeypatch):
    monkeypatch.setattr(rows_in_blocks, "KEPT_BYTES", 1500 * 40 * 4)
    queries, base = X[:200], X[200:]
    truth = np.argsort(((queries[:, None] - base[None]) ** 2).sum(2), axis=1)[:, :10]

    def recall(encoder):
        _, found = scq.HammingIndex(encoder.encode(base), 16).search(encoder.encode(queries), 100)
        return np.mean([len(set(f) & set(t)) / 10 for f, t in zip(found, truth, strict=True)])

    assert recall(fit(cut(base, 333))) > recall(fit(base)) - 0.05


def test_the_sample_is_uniform_and_does_not_know_blocks(monkeypatch):
    """Each of 500 rows is one of 50 kept as often as any other, early, late, and wherever blocks end."""
    monkeypatch.setattr(rows_in_blocks, "KEPT_BYTES", 50 * 4)
    numbers = np.arange(500, dtype=np.float32)[:, None]

    def draw(seed, *heights):
        blocks, rng = cut(numbers, *heights), np.random.default_rng(seed)
        rows, n = rows_in_blocks.sample_blocks(blocks, device=None, rng=rng)
        assert n == 500
        return np.asarray(rows)[:, 0].astype(int)

    counts = np.zeros(500)
    for seed in range(400):
        kept = draw(seed, 60)
        assert len(set(kept.tolist())) == 50
        counts[kept] += 1
    expected = 400 * 50 / 500
    assert ((counts - expected) ** 2 / expected).sum() < 620  # chi-squared, 499 degrees: 620 once in ten thousand
    thirds = counts.reshape(10, 50).sum(1)
    assert thirds.max() - thirds.min() < 250
    np.testing.assert_array_equal(draw(3, 60), draw(3, 1, 499, 7))


def test_the_seed_decides(monkeypatch):
    monkeypatch.setattr(rows_in_blocks, "KEPT_BYTES", 1000 * 40 * 4)
    one, other = (fit(cut(X, *heights)).components_ for heights in ((700,), (700,)))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["array_api_strict", "torch"])
def test_blocks_of_other_namespaces(name):
    module = pytest.importorskip(name)
    encoder = fit(module.asarray(block.copy()) for block in cut(X, 500))
    assert type(encoder.components_) is type(module.asarray(X[:1].copy()))
    np.testing.assert_allclose(np.from_dlpack(encoder.mean_), X.astype("f8").mean(0), rtol=1e-4)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (lambda: iter([]), "an iterator that gave 0 rows"),
        (lambda: iter([X[:1]]), "an iterator that gave 1 rows; at least 2"),
        (lambda: iter(X), r"block 0 of X has shape \(40,\); an iterator gives blocks"),
        (lambda: iter([X[:5], X[5:9, :3]]), "block 1 of X has 3 columns of float32, the first had 40 columns"),
        (lambda: iter([X[:5], X[5:9].astype("f8")]), "block 1 of X has 40 columns of float64"),
        (
            lambda: iter([X[:5], np.where(np.arange(40) == 7, np.float32("nan"), X[5:9])]),
            r"row 0 of block 1 .row 5 of all",
        ),
        (lambda: iter([["a"]]), "block 0 of X has dtype"),
    ],
)
def test_what_is_refused_leaves_the_encoder_as_it_was(blocks, message):
    encoder = scq.OgE(4, max_iter=2, tol=0, random_state=0).fit(X[:100])
    before = encoder.components_.copy()
    with pytest.raises((ValueError, TypeError), match=message):
        encoder.fit(blocks())
    np.testing.assert_array_equal(encoder.components_, before)
    with pytest.raises(TypeError, match="gone through once"):
        encoder.encode(iter([X[:5]]))


def test_verbose_says_what_was_kept(monkeypatch, capsys):
    monkeypatch.setattr(rows_in_blocks, "KEPT_BYTES", 1000 * 40 * 4)
    fit(cut(X, 700), verbose=True)
    assert "OgE: 6,000 rows went by, 1,000 of them are kept for training" in capsys.readouterr().err


def test_a_model_of_a_stream_is_saved(tmp_path):
    encoder = fit(cut(X, 700))
    encoder.save(tmp_path / "m.safetensors")
    loaded = scq.load(tmp_path / "m.safetensors")
    assert (loaded.n_samples_, loaded.n_samples_kept_) == (6000, 6000)
    assert code_files._encoder_digest(loaded) == code_files._encoder_digest(encoder)  # an encode goes on with either
