"""Features of CIFAR-10 and WordNet for the benchmarks, from a folder given as ``--data``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Split:
    """Rows to train on and search in, and rows to ask with."""

    name: str
    X: np.ndarray
    y: np.ndarray
    X_query: np.ndarray
    y_query: np.ndarray


def efficientnet(folder: Path) -> Split:
    """1280-D EfficientNet-Lite0 features; the official test images are the queries."""
    with np.load(_file(folder, "cifar10_efflite0.npz")) as file:
        scale = file["feature_scale"].astype(np.float32)
        X, X_query = (file[name].astype(np.float32) * scale for name in ("X_train", "X_test"))
        return Split("EfficientNet-Lite0 1280-D", X, file["y_train"], X_query, file["y_test"])


def wordnet(folder: Path) -> Split:
    """384-D sentence embeddings of definitions, normalized; labels are the 45 lexicographer files."""
    with np.load(_file(folder, "wordnet_minilm384.npz")) as file:
        scale = file["feature_scale"].astype(np.float32)
        X, X_query = (file[name].astype(np.float32) * scale for name in ("X_train", "X_test"))
        X, X_query = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (X, X_query))
        return Split("WordNet 384-D", X, file["y_train"], X_query, file["y_test"])


def gist(folder: Path, seed: int) -> Split:
    """512-D GIST; 100 random queries a class, the remaining 59,000 for training and database."""
    with np.load(_file(folder, "cifar10_gist512.npz")) as file:
        X = np.concatenate([file["X_train"], file["X_test"]]).astype(np.float32)
        y = np.concatenate([file["y_train"], file["y_test"]])
    rng = np.random.default_rng(seed)
    query = np.zeros(len(y), dtype=bool)
    for label in range(10):
        query[rng.choice(np.flatnonzero(y == label), 100, replace=False)] = True
    return Split("GIST 512-D", X[~query], y[~query], X[query], y[query])


SETS = {"EfficientNet": efficientnet, "WordNet": wordnet}


def _file(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.exists():
        raise SystemExit(f"{path} is missing: --data must name a folder that holds {name} (see docs/benchmarks.md)")
    return path
