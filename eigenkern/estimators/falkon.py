"""The Falkon-like baseline: preconditioned conjugate gradients on centers."""

import math
from collections.abc import Mapping
from functools import partial
from os import PathLike
from typing import Any, Self

import numpy as np

from ..backend.array import to_numpy
from ..backend.hints import ArrayLike, Device, KernelLike, RandomState
from ..nystrom.plan import NystromPlan
from ..operators.cached import kept
from ..preconditioners.falkon import TwoCholesky
from ..solvers.conjugate_gradient import last_state
from ..solvers.falkon import Falkon, FalkonState, falkon
from .base import Model, kernel_gradients, kernel_values
from .checkpoint import Checkpoint
from .least_squares import make_problem, ridge_coef
from .logistic import check_loss, prepare_falkon
from .targets import ClassificationTargets, RegressionTargets
from .training import Rule
from .validation import (
    check_flag,
    check_kernel_parameters,
    check_number,
    warn_user,
)


class _FalkonLike(Model):
    """Kernel ridge regression by Falkon: regression and classification."""

    _task = "iteration"
    _expand = kernel_values
    _gradients = kernel_gradients
    _calibrates = True

    def __init__(
        self,
        kernel: KernelLike = "laplacian",
        *,
        bandwidth: float | str = "median",
        n_centers: int | str | None = "auto",
        centers: str | ArrayLike = "uniform",
        alpha: float = 1e-6,
        max_iter: int = 100,
        tol: float = 1e-3,
        warm_start: bool = False,
        cache_size: float | str = "auto",
        device: Device = "auto",
        random_state: RandomState = None,
        verbose: int | bool = 0,
    ) -> None:
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.n_centers = n_centers
        self.centers = centers
        self.alpha = alpha
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
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
        checkpoint: Checkpoint | str | PathLike[str] | None = None,
        resume: bool = False,
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
        checkpoint : str, path or Checkpoint, default=None
            Folder that the state of the fit is written to, once a minute or as often
            as a `Checkpoint` says; its epochs are iterations here. Only with the
            squared loss.
        resume : bool, default=False
            Go on, bit for bit, from what is in that folder; begin where it is empty.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If the data or a parameter are wrong, or the memory does not suffice; a
            model fitted before stays usable. If the checkpoint is of another fit, or
            damaged.
        OSError
            If the folder of the checkpoint cannot be written at first; later that is a
            RuntimeWarning.
        MemoryError
            If memory runs out; the message says what takes less.

        Warns
        -----
        ConvergenceWarning
            If `max_iter` iterations do not reach `tol`.
        """
        if checkpoint is not None and getattr(self, "loss", None) == "log_loss":
            raise ValueError(
                "checkpoint must be None with loss='log_loss'; got "
                f"{checkpoint!r}: only loss='squared_error' goes on from one"
            )
        return self._fit(X, y, sample_weight, checkpoint=checkpoint, resume=resume)

    def _check_parameters(self):
        check_kernel_parameters(self)
        check_number("alpha", self.alpha, 0)
        check_number("max_iter", self.max_iter, 1, integer=True)
        check_number("tol", self.tol, 0)
        check_flag("warm_start", self.warm_start)

    def _prepare(self, data):
        """Return problem, solver, chosen attributes and rule of a fit."""
        problem = make_problem(self, data, "falkon")
        if problem.n_centers is None:
            return self._prepare_direct(problem)
        n, p = len(problem.train.index), problem.n_centers
        problem.check_memory(NystromPlan.make("falkon", p, n))
        L, weights = problem.whitening.L, problem.weights_of_centers()
        preconditioner = TwoCholesky.of(L, self.alpha, weights)
        (matrix,), cached = kept(
            [problem.matrix_of(problem.train)],
            self.cache_size,
            2 * self.max_iter,
            problem.n_features,
        )
        solver = Falkon(
            matrix,
            problem.targets,
            problem.weights,
            preconditioner,
            self.alpha,
            self.tol,
            self._start(problem),
        )
        chosen = {"n_centers_": problem.n_coefs, "cache_size_": cached}
        hold_out = None
        if problem.calibrates:
            hold_out = partial(self._held_out, problem, matrix, preconditioner)
        return problem, solver, chosen, self._rule(problem, hold_out)

    def _prepare_direct(self, problem):
        """Return the same where all rows are centers.

        The preconditioner would be the inverse, at the price of two factors: one factor
        of the kernel matrix solves the problem.
        """
        problem.check_memory(problem.plan(self.alpha == 0))

        def solver():
            b, factor = ridge_coef(self, problem.everything, self.alpha)
            left_out = None
            if problem.calibrates:
                left_out = problem.left_out(self.alpha, factor)
            del factor
            residual = problem.residual(b, self.alpha)
            yield FalkonState(b, {}, residual, True, left_out)

        chosen = {"n_centers_": problem.n_coefs, "cache_size_": 0.0}
        return problem, solver(), chosen, self._rule(problem)

    def _rule(self, problem, hold_out=None):
        name = type(self).__name__
        return ResidualRule(name, problem, self.max_iter, self.tol, hold_out)

    def _held_out(self, problem, matrix, preconditioner, coef):
        """Return values of a sample of rows, of the model without all of these.

        Conjugate gradients have no factor to leave out single rows by. They start at
        the fitted model here, and soon are there.
        """
        xp, position = problem.xp, problem.rows_to_hold_out()
        weights = to_numpy(problem.weights).copy()
        if len(position) < len(weights):  # not copies of one row
            weights[position] = 0.0
        weights = xp.asarray(weights, device=problem.device)
        mean = weights @ problem.targets / float(xp.sum(weights))
        states = falkon(
            matrix,
            problem.targets - mean,
            weights,
            preconditioner,
            self.alpha,
            10 * self.tol,  # a scale of the values needs no more
            problem.expand(coef),
        )
        coef = last_state(states, self.max_iter)[0].coef
        return problem.held_out(coef, mean, position)

    def _start(self, problem, fitted=("dual_coef_",)):
        """Return the coefficients that ``warm_start=True`` goes on from, or None.

        They are those of some `fitted` attributes.
        """
        if not self.warm_start or not hasattr(self, "dual_coef_"):
            return None
        if not problem.suits(self.dual_coef_, self.centers_, self.center_indices_):
            n_outputs = problem.targets.shape[1]
            raise ValueError(
                "warm_start=True goes on with the coefficients of the previous fit and "
                f"needs the same centers and {n_outputs} output(s): pass centers as an "
                "array, or an int as random_state and the same X"
            )
        return problem.kept_coef(*(getattr(self, name) for name in fitted))

    def _progress(self):
        return ResidualLines(type(self).__name__) if self.verbose else None


class ResidualRule(Rule):
    """Stop when every output is done; warn if that takes too many iterations.

    Parameters
    ----------
    name : str
        Of the estimator, for the warning.
    problem : CenterProblem or RowProblem
    max_iter : int
    tol : float
        What the relative residual should fall to.
    hold_out : callable, default=None
        ``hold_out(coef)`` returns values out of sample of a model that is near to one.

    Attributes
    ----------
    residuals : list of float
        One an iteration.
    """

    def __init__(self, name, problem, max_iter, tol, hold_out=None):
        self._name, self._problem, self._tol = name, problem, tol
        self._hold_out = hold_out
        self.max_iter, self.residuals = max_iter, []
        self._whole = None

    @property
    def losses(self):
        """As many as there are iterations."""
        return self.residuals

    def save(self):
        """Return what all iterations so far have left, for `load`."""
        converged, coef = self._state.converged, self._state.coef
        residuals = list(self.residuals)
        return {"residuals": residuals, "coef": coef, "converged": converged}

    def load(self, saved):
        """Go to where another rule of the same problem was."""
        self.residuals, coef = saved["residuals"], saved["coef"]
        self._state = FalkonState(coef, {}, self.residuals[-1], saved["converged"])
        self._whole = self._state, len(self.residuals)

    def undo(self):
        """Go back to the last whole iteration; return whether there was one.

        Values out of sample, which take more iterations, are then left alone.
        """
        if self._whole is None:
            return False
        self._state, n_whole = self._whole
        del self.residuals[n_whole:]
        self._hold_out = None
        return True

    def update(self, state):
        """Take in an iteration; return whether every output is done."""
        self.residuals.append(state.residual)
        self._state = state
        self._whole = state, len(self.residuals)
        return state.converged

    def fitted_attributes(self, interrupted=False):
        """Return those of the model, and of the iterations."""
        if not self._state.converged and not interrupted:
            warn_user(
                f"{self._name} stopped after {len(self.residuals)} iterations with "
                f"a relative residual of {self.residuals[-1]:.1e}, above "
                f"tol={self._tol}; {self._advice()}"
            )
        return self._problem.fitted_attributes(self._state.coef) | {
            "n_iter_": len(self.residuals),
            "residuals_": self.residuals,
        }

    def out_of_sample(self):
        """Return the values out of sample, of the solver or of rows held out."""
        if self._hold_out is None:
            return self._state.out_of_sample
        return self._hold_out(self._state.coef)

    def _advice(self):
        """Return what helps, by how the residual fell in the later half."""
        norms = np.minimum.accumulate([1.0, *self.residuals])
        n_later = len(norms) // 2
        fall = np.log(norms[-1 - n_later] / norms[-1]) / n_later
        if self._tol > 0 and fall > 0:
            n_needed = len(self.residuals) + np.log(norms[-1] / self._tol) / fall
            if n_needed <= 10 * self.max_iter:
                # It falls by fits and starts: half as many more, in round numbers.
                n = 10 * math.ceil(0.15 * n_needed)
                return f"raise max_iter to {n}"
        return (
            "it falls too slowly for more iterations to help: raise alpha or "
            "n_centers, by which the preconditioner gains, or tol"
        )


class ResidualLines:
    """A line for every iteration, for ``verbose=1``."""

    def __init__(self, name):
        self._name = name

    def start_iterations(self, n_done=0):
        """Nothing is told of the setup."""

    def update(self, rule):
        """Show the residual after an iteration."""
        text = f"iteration {len(rule.residuals)}: residual {rule.residuals[-1]:.2e}"
        print(f"{self._name}: {text}", flush=True)  # noqa: T201

    def close(self):
        """There is no line to end."""


class FalkonLikeRegressor(RegressionTargets, _FalkonLike):
    """Kernel ridge regression on centers by preconditioned conjugate gradients.

    The model of `NystromRegressor` for many centers: the normal equations are solved
    iteratively with Falkon's preconditioner, two Cholesky factors of matrices of the
    centers. Time is n m for each of some 10 to 60 iterations and m^3 for the factors,
    memory some m^2 numbers, and the n m kernel values only where they fit.

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
    alpha : float, default=1e-6
        Strength of the ridge penalty: raise it where targets are noisy. It is lambda of
        ``lambda |f|^2`` beside the *mean* squared error: ``KernelRidge(alpha=a)`` of
        scikit-learn is alpha = a / n. With X in float32, a penalty that its rounding
        would drown makes the model float64.
    max_iter : int, default=100
        Iterations, at most; raise it where a warning says so.
    tol : float, default=1e-3
        When to stop: an output is done when the norm of its residual is below `tol`
        times that of its right-hand side, both preconditioned. The test error then is
        that of the direct solution to some parts in a thousand.
    warm_start : bool, default=False
        Go on from the coefficients of the previous fit, which must have had the same
        centers: pass `centers`, or the same X and an int as `random_state`. Where all
        rows are centers nothing is iterated.
    cache_size : float or "auto", default="auto"
        MB of kernel matrix to keep in memory between
        iterations. "auto": what really fits, where
        it pays. 0: none.
    device : {"auto", "cpu", "cuda", "cuda:N"} or list of them, default="auto"
        Where to compute. "auto": where X lives. "cuda": on a GPU; X may stay on the
        host. A list, such as ["cuda:0", "cuda:1"], splits the centers over several.
    random_state : int, RandomState instance or None, default=None
        What is drawn at random: centers, subsample of the median distance. Pass an int
        to get the same again.
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
        Iterations run.
    residuals_ : list of float
        The largest relative residual of the outputs after each iteration.
    cache_size_ : float
        MB of kernel matrix that was kept in memory during the fit.
    n_features_in_ : int
        Features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, where X has string names.

    See Also
    --------
    FalkonLikeClassifier : The same for class labels.
    NystromRegressor : The same model in closed form, with its path.
    EigenProRegressor : The same kernels with a preconditioner of eigenvectors.

    Notes
    -----
    Targets are centered by their mean, which becomes `intercept_`. Each center counts
    in the preconditioner with the weight of the rows that are equal to it. Centers that
    are no uniform sample count with the weight of the rows nearest to them, unless
    kernel="precomputed". With all rows as centers the preconditioner would be the
    inverse: one Cholesky factor of the kernel matrix then solves the problem, as in
    `NystromRegressor`, and `n_iter_` is 1.

    References
    ----------
    Rudi, Carratino, Rosasco, "FALKON: an optimal large scale kernel method", NeurIPS
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

    Least squares on -1 and +1 for two classes, on one column a class for more; the sign
    or the largest column decides. The algorithm is that of `FalkonLikeRegressor`. Or
    logistic regression, with ``loss="log_loss"``, by Newton's method.

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
    loss : {"squared_error", "log_loss"}, default="squared_error"
        What is minimized. "squared_error": least squares on labels. "log_loss": kernel
        logistic regression, multinomial for more than two classes, whose probabilities
        need no calibration; see the notes.
    alpha : float, default=1e-6
        Strength of the ridge penalty: raise it where targets are noisy. It is lambda of
        ``lambda |f|^2`` beside the *mean* squared error: ``KernelRidge(alpha=a)`` of
        scikit-learn is alpha = a / n. With X in float32, a penalty that its rounding
        would drown makes the model float64.
    max_iter : int, default=100
        Iterations, at most; raise it where a warning says so.
    tol : float, default=1e-3
        When to stop: an output is done when the norm of its residual is below `tol`
        times that of its right-hand side, both preconditioned. The test error then is
        that of the direct solution to some parts in a thousand.
    warm_start : bool, default=False
        Go on from the coefficients of the previous fit, which must have had the same
        centers: pass `centers`, or the same X and an int as `random_state`. Where all
        rows are centers nothing is iterated.
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
        What is drawn at random: centers, subsample of the median distance. Pass an int
        to get the same again.
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
        Weighted mean of the targets; with ``loss="log_loss"`` fitted, without penalty.
    kernel_ : Kernel or None
        The kernel object with its bandwidth. None for kernel="precomputed".
    bandwidth_ : float or None
        sigma in use, where the kernel has one.
    n_iter_ : int
        Iterations run.
    residuals_ : list of float
        The largest relative residual of the outputs after each iteration; with
        ``loss="log_loss"`` as in the notes.
    cache_size_ : float
        MB of kernel matrix that was kept in memory during the fit.
    calibration_ : object
        What `predict_proba` makes of values: their `scale`, `offsets` and `floor`;
        not with ``loss="log_loss"``.
    classes_ : ndarray of shape (n_classes,)
        Labels, as a NumPy array whichever library X is from.
    n_features_in_ : int
        Features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, where X has string names.

    See Also
    --------
    FalkonLikeRegressor : The same for real targets.
    NystromClassifier : The same model in closed form, with its path.
    EigenProClassifier : The same kernels with a preconditioner of eigenvectors.

    Notes
    -----
    With ``loss="log_loss"`` the model has the least ::

        mean_i loss(y_i, f(x_i)) + alpha / 2 |f - intercept|^2

    where the loss is ``log(1 + exp(-y f))`` of two classes, y = -1 or 1, and that of
    the softmax of more, with one column a class and sum zero; `alpha` must be positive.
    An iteration is then a Newton step, by a few conjugate gradients; the first ones are
    for penalties from 1 down to `alpha`. Its residual is the square root of the
    estimated distance of the objective from its least value, over that value: with
    ``tol=1e-3`` the objective is within some 1e-6 of it. `decision_function` returns f,
    the log odds of two classes.

    References
    ----------
    Rudi, Carratino, Rosasco, "FALKON: an optimal large scale kernel method", NeurIPS
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
        bandwidth: float | str = "median",
        n_centers: int | str | None = "auto",
        centers: str | ArrayLike = "uniform",
        loss: str = "squared_error",
        alpha: float = 1e-6,
        max_iter: int = 100,
        tol: float = 1e-3,
        warm_start: bool = False,
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
            alpha=alpha,
            max_iter=max_iter,
            tol=tol,
            warm_start=warm_start,
            cache_size=cache_size,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.loss = loss
        self.class_weight = class_weight

    def _check_parameters(self):
        super()._check_parameters()
        check_loss(self)

    def _prepare(self, data):
        """Return problem, solver, chosen attributes and rule of a fit."""
        if self.loss == "squared_error":
            return super()._prepare(data)
        return prepare_falkon(self, data)
