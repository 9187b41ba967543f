"""The Falkon-like baseline: preconditioned conjugate gradients on centers."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any, Self

import numpy as np

from ..arrays.array import ArrayLike, Device, KernelLike, RandomState, to_numpy
from ..fitting.checkpoint import Checkpoint
from ..fitting.conveniences import keep_parameters
from ..fitting.model import KernelModel, start_of
from ..fitting.rules import Rule
from ..fitting.targets import ClassificationTargets, RegressionTargets
from ..fitting.validation import (
    check_flag,
    check_kernel_parameters,
    check_number,
    warn_user,
)
from ..methods.conjugate_gradients import Falkon, TwoCholesky, last_state
from ..methods.newton import newton, way_down
from ..methods.state import State
from ..plan.parameters import has_log_loss, is_auto
from .on_centers import (
    check_loss,
    chosen_alpha,
    make_problem,
    plan_of_least_squares,
    ridge_coef,
)


class _FalkonLike(KernelModel):
    """Kernel ridge regression by Falkon, for targets and for labels."""

    _task = "iteration"
    _calibrates = True
    _warm_start_needs = "the same centers (an array, or an int as random_state)"

    def __init__(
        self,
        kernel: KernelLike = "laplacian",
        *,
        bandwidth: float | str = "auto",
        n_centers: int | str | None = "auto",
        centers: str | ArrayLike = "uniform",
        alpha: float | str = "auto",
        max_iter: int = 100,
        tol: float = 1e-3,
        warm_start: bool = False,
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
        checkpoint: Checkpoint | str | PathLike[str] | None = None,
        resume: bool = False,
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Training rows; kernel values are computed in their data type, the linear
            algebra in float64. With kernel="precomputed": the kernel matrix of the
            training rows. With fewer centers than rows, X may be a file or a Dask
            array, see :ref:`large_data`.
        y : array of shape (n_samples,) or (n_samples, n_outputs)
            Targets; one label per row for a classifier.
        sample_weight : float or array of shape (n_samples,), default=None
            Nonnegative weights of the squared residuals. A weight of 2 counts as two
            copies of the row.
        checkpoint : str, path or Checkpoint, default=None
            Folder to write the state of the fit to, once a minute or as often as a
            `Checkpoint` says; its epochs are iterations here. Only with the squared
            loss.
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
            If nothing is learned, or `max_iter` iterations do not reach `tol`.
        """
        if checkpoint is not None and has_log_loss(self):
            raise ValueError(
                "checkpoint must be None with loss='log_loss'; got "
                f"{checkpoint!r}: only loss='squared_error' can continue from one"
            )
        return self._fit(X, y, sample_weight, checkpoint=checkpoint, resume=resume)

    def _check_parameters(self):
        check_kernel_parameters(self)
        check_number("alpha", self.alpha, 0, or_auto=True)
        check_number("max_iter", self.max_iter, 1, integer=True)
        check_number("tol", self.tol, 0)
        check_flag("warm_start", self.warm_start)

    _plan = plan_of_least_squares

    def _prepare(self, data):
        """Return problem, solver, chosen attributes and rule of a fit."""
        problem, plan = make_problem(self, data)
        alpha, hold_out, megabytes = chosen_alpha(self, problem), None, 0.0
        if plan.method != "iterations":
            solver = self._direct(problem, alpha)
        elif has_log_loss(self):
            problem.iterates(alpha)
            solver, megabytes = self._newton_steps(problem, alpha), problem.matrices[1]
        else:
            if is_auto(self.alpha):  # with less, the iteration does not converge
                alpha = max(alpha, 1e-8 * problem.kernel_size)
            problem.iterates(alpha)
            self._say("computing preconditioner and kernel matrix")
            L, weights = problem.whitening.L, problem.weights_of_centers()
            preconditioner = TwoCholesky.of(L, alpha, weights)
            (matrix,), megabytes = problem.matrices
            given = matrix, problem.targets, problem.weights, preconditioner, alpha
            solver = Falkon(*given, self.tol, start_of(self, problem))
            if problem.calibrates:
                given = problem, matrix, preconditioner, alpha
                hold_out = partial(self._held_out, *given)
        chosen = {"alpha_": alpha, "cache_size_": megabytes}
        chosen["n_centers_"] = problem.n_coefs
        name = type(self).__name__
        rule = ResidualRule(name, problem, self.max_iter, self.tol, hold_out)
        rule.direct = plan.method != "iterations"
        return problem, solver, chosen, rule

    def _direct(self, problem, alpha):
        """Yield the model if all rows are centers, by one factor of the kernel matrix.

        The preconditioner would be the inverse, at the cost of two Cholesky factors.
        """
        self._say(f"solving for {len(problem.train.index)} rows directly")
        b, factor = ridge_coef(self, problem.everything, alpha)
        left_out = problem.left_out(alpha, factor) if problem.calibrates else None
        del factor
        residual = problem.residual(b, alpha)
        yield State(b, residual=residual, converged=True, out_of_sample=left_out)

    def _newton_steps(self, problem, alpha):
        """Return an iterator of the states of Newton steps."""
        start = start_of(self, problem)
        if problem.constant:
            return iter([State(problem.start, converged=True)])
        objective, rows = problem.objective(problem.train), problem.train
        preconditioner = problem.preconditioner(objective, rows, of_centers=True)
        alphas = way_down(alpha) if start is None else [alpha]
        start = problem.start if start is None else start
        return newton(objective, preconditioner, start, alphas, self.tol)

    def _held_out(self, problem, matrix, preconditioner, alpha, coef):
        """Return values of a sample of rows, from a model fitted without the sample.

        Leaving rows out one by one would need a factor. Conjugate gradients that start
        from the fitted model converge soon.
        """
        xp, position = problem.xp, problem.rows_to_hold_out()
        weights = to_numpy(problem.weights).copy()
        if len(position) < len(weights):  # not if all are copies of one row
            weights[position] = 0.0
        weights = xp.asarray(weights, device=problem.device)
        mean = weights @ problem.targets / float(xp.sum(weights))
        states = Falkon(
            matrix,
            problem.targets - mean,
            weights,
            preconditioner,
            alpha,
            10 * self.tol,  # enough for the scale of the values
            problem.expand(coef),
        )
        coef = last_state(states, self.max_iter)[0].coef
        return problem.held_out(coef, mean, position)

    def _progress(self):
        return ResidualLines(type(self).__name__) if self.verbose else None


class ResidualRule(Rule):
    """Stops when every output has converged; warns if that takes too many iterations.

    Parameters
    ----------
    name : str
        Name of the estimator, for the warning.
    problem : CenterProblem or RowProblem
    max_iter : int
    tol : float
        The relative residual of a converged output.
    hold_out : callable, default=None
        ``hold_out(coef)`` returns out-of-sample values of a model close to this one.

    Attributes
    ----------
    losses : list of float
        Residuals, one per iteration.
    """

    _saved = ("losses", "_state")

    def __init__(self, name, problem, max_iter, tol, hold_out=None):
        self._name, self._problem, self._tol = name, problem, tol
        self._hold_out = hold_out
        self.max_iter, self.losses = max_iter, []
        self._state = self._recorded = None

    def load(self, saved):
        """Take the saved state of another rule for the same problem."""
        super().load(saved)
        self._recorded = self._state, len(self.losses)

    def undo(self):
        """Go back to the last complete iteration; return whether there was one.

        There are then no out-of-sample values, which would take more iterations.
        """
        if self._recorded is None:
            return False
        self._state, n_recorded = self._recorded
        del self.losses[n_recorded:]
        self._hold_out = None
        return True

    def update(self, state):
        """Record an iteration; return whether every output has converged."""
        self.losses.append(state.residual)
        self._state = replace(state, rest=None)  # it may be large
        self._recorded = self._state, len(self.losses)
        return state.converged

    def fitted_attributes(self, interrupted=False):
        """Return the attributes of the model and of the iterations."""
        if not self._state.converged and not interrupted:
            warn_user(
                f"{self._name} stopped after {len(self.losses)} iterations with "
                f"a relative residual of {self.losses[-1]:.1e}, above "
                f"tol={self._tol}; {self._advice()}"
            )
        return self._problem.fitted_attributes(self._state.coef) | {
            "n_iter_": len(self.losses),
            "residuals_": self.losses,
        }

    def out_of_sample(self):
        """Return out-of-sample values, of the solver or of held-out rows."""
        if self._hold_out is None:
            return self._state.out_of_sample
        return self._hold_out(self._state.coef)

    def _advice(self):
        """Return what would help, given the residuals of the second half."""
        norms = np.minimum.accumulate([1.0, *self.losses])
        if norms[-1] < np.finfo(np.float64).eps:
            return "it is less than rounding: raise tol"
        n_later = len(norms) // 2
        fall = np.log(norms[-1 - n_later] / norms[-1]) / n_later
        if self._tol > 0 and fall > 0:
            n_needed = len(self.losses) + np.log(norms[-1] / self._tol) / fall
            if n_needed <= 10 * self.max_iter:
                # The residual falls unevenly: add half, and round up to tens.
                n = 10 * math.ceil(0.15 * n_needed)
                return f"raise max_iter to {n}"
        return (
            "it falls too slowly for more iterations to help: raise alpha or "
            "n_centers, which improves the preconditioner, or tol"
        )


class ResidualLines:
    """A line for every iteration, or a direct solution, for ``verbose=1``."""

    def __init__(self, name):
        self._name = name

    def start_iterations(self, n_done=0):
        """Do nothing: the lines show no times."""

    def update(self, rule):
        """Show the residual after an iteration."""
        what = "solved directly" if rule.direct else f"iteration {len(rule.losses)}"
        text = f"{what}: residual {rule.losses[-1]:.2e}"
        print(f"{self._name}: {text}", flush=True)  # noqa: T201

    def close(self):
        """Do nothing: there is no line to end."""

    def tell_end(self, rule, interrupted):
        """Do nothing: the last line tells the residual."""


class FalkonLikeRegressor(RegressionTargets, _FalkonLike):
    """Kernel ridge regression on centers by preconditioned conjugate gradients.

    The model of `NystromRegressor` for many centers: the normal equations are solved
    iteratively with Falkon's preconditioner, two Cholesky factors of m x m matrices.
    Time is n m for each of some 10 to 60 iterations and m^3 for the factors; memory is
    a few m^2 numbers, and the n m kernel values only if they fit.

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
    alpha : float or "auto", default="auto"
        Strength of the ridge penalty: raise it if targets are noisy. It is lambda in
        ``lambda |f|^2``, added to the *mean* squared error: scikit-learn's
        ``KernelRidge(alpha=a)`` is alpha = a / n. "auto": the one that best predicts
        new rows in kernel ridge regression on part of the rows, at most 4000, or
        by leave-one-out on up to 1000, but with conjugate gradients at least 1e-8 k(x,
        x); 1e-6 below 20 rows, and for a kernel that is not positive semi-definite. If
        X is float32 and the penalty so small that rounding would matter, the fit
        computes in float64.
    max_iter : int, default=100
        Maximum number of iterations; raise it if a warning says so.
    tol : float, default=1e-3
        When to stop: an output has converged when the norm of its residual is below
        `tol` times that of its right-hand side, both preconditioned. The test error is
        then within a few parts in a thousand of the direct solution's.
    warm_start : bool, default=False
        Continue from the coefficients of the previous fit, which must have had the same
        centers: pass `centers`, or the same X and an int as `random_state`. Has no
        effect if all rows are centers: there are no iterations.
    cache_size : float or "auto", default="auto"
        MB of kernel matrix to keep in memory between iterations. "auto": what fits, if
        keeping it is faster. 0: none.
    device : {"auto", "cpu", "cuda", "cuda:N"} or list of them, default="auto"
        Where to compute. "auto": where X lives. "cuda": on a GPU; X may stay on the
        host. A list, such as ["cuda:0", "cuda:1"], splits the centers over them.
    random_state : int, RandomState instance or None, default=None
        Controls what is drawn at random: centers, subsample for the median distance.
        Pass an int for reproducible results.
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
    alpha_ : float
        lambda in use.
    intercept_ : array of shape (n_outputs,)
        Weighted mean of the targets.
    kernel_ : Kernel or None
        The kernel object with its bandwidth. None for kernel="precomputed".
    bandwidth_ : float or None
        sigma in use, if the kernel has one.
    n_iter_ : int
        Iterations run.
    residuals_ : list of float
        The largest relative residual of the outputs after each iteration.
    cache_size_ : float
        MB of kernel matrix kept in memory during the fit.
    n_features_in_ : int
        Number of features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if X has string names.

    See Also
    --------
    FalkonLikeClassifier : The same for class labels.
    NystromRegressor : The same model in closed form, with its path.
    EigenProRegressor : The same kernels with a preconditioner of eigenvectors.

    Notes
    -----
    Targets are centered by their mean, which becomes `intercept_`. The preconditioner
    weights each center by the rows equal to it or, if the centers are not a uniform
    sample, by the rows nearest to it, unless kernel="precomputed". With all rows as
    centers, one Cholesky factor of the kernel matrix solves the problem instead, as in
    `NystromRegressor`, and `n_iter_` is 1.

    References
    ----------
    Rudi, Carratino, Rosasco, "FALKON: an optimal large scale kernel method", NIPS
    2017 (arXiv:1705.10958).

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from eigenkern import FalkonLikeRegressor
    >>> X, y = make_friedman1(n_samples=600, noise=0.1, random_state=0)
    >>> model = FalkonLikeRegressor(n_centers=200, alpha=1e-5)
    >>> model.fit(X[:500], y[:500]).score(X[500:], y[500:]) > 0.85
    True
    """


class FalkonLikeClassifier(ClassificationTargets, _FalkonLike):
    """Kernel ridge classification on centers by preconditioned conjugate gradients.

    Least squares: two classes are coded as targets -1 and +1, and the sign of the
    output gives the class; more classes have a column each, and the column with the
    largest value gives the class. The algorithm is that of `FalkonLikeRegressor`. With
    ``loss="log_loss"`` it is logistic regression, by Newton's method.

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
    loss : {"squared_error", "log_loss"}, default="squared_error"
        Loss to minimize. "squared_error": least squares on labels. "log_loss": kernel
        logistic regression, multinomial for more than two classes, whose probabilities
        need no calibration; see Notes.
    alpha : float or "auto", default="auto"
        Strength of the ridge penalty: raise it if targets are noisy. It is lambda in
        ``lambda |f|^2``, added to the *mean* squared error: scikit-learn's
        ``KernelRidge(alpha=a)`` is alpha = a / n. "auto": the one that best predicts
        new rows in kernel ridge regression on part of the rows, at most 4000, or
        by leave-one-out on up to 1000, but with conjugate gradients at least 1e-8 k(x,
        x); 1e-6 below 20 rows, and for a kernel that is not positive semi-definite. If
        X is float32 and the penalty so small that rounding would matter, the fit
        computes in float64.
    max_iter : int, default=100
        Maximum number of iterations; raise it if a warning says so.
    tol : float, default=1e-3
        When to stop: an output has converged when the norm of its residual is below
        `tol` times that of its right-hand side, both preconditioned. The test error is
        then within a few parts in a thousand of the direct solution's.
    warm_start : bool, default=False
        Continue from the coefficients of the previous fit, which must have had the same
        centers: pass `centers`, or the same X and an int as `random_state`. Has no
        effect if all rows are centers: there are no iterations.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, multiplied by `sample_weight`.
    cache_size : float or "auto", default="auto"
        MB of kernel matrix to keep in memory between iterations. "auto": what fits, if
        keeping it is faster. 0: none.
    device : {"auto", "cpu", "cuda", "cuda:N"} or list of them, default="auto"
        Where to compute. "auto": where X lives. "cuda": on a GPU; X may stay on the
        host. A list, such as ["cuda:0", "cuda:1"], splits the centers over them.
    random_state : int, RandomState instance or None, default=None
        Controls what is drawn at random: centers, subsample for the median distance.
        Pass an int for reproducible results.
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
    alpha_ : float
        lambda in use.
    intercept_ : array of shape (n_outputs,)
        Weighted mean of the targets; with ``loss="log_loss"`` fitted without a penalty.
    kernel_ : Kernel or None
        The kernel object with its bandwidth. None for kernel="precomputed".
    bandwidth_ : float or None
        sigma in use, if the kernel has one.
    n_iter_ : int
        Iterations run.
    residuals_ : list of float
        The largest relative residual of the outputs after each iteration; with
        ``loss="log_loss"`` see Notes.
    cache_size_ : float
        MB of kernel matrix kept in memory during the fit.
    calibration_ : object
        How `predict_proba` maps values to probabilities: `scale`, `offsets`, `floor`;
        absent with ``loss="log_loss"``.
    classes_ : ndarray of shape (n_classes,)
        Labels; a NumPy array even if X comes from another library.
    n_features_in_ : int
        Number of features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if X has string names.

    See Also
    --------
    FalkonLikeRegressor : The same for real targets.
    NystromClassifier : The same model in closed form, with its path.
    EigenProClassifier : The same kernels with a preconditioner of eigenvectors.

    Notes
    -----
    With ``loss="log_loss"`` the model minimizes ::

        mean_i loss(y_i, f(x_i)) + alpha / 2 |f - intercept|^2

    where the loss is ``log(1 + exp(-y f))`` for two classes, y = -1 or 1, and the
    softmax loss for more, with one column per class and sum zero; `alpha` must be
    positive. An iteration is then a Newton step, by a few conjugate gradient steps; the
    first ones use penalties from 1 down to `alpha`. Its residual is the square root of
    the estimated relative distance of the objective from its minimum: with ``tol=1e-3``
    the objective is within some 1e-6 of it. `decision_function` returns f, the log odds
    for two classes.

    References
    ----------
    Rudi, Carratino, Rosasco, "FALKON: an optimal large scale kernel method", NIPS
    2017 (arXiv:1705.10958).

    Marteau-Ferey, Bach, Rudi, "Globally convergent Newton methods for ill-conditioned
    generalized self-concordant losses", NeurIPS 2019 (arXiv:1907.01771): the log loss.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from eigenkern import FalkonLikeClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = FalkonLikeClassifier(n_centers=300, random_state=0)
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
        loss: str = "squared_error",
        alpha: float | str = "auto",
        max_iter: int = 100,
        tol: float = 1e-3,
        warm_start: bool = False,
        class_weight: Mapping[Any, float] | str | None = None,
        cache_size: float | str = "auto",
        device: Device = "auto",
        random_state: RandomState = None,
        verbose: int | bool = 0,
    ) -> None:
        keep_parameters(self, locals())

    def _check_parameters(self):
        super()._check_parameters()
        check_loss(self)
