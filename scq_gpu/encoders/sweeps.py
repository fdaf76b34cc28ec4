"""Many fits that share their passes: one number of bits at many scales, or many numbers of bits."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from sklearn.base import clone

from scq_gpu._core.arrays import namespace, on_device_of, to_host
from scq_gpu._core.bits import code_bytes
from scq_gpu._core.machine import blas_in_one_thread
from scq_gpu._core.validate import check_integer, check_integers, check_scales
from scq_gpu.encoders.base import rows_of
from scq_gpu.encoders.scq import OgE, OnE, fit_at_scales
from scq_gpu.metrics.evaluation import evaluate
from scq_gpu.training.loop import loss

__all__ = ["BitSweep", "ScalePath", "scale_path", "sweep_bits"]


@dataclasses.dataclass(frozen=True)
class ScalePath:
    """OnE at many scales: the data of the paper's scale figure.

    Attributes
    ----------
    scales : tuple of float
    loss_per_bit : tuple of float
        ``||sign(XV) - XV||^2 / (n n_bits)``, the quantization loss.
    retained_variance : tuple of float
        In percent of the variance that as many PCA components hold.
    encoders : tuple of OnE
        Fitted, one a scale.
    auto : float
        The scale that ``OnE(preserve="classes", scale="auto")`` takes, the paper's proposal.
    """

    scales: tuple[float, ...]
    loss_per_bit: tuple[float, ...]
    retained_variance: tuple[float, ...]
    encoders: tuple[OnE, ...]
    auto: float

    @property
    def table(self) -> list[dict[str, float]]:
        """Return one row per scale, ready for a data frame or JSON."""
        columns = zip(self.scales, self.loss_per_bit, self.retained_variance, strict=True)
        return [{"scale": s, "loss_per_bit": q, "retained_variance": v} for s, q, v in columns]


@dataclasses.dataclass(frozen=True)
class BitSweep:
    """Encoders of several lengths, fitted to the same rows.

    Attributes
    ----------
    encoders : tuple of encoders
        By rising ``n_bits``.
    seconds : tuple of float
        Time of each fit, without the shared moments pass.
    """

    encoders: tuple[Any, ...]
    seconds: tuple[float, ...]

    @property
    def bits(self) -> tuple[int, ...]:
        """Return the lengths."""
        return tuple(encoder.n_bits for encoder in self.encoders)

    @property
    def table(self) -> list[dict[str, Any]]:
        """Return one row per length, ready for a data frame, a plot or JSON."""
        fits = zip(self.encoders, self.seconds, strict=True)
        return [_facts(encoder) | {"seconds": seconds} for encoder, seconds in fits]

    def evaluate(
        self, X_query: Any, X_database: Any, query_labels: Any = None, database_labels: Any = None, **options: Any
    ) -> list[dict[str, Any]]:
        """Return the table with the metrics of `scq_gpu.evaluate` added to the row of each encoder.

        Parameters
        ----------
        X_query, X_database, query_labels, database_labels : arrays
            As `scq_gpu.evaluate` takes them.
        **options
            Passed to `scq_gpu.evaluate`.

        Returns
        -------
        list of dict
        """
        data = (X_query, X_database, query_labels, database_labels)
        return [
            row | evaluate(encoder, *data, **options).as_dict()
            for row, encoder in zip(self.table, self.encoders, strict=True)
        ]


def _facts(encoder: Any) -> dict[str, Any]:
    """Return the size of codes, and loss, iterations and convergence where the encoder has them."""
    facts = {"n_bits": encoder.n_bits, "bytes": code_bytes(encoder.n_bits)}
    if len(getattr(encoder, "loss_curve_", ())):
        facts["loss_per_bit"] = min(encoder.loss_curve_) / encoder.n_bits
    known = {"n_iter": "n_iter_", "converged": "converged_"}
    return facts | {name: getattr(encoder, key) for name, key in known.items() if hasattr(encoder, key)}


def sweep_bits(X: Any, bits: Iterable[int] = (8, 16, 32, 64, 128), *, encoder: Any = None) -> BitSweep:
    """Fit an encoder for each of several lengths; OgE and OnE share one moments pass over the rows.

    Parameters
    ----------
    X : array (n, n_features) or other rows that ``fit`` takes
    bits : iterable of int
        Lengths; doubles are dropped.
    encoder : estimator, default OgE()
        With ``fit``, ``encode`` and a parameter ``n_bits``: any of ours, or your own. Its other parameters are used for
        every length. It is not changed.

    Returns
    -------
    BitSweep

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import scq_gpu as scq
    >>> X, y = load_digits(return_X_y=True)
    >>> sweep = scq.sweep_bits(X[:1500], bits=(8, 16, 32), encoder=scq.OgE(random_state=0))
    >>> sweep.bits
    (8, 16, 32)
    >>> table = sweep.evaluate(X[1500:], X[:1500], y[1500:], y[:1500])
    >>> table[2]["mean_average_precision"] > table[0]["mean_average_precision"]
    True
    """
    lengths = sorted(set(check_integers(bits, name="bits", minimum=1)))
    template = OgE() if encoder is None else encoder
    missing = [name for name in ("fit", "encode", "get_params") if not hasattr(template, name)]
    if missing or "n_bits" not in template.get_params():
        expected = "an estimator with fit, encode and a parameter n_bits"
        raise TypeError(f"encoder={encoder!r} is not {expected}; it lacks {', '.join(missing) or 'n_bits'}")
    fitted = [clone(template).set_params(n_bits=n_bits) for n_bits in lengths]
    seconds = []
    with contextlib.ExitStack() as held:
        if isinstance(template, OgE | OnE):
            with on_device_of(X):
                X = rows_of(X, device=template.device, min_rows=2)
            # the moments pass is shared, and so are the threads that NumPy works on
            held.enter_context(on_device_of(X.sample))
            held.enter_context(blas_in_one_thread(X.xp))
        for one in fitted:
            started = time.perf_counter()
            one.fit(X)
            seconds.append(time.perf_counter() - started)
    return BitSweep(tuple(fitted), tuple(seconds))


def scale_path(X: Any, n_bits: int, scales: Iterable[float] | None = None, *, encoder: OnE | None = None) -> ScalePath:
    """Fit OnE at many scales in one batched run: one pass over the rows an iteration serves all of them.

    Every scale starts from the same V. Signs do not depend on the scale, so a sign pass is one wide product, and the V
    steps of all scales are one batched problem.

    Parameters
    ----------
    X : array (n, n_features) or other rows that ``fit`` takes
    n_bits : int
    scales : iterable of float, optional
        Factors on the centered rows, above 0; by default nine of them, from a quarter of ``ScalePath.auto`` to four
        times as much.
    encoder : OnE, default OnE()
        Its parameters, but for ``n_bits``, ``scale``, ``n_init`` and ``preserve``, are used for every scale. It is not
        changed.

    Returns
    -------
    ScalePath

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import scq_gpu as scq
    >>> X, _ = load_digits(return_X_y=True)
    >>> path = scq.scale_path(X, 16, [0.05, 0.1, 0.2], encoder=scq.OnE(random_state=0))
    >>> path.retained_variance[0] > path.retained_variance[2]  # a small scale stays closer to PCA
    True
    """
    n_bits = check_integer(n_bits, name="n_bits", minimum=1)
    if not isinstance(encoder, OnE | None):
        raise TypeError(f"encoder={encoder!r} is not an OnE: only its loss depends on the scale")
    template = clone(OnE() if encoder is None else encoder).set_params(n_bits=n_bits, n_init=1, preserve="classes")
    if scales is None:
        X = rows_of(X, device=template.device, min_rows=2)
        scales = _scales_around_auto(X, n_bits)
    factors = check_scales(scales)
    fits = fit_at_scales(template, X, factors)
    basis = fits[0][1].basis
    xp = namespace(basis.lam)
    losses, variances = [], []
    with on_device_of(basis.lam):
        top = float(xp.sum(basis.eigenvalues[:n_bits]))
        for factor, (_, fitted) in zip(factors, fits, strict=True):
            lam, V = fitted.basis.lam, fitted.run.V
            losses.append(float(loss(lam, fitted.statistics.M, V, xp=xp)) / n_bits)
            variances.append(100 * float(xp.sum(lam[:, None] * V * V)) / factor**2 / top)
    auto = (n_bits / top) ** 0.5
    return ScalePath(factors, tuple(losses), tuple(variances), tuple(encoder for encoder, _ in fits), auto)


def _scales_around_auto(rows: Any, n_bits: int) -> list[float]:
    """Return nine scales around the paper's, at equal ratios."""
    with on_device_of(rows.sample):
        moments = rows.moments()
    variance = np.linalg.eigvalsh(to_host(moments.scatter))[-n_bits:].sum() / moments.n
    # rows that do not vary are rejected by the fit
    return [float(factor * (n_bits / (variance or 1)) ** 0.5) for factor in np.geomspace(0.25, 4, 9)]
