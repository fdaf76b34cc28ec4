"""Many fits that share their passes: one number of bits at many scales, or many numbers of bits."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from sklearn.base import clone

from scq_gpu._core.arrays import from_host, to_host
from scq_gpu._core.bits import code_bytes
from scq_gpu._core.devices import linalg_errors, on_device_of
from scq_gpu._core.threads import blas_in_one_thread
from scq_gpu._core.validate import check_integer, check_integers, check_scales
from scq_gpu.encoders.scq import _SCQ, OgE, OnE
from scq_gpu.metrics.evaluation import evaluate
from scq_gpu.rows.passes import SignStatistics
from scq_gpu.training.loop import loss, train

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
        The scale that ``OnE(scale="auto")`` takes, the paper's proposal.
    """

    scales: tuple[float, ...]
    loss_per_bit: tuple[float, ...]
    retained_variance: tuple[float, ...]
    encoders: tuple[OnE, ...]
    auto: float

    @property
    def table(self) -> list[dict[str, float]]:
        """One row per scale, ready for a data frame or JSON."""
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
        What each took to fit, the shared moments pass not counted.
    """

    encoders: tuple[Any, ...]
    seconds: tuple[float, ...]

    @property
    def bits(self) -> tuple[int, ...]:
        """The lengths."""
        return tuple(encoder.n_bits for encoder in self.encoders)

    @property
    def table(self) -> list[dict[str, Any]]:
        """One row per length, ready for a data frame, a plot or JSON."""
        return [
            {
                "n_bits": encoder.n_bits,
                "bytes": code_bytes(encoder.n_bits),
                **_training_facts(encoder),
                "seconds": seconds,
            }
            for encoder, seconds in zip(self.encoders, self.seconds, strict=True)
        ]

    def evaluate(
        self,
        X_query: Any,
        X_database: Any,
        query_labels: Any = None,
        database_labels: Any = None,
        **options: Any,
    ) -> list[dict[str, Any]]:
        """The table with the figures of `scq_gpu.evaluate` for each encoder added to its row.

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


def _training_facts(encoder: Any) -> dict[str, Any]:
    """How the fit went, as far as the encoder tells."""
    facts: dict[str, Any] = {}
    if len(getattr(encoder, "loss_curve_", ())):
        facts["loss_per_bit"] = min(encoder.loss_curve_) / encoder.n_bits
    told = {"n_iter": "n_iter_", "converged": "converged_"}
    return facts | {name: getattr(encoder, key) for name, key in told.items() if hasattr(encoder, key)}


def sweep_bits(X: Any, bits: Iterable[int] = (8, 16, 32, 64, 128), *, encoder: Any = None) -> BitSweep:
    """Fit an encoder for each of several lengths; OgE and OnE with one moments pass over the rows for all of them.

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
        wanted = "an estimator with fit, encode and a parameter n_bits"
        raise TypeError(f"encoder={encoder!r} is not {wanted}; it lacks {', '.join(missing) or 'n_bits'}")
    fitted = [clone(template).set_params(n_bits=n_bits) for n_bits in lengths]
    for one in fitted:
        if isinstance(one, _SCQ):
            one._check_parameters()
    shared = fitted[0]._open(X, reset=True, min_rows=2) if isinstance(fitted[0], _SCQ) else None
    seconds = []
    held = contextlib.nullcontext() if shared is None else blas_in_one_thread(shared.xp)
    with on_device_of(None if shared is None else shared.sample), held:
        moments = None if shared is None else shared.moments()
        for one in fitted:
            started = time.perf_counter()
            if shared is None or moments is None:
                one.fit(X)
            else:
                one._open(X, reset=True)
                one._fit_rows(shared, moments)
            seconds.append(time.perf_counter() - started)
    return BitSweep(tuple(fitted), tuple(seconds))


def scale_path(X: Any, n_bits: int, scales: Iterable[float], *, encoder: OnE | None = None) -> ScalePath:
    """Fit OnE at many scales in one batched run: one pass over the rows an iteration serves all of them.

    Every scale starts from the same V. Signs do not depend on the scale, so a sign pass is one wide product, and the V
    steps of all scales are one batched problem.

    Parameters
    ----------
    X : array (n, n_features) or other rows that ``fit`` takes
    n_bits : int
    scales : iterable of float
        Factors on the centered rows, above 0.
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
    factors = check_scales(scales)
    if not isinstance(encoder, OnE | None):
        raise TypeError(f"encoder={encoder!r} is not an OnE: only its loss depends on the scale")
    template = clone(OnE() if encoder is None else encoder).set_params(
        n_bits=n_bits, n_init=1, scale="auto", preserve="classes"
    )
    template._check_parameters()
    rows = template._open(X, reset=True, min_rows=2)
    xp = rows.xp
    with on_device_of(rows.sample), linalg_errors(xp), blas_in_one_thread(xp):
        recipe = template._recipe()
        auto = template._basis(rows, rows.moments(), recipe)
        unit = dataclasses.replace(auto, lam=auto.eigenvalues, scale=1.0)
        projected = rows.project(unit)
        V = template._starts(unit, rows, projected, recipe)
        scale = xp.astype(from_host(np.asarray(factors), xp=xp, device=rows.device), V.dtype)
        lam = unit.lam * (scale * scale)[:, None]
        runs = train(
            projected,
            lam,
            xp.broadcast_to(V, (len(factors), *V.shape[1:])),
            step=template._v_step(0.0, xp),
            ridge=0.0,
            tol=template.tol,
            iterations=template._progress(range(1, recipe.max_iter + 1), rows.shape[0]),
            scale=scale,
            xp=xp,
        )
        V = xp.stack([run.V for run in runs])
        statistics = projected.statistics(V)
        statistics = statistics._replace(M=statistics.M * scale[:, None, None])
        losses = to_host(loss(lam, statistics.M, V, xp=xp))
        variances = to_host(xp.sum(unit.lam[:, None] * V * V, axis=(-2, -1)))
        encoders = []
        for r, (factor, run) in enumerate(zip(factors, runs, strict=True)):
            fitted = clone(template).set_params(scale=factor)
            fitted._open(X, reset=True)
            basis = dataclasses.replace(unit, lam=lam[r, :], scale=factor)
            fitted._keep(run, basis, rows, SignStatistics(*(x[r : r + 1, ...] for x in statistics)))
            encoders.append(fitted)
    top = to_host(unit.lam)[:n_bits].sum()
    return ScalePath(
        factors,
        tuple((losses / n_bits).tolist()),
        tuple((100 * variances / top).tolist()),
        tuple(encoders),
        auto.scale,
    )
