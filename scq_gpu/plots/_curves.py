"""Figures that are numbers over numbers: losses, bits, scales, precision and recall."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scq_gpu._core.arrays import to_host
from scq_gpu._core.validate import check_array, check_integer
from scq_gpu.plots._style import Axes, colors_of, finish_axes, line_styles, new_axes, themed


@themed
def loss_curve(fitted: Any, *, ax: Axes | None = None) -> Axes:
    """The loss after each iteration of a fit.

    Parameters
    ----------
    fitted : encoder, sequence of float, or mapping of name to either
        An encoder's ``loss_curve_``, ridge term included; several are drawn together. Losses compare only where length,
        scale and ridge are the same: draw others on axes of their own.
    ax : matplotlib axes, optional

    Returns
    -------
    matplotlib axes

    Examples
    --------
    >>> import numpy as np, scq_gpu as scq
    >>> X = np.random.default_rng(0).normal(size=(300, 16))
    >>> encoder = scq.OgE(n_bits=8, max_iter=20, tol=0, random_state=0).fit(X)
    >>> ax = scq.plots.loss_curve(encoder)
    >>> len(ax.lines[0].get_xdata()) == encoder.n_iter_
    True
    """
    curves = {name: _losses(x) for name, x in _named(fitted).items()}
    ax = new_axes(ax)
    for style, (name, losses) in zip(line_styles(ax, len(curves)), curves.items(), strict=True):
        every = {"markevery": [-1], **style}  # a marker on the last point tells lines apart, not each iteration
        ax.plot(np.arange(1, len(losses) + 1), losses, label=name, **every)
    return finish_axes(ax, title="Training loss", x="iteration", y="loss", names=curves, whole="x")


@themed
def bits_curve(results: Any, *, metric: str = "mean_average_precision", ax: Axes | None = None) -> Axes:
    """Quality against the length of the codes, one line per method.

    Parameters
    ----------
    results : mapping of method to table
        A table is a list of rows that have ``n_bits`` and the metric, such as ``sweep_bits(...).evaluate(...)`` gives,
        or a mapping of n_bits to figure. A single table may come without a name.
    metric : str, default "mean_average_precision"
        The figure that is drawn: a fraction of 1, shown in percent.
    ax : matplotlib axes, optional

    Returns
    -------
    matplotlib axes

    Examples
    --------
    >>> from scq_gpu import plots
    >>> ax = plots.bits_curve({"OgE": {8: 0.51, 16: 0.62, 32: 0.65}, "LSH": {8: 0.2, 16: 0.3, 32: 0.4}})
    >>> ax.get_ylabel(), [text.get_text() for text in ax.get_xticklabels()]
    ('mAP', ['8', '16', '32'])
    """
    is_single = not isinstance(results, Mapping) or not any(isinstance(x, Mapping | Sequence) for x in results.values())
    curves = {name: _by_bits(table, metric) for name, table in ({None: results} if is_single else results).items()}
    lengths = sorted({bits for curve in curves.values() for bits in curve})
    ax = new_axes(ax)
    for style, (name, curve) in zip(line_styles(ax, len(curves)), curves.items(), strict=True):
        ax.plot(sorted(curve), [curve[bits] for bits in sorted(curve)], label=name, **style)
    ax.set_xscale("log", base=2)
    ax.set_xticks(lengths, [str(bits) for bits in lengths])
    ax.minorticks_off()
    shown = "mAP" if metric == "mean_average_precision" else metric.replace("_", " ")
    title = f"{shown} against code length"
    return finish_axes(ax, title=title, x="bits per vector", y=shown, names=curves, percent="y")


@themed
def scale_path(path: Any, *, ax: Axes | None = None) -> Axes:
    """Quantization loss and retained variance over the scale of the data: the paper's figure.

    Parameters
    ----------
    path : ScalePath
        What `scq_gpu.scale_path` returns. The scale that "auto" takes is marked.
    ax : matplotlib axes, optional
        The loss is drawn here; the variance on a twin, which stands right.

    Returns
    -------
    matplotlib axes

    Examples
    --------
    >>> import numpy as np, scq_gpu as scq
    >>> X = np.random.default_rng(0).normal(size=(300, 16)) @ np.diag(1 / np.arange(1, 17))
    >>> path = scq.scale_path(X, 4, [1.0, 2.0, 4.0], encoder=scq.OnE(random_state=0))
    >>> scq.plots.scale_path(path).get_xlabel()
    'scale'
    """
    columns = (_numbers(getattr(path, name), name) for name in ("scales", "loss_per_bit", "retained_variance"))
    s, loss, variance = np.stack(list(columns))[:, np.argsort(path.scales)]
    ax = new_axes(ax)
    first, second = line_styles(ax, 2)
    right = ax.twinx()
    ax.plot(s, loss, **first)
    right.plot(s, variance, **second)
    right.spines["right"].set_visible(True)
    right.grid(False)
    finish_axes(ax, title="Loss and variance over the scale", x="scale", y="quantization loss per bit")
    right.set_ylabel("retained variance, % of PCA's")
    for axis, style in ((ax, first), (right, second)):
        axis.yaxis.label.set_color(style["color"])
        axis.tick_params(axis="y", colors=style["color"])
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ink = colors_of(ax)["ink"]
    ax.axvline(path.auto, color=ink, linestyle=":", linewidth=1.2)
    beside = {"xycoords": ("data", "axes fraction"), "xytext": (4, -4), "textcoords": "offset points"}
    ax.annotate(f"auto: {path.auto:.3g}", (path.auto, 1), va="top", color=ink, **beside)
    return ax


@themed
def precision_recall(curves: Any, *, ax: Axes | None = None) -> Axes:
    """Precision against recall as the Hamming radius grows.

    Parameters
    ----------
    curves : (precision, recall), or mapping of name to such a pair
        As `scq_gpu.metrics.precision_recall_curve` returns them: entry r is that of radius r. A query with nothing
        inside a radius counts as precision 0, so a curve may begin low.
    ax : matplotlib axes, optional

    Returns
    -------
    matplotlib axes

    Examples
    --------
    >>> from scq_gpu import plots
    >>> ax = plots.precision_recall(([1.0, 0.5, 0.6], [0.2, 0.5, 1.0]))
    >>> ax.get_xlabel()
    'recall'
    """
    named = _named(curves)
    ax = new_axes(ax)
    for style, (name, (precision, recall)) in zip(line_styles(ax, len(named)), named.items(), strict=True):
        precision, recall = _numbers(precision, "precision"), _numbers(recall, "recall")
        if precision.shape != recall.shape:
            raise ValueError(f"precision has {len(precision)} entries and recall {len(recall)}; one per radius each")
        moved = np.concatenate([[True], np.diff(recall) > 0])  # radii that find nothing more are the same point
        ax.plot(recall[moved], precision[moved], label=name, **{**style, "markersize": 4})
    ax.set(xlim=(0, 1), ylim=(0, 1.02))
    title = "Precision and recall by Hamming radius"
    return finish_axes(ax, title=title, x="recall", y="precision", names=named, percent="xy")


def _losses(fitted: Any) -> np.ndarray:
    curve = getattr(fitted, "loss_curve_", fitted)
    if hasattr(fitted, "get_params") and curve is fitted:
        raise ValueError(f"{type(fitted).__name__} has no loss_curve_; fit it first, or pass a sequence of losses")
    return _numbers(curve, "the loss curve")


def _numbers(x: Any, name: str) -> np.ndarray:
    values = to_host(check_array(x, name=name, min_ndim=1)).astype(np.float64)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"{name} has shape {values.shape}; a sequence of one number or more is wanted")
    return values


def _by_bits(table: Any, metric: str) -> dict[int, float]:
    """A table as a mapping of n_bits to figure."""
    if not isinstance(table, Mapping):
        missing = [row for row in table if not {"n_bits", metric} <= set(row)]
        if missing:
            raise ValueError(f"a row of the table lacks n_bits or {metric!r}; it has {', '.join(missing[0])}")
        table = {row["n_bits"]: row[metric] for row in table}
    if not table:
        raise ValueError("a table of results is empty; there is nothing to draw")
    return {check_integer(bits, name="n_bits", minimum=1): float(value) for bits, value in table.items()}


def _named(x: Any) -> Mapping[str | None, Any]:
    """A mapping as it is; anything else as the one entry without a name."""
    if isinstance(x, Mapping):
        if not x:
            raise ValueError("an empty mapping was passed; there is nothing to draw")
        return x
    return {None: x}
