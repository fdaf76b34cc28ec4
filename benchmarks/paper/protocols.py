"""The paper's data sets: their files, and which rows are trained on, searched, and used as queries.

Files lie in one folder, ``--data DIR``. A data set is either ``NAME.npz`` or a folder ``NAME/`` with one ``.npy`` file
for each array (memory-mapped), under these names; X are features, one row per image, any float type:

==========  ===================================================================================================
cifar10     ``cifar10_efflite0.npz`` of docs/benchmarks.md; the provided test images are the queries
labelme     X_train, y_train, X_test, y_test: LabelMe-12-50k's own two parts. y: (n, 12) label values of 0 to 1, of
            which the largest names the class, or (n,) class numbers. The test images are the queries
sun397      X, y: all images, or those of the large categories; y (n,) category numbers. The categories of more than
            500 images are used (42 of them); 100 random images per category are the queries
nuswide     X, Y: Y (n, concepts) of 0 and 1. The 21 most frequent concepts are used, images without any of them
            dropped; 100 random images per concept are the queries, 1,000 per concept of the others are trained on,
            and all others are searched. An image is relevant if it shares a concept with the query
==========  ===================================================================================================

Unless stated otherwise, the rows that are not queries are both trained on and searched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))  # features.py, which scripts one folder up read too

import features

SUN_CLASSES, SUN_LARGE = 42, 500
NUS_CONCEPTS = 21


@dataclass(frozen=True)
class Split:
    """Rows to train on, rows to search, and queries; labels are (n,) numbers or (n, classes) of 0 and 1."""

    name: str
    X_train: np.ndarray
    X: np.ndarray
    y: np.ndarray
    X_query: np.ndarray
    y_query: np.ndarray


@dataclass(frozen=True)
class Protocol:
    """The split of a data set; ``random`` if it depends on the seed."""

    load: Callable[[Path, int], Split]
    random: bool


def cifar10(folder: Path, seed: int) -> Split:
    """Use the official test images as queries; EfficientNet-Lite0 features stand in for VGG's fc7."""
    found = features.efficientnet(folder)
    return Split(f"CIFAR-10, {found.name}", found.X, found.X, found.y, found.X_query, found.y_query)


def cifar10_validation(folder: Path, seed: int) -> Split:
    """Use 20 training images per class as queries, and no official test image."""
    found = features.efficientnet(folder)
    return _split("CIFAR-10 validation", found.X, found.y, _draw(_one_hot(found.y), 20, np.random.default_rng(seed)))


def cifar10_gist(folder: Path, seed: int) -> Split:
    """Use 100 random images per class as queries; GIST."""
    found = features.gist(folder, seed)
    return Split(f"CIFAR-10, {found.name}", found.X, found.X, found.y, found.X_query, found.y_query)


def labelme(folder: Path, seed: int) -> Split:
    """Use the provided test images of LabelMe-12-50k as queries."""
    X, y, X_query, y_query = _arrays(folder, "labelme", ("X_train", "y_train", "X_test", "y_test"))
    y, y_query = (np.argmax(labels, axis=1) if labels.ndim == 2 else labels for labels in (y, y_query))
    return Split("LabelMe-12-50k", X, X, y, X_query, y_query)


def sun397(folder: Path, seed: int) -> Split:
    """Use 100 random images per category of SUN397 as queries, of the categories that have more than 500."""
    X, y = _arrays(folder, "sun397", ("X", "y"))
    categories, counts = np.unique(y, return_counts=True)
    large = categories[counts > SUN_LARGE]
    if len(large) != SUN_CLASSES:
        raise ValueError(
            f"sun397: {len(large)} categories have more than {SUN_LARGE} images; the paper's subset has {SUN_CLASSES}. "
            "Give all images of SUN397, or all of those categories"
        )
    kept = np.flatnonzero(np.isin(y, large))
    X, y = X[kept], y[kept]
    return _split("SUN397, 42 categories", X, y, _draw(_one_hot(y), 100, np.random.default_rng(seed)))


def nuswide(folder: Path, seed: int) -> Split:
    """Use 100 random images per concept of NUS-WIDE as queries; train on 1,000 per concept of the others."""
    X, Y = _arrays(folder, "nuswide", ("X", "Y"))
    if Y.ndim != 2 or Y.shape[1] < NUS_CONCEPTS:
        raise ValueError(
            f"nuswide: Y has shape {Y.shape}; expected one column of 0 and 1 for each of at least 21 concepts"
        )
    Y = np.asarray(Y) != 0
    concepts = np.sort(np.argsort(-Y.sum(axis=0), kind="stable")[:NUS_CONCEPTS])
    kept = np.flatnonzero(Y[:, concepts].any(axis=1))
    X, Y = X[kept], Y[np.ix_(kept, concepts)]
    rng = np.random.default_rng(seed)
    split = _split("NUS-WIDE, 21 concepts", X, Y.astype(np.uint8), _draw(Y, 100, rng))
    train = _draw(split.y != 0, 1000, rng)
    return Split(split.name, split.X[train], split.X, split.y, split.X_query, split.y_query)


PROTOCOLS = {
    "cifar10": Protocol(cifar10, random=False),
    "labelme": Protocol(labelme, random=False),
    "sun397": Protocol(sun397, random=True),
    "nuswide": Protocol(nuswide, random=True),
}


def _split(name: str, X: np.ndarray, y: np.ndarray, query: np.ndarray) -> Split:
    """Use the drawn rows as queries; train on the others, and search them."""
    rest = np.ones(len(y), dtype=bool)
    rest[query] = False
    kept = X[rest]
    return Split(name, kept, kept, y[rest], X[query], y[query])


def _draw(member: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw ``count`` rows per class and return their indices, sorted; member (n, classes) is True for rows of a class.

    No row is drawn twice. The rarest class draws first: its rows may belong to others too.
    """
    free = np.ones(len(member), dtype=bool)
    for k in np.argsort(member.sum(axis=0), kind="stable"):
        candidates = np.flatnonzero(member[:, k] & free)
        if len(candidates) < count:
            raise ValueError(f"class {k} has {len(candidates)} rows left to draw {count} from; give more images of it")
        free[rng.choice(candidates, count, replace=False)] = False
    return np.flatnonzero(~free)


def _one_hot(y: np.ndarray) -> np.ndarray:
    return np.asarray(y)[:, None] == np.unique(y)


def _arrays(folder: Path, name: str, expected: tuple[str, ...]) -> list[np.ndarray]:
    """Read the named arrays of a data set, from NAME.npz or NAME/*.npy, with as many labels as rows."""
    path = folder / f"{name}.npz"
    if path.exists():
        with np.load(path) as file:
            found = {key: file[key] for key in expected if key in file.files}
    elif (folder / name).is_dir():
        files = {key: folder / name / f"{key}.npy" for key in expected}
        found = {key: np.load(file, mmap_mode="r") for key, file in files.items() if file.exists()}
    else:
        raise FileNotFoundError(
            f"neither {path} nor the folder {folder / name} exists; {__file__} says what to put there"
        )
    missing = [key for key in expected if key not in found]
    if missing:
        raise ValueError(f"{name} lacks the arrays {', '.join(missing)}; expected are {', '.join(expected)}")
    for X, y in zip(expected[::2], expected[1::2], strict=True):
        if len(found[X]) != len(found[y]):
            raise ValueError(
                f"{name}: {X} has {len(found[X])} rows and {y} has {len(found[y])}; expected a label per row"
            )
    return [found[key] for key in expected]
