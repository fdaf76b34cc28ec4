"""OnE and OgE (Hoang et al., 2019): the recipe of a fit, the fit itself, and the two estimators.

A fit reads from top to bottom in `fit_maps`. Everything that touches rows is a pass with a small result; everything
else is small algebra (docs/architecture.md).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from scq_gpu._core.arrays import Array, linalg_errors, on_device_of, to_host
from scq_gpu._core.machine import blas_in_one_thread
from scq_gpu._core.messages import warn_caller
from scq_gpu._core.validate import check_init
from scq_gpu.encoders.base import POSITIVE_INTEGER, LinearEncoder, one_of, real, show_progress
from scq_gpu.rows.basis import Basis, Moments, compute_basis
from scq_gpu.rows.projected import SignStatistics
from scq_gpu.training import joint, orthogonal, orthonormal
from scq_gpu.training.loop import BATCH_ROWS, BatchPasses, Run, VStep, split_rows, train, train_on_batches
from scq_gpu.training.starts import SHORT, STARTS, Draws

AIMS = ("neighbors", "classes")


# ---- the recipe: what "auto" stands for ----


class Recipe(NamedTuple):
    """Resolved fit parameters."""

    aim: str
    """"neighbors" or "classes"; "paper" for the columnwise solver, whose rules are the paper's."""
    n_components: int | None
    ridge: float | None
    """None for OnE, which has no ridge."""
    scale: float | None
    """Factor on the centered rows; None for the paper's Eq. (scale)."""
    start: Any
    max_iter: int | None
    """None for as many iterations as the aim needs."""


def make_recipe(encoder: Any) -> Recipe:
    """Resolve the parameters of an encoder."""
    n_bits, ridge = encoder.n_bits, getattr(encoder, "ridge", None)
    aim = "paper" if encoder.solver == "columnwise" else encoder.preserve
    # Neighbors need little more than the axes a code can use. Classes may be separated along axes of little variance.
    components = {"paper": 512, "neighbors": max(256, 2 * n_bits), "classes": max(512, 40 * n_bits)}
    # The scale gives the leading axes unit variance on average, so that a ridge of 1 weighs as much as an average axis.
    ridges = {"paper": 0.02, "neighbors": 1.0, "classes": class_ridge(n_bits)}
    starts = {"paper": "random", "neighbors": "itq", "classes": "longer_code" if n_bits <= SHORT else "shorter_codes"}
    return Recipe(
        aim,
        components[aim] if encoder.n_components == "auto" else encoder.n_components,
        ridges[aim] if ridge == "auto" else ridge,
        None if encoder.scale == "auto" else float(encoder.scale),
        starts[aim] if isinstance(encoder.init, str) and encoder.init == "auto" else encoder.init,
        None if encoder.max_iter == "auto" else encoder.max_iter,
    )


def class_ridge(n_bits: int) -> float:
    """Return the ridge of OgE for classes.

    A small ridge rewards directions in which rows fall into two groups, a large one those of much variance. The paper's
    0.02 is best at about 32 bits. Longer codes need axes of little variance, too, and a smaller ridge.
    """
    share = 32 / n_bits
    return float(0.02 * min(share**1.3, share**2))


# ---- the fit ----


class FittedMap(NamedTuple):
    """A fitted map, in the coordinates of its basis."""

    run: Run
    basis: Basis
    statistics: SignStatistics
    """Those of a sign pass at the V of the run."""


def fit_maps(encoder: Any, rows: Any, *, scales: Sequence[float] | None = None) -> list[FittedMap]:
    """Fit an OnE or OgE to rows: the best of its ``n_init`` starts, or one map for each of the ``scales``.

    Signs do not depend on the scale of the rows, so one sign pass serves all scales.
    """
    xp, recipe = rows.xp, make_recipe(encoder)
    neighbors = recipe.aim == "neighbors" and recipe.max_iter is None
    batched = recipe.aim == "classes" and recipe.max_iter is None and encoder.tol > 0 and scales is None
    moments = rows.moments()  # one pass: n, mean, scatter
    basis = _find_basis(encoder, recipe, moments, rows)  # eigenvectors, variances, scale
    projected = rows.project(basis, few_passes=neighbors or (batched and rows.shape[0] >= 2 * BATCH_ROWS))
    V = _find_starts(encoder, recipe, basis, projected, rows)  # ITQ, a longer code, shorter codes, random
    batches = split_rows(projected, basis.lam, xp=xp) if batched else []
    if batches:
        halves = split_rows(projected, basis.lam, halved=True, xp=xp)
        V = _learn_from(halves, encoder, recipe, basis.lam, V, tol=0.03, steps=joint.STEPS, xp=xp)
        # passes over whole batches cost more than V steps, which then go further
        V = _learn_from(batches, encoder, recipe, basis.lam, V, tol=0.003, steps=2 * joint.STEPS, xp=xp)
    # Two passes over all rows remove the noise of the last batch. More than 12 trade neighbors for classes.
    max_iter = 2 if batches else 12 if neighbors else recipe.max_iter or 100
    fixed = neighbors or bool(batches)
    factors = None if scales is None else xp.asarray(scales, dtype=basis.lam.dtype, device=rows.device)
    runs = train(
        projected,
        basis.lam if factors is None else basis.lam * (factors * factors)[:, None],
        V if scales is None else xp.broadcast_to(V, (len(scales), *V.shape[1:])),
        step=make_v_step(encoder.solver, recipe.ridge, steps=(2 if batches else 1) * joint.STEPS, xp=xp),
        tol=0.0 if fixed else encoder.tol,
        iterations=show_progress(encoder, range(1, max_iter + 1), n=rows.shape[0]),
        watch=_callback(encoder, basis, projected, rows),
        scale=factors,
        xp=xp,
    )
    if scales is None:
        runs = [min(runs, key=lambda run: run.losses[-1] if fixed else min(run.losses))]
    found = projected.statistics(xp.stack([run.V for run in runs]))
    for run in runs:
        run.converged |= fixed and encoder.tol > 0
    return [
        FittedMap(
            run,
            dataclasses.replace(basis, lam=basis.lam * factor**2, scale=basis.scale * factor),
            SignStatistics(found.M[r, ...] * factor, found.balance[r, ...]),
        )
        for r, (run, factor) in enumerate(zip(runs, scales or [1.0], strict=True))
    ]


def _find_basis(encoder: Any, recipe: Recipe, moments: Moments, rows: Any) -> Basis:
    """Find the coordinates to train in."""
    return compute_basis(
        moments,
        n_bits=encoder.n_bits,
        n_components=recipe.n_components,
        scale=recipe.scale,
        # V'V = I leaves OnE no ridge: rows at a smaller scale favor axes of much variance instead
        scale_factor=0.6 if recipe.aim == "neighbors" and recipe.ridge is None else 1.0,
        flatten=recipe.aim == "neighbors",
        asked=encoder.n_components != "auto",
        eps=float(rows.xp.finfo(rows.dtype).eps),
        xp=rows.xp,
    )


def _find_starts(encoder: Any, recipe: Recipe, basis: Basis, projected: Any, rows: Any) -> Array:
    """Find the first V's (n_init, D, n_bits)."""
    start, n_bits = recipe.start, encoder.n_bits
    if not isinstance(start, str):
        start = check_init(start, d=rows.shape[1], n_bits=n_bits)
    bar = partial(show_progress, encoder, what="start")
    draws = Draws(basis, projected, encoder.random_state, ridge=class_ridge, progress=bar, xp=rows.xp)
    return draws.starts(start, n_bits, encoder.n_init)


def _learn_from(
    batches: list[BatchPasses],
    encoder: Any,
    recipe: Recipe,
    lam: Array,
    V: Array,
    *,
    tol: float,
    steps: int,
    xp: ModuleType,
) -> Array:
    """Return V after passes over batches in turn, at most 48 of them, until their loss falls slowly."""
    step = make_v_step(encoder.solver, recipe.ridge, steps=steps, xp=xp)
    passes = show_progress(encoder, range(48), what="batches of rows")
    return train_on_batches(batches, lam, V, step=step, passes=passes, tol=tol, xp=xp)


def _callback(encoder: Any, basis: Basis, projected: Any, rows: Any) -> Callable[[int, Run], None] | None:
    """Return a function that calls the callback of an encoder with a fitted copy; None if it has none."""
    if encoder.callback is None:
        return None

    def watch(iteration: int, run: Run) -> None:
        shown = copy.copy(encoder)
        found = projected.statistics(run.V[None, ...])
        set_fitted(shown, FittedMap(run, basis, SignStatistics(found.M[0, ...], found.balance[0, ...])), rows)
        encoder.callback(iteration, run.losses[-1], shown)

    return watch


def make_v_step(solver: str, ridge: float | None, *, steps: int = joint.STEPS, xp: ModuleType) -> VStep:
    """Make the V step of a solver, of OnE where ``ridge`` is None; the joint solvers take ``steps`` in each."""
    if solver == "columnwise":
        return orthonormal.columnwise_step(xp=xp) if ridge is None else orthogonal.columnwise_step(ridge, xp=xp)
    if ridge is None:
        return joint.orthonormal_step(steps=steps, xp=xp)
    return joint.orthogonal_step(ridge, steps=steps, xp=xp)


def set_fitted(encoder: Any, fitted: FittedMap, rows: Any) -> None:
    """Fold the map and set the fitted attributes of an encoder."""
    xp, (run, basis, statistics) = rows.xp, fitted
    W_t, t = basis.fold(run.V)
    # the mean projection over the rows of either sign, times their share
    half = xp.sum(statistics.M * run.V, axis=0) / 2
    ones, zeros = (1 + statistics.balance) / 2, (1 - statistics.balance) / 2
    levels = xp.stack([-half / xp.where(zeros > 0, zeros, 1.0), half / xp.where(ones > 0, ones, 1.0)], axis=-1)
    arrays = (W_t, t, basis.mean, basis.eigenvalues, levels)
    for name, x in zip(encoder._fitted_arrays, arrays, strict=True):
        setattr(encoder, name, xp.astype(x, rows.dtype))
    encoder.scale_ = basis.scale
    encoder.loss_curve_ = list(run.losses)
    encoder.n_iter_ = len(run.losses)
    encoder.converged_ = run.converged
    encoder.n_samples_ = rows.shape[0]
    dead = int(np.count_nonzero(to_host(xp.linalg.vector_norm(run.V, axis=0)) == 0))
    if dead:
        warn_caller(
            f"{dead} of {encoder.n_bits} bits are constant: the rows hold no further direction to tell apart. "
            "Lower n_bits, or fit on more varied rows"
        )


# ---- the estimators ----


class _SCQ(LinearEncoder):
    """Base of OnE and OgE, which differ in the constraint on the columns of V."""

    mean_: Array
    eigenvalues_: Array
    levels_: Array
    scale_: float
    loss_curve_: list[float]
    n_iter_: int
    converged_: bool
    _fitted_arrays = ("components_", "threshold_", "mean_", "eigenvalues_", "levels_")
    _fitted_facts = ("n_features_in_", "scale_", "loss_curve_", "n_iter_", "converged_", "n_samples_")
    _learns_on_workers = True
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "preserve": one_of(AIMS),
        "n_components": [*POSITIVE_INTEGER, *one_of(["auto"]), None],
        "scale": [*real(0, strict=True), *one_of(["auto"])],
        "solver": one_of(["joint", "columnwise"]),
        "init": [*one_of(STARTS), "array-like"],
        "max_iter": [*POSITIVE_INTEGER, *one_of(["auto"])],
        "tol": real(0),
        "n_init": POSITIVE_INTEGER,
        "callback": [callable, None],
    }

    def __init__(
        self,
        n_bits: int = 32,
        *,
        preserve: str = "neighbors",
        n_components: int | str | None = "auto",
        scale: float | str = "auto",
        solver: str = "joint",
        init: Any = "auto",
        max_iter: int | str = "auto",
        tol: float = 1e-4,
        n_init: int = 1,
        device: str | None = None,
        random_state: Any = None,
        callback: Callable[[int, float, Any], object] | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(n_bits, device=device)
        self.preserve = preserve
        self.n_components = n_components
        self.scale = scale
        self.solver = solver
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.n_init = n_init
        self.random_state = random_state
        self.callback = callback
        self.verbose = verbose

    def _learn(self, rows: Any) -> None:
        (fitted,) = fit_maps(self, rows)
        set_fitted(self, fitted, rows)
        if self.tol > 0 and not fitted.run.converged:
            losses = fitted.run.losses
            fall = (losses[-2] - losses[-1]) / losses[-1] if len(losses) > 1 else np.inf
            again = ", which one more pass would have to confirm" if fall < self.tol else ""
            warn_caller(
                f"{type(self).__name__} stopped at max_iter={len(losses)} before its loss was known to have settled "
                f"within tol={self.tol:g} (last relative fall {fall:.1e}{again}); raise max_iter or tol",
                ConvergenceWarning,
            )


class OgE(_SCQ):
    r"""Orthogonal Encoder (Algorithm 2): binary codes from one linear map with pairwise orthogonal columns.

    Minimizes ``||B - XV||^2/n + ridge ||V||^2`` over signs B and matrices V with pairwise orthogonal columns, X being
    the centered, PCA-reduced and scaled rows. With ``V' V`` diagonal rather than the identity (see `OnE`), each bit
    finds its own scale.

    Parameters
    ----------
    n_bits : int, default=32
        Length of the codes: any number of bits from 1 up to the dimensions that PCA leaves.
    preserve : {"neighbors", "classes"}, default="neighbors"
        What the codes of the joint solver keep. With "neighbors", Hamming distance ranks like distance between vectors.
        With "classes", rows of one group come first, the aim of the paper's tables. It decides what "auto" means below.
    n_components : int, "auto" or None, default="auto"
        Principal components to keep, at most. "auto" is 256 or 2 per bit for neighbors and 512 or 40 per bit for
        classes, whichever is more, and 512 for the columnwise solver. None keeps all that carry variance.
    ridge : float or "auto", default="auto"
        The paper's mu, the cost of long columns, and the dial between classes (small) and neighbors (large). "auto" is
        1 for neighbors; for classes 0.02 at 32 bits, more for shorter codes and less for longer ones; and the paper's
        0.02 for the columnwise solver.
    scale : float or "auto", default="auto"
        Factor on the centered rows; "auto" gives the leading ``n_bits`` components unit variance on average.
    solver : {"joint", "columnwise"}, default="joint"
        "joint" solves for all columns at once; "columnwise" is the paper's, each column in turn given those before it,
        with the paper's parameters.
    init : str or array (n_features, n_bits), default="auto"
        The first V: "itq", the leading principal axes, rotated; "longer_code" or "shorter_codes", which are learned
        first; "random" orthonormal; "pca", the leading axes; or an array in the coordinates of the centered rows.
        "auto" is "itq" for neighbors; for classes "longer_code" up to 64 bits and "shorter_codes" beyond; "random" for
        the columnwise solver.
    max_iter : int or "auto", default="auto"
        Most iterations, each a pass over the rows and a V step. "auto" is 12 for neighbors, all of which are run, and
        100 otherwise. A fit for classes to 48,000 rows or more learns from batches of them first, and then runs 2
        iterations over all rows. Rows that are read from files in each pass are not learned from in batches.
    tol : float, default=1e-4
        The fit ends when the loss falls by less than this, relatively; with the joint solver, twice in a row. The
        joint loss never rises; the columnwise one may, which ends the fit too, and the V before the rise is kept.
        0 runs exactly ``max_iter`` iterations and keeps the last V.
    n_init : int, default=1
        Starts to run side by side; the one of least loss is kept.
    device : {None, "cpu", "cuda", "cuda:1", ...}, default=None
        Where to work; None follows X.
    random_state : int, Generator or None, default=None
        Seed of the random starts, the same on every backend.
    callback : callable or None, default=None
        Called after each iteration as ``callback(iteration, loss, encoder)`` with a fitted copy of this encoder.
    verbose : bool, default=False
        Show a progress bar, if standard error is a terminal.

    Attributes
    ----------
    components_ : array (n_bits, n_features)
        W': bit k is ``x . components_[k] >= threshold_[k]``.
    threshold_ : array (n_bits,)
    mean_ : array (n_features,)
    eigenvalues_ : array (n_components,)
        Variances along the principal axes kept.
    scale_ : float
    levels_ : array (n_bits, 2)
        Mean projection of the training rows whose bit is 0, and 1.
    loss_curve_ : list of float
        The loss after each iteration, ridge term included.
    n_iter_ : int
    converged_ : bool
    n_features_in_ : int
    n_samples_ : int
        Rows learned from.
    n_samples_kept_ : int
        If X was an iterator, those of them that training went through.

    See Also
    --------
    OnE : The same with orthonormal columns.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import scq_gpu as scq
    >>> X, _ = load_digits(return_X_y=True)
    >>> encoder = scq.OgE(n_bits=32, random_state=0).fit(X)
    >>> codes = encoder.encode(X)
    >>> codes.shape, codes.dtype
    ((1797, 4), dtype('uint8'))
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {"ridge": [*real(0), *one_of(["auto"])]}

    def __init__(
        self,
        n_bits: int = 32,
        *,
        preserve: str = "neighbors",
        n_components: int | str | None = "auto",
        ridge: float | str = "auto",
        scale: float | str = "auto",
        solver: str = "joint",
        init: Any = "auto",
        max_iter: int | str = "auto",
        tol: float = 1e-4,
        n_init: int = 1,
        device: str | None = None,
        random_state: Any = None,
        callback: Callable[[int, float, Any], object] | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            n_bits,
            preserve=preserve,
            n_components=n_components,
            scale=scale,
            solver=solver,
            init=init,
            max_iter=max_iter,
            tol=tol,
            n_init=n_init,
            device=device,
            random_state=random_state,
            callback=callback,
            verbose=verbose,
        )
        self.ridge = ridge


class OnE(_SCQ):
    r"""Orthonormal Encoder (Algorithm 1): binary codes from one linear map with orthonormal columns.

    Minimizes ``||B - XV||^2/n`` over signs B and matrices V with ``V'V = I``, X being the centered, PCA-reduced and
    scaled rows.

    Parameters
    ----------
    n_bits, preserve, n_components, solver, init, max_iter, tol, n_init, device, random_state, callback, verbose
        As in `OgE`.
    scale : float or "auto", default="auto"
        Factor on the centered rows, which is the dial between neighbors (small) and classes here: "auto" gives the
        leading ``n_bits`` components unit variance on average, times 0.6 for neighbors.

    Attributes
    ----------
    components_, threshold_, mean_, eigenvalues_, scale_, levels_, loss_curve_, n_iter_, converged_
        As in `OgE`.

    See Also
    --------
    OgE : The same with orthogonal columns of free length, which keeps classes better.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import scq_gpu as scq
    >>> X, _ = load_digits(return_X_y=True)
    >>> signs = scq.OnE(n_bits=16, random_state=0).fit_transform(X)
    >>> signs.shape, sorted(set(signs.ravel().tolist()))
    ((1797, 16), [-1, 1])
    """


def fit_at_scales(encoder: OnE, X: Any, scales: Sequence[float]) -> list[tuple[OnE, FittedMap]]:
    """Fit copies of an OnE at several scales in one batched run, all from the same start."""
    template = clone(encoder).set_params(scale=1.0)
    template._check_parameters()
    rows = template._open(X, reset=True, min_rows=2)
    with on_device_of(rows.place), linalg_errors(rows.xp), blas_in_one_thread(rows.xp):
        fits = []
        for scale, fitted in zip(scales, fit_maps(template, rows, scales=scales), strict=True):
            one = copy.copy(template).set_params(scale=scale)
            set_fitted(one, fitted, rows)
            one._share(rows)
            fits.append((one, fitted))
    return fits
