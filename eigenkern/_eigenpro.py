"""EigenPro estimators: preconditioned gradient descent on kernel machines."""

from functools import partial

from ._base import (
    ClassificationTargets,
    EpochModel,
    RegressionTargets,
    check_flag,
    check_number,
    is_auto,
)
from ._tuning import max_batch_size, tune
from .preconditioners import GlobalSpectral, Spectral
from .solvers.eigenpro import eigenpro


class EigenProModel(EpochModel):
    """What EigenPro on kernels and on features share: parameters, solver, results."""

    def _check_iteration(self):
        """Raise a ValueError unless the parameters of the iteration are right."""
        smallest = {"n_components": 0, "subsample_size": 2, "batch_size": 1}
        for name, low in smallest.items():
            if not is_auto(getattr(self, name)):
                check_number(name, getattr(self, name), low, integer=True)
        step = self.step_size
        if not isinstance(step, str):
            check_number("step_size", step, 0, open_ends=True)
        elif step not in ("auto", "bound"):
            raise ValueError(
                f"step_size must be 'auto', 'bound' or a number > 0; got {step!r}"
            )
        check_number("damping", self.damping, 0, 1, open_low=True)
        check_flag("warm_start", self.warm_start)
        self._check_epochs()

    def _solver(self, problem, tuning):
        return eigenpro(
            problem.operator,
            problem.targets,
            tuning.preconditioner,
            coef=problem.initial_coef(self._previous_coef(problem)),
            weights=problem.weights,
            batch_size=tuning.batch_size,
            step_size=tuning.step_size,
            rng=problem.rng,
            try_half_steps=is_auto(self.step_size),
        )

    def _tuned(self, tuning, problem):
        """Return the fitted attributes that tell what was chosen."""
        return {
            "batch_size_": tuning.batch_size,
            "step_size_": tuning.step_size,
            "n_components_": tuning.preconditioner.n_components,
            "subsample_size_": tuning.subsample_size,
            "max_batch_size_": tuning.max_batch_size,
            "critical_batch_size_": tuning.plain.critical_batch_size,
            "adapted_critical_batch_size_": tuning.adapted.critical_batch_size,
            "beta_": tuning.adapted.beta,
            "top_eigenvalue_": tuning.adapted.top_eigenvalue,
            "eigenvalues_": problem.at_home(tuning.preconditioner.eigenvalues),
            "acceleration_": tuning.acceleration,
            "tuning_results_": tuning.results,
        }


class _EigenPro(EigenProModel):
    def __init__(
        self,
        kernel="laplacian",
        *,
        bandwidth="median",
        algorithm="auto",
        n_components="auto",
        subsample_size="auto",
        svd_solver="nystrom",
        batch_size="auto",
        step_size="auto",
        damping=1.0,
        max_iter=20,
        tol=1e-4,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=3,
        warm_start=False,
        cache_size="auto",
        device="auto",
        random_state=None,
        verbose=0,
    ):
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.algorithm = algorithm
        self.n_components = n_components
        self.subsample_size = subsample_size
        self.svd_solver = svd_solver
        self.batch_size = batch_size
        self.step_size = step_size
        self.damping = damping
        self.max_iter = max_iter
        self.tol = tol
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.cache_size = cache_size
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _check_parameters(self):
        algorithms = ("auto", "eigenpro1", "eigenpro2", "sgd")
        if not isinstance(self.algorithm, str) or self.algorithm not in algorithms:
            raise ValueError(
                "algorithm must be 'auto', 'eigenpro1', 'eigenpro2' or 'sgd'; "
                f"got {self.algorithm!r}"
            )
        if self.svd_solver not in ("nystrom", "randomized"):
            raise ValueError(
                f"svd_solver must be 'nystrom' or 'randomized'; got {self.svd_solver!r}"
            )
        self._check_iteration()
        if self.algorithm == "sgd" and not (
            is_auto(self.n_components) or self.n_components == 0
        ):
            raise ValueError(
                "n_components must be 'auto' or 0 with algorithm='sgd', which has no "
                f"preconditioner; got {self.n_components}"
            )

    def _make_solver(self, problem):
        cached, make_preconditioner = None, Spectral.of
        if self.algorithm == "eigenpro1":
            # The kernel matrix is used at once, for its eigenvectors.
            cached = problem.fill_caches(self.cache_size, self.max_iter + 1)
            make_preconditioner = partial(
                GlobalSpectral.of, svd_solver=self.svd_solver, rng=problem.rng
            )
        tuning = tune(
            problem.operator,
            max_batch_size(
                problem.operator, problem.n_features, problem.targets.shape[1]
            ),
            make_preconditioner=make_preconditioner,
            weights=problem.weights,
            subsample_size=self.subsample_size,
            n_components=0 if self.algorithm == "sgd" else self.n_components,
            batch_size=self.batch_size,
            step_size=self.step_size,
            damping=self.damping,
        )
        if cached is None:
            cached = problem.fill_caches(self.cache_size, self.max_iter)
        solver = self._solver(problem, tuning)
        return solver, self._tuned(tuning, problem) | {"cache_size_": cached}


class EigenProRegressor(RegressionTargets, _EigenPro):
    """Kernel regression by EigenPro: preconditioned stochastic gradient descent.

    Finds f(x) = sum_i a_i k(x, x_i) + intercept with the least squared residual on the
    training rows; early stopping regularises. A spectral preconditioner, computed on a
    subsample, lets large batches take large steps; the step is measured on up to 4000
    rows, and a guard halves it if the iteration diverges all the same. An epoch costs
    n^2 (d + l) multiply-adds, or n^2 l where the kernel matrix fits in memory.

    Parameters
    ----------
    kernel : str, Kernel or callable, default="laplacian"
        "gaussian" (alias "rbf"), "laplacian", "cauchy", "matern32", "matern52",
        "polynomial" (of degree 3), "linear", "precomputed", an object of
        `eigenkern.kernels`, or a callable ``k(X, Z)`` that returns the kernel matrix of
        two blocks of rows. The laplacian takes the Euclidean distance.
    bandwidth : float or "median", default="median"
        sigma of a kernel given by name, in the units of X. "median": the median
        distance on a subsample of 600 rows. A kernel object brings its own.
    algorithm : {"auto", "eigenpro1", "eigenpro2", "sgd"}, default="auto"
        "auto" is "eigenpro2", whose preconditioner lives on the subsample. That of
        "eigenpro1" lives on all rows: its setup costs n^2 (d + q) multiply-adds more, a
        step n q l, and it takes 2 n q numbers. "sgd" is plain mini-batch gradient
        descent, EigenPro with q = 0: the baseline.
    n_components : int or "auto", default="auto"
        q, eigenvectors in the preconditioner; 0 is plain mini-batch gradient descent.
        Eigenvalues lost to rounding are left out.
    subsample_size : int or "auto", default="auto"
        s, rows that the eigenvectors are computed from. "auto": all of up to 1000 rows,
        at most 2000 below 100000 rows, else 4000. Time grows as s^2 q.
    svd_solver : {"nystrom", "randomized"}, default="nystrom"
        How "eigenpro1" finds eigenvectors on all n rows from the subsample: by the
        Nystrom method, or as singular vectors of s rows of the kernel matrix, a little
        more accurate, in memory for s n numbers.
    batch_size : int or "auto", default="auto"
        m, rows of a step. "auto": as many as keep this machine busy (a short
        calibration once a process) and fit its memory, at most an eighth of the rows.
    step_size : float, "auto" or "bound", default="auto"
        eta, of the update ``a_b -= eta / m * (f(X_b) - y_b)``. "auto": 0.8 of the
        largest step that the iteration is seen to bear on up to 4000 rows; when the
        residual of an output stalls, half of it is tried for an epoch, and kept if that
        pays. "bound": by theorem 4 of EigenPro 1, which supposes exact eigenvectors;
        it is several times shorter. All are halved when the iteration diverges.
    damping : float in (0, 1], default=1.0
        tau. 1 brings the q largest eigenvalues down to the next one; with less, further
        down, which regularises.
    max_iter : int, default=20
        Epochs, at most.
    tol : float, default=1e-4
        Stop when the training loss, as a fraction of that of the first epoch (with
        early stopping: the validation score), has not improved by `tol` in
        `n_iter_no_change` epochs.
    early_stopping : bool, default=False
        Hold out rows, score them every epoch, stop when the score no longer improves,
        and keep the best epoch's coefficients.
    validation_fraction : float, default=0.1
        Fraction of the rows to hold out.
    n_iter_no_change : int, default=3
        Epochs without improvement to wait for.
    warm_start : bool, default=False
        Go on from the coefficients of the previous fit, which must have had the same X;
        the step is measured anew.
        Pass an int as `random_state` to keep the median bandwidth and the rows held
        out.
    cache_size : float or "auto", default="auto"
        MB of kernel matrix to keep in memory, so that it is computed once and not once
        an epoch; half the matrix suffices. "auto": what really fits, where it pays. 0:
        none.
    device : {"auto", "cpu", "cuda", "cuda:N"}, default="auto"
        "auto" computes where X lives; otherwise X is copied there for the computation.
    random_state : int, RandomState instance or None, default=None
        Order of the rows, subsample, validation split.
    verbose : int, default=0
        1 shows a line of progress: epoch, loss, score, time.

    Attributes
    ----------
    dual_coef_ : array of shape (n_samples, n_outputs)
        Coefficients a of ``f(x) = K(x, centers_) a + intercept_``. Rows without weight
        and rows held out have 0.
    centers_ : array of shape (n_samples, n_features) or None
        X of the fit, not a copy. None for kernel="precomputed".
    intercept_ : array of shape (n_outputs,)
        Weighted mean of the targets.
    kernel_ : Kernel or None
        The kernel object with its bandwidth. None for kernel="precomputed".
    bandwidth_ : float or None
        sigma in use, where the kernel has one.
    batch_size_ : int
        m.
    max_batch_size_ : int
        The batch that fills the resource and fits its memory.
    step_size_ : float
        eta of the start.
    n_step_halvings_ : int
        How often the guard went back and halved the step.
    n_components_, subsample_size_ : int
        q and s.
    eigenvalues_ : array of shape (q + 1,)
        The largest eigenvalues of the subsample's kernel matrix, over s; in
        "eigenpro1" of the kernel matrix, over n.
    beta_, top_eigenvalue_ : float
        Of the preconditioned kernel, measured on up to 4000 rows: the noise of a step,
        and the largest eigenvalue.
    tuning_results_ : dict of lists
        What was measured for each number of eigenvectors that was considered:
        "n_components", "in_sample_eigenvalue" (of the subsample), "top_eigenvalue",
        "beta", and the "step_size" that these predict.
    critical_batch_size_, adapted_critical_batch_size_ : float
        beta over top eigenvalue, of the kernel and of the preconditioned kernel: larger
        batches gain nothing.
    acceleration_ : float
        Predicted gain over plain gradient descent with the same batches: the ratio of
        the steps that beta and top eigenvalue predict for either.
    cache_size_ : float
        MB of kernel matrix that was kept in memory during the fit.
    n_iter_ : int
        Epochs run.
    loss_curve_ : list of float
        Mean squared residual of each epoch, every batch taken before its update.
    validation_scores_ : list of float or None
        R^2 of the rows held out, one an epoch; None without early stopping.
    n_features_in_ : int
        Features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, where X has string names.

    See Also
    --------
    EigenProClassifier : The same for class labels.

    Notes
    -----
    Targets are centred by their mean, which becomes `intercept_`.

    References
    ----------
    Ma and Belkin, "Diving into the shallows: a computational perspective on large-scale
    shallow learning", NeurIPS 2017 (arXiv:1703.10622).
    Ma and Belkin, "Kernel machines that adapt to GPUs for effective large batch
    training", MLSys 2019 (arXiv:1806.06144).

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from eigenkern import EigenProRegressor
    >>> X, y = make_friedman1(n_samples=600, noise=0.1, random_state=0)
    >>> model = EigenProRegressor(random_state=0).fit(X[:500], y[:500])
    >>> round(model.score(X[500:], y[500:]), 2)
    0.93
    """


class EigenProClassifier(ClassificationTargets, _EigenPro):
    """Kernel classification by EigenPro: preconditioned stochastic gradient descent.

    Least squares on -1 and +1 for two classes, on one column a class for more; the sign
    or the largest column decides. The algorithm is that of `EigenProRegressor`.

    Parameters
    ----------
    kernel : str, Kernel or callable, default="laplacian"
        "gaussian" (alias "rbf"), "laplacian", "cauchy", "matern32", "matern52",
        "polynomial" (of degree 3), "linear", "precomputed", an object of
        `eigenkern.kernels`, or a callable ``k(X, Z)`` that returns the kernel matrix of
        two blocks of rows. The laplacian takes the Euclidean distance.
    bandwidth : float or "median", default="median"
        sigma of a kernel given by name, in the units of X. "median": the median
        distance on a subsample of 600 rows. A kernel object brings its own.
    algorithm : {"auto", "eigenpro1", "eigenpro2", "sgd"}, default="auto"
        "auto" is "eigenpro2", whose preconditioner lives on the subsample. That of
        "eigenpro1" lives on all rows: its setup costs n^2 (d + q) multiply-adds more, a
        step n q l, and it takes 2 n q numbers. "sgd" is plain mini-batch gradient
        descent, EigenPro with q = 0: the baseline.
    n_components : int or "auto", default="auto"
        q, eigenvectors in the preconditioner; 0 is plain mini-batch gradient descent.
        Eigenvalues lost to rounding are left out.
    subsample_size : int or "auto", default="auto"
        s, rows that the eigenvectors are computed from. "auto": all of up to 1000 rows,
        at most 2000 below 100000 rows, else 4000. Time grows as s^2 q.
    svd_solver : {"nystrom", "randomized"}, default="nystrom"
        How "eigenpro1" finds eigenvectors on all n rows from the subsample: by the
        Nystrom method, or as singular vectors of s rows of the kernel matrix, a little
        more accurate, in memory for s n numbers.
    batch_size : int or "auto", default="auto"
        m, rows of a step. "auto": as many as keep this machine busy (a short
        calibration once a process) and fit its memory, at most an eighth of the rows.
    step_size : float, "auto" or "bound", default="auto"
        eta, of the update ``a_b -= eta / m * (f(X_b) - y_b)``. "auto": 0.8 of the
        largest step that the iteration is seen to bear on up to 4000 rows; when the
        residual of an output stalls, half of it is tried for an epoch, and kept if that
        pays. "bound": by theorem 4 of EigenPro 1, which supposes exact eigenvectors;
        it is several times shorter. All are halved when the iteration diverges.
    damping : float in (0, 1], default=1.0
        tau. 1 brings the q largest eigenvalues down to the next one; with less, further
        down, which regularises.
    max_iter : int, default=20
        Epochs, at most.
    tol : float, default=1e-4
        Stop when the training loss, as a fraction of that of the first epoch (with
        early stopping: the validation score), has not improved by `tol` in
        `n_iter_no_change` epochs.
    early_stopping : bool, default=False
        Hold out rows, score them every epoch, stop when the score no longer improves,
        and keep the best epoch's coefficients.
    validation_fraction : float, default=0.1
        Fraction of the rows to hold out, the same of every class.
    n_iter_no_change : int, default=3
        Epochs without improvement to wait for.
    warm_start : bool, default=False
        Go on from the coefficients of the previous fit, which must have had the same X;
        the step is measured anew.
        Pass an int as `random_state` to keep the median bandwidth and the rows held
        out.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, times `sample_weight`.
    cache_size : float or "auto", default="auto"
        MB of kernel matrix to keep in memory, so that it is computed once and not once
        an epoch; half the matrix suffices. "auto": what really fits, where it pays. 0:
        none.
    device : {"auto", "cpu", "cuda", "cuda:N"}, default="auto"
        "auto" computes where X lives; otherwise X is copied there for the computation.
    random_state : int, RandomState instance or None, default=None
        Order of the rows, subsample, validation split.
    verbose : int, default=0
        1 shows a line of progress: epoch, loss, score, time.

    Attributes
    ----------
    dual_coef_ : array of shape (n_samples, n_outputs)
        Coefficients a of ``f(x) = K(x, centers_) a + intercept_``. Rows without weight
        and rows held out have 0.
    centers_ : array of shape (n_samples, n_features) or None
        X of the fit, not a copy. None for kernel="precomputed".
    intercept_ : array of shape (n_outputs,)
        Weighted mean of the targets.
    kernel_ : Kernel or None
        The kernel object with its bandwidth. None for kernel="precomputed".
    bandwidth_ : float or None
        sigma in use, where the kernel has one.
    batch_size_ : int
        m.
    max_batch_size_ : int
        The batch that fills the resource and fits its memory.
    step_size_ : float
        eta of the start.
    n_step_halvings_ : int
        How often the guard went back and halved the step.
    n_components_, subsample_size_ : int
        q and s.
    eigenvalues_ : array of shape (q + 1,)
        The largest eigenvalues of the subsample's kernel matrix, over s; in
        "eigenpro1" of the kernel matrix, over n.
    beta_, top_eigenvalue_ : float
        Of the preconditioned kernel, measured on up to 4000 rows: the noise of a step,
        and the largest eigenvalue.
    tuning_results_ : dict of lists
        What was measured for each number of eigenvectors that was considered:
        "n_components", "in_sample_eigenvalue" (of the subsample), "top_eigenvalue",
        "beta", and the "step_size" that these predict.
    critical_batch_size_, adapted_critical_batch_size_ : float
        beta over top eigenvalue, of the kernel and of the preconditioned kernel: larger
        batches gain nothing.
    acceleration_ : float
        Predicted gain over plain gradient descent with the same batches: the ratio of
        the steps that beta and top eigenvalue predict for either.
    cache_size_ : float
        MB of kernel matrix that was kept in memory during the fit.
    n_iter_ : int
        Epochs run.
    loss_curve_ : list of float
        Mean squared residual of each epoch, every batch taken before its update.
    validation_scores_ : list of float or None
        Accuracy of the rows held out, one an epoch; None without early stopping.
    classes_ : ndarray of shape (n_classes,)
        Labels, in NumPy whatever the library of X.
    n_features_in_ : int
        Features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, where X has string names.

    See Also
    --------
    EigenProRegressor : The same for real targets.

    References
    ----------
    Ma and Belkin, "Diving into the shallows: a computational perspective on large-scale
    shallow learning", NeurIPS 2017 (arXiv:1703.10622).
    Ma and Belkin, "Kernel machines that adapt to GPUs for effective large batch
    training", MLSys 2019 (arXiv:1806.06144).

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from eigenkern import EigenProClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = EigenProClassifier(random_state=0).fit(X[:1500], y[:1500])
    >>> round(model.score(X[1500:], y[1500:]), 2)
    0.96
    """

    def __init__(
        self,
        kernel="laplacian",
        *,
        bandwidth="median",
        algorithm="auto",
        n_components="auto",
        subsample_size="auto",
        svd_solver="nystrom",
        batch_size="auto",
        step_size="auto",
        damping=1.0,
        max_iter=20,
        tol=1e-4,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=3,
        warm_start=False,
        class_weight=None,
        cache_size="auto",
        device="auto",
        random_state=None,
        verbose=0,
    ):
        super().__init__(
            kernel,
            bandwidth=bandwidth,
            algorithm=algorithm,
            n_components=n_components,
            subsample_size=subsample_size,
            svd_solver=svd_solver,
            batch_size=batch_size,
            step_size=step_size,
            damping=damping,
            max_iter=max_iter,
            tol=tol,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            warm_start=warm_start,
            cache_size=cache_size,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.class_weight = class_weight
