"""Queries and their answers as pictures on the page, each picture inside it as a small PNG."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from scq_gpu._validate import check_array
from scq_gpu._xp import to_host
from scq_gpu.search import HammingIndex
from scq_gpu.trial import Trial

_QUERIES, _ANSWERS = 8, 10
_PIXELS = 96
_SMALL = 48  # pixels; images below this are enlarged without blur


class Pictures:
    """Pictures of n rows, from an array or from files.

    Parameters
    ----------
    images : array (n, height, width) or (n, height, width, 3), or sequence of n paths
        Grey images of any range, colour images in 0..1 (float) or 0..255 (integer).
    n : int
        How many rows there are.
    """

    def __init__(self, images: Any, *, n: int) -> None:
        self._paths: Sequence[Any] | None = None
        if isinstance(images, Sequence) and images and all(isinstance(x, str | os.PathLike) for x in images):
            self._paths = images
        else:
            self._array = to_host(check_array(images, name="images", min_ndim=3))
            if self._array.ndim > 4 or self._array.shape[3:] not in ((), (3,)) or not self._array.size:
                raise ValueError(
                    f"images have shape {self._array.shape}; (n, height, width) or (n, height, width, 3) is wanted"
                )
            self._low, self._high = float(self._array.min()), float(self._array.max())
        if len(images) != n:
            raise ValueError(f"there are {len(images)} images and {n} rows; one for each row is wanted")

    def tag(self, row: int, text: str) -> str:
        """An ``<img>`` of a row."""
        image = self._open(row)
        small = max(image.size) < _SMALL
        image.thumbnail((_PIXELS, _PIXELS))
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        data = base64.b64encode(buffer.getvalue()).decode()
        kind = ' class="small"' if small else ""
        return f'<img{kind} alt="{text}" src="data:image/png;base64,{data}">'

    def _open(self, row: int) -> Any:
        from PIL import Image, UnidentifiedImageError  # comes with matplotlib

        if self._paths is not None:
            try:
                with Image.open(self._paths[row]) as image:
                    return image.convert("RGB")
            except UnidentifiedImageError as error:
                raise ValueError(f"{self._paths[row]} is not an image that can be read") from error
        picture = self._array[row]
        if picture.ndim == 3 and picture.dtype == np.uint8:
            return Image.fromarray(picture)
        low, high = (self._low, self._high) if picture.ndim == 2 else (0.0, 1.0 if picture.dtype.kind == "f" else 255.0)
        shades = np.clip((picture.astype(np.float64) - low) / max(high - low, 1e-300), 0, 1)
        return Image.fromarray(np.rint(255 * shades).astype(np.uint8))


def gallery_html(trial: Trial, codes: tuple[np.ndarray, np.ndarray], n_bits: int, pictures: Pictures) -> str:
    """Some queries, each with its nearest rows."""
    queries, database = codes
    chosen = _spread(trial)
    k = min(_ANSWERS, len(database))
    distances, found = HammingIndex(database, n_bits).search(queries[chosen], k)
    rows = []
    for place, near, distance in zip(chosen, found, distances, strict=True):
        query = pictures.tag(int(trial.query_rows[place]), "query")
        marks = _marks(trial, int(place), near)
        answers = "".join(
            f'<div class="image{kind}">{pictures.tag(int(trial.database_rows[i]), alt)}{sign}{d}</div>'
            for i, d, (kind, alt, sign) in zip(near, distance, marks, strict=True)
        )
        query = f'<div class="image">{query}query</div>'
        rows.append(f'<div class="row">{query}<div class="answers">{answers}</div></div>')
    return "".join(rows)


def _marks(trial: Trial, place: int, near: np.ndarray) -> list[tuple[str, str, str]]:
    """Class, alternative text and sign of each answer."""
    if trial.labels is None:
        return [("", "answer", "")] * len(near)
    query, answers = trial.labels[0][place], trial.labels[1][near]
    right = answers == query if answers.ndim == 1 else (answers & query).any(axis=1)
    return [(" right", "right answer", "✓ ") if yes else (" wrong", "wrong answer", "✗ ") for yes in right]


def _spread(trial: Trial) -> np.ndarray:
    """Queries to show: the first of each label, as far as there are labels, then whichever come first."""
    order = np.arange(trial.n_queries)
    if trial.labels is not None and trial.labels[0].ndim == 1:
        _, first = np.unique(trial.labels[0], return_index=True)
        order = np.concatenate([first, np.delete(order, first)])
    return order[:_QUERIES]
