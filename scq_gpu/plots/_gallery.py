"""Queries and their answers as images."""

from __future__ import annotations

from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array, to_host
from scq_gpu._core.validate import check_array
from scq_gpu.plots._style import Axes, colors_of, finish_axes, new_axes, themed


@themed
def gallery(
    query_images: Array,
    answer_images: Array,
    *,
    right: Array | None = None,
    distances: Array | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Queries, each with its answers to the right, nearest first; right and wrong ones marked.

    Parameters
    ----------
    query_images : array (q, height, width) or (q, height, width, 3)
        Grey images of any range, or color images in 0..1 (float) or 0..255 (integer).
    answer_images : array (q, k, height, width) or (q, k, height, width, 3)
        For example ``images[ids]`` with the ids of a search.
    right : array (q, k) of bool, optional
        Which answers are right: a thin frame and ✓ below; the others, a thick, broken frame and ✗.
    distances : array (q, k), optional
        Written below the answers.
    ax : matplotlib axes, optional

    Returns
    -------
    matplotlib axes

    Examples
    --------
    >>> import numpy as np
    >>> from scq_gpu import plots
    >>> images = np.random.default_rng(0).random((4, 8, 8))
    >>> ax = plots.gallery(images[:1], images[None, 1:], right=np.array([[True, False, True]]))
    >>> len(ax.images)
    4
    """
    queries, answers = _check_images(query_images, answer_images)
    marks = None if right is None else _check_table(right, "right", answers).astype(bool)
    numbers = None if distances is None else _check_table(distances, "distances", answers)
    q, k = answers.shape[:2]
    pitch = 1.0 if marks is None and numbers is None else 1.25  # room for a line below each answer
    ax = new_axes(ax, size=(0.8 * (k + 1.4), 0.8 * pitch * q + 0.5))
    height, width = 0.9 * np.array(queries.shape[1:3]) / max(queries.shape[1:3])
    look: dict[str, Any] = {"cmap": "gray", "interpolation": "none"}
    look |= {"vmin": min(queries.min(), answers.min()), "vmax": max(queries.max(), answers.max())}
    for row, column in np.ndindex(q, k + 1):
        x, y = column + 0.3 if column else 0.0, pitch * row  # a gap behind the query
        left, top = x + (0.9 - width) / 2, y + (0.9 - height) / 2
        image = answers[row, column - 1] if column else queries[row]
        ax.imshow(image, extent=(left, left + width, top + height, top), **look)
        if column:
            number = "" if numbers is None else f"{numbers[row, column - 1]:g}"
            _caption(ax, x, y, number, None if marks is None else bool(marks[row, column - 1]))
    ax.set(xlim=(-0.05, k + 1.3), ylim=(pitch * q, -0.08), aspect="equal")
    ax.axis("off")
    return finish_axes(ax, title="Queries (left) and their nearest" + ("" if marks is None else ", wrong ones ✗"))


def _caption(ax: Axes, x: float, y: float, number: str, right: bool | None) -> None:
    """Write below an image; color, frame and sign all say whether it is right."""
    from matplotlib.patches import Rectangle

    colors = colors_of(ax)
    color, sign = colors["ink"], ""
    if right is not None:
        color, sign = (colors["series"][2], "✓ ") if right else (colors["series"][1], "✗ ")
        width, dash = (1.2, "-") if right else (2.6, (0, (3, 1)))
        frame = {"linewidth": width, "linestyle": dash, "edgecolor": color}
        ax.add_patch(Rectangle((x, y), 0.9, 0.9, fill=False, clip_on=False, **frame))
    ax.text(x + 0.45, y + 0.95, f"{sign}{number}".strip(), ha="center", va="top", size=7, color=color)


def _check_images(queries: Array, answers: Array) -> tuple[np.ndarray, np.ndarray]:
    Q = to_host(check_array(queries, name="query_images", min_ndim=3))
    A = to_host(check_array(answers, name="answer_images", min_ndim=4))
    if A.ndim != Q.ndim + 1 or A.shape[0] != Q.shape[0] or not A.size or not Q.size or Q.shape[3:] not in ((), (3,)):
        raise ValueError(
            f"query_images have shape {Q.shape} and answer_images {A.shape}; "
            "(q, height, width) and (q, k, height, width) are wanted, or the same with 3 colors last"
        )
    return Q, A


def _check_table(x: Array, name: str, answers: np.ndarray) -> np.ndarray:
    table = to_host(check_array(x, name=name, min_ndim=2))
    if table.shape != answers.shape[:2]:
        raise ValueError(f"{name} has shape {table.shape}; one entry per answer, {answers.shape[:2]}, is wanted")
    return table


def typical_queries(quality: np.ndarray, count: int, groups: np.ndarray | None = None) -> np.ndarray:
    """Numbers of ``count`` queries whose answers are neither the best nor the worst: those nearest the median quality.

    With ``groups`` (q,), that of each group first, by its own median. A picture of them shows what to expect.
    """
    numbers = np.arange(len(quality))
    members = [] if groups is None else [numbers[groups == group] for group in np.unique(groups)[:count]]
    chosen = [int(group[_nearest_median(quality[group])[0]]) for group in members]
    others = numbers[_nearest_median(quality)]
    chosen += [int(i) for i in others if i not in set(chosen)][: count - len(chosen)]
    return np.array(chosen[:count], dtype=np.int64)


def _nearest_median(values: np.ndarray) -> np.ndarray:
    """Positions by distance from the median (of two, the lower one), the first among equals."""
    return np.argsort(np.abs(values - np.quantile(values, 0.5, method="lower")), kind="stable")
