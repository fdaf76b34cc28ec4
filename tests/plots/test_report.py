"""The report page: one file that needs nothing else, right in its numbers and marks, readable in a browser."""

import base64
import html
import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors

import scq_gpu as scq
from scq_gpu.metrics import exact_neighbors
from scq_gpu.metrics.evaluation import RetrievalTask

pytest.importorskip("matplotlib", reason="the report's figures need matplotlib")

from scq_gpu.plots.report import write_report

X, Y = load_digits(return_X_y=True)
X = X.astype(np.float32)
N = len(X)
IMAGES = X.reshape(-1, 8, 8)
FIGURES = ["precision-recall", "distances", "balance", "correlation", "loss", "bits", "scale"]


@pytest.fixture(scope="module")
def encoder():
    return scq.OgE(n_bits=16, max_iter=20, tol=0, random_state=0).fit(X)


@pytest.fixture(scope="module")
def page(encoder, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "page.html"
    write_report(path, encoder, X, labels=Y, images=IMAGES, name="a <model> & more")
    return path.read_text(encoding="utf-8")


class Elements(HTMLParser):
    """Tags with their attributes, and whether every tag that is opened is closed in turn."""

    VOID = frozenset({"meta", "link", "img", "br", "use", "path", "image"})

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.balanced = [], [], True
        self.feed(text)
        self.balanced &= not self.open

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            self.balanced &= bool(self.open) and self.open.pop() == tag


def test_page_needs_no_network_and_runs_no_script(page):
    assert "<script" not in page
    assert not re.search(r'(?:src|href)\s*=\s*"(?!data:|#)', page)
    assert not re.search(r"url\((?!#)|@import", page)
    assert len(page) < 500_000


def test_page_is_well_formed_and_every_reference_meets_its_id(page):
    elements = Elements(page)
    assert elements.balanced
    ids = [attributes["id"] for _, attributes in elements.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    wanted = set(re.findall(r'(?:url\(|href=")#([^")]+)', page))
    assert wanted
    assert wanted <= set(ids)


def test_every_figure_is_there_with_a_caption_and_a_name_for_screen_readers(page):
    assert re.findall(r'<figure id="([^"]+)"', page) == FIGURES
    assert len(re.findall(r'<figure id="[^"]+"><svg role="img" aria-label="\w', page)) == len(FIGURES)
    assert page.count("<figcaption>") == len(FIGURES)


def test_figures_take_their_colors_from_the_page(page):
    drawn = "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))
    drawn = re.sub(r'"data:image[^"]*"', "", drawn)
    assert set(re.findall(r"#[0-9a-f]{6}\b", drawn)) == set()
    used = set(re.findall(r"var\(--([\w-]+)\)", page))
    for scheme in re.findall(r":root \{(.*?)\}", page):
        assert used <= set(re.findall(r"--([\w-]+):", scheme))
    assert page.count(":root {") == 2


def test_name_is_escaped(page):
    assert "<h1>a &lt;model&gt; &amp; more</h1>" in page
    assert "<model>" not in page


def gallery_of(page):
    """The <svg> of the gallery."""
    return re.search(r'<div class="facts gallery">(<svg.*?</svg>)', page, re.DOTALL).group(1)


def typical_by_hand(bits, labels, task):
    """Per label, the query whose average precision is nearest the label's median: plain loops over unpacked bits."""
    queries, rows = task.query_rows, task.database_rows
    precisions = []
    for query in queries:
        right = labels[rows][np.argsort((bits[query] != bits[rows]).sum(1), kind="stable")] == labels[query]
        precisions.append((np.cumsum(right) / np.arange(1, len(right) + 1))[right].mean())
    chosen = []
    for label in range(8):
        of_label = [i for i in range(len(queries)) if labels[queries[i]] == label]
        ordered = sorted(precisions[i] for i in of_label)
        chosen.append(next(i for i in of_label if precisions[i] == ordered[(len(ordered) - 1) // 2]))
    return chosen


def marks_by_hand(encoder):
    """Marks and distances of a search by hand: unpacked bits, all distances, a stable sort."""
    task = RetrievalTask(X, Y)
    bits, marks = encoder.transform(X), []
    for query in task.query_rows[typical_by_hand(bits, Y, task)]:
        far = (bits[query] != bits[task.database_rows]).sum(1)
        near = np.argsort(far, kind="stable")[:10]
        right = Y[task.database_rows][near] == Y[query]
        marks += [f"{'✓' if yes else '✗'} {far[i]}" for yes, i in zip(right, near, strict=True)]
    return marks


def test_gallery_marks_are_right(page, encoder, tmp_path):
    assert re.findall(r">([✓✗] \d+)</text>", gallery_of(page)) == marks_by_hand(encoder)
    assert gallery_of(page).count("<image ") == 8 * 11
    poor = scq.LSH(n_bits=9, random_state=0).fit(X)
    write_report(tmp_path / "page.html", poor, X, labels=Y, images=IMAGES, refit=False)
    marks = marks_by_hand(poor)
    assert re.findall(r">([✓✗] \d+)</text>", gallery_of((tmp_path / "page.html").read_text("utf-8"))) == marks
    assert {"✓", "✗"} <= set("".join(marks)), "one of the two marks was not tried"


def test_gallery_shows_the_images(page, encoder):
    task = RetrievalTask(X, Y)
    typical = typical_by_hand(encoder.transform(X), Y, task)
    shown = images_of(gallery_of(page))
    assert {image.shape[:2] for image in shown} == {(8, 8)}
    scaled = np.rint(255 * IMAGES[task.query_rows[typical]] / IMAGES.max())
    for image, wanted in zip(shown[::11], scaled, strict=True):
        np.testing.assert_allclose(image[..., 0], wanted, atol=1)


def images_of(svg):
    """The images inside an SVG, as arrays; upright, however the SVG places them."""
    pil = pytest.importorskip("PIL.Image", reason="reading images needs pillow")
    found = []
    for tag in re.findall(r"<image [^>]*>", svg, re.DOTALL):
        data = re.search(r'base64,\s*([^"]+)"', tag).group(1)
        with pil.open(io.BytesIO(base64.b64decode(data))) as image:
            found.append(np.asarray(image.convert("RGB")))
    return found


def test_numbers_on_the_page_are_those_returned(tmp_path, encoder):
    path = tmp_path / "page.html"
    numbers = write_report(path, encoder, X, labels=Y, refit=False)
    shown = re.findall(r"<b>([\d.]+)%</b>", path.read_text(encoding="utf-8"))
    assert shown == [f"{100 * value:.1f}" for key, value in numbers.items() if key not in ("k", "radius")]
    assert "precision of the first 1,000" in path.read_text(encoding="utf-8")


def test_task_with_queries_of_its_own_agrees_with_evaluate(encoder):
    task = RetrievalTask(X[:1500], Y[:1500], X_query=X[1500:], query_labels=Y[1500:])
    figures = task.measure(encoder, k=50, radius=3)
    wanted = scq.evaluate(encoder, X[1500:], X[:1500], Y[1500:], Y[:1500], k=50, radius=3).as_dict()
    assert figures == {name: wanted[name] for name in figures}


def test_task_that_draws_queries_takes_them_out_of_the_database(encoder):
    task = RetrievalTask(X, Y, n_queries=1000)
    assert task.n_queries == N // 5
    assert sorted([*task.query_rows, *task.database_rows]) == list(range(N))
    split = task.query_rows, task.database_rows
    wanted = RetrievalTask(X[split[1]], Y[split[1]], X_query=X[split[0]], query_labels=Y[split[0]])
    alike = {"rel": 0, "abs": 0.002}  # BLAS may round a row another way among others, and turn two results round
    assert task.measure(encoder) == pytest.approx(wanted.measure(encoder), **alike)
    bare = RetrievalTask(X, n_queries=50)
    wanted = RetrievalTask(X[bare.database_rows], X_query=X[bare.query_rows])
    assert bare.measure(encoder) == pytest.approx(wanted.measure(encoder), **alike)


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nearest_rows_against_scikit_learn(dtype, offset):
    rng = np.random.default_rng(0)
    data, queries = rng.standard_normal((3000, 20)), rng.standard_normal((40, 20))
    data, queries = (data + offset).astype(dtype), (queries + offset).astype(dtype)
    wanted = NearestNeighbors(n_neighbors=7, algorithm="brute").fit(data.astype(np.float64)).kneighbors(queries)[0]
    ids = exact_neighbors(queries, data, k=7)
    found = np.linalg.norm(data[ids].astype(np.float64) - queries[:, None], axis=2)
    np.testing.assert_allclose(found, wanted, rtol=1e-5 if offset == 0 or dtype == np.float64 else 1e-2)


def test_nearest_rows_over_blocks_files_and_ties(tmp_path, monkeypatch):
    from scq_gpu.rows.blocks import Rows

    data = np.repeat(np.arange(50.0), 4)[:, None]
    np.save(tmp_path / "x.npy", data)
    wanted = exact_neighbors(data[::10], data, k=6)
    blocks = Rows.blocks
    monkeypatch.setattr(Rows, "blocks", lambda self, size=None: blocks(self, 7))
    np.testing.assert_array_equal(exact_neighbors(data[::10], data, k=6), wanted)
    np.testing.assert_array_equal(exact_neighbors(data[::10], scq.io.open_rows(tmp_path / "x.npy"), k=6), wanted)
    np.testing.assert_array_equal(wanted[0], [0, 1, 2, 3, 4, 5])  # lowest row first inside a tie
    with pytest.raises(ValueError, match="k=201 exceeds the 200 rows"):
        exact_neighbors(data[:1], data, k=201)
    with pytest.raises(ValueError, match=r"X_query has shape \(1, 2\); \(queries, 1\)"):
        exact_neighbors(np.zeros((1, 2)), data, k=1)


def test_without_labels_the_nearest_rows_are_right_and_label_figures_are_left_out(tmp_path, encoder):
    numbers = write_report(tmp_path / "page.html", encoder, X, images=IMAGES, refit=False)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "mean_average_precision" not in numbers
    assert {"recall_10_at_10", "recall_10_at_100", "asymmetric_10_at_10", "rescored_16x"} <= set(numbers)
    assert 0 < numbers["recall_10_at_10"] < numbers["recall_10_at_100"] <= 1
    assert re.findall(r'<figure id="([^"]+)"', text) == ["balance", "correlation", "loss"]
    assert "✓" not in text
    assert "✗" not in text


def test_many_labels_per_row_and_rows_from_a_file(tmp_path, encoder):
    np.save(tmp_path / "x.npy", X)
    many = np.stack([Y % 2 == 0, Y > 4, Y == 3], axis=1)
    rows = scq.io.open_rows(tmp_path / "x.npy")
    write_report(tmp_path / "page.html", encoder, rows, labels=many, images=IMAGES, refit=False)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    task = RetrievalTask(X, many)
    bits = encoder.transform(X)
    precisions, signs = [], []
    for query in task.query_rows:
        order = np.argsort((bits[query] != bits[task.database_rows]).sum(1), kind="stable")
        right = (many[query] & many[task.database_rows[order]]).any(axis=1)
        precisions.append((np.cumsum(right) / np.arange(1, len(right) + 1))[right].sum() / max(right.sum(), 1))
        signs.append(["✓" if yes else "✗" for yes in right[:10]])
    typical = precisions.index(sorted(precisions)[(len(precisions) - 1) // 2])
    assert re.findall(r">([✓✗]) \d+</text>", gallery_of(text))[:10] == signs[typical]


def test_an_encoder_that_has_no_loss_and_no_linear_map(tmp_path):
    for other, figures in ((scq.LSH(n_bits=8, random_state=0), FIGURES[2:4]), (scq.SpH(n_bits=8), FIGURES[2:5])):
        write_report(tmp_path / "page.html", other.fit(X), X)
        text = (tmp_path / "page.html").read_text(encoding="utf-8")
        assert re.findall(r'<figure id="([^"]+)"', text) == figures
        assert Elements(text).balanced


def test_images_from_files_in_color_and_shrunk(tmp_path, encoder):
    pil = pytest.importorskip("PIL.Image", reason="reading image files needs pillow")
    files = [tmp_path / f"{k}.png" for k in range(13)]
    for k, path in enumerate(files):
        pil.new("RGB", (200, 100), (k, 40, 200)).save(path)
    paths = [files[k % 13] for k in range(N)]
    write_report(tmp_path / "page.html", encoder, X, labels=Y, images=paths, refit=False)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len(set(ids)), "ids of equal images"
    image = images_of(gallery_of(text))[0]
    task = RetrievalTask(X, Y)
    query = task.query_rows[typical_by_hand(encoder.transform(X), Y, task)[0]]
    assert image.shape == (96, 96, 3)
    np.testing.assert_array_equal(image[48, 48], [query % 13, 40, 200])
    np.testing.assert_array_equal(image[[0, 20, 76, 95], 48], 0)  # twice as wide as high: black above and below
    files[7].write_bytes(b"no image")
    paths = [files[7]] * N
    with pytest.raises(ValueError, match=r"7\.png is not an image"):
        write_report(tmp_path / "other.html", encoder, X, images=paths, refit=False)
    assert not (tmp_path / "other.html").exists()


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_large_images_in_arrays_are_shrunk(tmp_path, encoder, dtype):
    colors = np.linspace(0.1, 0.9, 3) * (1 if dtype is np.float32 else 255)
    images = np.broadcast_to(colors.astype(dtype), (N, 130, 201, 3))
    write_report(tmp_path / "page.html", encoder, X, images=images, refit=False)
    image = images_of(gallery_of((tmp_path / "page.html").read_text(encoding="utf-8")))[0]
    assert image.shape == (43, 67, 3)
    np.testing.assert_allclose(image, np.broadcast_to(np.linspace(25.5, 229.5, 3), image.shape), atol=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": Y[:5]}, rf"shape \(5,\).*{N}"),
        ({"labels": Y + 0.5}, "labels are integers"),
        ({"images": IMAGES[:5]}, f"5 images and {N} rows"),
        ({"images": X}, "images must have 3 dimensions"),
        ({"images": np.zeros((N, 4, 4, 2))}, r", 4, 4, 2\); \(n, height, width\)"),
        ({"n_queries": 0}, "n_queries=0"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(tmp_path, encoder, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        write_report(tmp_path / "page.html", encoder, X, refit=False, **options)
    assert list(tmp_path.iterdir()) == []


def test_missing_folder(tmp_path, encoder):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        write_report(tmp_path / "nowhere" / "page.html", encoder, X, refit=False)


@pytest.mark.parametrize(
    ("labels", "query_labels", "message"),
    [(Y[:500], None, "but not query_labels"), (None, Y[500:], "but not labels"), (Y[:500], Y[:3], r"shape \(3,\)")],
)
def test_labels_of_one_side_only(labels, query_labels, message):
    with pytest.raises(ValueError, match=message):
        RetrievalTask(X[:500], labels, X_query=X[500:], query_labels=query_labels)


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MEASURE = """<!doctype html><body>
<iframe style="width:390px;height:800px;border:0" srcdoc="{page}"></iframe>
<iframe style="width:1200px;height:800px;border:0" srcdoc="{page}"></iframe>
<pre id="out"></pre>
<script>
addEventListener("load", () => {{
  const seen = [...document.querySelectorAll("iframe")].map((frame) => {{
    const page = frame.contentDocument, root = page.documentElement;
    const box = (x) => {{ const b = x.getBoundingClientRect(); return [b.left, b.right, b.width, b.height]; }};
    return {{
      wide: root.scrollWidth, room: root.clientWidth,
      figures: [...page.querySelectorAll("figure svg")].map(box),
      images: [...page.querySelectorAll(".gallery svg image")].map(box),
      letters: [...page.querySelectorAll("svg text")].map((x) => x.getBoundingClientRect().height),
      paper: getComputedStyle(page.body).backgroundColor,
      ink: getComputedStyle(page.querySelector("figure svg text")).fill,
    }};
  }});
  document.getElementById("out").textContent = JSON.stringify(seen);
  {more}
}});
</script>"""


def look(page, folder, *flags, more=""):
    """What Chromium makes of the page, on a phone and on a desk, and what it logs to its console."""
    path = folder / "measure.html"
    path.write_text(MEASURE.format(page=html.escape(page), more=more), encoding="utf-8")
    quiet = "--disable-gpu --disable-background-networking --disable-component-update --disable-sync --no-first-run"
    command = [CHROMIUM, "--headless", "--no-sandbox", *quiet.split(), f"--user-data-dir={folder}/profile"]
    command += ["--enable-logging=stderr", "--window-size=1400,900", "--dump-dom", *flags, path.as_uri()]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    out = re.search(r'<pre id="out">(.*?)</pre>', run.stdout, re.DOTALL)
    assert out, run.stderr
    console = [line for line in run.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(html.unescape(out.group(1))), console


def lightness(color):
    return sum(int(x) for x in re.findall(r"\d+", color)[:3]) / 3


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to look at the page with")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser(page, tmp_path, scheme):
    flags = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    seen, console = look(page, tmp_path, *flags)
    assert console == []
    for frame in seen:
        assert frame["wide"] <= frame["room"]  # no scrolling sideways
        assert len(frame["figures"]) == len(FIGURES)
        for left, right, width, height in frame["figures"]:
            assert width > 250
            assert height > 150
            assert left >= 0
            assert right <= frame["room"]
        assert len(frame["images"]) == 88
        assert all(width > 40 and height > 40 for _, _, width, height in frame["images"])
        assert min(frame["letters"]) > 6
        paper, ink = lightness(frame["paper"]), lightness(frame["ink"])
        assert (paper < 60 and ink > 200) if scheme == "dark" else (paper > 200 and ink < 60)
    assert seen[0]["room"] <= 390 < seen[1]["room"]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to look at the page with")
def test_the_look_in_a_browser_would_see_faults(page, tmp_path):
    wide = page.replace("</main>", '<div style="width:900px">x</div></main>').replace("var(--series-0)", "none")
    seen, console = look(wide, tmp_path, more='console.error("a fault");')
    assert any("a fault" in line for line in console)
    assert seen[0]["wide"] > seen[0]["room"]


# what is wrong, in a sentence


class Broken:
    """An encoder whose bits go wrong as asked: columns of X are replaced before their signs are taken."""

    n_bits, n_features_in_, converged_, n_iter_ = 8, 8, True, 3

    def __init__(self, **bits):
        self.bits = bits

    def encode(self, rows):
        bits = np.asarray(rows)[:, :8] >= 0
        for name, value in self.bits.items():
            bits[:, int(name[1:])] = value(bits) if callable(value) else value
        return np.packbits(bits, axis=1, bitorder="little")

    def get_params(self, deep=False):
        return {}


def sentences(encoder, tmp_path):
    rows = np.random.default_rng(0).standard_normal((2000, 8)).astype(np.float32)
    write_report(tmp_path / "page.html", encoder, rows, refit=False)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    return html.unescape(" ".join(re.findall(r'<(?:p class="fine"|li)>(.*?)</(?:p|li)>', text))), text


def test_report_says_that_nothing_is_wrong(tmp_path):
    found, text = sentences(Broken(), tmp_path)
    assert re.fullmatch(r"Nothing looks wrong: every bit changes, no two repeat each other, and \d+% of .*", found)
    assert re.search(r"Here 4\d to 5\d %: that is good\.", text)
    assert re.search(r"Here at most \.0\d, of either sign: that is good\.", text)


def test_report_names_neighbors_that_are_lost(tmp_path):
    broken = Broken(**{f"b{bit}": lambda bits: np.arange(len(bits)) % 2 == 0 for bit in range(8)})
    found, _ = sentences(broken, tmp_path)
    assert re.search(r"Only \d+% of a query's 10 nearest rows are found by re-ranking 160 candidates", found)
    broken.preserve = "classes"
    assert "nearest rows" not in sentences(broken, tmp_path)[0]


def test_report_names_bits_that_repeat_others(tmp_path):
    def nearly(bits):
        return bits[:, 1] ^ (np.arange(len(bits)) % 66 == 0)

    found, text = sentences(Broken(b4=nearly, b6=lambda bits: ~bits[:, 2]), tmp_path)
    assert "2 and 6 (correlation -1.00); 1 and 4 (correlation .97). One bit of each pair adds next to nothing." in found
    assert "of either sign: good is .50 or less." in text


def test_report_names_bits_that_never_or_hardly_change(tmp_path):
    rare = {"b7": lambda bits: np.arange(len(bits)) % 50 == 0}
    found, text = sentences(Broken(b0=True, b3=False, **rare), tmp_path)
    assert "Bits 0, 3 never change: they carry no information." in found
    assert "Bit 7 is nearly always the same (the rarer value in as few as 2." in found
    assert "Here 0 to 100 %: good is 30 to 70 %." in text


def test_report_says_that_a_fit_did_not_settle(tmp_path):
    broken = Broken()
    broken.converged_ = False
    found, _ = sentences(broken, tmp_path)
    assert found == "The fit stopped after 3 iterations, before its loss had settled: raise max_iter."


def test_typical_queries_are_those_nearest_the_median():
    from scq_gpu.plots.report import typical_queries

    quality = np.array([0.0, 0.1, 0.5, 0.9, 1.0])
    assert typical_queries(quality, 3).tolist() == [2, 1, 3]
    assert typical_queries(quality, 9).tolist() == [2, 1, 3, 0, 4]
    groups = np.array([7, 7, 7, 4, 4])
    assert typical_queries(quality, 3, groups).tolist() == [3, 1, 2]  # of 4: a tie, the lowest; of 7: its median
    assert typical_queries(quality, 1, groups).tolist() == [3]
