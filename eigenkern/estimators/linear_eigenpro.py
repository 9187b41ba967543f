"""Linear EigenPro: preconditioned gradient descent on explicit features."""

from functools import partial

import numpy as np
import scipy.sparse

from ..backend.array import location_of, move, namespace, to_numpy
from ..backend.devices import compute_device
from ..preconditioners.linear import LinearSpectral
from ..problems.linear import LinearProblem
from ..solvers.eigenpro import eigenpro
from ..tuning.sizes import default_subsample_size, filling_work
from ..tuning.step import tune
from .eigenpro import EigenProModel
from .targets import ClassificationTargets, RegressionTargets
from .validation import check_flag, is_auto, warn_user

# Rows of a step, at least: the preconditioner costs what a few hundred rows do.
_MIN_ROWS = 256


# A multiply-add of a step takes as long as so many of a large matrix product: each
# feature is read for a few outputs only.
_SLOWNESS = 20


# Halvings of the step in a piece.
_MAX_HALVINGS = 40


# Rows of the subsample for each feature.
_ROWS_A_FEATURE = 8


class _LinearEigenPro(EigenProModel):
    _coef_attribute = "coef_"
    _accept_sparse = "csr"
    _precomputed = False
    _one_dimensional = False
    _failure_hint = "Scale X, or pass a shorter step_size."

    def __init__(
        self,
        n_components="auto",
        *,
        subsample_size="auto",
        batch_size="auto",
        step_size="auto",
        damping=0.25,
        fit_intercept=True,
        max_iter=20,
        tol=1e-4,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=3,
        warm_start=False,
        device="auto",
        random_state=None,
        verbose=0,
    ):
        self.n_components = n_components
        self.subsample_size = subsample_size
        self.batch_size = batch_size
        self.step_size = step_size
        self.damping = damping
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _check_shared_parameters(self):
        """Nothing is shared with the kernel machines."""

    def _check_parameters(self):
        self._check_iteration()
        check_flag("fit_intercept", self.fit_intercept)

    def fit(self, X, y, sample_weight=None):
        """Fit the model.

        Parameters
        ----------
        X : array or sparse array of shape (n_samples, n_features)
            Training rows; float32 is computed in float32.
        y : array of shape (n_samples,) or (n_samples, n_outputs)
            Targets; one label a row for a classifier.
        sample_weight : array of shape (n_samples,), default=None
            Weights of the squared residuals, not negative.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If the data or a parameter are wrong; a model fitted before stays usable.

        Warns
        -----
        ConvergenceWarning
            If no step size keeps the iteration bounded.
        """
        return self._or_restore(self._fit, X, y, sample_weight)

    def _make_problem(self, data, train, held_out):
        return LinearProblem(self, data, train, held_out, center=self.fit_intercept)

    def _make_solver(self, problem):
        tuning = self._tune(problem)
        return self._solver(problem, tuning), self._tuned(tuning, problem)

    def _tune(self, problem, *, in_pieces=False):
        (n, d), n_columns = problem.operator.shape, problem.targets.shape[1]
        work = filling_work(problem.xp, problem.device, problem.operator.dtype)
        largest = max(int(work / (_SLOWNESS * d * n_columns)), _MIN_ROWS)
        m, q = self.batch_size, self.n_components
        if in_pieces and not is_auto(m):
            m = min(m, n)  # later pieces may be larger
        elif is_auto(m):
            # Fewer features than rows leave a residual, whose noise larger batches
            # lower; more can fit the rows, and converge faster in more steps. So do
            # pieces, which are seen once.
            m = min(largest, n if n >= d and not in_pieces else max(n // 8, 1))
        s = self.subsample_size
        if is_auto(s):
            s = default_subsample_size(n)
            if d < s:  # all directions can be estimated
                s = min(max(s, _ROWS_A_FEATURE * d), n)
        elif in_pieces:
            s = min(s, n)
        if not is_auto(q):
            q = min(q, s - 1)  # there are no more eigenvectors
        return tune(
            problem.operator,
            min(largest, n),
            make_preconditioner=partial(LinearSpectral.of, rng=problem.rng),
            weights=problem.weights,
            subsample_size=s,
            n_components=q,
            batch_size=m,
            step_size=self.step_size,
            damping=self.damping,
        )

    def _tuned(self, tuning, problem):
        vectors = tuning.preconditioner.vectors
        return super()._tuned(tuning, problem) | {
            "components_": problem.to_source(problem.xp.asarray(vectors.T, copy=True)),
            "damping_": float(self.damping),
            "fit_intercept_": bool(self.fit_intercept),
        }

    def _previous_coef(self, problem):
        if not self.warm_start or not hasattr(self, "coef_"):
            return None
        (_, d), n_outputs = problem.operator.shape, problem.targets.shape[1]
        shape = tuple(self.coef_.shape)
        if shape not in ((d,), (n_outputs, d)) or (len(shape) == 1 and n_outputs > 1):
            raise ValueError(
                "warm_start=True goes on with the coefficients of the previous fit and "
                f"needs as many features and outputs: {d} and {n_outputs}; "
                f"got coef_ of shape {shape}"
            )
        return self.coef_

    def _partial_fit(self, X, y, sample_weight, classes=None):
        self._check_parameters()
        first = not hasattr(self, "coef_")
        if first and classes is not None:
            self.classes_ = np.unique(classes)
        n_outputs = None if first else self.target_mean_.shape[0]
        data = self._encode_next(
            X, y, sample_weight, n_outputs, min_rows=2 if first else 1
        )
        rows = data.rng.permutation(data.rows_with_weight())
        center, seen = self.fit_intercept, None
        if not first:
            center = self.fit_intercept_
            seen = (
                self.weight_seen_,
                self.mean_,
                to_numpy(self.target_mean_).astype(np.float64),
                self.n_samples_seen_,
            )
        problem = LinearProblem(self, data, rows, None, center=center, seen=seen)
        if first:
            tuning = self._tune(problem, in_pieces=True)
            vars(self).update(self._tuned(tuning, problem))
            vars(self).update(loss_curve_=[], n_step_halvings_=0, n_iter_=0)
            self.validation_scores_ = None
            preconditioner = tuning.preconditioner
        else:
            preconditioner = self._previous_preconditioner(problem)
        with np.errstate(over="ignore", invalid="ignore"):
            coef, loss = self._pass_over(problem, preconditioner)
        vars(self).update(problem.model(coef))
        self.loss_curve_ = [*self.loss_curve_, loss]
        self.n_iter_ += 1
        return self

    def _pass_over(self, problem, preconditioner):
        """Return the coefficients after one epoch over a piece, and its loss.

        A step that leaves the piece worse off than before, and than predicting the
        mean does, is halved: an epoch of few steps can end badly unnoticed. Of the
        halvings before one is taken back for every piece, for one of them may have been
        unlike the others.
        """
        before = problem.initial_coef(getattr(self, "coef_", None))
        loss = problem.loss(before)
        limit = max(loss, problem.loss(problem.initial_coef()))
        halvings = max(self.n_step_halvings_ - 1, 0)
        for _ in range(_MAX_HALVINGS):
            solver = eigenpro(
                problem.operator,
                problem.targets,
                preconditioner,
                coef=problem.xp.asarray(before, copy=True),
                weights=problem.weights,
                batch_size=self.batch_size_,
                step_size=self.step_size_ * 0.5**halvings,
                rng=problem.rng,
                try_steps=False,
                # A piece may be all near the mean of the targets.
                zero_loss=loss * problem.targets.shape[1],
                may_restart=False,
            )
            state = next(solver)
            if state.failed:
                break
            halvings += state.n_step_halvings
            if problem.loss(state.coef) <= limit:
                self.n_step_halvings_ = halvings
                return state.coef, state.loss
            halvings += 1
        warn_user(
            f"{type(self).__name__} found no step size that keeps the iteration "
            "bounded: this piece of the data changed nothing"
        )
        return before, state.loss

    def _previous_preconditioner(self, problem):
        xp, dtype = problem.xp, problem.operator.dtype
        vectors, values = (
            xp.astype(move(array, xp, problem.device), dtype, copy=False)
            for array in (self.components_, self.eigenvalues_)
        )
        made = LinearSpectral(vectors.T, values[:-1], values, self.damping_)
        return made.truncate(self.n_components_)

    def _values(self, X, method):
        X = self._check_rows(X)
        n_outputs, home = self.target_mean_.shape[0], location_of(X)
        self._check_same_namespace(home, method)
        coef, intercept = self.coef_, self.intercept_
        if not scipy.sparse.issparse(X):
            place = compute_device(self.device, X)
            X, coef, intercept = (move(array, *place) for array in (X, coef, intercept))
        xp = namespace(coef)
        coef = xp.reshape(coef, (n_outputs, X.shape[1]))
        if not scipy.sparse.issparse(X):
            X = xp.astype(X, coef.dtype, copy=False)
        return move(X @ coef.T + intercept, *home)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class LinearEigenProRegressor(RegressionTargets, _LinearEigenPro):
    """Linear least squares by EigenPro iteration: preconditioned gradient descent.

    For features that are many and strongly correlated, such as random Fourier features
    of a kernel (EigenPro-RF), where plain gradient descent crawls. A preconditioner
    from the top eigenvectors of the covariance of a subsample lets it take long steps;
    it converges to the same solution, ordinary least squares, and regularises by early
    stopping. An epoch costs 2 n d l multiply-adds, and 2 q d l more for every batch.
    Directions in which X varies less than 1e-7 of the most (0.003 in float32) are
    learned slowly: scale X first.

    Parameters
    ----------
    n_components : int or "auto", default="auto"
        q, eigenvectors in the preconditioner; 0 is plain mini-batch gradient descent,
        n_features or more are all of them. Those lost to rounding are left out.
    subsample_size : int or "auto", default="auto"
        s, rows that the eigenvectors are computed from. "auto": all of up to 1000 rows,
        at most 2000 below 100000 rows, else 4000; of fewer features than that, eight
        rows a feature.
    batch_size : int or "auto", default="auto"
        m, rows of a step. "auto": as many as keep this machine busy, 256 at least; of
        fewer rows than features, and of a piece of the data, an eighth at most.
    step_size : float, "auto" or "bound", default="auto"
        eta, of the update ``w -= eta / m * P X_b' (f(X_b) - y_b)``. "auto": 0.8 of the
        largest step that the iteration is seen to bear on up to 4000 rows. In `fit` up
        to six steps of 0.5 to 4 times that, fewer for many outputs, race for 6 epochs,
        and the best goes on; when the residual of an output stalls, half of the step is
        tried for an epoch, and kept if that pays. "bound": by theorem 3 of the paper,
        which supposes exact eigenvectors. All are halved when the iteration diverges.
    damping : float in (0, 1], default=0.25
        tau. 1 brings the q largest eigenvalues down to the next one; with less, further
        down, against inexact eigenvectors.
    fit_intercept : bool, default=True
        Whether the model has an intercept; features and targets are centered for it,
        and a sparse X stays sparse.
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
        Go on from the coefficients of the previous fit; preconditioner and step are
        made anew.
    device : {"auto", "cpu", "cuda", "cuda:N"}, default="auto"
        "auto" computes where X lives; otherwise X is copied there for the computation.
    random_state : int, RandomState instance or None, default=None
        Order of the rows, eigenvectors, validation split.
    verbose : int, default=0
        1 shows a line of progress of a fit: epoch, loss, score, time.

    Attributes
    ----------
    coef_ : array of shape (n_features,) or (n_outputs, n_features)
        Weights of the features.
    intercept_ : float or array of shape (n_outputs,)
        Zero without `fit_intercept`.
    components_ : array of shape (q, n_features)
        Eigenvectors in the preconditioner.
    eigenvalues_ : array of shape (q + 1,)
        The largest eigenvalues of the covariance of the subsample.
    mean_, target_mean_ : array of shape (n_features,), (n_outputs,)
        Means of features and targets of all rows seen; zeros without an intercept.
    n_samples_seen_, weight_seen_ : int, float
        Rows and total weight of all calls of `partial_fit`, or of the fit.
    batch_size_, max_batch_size_ : int
        m, and what keeps this machine busy.
    step_size_ : float
        eta of the start.
    n_step_halvings_ : int
        How often the guard went back and halved the step; of `partial_fit`: halvings
        in force.
    n_components_, subsample_size_, damping_, fit_intercept_ : int, float, bool
        q and s; the parameters that the preconditioner and the means are for.
    beta_, top_eigenvalue_ : float
        Of the preconditioned features, measured on up to 4000 rows: the noise of a
        step, and the largest eigenvalue.
    tuning_results_ : dict of lists
        What was measured for each number of eigenvectors that was considered:
        "n_components", "in_sample_eigenvalue" (of the subsample), "top_eigenvalue",
        "beta", and the "step_size" that these predict.
    critical_batch_size_, adapted_critical_batch_size_ : float
        beta over top eigenvalue, of the features and of the preconditioned ones: larger
        batches gain nothing.
    acceleration_ : float
        Predicted gain over plain gradient descent with the same batches: the ratio of
        the steps that beta and top eigenvalue predict for either.
    n_iter_ : int
        Epochs run; calls of `partial_fit`.
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
    LinearEigenProClassifier : The same for class labels.
    RandomFourierFeatures : Features that make it a kernel machine.

    References
    ----------
    Ma and Belkin, "Diving into the shallows: a computational perspective on large-scale
    shallow learning", NeurIPS 2017 (arXiv:1703.10622): table 1.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from sklearn.pipeline import make_pipeline
    >>> from eigenkern import LinearEigenProRegressor, RandomFourierFeatures
    >>> X, y = make_friedman1(n_samples=600, noise=0.1, random_state=0)
    >>> features = RandomFourierFeatures(n_components=500, random_state=0)
    >>> model = make_pipeline(features, LinearEigenProRegressor(random_state=0))
    >>> round(model.fit(X[:500], y[:500]).score(X[500:], y[500:]), 2)
    0.95
    """

    def partial_fit(self, X, y, sample_weight=None):
        """Take one epoch over a piece of the data.

        The first piece chooses the preconditioner, batch and step, and whether there is
        an intercept: a thousand rows or more make good ones. The means are those of all
        rows seen.

        Parameters
        ----------
        X : array or sparse array of shape (n_samples, n_features)
        y : array of shape (n_samples,) or (n_samples, n_outputs)
        sample_weight : array of shape (n_samples,), default=None
            Weights of the squared residuals, not negative.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If the data or a parameter are wrong; the model stays as it was.

        Warns
        -----
        ConvergenceWarning
            If no step size keeps the iteration bounded.
        """
        return self._or_restore(self._partial_fit, X, y, sample_weight)


class LinearEigenProClassifier(ClassificationTargets, _LinearEigenPro):
    """Linear classification by EigenPro iteration: preconditioned gradient descent.

    Least squares on -1 and +1 for two classes, on one column a class for more; the sign
    or the largest column decides. The algorithm is that of `LinearEigenProRegressor`.

    Parameters
    ----------
    n_components : int or "auto", default="auto"
        q, eigenvectors in the preconditioner; 0 is plain mini-batch gradient descent,
        n_features or more are all of them. Those lost to rounding are left out.
    subsample_size : int or "auto", default="auto"
        s, rows that the eigenvectors are computed from. "auto": all of up to 1000 rows,
        at most 2000 below 100000 rows, else 4000; of fewer features than that, eight
        rows a feature.
    batch_size : int or "auto", default="auto"
        m, rows of a step. "auto": as many as keep this machine busy, 256 at least; of
        fewer rows than features, and of a piece of the data, an eighth at most.
    step_size : float, "auto" or "bound", default="auto"
        eta, of the update ``w -= eta / m * P X_b' (f(X_b) - y_b)``. "auto": 0.8 of the
        largest step that the iteration is seen to bear on up to 4000 rows. In `fit` up
        to six steps of 0.5 to 4 times that, fewer for many outputs, race for 6 epochs,
        and the best goes on; when the residual of an output stalls, half of the step is
        tried for an epoch, and kept if that pays. "bound": by theorem 3 of the paper,
        which supposes exact eigenvectors. All are halved when the iteration diverges.
    damping : float in (0, 1], default=0.25
        tau. 1 brings the q largest eigenvalues down to the next one; with less, further
        down, against inexact eigenvectors.
    fit_intercept : bool, default=True
        Whether the model has an intercept; features and targets are centered for it,
        and a sparse X stays sparse.
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
        Go on from the coefficients of the previous fit; preconditioner and step are
        made anew.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, times `sample_weight`. "balanced" is for `fit` only.
    device : {"auto", "cpu", "cuda", "cuda:N"}, default="auto"
        "auto" computes where X lives; otherwise X is copied there for the computation.
    random_state : int, RandomState instance or None, default=None
        Order of the rows, eigenvectors, validation split.
    verbose : int, default=0
        1 shows a line of progress of a fit: epoch, loss, score, time.

    Attributes
    ----------
    coef_ : array of shape (1, n_features) or (n_classes, n_features)
        Weights of the features.
    intercept_ : array of shape (1,) or (n_classes,)
        Zero without `fit_intercept`.
    components_ : array of shape (q, n_features)
        Eigenvectors in the preconditioner.
    eigenvalues_ : array of shape (q + 1,)
        The largest eigenvalues of the covariance of the subsample.
    mean_, target_mean_ : array of shape (n_features,), (n_outputs,)
        Means of features and targets of all rows seen; zeros without an intercept.
    n_samples_seen_, weight_seen_ : int, float
        Rows and total weight of all calls of `partial_fit`, or of the fit.
    batch_size_, max_batch_size_ : int
        m, and what keeps this machine busy.
    step_size_ : float
        eta of the start.
    n_step_halvings_ : int
        How often the guard went back and halved the step; of `partial_fit`: halvings
        in force.
    n_components_, subsample_size_, damping_, fit_intercept_ : int, float, bool
        q and s; the parameters that the preconditioner and the means are for.
    beta_, top_eigenvalue_ : float
        Of the preconditioned features, measured on up to 4000 rows: the noise of a
        step, and the largest eigenvalue.
    tuning_results_ : dict of lists
        What was measured for each number of eigenvectors that was considered:
        "n_components", "in_sample_eigenvalue" (of the subsample), "top_eigenvalue",
        "beta", and the "step_size" that these predict.
    critical_batch_size_, adapted_critical_batch_size_ : float
        beta over top eigenvalue, of the features and of the preconditioned ones: larger
        batches gain nothing.
    acceleration_ : float
        Predicted gain over plain gradient descent with the same batches: the ratio of
        the steps that beta and top eigenvalue predict for either.
    n_iter_ : int
        Epochs run; calls of `partial_fit`.
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
    LinearEigenProRegressor : The same for real targets.
    RandomFourierFeatures : Features that make it a kernel machine.

    References
    ----------
    Ma and Belkin, "Diving into the shallows: a computational perspective on large-scale
    shallow learning", NeurIPS 2017 (arXiv:1703.10622): table 1.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.pipeline import make_pipeline
    >>> from eigenkern import LinearEigenProClassifier, RandomFourierFeatures
    >>> X, y = load_digits(return_X_y=True)
    >>> features = RandomFourierFeatures(n_components=1000, random_state=0)
    >>> model = make_pipeline(features, LinearEigenProClassifier(random_state=0))
    >>> round(model.fit(X[:1500], y[:1500]).score(X[1500:], y[1500:]), 2)
    0.96
    """

    def __init__(
        self,
        n_components="auto",
        *,
        subsample_size="auto",
        batch_size="auto",
        step_size="auto",
        damping=0.25,
        fit_intercept=True,
        max_iter=20,
        tol=1e-4,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=3,
        warm_start=False,
        class_weight=None,
        device="auto",
        random_state=None,
        verbose=0,
    ):
        super().__init__(
            n_components,
            subsample_size=subsample_size,
            batch_size=batch_size,
            step_size=step_size,
            damping=damping,
            fit_intercept=fit_intercept,
            max_iter=max_iter,
            tol=tol,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            warm_start=warm_start,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.class_weight = class_weight

    def partial_fit(self, X, y, classes=None, sample_weight=None):
        """Take one epoch over a piece of the data.

        The first piece chooses the preconditioner, batch and step, and whether there is
        an intercept: a thousand rows or more make good ones. The means are those of all
        rows seen.

        Parameters
        ----------
        X : array or sparse array of shape (n_samples, n_features)
        y : array of shape (n_samples,)
        classes : array of shape (n_classes,), default=None
            All labels there will be; needed in the first call only.
        sample_weight : array of shape (n_samples,), default=None
            Weights of the squared residuals, not negative.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If the data or a parameter are wrong; the model stays as it was.

        Warns
        -----
        ConvergenceWarning
            If no step size keeps the iteration bounded.
        """
        self._check_classes(classes)
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"class_weight={self.class_weight!r} needs all rows at once; pass a "
                "dict of weights to use partial_fit"
            )
        return self._or_restore(self._partial_fit, X, y, sample_weight, classes)
