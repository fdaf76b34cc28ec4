"""Features of CIFAR-10 and WordNet for the benchmarks, from a folder given as ``--data``; and GIST from images.

    python benchmarks/features.py --images cifar-10-batches-bin --output cifar10_gist512.npz --compare DIR

computes 512-D GIST of CIFAR-10 from its own files. GIST (A. Oliva, A. Torralba, "Modeling the shape of the scene",
International Journal of Computer Vision, 2001) is the mean strength of 32 Gabor filters, 4 scales by 8 orientations, in
each cell of a 4 x 4 grid, after a prefilter that evens out local contrast. Feature ``16 * filter + cell`` is filter
``8 * scale + orientation``, fine scales first, in cell ``4 * column + row``. The constants are those of the authors'
published program.

Images are read from the binary version of CIFAR-10 (``data_batch_1.bin`` to ``data_batch_5.bin``, ``test_batch.bin``):
records of one byte of label and 3,072 bytes of pixels, red, green and blue planes of 32 x 32.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

SIDE = 32
RECORD = 1 + 3 * SIDE * SIDE
SCALES, ORIENTATIONS, GRID = 4, 8, 4
MARGIN = 32  # pixels mirrored at each side before the Gabor filters,
PREFILTER_MARGIN = 5  # and before the prefilter
CUTOFF = 4  # of the prefilter, in cycles per image
BATCH = 500


@dataclass(frozen=True)
class Split:
    """Rows to train on and search, and queries."""

    name: str
    X: np.ndarray
    y: np.ndarray
    X_query: np.ndarray
    y_query: np.ndarray


def efficientnet(folder: Path) -> Split:
    """Read 1280-D EfficientNet-Lite0 features; the official test images are the queries."""
    with np.load(_file(folder, "cifar10_efflite0.npz")) as file:
        scale = file["feature_scale"].astype(np.float32)
        X, X_query = (file[name].astype(np.float32) * scale for name in ("X_train", "X_test"))
        return Split("EfficientNet-Lite0 1280-D", X, file["y_train"], X_query, file["y_test"])


def wordnet(folder: Path) -> Split:
    """Read 384-D sentence embeddings of definitions, normalized; labels are the 45 lexicographer files."""
    with np.load(_file(folder, "wordnet_minilm384.npz")) as file:
        scale = file["feature_scale"].astype(np.float32)
        X, X_query = (file[name].astype(np.float32) * scale for name in ("X_train", "X_test"))
        X, X_query = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (X, X_query))
        return Split("WordNet 384-D", X, file["y_train"], X_query, file["y_test"])


def gist(folder: Path, seed: int) -> Split:
    """Read 512-D GIST; 100 random queries per class, the remaining 59,000 for training and database."""
    with np.load(_file(folder, "cifar10_gist512.npz")) as file:
        X = np.concatenate([file["X_train"], file["X_test"]]).astype(np.float32)
        y = np.concatenate([file["y_train"], file["y_test"]])
    rng = np.random.default_rng(seed)
    query = np.zeros(len(y), dtype=bool)
    for label in range(10):
        query[rng.choice(np.flatnonzero(y == label), 100, replace=False)] = True
    return Split("GIST 512-D", X[~query], y[~query], X[query], y[query])


def official_gist(folder: Path) -> Split:
    """Read 512-D GIST; the official test images are the queries."""
    with np.load(_file(folder, "cifar10_gist512.npz")) as file:
        X, X_query = (file[name].astype(np.float32) for name in ("X_train", "X_test"))
        return Split("GIST 512-D", X, file["y_train"], X_query, file["y_test"])


SETS = {"EfficientNet": efficientnet, "WordNet": wordnet}


def _file(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.exists():
        raise SystemExit(f"{path} is missing: --data must name a folder that holds {name} (see docs/benchmarks.md)")
    return path


def read_images(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read images (n, 32, 32, 3) uint8 and labels (n,) uint8 of one binary CIFAR-10 file."""
    content = np.fromfile(path, dtype=np.uint8)
    if not len(content) or len(content) % RECORD:
        raise ValueError(
            f"{path} has {len(content)} bytes, not a multiple of {RECORD}; expected a file of CIFAR-10's binary version"
        )
    records = content.reshape(-1, RECORD)
    if records[:, 0].max() > 9:
        raise ValueError(f"{path} holds the label {records[:, 0].max()}; CIFAR-10's labels are 0 to 9")
    return records[:, 1:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1), records[:, 0]


def describe(images: np.ndarray) -> np.ndarray:
    """Return GIST (n, 512) float32 of images (n, rows, columns, 3) or grey ones (n, rows, columns), of 0 to 255."""
    images = np.asarray(images)
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[-1] != 3) or images.shape[1] != images.shape[2]:
        raise ValueError(f"images have shape {images.shape}; expected (n, side, side, 3) or (n, side, side)")
    if images.shape[1] % 2 or images.shape[1] < MARGIN:
        raise ValueError(f"images are {images.shape[1]} pixels wide; expected an even number of at least {MARGIN}")
    transfer = gabor_filters(images.shape[1] + 2 * MARGIN)
    return np.concatenate([_describe(images[i : i + BATCH], transfer) for i in range(0, len(images), BATCH)])


def _describe(images: np.ndarray, transfer: np.ndarray) -> np.ndarray:
    grey = images.astype(np.float64)
    if grey.ndim == 4:
        grey = grey.mean(axis=-1)
    spectrum = np.fft.fft2(_mirror(prefilter(stretch(grey)), MARGIN))
    strengths = [np.abs(_crop(np.fft.ifft2(spectrum * G), MARGIN)) for G in transfer]
    return np.concatenate([grid_means(strength) for strength in strengths], axis=1).astype(np.float32)


def stretch(grey: np.ndarray) -> np.ndarray:
    """Stretch the values of each image to 0 to 255; an image of one value becomes 0."""
    low, high = grey.min(axis=(1, 2), keepdims=True), grey.max(axis=(1, 2), keepdims=True)
    return 255 * (grey - low) / np.where(high > low, high - low, 1.0)


def prefilter(grey: np.ndarray) -> np.ndarray:
    """Normalize the local contrast of images (n, side, side): high-passed logarithms over their local deviation."""
    padded = _mirror(np.log1p(grey), PREFILTER_MARGIN)
    side = padded.shape[1]
    f = np.fft.fftfreq(side, 1 / side)
    lowpass = np.exp(-(f[:, None] ** 2 + f**2) * np.log(2) / CUTOFF**2)  # one half at the cutoff

    def smooth(x: np.ndarray) -> np.ndarray:
        return np.fft.ifft2(np.fft.fft2(x) * lowpass).real

    detail = padded - smooth(padded)
    return _crop(detail / (0.2 + np.sqrt(np.abs(smooth(detail**2)))), PREFILTER_MARGIN)


def gabor_filters(side: int) -> np.ndarray:
    """Return transfer functions (32, side, side) of the Gabor filters: bell-shaped in radius and in angle.

    Scale i is centered at ``0.3 / 1.85 ** i`` cycles per pixel and orientation j at the angle ``-pi j / 8``, measured
    from the frequency along a row towards that along a column. A filter has one lobe, so the magnitude of its output is
    the envelope of a grating.
    """
    f = np.fft.fftfreq(side)
    radius, angle = np.hypot(f[:, None], f), np.arctan2(f[:, None], f)
    filters = []
    for scale in range(SCALES):
        band = 10 * 0.35 * (radius * 1.85**scale / 0.3 - 1) ** 2
        for orientation in range(ORIENTATIONS):
            turn = angle + np.pi * orientation / ORIENTATIONS
            turn = np.mod(turn + np.pi, 2 * np.pi) - np.pi
            filters.append(np.exp(-band - 2 * np.pi * (16 * ORIENTATIONS**2 / 32**2) * turn**2))
    return np.stack(filters)


def grid_means(x: np.ndarray) -> np.ndarray:
    """Return means (n, 16) of (n, side, side) over the cells of the grid, columns of cells one after the other."""
    edges = np.linspace(0, x.shape[1], GRID + 1).astype(int)
    cells = [x[:, r0:r1, c0:c1].mean(axis=(1, 2)) for c0, c1 in pairwise(edges)
             for r0, r1 in pairwise(edges)]  # fmt: skip
    return np.stack(cells, axis=1)


def _mirror(x: np.ndarray, margin: int) -> np.ndarray:
    return np.pad(x, ((0, 0), (margin, margin), (margin, margin)), mode="symmetric")


def _crop(x: np.ndarray, margin: int) -> np.ndarray:
    return x[:, margin:-margin, margin:-margin]


def compare(X: np.ndarray, reference: np.ndarray) -> float:
    """Return the correlation of two sets of features, over all their values."""
    return float(np.corrcoef(X.ravel().astype(np.float64), reference.ravel().astype(np.float64))[0, 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=Path, required=True, help="folder of CIFAR-10's binary version")
    parser.add_argument("--output", type=Path, default=Path("cifar10_gist512.npz"))
    parser.add_argument("--compare", type=Path, help="folder with a cifar10_gist512.npz to compare with")
    options = parser.parse_args()
    names = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
    arrays = {}
    for part, files in names.items():
        images, labels = zip(*(read_images(options.images / name) for name in files), strict=True)
        arrays[f"X_{part}"] = describe(np.concatenate(images))
        arrays[f"y_{part}"] = np.concatenate(labels)
    np.savez(options.output, **arrays)
    print(f"wrote {options.output}")
    if options.compare:
        with np.load(options.compare / "cifar10_gist512.npz") as file:
            for part in names:
                if not np.array_equal(file[f"y_{part}"], arrays[f"y_{part}"]):
                    raise SystemExit(f"the {part} images are in another order than in {options.compare}")
                print(f"{part}: correlation {compare(arrays[f'X_{part}'], file[f'X_{part}']):.4f}")


if __name__ == "__main__":
    main()
