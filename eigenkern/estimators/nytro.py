"""NYTRO: Nystrom and early stopping."""

import math
from collections.abc import Mapping
from functools import partial
from os import PathLike
from typing import Any, Self

import numpy as np

from ..arrays.array import ArrayLike, Device, KernelLike, RandomState, namespace
from ..fitting.checkpoint import Checkpoint
from ..fitting.conveniences import keep_parameters
from ..fitting.model import KernelModel
from ..fitting.rules import EarlyStoppingRule, SolutionRule
from ..fitting.targets import ClassificationTargets, RegressionTargets
from ..fitting.validation import (
    check_kernel_parameters,
    check_number,
    check_unless_auto,
    warn_user,
)
from ..methods.descent import (
    EarlyStopping,
    best_iteration,
    stable_step,
    step_below,
)
from ..methods.paths import DescentPath, last_iteration
from ..methods.state import State
from ..plan.parameters import is_auto
from .on_centers import (
    check_selection,
    choosing_problem,
    make_problem,
    path_errors,
    plan_of_least_squares,
    still_falls,
    warn_if_indefinite,
)


class _Nytro(KernelModel):
    """Early-stopped gradient descent on centers, for targets and for labels."""

    _calibrates_with = "selection='auto'"

    def __init__(
        self,
        kernel: KernelLike = "laplacian",
        *,
        bandwidth: float | str = "auto",
        n_centers: int | str | None = "auto",
        centers: str | ArrayLike = "uniform",
        max_iter: int | str = "auto",
        step_size: float | str = "auto",
        tol: float | None = None,
        selection: str | None = "auto",
        validation_fraction: float = 0.2,
        store_coef_path: bool = False,
        cache_size: float | str = "auto",
        device: Device = "auto",
        random_state: RandomState = None,
        verbose: int | bool = 0,
    ) -> None:
        keep_parameters(self, locals())

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        X_val: ArrayLike | None = None,
        y_val: ArrayLike | None = None,
        sample_weight_val: ArrayLike | None = None,
        checkpoint: Checkpoint | str | PathLike[str] | None = None,
        resume: bool = False,
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Training rows; the linear algebra is float64, and so are kernel values,
            except with float32 rows where it iterates. With
            kernel="precomputed": the kernel matrix of the training rows. With fewer
            centers than rows, X may be a file or a Dask array, see :ref:`large_data`.
        y : array of shape (n_samples,) or (n_samples, n_outputs)
            Targets; one label per row for a classifier.
        sample_weight : float or array of shape (n_samples,), default=None
            Nonnegative weights of the squared residuals. A weight of 2 counts as two
            copies of the row.
        X_val, y_val : arrays, default=None
            Rows to select the number of iterations on, instead of rows held out of X;
            only with ``selection="holdout"``.
        sample_weight_val : float or array, default=None
            Their weights.
        checkpoint : str, path or Checkpoint, default=None
            Folder to write the state of the fit to where it iterates, once a minute or
            as often as a `Checkpoint` says; epochs are iterations here.
        resume : bool, default=False
            Continue bit for bit from what is in that folder; start anew if it is empty.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If the data or a parameter is wrong, or memory does not suffice; a model
            fitted before stays usable. If the checkpoint is of another fit, or damaged.
        OSError
            If the checkpoint folder cannot be written at the start; later that is a
            RuntimeWarning.
        MemoryError
            If memory runs out; the message says what needs less.

        Warns
        -----
        ConvergenceWarning
            If nothing is learned; if the kernel is not positive semi-definite, and its
            negative part is dropped; or if the last iteration is the best one, so that
            `max_iter` ends the path while the error still falls.
        """
        rows, validation = (X, y, sample_weight), (X_val, y_val, sample_weight_val)
        return self._fit(*rows, *validation, checkpoint=checkpoint, resume=resume)

    @property
    def _calibrates(self):
        """Whether a fit has out-of-sample values."""
        return self.selection is not None

    def _check_parameters(self):
        check_kernel_parameters(self)
        check_selection(self, ("auto", "holdout", "gcv", "loo", None))
        check_unless_auto("max_iter", self.max_iter, 1, integer=True)
        check_unless_auto("step_size", self.step_size, 0, open_ends=True)
        if self.tol is not None:
            check_number("tol", self.tol, 0)

    _plan = plan_of_least_squares

    def _prepare(self, data):
        """Return problem, solver, chosen attributes and rule of a fit."""
        problem, plan = make_problem(self, data)
        found = {"selection_": plan.selection}

        def factorized():  # when training begins
            yield self._factorized(
                problem, plan, choosing_problem(self, data, problem, plan)
            )

        if plan.method == "path":
            return problem, factorized(), found, SolutionRule(problem)
        # The descent is ridge regression with lambda = 1 / (gamma t), up to a constant,
        # and 1 / gamma the largest eigenvalue: usually a third of k(x, x) or more.
        problem.iterates(0.1 * problem.kernel_size / plan.n_epochs)
        solver = EarlyStopping(
            problem,
            partial(self._iterated, problem, plan),
            self._say,
            n_iter=plan.n_epochs,
            step_size=self.step_size,
            tol=self.tol,
            cache_size=self.cache_size,
            n_stored=plan.n_epochs if self.store_coef_path else 0,
        )
        return problem, solver, found, EarlyStoppingRule(problem, solver)

    def _factorized(self, problem, plan, chooser):
        """Return the model of the best number of iterations, fitted to all rows.

        It is found by the spectrum of the normal equations of `chooser`.
        """
        steps, errors, own = plan.path, None, chooser is problem
        self._say(f"normal equations of {len(problem.train.index)} rows")
        spectrum = chooser.path_spectrum(plan.selection, 0.0, math.inf)
        warn_if_indefinite(self, spectrum)
        step, best = step_below(self.step_size, spectrum.top), -1
        if plan.selection is not None:
            end = last_iteration(spectrum, step)
            if is_auto(self.max_iter):
                steps = steps[: np.searchsorted(steps, end) + 1]
            path = DescentPath(steps, step)
            errors = path_errors(chooser, spectrum, path, plan.selection)
            best = best_iteration(errors, self.tol)
            self._say(f"path of {steps[-1]} iterations: t = {steps[best]}")
            if steps[-1] < end:
                self._warn_at_end(steps, errors, best)
        del chooser  # two problems at a time take twice the memory
        t, held_out, coef_path = int(steps[best]), None, None
        # By theorem 5 of the paper t steps gamma are as good, up to a constant, as the
        # penalty lambda = 1 / (gamma t).
        penalty = 1 / (step * t) if t else math.inf
        if problem.calibrates and problem.validation is not None:
            if not own:
                spectrum = problem.path_spectrum(plan.selection, penalty, penalty)
            b = spectrum.coef(_stable(spectrum, step, t).filters(spectrum)[:, 0])
            held_out = problem.held_out(b, problem.training.mean)
        elif problem.calibrates and plan.selection is not None:
            of_own = problem.training.spectrum
            held_out = problem.left_out(path=_stable(of_own, step, t))
        if problem.refits or not own:
            low, high = (0, math.inf) if self.store_coef_path else (penalty, penalty)
            spectrum = problem.everything.spectrum_between(low, high)
        step, t = stable_step(step, spectrum.top, t)
        b = spectrum.coef(DescentPath([t], step).filters(spectrum)[:, 0])
        if self.store_coef_path:
            coef_path = problem.dual_coef_path(spectrum, DescentPath(steps, step))
        return self._state(problem, b, t, step, steps, errors, coef_path, held_out)

    def _iterated(self, problem, plan, found):
        """Return the model of a finished `EarlyStopping`; or by a factorization."""
        if found.b is None:
            self._say("the kernel has negative eigenvalues: factorizing")
            plan.factors.check_memory(problem)
            problem.in_double()
            return self._factorized(problem, plan, problem)
        steps, held_out, coef_path = np.arange(plan.n_epochs + 1), None, None
        if found.errors is not None:
            self._warn_at_end(np.arange(len(found.errors)), found.errors, found.t)
        if problem.calibrates and problem.validation is not None:
            held_out = problem.held_out(found.best, problem.mean(problem.train))
        if self.store_coef_path:
            dtype = problem.kernel_dtype
            coefs = [problem.to_source(problem.dual_coef(b, dtype)) for b in found.path]
            coef_path = namespace(coefs[0]).stack(coefs)
        chosen = found.b, found.n_steps, found.step
        return self._state(problem, *chosen, steps, found.errors, coef_path, held_out)

    def _warn_at_end(self, steps, errors, best):
        """Warn if the last iteration is the best, and the error still falls there."""
        if best == len(steps) - 1 and still_falls(steps, np.asarray(errors), best):
            warn_user(
                f"{type(self).__name__} found the least error after the last of its "
                f"iterations, t = {steps[best]}, and it still falls there; pass a "
                "larger max_iter" + ("" if is_auto(self.max_iter) else ", or 'auto'")
            )

    def _state(self, problem, b, t, step, steps, errors, coef_path, held_out):
        counts = {
            "n_iter_": t,
            "step_size_": step,
            "iterations_": problem.to_source_or_none(steps),
            "validation_path_": problem.to_source_or_none(errors),
            "coef_path_": coef_path,
            "n_centers_": problem.n_coefs,
        }
        return State(b, counts, out_of_sample=held_out)


def _stable(spectrum, step, t):
    """Return the path of t steps, or of as many stable ones as these are worth."""
    step, t = stable_step(step, spectrum.top, t)
    return DescentPath([t], step)


class NytroRegressor(RegressionTargets, _Nytro):
    """Kernel regression by early-stopped gradient descent on Nystrom centers.

    Gradient descent on the mean squared error of ``f(x) = sum_j a_j k(x, z_j) +
    intercept``, from zero, in the geometry of the kernel; the number of iterations
    regularizes, and is selected in the same fit. With all rows as centers this is early
    stopping (ES). The whole path comes from a few Cholesky factors (for
    ``selection="gcv"`` an eigendecomposition) in time n m^2 + m^3, whatever its length;
    or, for a given `max_iter`, from iterating, in time n m for each iteration, if that
    is cheaper.

    Parameters
    ----------
    kernel : str, Kernel or callable, default="laplacian"
        How similar two rows are: "gaussian" (alias "rbf"), "laplacian", "manhattan",
        "cauchy", "matern32", "matern52", "polynomial" (of degree 3), "linear",
        "precomputed", an object of `eigenkern.kernels`, or a callable ``k(X, Z)`` that
        returns the kernel matrix of two blocks of rows. The laplacian takes the
        Euclidean distance, "manhattan" the sum of absolute differences.
    bandwidth : float, "auto", "median" or "scale", default="auto"
        Length over which a kernel given by name decays, in the units of X: longer for
        smooth functions, shorter for fine detail. This is sigma in the formulas; a
        kernel object has its own. "median": the median distance between 600 distinct
        rows drawn at random. "auto": 1/4, 1/2, ..., or 16 times that, whichever has the
        least error of kernel ridge regression on rows left out of a sample of up to
        3000, with the given penalty or the best; if several are equally good within
        noise, the nearest to the median. "scale": as ``SVC(gamma="scale")``,
        (n_features X.var() / 2)^1/2 for radial kernels.
    n_centers : int, "auto" or None, default="auto"
        Number m of distinct training rows that become centers: more of them make the
        model more accurate and the fit slower. If there are fewer rows, all become
        centers, with a warning. "auto": all rows while that is fast (up to some 16 000
        rows on two cores, 11000 for a path), then 5 n^1/2 log n, or as many as a minute
        and half the memory allow; if `centers` is an array, its rows. None: all rows.
    centers : str or array, default="uniform"
        How to choose the centers. "uniform": random rows. "rpcholesky": rows by
        randomly pivoted Cholesky, in time n m^2; for unevenly spread data it needs
        fewer centers for the same accuracy. "leverage_scores": random rows, drawn with
        probabilities given by approximate ridge leverage scores; for such data too, in
        the same time. "kmeans": means of clusters of rows. Or an array of shape
        (n_centers, n_features): the centers, which need not be rows of X. With
        kernel="precomputed" neither "kmeans" nor an array is possible.
    max_iter : int or "auto", default="auto"
        Maximum number of iterations, t in the paper. "auto": until more iterations
        change nothing, which costs no more in closed form; 500 if memory is too small
        for that, or if nothing is selected. Every t up to 20 is tried (up to 500 if
        `max_iter` or `tol` is given), and then values that grow by a quarter each;
        every t if it iterates.
    step_size : float or "auto", default="auto"
        Step gamma of gradient descent; pass a number to repeat an experiment. "auto": 1
        over the largest eigenvalue of the problem, several times the paper's ``1 / max
        k(x, x)``. Twice the "auto" step or more would diverge, and is an error.
    tol : float or None, default=None
        Which iteration to select. None: the one with the least error. A number: the
        first one that lowers the error by less than this fraction of it, as in the
        paper.
    selection : {"auto", "holdout", "gcv", "loo", None}, default="auto"
        How to select the number of iterations. "holdout": by the error on held-out rows
        (or on `X_val`, `y_val` of `fit`). "gcv": by generalized cross-validation on all
        rows. "loo": by the left-out residuals of a linear smoother, as if leaving a row
        out did not change it. None: run `max_iter` iterations. "auto": "loo" below 1000
        distinct rows, all of them centers, otherwise "holdout".
    validation_fraction : float, default=0.2
        Fraction of the rows to hold out. Equal rows with equal targets stay together.
        The model is refitted to all rows, so the default is more than the 0.1 of
        `EigenProRegressor`, which is not.
    store_coef_path : bool, default=False
        Whether to keep all models of the path, in `coef_path_`.
    cache_size : float or "auto", default="auto"
        MB of kernel matrix to keep in memory between iterations. "auto": what fits, if
        keeping it is faster. 0: none.
    device : {"auto", "cpu", "cuda", "cuda:N"} or list of them, default="auto"
        Where to compute. "auto": where X lives. "cuda": on a GPU; X may stay on the
        host. A list, such as ["cuda:0", "cuda:1"], splits the centers over them.
    random_state : int, RandomState instance or None, default=None
        Controls what is drawn at random: centers, validation rows, subsample for the
        median distance. Pass an int for reproducible results.
    verbose : int, default=0
        1 shows lines of progress.

    Attributes
    ----------
    dual_coef_ : array of shape (n_centers, n_outputs)
        Coefficients a of ``f(x) = K(x, centers_) a + intercept_``. They are 0 for
        centers that are copies of others, or in the span of others up to rounding.
    centers_ : array of shape (n_centers, n_features) or None
        The centers; X itself if all rows are centers. None for kernel="precomputed",
        when `dual_coef_` has a row for every training row.
    center_indices_ : array of shape (n_centers,) or None
        Their indices in X. None if all rows, means or an array are the centers.
    n_centers_ : int
        Number of centers that are not left out.
    intercept_ : array of shape (n_outputs,)
        Weighted mean of the targets.
    kernel_ : Kernel or None
        The kernel object with its bandwidth. None for kernel="precomputed".
    bandwidth_ : float or None
        sigma in use, if the kernel has one.
    n_iter_ : int
        t in use; 0 predicts the mean.
    step_size_ : float
        gamma in use.
    iterations_ : array of shape (n_models,)
        The t of the path: every t up to 20 (up to 500 if `max_iter` or `tol` is given),
        and then values that grow by a quarter each; every t if it was computed step by
        step.
    selection_ : str or None
        Criterion that selected the number of iterations.
    validation_path_ : array of shape (n_models,) or None
        Their mean squared errors by the criterion `selection`; shorter if `tol` stopped
        the iteration.
    coef_path_ : array of shape (n_models, n_centers, n_outputs) or None
        `dual_coef_` of each of them, fitted to all rows, if ``store_coef_path=True``.
    n_features_in_ : int
        Number of features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if X has string names.

    See Also
    --------
    NytroClassifier : The same for class labels.
    NystromRegressor : A penalty in place of early stopping.
    EigenProRegressor : By iteration, for more rows or centers.

    Notes
    -----
    Targets are centered by their mean, which becomes `intercept_`. A weight of 2 counts
    as two copies of the row. After the selection the model is fitted to all rows, with
    as many iterations of the same step; if that step diverges on all rows, with more
    iterations of a shorter one, keeping t gamma, which is what regularizes.

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
    0.91
    """


class NytroClassifier(ClassificationTargets, _Nytro):
    """Kernel classification by early-stopped gradient descent on Nystrom centers.

    Least squares: two classes are coded as targets -1 and +1, and the sign of the
    output gives the class; more classes have a column each, and the column with the
    largest value gives the class. The algorithm is that of `NytroRegressor`.

    Parameters
    ----------
    kernel : str, Kernel or callable, default="laplacian"
        How similar two rows are: "gaussian" (alias "rbf"), "laplacian", "manhattan",
        "cauchy", "matern32", "matern52", "polynomial" (of degree 3), "linear",
        "precomputed", an object of `eigenkern.kernels`, or a callable ``k(X, Z)`` that
        returns the kernel matrix of two blocks of rows. The laplacian takes the
        Euclidean distance, "manhattan" the sum of absolute differences.
    bandwidth : float, "auto", "median" or "scale", default="auto"
        Length over which a kernel given by name decays, in the units of X: longer for
        smooth functions, shorter for fine detail. This is sigma in the formulas; a
        kernel object has its own. "median": the median distance between 600 distinct
        rows drawn at random. "auto": 1/4, 1/2, ..., or 16 times that, whichever has the
        least error of kernel ridge regression on rows left out of a sample of up to
        3000, with the given penalty or the best; if several are equally good within
        noise, the nearest to the median. "scale": as ``SVC(gamma="scale")``,
        (n_features X.var() / 2)^1/2 for radial kernels.
    n_centers : int, "auto" or None, default="auto"
        Number m of distinct training rows that become centers: more of them make the
        model more accurate and the fit slower. If there are fewer rows, all become
        centers, with a warning. "auto": all rows while that is fast (up to some 16 000
        rows on two cores, 11000 for a path), then 5 n^1/2 log n, or as many as a minute
        and half the memory allow; if `centers` is an array, its rows. None: all rows.
    centers : str or array, default="uniform"
        How to choose the centers. "uniform": random rows. "rpcholesky": rows by
        randomly pivoted Cholesky, in time n m^2; for unevenly spread data it needs
        fewer centers for the same accuracy. "leverage_scores": random rows, drawn with
        probabilities given by approximate ridge leverage scores; for such data too, in
        the same time. "kmeans": means of clusters of rows. Or an array of shape
        (n_centers, n_features): the centers, which need not be rows of X. With
        kernel="precomputed" neither "kmeans" nor an array is possible.
    max_iter : int or "auto", default="auto"
        Maximum number of iterations, t in the paper. "auto": until more iterations
        change nothing, which costs no more in closed form; 500 if memory is too small
        for that, or if nothing is selected. Every t up to 20 is tried (up to 500 if
        `max_iter` or `tol` is given), and then values that grow by a quarter each;
        every t if it iterates.
    step_size : float or "auto", default="auto"
        Step gamma of gradient descent; pass a number to repeat an experiment. "auto": 1
        over the largest eigenvalue of the problem, several times the paper's ``1 / max
        k(x, x)``. Twice the "auto" step or more would diverge, and is an error.
    tol : float or None, default=None
        Which iteration to select. None: the one with the least error. A number: the
        first one that lowers the error by less than this fraction of it, as in the
        paper.
    selection : {"auto", "holdout", "gcv", "loo", None}, default="auto"
        How to select the number of iterations. "holdout": by the error on held-out rows
        (or on `X_val`, `y_val` of `fit`). "gcv": by generalized cross-validation on all
        rows. "loo": by the left-out residuals of a linear smoother, as if leaving a row
        out did not change it. None: run `max_iter` iterations. "auto": "loo" below 1000
        distinct rows, all of them centers, otherwise "holdout".
    validation_fraction : float, default=0.2
        Fraction of the rows to hold out, the same from every class. Equal rows with
        equal targets stay together. The model is refitted to all rows, so the default
        is more than the 0.1 of `EigenProRegressor`, which is not.
    store_coef_path : bool, default=False
        Whether to keep all models of the path, in `coef_path_`.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, multiplied by `sample_weight`.
    cache_size : float or "auto", default="auto"
        MB of kernel matrix to keep in memory between iterations. "auto": what fits, if
        keeping it is faster. 0: none.
    device : {"auto", "cpu", "cuda", "cuda:N"} or list of them, default="auto"
        Where to compute. "auto": where X lives. "cuda": on a GPU; X may stay on the
        host. A list, such as ["cuda:0", "cuda:1"], splits the centers over them.
    random_state : int, RandomState instance or None, default=None
        Controls what is drawn at random: centers, validation rows, subsample for the
        median distance. Pass an int for reproducible results.
    verbose : int, default=0
        1 shows lines of progress.

    Attributes
    ----------
    dual_coef_ : array of shape (n_centers, n_outputs)
        Coefficients a of ``f(x) = K(x, centers_) a + intercept_``. They are 0 for
        centers that are copies of others, or in the span of others up to rounding.
    centers_ : array of shape (n_centers, n_features) or None
        The centers; X itself if all rows are centers. None for kernel="precomputed",
        when `dual_coef_` has a row for every training row.
    center_indices_ : array of shape (n_centers,) or None
        Their indices in X. None if all rows, means or an array are the centers.
    n_centers_ : int
        Number of centers that are not left out.
    intercept_ : array of shape (n_outputs,)
        Weighted mean of the targets.
    kernel_ : Kernel or None
        The kernel object with its bandwidth. None for kernel="precomputed".
    bandwidth_ : float or None
        sigma in use, if the kernel has one.
    n_iter_ : int
        t in use; 0 predicts the mean.
    step_size_ : float
        gamma in use.
    iterations_ : array of shape (n_models,)
        The t of the path: every t up to 20 (up to 500 if `max_iter` or `tol` is given),
        and then values that grow by a quarter each; every t if it was computed step by
        step.
    selection_ : str or None
        Criterion that selected the number of iterations.
    validation_path_ : array of shape (n_models,) or None
        Their mean squared errors by the criterion `selection`; shorter if `tol` stopped
        the iteration.
    coef_path_ : array of shape (n_models, n_centers, n_outputs) or None
        `dual_coef_` of each of them, fitted to all rows, if ``store_coef_path=True``.
    calibration_ : object
        How `predict_proba` maps values to probabilities: `scale`, `offsets`, `floor`;
        absent with selection=None.
    classes_ : ndarray of shape (n_classes,)
        Labels; a NumPy array even if X comes from another library.
    n_features_in_ : int
        Number of features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if X has string names.

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
        bandwidth: float | str = "auto",
        n_centers: int | str | None = "auto",
        centers: str | ArrayLike = "uniform",
        max_iter: int | str = "auto",
        step_size: float | str = "auto",
        tol: float | None = None,
        selection: str | None = "auto",
        validation_fraction: float = 0.2,
        store_coef_path: bool = False,
        class_weight: Mapping[Any, float] | str | None = None,
        cache_size: float | str = "auto",
        device: Device = "auto",
        random_state: RandomState = None,
        verbose: int | bool = 0,
    ) -> None:
        keep_parameters(self, locals())
