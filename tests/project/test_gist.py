"""GIST from its definition. CIFAR-10's images do not come with the tests: a slow oracle and properties stand in."""

import sys

import features as gist
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def noise(n=1, side=32, seed=0):
    """Images of 0 to 255 with the spectrum of natural ones."""
    f = np.fft.fftfreq(side)
    radius = np.hypot(f[:, None], f)
    radius[0, 0] = 1
    x = np.fft.ifft2(np.fft.fft2(np.random.default_rng(seed).standard_normal((n, side, side))) / radius).real
    low, high = x.min(axis=(1, 2), keepdims=True), x.max(axis=(1, 2), keepdims=True)
    return 255 * (x - low) / (high - low)


def mirrored(x, margin):
    """Pixels beyond the border, by walking back and forth."""
    n = len(x)
    walk = [*range(n), *range(n - 1, -1, -1)]
    index = [walk[i % (2 * n)] for i in range(-margin, n + margin)]
    return np.array([[x[i, j] for j in index] for i in index])


def frequencies(n):
    return np.array([k if k < n / 2 else k - n for k in range(n)])


def transform(x, sign):
    """Two-dimensional discrete Fourier transform as matrix products."""
    n = len(x)
    F = np.exp(sign * 2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n)
    return F @ x @ F / (n**2 if sign > 0 else 1)


def slow_gist(image):
    """GIST of one grey image, step by step."""
    x = np.log(1 + 255 * (image - image.min()) / (image.max() - image.min()))
    x = mirrored(x, 5)
    k = frequencies(len(x))
    low = np.exp(-(k[:, None] ** 2 + k[None, :] ** 2) / (4 / np.sqrt(np.log(2))) ** 2)
    x = x - transform(transform(x, -1) * low, 1).real
    x = x / (0.2 + np.sqrt(np.abs(transform(transform(x * x, -1) * low, 1).real)))
    x = mirrored(x[5:-5, 5:-5], 32)
    k, n = frequencies(len(x)), len(x)
    spectrum, features = transform(x, -1), []
    for scale in range(4):
        for orientation in range(8):
            G = np.zeros((n, n))
            for a in range(n):
                for b in range(n):
                    direction = complex(k[b], k[a]) or 1  # the mean has no direction: angle 0
                    away = np.angle(direction * np.exp(1j * np.pi * orientation / 8))
                    radius = abs(complex(k[b], k[a])) / n
                    G[a, b] = np.exp(-3.5 * (radius / (0.3 / 1.85**scale) - 1) ** 2 - 2 * np.pi * away**2)
            strength = np.abs(transform(spectrum * G, 1))[32:-32, 32:-32]
            for column in range(4):
                for row in range(4):
                    features.append(strength[8 * row : 8 * row + 8, 8 * column : 8 * column + 8].mean())
    return np.array(features)


def test_equals_the_slow_oracle():
    image = noise(seed=3)
    np.testing.assert_allclose(gist.describe(image)[0], slow_gist(image[0]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", range(4))
@pytest.mark.parametrize("orientation", range(8))
def test_a_grating_lights_its_own_filter(scale, orientation):
    side, angle = 96, -np.pi * orientation / 8
    row, column = np.mgrid[:side, :side]
    phase = 2 * np.pi * 0.3 / 1.85**scale * (column * np.cos(angle) + row * np.sin(angle))
    features = gist.describe(127 + 20 * np.cos(phase)[None])[0].reshape(4, 8, 4, 4)
    middle = features[:, :, 1:3, 1:3].mean(axis=(2, 3))  # away from the mirrored borders
    of_scale = middle[scale]
    assert np.argmax(of_scale) == orientation
    assert np.argmax(middle[:, orientation]) == scale


@pytest.mark.parametrize("row", range(4))
@pytest.mark.parametrize("column", range(4))
def test_a_patch_lights_its_own_cell(row, column):
    image = np.full((1, 32, 32), 100.0)
    image[0, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] += 40 * np.indices((8, 8)).sum(axis=0) % 80
    cells = gist.describe(image)[0].reshape(32, 16)[:16].mean(axis=0)  # the two fine scales
    assert np.argmax(cells) == 4 * column + row


def test_transposed_image():
    image = noise(5, seed=1)
    features = gist.describe(image).reshape(5, 4, 8, 4, 4)
    expected = features[:, :, (4 - np.arange(8)) % 8].transpose(0, 1, 2, 4, 3).reshape(5, 512)
    found = gist.describe(image.transpose(0, 2, 1))
    # the frequency of half a cycle a pixel has no opposite, so the two are not quite equal
    np.testing.assert_allclose(found, expected, atol=0.01 * expected.max())
    assert not np.allclose(found, features.reshape(5, 512), atol=0.01 * expected.max())


@settings(max_examples=10)
@given(gain=st.floats(0.1, 0.9), offset=st.floats(0, 25))
def test_brightness_and_contrast_do_not_matter(gain, offset):
    image = noise()
    np.testing.assert_allclose(gist.describe(gain * image + offset), gist.describe(image), rtol=1e-4, atol=1e-6)


def test_prefilter_evens_out_light_and_contrast():
    image = noise(3)
    plain = gist.prefilter(image)
    np.testing.assert_allclose(gist.prefilter(7 * (1 + image) - 1), plain, atol=1e-9)  # light multiplies
    low, high = (np.log1p(image) * gain for gain in (1, 2))
    ratio = np.std(gist.prefilter(np.expm1(high))) / np.std(gist.prefilter(np.expm1(low)))
    assert 1 < ratio < 1.6  # twice the contrast before, much less after
    assert abs(plain.mean()) < 0.05


def test_colour_is_averaged_and_types_agree():
    colour = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    features = gist.describe(colour)
    assert features.shape == (4, 512)
    assert features.dtype == np.float32
    np.testing.assert_array_equal(features, gist.describe(colour.astype(np.float32)))
    np.testing.assert_allclose(features, gist.describe(colour.mean(axis=-1)), rtol=1e-6)


def test_batches_do_not_matter(monkeypatch):
    images = noise(7)
    whole = gist.describe(images)
    monkeypatch.setattr(gist, "BATCH", 3)
    np.testing.assert_array_equal(gist.describe(images), whole)


def test_a_blank_image_has_no_features():
    assert np.abs(gist.describe(np.full((1, 32, 32), 80))).max() < 1e-12


@pytest.mark.parametrize("shape", [(32, 32), (2, 32, 33), (2, 32, 32, 4), (2, 16, 16), (2, 35, 35)])
def test_bad_shapes(shape):
    with pytest.raises(ValueError, match="expected"):
        gist.describe(np.zeros(shape))


def write_records(path, labels, images):
    path.write_bytes(b"".join(bytes([k]) + x.transpose(2, 0, 1).tobytes() for k, x in zip(labels, images, strict=True)))


def test_read_images(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    write_records(tmp_path / "a.bin", [3, 1, 4, 1, 5], images)
    found, labels = gist.read_images(tmp_path / "a.bin")
    np.testing.assert_array_equal(found, images)
    np.testing.assert_array_equal(labels, [3, 1, 4, 1, 5])


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "0 bytes"), (bytes(3072), "not a multiple of 3073"), (b"\x0a" * 3073, "label 10")]
)
def test_bad_files(tmp_path, content, message):
    (tmp_path / "a.bin").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        gist.read_images(tmp_path / "a.bin")


def test_script_rebuilds_and_compares(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        write_records(
            tmp_path / f"{name}.bin", rng.integers(0, 10, 2), rng.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
        )
    output = tmp_path / "cifar10_gist512.npz"
    monkeypatch.setattr(sys, "argv", ["features.py", "--images", str(tmp_path), "--output", str(output)])
    gist.main()
    with np.load(output) as file:
        assert {name: file[name].shape for name in file.files} == {
            "X_train": (10, 512), "y_train": (10,), "X_test": (2, 512), "y_test": (2,)
        }  # fmt: skip
        last, _ = gist.read_images(tmp_path / "data_batch_5.bin")
        np.testing.assert_array_equal(file["X_train"][8:], gist.describe(last))
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--compare", str(tmp_path)])
    gist.main()
    assert "train: correlation 1.0000\ntest: correlation 1.0000" in capsys.readouterr().out


def test_compare():
    x = np.random.default_rng(0).standard_normal((20, 8))
    assert gist.compare(x, 3 * x + 1) == pytest.approx(1)
    assert abs(gist.compare(x, x[::-1])) < 0.5
