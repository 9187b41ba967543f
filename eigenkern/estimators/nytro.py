"""NYTRO: Nystrom and early stopping."""

import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from ..backend.devices import on_gpu
from ..backend.hints import ArrayLike, Device, KernelLike, RandomState
from ..backend.machine import machine_of
from ..backend.threads import n_blas_threads
from ..nystrom.descent import IndefiniteKernelError, State, factorising_pays
from ..nystrom.filters import LAST, DescentPath, iterations, last_iteration
from ..operators.cached import kept
from ..operators.plan import cache_budget
from .base import Model, kernel_gradients, kernel_values
from .least_squares import (
    check_given_rows,
    check_selection,
    make_problem,
    path_errors,
    still_falls,
    warn_if_indefinite,
)
from .targets import ClassificationTargets, RegressionTargets
from .training import Report, SolutionRule, train
from .validation import check_kernel_parameters, check_number, is_auto, warn_user

# As in the paper.
_MAX_ITER = 500


class _Nytro(Model):
    """Early-stopped gradient descent on centers: regression and classification."""

    _expand = kernel_values
    _gradients = kernel_gradients
    _calibrates_with = "selection='holdout'"

    def __init__(
        self,
        kernel: KernelLike = "laplacian",
        *,
        bandwidth: float | str = "median",
        n_centers: int | str | None = "auto",
        centers: str | ArrayLike = "uniform",
        max_iter: int | str = "auto",
        step_size: float | str = "auto",
        tol: float | None = None,
        selection: str | None = "holdout",
        validation_fraction: float = 0.2,
        store_coef_path: bool = False,
        cache_size: float | str = "auto",
        device: Device = "auto",
        random_state: RandomState = None,
        verbose: int | bool = 0,
    ) -> None:
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.n_centers = n_centers
        self.centers = centers
        self.max_iter = max_iter
        self.step_size = step_size
        self.tol = tol
        self.selection = selection
        self.validation_fraction = validation_fraction
        self.store_coef_path = store_coef_path
        self.cache_size = cache_size
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        X_val: ArrayLike | None = None,
        y_val: ArrayLike | None = None,
        sample_weight_val: ArrayLike | None = None,
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Training rows; the values of the kernel are computed in their data type,
            the linear algebra in float64. In kernel="precomputed": the kernel matrix
            of the training rows. With fewer centers than rows it may be a file or a
            Dask array, see :ref:`large_data`.
        y : array of shape (n_samples,) or (n_samples, n_outputs)
            Targets; one label a row for a classifier.
        sample_weight : array of shape (n_samples,), default=None
            Weights of the squared residuals, not negative. A weight of 2 equals the
            same row twice.
        X_val, y_val : arrays, default=None
            Rows to select the number of iterations by, instead of rows of X that are
            held out; only with ``selection="holdout"``.
        sample_weight_val : array, default=None
            Their weights; `class_weight` counts for them too.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If the data or a parameter are wrong, or the memory does not suffice; a
            model fitted before stays usable.
        MemoryError
            If memory runs out; the message says what takes less.

        Warns
        -----
        ConvergenceWarning
            If the kernel is not positive semi-definite, and its negative part is
            dropped; or if the last iteration is the best, where `max_iter` ends the
            path and the error still falls.
        """
        return self._fit(
            X,
            y,
            sample_weight,
            X_val=X_val,
            y_val=y_val,
            sample_weight_val=sample_weight_val,
        )

    @property
    def _calibrates(self):
        """Whether rows are held out."""
        return self.selection == "holdout"

    def _check_parameters(self):
        check_kernel_parameters(self)
        check_selection(self, ("holdout", "gcv", None))
        if not is_auto(self.max_iter):
            check_number("max_iter", self.max_iter, 1, integer=True)
        if not is_auto(self.step_size):
            check_number("step_size", self.step_size, 0, open_ends=True)
        if self.tol is not None:
            check_number("tol", self.tol, 0)

    def _prepare(self, data):
        """Return problem, solver, chosen attributes and rule of a fit."""
        holds_out = self.selection == "holdout"
        check_given_rows(self, data, holds_out)
        n_kept = self._n_kept
        problem = make_problem(self, data, "path", holds_out=holds_out, n_kept=n_kept)
        return problem, self._solution(problem), {}, SolutionRule(problem)

    def _solution(self, problem):
        """Yield the model of the best number of iterations, fitted to all rows."""
        plan = self._plan(problem, path=True)
        gcv = self.selection == "gcv"
        n_iter = None if is_auto(self.max_iter) else self.max_iter
        if not gcv and not factorises(problem, plan, n_iter, self.cache_size):
            try:
                yield self._iterated(problem)
                return
            except IndefiniteKernelError:
                self._say("the kernel has negative eigenvalues: factorizing")
        problem.check_memory(plan)
        yield self._factorised(problem)

    def _plan(self, problem, *, path):
        return problem.plan(path, self._n_kept)

    @property
    def _n_kept(self):
        """Models that are kept."""
        if not self.store_coef_path:
            return 0
        return len(iterations(LAST if is_auto(self.max_iter) else self.max_iter))

    @property
    def _n_iterations(self):
        """Iterations where one after the other is computed, or none is selected."""
        return _MAX_ITER if is_auto(self.max_iter) else self.max_iter

    # By a factorization

    def _factorised(self, problem):
        """Return the model, from the spectrum of the normal equations."""
        everything = problem.everything
        self._say(f"normal equations of {len(problem.train.index)} rows")
        spectrum = problem.path_spectrum(self.selection, 0.0, math.inf)
        warn_if_indefinite(self, spectrum)
        step = self._step(spectrum.top)
        t, steps, errors = self._selected_in_closed_form(problem, spectrum, step)
        held_out = None
        if problem.calibrates and problem.validation is not None:
            b = spectrum.coef(DescentPath([t], step).filters(spectrum)[:, 0])
            held_out = problem.held_out(b, problem.training.mean)
        if problem.refits:
            penalty = 1 / (step * t) if t else math.inf
            low, high = (0, math.inf) if self.store_coef_path else (penalty, penalty)
            spectrum = everything.spectrum_between(low, high)
        step, t = stable_step(step, spectrum.top, t)
        b = spectrum.coef(DescentPath([t], step).filters(spectrum)[:, 0])
        coef_path = None
        if self.store_coef_path:
            coef_path = problem.dual_coef_path(spectrum, DescentPath(steps, step))
        return self._state(problem, b, t, step, steps, errors, coef_path, held_out)

    def _selected_in_closed_form(self, problem, spectrum, step):
        """Return t, the iterations of the path, and their errors."""
        if self.selection is None:
            return self._n_iterations, iterations(self._n_iterations), None
        end = last_iteration(spectrum, step)
        if is_auto(self.max_iter):
            steps = iterations(LAST)
            steps = steps[: np.searchsorted(steps, end) + 1]
        else:
            steps = iterations(self.max_iter)
        path = DescentPath(steps, step)
        errors = path_errors(self, problem, spectrum, path)
        best = best_iteration(errors, self.tol)
        self._say(f"path of {steps[-1]} iterations: t = {steps[best]}")
        if steps[-1] < end:
            self._warn_at_end(steps, errors, best)
        return int(steps[best]), steps, errors

    def _warn_at_end(self, steps, errors, best):
        """Warn if the last iteration is the best, and the error still falls there."""
        if best == len(steps) - 1 and still_falls(steps, np.asarray(errors), best):
            warn_user(
                f"{type(self).__name__} found the least error after the last of its "
                f"iterations, t = {steps[best]}, and it still falls there; pass a "
                "larger max_iter" + ("" if is_auto(self.max_iter) else ", or 'auto'")
            )

    def _step(self, top):
        """Return the step for operators with the largest eigenvalue `top`."""
        if is_auto(self.step_size):
            return 1.0 / top if top > 0 else 1.0
        if self.step_size * top >= 2:
            raise ValueError(
                "step_size must be below 2 over the largest eigenvalue of the "
                f"problem, {2 / top:.6g}, or the iteration diverges; got "
                f"{self.step_size!r}"
            )
        return float(self.step_size)

    def _state(self, problem, b, n_iter, step, steps, errors, coef_path, held_out=None):
        counts = {
            "n_iter_": n_iter,
            "step_size_": step,
            "iterations_": problem.to_source_or_none(steps),
            "validation_path_": problem.to_source_or_none(errors),
            "coef_path_": coef_path,
            "n_centers_": problem.n_coefs,
        }
        return State(b, counts, held_out)

    # By iterating

    def _iterated(self, problem):
        """Return the model, from the iteration itself."""
        if problem.n_centers is not None:
            problem.check_memory(self._plan(problem, path=False))
        descent, step, t, errors, held_out = self._selected(problem)
        if descent is None:
            descent = problem.descent(problem.all, *self._kept(problem, problem.all))
        step, t = stable_step(step, descent.top, t)
        n_iter = self._n_iterations
        rule = IterateRule(descent.start, t, n_iter, self.store_coef_path)
        train(descent.states(step), rule, Report())
        coef_path = None
        if self.store_coef_path:
            coef_path = problem.stacked_dual_coefs(rule.coefs)
        steps = np.arange(n_iter + 1)
        return self._state(
            problem, rule.coef, t, step, steps, errors, coef_path, held_out
        )

    def _selected(self, problem):
        """Return the descent, its step, t, errors of the iterations, values held out.

        The descent is None where it was on the training rows only: what it keeps is
        then of no more use.
        """
        matrices = self._kept(problem, problem.train, validates=True)
        descent = problem.descent(problem.train, matrices[0])
        step = self._step(descent.top)
        self._say(f"step {step:.3g} on {len(problem.train.index)} rows")
        if problem.validation is None:
            return descent, step, self._n_iterations, None, None
        mean = problem.mean(problem.train)

        def error_of(b):
            return problem.validation_error(matrices[1], b, mean)

        n_iter = self._n_iterations
        rule = HeldOutRule(error_of, descent.start, n_iter, self.tol)
        train(descent.states(step), rule, Report())
        t = best_iteration(rule.errors, self.tol)
        self._say(f"path of {len(rule.errors) - 1} iterations: t = {t}")
        if t == n_iter:
            self._warn_at_end(np.arange(n_iter + 1), rule.errors, t)
        held_out = None
        if problem.calibrates:
            coef = rule.best_coef if t == rule.best else rule.last_coef
            held_out = problem.held_out(coef, mean)
        descent = None if problem.refits else descent
        return descent, step, t, rule.errors, held_out

    def _kept(self, problem, rows, *, validates=False):
        """Return operators of some rows, and of validation rows, kept where it pays."""
        matrices = [problem.matrix_of(rows)]
        if validates and problem.validation is not None:
            matrices.append(problem.matrix_of_validation(problem.initial_coef()))
        n, d = self._n_iterations, problem.n_features
        operators, _ = kept(matrices, self.cache_size, n, d)
        return operators


class HeldOutRule:
    """Follow the error on rows held out, and stop where it hardly falls.

    Parameters
    ----------
    error_of : callable
        ``error_of(b)`` of coefficients.
    start : array
        The coefficients before the first iteration.
    max_iter : int
    tol : float or None
        Relative decrease of the error; None: go on to the end.

    Attributes
    ----------
    errors : list of float
        After 0, 1, ... iterations.
    best : int
        The first with the least error.
    best_coef, last_coef : array
        Coefficients after the best and the last iteration.
    """

    def __init__(self, error_of, start, max_iter, tol):
        self._error_of, self._tol, self.max_iter = error_of, tol, max_iter
        self.errors = [error_of(start)]
        self.best, self.best_coef, self.last_coef = 0, start, start

    def update(self, state):
        """Take in an iterate; return whether its error has hardly fallen."""
        self.errors.append(self._error_of(state.coef))
        self.last_coef = state.coef
        if self.errors[-1] < self.errors[self.best]:
            self.best, self.best_coef = len(self.errors) - 1, state.coef
        if self._tol is None:
            return False
        return decrease(self.errors, len(self.errors) - 1) < self._tol


class IterateRule:
    """Keep the t-th iterate, and all of them if asked.

    Parameters
    ----------
    start : array
        The coefficients before the first iteration.
    t : int
    n_path : int
        Iterates of the path.
    keeps_path : bool

    Attributes
    ----------
    coef : array
        The t-th iterate.
    coefs : list of arrays
        Of the path, `start` the first.
    """

    def __init__(self, start, t, n_path, keeps_path):
        self._t, self._n_kept = t, n_path if keeps_path else 0
        self.max_iter = max(t, self._n_kept)
        self.coef, self.coefs, self._n_iter = start, [start], 0

    def update(self, state):
        """Take in an iterate; the last one is known."""
        self._n_iter += 1
        if self._n_iter == self._t:
            self.coef = state.coef
        if self._n_iter <= self._n_kept:
            self.coefs.append(state.coef)
        return False


def factorises(problem, plan, max_iter, cache_size):
    """Whether one factorization is cheaper than iterating, and fits the memory.

    Parameters
    ----------
    problem : CenterProblem or RowProblem
    plan : NystromPlan
        Of the factorization.
    max_iter : int or None
        None: as many as it takes.
    cache_size : "auto" or float
    """
    if not problem.has_memory(plan):
        return False
    if max_iter is None:
        return True
    n, n_outputs = problem.all.targets.shape
    itemsize = problem.xp.finfo(problem.dtype).bits // 8
    size = n * (problem.n_centers or n) * itemsize
    return factorising_pays(
        machine_of(problem),
        n,
        problem.n_centers,
        problem.n_features,
        n_outputs,
        max_iter,
        itemsize=itemsize,
        cached=size <= cache_budget(cache_size, problem),
        n_threads=1 if on_gpu(problem.xp, problem.device) else n_blas_threads(),
    )


def best_iteration(errors, tol):
    """Return the place of the least error, or of the first small decrease."""
    if tol is not None:
        for t in range(1, len(errors)):
            if decrease(errors, t) < tol:
                return t
    return int(np.nanargmin(errors))


def decrease(errors, t):
    """Return the relative decrease of the error at iteration t."""
    return (errors[t - 1] - errors[t]) / errors[t - 1] if errors[t - 1] > 0 else 0.0


def stable_step(step, top, t):
    """Return a step that is stable on all rows, and as many times it as t steps."""
    if step * top < 2:
        return step, t
    return 1.0 / top, round(t * step * top)


class NytroRegressor(RegressionTargets, _Nytro):
    """Kernel regression by early-stopped gradient descent on Nystrom centers.

    Gradient descent on the mean squared error of ``f(x) = sum_j a_j k(x, z_j) +
    intercept``, from zero, in the geometry of the kernel; the number of iterations is
    what regularizes, and is selected in the same fit. With all rows as centers this is
    early stopping (ES). The path of iterations comes from a few Cholesky factors (for
    ``selection="gcv"`` an eigendecomposition), n m^2 + m^3, whatever their number; or,
    for a given `max_iter`, from iterating, n m each, where that is cheaper.

    Parameters
    ----------
    kernel : str, Kernel or callable, default="laplacian"
        How similar two rows are: "gaussian" (alias "rbf"), "laplacian", "manhattan",
        "cauchy", "matern32", "matern52", "polynomial" (of degree 3), "linear",
        "precomputed", an object of `eigenkern.kernels`, or a callable ``k(X, Z)`` that
        returns the kernel matrix of two blocks of rows. The laplacian takes the
        Euclidean distance, "manhattan" the sum of absolute differences.
    bandwidth : float, "median", "scale" or "auto", default="median"
        Length over which a kernel given by name decays, in the units of X: longer for
        smooth functions, shorter for fine detail. sigma of the formulas; a kernel
        object brings its own. "median": the median distance on a subsample of 600
        distinct rows. "auto": of 1/4, 1/2, ..., 16 times that, the one with the least
        exact leave-one-out error of kernel ridge regression on a subsample of 800
        distinct rows, or the nearest to the median of those that are as good within
        noise. "scale": that of ``SVC(gamma="scale")``, for radial kernels (n_features
        X.var() / 2)^1/2.
    n_centers : int, "auto" or None, default="auto"
        How many of the distinct training rows become centers, m: more are more
        accurate, and slower. All of them, with a warning, if they are fewer. "auto":
        all rows while that is fast (up to some 16 000 rows on two cores, 11000 for a
        path), then 5 n^1/2 log n, or as many as a minute and half of the free memory
        allow; as many as are given, if centers are. None: all rows.
    centers : str or array, default="uniform"
        How the centers are chosen. "uniform": rows at random. "rpcholesky": rows by
        randomly pivoted Cholesky, which needs fewer centers for the same accuracy where
        the data are unevenly spread, and time n m^2. "leverage_scores": rows at random,
        by approximate ridge leverage scores, for the same data, in as much time.
        "kmeans": means of clusters of rows. Or the centers themselves, shape
        (n_centers, n_features); they need not be rows of X. For kernel="precomputed"
        neither means nor an array.
    max_iter : int or "auto", default="auto"
        Iterations at most, t of the paper. "auto": until more of them change nothing,
        which costs the same in closed form; 500 where memory is too small for that, or
        nothing is selected. All are tried up to 500, then each time a tenth more.
    step_size : float or "auto", default="auto"
        Step of gradient descent, gamma; give one to repeat an experiment. "auto": 1
        over the largest eigenvalue of the problem, several times the paper's ``1 / max
        k(x, x)``. A larger one than twice "auto" diverges and raises.
    tol : float or None, default=None
        When to call later iterations no better. None: the iteration with the least
        error. Otherwise the first one that lowers the error by less than this fraction
        of it, as in the paper.
    selection : {"holdout", "gcv", None}, default="holdout"
        What the number of iterations is selected by: the error on rows held out (or on
        `X_val`, `y_val` of `fit`), or generalized cross-validation on all rows. None:
        `max_iter` iterations.
    validation_fraction : float, default=0.2
        Fraction of the rows to hold out. Equal rows with equal targets stay together.
        The model is fitted to all rows in the end: more than the 0.1 of
        `EigenProRegressor`, which is not.
    store_coef_path : bool, default=False
        Whether to keep `coef_path_`, the other models of the path.
    cache_size : float or "auto", default="auto"
        MB of kernel matrix to keep in memory between
        iterations. "auto": what really fits, where
        it pays. 0: none.
    device : {"auto", "cpu", "cuda", "cuda:N"} or list of them, default="auto"
        Where to compute. "auto": where X lives. "cuda": on a GPU; X may stay on the
        host. A list, such as ["cuda:0", "cuda:1"], splits the centers over several.
    random_state : int, RandomState instance or None, default=None
        What is drawn at random: centers, validation rows, subsample of the median
        distance. Pass an int to get the same again.
    verbose : int, default=0
        1 shows lines of progress.

    Attributes
    ----------
    dual_coef_ : array of shape (n_centers, n_outputs)
        Coefficients a of ``f(x) = K(x, centers_) a + intercept_``. Centers that are
        copies of others, or in the span of others to the accuracy of the computation,
        have 0.
    centers_ : array of shape (n_centers, n_features) or None
        The centers; X itself where all rows are. None for kernel="precomputed",
        where `dual_coef_` has a row for every training row.
    center_indices_ : array of shape (n_centers,) or None
        Their places in X. None where all rows, means or an array are the centers.
    n_centers_ : int
        Centers that are not left out.
    intercept_ : array of shape (n_outputs,)
        Weighted mean of the targets.
    kernel_ : Kernel or None
        The kernel object with its bandwidth. None for kernel="precomputed".
    bandwidth_ : float or None
        sigma in use, where the kernel has one.
    n_iter_ : int
        t in use; 0 predicts the mean.
    step_size_ : float
        gamma in use.
    iterations_ : array of shape (n_models,)
        The t of the path: 0, 1, ..., 500, and then each time a tenth more; where it was
        computed step by step, every t.
    validation_path_ : array of shape (n_models,) or None
        Their mean squared errors, of the criterion `selection`; shorter where iterating
        was stopped by `tol`.
    coef_path_ : array of shape (n_models, n_centers, n_outputs) or None
        `dual_coef_` of each of them, fitted to all rows; with ``store_coef_path=True``.
    n_features_in_ : int
        Features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, where X has string names.

    See Also
    --------
    NytroClassifier : The same for class labels.
    NystromRegressor : A penalty in place of early stopping.
    EigenProRegressor : By iteration, for more rows or centers.

    Notes
    -----
    Targets are centered by their mean, which becomes `intercept_`. A weight of 2 equals
    the same row twice. After the selection the model is fitted to all rows, with as
    many iterations of the same step; or, where that step diverges on all rows, with
    more of a shorter one, t gamma being what regularizes.

    References
    ----------
    Camoriano, Angles, Rudi, Rosasco, "NYTRO: when subsampling meets early stopping",
    AISTATS 2016: equations 12 and 19 to 21.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from eigenkern import NytroRegressor
    >>> X, y = make_friedman1(n_samples=600, noise=0.1, random_state=0)
    >>> model = NytroRegressor(n_centers=200, random_state=0)
    >>> round(model.fit(X[:500], y[:500]).score(X[500:], y[500:]), 2)
    0.89
    """


class NytroClassifier(ClassificationTargets, _Nytro):
    """Kernel classification by early-stopped gradient descent on Nystrom centers.

    Least squares on -1 and +1 for two classes, on one column a class for more; the sign
    or the largest column decides. The algorithm is that of `NytroRegressor`.

    Parameters
    ----------
    kernel : str, Kernel or callable, default="laplacian"
        How similar two rows are: "gaussian" (alias "rbf"), "laplacian", "manhattan",
        "cauchy", "matern32", "matern52", "polynomial" (of degree 3), "linear",
        "precomputed", an object of `eigenkern.kernels`, or a callable ``k(X, Z)`` that
        returns the kernel matrix of two blocks of rows. The laplacian takes the
        Euclidean distance, "manhattan" the sum of absolute differences.
    bandwidth : float, "median", "scale" or "auto", default="median"
        Length over which a kernel given by name decays, in the units of X: longer for
        smooth functions, shorter for fine detail. sigma of the formulas; a kernel
        object brings its own. "median": the median distance on a subsample of 600
        distinct rows. "auto": of 1/4, 1/2, ..., 16 times that, the one with the least
        exact leave-one-out error of kernel ridge regression on a subsample of 800
        distinct rows, or the nearest to the median of those that are as good within
        noise. "scale": that of ``SVC(gamma="scale")``, for radial kernels (n_features
        X.var() / 2)^1/2.
    n_centers : int, "auto" or None, default="auto"
        How many of the distinct training rows become centers, m: more are more
        accurate, and slower. All of them, with a warning, if they are fewer. "auto":
        all rows while that is fast (up to some 16 000 rows on two cores, 11000 for a
        path), then 5 n^1/2 log n, or as many as a minute and half of the free memory
        allow; as many as are given, if centers are. None: all rows.
    centers : str or array, default="uniform"
        How the centers are chosen. "uniform": rows at random. "rpcholesky": rows by
        randomly pivoted Cholesky, which needs fewer centers for the same accuracy where
        the data are unevenly spread, and time n m^2. "leverage_scores": rows at random,
        by approximate ridge leverage scores, for the same data, in as much time.
        "kmeans": means of clusters of rows. Or the centers themselves, shape
        (n_centers, n_features); they need not be rows of X. For kernel="precomputed"
        neither means nor an array.
    max_iter : int or "auto", default="auto"
        Iterations at most, t of the paper. "auto": until more of them change nothing,
        which costs the same in closed form; 500 where memory is too small for that, or
        nothing is selected. All are tried up to 500, then each time a tenth more.
    step_size : float or "auto", default="auto"
        Step of gradient descent, gamma; give one to repeat an experiment. "auto": 1
        over the largest eigenvalue of the problem, several times the paper's ``1 / max
        k(x, x)``. A larger one than twice "auto" diverges and raises.
    tol : float or None, default=None
        When to call later iterations no better. None: the iteration with the least
        error. Otherwise the first one that lowers the error by less than this fraction
        of it, as in the paper.
    selection : {"holdout", "gcv", None}, default="holdout"
        What the number of iterations is selected by: the error on rows held out (or on
        `X_val`, `y_val` of `fit`), or generalized cross-validation on all rows. None:
        `max_iter` iterations.
    validation_fraction : float, default=0.2
        Fraction of the rows to hold out, the same of every class. Equal rows with equal
        targets stay together. The model is fitted to all rows in the end: more than the
        0.1 of `EigenProRegressor`, which is not.
    store_coef_path : bool, default=False
        Whether to keep `coef_path_`, the other models of the path.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, times `sample_weight`.
    cache_size : float or "auto", default="auto"
        MB of kernel matrix to keep in memory between
        iterations. "auto": what really fits, where
        it pays. 0: none.
    device : {"auto", "cpu", "cuda", "cuda:N"} or list of them, default="auto"
        Where to compute. "auto": where X lives. "cuda": on a GPU; X may stay on the
        host. A list, such as ["cuda:0", "cuda:1"], splits the centers over several.
    random_state : int, RandomState instance or None, default=None
        What is drawn at random: centers, validation rows, subsample of the median
        distance. Pass an int to get the same again.
    verbose : int, default=0
        1 shows lines of progress.

    Attributes
    ----------
    dual_coef_ : array of shape (n_centers, n_outputs)
        Coefficients a of ``f(x) = K(x, centers_) a + intercept_``. Centers that are
        copies of others, or in the span of others to the accuracy of the computation,
        have 0.
    centers_ : array of shape (n_centers, n_features) or None
        The centers; X itself where all rows are. None for kernel="precomputed",
        where `dual_coef_` has a row for every training row.
    center_indices_ : array of shape (n_centers,) or None
        Their places in X. None where all rows, means or an array are the centers.
    n_centers_ : int
        Centers that are not left out.
    intercept_ : array of shape (n_outputs,)
        Weighted mean of the targets.
    kernel_ : Kernel or None
        The kernel object with its bandwidth. None for kernel="precomputed".
    bandwidth_ : float or None
        sigma in use, where the kernel has one.
    n_iter_ : int
        t in use; 0 predicts the mean.
    step_size_ : float
        gamma in use.
    iterations_ : array of shape (n_models,)
        The t of the path: 0, 1, ..., 500, and then each time a tenth more; where it was
        computed step by step, every t.
    validation_path_ : array of shape (n_models,) or None
        Their mean squared errors, of the criterion `selection`; shorter where iterating
        was stopped by `tol`.
    coef_path_ : array of shape (n_models, n_centers, n_outputs) or None
        `dual_coef_` of each of them, fitted to all rows; with ``store_coef_path=True``.
    calibration_ : object
        What `predict_proba` makes of values: their `scale`, `offsets` and `floor`; with
        selection="holdout".
    classes_ : ndarray of shape (n_classes,)
        Labels, as a NumPy array whichever library X is from.
    n_features_in_ : int
        Features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, where X has string names.

    See Also
    --------
    NytroRegressor : The same for real targets.
    NystromClassifier : A penalty in place of early stopping.
    EigenProClassifier : By iteration, for more rows or centers.

    References
    ----------
    Camoriano, Angles, Rudi, Rosasco, "NYTRO: when subsampling meets early stopping",
    AISTATS 2016: equations 12 and 19 to 21.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from eigenkern import NytroClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = NytroClassifier(n_centers=300, random_state=0)
    >>> model.fit(X[:1500], y[:1500]).score(X[1500:], y[1500:]) > 0.9
    True
    """

    def __init__(
        self,
        kernel: KernelLike = "laplacian",
        *,
        bandwidth: float | str = "median",
        n_centers: int | str | None = "auto",
        centers: str | ArrayLike = "uniform",
        max_iter: int | str = "auto",
        step_size: float | str = "auto",
        tol: float | None = None,
        selection: str | None = "holdout",
        validation_fraction: float = 0.2,
        store_coef_path: bool = False,
        class_weight: Mapping[Any, float] | str | None = None,
        cache_size: float | str = "auto",
        device: Device = "auto",
        random_state: RandomState = None,
        verbose: int | bool = 0,
    ) -> None:
        super().__init__(
            kernel,
            bandwidth=bandwidth,
            n_centers=n_centers,
            centers=centers,
            max_iter=max_iter,
            step_size=step_size,
            tol=tol,
            selection=selection,
            validation_fraction=validation_fraction,
            store_coef_path=store_coef_path,
            cache_size=cache_size,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.class_weight = class_weight
