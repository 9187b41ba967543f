"""NYTRO: Nystrom and early stopping."""

from itertools import islice

import numpy as np

from ..backend.array import namespace
from ..backend.threads import n_blas_threads
from ..nystrom.descent import Descent, IndefiniteKernelError, factorising_pays
from ..nystrom.filters import descent_filter, descent_kept
from ..operators.plan import cache_budget
from .nystrom import _like, _PathModel
from .targets import ClassificationTargets, RegressionTargets
from .validation import check_number, is_auto


class _Nytro(_PathModel):
    def __init__(
        self,
        kernel="laplacian",
        *,
        bandwidth="median",
        n_centers=None,
        centers="uniform",
        max_iter=500,
        step_size="auto",
        tol=None,
        selection="holdout",
        validation_fraction=0.2,
        store_coef_path=False,
        cache_size="auto",
        device="auto",
        random_state=None,
        verbose=0,
    ):
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

    def _check_parameters(self):
        self._check_common(("holdout", "gcv", None))
        check_number("max_iter", self.max_iter, 1, integer=True)
        if not is_auto(self.step_size):
            check_number("step_size", self.step_size, 0, open_ends=True)
        if self.tol is not None:
            check_number("tol", self.tol, 0)

    def _solve(self, data, context, given):
        problem = self._make_problem(data, self.selection == "holdout")
        if not self._factorises(problem):
            try:
                return self._iterated(problem)
            except IndefiniteKernelError:
                self._say("the kernel has negative eigenvalues: factorising")
        return self._factorised(problem)

    def _factorises(self, problem):
        """Whether one factorisation is cheaper than iterating, and fits the memory."""
        if self.selection == "gcv":
            return True
        if not problem.has_memory(self._plan(problem, path=True)):
            return False
        n = len(problem.all.index)
        size = problem.n_centers or n
        itemsize = problem.xp.finfo(problem.dtype).bits // 8
        return factorising_pays(
            n,
            None if problem.full else size,
            problem.n_features,
            problem.all.targets.shape[1],
            self.max_iter,
            itemsize=itemsize,
            cached=n * size * itemsize <= cache_budget(self.cache_size, problem),
            n_threads=n_blas_threads(),
        )

    def _plan(self, problem, *, path):
        return self._memory_plan(problem, path=path, n_candidates=self.max_iter + 1)

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

    def _choose(self, errors):
        """Return t: the least error, or the first small relative decrease."""
        if self.tol is not None:
            for t in range(1, len(errors)):
                if _decrease(errors, t) < self.tol:
                    return t
        return int(np.nanargmin(errors))

    def _refit_step(self, step, top, t):
        """Return a step that is stable on all rows, and as many times it as t steps."""
        if step * top < 2:
            return step, t
        return 1.0 / top, round(t * step * top)

    def _factorised(self, problem):
        problem.check_memory(self._plan(problem, path=True))
        system = self._make_system(problem, 1)
        training = system.training(problem.train)
        self._say(f"normal equations of {len(problem.train.index)} rows")
        steps = np.arange(self.max_iter + 1)
        errors, spectrum, everything = self._select(
            system,
            training,
            lambda spectrum: _descent(spectrum, steps, self._step(_top(spectrum))),
            lambda spectrum, n: descent_kept(
                spectrum, _like(spectrum, steps), self._step(_top(spectrum))
            ),
        )
        step = self._step(_top(spectrum))
        t = self.max_iter if errors is None else self._choose(errors)
        self._say(f"path of {self.max_iter} iterations: t = {t}")
        if everything is not training:
            spectrum = system.spectrum(everything)
        refit_step, n_steps = self._refit_step(step, _top(spectrum), t)
        b = spectrum.coef(_descent(spectrum, [n_steps], refit_step)[:, 0])
        fitted = {"coef_path_": None}
        if self.store_coef_path:
            filters = _descent(spectrum, steps, refit_step)
            fitted["coef_path_"] = self._coef_path(system, spectrum, filters)
        coef = system.coef(b, problem.all)
        model = system.model(coef, system.mean(everything), problem.all)
        return model | fitted | self._fitted(system, errors, n_steps, refit_step)

    def _fitted(self, system, errors, n_iter, step):
        return {
            "n_iter_": n_iter,
            "step_size_": step,
            "validation_path_": system.problem.source_floats(errors),
            "n_centers_": system.n_centers,
        }

    def _iterated(self, problem):
        if not problem.full:
            problem.check_memory(self._plan(problem, path=False))
        system = self._make_system(problem, self.max_iter)
        descent = Descent(system, problem.train)
        step = self._step(descent.top)
        self._say(f"step {step:.3g} on {len(problem.train.index)} rows")
        t, errors = self.max_iter, None
        if problem.validation is not None:
            error_of = system.error(problem.validation, descent.mean)
            errors = [error_of(descent.dual(descent.start))]
            for coef in islice(descent.run(step), self.max_iter):
                errors.append(error_of(descent.dual(coef)))
                last = len(errors) - 1
                if self.tol is not None and _decrease(errors, last) < self.tol:
                    break
            errors = np.asarray(errors)
            t = self._choose(errors)
            self._say(f"path of {len(errors) - 1} iterations: t = {t}")
            if len(problem.validation.index):
                # Anew, so that the matrices that were kept are let go.
                del system, descent, error_of
                system = self._make_system(problem, self.max_iter)
                descent = Descent(system, problem.all)
        step, n_steps = self._refit_step(step, descent.top, t)
        coefs, coef = [descent.start], descent.start
        n_run = max(n_steps, self.max_iter if self.store_coef_path else 0)
        for i, b in enumerate(islice(descent.run(step), n_run)):
            coef = b if i < n_steps else coef
            if self.store_coef_path and i < self.max_iter:
                coefs.append(b)
        model = system.model(descent.dual(coef), descent.mean, problem.all)
        fitted = {"coef_path_": None}
        if self.store_coef_path:
            zero = descent.mean * 0
            path = [
                system.model(descent.dual(b), zero, problem.all)["dual_coef_"]
                for b in coefs
            ]
            fitted["coef_path_"] = namespace(path[0]).stack(path)
        return model | fitted | self._fitted(system, errors, n_steps, step)


def _top(spectrum):
    return float(spectrum.values[-1])


def _descent(spectrum, steps, step_size):
    return descent_filter(spectrum.values, _like(spectrum, steps), step_size)


def _decrease(errors, t):
    """Return the relative decrease of the error at iteration t."""
    return (errors[t - 1] - errors[t]) / errors[t - 1] if errors[t - 1] > 0 else 0.0


class NytroRegressor(RegressionTargets, _Nytro):
    """Kernel regression by early-stopped gradient descent on Nystrom centers.

    Gradient descent on the mean squared error of ``f(x) = sum_j a_j k(x, z_j) +
    intercept``, from zero, in the geometry of the kernel; the number of iterations is
    what regularises, and is selected in the same fit. With all rows as centers this is
    early stopping (ES). The path of all iterations comes from one eigendecomposition,
    n m^2 + m^3, or from iterating, n m each, whichever is cheaper.

    Parameters
    ----------
    kernel : str, Kernel or callable, default="laplacian"
        "gaussian" (alias "rbf"), "laplacian", "cauchy", "matern32", "matern52",
        "polynomial" (of degree 3), "linear", "precomputed", an object of
        `eigenkern.kernels`, or a callable ``k(X, Z)`` that returns the kernel matrix of
        two blocks of rows. The laplacian takes the Euclidean distance.
    bandwidth : float or "median", default="median"
        sigma of a kernel given by name, in the units of X. "median": the median
        distance on a subsample of 600 distinct rows. A kernel object brings its own.
    n_centers : int or None, default=None
        m, how many of the distinct training rows become centers, or all if they are
        fewer. None: all rows (early stopping on the full kernel).
    centers : str or array, default="uniform"
        How they are chosen. "uniform": rows at random. "rpcholesky": rows by randomly
        pivoted Cholesky, which needs fewer centers for the same accuracy where the data
        are unevenly spread, and time n m^2. "leverage_scores": rows at random, by
        approximate ridge leverage scores, for the same data, in as much time. "kmeans":
        means of clusters of rows. Or the centers themselves, shape (n_centers,
        n_features); they need not be rows of X. For kernel="precomputed" neither means
        nor an array.
    max_iter : int, default=500
        t, iterations at most.
    step_size : float or "auto", default="auto"
        gamma. "auto": 1 over the largest eigenvalue of the problem, several times the
        paper's ``1 / max k(x, x)``. A larger one than twice "auto" diverges and raises.
    tol : float or None, default=None
        None: the iteration with the least error. Otherwise the first one that lowers
        the error by less than this fraction of it, as in the paper.
    selection : {"holdout", "gcv", None}, default="holdout"
        What the number of iterations is selected by: the error on rows held out (or on
        `X_val`, `y_val` of `fit`), or generalised cross-validation on all rows. None:
        `max_iter` iterations.
    validation_fraction : float, default=0.2
        Fraction of the rows to hold out. Equal rows with equal targets stay together.
    store_coef_path : bool, default=False
        Whether to keep `coef_path_`.
    cache_size : float or "auto", default="auto"
        MB of kernel matrix to keep in memory between
        iterations. "auto": what really fits, where
        it pays. 0: none.
    device : {"auto", "cpu", "cuda", "cuda:N"} or list of them, default="auto"
        "auto" computes where X lives. "cuda" computes on a GPU, X may stay on the host;
        a list, such as ["cuda:0", "cuda:1"], splits the centers over several.
    random_state : int, RandomState instance or None, default=None
        Centers, validation rows, subsample of the median distance.
    verbose : int, default=0
        1 shows lines of progress.

    Attributes
    ----------
    dual_coef_ : array of shape (n_centers, n_outputs)
        Coefficients a of ``f(x) = K(x, centers_) a + intercept_``. Centers that are
        copies of others, or in the span of others to the accuracy of the computation,
        have 0.
    centers_ : array of shape (n_centers, n_features) or None
        The centers; X itself for ``n_centers=None``. None for kernel="precomputed",
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
    validation_path_ : array of shape (max_iter + 1,) or None
        Mean squared error after 0, 1, ... iterations, of the criterion `selection`;
        shorter where iterating was stopped by `tol`.
    coef_path_ : array of shape (max_iter + 1, n_centers, n_outputs) or None
        `dual_coef_` after each iteration, fitted to all rows; with
        ``store_coef_path=True``.
    n_features_in_ : int
        Features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, where X has string names.

    See Also
    --------
    NytroClassifier : The same for class labels.
    NystromRegressor : A penalty in place of early stopping.

    Notes
    -----
    Targets are centered by their mean, which becomes `intercept_`. A weight of 2 equals
    the same row twice. After the selection the model is fitted to all rows, with as
    many iterations of the same step; or, where that step diverges on all rows, with
    more of a shorter one, t gamma being what regularises.

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
    0.87
    """


class NytroClassifier(ClassificationTargets, _Nytro):
    """Kernel classification by early-stopped gradient descent on Nystrom centers.

    Least squares on -1 and +1 for two classes, on one column a class for more; the sign
    or the largest column decides. The algorithm is that of `NytroRegressor`.

    Parameters
    ----------
    kernel : str, Kernel or callable, default="laplacian"
        "gaussian" (alias "rbf"), "laplacian", "cauchy", "matern32", "matern52",
        "polynomial" (of degree 3), "linear", "precomputed", an object of
        `eigenkern.kernels`, or a callable ``k(X, Z)`` that returns the kernel matrix of
        two blocks of rows. The laplacian takes the Euclidean distance.
    bandwidth : float or "median", default="median"
        sigma of a kernel given by name, in the units of X. "median": the median
        distance on a subsample of 600 distinct rows. A kernel object brings its own.
    n_centers : int or None, default=None
        m, how many of the distinct training rows become centers, or all if they are
        fewer. None: all rows (early stopping on the full kernel).
    centers : str or array, default="uniform"
        How they are chosen. "uniform": rows at random. "rpcholesky": rows by randomly
        pivoted Cholesky, which needs fewer centers for the same accuracy where the data
        are unevenly spread, and time n m^2. "leverage_scores": rows at random, by
        approximate ridge leverage scores, for the same data, in as much time. "kmeans":
        means of clusters of rows. Or the centers themselves, shape (n_centers,
        n_features); they need not be rows of X. For kernel="precomputed" neither means
        nor an array.
    max_iter : int, default=500
        t, iterations at most.
    step_size : float or "auto", default="auto"
        gamma. "auto": 1 over the largest eigenvalue of the problem, several times the
        paper's ``1 / max k(x, x)``. A larger one than twice "auto" diverges and raises.
    tol : float or None, default=None
        None: the iteration with the least error. Otherwise the first one that lowers
        the error by less than this fraction of it, as in the paper.
    selection : {"holdout", "gcv", None}, default="holdout"
        What the number of iterations is selected by: the error on rows held out (or on
        `X_val`, `y_val` of `fit`), or generalised cross-validation on all rows. None:
        `max_iter` iterations.
    validation_fraction : float, default=0.2
        Fraction of the rows to hold out, the same of every class. Equal rows with
        equal targets stay together.
    store_coef_path : bool, default=False
        Whether to keep `coef_path_`.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, times `sample_weight`.
    cache_size : float or "auto", default="auto"
        MB of kernel matrix to keep in memory between
        iterations. "auto": what really fits, where
        it pays. 0: none.
    device : {"auto", "cpu", "cuda", "cuda:N"} or list of them, default="auto"
        "auto" computes where X lives. "cuda" computes on a GPU, X may stay on the host;
        a list, such as ["cuda:0", "cuda:1"], splits the centers over several.
    random_state : int, RandomState instance or None, default=None
        Centers, validation rows, subsample of the median distance.
    verbose : int, default=0
        1 shows lines of progress.

    Attributes
    ----------
    dual_coef_ : array of shape (n_centers, n_outputs)
        Coefficients a of ``f(x) = K(x, centers_) a + intercept_``. Centers that are
        copies of others, or in the span of others to the accuracy of the computation,
        have 0.
    centers_ : array of shape (n_centers, n_features) or None
        The centers; X itself for ``n_centers=None``. None for kernel="precomputed",
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
    validation_path_ : array of shape (max_iter + 1,) or None
        Mean squared error after 0, 1, ... iterations, of the criterion `selection`;
        shorter where iterating was stopped by `tol`.
    coef_path_ : array of shape (max_iter + 1, n_centers, n_outputs) or None
        `dual_coef_` after each iteration, fitted to all rows; with
        ``store_coef_path=True``.
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
        kernel="laplacian",
        *,
        bandwidth="median",
        n_centers=None,
        centers="uniform",
        max_iter=500,
        step_size="auto",
        tol=None,
        selection="holdout",
        validation_fraction=0.2,
        store_coef_path=False,
        class_weight=None,
        cache_size="auto",
        device="auto",
        random_state=None,
        verbose=0,
    ):
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
