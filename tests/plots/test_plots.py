"""Plots: what is drawn is what was given, on any axes and background, and bad data is refused by name."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

matplotlib = pytest.importorskip("matplotlib", reason="plots need matplotlib")
matplotlib.use("agg")

import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.colors import to_rgb  # noqa: E402

import scq_gpu as scq  # noqa: E402
from scq_gpu import metrics, plots  # noqa: E402
from scq_gpu.encoders.sweeps import ScalePath  # noqa: E402
from scq_gpu.plots import _style  # noqa: E402

RNG = np.random.default_rng(0)
CODES = RNG.integers(0, 256, (200, 3), dtype=np.uint8)
LABELS = RNG.integers(0, 4, 200)


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def bits_of(codes, n_bits):
    return np.unpackbits(codes, axis=1, count=n_bits, bitorder="little").astype(float)


def hamming(a, b):
    return (np.unpackbits(a, axis=1)[:, None] != np.unpackbits(b, axis=1)).sum(-1)


def luminance(color):
    return float(np.dot(to_rgb(color), (0.2126, 0.7152, 0.0722)))


def every_plot(ax):
    """Each function, drawing on the axes that ``ax()`` gives."""
    images = RNG.random((2, 4, 4))
    path = ScalePath((0.5, 1.0, 2.0), (0.4, 0.3, 0.5), (99.0, 95.0, 80.0), (), 1.0)
    halves = (CODES[:50], CODES[50:], LABELS[:50], LABELS[50:])
    return {
        "loss_curve": plots.loss_curve({"a": [3.0, 2.0], "b": [2.0, 1.0]}, ax=ax()),
        "bits_curve": plots.bits_curve({"a": {8: 0.1, 16: 0.2}, "b": {8: 0.3}}, ax=ax()),
        "scale_path": plots.scale_path(path, ax=ax()),
        "precision_recall": plots.precision_recall(metrics.precision_recall_curve(*halves), ax=ax()),
        "distance_histograms": plots.distance_histograms(*halves, ax=ax()),
        "bit_balance": plots.bit_balance(CODES, 24, ax=ax()),
        "bit_correlation": plots.bit_correlation(CODES, 24, ax=ax()),
        "gallery": plots.gallery(images, images[None, :].repeat(2, 0), right=np.eye(2) == 1, ax=ax()),
    }


def test_every_public_plot_is_tried_here():
    assert set(every_plot(lambda: None)) | {"theme"} == set(plots.__all__)


@pytest.mark.parametrize("dark", [False, True])
def test_axes_given_are_axes_returned_with_titles_units_and_readable_ink(dark):
    with plots.theme(dark=dark):
        drawn = every_plot(lambda: plt.figure().subplots())
    for name, ax in drawn.items():
        face = luminance(ax.figure.get_facecolor()[:3])
        assert (face < 0.1) == dark
        assert ax.get_title(loc="left"), name
        texts = [ax.xaxis.label, ax.yaxis.label, *ax.get_xticklabels(), *ax.texts, ax.title]
        texts += ax.get_legend().get_texts() if ax.get_legend() else []
        for text in texts:
            assert abs(luminance(text.get_color()) - face) > 0.25, (name, text.get_text())
        if name != "gallery":
            assert ax.get_xlabel(), name
            assert ax.get_ylabel(), name


def test_new_axes_are_made_when_none_are_given_and_nothing_global_changes():
    before = dict(matplotlib.rcParams)
    drawn = every_plot(lambda: None)
    assert len({id(ax.figure) for ax in drawn.values()}) == len(drawn)
    assert dict(matplotlib.rcParams) == before


def test_the_look_is_ours_on_new_axes_and_yours_on_your_own():
    for name, ax in every_plot(lambda: None).items():
        assert ax.get_title(loc="left"), name
        assert ax.get_legend() is None or not ax.get_legend().get_frame_on()
    for name, ax in every_plot(lambda: plt.figure().subplots()).items():
        assert ax.get_title(loc="center"), name


def test_matplotlibs_own_dark_style_gets_light_ink():
    with plt.style.context("dark_background"):
        ax = plots.loss_curve({"a": [3.0, 2.0], "b": [1.0, 0.5]})
    assert luminance(ax.lines[0].get_color()) > 0.3
    assert luminance(ax.get_legend().get_texts()[0].get_color()) > 0.6


def simulate_color_blindness(color, kind):
    """Linear RGB as seen without one kind of cone (Machado, Oliveira and Fernandes 2009, severity 1)."""
    matrices = {
        "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    }
    rgb = np.array(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return np.clip(np.array(matrices[kind]) @ linear, 0, 1)


@pytest.mark.parametrize("kind", ["protan", "deutan", "tritan"])
@pytest.mark.parametrize("colors", [_style.LIGHT, _style.DARK], ids=["light", "dark"])
def test_the_first_three_colors_stay_apart_for_color_blind_readers(colors, kind):
    seen = [simulate_color_blindness(color, kind) for color in colors["series"][:3]]
    for i in range(3):
        for j in range(i):
            assert np.linalg.norm(seen[i] - seen[j]) > 0.1, (kind, i, j)


def test_lines_differ_in_more_than_color():
    ax = plots.bits_curve({str(k): {8: k / 10, 16: k / 8} for k in range(6)})
    assert len({line.get_marker() for line in ax.lines}) == 6
    assert len({str(line._unscaled_dash_pattern) for line in ax.lines}) == 6


def test_loss_curve_draws_the_encoders_losses():
    X = RNG.standard_normal((200, 12))
    encoder = scq.OgE(n_bits=4, max_iter=9, tol=0, random_state=0).fit(X)
    ax = plots.loss_curve(encoder)
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), encoder.loss_curve_)
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), np.arange(1, encoder.n_iter_ + 1))


def test_bits_curve_takes_tables_and_mappings_and_draws_them_in_order():
    table = [{"n_bits": 32, "recall": 0.8, "x": 1}, {"n_bits": 8, "recall": 0.4, "x": 2}]
    ax = plots.bits_curve({"a": table, "b": {16: 0.5}}, metric="recall")
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), [[8, 0.4], [32, 0.8]])
    assert [t.get_text() for t in ax.get_xticklabels()] == ["8", "16", "32"]
    ax.figure.canvas.draw()
    assert all(t.get_text().endswith("%") for t in ax.get_yticklabels())
    assert len(plots.bits_curve(table, metric="recall").lines) == 1


def test_scale_path_draws_what_the_library_returns():
    X = RNG.standard_normal((200, 8)) / np.arange(1, 9)
    path = scq.scale_path(X, 4, [2.0, 0.5, 1.0], encoder=scq.OnE(random_state=0))
    ax = plots.scale_path(path)
    right = next(other for other in ax.figure.axes if other is not ax)
    order = np.argsort(path.scales)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), np.array(path.loss_per_bit)[order])
    np.testing.assert_allclose(right.lines[0].get_ydata(), np.array(path.retained_variance)[order])
    assert ax.lines[1].get_xdata()[0] == path.auto


@settings(max_examples=12)
@given(n=st.integers(1, 40), n_bits=st.integers(1, 30), seed=st.integers(0, 99))
def test_bit_balance_and_correlation_equal_numpy(n, n_bits, seed):
    rng = np.random.default_rng(seed)
    codes = scq.pack(rng.random((n, n_bits)) < rng.random(n_bits))
    bits = bits_of(codes, n_bits)
    ax = plots.bit_balance(codes, n_bits)
    np.testing.assert_allclose([bar.get_height() for bar in ax.patches], bits.mean(0))
    R = np.asarray(plots.bit_correlation(codes, n_bits).images[0].get_array())
    plt.close("all")
    with np.errstate(invalid="ignore", divide="ignore"):
        wanted = np.nan_to_num(np.atleast_2d(np.corrcoef(bits, rowvar=False)) if n > 1 else np.zeros((n_bits, n_bits)))
    constant = bits.std(0) == 0
    wanted[constant], wanted[:, constant] = 0, 0
    np.fill_diagonal(wanted, 0)
    np.testing.assert_allclose(R, wanted, atol=1e-6)


def test_bits_are_counted_over_blocks(monkeypatch):
    whole = np.asarray(plots.bit_correlation(CODES, 24).images[0].get_array())
    monkeypatch.setattr("scq_gpu.plots._figures._BLOCK_ROWS", 7)
    np.testing.assert_allclose(np.asarray(plots.bit_correlation(CODES, 24).images[0].get_array()), whole, atol=1e-12)


@pytest.mark.parametrize("labels", ["classes", "many"])
def test_distance_histograms_equal_a_count_of_all_pairs(labels):
    Q, D = CODES[:60], CODES[60:]
    if labels == "classes":
        q, d = LABELS[:60], LABELS[60:]
        same = q[:, None] == d
    else:
        q, d = RNG.random((60, 3)) < 0.4, RNG.random((140, 3)) < 0.4
        same = (q[:, None] & d).any(-1)
    far = hamming(Q, D)
    ax = plots.distance_histograms(Q, D, q, d, n_bits=24)
    filled = [patch for patch in ax.patches if patch.get_label() in ("same class", "other class")]
    for patch, pairs in zip(filled, (same, ~same), strict=True):
        wanted = np.bincount(far[pairs], minlength=25) / pairs.sum()
        np.testing.assert_allclose(patch.get_data().values, wanted)
    assert ax.get_xlim() == (-0.5, 24.5)


def test_precision_recall_keeps_each_radius_that_finds_more():
    precision, recall = metrics.precision_recall_curve(CODES[:50], CODES[50:], LABELS[:50], LABELS[50:])
    line = plots.precision_recall({"x": (precision, recall)}).lines[0]
    kept = np.concatenate([[True], np.diff(recall) > 0])
    np.testing.assert_array_equal(line.get_xydata(), np.stack([recall[kept], precision[kept]], axis=1))


@pytest.mark.parametrize("color", [(), (3,)])
def test_gallery_shows_each_image_and_marks_right_and_wrong(color):
    images = RNG.integers(0, 256, (3, 5, 6, *color), dtype=np.uint8)
    answers = RNG.integers(0, 256, (3, 4, 5, 6, *color), dtype=np.uint8)
    right = RNG.random((3, 4)) < 0.5
    ax = plots.gallery(images, answers, right=right, distances=np.arange(12).reshape(3, 4))
    shown = [np.asarray(image.get_array()) for image in ax.images]
    np.testing.assert_array_equal(shown[0], images[0])
    np.testing.assert_array_equal(np.stack(shown[1:5]), answers[0])
    signs = [text.get_text()[0] == "✓" for text in ax.texts]
    np.testing.assert_array_equal(signs, right.ravel())
    thick = [patch.get_linewidth() > 2 for patch in ax.patches]
    np.testing.assert_array_equal(thick, ~right.ravel())
    assert [text.get_text().split()[1] for text in ax.texts] == [str(k) for k in range(12)]
    assert len(plots.gallery(images, answers).texts) in (0, 12)


def test_arrays_of_another_library():
    strict = pytest.importorskip("array_api_strict")
    ours = plots.bit_balance(CODES, 20)
    theirs = plots.bit_balance(strict.asarray(CODES), 20)
    assert [bar.get_height() for bar in theirs.patches] == [bar.get_height() for bar in ours.patches]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: plots.loss_curve(scq.OgE()), ValueError, "OgE has no loss_curve_; fit it first"),
        (lambda: plots.loss_curve({}), ValueError, "empty mapping"),
        (lambda: plots.loss_curve([]), ValueError, r"shape \(0,\)"),
        (lambda: plots.loss_curve([[1.0]]), ValueError, r"shape \(1, 1\)"),
        (lambda: plots.bits_curve({}), ValueError, "empty"),
        (lambda: plots.bits_curve({"a": {}}), ValueError, "empty"),
        (lambda: plots.bits_curve({"a": {0: 0.5}}), ValueError, "n_bits=0"),
        (lambda: plots.bits_curve([{"n_bits": 8, "y": 1}]), ValueError, "lacks n_bits or 'mean_average_precision'.*y"),
        (lambda: plots.precision_recall(([1.0, 0.5], [0.1])), ValueError, "precision has 2 entries and recall 1"),
        (lambda: plots.bit_balance(CODES, 0), ValueError, "n_bits=0"),
        (lambda: plots.bit_balance(CODES, 40), ValueError, "3 bytes wide; n_bits=40 takes 5"),
        (lambda: plots.bit_balance(CODES[:0], 24), ValueError, r"shape \(0, 3\)"),
        (lambda: plots.bit_correlation(CODES.astype(float), 24), TypeError, "float64.*uint8"),
        (lambda: plots.distance_histograms(CODES, CODES[:, :2], LABELS, LABELS), ValueError, "3 bytes wide"),
        (lambda: plots.distance_histograms(CODES, CODES, LABELS[:3], LABELS), ValueError, "query_labels has shape"),
        (lambda: plots.gallery(np.zeros((2, 4)), np.zeros((2, 1, 4, 4))), ValueError, "query_images must have 3"),
        (lambda: plots.gallery(np.zeros((2, 4, 4)), np.zeros((3, 1, 4, 4))), ValueError, r"\(3, 1, 4, 4\)"),
        (lambda: plots.gallery(np.zeros((2, 4, 4, 2)), np.zeros((2, 1, 4, 4, 2))), ValueError, "3 colors last"),
        (
            lambda: plots.gallery(np.zeros((2, 4, 4)), np.zeros((2, 1, 4, 4)), right=np.ones((2, 2))),
            ValueError,
            r"right has shape \(2, 2\); .*\(2, 1\)",
        ),
    ],
)
def test_bad_data_is_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_without_matplotlib_they_say_what_they_need(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r'plots need matplotlib: pip install "scq-gpu\[plots\]"'):
        plots.loss_curve([1.0])


def test_pictures_for_a_paper_are_a_column_wide_and_have_no_title(tmp_path):
    with scq.plots.theme(paper=True):
        ax = scq.plots.bits_curve({"OgE": {8: 0.5, 16: 0.6}, "ITQ": {8: 0.4, 16: 0.5}})
        ax.figure.savefig(tmp_path / "map.pdf")
    assert ax.get_title(loc="left") == ax.get_title() == ""
    assert ax.figure.get_figwidth() == 3.4
    texts = [ax.xaxis.label, ax.yaxis.label, *ax.get_legend().get_texts(), *ax.get_xticklabels()]
    assert {text.get_fontsize() for text in texts} == {8}
    assert b"/FontFile2" in (tmp_path / "map.pdf").read_bytes()
    after = scq.plots.bits_curve({8: 0.5, 16: 0.6})  # the look ends with the theme
    assert after.get_title(loc="left")
    assert after.figure.get_figwidth() == 6.0
