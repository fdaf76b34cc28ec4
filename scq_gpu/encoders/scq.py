"""OnE and OgE: estimators that run passes and V steps, and keep the map."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from scq_gpu._core.arrays import Array, to_host
from scq_gpu._core.devices import linalg_errors, usable_device
from scq_gpu._core.validate import check_choice, check_init, check_integer, check_real
from scq_gpu._core.warn import warn_caller
from scq_gpu.encoders.base import LinearEncoder, snapshot
from scq_gpu.rows.basis import Basis, Moments, compute_basis, stretch
from scq_gpu.rows.inputs import InputRows
from scq_gpu.rows.passes import FEW_PASSES, MANY_PASSES, SignStatistics, TrainingRows, TurnedRows
from scq_gpu.training import joint, orthogonal, orthonormal, partial
from scq_gpu.training.defaults import AIMS, STARTS, Recipe, make_recipe
from scq_gpu.training.loop import Run, VStep, train
from scq_gpu.training.starts import Draws, draw_starts

SOLVERS = ("joint", "columnwise")
_PARTIAL_PASSES = 48  # over parts of the rows, at most,
_PARTIAL_TOL = {True: 0.03, False: 0.003}  # until a round of them lowers the loss by less: halves of parts, parts
_PARTIAL_STEPS = {True: joint.STEPS, False: 2 * joint.STEPS}  # within a V step: passes over parts cost more than steps
_LAST_PASSES = 2  # over all rows, after those over parts


class _SCQ(LinearEncoder):
    """What OnE and OgE share: everything but the V step."""

    components_: Array
    threshold_: Array
    mean_: Array
    eigenvalues_: Array
    levels_: Array
    scale_: float
    loss_curve_: list[float]
    n_iter_: int
    converged_: bool
    n_samples_: int
    _fitted_arrays = ("components_", "threshold_", "mean_", "eigenvalues_", "levels_")
    _fitted_facts = ("n_features_in_", "scale_", "loss_curve_", "n_iter_", "converged_", "n_samples_")

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
        self.n_bits = n_bits
        self.preserve = preserve
        self.n_components = n_components
        self.scale = scale
        self.solver = solver
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.n_init = n_init
        self.device = device
        self.random_state = random_state
        self.callback = callback
        self.verbose = verbose

    def _learn(self, rows: InputRows) -> None:
        self._fit_rows(rows, rows.moments())

    def _fit_rows(self, rows: InputRows, moments: Moments) -> None:
        """The fit after its moments pass."""
        xp, recipe = rows.xp, self._recipe()
        with linalg_errors(xp):
            basis = self._basis(rows, moments, recipe)
            projected: TrainingRows = rows.project(basis, passes=_passes(recipe, rows.shape[0]))
            if recipe.stretch:
                basis, projected = self._draw_apart(basis, projected, recipe, xp)
            V, steps = self._starts(basis, rows, projected, recipe), joint.STEPS
            if recipe.in_parts:
                V, learned = self._learn_from_parts(projected, basis.lam, V, recipe.ridge, xp)
                if learned:
                    recipe, steps = recipe._replace(max_iter=_LAST_PASSES, fixed=True), _PARTIAL_STEPS[False]
            runs = train(
                projected,
                basis.lam,
                V,
                step=self._v_step(recipe.ridge, xp, steps=steps),
                ridge=recipe.ridge,
                tol=0.0 if recipe.fixed else self.tol,
                iterations=self._progress(range(1, recipe.max_iter + 1), rows.shape[0]),
                watch=None if self.callback is None else lambda i, run: self._show(i, run, basis, rows, projected),
                xp=xp,
            )
            run = min(runs, key=lambda run: run.losses[-1] if recipe.fixed else min(run.losses))
            run.converged |= recipe.fixed and self.tol > 0
            self._keep(run, basis, rows, projected.statistics(run.V[None, ...]))
        if self.tol > 0 and not run.converged:
            warn_caller(
                f"{type(self).__name__} stopped at max_iter={recipe.max_iter} before its loss settled within "
                f"tol={self.tol:g} (last relative fall {_last_fall(run.losses):.1e}); raise max_iter or tol",
                ConvergenceWarning,
            )

    def _draw_apart(
        self, basis: Basis, projected: TrainingRows, recipe: Recipe, xp: ModuleType
    ) -> tuple[Basis, TrainingRows]:
        """The basis, and the rows in it, with groups of rows drawn apart as far as there are any."""
        draws = Draws(basis, projected, self.random_state, xp=xp)
        Q, distinct = draws.groups(lambda passes: self._progress(passes, None, "groups"))
        if not distinct:
            return basis, projected
        by = recipe.stretch * distinct
        basis, R = stretch(basis, Q, by, n_bits=self.n_bits, rescale=recipe.scale is None, xp=xp)
        return basis, TurnedRows(projected, R, xp=xp)

    def _learn_from_parts(
        self, projected: TrainingRows, lam: Array, V: Array, ridge: float, xp: ModuleType
    ) -> tuple[Array, bool]:
        """V after passes over parts of the rows, and whether there are any: halves of parts, then whole ones.

        Each go on until the loss falls slowly.
        """
        for halved, tol in _PARTIAL_TOL.items():
            parts = partial.cut(projected, lam, halved=halved, xp=xp)
            if not parts:
                return V, False
            step = self._v_step(ridge, xp, steps=_PARTIAL_STEPS[halved])
            passes = self._progress(range(_PARTIAL_PASSES), None, "parts of the rows")
            V = partial.learn(parts, lam, V, step=step, ridge=ridge, passes=passes, tol=tol, xp=xp)
        return V, True

    def _recipe(self) -> Recipe:
        """What the parameters, "auto" among them, come to."""
        return make_recipe(
            n_bits=self.n_bits,
            preserve=self.preserve,
            solver=self.solver,
            n_components=self.n_components,
            ridge=getattr(self, "ridge", None),
            scale=self.scale,
            init=self.init,
            max_iter=self.max_iter,
            tol=self.tol,
        )

    def _basis(self, rows: InputRows, moments: Moments, recipe: Recipe) -> Basis:
        """The coordinates to train in."""
        return compute_basis(
            moments,
            n_bits=self.n_bits,
            n_components=recipe.n_components,
            scale=recipe.scale,
            scale_factor=recipe.scale_factor,
            flatten=recipe.flatten,
            asked=self.n_components != "auto",
            eps=float(rows.xp.finfo(rows.dtype).eps),
            xp=rows.xp,
        )

    def _starts(self, basis: Basis, rows: InputRows, projected: TrainingRows, recipe: Recipe) -> Array:
        """The first V's (n_init, D, n_bits)."""
        start = recipe.start
        return draw_starts(
            start if isinstance(start, str) else check_init(start, d=rows.shape[1], n_bits=self.n_bits),
            basis,
            projected,
            n_bits=self.n_bits,
            n_init=self.n_init,
            random_state=self.random_state,
            progress=lambda passes: self._progress(passes, None, "start"),
            xp=rows.xp,
        )

    def _show(self, iteration: int, run: Run, basis: Basis, rows: InputRows, projected: TrainingRows) -> None:
        """Call the callback with a fitted copy."""
        shown = snapshot(self)
        shown._keep(run, basis, rows, projected.statistics(run.V[None, ...]))
        if self.callback is not None:
            self.callback(iteration, run.losses[-1], shown)

    def _keep(self, run: Run, basis: Basis, rows: InputRows, statistics: SignStatistics) -> None:
        """Fold the map and set the fitted attributes; the statistics are those of a sign pass at V."""
        xp = rows.xp
        W_t, t = basis.fold(run.V)
        M, balance = statistics.M[0, ...], statistics.balance[0, ...]
        half = xp.sum(M * run.V, axis=0) / 2  # the projection's mean over rows of either sign, times their share
        ones, zeros = (1 + balance) / 2, (1 - balance) / 2
        levels = xp.stack([-half / xp.where(zeros > 0, zeros, 1.0), half / xp.where(ones > 0, ones, 1.0)], axis=-1)

        self.components_, self.threshold_, self.mean_, self.eigenvalues_, self.levels_ = (
            xp.astype(x, rows.dtype) for x in (W_t, t, basis.mean, basis.eigenvalues, levels)
        )
        self.scale_ = basis.scale
        self.loss_curve_ = list(run.losses)
        self.n_iter_ = len(run.losses)
        self.converged_ = run.converged
        self.n_samples_ = rows.shape[0]
        dead = int(np.count_nonzero(to_host(xp.linalg.vector_norm(run.V, axis=0)) == 0))
        if dead:
            warn_caller(
                f"{dead} of {self.n_bits} bits are constant: the rows hold no further direction to tell apart. "
                "Lower n_bits, or fit on more varied rows"
            )

    def _check_parameters(self) -> None:
        check_integer(self.n_bits, name="n_bits", minimum=1)
        if self.n_components is not None and self.n_components != "auto":
            check_integer(self.n_components, name="n_components", minimum=1)
        if self.scale != "auto":
            check_real(self.scale, name="scale", minimum=0, strict=True)
        check_choice(self.solver, name="solver", choices=SOLVERS)
        check_choice(self.preserve, name="preserve", choices=AIMS)
        if isinstance(self.init, str):
            check_choice(self._recipe().start, name="init", choices=STARTS)
        if self.max_iter != "auto":
            check_integer(self.max_iter, name="max_iter", minimum=1)
        check_real(self.tol, name="tol", minimum=0)
        check_integer(self.n_init, name="n_init", minimum=1)
        if getattr(self, "ridge", "auto") != "auto":
            check_real(self.ridge, name="ridge", minimum=0)
        if self.device is not None:
            usable_device(self.device)
        if self.callback is not None and not callable(self.callback):
            raise TypeError(f"callback={self.callback!r} is not callable; it is called as (iteration, loss, encoder)")

    def _progress(self, iterations: range, n: int | None, what: str = "passes") -> Iterable[int]:
        """The iterations, passes over n rows if that is known, behind a bar if ``verbose`` and a person is watching."""
        if not self.verbose:
            return iterations
        from tqdm import tqdm

        name = f"{type(self).__name__} {self.n_bits} bits, {what}"
        bar = tqdm(iterations, desc=name, unit="pass", disable=None)
        return bar if n is None else _with_rows_per_second(bar, n)

    def _v_step(self, ridge: float, xp: ModuleType, *, steps: int = joint.STEPS) -> VStep:
        """The V step of the solver; ``steps`` are those within one of the joint solver."""
        raise NotImplementedError


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
        What the codes are to keep, for the joint solver: "neighbors", so that Hamming distance ranks like the vectors
        do; or "classes", groups of rows first, the aim of the paper's tables. It decides what "auto" means below.
    n_components : int, "auto" or None, default="auto"
        Principal components to keep, at most: "auto" is the paper's 512 or, if that is more, 2 per bit for neighbors
        and 40 for classes; 256 are enough for neighbors up to 32 bits. None keeps all that carry variance.
    ridge : float or "auto", default="auto"
        The paper's mu: how much long columns cost, and the dial between classes (small) and neighbors (large). "auto"
        is ``0.35 (32 / n_bits)**0.5`` for neighbors up to 32 bits and 0.4 beyond, where rows are first stretched along
        directions in which they fall into groups; for classes, 0.02 at 32 bits, more for shorter codes and less for
        longer ones; the paper's 0.02 for the columnwise solver.
    scale : float or "auto", default="auto"
        Factor on the centered rows; "auto" gives the leading ``n_bits`` components unit variance on average.
    solver : {"joint", "columnwise"}, default="joint"
        "joint" solves for all columns at once; "columnwise" is the paper's, each column in turn given those before it,
        with the paper's parameters.
    init : str or array (n_features, n_bits), default="auto"
        The first V: "itq", the leading principal axes, rotated; "longer_code" or "shorter_codes", that are learned
        first; "random" orthonormal; "pca", the leading axes; or yours, in the coordinates of the centered rows. "auto"
        is "itq" for neighbors; for classes "longer_code" up to 64 bits and "shorter_codes" beyond; "random" for the
        columnwise solver.
    max_iter : int or "auto", default="auto"
        Most iterations (a pass over the rows and a V step each); "auto" is 12 for neighbors, all of which are run, and
        100 otherwise. A fit for classes from 48,000 rows in memory or more learns from parts of them first; "auto" is
        then 2, both of which are run.
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

    def _v_step(self, ridge: float, xp: ModuleType, *, steps: int = joint.STEPS) -> VStep:
        if self.solver == "columnwise":
            return orthogonal.columnwise_step(ridge, xp=xp)
        return joint.orthogonal_step(ridge, steps=steps, xp=xp)


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
    OgE : The same with orthogonal columns of free length; usually the better codes, and quicker to fit.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import scq_gpu as scq
    >>> X, _ = load_digits(return_X_y=True)
    >>> signs = scq.OnE(n_bits=16, random_state=0).fit_transform(X)
    >>> signs.shape, sorted(set(signs.ravel().tolist()))
    ((1797, 16), [-1, 1])
    """

    def _v_step(self, ridge: float, xp: ModuleType, *, steps: int = joint.STEPS) -> VStep:
        if self.solver == "columnwise":
            return orthonormal.columnwise_step(xp=xp)
        return joint.orthonormal_step(steps=steps, xp=xp)


def _passes(recipe: Recipe, n: int) -> int:
    """About how many passes over all of n rows a fit takes."""
    return FEW_PASSES if recipe.few_passes or (recipe.in_parts and n >= partial.LEAST_ROWS) else MANY_PASSES


def _with_rows_per_second(bar: Any, n: int) -> Iterator[int]:
    """The iterations of a bar, which tells passes a second and the time left by itself."""
    for done, iteration in enumerate(bar, start=1):
        yield iteration
        if seconds := bar.format_dict["elapsed"]:
            bar.set_postfix_str(f"{bar.format_sizeof(n * done / seconds)} rows/s", refresh=False)


def _last_fall(losses: list[float]) -> float:
    return (losses[-2] - losses[-1]) / losses[-1] if len(losses) > 1 else np.inf
