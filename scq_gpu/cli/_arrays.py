"""Arrays that are not rows: labels, and codes."""

from pathlib import Path

import numpy as np

import scq_gpu as scq
from scq_gpu.rows.sources.binary import read_array


def load_array(path: Path) -> np.ndarray:
    """An array of any number of dimensions from .npy, or the only one of an .npz; else rows of a known format."""
    return read_array(path) if path.suffix.lower() in {".npy", ".npz"} else np.asarray(scq.io.open_rows(path))
